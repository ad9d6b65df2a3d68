"""Grouped products: the TPU kernel in Pallas' interpreter equals XLA's product, forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
import toy

from t2t.models import grouped_product
from t2t.models.kernels import grouped_matmul

# Groups that end inside of a tile of rows, an empty group, and rows of no group.
SIZES = np.array([200, 0, 56, 300], np.int32)
WIDTHS = (128, 256)


def test_the_kernel_equals_the_product_of_xla(monkeypatch):
  """Rows after the last group are undefined, and are neither read nor counted in gradients."""
  for tiles in ("TILES", "GRADIENT_TILES"):
    monkeypatch.setattr(grouped_matmul, tiles, (256, 128, 128))
  rows = grouped_matmul.num_rows(600)
  assert rows == 768
  keys = [toy.key(seed) for seed in range(3)]
  shapes = ((rows, WIDTHS[0]), (len(SIZES), *WIDTHS), (rows, WIDTHS[1]))
  x, matrices, cotangent = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
  beyond = (np.arange(rows) >= SIZES.sum())[:, None]
  x, cotangent = jnp.where(beyond, jnp.nan, x), jnp.where(beyond, jnp.nan, cotangent)

  def run(platform, x, cotangent):
    product = lambda x, matrices: grouped_product.product(x, matrices, SIZES, ((), (), ()), "float32", platform)
    y, transpose = jax.vjp(product, x, matrices)
    d_x, d_matrices = transpose(cotangent)
    return jnp.where(beyond, 0, y), jnp.where(beyond, 0, d_x), d_matrices

  found = jax.jit(lambda *of: run("tpu", *of))(x, cotangent)
  expected = jax.jit(lambda *of: run("cpu", *of))(jnp.nan_to_num(x), jnp.nan_to_num(cotangent))
  for left, right in zip(found, expected, strict=True):
    np.testing.assert_allclose(left, right, atol=1e-3, rtol=1e-4)
