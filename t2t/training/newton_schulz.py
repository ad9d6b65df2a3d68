"""Orthogonalizes matrices for Muon, in batches in which each matrix is on one device."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from t2t import sharding

# Jordan 2024, "Muon": the quintic with the steepest slope at zero.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrices: Mapping[str, jax.Array], *, iterations: int) -> dict[str, jax.Array]:
  """Returns each matrix with singular values near 1, by Newton-Schulz iterations.

  Matrices of the same sizes form one batch that is split over the devices by matrix. A matrix that is itself sharded
  would need a reduction in each product of each iteration, and a replicated one would be computed on every device.

  Args:
    matrices: path -> [rows, columns], or of a stack [layers, rows, columns].
    iterations: number of Newton-Schulz iterations.

  Returns:
    As `matrices`.
  """
  groups: dict[tuple[int, ...], list[str]] = {}
  for path, x in matrices.items():
    groups.setdefault(tuple(sorted(x.shape[-2:])), []).append(path)
  orthogonal = {}
  for paths in groups.values():
    wide = [_wide(matrices[path]) for path in paths]
    wide = [x.reshape(-1, *x.shape[-2:]) for x in wide]
    batch = _batch(jnp.concatenate(wide), iterations=iterations)
    start = 0
    for path, part in zip(paths, wide, strict=True):
      x = matrices[path]
      matrix = batch[start : start + part.shape[0]]
      orthogonal[path] = (jnp.swapaxes(matrix, -1, -2) if x.shape[-2] > x.shape[-1] else matrix).reshape(x.shape)
      start += part.shape[0]
  return {path: orthogonal[path] for path in matrices}


def _wide(x: jax.Array) -> jax.Array:
  """Transposes if there are more rows than columns: f(X^T) is f(X)^T, and X X^T is smaller."""
  return jnp.swapaxes(x, -1, -2) if x.shape[-2] > x.shape[-1] else x


def _batch(x: jax.Array, *, iterations: int) -> jax.Array:
  """Orthogonalizes [matrices, rows, columns] with rows <= columns."""
  number = x.shape[0]
  missing = -number % sharding.num_shards("matrices")
  # Reshards from rows to whole matrices and back, with one exchange each way.
  x = sharding.shard(x, None, "matrix_rows", None)
  x = sharding.shard(jnp.pad(x, ((0, missing), (0, 0), (0, 0))), "matrices", None, None)
  x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-8)
  a, b, c = _COEFFICIENTS

  def iteration(x: jax.Array, _: None) -> tuple[jax.Array, None]:
    squares = x @ jnp.swapaxes(x, -1, -2)
    x = a * x + (b * squares + c * squares @ squares) @ x
    return sharding.shard(x, "matrices", None, None), None

  x, _ = jax.lax.scan(iteration, x, None, length=iterations)
  return sharding.shard(x, None, "matrix_rows", None)[:number]
