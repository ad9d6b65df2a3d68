"""Multi-head attention, its mask as structure, relative positions, and the cache for decoding."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import sharding
from t2t.models import cpu, layers
from t2t.models.config import TransformerConfig


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionMask:
  """Which keys a query sees, as structure: [query, key] arrays are built inside attention alone.

  query_segments, key_segments: int [batch, length]; a query sees the keys of its own segment. 0 is padding. Without
    packing a sequence is one segment, so these are `tokens > 0`. None: all of them.
  query_offset: int [], position of the first query among the keys (when decoding).
  causal: a query sees no key to its right.
  """

  query_segments: jax.Array | None = None
  key_segments: jax.Array | None = None
  query_offset: jax.Array | int = 0
  causal: bool = dataclasses.field(default=False, metadata={"static": True})

  def allowed(self, query_length: int, key_length: int) -> jax.Array | None:
    """bool, broadcastable to [batch, heads, query, key]; None where everything is seen."""
    allowed = None
    if self.causal:
      queries = jnp.arange(query_length)[:, None] + self.query_offset
      allowed = (queries >= jnp.arange(key_length)[None, :])[None, None]
    if self.key_segments is not None:
      same = self.query_segments[:, None, :, None] == self.key_segments[:, None, None, :]
      allowed = same if allowed is None else allowed & same
    return allowed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
  """Keys and values of the positions decoded so far, [batch, heads, max_length, kv]; unwritten ones are zero."""

  keys: jax.Array
  values: jax.Array

  def write(self, keys: jax.Array, values: jax.Array, position: jax.Array) -> "KVCache":
    """The cache with [batch, heads, 1, kv] written at `position`, int []."""
    update = lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), position, axis=2)
    return KVCache(update(self.keys, keys), update(self.values, values))


def relative_position_bucket(
  relative_position: jax.Array | np.ndarray, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> jax.Array:
  """Maps distances to buckets: near ones have their own, far ones share buckets that widen logarithmically.

  Args:
    relative_position: int, key position minus query position, any shape.
    bidirectional: half of the buckets for keys to the right; else these all fall in bucket 0.
    num_buckets: how many there are in all.
    max_distance: from here on all share the last bucket.

  Returns:
    int32 of the same shape, in [0, num_buckets).

  Source: Raffel et al. 2020, section 2.1.
  """
  if bidirectional:
    num_buckets //= 2
    offset = jnp.where(relative_position > 0, num_buckets, 0)
    distance = jnp.abs(relative_position)
  else:
    offset = 0
    distance = jnp.maximum(-relative_position, 0)
  num_exact = num_buckets // 2
  # The logarithm of 0 is never used: those distances are exact.
  log_share = jnp.log(jnp.maximum(distance, 1) / num_exact) / np.log(max_distance / num_exact)
  far = num_exact + (log_share * (num_buckets - num_exact)).astype(jnp.int32)
  return offset + jnp.where(distance < num_exact, distance, jnp.minimum(far, num_buckets - 1)).astype(jnp.int32)


class RelativePositionBias(nnx.Module):
  """A learned number for each head and bucket of distance, added to attention logits; one table serves all layers."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, bidirectional: bool):
    self.num_buckets = config.relative_position_buckets
    self.max_distance = config.relative_position_max_distance
    self.bidirectional = bidirectional
    self.table = layers.param(
      rngs, (self.num_buckets, config.num_heads), ("buckets", "heads"), scale=config.embed_dim**-0.5
    )

  def __call__(self, query_length: int, key_length: int, query_offset: jax.Array | int = 0) -> jax.Array:
    """float32 [1, heads, query, key]."""
    queries = jnp.arange(query_length)[:, None] + query_offset
    buckets = relative_position_bucket(
      jnp.arange(key_length)[None, :] - queries,
      bidirectional=self.bidirectional,
      num_buckets=self.num_buckets,
      max_distance=self.max_distance,
    )
    bias = jnp.take(self.table[...].T, buckets, axis=1)
    return sharding.shard(bias[None], None, "heads", "length", "length")


def attend(
  query: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  allowed: jax.Array | None = None,
  bias: jax.Array | None = None,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
) -> jax.Array:
  """softmax(query keys^T + bias) values, with the softmax in float32 and no scaling.

  Args:
    query: [batch, heads, query, kv].
    keys, values: [batch, heads, key, kv].
    allowed: bool, broadcastable to [batch, heads, query, key]; a query that may see nothing sees everything alike.
    bias: float32 [1, heads, query, key].
    dropout_rate, dropout_key: on the probabilities, one draw for all queries (as T5 does).

  Returns:
    [batch, heads, query, kv] in the dtype of `query`.
  """
  dropped = dropout_key is not None and dropout_rate > 0.0
  if sharding.platform() == "cpu" and query.dtype == jnp.float32 and not dropped:
    return cpu.attend(query, keys, values, bias, allowed)
  logits = jnp.einsum("bhqk,bhsk->bhqs", query, keys, preferred_element_type=jnp.float32)
  if bias is not None:
    logits = logits + bias
  if allowed is not None:
    logits = jnp.where(allowed, logits, jnp.finfo(jnp.float32).min)
  probabilities = jax.nn.softmax(logits, axis=-1).astype(query.dtype)
  probabilities = layers.dropout(probabilities, dropout_rate, dropout_key, broadcast_axis=-2)
  return jnp.einsum("bhqs,bhsk->bhqk", probabilities, values)


class Attention(nnx.Module):
  """Multi-head attention (Vaswani et al. 2017), without biases and without scaling, as in T5.

  The projections are matrices: num_heads * head_dim is one dimension, so that Adafactor factors it as T5's did.
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    embed, joined = config.embed_dim, config.num_heads * config.head_dim
    self.num_heads = config.num_heads
    self.dropout_rate = config.dropout_rate
    # The initializer carries the 1/sqrt(head_dim) that the logits are not scaled by.
    self.query = layers.param(rngs, (embed, joined), ("embed", "heads"), scale=(embed * config.head_dim) ** -0.5)
    self.key = layers.param(rngs, (embed, joined), ("embed", "heads"), scale=embed**-0.5)
    self.value = layers.param(rngs, (embed, joined), ("embed", "heads"), scale=embed**-0.5)
    self.out = layers.param(rngs, (joined, embed), ("heads", "embed"), scale=joined**-0.5)

  def _project(self, x: jax.Array, kernel: nnx.Param) -> jax.Array:
    # [batch, length, embed] -> [batch, heads, length, kv]
    projected = layers.dense(x, kernel)
    split = projected.reshape(*projected.shape[:-1], self.num_heads, -1)
    return jnp.swapaxes(sharding.shard(split, "batch", "length", "heads", "kv"), 1, 2)

  def keys_and_values(self, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys and values, each [batch, heads, length, kv], of [batch, length, embed]."""
    return self._project(memory, self.key), self._project(memory, self.value)

  def __call__(
    self,
    x: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    mask: AttentionMask,
    bias: jax.Array | None = None,
    dropout_key: jax.Array | None = None,
  ) -> jax.Array:
    """Attends from `x`, [batch, length, embed], to `keys_and_values(memory)`; the same shape as `x`."""
    query = self._project(x, self.query)
    attended = attend(
      query,
      keys,
      values,
      allowed=mask.allowed(query.shape[2], keys.shape[2]),
      bias=bias,
      dropout_rate=self.dropout_rate,
      dropout_key=dropout_key,
    )
    merged = jnp.swapaxes(attended, 1, 2).reshape(*x.shape[:-1], -1)
    return layers.dense(sharding.shard(merged, "batch", "length", "heads"), self.out)
