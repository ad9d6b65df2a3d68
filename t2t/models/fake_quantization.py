"""Quantization-aware training: weights and inputs of products are rounded to int8 values, in the dtype of activations.

Quantization is symmetric, without a zero point: a value x is stored as round(x / scale), from -127 to 127. A matrix has
a scale for each output column, the token embedding for each row. An input of a product has one scale, from a moving
average of magnitudes that training keeps beside the matrix. Gradients pass through the rounding (a straight-through
estimator). qwix is not used: the int8 scale of qwix 0.1.8 is the largest magnitude / 127.5
(`qwix._src.core.numerics.get_symmetric_bound`), so that the largest value is clipped to 127 and the scale shrinks by
127 / 127.5 when rounded values are rounded again. An exported model would differ from the trained one.

Sources: Q8BERT (Zafrir et al. 2019); Jacob et al. 2018.
"""

from collections.abc import Sequence

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.models.config import TransformerConfig

LEVELS = 127  # largest integer
RANGES = "ranges"  # name of the modules with ranges
_UNSUPPORTED = {
  "feed_forward": ("dense",),
  "block": ("transformer",),
  "attention": ("full",),
  "positions": ("relative", "rotary", "sinusoidal", "learned", "alibi", "none"),
  "embedding": ("tokens",),
  "beside_first": ("",),
  "quantization": ("",),
}


def check(config: TransformerConfig) -> None:
  """Checks that all products of the layers can be quantized.

  Raises:
    UserError: with the key of a part that has other products.
  """
  for name, values in _UNSUPPORTED.items() if config.fake_quantization else ():
    if getattr(config, name) not in values:
      raise UserError(
        f"config.model.fake_quantization={config.fake_quantization} does not support config.model.{name}="
        f"{getattr(config, name)!r}. Give {' or '.join(map(repr, values))}, or --config.model.fake_quantization=''."
      )


def ranges(config: TransformerConfig, names: Sequence[str]) -> nnx.Dict | None:
  """Returns a range for the input of each named matrix, zeros; None without fake quantization.

  A range is float32 [2]: moving averages of the sum over rows of the largest magnitude of each row, and of the number
  of rows. The quotient is the largest magnitude that int8 represents, at first 0: no rounding.
  """
  if not config.fake_quantization:
    return None
  return nnx.Dict({name: nnx.Param(jnp.zeros(2, jnp.float32), axes=(None,)) for name in names})


def scale_of(x: jax.Array, axis: int) -> jax.Array:
  """Returns the scale of weights along `axis`, with this axis kept at size 1; 1 where all weights are zero."""
  largest = jnp.max(jnp.abs(x.astype(jnp.float32)), axis=axis, keepdims=True)
  return jnp.where(largest > 0, largest / LEVELS, 1.0)


def integers(x: jax.Array, scale: jax.Array) -> jax.Array:
  """Returns round(x / scale), half to even, from -127 to 127, in float32."""
  return jnp.clip(jnp.round(x.astype(jnp.float32) / scale), -LEVELS, LEVELS)


def weight(x: jax.Array, axis: int = 0) -> jax.Array:
  """Rounds weights, with one scale along `axis`; the gradient is that of the identity."""
  scale = scale_of(jax.lax.stop_gradient(x), axis)
  return x + jax.lax.stop_gradient(integers(x, scale) * scale - x)


def scale_of_range(bounds: jax.Array) -> jax.Array:
  """Returns the scale of a product's input from its range, float32 [2]; 0: not rounded, before any training step."""
  return jnp.where(bounds[1] > 0, bounds[0] / jnp.maximum(bounds[1], 1e-30), 0.0) / LEVELS


def operands(x: jax.Array, bounds: jax.Array, kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns both operands of a product, rounded: an input with its range, and a matrix."""
  return activation(x, bounds), weight(kernel)


@jax.custom_vjp
def activation(x: jax.Array, bounds: jax.Array) -> jax.Array:
  """Rounds the input of a product, [rows, ..., features].

  The gradient of `x` is zero where a value is clipped. The "gradient" of `bounds` is the statistic of this batch,
  which `training.activation_ranges` reads; sums over rows, so that microbatches add up.

  Args:
    x: any dtype.
    bounds: see `ranges`.
  """
  return _forward(x, bounds)[0]


def _forward(x, bounds):
  scale = scale_of_range(bounds)
  safe = jnp.where(scale > 0, scale, 1.0)
  rounded = jnp.where(scale > 0, integers(x, safe) * safe, x.astype(jnp.float32))
  return rounded.astype(x.dtype), (x, scale)


def _backward(residuals, cotangent):
  x, scale = residuals
  magnitude = jnp.abs(x.astype(jnp.float32))
  inside = (scale == 0) | (magnitude <= LEVELS * scale)
  rows = jnp.max(magnitude, axis=tuple(range(1, x.ndim)))
  statistic = jnp.stack([jnp.sum(rows), jnp.asarray(rows.size, jnp.float32)])
  return jnp.where(inside, cotangent, 0).astype(x.dtype), statistic


activation.defvjp(_forward, _backward)
