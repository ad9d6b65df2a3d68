"""x @ kernel as dense layers have it: in how many bits, and in which its gradient is added up over devices.

In 8 bits, which matrix units take at twice the pace of bfloat16: both operands are scaled so that the largest number of
each row of the left one and of each column of the right one is the largest that 8 bits hold, and what comes out is
scaled back in float32.  So it is forward, and backward to the activations; the gradient of the kernel stays in the
activations' dtype, for it is a sum over all tokens whose errors go straight into the parameters.  qwix quantizes.
Where devices each have a part of what is added up, the product is in the activations' dtype: of 8 bits they would send
each other sums of 32, and wait longer than they save.

Sources: AQT (github.com/google/aqt) for int8, Micikevicius et al. 2022 for fp8.
"""

import functools

import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models import cpu_ops

# Of numbers on the way forward, and of gradients: those of fp8 need range more than digits.
_EIGHT_BITS = {"int8": (jnp.int8, jnp.int8), "fp8": (jnp.float8_e4m3fn, jnp.float8_e5m2)}

# Over so many devices the sum of a gradient in bfloat16 is about as exact as a number in it, and takes half the bytes.
# Added up one after another, as in a ring, real gradients of 16 devices were wrong by 0.4 %, of 64 by 0.8 %, of 256 by
# 1.8 % and of 1,024 by 4 to 30 %, as most of what is added is lost (benchmarks/gradients.py --over_devices); along the
# two sides of a square, as on a torus, still by 0.6 %.
_MOST_IN_BFLOAT16 = 32


def _summed_in(gradient_dtype: str, dtype: str) -> str:
  """In what devices sum the gradient of a kernel whose products are in `dtype`; see `TransformerConfig`."""
  return gradient_dtype or ("float32" if sharding.num_shards("tokens") > _MOST_IN_BFLOAT16 else dtype)


def product(
  x: jax.Array,
  kernel: jax.Array,
  *,
  gradient_dtype: str = "",
  quantization: str = "",
  axes: tuple[str | None, str | None] = (None, None),
) -> jax.Array:
  """x @ kernel for [..., in] and [in, out], in the dtype of `x`.

  Args:
    x, kernel: the operands.
    gradient_dtype, quantization: see `TransformerConfig`.
    axes: logical names of the kernel's; None: one that no mesh splits.
  """
  summed_in = _summed_in(gradient_dtype, x.dtype.name)
  # Forward the first axis is summed over, and backward the second.
  kinds = tuple("" if axis and sharding.num_shards(axis) > 1 else quantization for axis in axes)
  if not any(kinds) and summed_in == x.dtype.name:
    return _plain(x, kernel)
  return _product(x, kernel, summed_in, kinds)


def _plain(x: jax.Array, kernel: jax.Array) -> jax.Array:
  kernel = kernel.astype(x.dtype)
  return cpu_ops.dense(x, kernel) if sharding.platform() == "cpu" else x @ kernel


def _quantized(x: jax.Array, kernel: jax.Array, dtypes: tuple) -> jax.Array:
  """x @ kernel in these dtypes of the two, in the dtype of `x`."""
  import qwix  # an extra, and slow to import

  rows = qwix.quantize(x.astype(jnp.float32), dtypes[0], channelwise_axes=range(x.ndim - 1))
  columns = qwix.quantize(kernel.astype(jnp.float32), dtypes[1], channelwise_axes=(1,))
  return qwix.dot_general(rows, columns, (((x.ndim - 1,), (0,)), ((), ()))).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _product(x: jax.Array, kernel: jax.Array, summed_in: str, kinds: tuple[str, str]) -> jax.Array:
  """`product`, whose gradient of the kernel leaves each device in `summed_in`; kinds: of 8 bits forward, and back."""
  return _forward(x, kernel, summed_in, kinds)[0]


def _forward(x, kernel, summed_in, kinds):
  del summed_in
  if kinds[0]:
    forward, _ = _EIGHT_BITS[kinds[0]]
    y = _quantized(x, kernel, (forward, forward))
  else:
    y = _plain(x, kernel)  # in plain sight of the policies of `jax.checkpoint`
  return y, (x, kernel)


def _backward(summed_in, kinds, residuals, cotangent):
  x, kernel = residuals
  axes = tuple(range(x.ndim - 1))
  # What a device's own product comes out in is what the compiler sums over devices.
  d_kernel = jax.lax.dot_general(x, cotangent, ((axes, axes), ((), ())), preferred_element_type=summed_in)
  if kinds[1]:
    forward, backward = _EIGHT_BITS[kinds[1]]
    d_x = _quantized(cotangent, kernel.T, (backward, forward))
  else:
    d_x = _plain(cotangent, kernel.T)
  return d_x, d_kernel.astype(kernel.dtype)


_product.defvjp(_forward, _backward)
