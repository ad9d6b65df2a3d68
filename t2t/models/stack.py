"""Blocks, and the stack of them that one layer scan runs: the same for encoders and decoders."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any, Protocol, TypeVar

from flax import nnx
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from t2t import sharding
from t2t.models import attention, auxiliary, layers, remat
from t2t.models import positions as positions_lib
from t2t.models.auxiliary import Auxiliary
from t2t.models.config import TransformerConfig
from t2t.models.masks import AttentionMask

T = TypeVar("T")
TaskAttention = Callable[..., tuple[jax.Array, attention.KVCache]]  # see `Layer.__call__`


class LearnedKeys(Protocol):
  """A module that makes keys and values of all layers, which stand in front of a row's own."""

  length: int

  def __call__(self) -> attention.KVCache:
    """[layers, kv heads, length, kv]."""


class SmallAttentions(Protocol):
  """A module with a small attention beside each layer, see `adapters.pals.Pals`."""

  @property
  def of_layers(self) -> tuple[jax.Array, ...]:
    """Parameters of each layer, with an axis of layers in front."""

  def room(self, batch_size: int, length: int, dtype: str) -> attention.KVCache:
    """An empty cache of all layers."""

  __call__: TaskAttention


class Layer(nnx.Module):
  """Residual block: self-attention, cross-attention if `cross`, feed-forward; norms before the branches or behind.

  With `only_cross` it has no more than a cross-attention: the rest is another layer's (see `__call__`).
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, cross: bool, only_cross: bool = False):
    self.dropout_rate = config.dropout_rate
    self.broadcast_axis = -2 if config.broadcast_dropout else None
    self.post_norm = config.post_norm
    if not only_cross:
      self.self_attention_norm = layers.Norm(config, config.embed_dim)
      self.self_attention = attention.Attention(config, rngs)
    if cross:
      self.cross_attention_norm = layers.Norm(config, config.embed_dim)
      self.cross_attention = attention.Attention(config, rngs, cross=True)
    if not only_cross:
      self.mlp_norm = layers.Norm(config, config.embed_dim)
      self.mlp = config.feed_forward_class(config, rngs)
    branches = (*(() if only_cross else ("self_attention", "mlp")), *(("cross_attention",) if cross else ()))
    branch_norms = (
      nnx.Dict({name: layers.Norm(config, config.embed_dim) for name in branches}) if config.branch_norm else None
    )
    self.branch_norms = branch_norms
    self.adapters: nnx.Dict | None = None  # branch -> a small layer behind it: of an adapted model

  def _branch_input(self, x: jax.Array, norm: layers.Norm, is_normed: jax.Array | bool = False) -> jax.Array:
    """What a branch reads of the residual sum `x`, which may be normed already."""
    normed = x if self.post_norm else norm(x)
    return sharding.join_residual(normed if is_normed is False else jnp.where(is_normed, x, normed))

  def _add(
    self, x: jax.Array, update: jax.Array, branch: str, key: jax.Array | None, beside: jax.Array | None = None
  ) -> jax.Array:
    """`x` with what a branch gives, and what stands `beside` it, normed where norms stand behind the branches."""
    update = sharding.split_residual(update)
    update = update if self.branch_norms is None else self.branch_norms[branch](update)
    update = layers.dropout(update, self.dropout_rate, key, broadcast_axis=self.broadcast_axis)
    if self.adapters is not None and branch in self.adapters:
      update = self.adapters[branch](update)
    x = x + update if beside is None else x + update + sharding.split_residual(beside)
    return getattr(self, f"{branch}_norm")(x) if self.post_norm else x

  def _add_memory(
    self,
    x: jax.Array,
    memory: jax.Array | attention.KVCache,
    mask: AttentionMask | None,
    keys: list[jax.Array | None],
    probe: attention.AttentionProbe | None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """`x` and what the cross-attention finds in `memory`; and its probabilities, if they are looked at."""
    assert mask is not None
    normed = self._branch_input(x, self.cross_attention_norm)
    if not isinstance(memory, attention.KVCache):
      memory = attention.KVCache(*self.cross_attention.keys_and_values(memory, dropout_key=keys[0]))
    update = self.cross_attention(normed, memory.keys, memory.values, mask=mask, dropout_key=keys[0])
    seen = None
    if probe is not None and probe.cross:
      seen = probe.at(self.cross_attention, normed, memory.keys, mask=mask)
    return self._add(x, update, "cross_attention", keys[1]), seen

  def __call__(
    self,
    x: jax.Array,
    *,
    mask: AttentionMask,
    positions: positions_lib.Positions = positions_lib.NOWHERE,
    is_normed: jax.Array | bool = False,
    memory: jax.Array | attention.KVCache | None = None,
    memory_mask: AttentionMask | None = None,
    cross_layer: "Layer | None" = None,
    cache: attention.KVCache | None = None,
    prefix_kv: attention.KVCache | None = None,
    task_attention: TaskAttention | None = None,
    probe: attention.AttentionProbe | None = None,
    real: jax.Array | None = None,
    carried: Mapping[str, jax.Array] | None = None,
    dropout_key: jax.Array | None = None,
  ) -> tuple[jax.Array, attention.KVCache | jax.Array | None, Auxiliary]:
    """[batch, length, embed] -> the same; the keys and values that the self-attention read; auxiliary outputs.

    Args:
      x: the residual sum.
      mask, positions: of the self-attention.
      is_normed: bool [], whether `x` comes out of a norm, so that the self-attention reads it as it is.
      memory: what the cross-attention reads, [batch, length, embed], or its keys and values.
      memory_mask: of the cross-attention.
      cross_layer: the layer whose cross-attention is used, if this one has none.
      cache: keys and values of earlier positions; those of `x` are written into it, and all are attended to.
      prefix_kv: learned keys and values, [kv heads, few, kv], in front of those of `x`; they are in a cache already.
      task_attention: a small attention beside the layer, (self-attention's input, mask, cache) -> (update, its keys and
        values).  The update is added together with that of the feed-forward layer.
      probe: at which probabilities; they are returned in place of keys and values, float32 [batch, query, key].
      real, carried: see `FeedForward`.
      dropout_key: None at evaluation.
    """
    keys = layers.split_key(dropout_key, 6)
    normed = self._branch_input(x, self.self_attention_norm, is_normed)
    kv = self.self_attention.keys_and_values(normed, positions, dropout_key=keys[0])
    kv = attention.KVCache(*kv)
    kv = kv if prefix_kv is None else kv.behind(prefix_kv)
    written = None if cache is None else cache.beside
    beside, task_cache = (None, None) if task_attention is None else task_attention(normed, mask=mask, cache=written)
    cache = kv if cache is None else cache.write(kv.keys, kv.values, mask.key_index(cache.keys.shape[2]))
    update = self.self_attention(normed, cache.keys, cache.values, mask=mask, positions=positions, dropout_key=keys[0])
    seen = None
    if probe is not None and not probe.cross:
      seen = probe.at(self.self_attention, normed, cache.keys, mask=mask, positions=positions)
    x = self._add(x, update, "self_attention", keys[1])
    if memory is not None:
      x, crossing = (self if cross_layer is None else cross_layer)._add_memory(x, memory, memory_mask, keys[2:4], probe)
      seen = crossing if seen is None else seen
    beside_rows = {} if carried is None else {"carried": carried}
    output = auxiliary.hidden_of(self.mlp(self._branch_input(x, self.mlp_norm), keys[4], real=real, **beside_rows))
    x = self._add(x, output.x, "mlp", keys[5], beside)
    return x, dataclasses.replace(cache, beside=task_cache) if probe is None else seen, output.aux


Weights = tuple[Layer | None, Layer | None]  # a stack's own layers, and those that it borrows
Caches = attention.KVCache | tuple[attention.KVCache, ...]  # with a leading "layers" axis, or one for each layer


def unstack_layers(stacked: T, num_layers: int) -> tuple[T, ...]:
  """A tree of stacked arrays as a tuple with a tree for each layer."""
  return tuple(jax.tree.map(lambda x, index=index: x[index], stacked) for index in range(num_layers))


def unrolled(num_layers: int, requested: int = 0) -> int:
  """How many layers a step of the scan has, where `config.model.unroll` asks for so many.

  A loop on a CPU copies each layer's weights out of the stack, forward and backward: a fifth of a step of T5 small.
  """
  return min(requested or (num_layers if sharding.platform() == "cpu" else 1), num_layers)


class Stack(nnx.Module):
  """Layers of one shape, each parameter with a leading "layers" axis, run with one `jax.lax.scan`.

  One layer is compiled, whatever their number.  With `config.share_layers` there is one layer, run as often.
  """

  def __init__(
    self,
    config: TransformerConfig,
    rngs: nnx.Rngs,
    *,
    num_layers: int,
    causal: bool,
    cross: bool = False,
    only_cross: bool = False,
  ):
    self.num_layers = num_layers
    self.config = config
    bidirectional = not causal or config.bidirectional_prefix
    self.position_bias = config.position_scheme.stack_parameters(rngs, bidirectional=bidirectional)
    make = lambda key: Layer(config, nnx.Rngs(key), cross=cross, only_cross=only_cross)
    key = rngs.params()
    if config.share_layers:
      self.layer = make(key)
    else:
      self.layers = jax.vmap(make)(jax.random.split(key, num_layers))
    self.norm = None if config.post_norm else layers.Norm(config, config.embed_dim)
    self.embed = layers.DecoderPositions(config, rngs) if causal and config.own_decoder_positions else None
    self.prefix: LearnedKeys | None = None  # of an adapted model, in front of a row's own keys
    self.pals: SmallAttentions | None = None  # of an adapted model, of several tasks

  @property
  def front(self) -> int:
    """How many learned keys stand in front of a row's own; they have its first positions."""
    return 0 if self.prefix is None else self.prefix.length

  @property
  def own_layers(self) -> Layer:
    """The stacked layers, or the one that is run again and again."""
    return self.layer if self.config.share_layers else self.layers

  def weights(self, body: Layer | None = None) -> Weights:
    """What is scanned: layers that are all the same layer are no part of it."""
    return (None, None) if self.config.share_layers else (self.layers, body)

  def ready_weights(self, body: Layer | None = None) -> Weights | tuple[Weights, ...]:
    """`weights` as many calls read them fastest: matrices in the activations' dtype, on a CPU each layer by itself."""
    # Vectors, which have two dimensions here, stay as they are: norms are computed in float32.
    cast = lambda x: x.astype(self.config.dtype) if x.ndim > 2 else x
    weights = jax.tree.map(cast, self.weights(body))
    return unstack_layers(weights, self.num_layers) if sharding.platform() == "cpu" else weights

  def read(self, memory: jax.Array) -> attention.KVCache:
    """Keys and values of [batch, length, embed] for each layer's cross-attention, with a leading "layers" axis."""
    read_layer = lambda layer: attention.KVCache(*layer.cross_attention.keys_and_values(memory))
    if self.config.share_layers:
      return jax.tree.map(lambda x: jnp.broadcast_to(x, (self.num_layers, *x.shape)), read_layer(self.layer))
    return jax.lax.scan(
      lambda _, layer: (None, read_layer(layer)),
      None,
      self.layers,
      unroll=unrolled(self.num_layers, self.config.unroll),
    )[1]

  def _is_normed(self, index: jax.Array) -> jax.Array | bool:
    """Whether the layer of this number is given what a norm made: ModernBERT's first (Warner et al. 2024)."""
    return self.config.embedding_norm and not self.config.post_norm and index == 0

  def __call__(
    self,
    x: jax.Array,
    *,
    mask: AttentionMask,
    body: Layer | None = None,
    weights: Weights | tuple[Weights, ...] | None = None,
    memory: jax.Array | Caches | None = None,
    memory_mask: AttentionMask | None = None,
    cache: Caches | None = None,
    tasks: jax.Array | None = None,
    keep_cache: bool = False,
    every_layer: bool = False,
    probe: attention.AttentionProbe | None = None,
    real: jax.Array | None = None,
    carried: Mapping[str, jax.Array] | None = None,
    dropout_key: jax.Array | None = None,
  ) -> tuple[jax.Array, Caches | jax.Array | None, Auxiliary]:
    """[batch, length, embed] -> the same, normed; keys and values of all layers, if `keep_cache`; auxiliary outputs.

    With `every_layer` what was embedded, and what came out of each layer, [layers + 1, batch, length, embed]; of these
    only the last is normed, in models whose norms stand before the branches.

    Args:
      x: embedded tokens.
      mask: of the self-attention.
      body: stacked layers whose self-attention and feed-forward layers are used, if this stack's have none.
      weights: what `weights` or `ready_weights` gives, if it was called before.
      memory: the encoder's output, or its keys and values.
      memory_mask: of the cross-attention.
      cache: keys and values of earlier positions.
      tasks: int [batch, length], the number of each position's task, or [batch, 1] of each row's; what an adapted model
        asks for that has several.
      keep_cache: otherwise nothing but the result is kept.
      every_layer: see above.
      probe: at which probabilities; they are returned in place of a cache, float32 [layers, batch, query, key].
      real: see `FeedForward`.
      carried: name -> [layers, batch, ...], see there.
      dropout_key: None at evaluation.
    """
    config = self.config
    embed_key, layers_key, out_key = layers.split_key(dropout_key, 3)
    apart = isinstance(cache, tuple)
    mask = dataclasses.replace(mask, front=self.front)
    key_length = x.shape[1] + self.front if cache is None else (cache[0] if apart else cache).keys.shape[-2]
    call = positions_lib.Call(x.shape[0], x.shape[1], key_length, mask, self.front, drops=dropout_key is not None)
    positions = config.position_scheme.positions(self.position_bias, call)
    memory_is_cached = isinstance(memory, attention.KVCache | tuple)
    prefix: Any = self.prefix
    layer_inputs: dict[str, Any] = {
      "index": range(self.num_layers) if apart else jnp.arange(self.num_layers),
      "weights": self.weights(body) if weights is None else weights,
      "key": None if layers_key is None else jax.random.split(layers_key, self.num_layers),
      "cache": cache,
      "prefix_kv": prefix() if self.front and cache is None else None,
      "memory": memory if memory_is_cached else None,
      "task_attention": None if self.pals is None else self.pals.of_layers,
      "carried": carried or None,
    }
    if apart and self.pals is not None:
      layer_inputs["task_attention"] = unstack_layers(layer_inputs["task_attention"], self.num_layers)

    def run(x, inputs):
      x = checkpoint_name(x, "input")
      layer, borrowed = (self.layer, body) if config.share_layers else inputs["weights"]
      x, cached, aux = (layer if borrowed is None else borrowed)(
        x,
        mask=mask,
        positions=positions(inputs["index"]),
        is_normed=self._is_normed(inputs["index"]),
        memory=inputs["memory"] if memory_is_cached else memory,
        memory_mask=memory_mask,
        cross_layer=layer,
        cache=inputs["cache"],
        prefix_kv=inputs["prefix_kv"],
        task_attention=None
        if self.pals is None
        else functools.partial(self.pals, layer_matrices=inputs["task_attention"], tasks=tasks),
        probe=probe,
        real=real,
        carried=inputs["carried"],
        dropout_key=inputs["key"],
      )
      return x, (cached if keep_cache or probe is not None else None, x if every_layer else None, aux)

    broadcast_axis = -2 if config.broadcast_dropout else None
    x = layers.dropout(x, config.dropout_rate, embed_key, broadcast_axis=broadcast_axis)
    x = sharding.split_residual(x)
    first = x
    x, (cached, states, aux) = self._run_all(run, x, layer_inputs, apart=apart)
    x = x if self.norm is None else self.norm(x)
    if config.broadcast_dropout:
      x = layers.dropout(x, config.dropout_rate, out_key, broadcast_axis=-2)
    x = sharding.join_residual(x)
    if every_layer:
      x = jnp.concatenate([first[None], states[:-1], x[None]])
    return x, cached if keep_cache or probe is not None else None, auxiliary.of_layers(aux)

  def _run_all(
    self, run: Callable, x: jax.Array, layer_inputs: dict[str, Any], *, apart: bool
  ) -> tuple[jax.Array, Any]:
    """One layer after another; `layer_inputs`: argument -> values of all layers, stacked, or `apart` in tuples."""
    if self.config.remat != "none":
      # The scan itself keeps XLA from merging the recomputation with the forward pass.
      run = jax.checkpoint(run, policy=remat.policy(self.config.remat, self.config.quantization), prevent_cse=False)
    if not apart:
      return jax.lax.scan(run, x, layer_inputs, unroll=unrolled(self.num_layers, self.config.unroll))
    outputs = []
    for index in range(self.num_layers):
      x, output = run(x, {name: None if part is None else part[index] for name, part in layer_inputs.items()})
      outputs.append(output)
    # As a scan gives them: a tree of tuples, not a tuple of trees.
    return x, tuple(zip(*outputs, strict=True))
