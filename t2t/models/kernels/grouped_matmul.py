"""Grouped matrix product on TPUs: megablox, Pallas kernels that JAX ships.

XLA compiles the gradient of `jax.lax.ragged_dot` with respect to the matrices as products of all rows for every group:
128 times the operations for 128 groups (libtpu 0.0.42).
"""

import jax

# The package's attribute of the module's name is a function.
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm

from t2t import sharding

# Rows, contracted features and features of a tile. Tiles fill most of the 16 MiB that a kernel may use on every TPU
# generation, and a tile's products take longer than reading the operands. The gradient of the matrices has a tile of
# features and features, in float32 and twice in the output's dtype.
TILES, GRADIENT_TILES = (512, 1_024, 1_024), (512, 512, 1_024)


def num_rows(number: int) -> int:
  """Returns the rows that `product` needs for a number of rows: a multiple of the tile."""
  tile = min(TILES[0], -(-number // 128) * 128)
  return -(-number // tile) * tile


def _options(rows: jax.Array, tiles: tuple[int, int, int]) -> dict:
  # Float32 operands have twice the bytes.
  contracted = tiles[1] * 2 // rows.dtype.itemsize
  return {"tiling": (min(tiles[0], rows.shape[0]), contracted, tiles[2]), "interpret": sharding.platform() == "cpu"}


def product(rows: jax.Array, matrices: jax.Array, sizes: jax.Array) -> jax.Array:
  """Computes `jax.lax.ragged_dot`, but rows after the last group are undefined.

  Args:
    rows: [rows, in], sorted by group, with `num_rows` rows.
    matrices: [groups, in, out].
    sizes: rows of each group, int32 [groups].
  """
  return gmm(rows, matrices, sizes, preferred_element_type=rows.dtype, **_options(rows, TILES))


def backward(
  rows: jax.Array, matrices: jax.Array, sizes: jax.Array, cotangent: jax.Array, dtype: jax.typing.DTypeLike
) -> tuple[jax.Array, jax.Array]:
  """Returns the gradients of rows and matrices, the latter in `dtype`; see `product`."""
  options = _options(rows, TILES)
  d_rows = gmm(cotangent, matrices, sizes, preferred_element_type=rows.dtype, transpose_rhs=True, **options)
  d_matrices = tgmm(rows.T, cotangent, sizes, preferred_element_type=dtype, **_options(rows, GRADIENT_TILES))
  return d_rows, d_matrices
