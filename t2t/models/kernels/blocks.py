"""Blocks of positions that kernels read and write: their sizes, and which blocks share visible positions."""

from typing import overload

import jax
import jax.numpy as jnp
import numpy as np

from t2t.models.masks import AttentionMask

# Smallest block of TPU kernels, and largest blocks of queries and keys. By the schedules that `benchmarks/schedules.py`
# counts, larger blocks gain less than smaller ones can skip.
SMALLEST, LARGEST = 128, (512, 512)
# Largest blocks for kernels with a bias by distance that can only skip padding: twice as many keys save up to an
# eighth.
LARGEST_OF_ALL = (512, 1024)

# Segments are numbered from 1 in each row (data/feature_converters.py), so they never exceed the length. Inside a
# kernel the segments of padding and of block filling are above all others. Segments of a packed row are then sorted,
# and a block's lowest and highest segment describe its content.
PADDING, FILLING = np.iinfo(np.int32).max - 1, np.iinfo(np.int32).max


def bounds(requested: int, *, skips: bool) -> tuple[int, int]:
  """Returns the largest query and key blocks: `requested` for both, or the default, which depends on `skips`."""
  return (requested, requested) if requested else LARGEST if skips else LARGEST_OF_ALL


def largest(mask: AttentionMask, requested: int, *, has_ranks: bool = False) -> tuple[int, int]:
  """Returns the largest query and key blocks for kernels with a bias by distance.

  Args:
    mask: only its structure matters, not its values.
    requested: size of both, or 0.
    has_ranks: whether the kernel receives ranks separately from the mask.
  """
  has_segments = mask.query_segments is not None and not mask.padded
  skips = mask.causal or mask.window or mask.ranks is not None or has_ranks or has_segments
  return bounds(requested, skips=bool(skips))


def block(length: int, largest: int) -> int:
  """Returns the block size that covers `length` in as few blocks as `largest` does, with the least padding."""
  share = -(-length // -(-length // largest))
  return -(-share // SMALLEST) * SMALLEST


@overload
def pad(x: jax.Array, block: int, *, axis: int, value: int = 0) -> jax.Array: ...
@overload
def pad(x: None, block: int, *, axis: int, value: int = 0) -> None: ...


def pad(x: jax.Array | None, block: int, *, axis: int, value: int = 0) -> jax.Array | None:
  """Pads `x` with `value` at the end to a whole number of blocks."""
  if x is None:
    return None
  widths = [(0, -x.shape[i] % block if i == axis else 0) for i in range(x.ndim)]
  return jnp.pad(x, widths, constant_values=value)


def reach(prefix: jax.Array, segments: jax.Array | None) -> jax.Array:
  """Returns the last position that each position attends to: itself, or the end of its prefix; int32 [batch, length].

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
  """Returns the last position that each query of a causal mask attends to, int32 [batch, length]."""
  if mask.prefix is not None:
    return reach(mask.prefix, mask.query_segments)
  return jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))


def segments_meet(query_segments: jax.Array, key_segments: jax.Array, blocks: tuple[int, int]) -> jax.Array:
  """Returns which blocks may share a segment, by their extremes: bool [batch, query blocks, key blocks].

  Args:
    query_segments, key_segments: [batch, whole blocks].
    blocks: block sizes of queries and of keys.
  """
  split = lambda x, block: x.reshape(x.shape[0], -1, block)
  queries, keys = split(query_segments, blocks[0])[:, :, None], split(key_segments, blocks[1])[:, None]
  return (queries.min(axis=3) <= keys.max(axis=3)) & (queries.max(axis=3) >= keys.min(axis=3))


def to_fetch(runs: jax.Array, axis: int) -> jax.Array:
  """Returns the block to hold in memory at each step along `axis`: the next that runs; after the last one, the first.

  Steps that do not run therefore fetch nothing. [0, 1, 0, 1, 0] -> [1, 1, 3, 3, 1]
  """
  number = runs.shape[axis]
  steps = jax.lax.broadcasted_iota(jnp.int32, runs.shape, axis)
  following = jax.lax.cummin(jnp.where(runs, steps, number), axis=axis, reverse=True)
  return jnp.where(following < number, following, jnp.argmax(runs, axis=axis, keepdims=True).astype(jnp.int32))
