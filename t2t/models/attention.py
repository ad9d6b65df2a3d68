"""Multi-head attention and its cache for decoding."""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

from flax import nnx
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from t2t import sharding
from t2t.models import cpu_ops, layers
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig
from t2t.models.kernels import dispatch
from t2t.models.masks import AttentionMask, DistanceBias
from t2t.models.positions import NOWHERE, Positions, bias_of


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
  """Keys and values of the positions decoded so far, [batch, kv heads, length, kv]; unwritten ones are zero.

  beside: cache of a small parallel attention, with the same layout; None: there is no such attention.
  """

  keys: jax.Array
  values: jax.Array
  beside: "KVCache | None" = None

  def write(self, keys: jax.Array, values: jax.Array, index: jax.Array | int) -> "KVCache":
    """Returns the cache with [batch, kv heads, few, kv] written at `index`, int []."""
    written = cpu_ops.write if sharding.platform() == "cpu" else jax.lax.dynamic_update_slice_in_dim
    update = lambda old, new: written(old, new.astype(old.dtype), index, 2)
    return KVCache(update(self.keys, keys), update(self.values, values))

  def follow(self, parents: jax.Array) -> "KVCache":
    """Returns the cache in which each beam continues another beam: this one, because `ancestors` selects keys."""
    del parents
    return self

  def behind(self, front: "KVCache") -> "KVCache":
    """Prepends a prefix common to all rows, [kv heads, few, kv]; both may have a leading axis of layers."""

    def join(front: jax.Array, x: jax.Array) -> jax.Array:
      shape = (*x.shape[:-2], *front.shape[-2:])
      # Cast after the broadcast, so that gradients of the copies are summed in float32.
      copies = jnp.broadcast_to(front[..., None, :, :, :], shape).astype(x.dtype)
      return jnp.concatenate([copies, x], axis=-2)

    return jax.tree.map(join, front, self)


def attend(
  query: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  mask: AttentionMask,
  bias: DistanceBias | jax.Array | None = None,
  on_probabilities: Callable[[jax.Array], jax.Array] | None = None,
  softcap: float = 0.0,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
  broadcast_dropout: bool = True,
  kernel: str = "",
  largest_block: int = 0,
) -> jax.Array:
  """Computes softmax(softcap(query keys^T) + bias) values, with the softmax in float32 and without scaling.

  Args:
    query: [batch, heads, query, kv].
    keys, values: [batch, kv heads, key, kv]; kv heads divides heads, and consecutive query heads share a kv head.
    mask: a query that attends to no key gets an arbitrary finite result.
    bias: by distance; or float32 [1 or batch, heads, query, key], computed once for many layers if no kernel takes a
      bias by distance.
    on_probabilities: maps probabilities, [batch, heads, query, key], to an addition to the result; no kernel supports
      it. None: no addition.
    softcap: see `TransformerConfig.attention_softcap`; no kernel supports it.
    dropout_rate, dropout_key, broadcast_dropout: dropout of the probabilities; T5 shares one mask among all queries.
    kernel: see `dispatch.choose_here`.
    largest_block: largest block of a TPU kernel, see `dispatch.attend`.

  Returns:
    [batch, heads, query, kv] in the dtype of `query`.
  """
  if sharding.num_shards("length") > 1 and not mask.is_decoding:
    # If the mesh splits sequences, each device gathers all keys for its part of the queries (Dubey et al. 2024, section
    # 3.3.2). Keys are small, and every mask works unchanged.
    keys, values = (sharding.shard(x, "batch", "heads", None, "kv") for x in (keys, values))
  mask = mask.without_idle_window(query.shape[2], keys.shape[2])
  groups = query.shape[1] // keys.shape[1]
  if broadcast_dropout and dropout_key is not None and dropout_rate > 0.0 and on_probabilities is None:
    # Dropping a key's probabilities for all queries equals dropping its row of values, separately for each head.
    if groups > 1:
      keys, values, groups = jnp.repeat(keys, groups, axis=1), jnp.repeat(values, groups, axis=1), 1
    values, dropout_key = layers.dropout(values, dropout_rate, dropout_key, broadcast_axis=-1), None
  dropped = dropout_key is not None and dropout_rate > 0.0
  by_distance = isinstance(bias, DistanceBias)
  if not mask.is_decoding:
    of_rows = (not by_distance and bias is not None and bias.shape[0] > 1) or on_probabilities is not None
    added = "rows" if of_rows else "distance" if by_distance else "array"
    added = "soft cap" if softcap else "" if bias is None and on_probabilities is None else added
    reach = bias.reach if by_distance else 0
    choice = dispatch.choose_here(
      query, keys, mask, bias=added, reach=reach, dropout="each" if dropped else "", kernel=kernel
    )
    if choice.kernel != "plain":
      if by_distance and choice.kernel in ("cudnn", "triton"):
        bias = bias_of(bias, mask, query.shape[2], keys.shape[2])
      options: dict[str, Any] = {"largest_block": largest_block}
      options |= {"dropout_rate": dropout_rate, "dropout_key": dropout_key} if dropped else {}
      return dispatch.attend(query, keys, values, mask, kernel=choice.kernel, bias=bias, **options)
  if by_distance:
    bias = bias_of(bias, mask, query.shape[2] if mask.ancestors is None else 1, keys.shape[2])
  allowed = mask.allowed(query.shape[2], keys.shape[2])
  in_groups = groups > 1 and mask.is_decoding
  on_cpu = cpu_ops.is_fast(query) and not dropped and not softcap and (bias is None or bias.shape[0] == 1)
  on_cpu &= on_probabilities is None
  if on_cpu and in_groups and query.dtype == jnp.bfloat16:  # in float32 the code below is as fast
    return cpu_ops.attend_in_groups(query, keys, values, bias, allowed)
  if on_cpu and not in_groups:
    if groups > 1:
      keys, values = (jnp.repeat(x, groups, axis=1) for x in (keys, values))
    square = query.shape[2] == keys.shape[2] and not mask.is_decoding
    attend_on_cpu = cpu_ops.attend_causally if mask.causal and mask.prefix is None and square else cpu_ops.attend
    return attend_on_cpu(query, keys, values, bias, allowed)
  scores = logits(query, keys, bias, softcap=softcap)
  if allowed is not None:
    scores = jnp.where(allowed, scores, jnp.finfo(jnp.float32).min)
  probabilities = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
  # With `broadcast_dropout` only probabilities for `on_probabilities` remain to be dropped.
  axis = -2 if broadcast_dropout else None
  probabilities = layers.dropout(probabilities, dropout_rate, dropout_key, broadcast_axis=axis)
  # [batch, kv heads, group, query, key]
  in_groups_of_heads = probabilities.reshape(query.shape[0], -1, groups, *probabilities.shape[2:])
  output = jnp.einsum("bhgqs,bhsk->bhgqk", in_groups_of_heads, values).reshape(*query.shape[:-1], -1)
  return output if on_probabilities is None else output + on_probabilities(probabilities).astype(output.dtype)


def logits(query: jax.Array, keys: jax.Array, bias: jax.Array | None, *, softcap: float) -> jax.Array:
  """Computes softcap(query keys^T) + bias, float32 [batch, heads, query, key]; arguments as in `attend`."""
  # [batch, kv heads, group, query, kv]
  grouped = query.reshape(query.shape[0], -1, query.shape[1] // keys.shape[1], *query.shape[2:])
  scores = jnp.einsum("bhgqk,bhsk->bhgqs", grouped, keys, preferred_element_type=jnp.float32)
  scores = layers.softcap(scores.reshape(query.shape[0], -1, *scores.shape[3:]), softcap)
  return scores if bias is None else scores + bias


class Attention(nnx.Module):
  """Multi-head attention (Vaswani et al. 2017); with fewer key heads than query heads, grouped-query (Ainslie 2023).

  The projections are matrices with num_heads * head_dim as one dimension, so that Adafactor factors them as T5's did.
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, cross: bool = False):
    embed, head_dim = config.embed_dim, config.head_dim
    read = config.of_stack("encoder").embed_dim if cross else embed  # width of the input of keys and values
    joined, kv_joined = config.num_heads * head_dim, config.kv_heads * head_dim
    self.head_dim = head_dim
    self.dropout_rate = config.dropout_rate
    self.broadcast_dropout = config.broadcast_dropout
    self.window = config.attention_window
    self.gradient_dtype, self.quantization = config.gradient_dtype, config.quantization
    scheme = config.position_scheme
    terms = 1 if cross else scheme.logit_terms
    self.scale = config.attention_scale * terms**-0.5 if config.scale_attention else 1.0
    self.softcap = config.attention_softcap
    self.kernel, self.largest_block = config.attention_kernel, config.attention_block
    # Without scaling, the initializer includes the factor 1/sqrt(head_dim) of the logits.
    query_scale = layers.fan_in_scale(config, embed if config.scale_attention else embed * head_dim)
    self.query = layers.param(rngs, (embed, joined), ("embed", "heads"), scale=query_scale)
    self.key = layers.param(rngs, (read, kv_joined), ("embed", "heads"), scale=layers.fan_in_scale(config, read))
    if cross and config.attention_init_bias:
      # Queries start as scaled keys, so that a normed token attends to itself with this logit on average.
      self_logit = self.scale * head_dim * embed * layers.fan_in_scale(config, embed) ** 2
      keys = self.key[...].reshape(embed, config.kv_heads, head_dim)
      keys = jnp.repeat(keys, config.num_heads // config.kv_heads, axis=1)
      self.query[...] = config.attention_init_bias / self_logit * keys.reshape(embed, joined)
    self.value = layers.param(rngs, (read, kv_joined), ("embed", "heads"), scale=layers.fan_in_scale(config, read))
    self.out = layers.param(rngs, (joined, embed), ("heads", "embed"), scale=layers.residual_scale(config, joined))
    self.query_bias = layers.qkv_bias(config, joined)
    self.key_bias = layers.qkv_bias(config, kv_joined) if config.key_bias else None
    self.value_bias = layers.qkv_bias(config, kv_joined)
    self.out_bias = layers.bias(config, embed, "embed") if config.attention_biases else None
    self.query_norm = layers.Norm(config, head_dim, axis="kv") if config.qk_norm else None
    self.key_norm = layers.Norm(config, head_dim, axis="kv") if config.qk_norm else None
    self.position = None if cross else scheme.layer_parameters(rngs)
    names = ("query", "key", "value", "out")
    self.ranges = layers.FAKE_QUANTIZATION["ranges"](config, names) if config.fake_quantization else None

  @classmethod
  def with_features(cls, config: TransformerConfig, batch: Batch) -> Batch:
    """Returns the model features with those that a self-attention of this kind derives from them."""
    del config
    return batch

  @classmethod
  def is_local(cls, config: TransformerConfig, index: jax.Array | int) -> jax.Array | bool:
    """Returns whether the layer with this index, an integer or int [], uses the attention window."""
    if not config.attention_window or not config.global_attention_every:
      return bool(config.attention_window)
    return index % config.global_attention_every != config.global_attention_first

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Returns multiplications with parameters per position, for `model_flops`."""
    return 2 * config.embed_dim * config.head_dim * (config.num_heads + config.kv_heads)

  @classmethod
  def pairs(cls, config: TransformerConfig, num_layers: int, length: int) -> float:
    """Returns the attended pairs of positions in the self-attention of all layers, ignoring causality.

    A memory adds keys in layers without a window.
    """
    with_window = sum(bool(config.is_local(index)) for index in range(num_layers))
    window = min(config.attention_window, length)
    near = length * (2 * window + 1) - window * (window + 1)
    return with_window * near + (num_layers - with_window) * length * (length + config.memory_length)

  def _dense(self, x: jax.Array, name: str, dropout_key: jax.Array | None) -> jax.Array:
    kernel, bias = getattr(self, name), getattr(self, f"{name}_bias")
    options = {"gradient_dtype": self.gradient_dtype, "quantization": self.quantization}
    if self.ranges is not None:
      options["input_range"] = self.ranges[name]
    return layers.dense(x, kernel, bias, dropout_key=dropout_key, **options)

  def _project(self, x: jax.Array, name: str, dropout_key: jax.Array | None) -> jax.Array:
    # [batch, length, embed] -> [batch, heads, length, kv]
    projected = checkpoint_name(self._dense(x, name, dropout_key), name)
    split = projected.reshape(*projected.shape[:-1], -1, self.head_dim)
    return jnp.swapaxes(sharding.shard(split, "batch", "length", "heads", "kv"), 1, 2)

  def projected(self, x: jax.Array, name: str, dropout_key: jax.Array | None = None) -> jax.Array:
    """Maps vectors that do not belong to a batch, [rows, embed], to [heads, rows, kv]; see `positions.Projections`."""
    return jnp.swapaxes(self._dense(x, name, dropout_key).reshape(len(x), -1, self.head_dim), 0, 1)

  def keys_and_values(
    self,
    memory: jax.Array,
    positions: Positions = NOWHERE,
    *,
    dropout_key: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Returns keys and values, each [batch, kv heads, length, kv], of [batch, length, embed].

    Args:
      memory: input of the projections.
      positions: positions of the keys.
      dropout_key: key for dropout in adapted matrices; None at evaluation.
    """
    keys, values = (self._project(memory, name, dropout_key) for name in ("key", "value"))
    keys = keys if self.key_norm is None else self.key_norm(keys)
    return positions.on_keys(keys), values

  def __call__(
    self,
    x: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    mask: AttentionMask,
    positions: Positions = NOWHERE,
    dropout_key: jax.Array | None = None,
  ) -> jax.Array:
    """Attends from `x`, [batch, length, embed], to `keys_and_values(memory)`; returns the shape of `x`.

    Args:
      x: input of the queries.
      keys, values: result of `keys_and_values`.
      mask: attention mask.
      positions: position scheme's hooks.
      dropout_key: None at evaluation.
    """
    options = {"mask": mask, "positions": positions, "dropout_key": dropout_key, "kernel": self.kernel}
    merged = jnp.swapaxes(self._attend(x, keys, values, **options), 1, 2).reshape(*x.shape[:-1], -1)
    merged = sharding.shard(merged, "batch", "length", "heads")
    return checkpoint_name(self._dense(merged, "out", dropout_key), "attention_out")

  def probabilities(
    self, x: jax.Array, keys: jax.Array, *, mask: AttentionMask, positions: Positions = NOWHERE
  ) -> jax.Array:
    """Returns the attention probabilities of each position of `x`, float32 [batch, heads, query, key]; see `__call__`.

    They are computed as attention over one-hot values.
    """
    length = keys.shape[2]
    ones = jnp.broadcast_to(jnp.eye(length, dtype=keys.dtype), (*keys.shape[:2], length, length))
    options = {"mask": mask, "positions": positions, "dropout_key": None, "kernel": "plain"}
    probs = self._attend(x, keys, ones, adds_values=False, **options)
    return probs.astype(jnp.float32)

  def queries(self, x: jax.Array, positions: Positions, dropout_key: jax.Array | None) -> jax.Array:
    """Returns projected, normed and rotated queries before scaling, [batch, heads, query, kv]."""
    query = self._project(x, "query", dropout_key)
    return positions.on_queries(query if self.query_norm is None else self.query_norm(query))

  def _attend(
    self,
    x: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    mask: AttentionMask,
    positions: Positions,
    dropout_key: jax.Array | None,
    kernel: str,
    adds_values: bool = True,
  ) -> jax.Array:
    """Returns the output of each head, [batch, heads, query, size of a value]."""
    positions = positions.of_attention(self, dropout_key)
    query = self.queries(x, positions, dropout_key) * self.scale

    attend_with = functools.partial(
      attend,
      query,
      keys,
      values,
      bias=positions.on_logits(query, keys, self.position),
      on_probabilities=positions.on_probabilities if positions.adds_values and adds_values else None,
      softcap=self.softcap,
      dropout_rate=self.dropout_rate,
      dropout_key=dropout_key,
      broadcast_dropout=self.broadcast_dropout,
      kernel=kernel,
      largest_block=self.largest_block,
    )
    local = dataclasses.replace(mask, window=self.window)
    if isinstance(positions.is_local, bool):
      return attend_with(mask=local if positions.is_local else mask)
    return jax.lax.cond(positions.is_local, lambda: attend_with(mask=local), lambda: attend_with(mask=mask))


@dataclasses.dataclass(frozen=True)
class AttentionProbe:
  """Selects the attention head of a layer to return probabilities of.

  head: int [], index of the head.
  cross: cross-attention instead of self-attention.
  """

  head: jax.Array
  cross: bool = False

  def at(
    self,
    attention: Attention,
    x: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    mask: AttentionMask,
    positions: Positions = NOWHERE,
  ) -> jax.Array:
    """Returns the probabilities of the head, float32 [batch, query, key]; see `Attention.probabilities`."""
    del values
    return jnp.take(attention.probabilities(x, keys, mask=mask, positions=positions), self.head, axis=1)
