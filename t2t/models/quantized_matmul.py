"""Matrix products of dense layers: optional 8-bit quantization, and the dtype of the gradient all-reduce.

Matrix units multiply 8-bit operands at twice the speed of bfloat16. Each row of the left operand and each column of the
right one is scaled to the 8-bit range, and the result is scaled back in float32. This applies to the forward product
and the gradient of the activations. The gradient of the kernel stays in the activations' dtype, because it is a sum
over all tokens and its errors go directly into the parameters. qwix quantizes.

If devices each hold part of the sum, the product is in the activations' dtype: for 8 bits they would exchange 32-bit
sums, which costs more than it saves.

Sources: AQT (github.com/google/aqt) for int8, Micikevicius et al. 2022 for fp8.
"""

import functools

import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models import cpu_ops

# dtypes of the forward pass and of gradients; fp8 gradients need range more than precision.
_EIGHT_BITS = {"int8": (jnp.int8, jnp.int8), "fp8": (jnp.float8_e4m3fn, jnp.float8_e5m2)}

# Up to this number of devices, a bfloat16 sum of gradients is about as exact as bfloat16 itself, in half the bytes.
# Relative errors of sequential (ring) sums of real gradients: 0.4 % on 16 devices, 0.8 % on 64, 1.8 % on 256, 4 to 30 %
# on 1,024 (benchmarks/gradients.py --over_devices). Sums along both sides of a square, as on a torus, still have 0.6 %.
_MOST_IN_BFLOAT16 = 32


def summed_in(gradient_dtype: str, dtype: str) -> str:
  """Returns the dtype in which devices sum a kernel gradient of products in `dtype`; see `TransformerConfig`."""
  return gradient_dtype or ("float32" if sharding.num_shards("tokens") > _MOST_IN_BFLOAT16 else dtype)


def product(
  x: jax.Array,
  kernel: jax.Array,
  *,
  gradient_dtype: str = "",
  quantization: str = "",
  axes: tuple[str | None, str | None] = (None, None),
) -> jax.Array:
  """Computes x @ kernel for [..., in] and [in, out], in the dtype of `x`.

  Args:
    x, kernel: the operands.
    gradient_dtype, quantization: see `TransformerConfig`.
    axes: logical names of the kernel's axes; None: not sharded.
  """
  kernel = sharding.gather_exchanged(kernel, axes)
  sum_dtype = summed_in(gradient_dtype, x.dtype.name)
  # The forward product sums over the first axis, the backward product over the second.
  kinds = tuple("" if axis and sharding.num_shards(axis) > 1 else quantization for axis in axes)
  if not any(kinds) and sum_dtype == x.dtype.name:
    return _plain(x, kernel)
  return _product(x, kernel, sum_dtype, kinds)


def _plain(x: jax.Array, kernel: jax.Array) -> jax.Array:
  kernel = kernel.astype(x.dtype)
  return cpu_ops.dense(x, kernel) if sharding.platform() == "cpu" else x @ kernel


def _quantized(x: jax.Array, kernel: jax.Array, dtypes: tuple) -> jax.Array:
  """Computes x @ kernel with operands quantized to these dtypes, in the dtype of `x`."""
  import qwix  # optional package, slow to import

  rows = qwix.quantize(x.astype(jnp.float32), dtypes[0], channelwise_axes=range(x.ndim - 1))
  columns = qwix.quantize(kernel.astype(jnp.float32), dtypes[1], channelwise_axes=(1,))
  return qwix.dot_general(rows, columns, (((x.ndim - 1,), (0,)), ((), ()))).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _product(x: jax.Array, kernel: jax.Array, summed_in: str, kinds: tuple[str, str]) -> jax.Array:
  """Computes `product`; kernel gradients leave each device in `summed_in`; kinds: 8 bits forward, backward."""
  return _forward(x, kernel, summed_in, kinds)[0]


def _forward(x, kernel, summed_in, kinds):
  del summed_in
  if kinds[0]:
    forward, _ = _EIGHT_BITS[kinds[0]]
    y = _quantized(x, kernel, (forward, forward))
  else:
    y = _plain(x, kernel)  # visible to the policies of `jax.checkpoint`
  return y, (x, kernel)


def _backward(summed_in, kinds, residuals, cotangent):
  x, kernel = residuals
  axes = tuple(range(x.ndim - 1))
  # The compiler sums over devices in the dtype of each device's own product.
  d_kernel = jax.lax.dot_general(x, cotangent, ((axes, axes), ((), ())), preferred_element_type=summed_in)
  if kinds[1]:
    forward, backward = _EIGHT_BITS[kinds[1]]
    d_x = _quantized(cotangent, kernel.T, (backward, forward))
  else:
    d_x = _plain(cotangent, kernel.T)
  return d_x, d_kernel.astype(kernel.dtype)


_product.defvjp(_forward, _backward)
