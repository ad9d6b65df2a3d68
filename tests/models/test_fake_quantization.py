"""Quantization-aware layers: rounding, ranges, and products of int8 values."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.models import fake_quantization, layers, transformer


def test_rounding_twice_is_rounding_once():
  """An exported matrix has the same integers as the trained one; zeros stay zeros."""
  weights = jax.random.normal(jax.random.key(0), (33, 7)) * jnp.exp(jnp.arange(7.0) - 3)
  weights = weights.at[:, 2].set(0.0)
  rounded = fake_quantization.weight(weights)
  scales = [fake_quantization.scale_of(x, 0) for x in (weights, rounded)]
  integers = [np.asarray(fake_quantization.integers(x, s)) for x, s in zip((weights, rounded), scales, strict=True)]
  np.testing.assert_array_equal(*integers)
  assert np.max(np.abs(integers[0]), axis=0).tolist() == [127, 127, 0, 127, 127, 127, 127]
  np.testing.assert_allclose(scales[0], scales[1], rtol=1e-6)
  np.testing.assert_allclose(rounded, weights, atol=float(jnp.max(scales[0])) / 2 + 1e-6)


def test_a_product_is_that_of_int8_values():
  """Rounded operands give the product of their integers in int32, times both scales."""
  x, kernel = jax.random.normal(jax.random.key(1), (5, 4, 16)), jax.random.normal(jax.random.key(2), (16, 8))
  bounds = nnx.Param(jnp.array([2.0 * 3, 3.0]))  # 3 rows with a mean of 2.0, so that some inputs are clipped
  actual = layers.dense(x, nnx.Param(kernel), input_range=bounds)
  x_scale, kernel_scale = fake_quantization.scale_of_range(bounds[...]), fake_quantization.scale_of(kernel, 0)
  integers = [fake_quantization.integers(*pair).astype(jnp.int8) for pair in ((x, x_scale), (kernel, kernel_scale))]
  product = jnp.matmul(*integers, preferred_element_type=jnp.int32)
  assert np.max(np.abs(integers[0])) == 127 and np.any(np.abs(x) > 2)
  np.testing.assert_allclose(actual, product * x_scale * kernel_scale, rtol=1e-4, atol=1e-5)


def test_statistics_of_rows_add_up():
  """The range's gradient sums the largest magnitudes of rows and counts the rows, in any split of the batch."""
  x = jax.random.normal(jax.random.key(3), (6, 4, 8))
  statistic = lambda x: jax.grad(lambda bounds: jnp.sum(fake_quantization.activation(x, bounds)))(jnp.zeros(2))
  np.testing.assert_allclose(statistic(x), [np.sum(np.max(np.abs(x), axis=(1, 2))), 6], rtol=1e-6)
  np.testing.assert_allclose(statistic(x), statistic(x[:2]) + statistic(x[2:]), rtol=1e-6)


def test_models_with_other_products_are_refused():
  config = dataclasses.replace(toy.encoder(), positions="disentangled", fake_quantization="int8")
  with pytest.raises(UserError, match="fake_quantization=int8 does not support config.model.positions='disentangled'"):
    jax.eval_shape(lambda: transformer.build(config, nnx.Rngs(0)))
