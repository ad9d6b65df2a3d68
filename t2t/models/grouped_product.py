"""Product of rows, sorted by group, with each group's matrix, for devices that hold parts of the matrices."""

import functools

import jax

from t2t import sharding

Parts = tuple[tuple[str, ...], ...]


def num_rows(number: int) -> int:
  """Returns the rows that `product` needs for a number of rows on one device."""
  if sharding.platform() != "tpu":
    return number
  from t2t.models.kernels import grouped_matmul

  return grouped_matmul.num_rows(number)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def product(
  rows: jax.Array, matrices: jax.Array, sizes: jax.Array, parts: Parts | None, summed_in: str, platform: str
) -> jax.Array:
  """Computes `jax.lax.ragged_dot` in the dtype of `rows`, with a Pallas kernel on each TPU.

  The matrices are gathered for each product, and the gradients go directly into the devices' parts.

  Args:
    rows: [rows, in], sorted by group; on TPUs the results of rows after the last group are undefined.
    matrices: [groups, in, out], or the device's part within `sharding.per_device`.
    sizes: rows of each group, int32 [groups].
    parts: result of `sharding.parameter_parts`; None: whole arrays, which the compiler splits.
    summed_in: dtype in which devices sum the gradient of a matrix.
    platform: "tpu" selects the kernel if `parts` is given.
  """
  matrices = matrices.astype(rows.dtype)
  if parts is None:
    return jax.lax.ragged_dot(rows, matrices, sizes)
  matrices = sharding.gather_parts(matrices, parts)
  if platform != "tpu":
    return jax.lax.ragged_dot(rows, matrices, sizes)
  from t2t.models.kernels import grouped_matmul

  return grouped_matmul.product(rows, matrices, sizes)


def _forward(rows, matrices, sizes, parts, summed_in, platform):
  return product(rows, matrices, sizes, parts, summed_in, platform), (rows, matrices, sizes)


def _backward(parts, summed_in, platform, residuals, cotangent):
  rows, matrices, sizes = residuals
  whole = matrices.astype(rows.dtype)
  whole = whole if parts is None else sharding.gather_parts(whole, parts)
  if parts is not None and platform == "tpu":
    from t2t.models.kernels import grouped_matmul

    d_rows, d_matrices = grouped_matmul.backward(rows, whole, sizes, cotangent, summed_in)
  else:
    _, transpose = jax.vjp(lambda rows, whole: jax.lax.ragged_dot(rows, whole, sizes), rows, whole)
    d_rows, d_matrices = transpose(cotangent)
  if parts is not None:
    d_matrices = sharding.scatter_parts(d_matrices.astype(summed_in), parts)
  return d_rows, d_matrices.astype(matrices.dtype), None


product.defvjp(_forward, _backward)
