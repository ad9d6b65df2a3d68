"""What attention adds to its logits by distance, or turns queries and keys by: relative bias, ALiBi, rotary."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import sharding
from t2t.models import layers
from t2t.models.config import TransformerConfig
from t2t.models.masks import AttentionMask


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DistanceBias:
  """What is added to a logit, by how far to the right of its query a key lies.

  values: float32 [heads, 2 * reach + 1], for distances from -reach to reach; beyond, it is the last.
  """

  values: jax.Array

  @property
  def reach(self) -> int:
    """The distance from which on it is the same, to either side."""
    return self.values.shape[1] // 2

  def at(self, distances: jax.Array | np.ndarray) -> jax.Array:
    """[heads, ...] for int distances, [...]."""
    places = (np if isinstance(distances, np.ndarray) else jnp).clip(distances, -self.reach, self.reach) + self.reach
    return jnp.take(self.values, places, axis=1)


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
    scale = layers.into(config, config.embed_dim)
    self.table = layers.param(rngs, (self.num_buckets, config.num_heads), ("buckets", "heads"), scale=scale)
    if config.initial_focus:
      # Half of the heads begin with a neighbour each, -1, 1, -2, 2, ..., of a causal stack -1, -2, ...; the others with
      # all positions.
      heads = np.arange(config.num_heads // 2)
      distances = (heads // 2 + 1) * np.where(heads % 2, 1, -1) if bidirectional else -(heads + 1)
      self.table[...] = self.table[...].at[self._buckets(distances), heads].add(config.initial_focus)

  def _buckets(self, distances: np.ndarray) -> jax.Array:
    return relative_position_bucket(
      distances,
      bidirectional=self.bidirectional,
      num_buckets=self.num_buckets,
      max_distance=self.max_distance,
    )

  def __call__(self) -> DistanceBias:
    """What is added to logits, by distance."""
    buckets = self._buckets(np.arange(-self.max_distance, self.max_distance + 1))
    return DistanceBias(jnp.take(self.table[...].T, buckets, axis=1))


def alibi_slopes(num_heads: int) -> np.ndarray:
  """By how much each head's logits fall with every position of distance, float32 [heads].

  In:  8
  Out: [1/2, 1/4, 1/8, 1/16, 1/32, 1/64, 1/128, 1/256]

  Of a number that is no power of two: those of the next lower one, and between them of twice as many.

  Source: Press et al. 2022 (ALiBi), section 3, and the code beside it.
  """
  lower = 2 ** int(np.log2(num_heads))
  falling = lambda number: 2.0 ** (-8.0 * np.arange(1, number + 1) / number)
  return np.concatenate([falling(lower), falling(2 * lower)[::2]])[:num_heads].astype(np.float32)


def alibi(num_heads: int, reach: int) -> DistanceBias:
  """What ALiBi adds to logits, up to a distance of `reach`, to either side alike."""
  distances = np.abs(np.arange(-reach, reach + 1, dtype=np.float32))
  return DistanceBias(jnp.asarray(-alibi_slopes(num_heads)[:, None] * distances))


def bias_of(bias: DistanceBias, mask: AttentionMask, query_length: int, key_length: int) -> jax.Array:
  """What is added to the logits of these queries and keys, float32 [1, heads, query, key].

  It is [batch, heads, query, key] where keys stand in front, and queries' positions are not alike in all rows.

  Args:
    bias: by distance.
    mask: says where queries begin, and where keys lie.
    query_length: with beams 1, since all are at one position.
    key_length: those in front, and others as `mask.key_positions` has it.
  """
  queries = jnp.arange(query_length)[:, None] + mask.query_offset
  own = bias.at(mask.key_positions(key_length - mask.front)[None, :] - queries)[None]
  if mask.front:
    front = jnp.moveaxis(bias.at(mask.front_distances(query_length)), 0, 1)
    own = jnp.concatenate([front, jnp.broadcast_to(own, (front.shape[0], *own.shape[1:]))], axis=-1)
  return sharding.shard(own, None, "heads", "length", None)


def angles_at(positions: jax.Array, head_dim: int, base: float) -> tuple[jax.Array, jax.Array]:
  """`rotary_angles` of any positions: float32 [..., head_dim / 2], twice, of int [...]."""
  frequencies = base ** -(np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
  angles = positions[..., None] * frequencies
  return jnp.cos(angles), jnp.sin(angles)


def rotary_angles(length: int, head_dim: int, base: float, offset: jax.Array | int = 0) -> tuple[jax.Array, jax.Array]:
  """Cosine and sine of the angle by which each position turns each pair of features.

  In:  length 3, head_dim 4, base 100.0
  Out: cos and sin of [[0, 0], [1, 0.1], [2, 0.2]]

  Args:
    length: positions.
    head_dim: features of a head; feature i and feature i + head_dim / 2 are a pair.
    base: the slowest pair turns once in almost 2 pi * base positions.
    offset: int [], the first position.

  Returns:
    float32 [length, head_dim / 2], twice.

  Source: Su et al. 2021 (RoFormer), with the pairs as in GPT-NeoX and Llama.
  """
  return angles_at(jnp.arange(length) + offset, head_dim, base)


def rotate(x: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
  """Turns queries or keys, [batch, heads, length, kv], by `rotary_angles`, or those of each row; in float32."""
  cos, sin = (
    jnp.concatenate([first, second], axis=-1) for first, second in ((angles[0], angles[0]), (-angles[1], angles[1]))
  )
  x32 = x.astype(jnp.float32)
  return (x32 * cos + jnp.roll(x32, x.shape[-1] // 2, axis=-1) * sin).astype(x.dtype)
