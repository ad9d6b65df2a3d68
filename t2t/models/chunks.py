"""Chunks of a sequence, for attention whose memory is linear in the length."""

import jax
import jax.numpy as jnp


def padded(x: jax.Array, axis: int, chunk: int) -> jax.Array:
  """Appends zeros along an axis, up to a whole number of chunks."""
  return jnp.pad(x, [(0, -size % chunk if i == axis else 0) for i, size in enumerate(x.shape)])


def split(x: jax.Array, axis: int, chunk: int) -> jax.Array:
  """Splits an axis of whole chunks into two: [..., length, ...] -> [..., chunks, chunk, ...]."""
  return x.reshape(*x.shape[:axis], -1, chunk, *x.shape[axis + 1 :])


def with_neighbours(
  x: jax.Array, axis: int, chunk: int, *, before: int = 1, after: int = 1, outside: int = 0
) -> jax.Array:
  """Returns each chunk with the chunks around it: [..., length, ...] -> [..., chunks, keys, ...].

  In:  [1, 2, 3, 4, 5, 6], chunk 2
  Out: [[0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 0, 0]]

  A single chunk has no neighbours: its only keys are its own.

  Args:
    x: any shape.
    axis: axis with whole chunks.
    chunk: length of a chunk.
    before, after: number of chunks before and after each.
    outside: value of chunks before the first and after the last.
  """
  number = x.shape[axis] // chunk
  if number == 1:
    return jnp.expand_dims(x, axis)
  widths = [(before * chunk, after * chunk) if i == axis else (0, 0) for i in range(x.ndim)]
  parts = split(jnp.pad(x, widths, constant_values=outside), axis, chunk)
  take = lambda start: jax.lax.slice_in_dim(parts, start, start + number, axis=axis)
  return jnp.concatenate([take(start) for start in range(before + 1 + after)], axis=axis + 1)
