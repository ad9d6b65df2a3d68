"""Matrices of int8 values for inference: products of integers, as a model with fake quantization rounds them."""

from flax import nnx
import jax
import jax.numpy as jnp

from t2t.models import fake_quantization, layers
from t2t.models.adapters import patterns

VALUES, SCALE = "values", "scale"  # parameters of `Int8Matrix`


class Int8Matrix(nnx.Module):
  """A matrix, int8 [in, out], with a float32 scale for each output, [1, out]; a `layers.AdaptedMatrix`."""

  def __init__(self, values: nnx.Param, scale: nnx.Param):
    self.values = values
    self.scale = scale

  def dense(
    self,
    x: jax.Array,
    bias: nnx.Param | None,
    *,
    gradient_dtype: str,
    quantization: str,
    dropout_key: jax.Array | None,
    input_range: nnx.Param | None = None,
  ) -> jax.Array:
    """Maps [..., in] to [..., out]; see `layers.dense`. Sums are exact, in int32."""
    assert input_range is not None
    scale = fake_quantization.scale_of_range(input_range[...])
    integers = fake_quantization.integers(x, jnp.maximum(scale, 1e-30)).astype(jnp.int8)
    dimensions = (((x.ndim - 1,), (0,)), ((), ()))
    y = jax.lax.dot_general(integers, self.values[...], dimensions, preferred_element_type=jnp.int32)
    y = (y.astype(jnp.float32) * (scale * self.scale[...][0])).astype(x.dtype)
    return layers.add_bias(y, bias)


def with_integers(model: nnx.Module) -> nnx.Module:
  """Returns a model with fake quantization with `Int8Matrix` in place of the matrices that it rounds, all zeros."""
  model = patterns.copy_of(model)
  for _, module, name in list(patterns.matrices(model)):
    ranges = getattr(module, fake_quantization.RANGES, None)
    if ranges is None or name not in ranges:
      continue
    kernel = getattr(module, name)
    *stack, rows, columns = kernel[...].shape
    axes = kernel.get_metadata()["axes"]
    values = nnx.Param(jnp.zeros((*stack, rows, columns), jnp.int8), axes=axes)
    scale = nnx.Param(jnp.ones((*stack, 1, columns), jnp.float32), axes=(None, axes[1]))
    setattr(module, name, Int8Matrix(values, scale))
  return model
