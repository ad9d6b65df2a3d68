"""Grouped matrix product on TPUs: megablox, Pallas kernels that JAX ships.

XLA's own lowering of `jax.lax.ragged_dot` fails on some shapes (libtpu 0.0.42).
"""

import jax

# The package's attribute of the module's name is a function.
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm

from t2t import sharding

# Rows, contracted features and features of a tile. In bfloat16 the tiles of a product fill 10 MiB of the 16 MiB that a
# kernel may use on every TPU generation, and a tile's products take longer than reading the operands.
TILES = (512, 1_024, 1_024)


def num_rows(number: int) -> int:
  """Returns the rows that `product` needs for a number of rows: a multiple of the tile."""
  tile = min(TILES[0], -(-number // 128) * 128)
  return -(-number // tile) * tile


def _options(rows: jax.Array) -> dict:
  # Float32 operands have twice the bytes.
  contracted = TILES[1] * 2 // rows.dtype.itemsize
  return {"tiling": (min(TILES[0], rows.shape[0]), contracted, TILES[2]), "interpret": sharding.platform() == "cpu"}


def product(rows: jax.Array, matrices: jax.Array, sizes: jax.Array) -> jax.Array:
  """Computes `jax.lax.ragged_dot`, but rows after the last group are undefined.

  Args:
    rows: [rows, in], sorted by group, with `num_rows` rows.
    matrices: [groups, in, out].
    sizes: rows of each group, int32 [groups].
  """
  return gmm(rows, matrices, sizes, preferred_element_type=rows.dtype, **_options(rows))


def backward(
  rows: jax.Array, matrices: jax.Array, sizes: jax.Array, cotangent: jax.Array, dtype: jax.typing.DTypeLike
) -> tuple[jax.Array, jax.Array]:
  """Returns the gradients of rows and matrices, the latter in `dtype`; see `product`."""
  options = _options(rows)
  d_rows = gmm(cotangent, matrices, sizes, preferred_element_type=rows.dtype, transpose_rhs=True, **options)
  d_matrices = tgmm(rows.T, cotangent, sizes, preferred_element_type=dtype, **options)
  return d_rows, d_matrices
