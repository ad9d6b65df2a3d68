"""Blocks of positions, which kernels read and write: how long they are, and which of them meet."""

from typing import overload

import jax
import jax.numpy as jnp
import numpy as np

from t2t.models.masks import AttentionMask

# The smallest block of a TPU's kernels, and the largest of queries and of keys: what is faster with larger ones, by
# the schedules that `benchmarks/schedules.py` counts, is less than what fewer blocks can skip.
SMALLEST, LARGEST = 128, (512, 512)
# The same where a kernel with a bias by distance can skip none but padding: keys of twice as many positions save it up
# to an eighth.
LARGEST_OF_ALL = (512, 1024)

# Segments are numbered from 1 in each row (data/feature_converters.py), so that none is above its length.
# Inside of a kernel the segment of padding, and that of what fills the last block, are above all others: so segments of
# a packed row never fall, and a block's lowest and highest tell well what it holds.
PADDING, FILLING = np.iinfo(np.int32).max - 1, np.iinfo(np.int32).max


def bounds(requested: int, *, skips: bool) -> tuple[int, int]:
  """Of a block of queries and one of keys: `requested` of both, or t2t's own, by whether some may be skipped."""
  return (requested, requested) if requested else LARGEST if skips else LARGEST_OF_ALL


def largest(mask: AttentionMask, requested: int, *, has_ranks: bool = False) -> tuple[int, int]:
  """Bounds of a block of queries and one of keys, where a kernel has a bias by distance.

  Args:
    mask: what it has matters, not the numbers in it.
    requested: of both, or 0.
    has_ranks: the kernel is given ranks apart from the mask.
  """
  has_segments = mask.query_segments is not None and not mask.padded
  skips = mask.causal or mask.window or mask.ranks is not None or has_ranks or has_segments
  return bounds(requested, skips=bool(skips))


def block(length: int, largest: int) -> int:
  """The block that covers `length` in as few blocks as `largest` does, with the least padding."""
  share = -(-length // -(-length // largest))
  return -(-share // SMALLEST) * SMALLEST


@overload
def pad(x: jax.Array, block: int, *, axis: int, value: int = 0) -> jax.Array: ...
@overload
def pad(x: None, block: int, *, axis: int, value: int = 0) -> None: ...


def pad(x: jax.Array | None, block: int, *, axis: int, value: int = 0) -> jax.Array | None:
  """`x` with `value` behind it, up to a whole number of blocks."""
  if x is None:
    return None
  widths = [(0, -x.shape[i] % block if i == axis else 0) for i in range(x.ndim)]
  return jnp.pad(x, widths, constant_values=value)


def reach(prefix: jax.Array, segments: jax.Array | None) -> jax.Array:
  """The last position that each one sees: itself, or in a prefix the prefix's end; int32 [batch, length].

  prefix [[1, 1, 1, 0, 0, 1, 1, 0]], segments [[1, 1, 1, 1, 1, 2, 2, 2]] -> [[2, 2, 2, 3, 4, 6, 6, 7]]
  """
  length = prefix.shape[1]
  positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), prefix.shape)
  inside = prefix > 0
  goes_on = inside[:, :-1] & inside[:, 1:]
  if segments is not None:
    goes_on &= segments[:, :-1] == segments[:, 1:]
  ends = jnp.where(jnp.pad(goes_on, ((0, 0), (0, 1))), length, positions)
  return jnp.where(inside, jax.lax.cummin(ends, axis=1, reverse=True), positions)


def positions_seen(mask: AttentionMask, batch: int, length: int) -> jax.Array:
  """The last position that each query of a causal mask sees, int32 [batch, length]."""
  if mask.prefix is not None:
    return reach(mask.prefix, mask.query_segments)
  return jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))


def segments_meet(query_segments: jax.Array, key_segments: jax.Array, blocks: tuple[int, int]) -> jax.Array:
  """Whether blocks may have a segment in common, by their extremes: bool [batch, query blocks, key blocks].

  Args:
    query_segments, key_segments: [batch, whole blocks].
    blocks: of queries and of keys, in positions.
  """
  split = lambda x, block: x.reshape(x.shape[0], -1, block)
  queries, keys = split(query_segments, blocks[0])[:, :, None], split(key_segments, blocks[1])[:, None]
  return (queries.min(axis=3) <= keys.max(axis=3)) & (queries.max(axis=3) >= keys.min(axis=3))


def to_fetch(runs: jax.Array, axis: int) -> jax.Array:
  """Which block to have in memory at each step along `axis`: the next that runs; after the last of them, the first.

  So nothing is fetched for the steps between.  [0, 1, 0, 1, 0] -> [1, 1, 3, 3, 1]
  """
  number = runs.shape[axis]
  steps = jax.lax.broadcasted_iota(jnp.int32, runs.shape, axis)
  following = jax.lax.cummin(jnp.where(runs, steps, number), axis=axis, reverse=True)
  return jnp.where(following < number, following, jnp.argmax(runs, axis=axis, keepdims=True).astype(jnp.int32))
