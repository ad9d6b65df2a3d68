"""Longformer's attention: a window around each token, and a few tokens that attend to all and that all attend to.

Memory and time are linear in the length: no array has all pairs of positions.
"""

from collections.abc import Callable
import dataclasses
import functools

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.models import chunks, layers
from t2t.models.architecture import Batch, real_positions, segments_of
from t2t.models.attention import Attention
from t2t.models.config import TransformerConfig
from t2t.models.masks import AttentionMask
from t2t.models.positions import NOWHERE, Positions

_FEATURE = "encoder_global_tokens"
_LOWEST = jnp.finfo(jnp.float32).min


def global_tokens(config: TransformerConfig) -> str:
  """Returns which tokens are global: `config.global_tokens`, or for "" as published for the model's heads."""
  kinds = {head.kind for head in config.heads}
  published = "question" if "span" in kinds else "first" if kinds & {"class", "score", "choice", "vector"} else "none"
  return config.global_tokens or published


class LongformerAttention(Attention):
  """Attention within a window, and between global tokens and all others (Beltagy et al. 2020).

  Global tokens have projections of their own: their queries and all keys and values that these queries attend to. As a
  key of another token, a global token has the projections of all tokens.
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    _check(config)
    super().__init__(config, rngs)
    self.dilation = config.attention_dilation
    self.most_global = config.most_global_tokens
    embed, head_dim = config.embed_dim, config.head_dim
    joined, kv_joined = config.num_heads * head_dim, config.kv_heads * head_dim
    query_scale = layers.fan_in_scale(config, embed if config.scale_attention else embed * head_dim)
    scale = layers.fan_in_scale(config, embed)
    self.global_query = layers.param(rngs, (embed, joined), ("embed", "heads"), scale=query_scale)
    self.global_key = layers.param(rngs, (embed, kv_joined), ("embed", "heads"), scale=scale)
    self.global_value = layers.param(rngs, (embed, kv_joined), ("embed", "heads"), scale=scale)
    self.global_query_bias = layers.bias(config, joined, "heads")
    self.global_key_bias = layers.bias(config, kv_joined, "heads")
    self.global_value_bias = layers.bias(config, kv_joined, "heads")

  @classmethod
  def with_features(cls, config: TransformerConfig, batch: Batch) -> Batch:
    """Adds encoder_global_tokens, int [batch, length], 1 at global tokens; a batch may already have them.

    Raises:
      UserError: the question is global, but the batch has no token types.
    """
    kind = global_tokens(config)
    if _FEATURE in batch or kind == "none":
      return batch
    segments = segments_of(batch, "encoder")
    if kind == "first":
      begins = segments != jnp.pad(segments, [(0, 0), (1, 0)])[:, :-1]
      return {**batch, _FEATURE: (begins & (segments > 0)).astype(jnp.int32)}
    if "encoder_token_types" not in batch:
      raise UserError(
        "config.model.global_tokens=question: the batch has no encoder_token_types, which tell a question from its "
        "context. Give encoder_token_types or encoder_global_tokens, or set config.model.global_tokens=first."
      )
    is_question = (batch["encoder_token_types"] == 0) & real_positions(batch, "encoder")
    return {**batch, _FEATURE: is_question.astype(jnp.int32)}

  def probabilities(
    self, x: jax.Array, keys: jax.Array, *, mask: AttentionMask, positions: Positions = NOWHERE
  ) -> jax.Array:
    length = keys.shape[2]
    ones = jnp.broadcast_to(jnp.eye(length, dtype=keys.dtype), (*keys.shape[:2], length, length))
    options = {"mask": mask, "positions": positions, "dropout_key": None, "kernel": "plain"}
    return self._attend(x, keys, ones, global_values=ones, **options).astype(jnp.float32)

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
    global_values: jax.Array | None = None,
  ) -> jax.Array:
    del kernel, adds_values
    _check_mask(mask)
    local_key, far_key, rows_key = layers.split_key(dropout_key, 3)
    if self.broadcast_dropout:  # of all probabilities of a key, as in `attention.attend`
      values = layers.dropout(values, self.dropout_rate, rows_key, broadcast_axis=-1)
      local_key = far_key = None
    query = self._on_queries(x, "query", positions, dropout_key)
    batch, length, groups = x.shape[0], x.shape[1], query.shape[1] // keys.shape[1]
    every_head = lambda x: jnp.repeat(x, groups, axis=1) if groups > 1 else x
    keys, values = every_head(keys), every_head(values)
    segments = jnp.ones((batch, length), jnp.int32) if mask.key_segments is None else mask.key_segments
    weights = functools.partial(self._weights, dropout_key=local_key)
    # The backward pass computes the probabilities again, as kernels do, instead of keeping those of every layer.
    attend = jax.checkpoint(
      functools.partial(_attend_locally, weights=weights, window=self.window, dilation=self.dilation)
    )
    if mask.global_tokens is None:
      nothing = _Globals(keys[:, :, :0], values[:, :, :0], jnp.full((batch, 0), -1, jnp.int32))
      is_global = jnp.zeros((batch, length), bool)
      return attend(query, keys, values, segments, is_global, nothing)
    # The first global tokens of each row; the others are local.
    count = min(self.most_global, length)
    flags = (mask.global_tokens > 0) & (segments > 0)
    is_global = flags & (jnp.cumsum(flags, axis=1) <= count)
    places = jnp.argsort(~is_global, axis=1, stable=True)[:, :count]
    at = lambda x: jnp.take_along_axis(x, places, axis=1)
    pick = lambda x: jnp.take_along_axis(x, places[:, None, :, None], axis=2)
    # Unused places have a segment of no token.
    global_segments = jnp.where(at(is_global), at(segments), -1)
    seen = _Globals(pick(keys), pick(values), global_segments)
    out = attend(query, keys, values, segments, is_global, seen)
    far_queries = self._on_queries(x, "global_query", positions, dropout_key, places)
    far_keys, own_values = (self._project(x, name, dropout_key) for name in ("global_key", "global_value"))
    far_keys = positions.on_keys(far_keys if self.key_norm is None else self.key_norm(far_keys))
    far_values = own_values if global_values is None else global_values
    if self.broadcast_dropout:
      far_values = layers.dropout(far_values, self.dropout_rate, rows_key, broadcast_axis=-1)
    logits = jnp.einsum("bhgd,bhsd->bhgs", far_queries, every_head(far_keys), preferred_element_type=jnp.float32)
    allowed = global_segments[:, None, :, None] == segments[:, None, None, :]
    probabilities = self._weights(logits, allowed, dropout_key=far_key).astype(query.dtype)
    far = jnp.einsum("bhgs,bhsd->bhgd", probabilities, every_head(far_values))
    far = jnp.where(at(is_global)[:, None, :, None], far, pick(out))
    return jax.vmap(lambda out, far, places: out.at[:, places].set(far))(out, far, places)

  def _on_queries(
    self,
    x: jax.Array,
    name: str,
    positions: Positions,
    dropout_key: jax.Array | None,
    places: jax.Array | None = None,
  ) -> jax.Array:
    """Returns scaled queries of all positions, or of the positions `places`, int [batch, few]."""
    if places is None or positions.angles is not None:
      query = self._project(x, name, dropout_key)
    else:
      query = self._project(jnp.take_along_axis(x, places[..., None], axis=1), name, dropout_key)
      places = None
    query = query if self.query_norm is None else self.query_norm(query)
    query = positions.on_queries(query) * self.scale
    return query if places is None else jnp.take_along_axis(query, places[:, None, :, None], axis=2)

  def _weights(self, logits: jax.Array, allowed: jax.Array, *, dropout_key: jax.Array | None) -> jax.Array:
    """Returns the softmax of float32 logits over the last axis, with dropout."""
    logits = jnp.where(allowed, layers.softcap(logits, self.softcap), _LOWEST)
    return layers.dropout(jax.nn.softmax(logits, axis=-1), self.dropout_rate, dropout_key)

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Returns the projections of a position; with global tokens, keys and values twice. Their queries are few."""
    kv = 2 * config.embed_dim * config.kv_heads * config.head_dim
    return super().multiply_adds(config) + (kv if global_tokens(config) != "none" else 0)

  @classmethod
  def pairs(cls, config: TransformerConfig, num_layers: int, length: int) -> float:
    """Returns the pairs of a window, and with global tokens those of most_global_tokens in both directions."""
    few = 0 if global_tokens(config) == "none" else min(config.most_global_tokens, length)
    window = min(config.attention_window, -(-length // config.attention_dilation))
    near = length * (2 * window + 1) - config.attention_dilation * window * (window + 1)
    return num_layers * (near + 2 * few * length)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Globals:
  """Keys and values of global tokens, [batch, heads, few, kv], and their segments, int [batch, few], -1: unused."""

  keys: jax.Array
  values: jax.Array
  segments: jax.Array


def _check(config: TransformerConfig) -> None:
  """Checks the settings of a model with this attention."""
  where = "config.model.attention=longformer"
  if config.kind.is_generative:
    raise UserError(
      f"{where} needs config.model.architecture=encoder_only, not {config.architecture}: a global token of a decoder "
      "would attend to later tokens. For a window alone, set config.model.attention=full and "
      "config.model.attention_window."
    )
  if not config.attention_window:
    raise UserError(f"{where} needs a window, but config.model.attention_window=0. Set it to 256, for example.")
  if config.global_attention_every:
    raise UserError(
      f"{where} has a window in every layer, but config.model.global_attention_every={config.global_attention_every}. "
      "Set config.model.global_attention_every=0."
    )
  if config.biased:
    raise UserError(
      f"{where} supports no bias on attention logits, but config.model.positions={config.positions}. Set "
      "config.model.positions=learned or rotary."
    )
  if config.attention_kernel not in ("", "plain"):
    raise UserError(
      f"{where} uses no kernel, but config.model.attention_kernel={config.attention_kernel}. Set "
      "config.model.attention_kernel=''."
    )
  if config.global_tokens not in KINDS:
    raise UserError(
      f"config.model.global_tokens={config.global_tokens!r}: unknown value. Known values: {', '.join(KINDS[1:])}, or "
      "'' for the choice that is published for the model's heads."
    )


KINDS = ("", "none", "first", "question")


def _check_mask(mask: AttentionMask) -> None:
  where = "config.model.attention=longformer"
  if mask.ranks is not None:
    raise UserError(
      f"{where} does not support the ranks of config.data.objective=unilm. Set config.model.attention=full or another "
      "objective."
    )
  if mask.front:
    raise UserError(f"{where} does not support learned prefix keys. Leave config.prefix out, or use config.lora.")


Weights = Callable[[jax.Array, jax.Array], jax.Array]  # logits, allowed -> probabilities, float32


def _attend_locally(
  query: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  segments: jax.Array,
  is_global: jax.Array,
  seen: _Globals,
  *,
  weights: Weights,
  window: int,
  dilation: int,
) -> jax.Array:
  """Attends to local keys in a window and to global keys, [batch, heads, length, kv].

  With a dilation of d, every d-th position is a sequence of its own, so that the window covers d times the distance.
  """
  if dilation == 1:
    return _attend_in_windows(query, keys, values, segments, is_global, seen, weights=weights, window=window)

  def apart(x: jax.Array, axis: int) -> jax.Array:
    # [batch, ..., length, ...] -> [batch * dilation, ..., length / dilation, ...]
    x = jnp.moveaxis(chunks.split(chunks.padded(x, axis, dilation), axis, dilation), axis + 1, 1)
    return x.reshape(-1, *x.shape[2:])

  copies = jax.tree.map(lambda x: jnp.repeat(x, dilation, axis=0), seen)
  query_apart, keys, values = (apart(x, 2) for x in (query, keys, values))
  segments, is_global = (apart(x, 1) for x in (segments, is_global))
  out = _attend_in_windows(query_apart, keys, values, segments, is_global, copies, weights=weights, window=window)
  out = jnp.moveaxis(out.reshape(-1, dilation, *out.shape[1:]), 1, 3)
  return out.reshape(*out.shape[:2], -1, out.shape[-1])[:, :, : query.shape[2]]


def _attend_in_windows(
  query: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  segments: jax.Array,
  is_global: jax.Array,
  seen: _Globals,
  *,
  weights: Weights,
  window: int,
) -> jax.Array:
  """Attends as `_attend_locally`, chunk by chunk: a window is within a chunk and its two neighbours."""
  length = query.shape[2]
  chunk = min(window, length)
  query, keys, values = (chunks.padded(x, 2, chunk) for x in (query, keys, values))
  segments, is_global, places = (
    chunks.padded(x, x.ndim - 1, chunk) for x in (segments, is_global.astype(jnp.int32), jnp.arange(length))
  )
  # [batch, chunks, query, key]; segment -1 is outside of the row.
  segments_of_queries = chunks.split(segments, 1, chunk)[..., None]
  same = segments_of_queries == chunks.with_neighbours(segments, 1, chunk, outside=-1)[:, :, None]
  distance = chunks.split(places, 0, chunk)[..., None] - chunks.with_neighbours(places, 0, chunk)[:, None]
  is_local = chunks.with_neighbours(is_global, 1, chunk)[:, :, None] == 0
  allowed = [same & is_local & (jnp.abs(distance) <= window), segments_of_queries == seen.segments[:, None, None]]
  # [batch, heads, chunks, query, key], in float32.
  query = chunks.split(query, 2, chunk)
  multiply = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
  near = multiply("bhnqd,bhnkd->bhnqk", query, chunks.with_neighbours(keys, 2, chunk))
  logits = jnp.concatenate([near, multiply("bhnqd,bhgd->bhnqg", query, seen.keys)], axis=-1)
  probabilities = weights(logits, jnp.concatenate(allowed, axis=-1)[:, None]).astype(query.dtype)
  to_near, to_global = jnp.split(probabilities, [near.shape[-1]], axis=-1)
  out = jnp.einsum("bhnqk,bhnkd->bhnqd", to_near, chunks.with_neighbours(values, 2, chunk))
  out += jnp.einsum("bhnqg,bhgd->bhnqd", to_global, seen.values)
  return out.reshape(*out.shape[:2], -1, out.shape[-1])[:, :, :length]
