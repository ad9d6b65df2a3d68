"""Operations in a form that XLA's CPU backend runs fast; other platforms do not use them.

On a CPU a matrix product reaches full speed as a plain [m, k] x [k, n] product, or a batch of them over leading axes,
without fused operations; `optimization_barrier` prevents fusion. Memory is slow, so cheap values are recomputed instead
of saved. Each function of arrays equals its plain counterpart, which a test checks.

bfloat16 products are twice as fast as float32 on CPUs with suitable instructions (AVX512-BF16, AMX). XLA uses these
only if the output is float32, the operands are in memory in the product's order, and there is more than one row. It
converts all other products to float32.
"""

import functools

import jax
from jax.experimental.layout import Layout, with_layout_constraint
import jax.numpy as jnp

from t2t import sharding

_barrier = jax.lax.optimization_barrier

# Rows from which XLA has fast products of bfloat16 and of int8; fewer rows are padded, or a single one repeated.
LEAST_ROWS = 4

# Queries per block, which share the keys up to the block's last; small enough to skip most masked keys.
_CAUSAL_BLOCK = 128


def is_fast(x: jax.Array) -> bool:
  """Returns True if products of such an array take the paths of this file.

  On a mesh of several devices, bfloat16 products do not, because the compiler would gather operands to lay them out.
  """
  return sharding.platform() == "cpu" and (x.dtype == jnp.float32 or sharding.is_alone())


def _in_memory(x: jax.Array) -> jax.Array:
  """Constrains a bfloat16 `x` to row-major layout in memory before a product reads it."""
  if x.dtype != jnp.bfloat16:
    return x
  return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def _transposed(x: jax.Array) -> jax.Array:
  return _in_memory(jnp.swapaxes(x, -1, -2))


def _dot(axes: str, x: jax.Array, y: jax.Array) -> jax.Array:
  return jnp.einsum(axes, x, y, preferred_element_type=jnp.float32)


def _by_rows(axes: str, rows: jax.Array, y: jax.Array) -> jax.Array:
  """Computes `_dot` of [batch, heads, rows, ...]; a single bfloat16 row is repeated."""
  if rows.dtype != jnp.bfloat16 or rows.shape[2] != 1:
    return _dot(axes, rows, y)
  return _dot(axes, jnp.repeat(rows, LEAST_ROWS, axis=2), y)[:, :, :1]


@jax.custom_vjp
def _in_bfloat16(rows: jax.Array, kernel: jax.Array) -> jax.Array:
  """Returns float32 [m, n] of bfloat16 [m, k] and [k, n], with bfloat16 gradients."""
  return _in_bfloat16_forward(rows, kernel)[0]


def _in_bfloat16_forward(rows, kernel):
  return _dot("mk,kn->mn", _in_memory(rows), kernel), (rows, kernel)


def _in_bfloat16_backward(residuals, cotangent):
  rows, kernel = residuals
  cotangent = _in_memory(cotangent.astype(jnp.bfloat16))
  d_rows, d_kernel = _dot("mn,kn->mk", cotangent, kernel), _dot("km,mn->kn", _transposed(rows), cotangent)
  return d_rows.astype(jnp.bfloat16), d_kernel.astype(jnp.bfloat16)


_in_bfloat16.defvjp(_in_bfloat16_forward, _in_bfloat16_backward)


def dense(x: jax.Array, kernel: jax.Array, dtype: jnp.dtype | None = None) -> jax.Array:
  """Computes x @ kernel for [..., in] and [in, out] as one two-dimensional product, also in its gradients.

  Args:
    x, kernel: operands of one dtype.
    dtype: dtype of the result; None: the dtype of `x`.
  """
  rows = x.reshape(-1, x.shape[-1])
  y = _in_bfloat16(rows, kernel) if is_fast(x) and x.dtype == jnp.bfloat16 else rows @ kernel
  return y.astype(dtype or x.dtype).reshape(*x.shape[:-1], kernel.shape[-1])


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def write(x: jax.Array, part: jax.Array, index: jax.Array, axis: int) -> jax.Array:
  """Replaces a slice of `x` from `index` by `part`, as `jax.lax.dynamic_update_slice_in_dim`.

  For bfloat16, XLA would convert all of `x` to float32 and back instead of writing the part in place.
  """
  if x.dtype != jnp.bfloat16:
    return jax.lax.dynamic_update_slice_in_dim(x, part, index, axis=axis)
  whole_bits, part_bits = (jax.lax.bitcast_convert_type(operand, jnp.uint16) for operand in (x, part))
  written = jax.lax.dynamic_update_slice_in_dim(whole_bits, part_bits, index, axis=axis)
  return jax.lax.bitcast_convert_type(written, x.dtype)


@write.defjvp
def _write_jvp(axis, primals, tangents):
  (x, part, index), (d_x, d_part, _) = primals, tangents
  return write(x, part, index, axis), jax.lax.dynamic_update_slice_in_dim(d_x, d_part, index, axis=axis)


def _scores(query, keys, bias, allowed):
  scores = _barrier(_by_rows("bhqk,bhsk->bhqs", query, keys))
  if bias is not None:
    scores = scores + bias
  return scores if allowed is None else jnp.where(allowed, scores, jnp.finfo(jnp.float32).min)


@jax.custom_vjp
def attend(
  query: jax.Array, keys: jax.Array, values: jax.Array, bias: jax.Array | None, allowed: jax.Array | None
) -> jax.Array:
  """Computes softmax(query keys^T + bias) values without dropout; shapes and dtypes as in `attention.attend`.

  The softmax is in float32. The division follows the weighted sum of values, on [batch, heads, query, kv] instead of
  [batch, heads, query, key]. The backward pass recomputes the scores.
  """
  return _attend_forward(query, keys, values, bias, allowed)[0]


def _attend_forward(query, keys, values, bias, allowed):
  dtype = query.dtype
  query, keys, values = _in_memory(query), _in_memory(keys), _in_memory(values)
  scores = _scores(query, keys, bias, allowed)
  largest = jnp.max(scores, axis=-1, keepdims=True)
  exponentials = _barrier(jnp.exp(scores - largest).astype(dtype))
  total = jnp.sum(exponentials, axis=-1, keepdims=True, dtype=jnp.float32)
  attended = _by_rows("bhqs,bhsk->bhqk", exponentials, values) / total
  # `largest` and `total` are saved separately: their log-sum-exp would round `total` away for fully masked queries. The
  # output is saved in float32, because the backward pass takes differences that are far smaller than its terms.
  return attended.astype(dtype), (query, keys, values, bias, allowed, attended, largest, 1.0 / total)


def _attend_backward(residuals, cotangent):
  query, keys, values, bias, allowed, attended, largest, share = residuals
  dtype, cotangent = query.dtype, _in_memory(cotangent)
  # XLA aborts on small products of two or three queries behind a barrier.
  apart = _barrier if query.shape[2] >= LEAST_ROWS else lambda x: x
  probabilities = apart((jnp.exp(_scores(query, keys, bias, allowed) - largest) * share).astype(dtype))
  d_values = apart(_dot("bhkq,bhqs->bhks", _transposed(cotangent), probabilities))
  d_probabilities = apart(_dot("bhqk,bhsk->bhqs", cotangent, values))
  of_all = jnp.sum(cotangent.astype(jnp.float32) * attended, axis=-1, keepdims=True)
  d_scores = probabilities * (d_probabilities - of_all)
  d_scores = apart((d_scores if allowed is None else jnp.where(allowed, d_scores, 0.0)).astype(dtype))
  d_query = _dot("bhqs,bhsk->bhqk", d_scores, keys).astype(dtype)
  d_keys = apart(_dot("bhkq,bhqs->bhks", _transposed(query), d_scores))
  # The sum over the batch is a product with ones: XLA's own reduction over a leading axis runs at a fifth of the speed.
  rows = d_scores.reshape(d_scores.shape[0], -1)
  ones = jnp.ones((1, rows.shape[0]), dtype)
  d_bias = None
  if bias is not None:
    alike = tuple(axis for axis in (1, 2) if bias.shape[axis] == 1)  # broadcast over heads, or queries
    d_bias = _dot("rb,bn->rn", ones, rows).reshape(1, *d_scores.shape[1:]).sum(axis=alike, keepdims=True)
  swap = lambda x: jnp.swapaxes(x, -1, -2).astype(dtype)
  return d_query, swap(d_keys), swap(d_values), d_bias, None


attend.defvjp(_attend_forward, _attend_backward)


def attend_in_groups(
  query: jax.Array, keys: jax.Array, values: jax.Array, bias: jax.Array | None, allowed: jax.Array | None
) -> jax.Array:
  """Computes `attend` with grouped key heads: the groups become more queries of one head, so that no key is copied."""
  kv_heads, groups = keys.shape[1], query.shape[1] // keys.shape[1]
  shape = (query.shape[2], keys.shape[2])
  if bias is not None:
    bias = jnp.broadcast_to(bias, (bias.shape[0], query.shape[1], *shape))
    bias = bias.reshape(bias.shape[0], kv_heads, -1, shape[1])
  if allowed is not None:
    allowed = jnp.tile(jnp.broadcast_to(allowed, (*allowed.shape[:2], *shape)), (1, 1, groups, 1))
  grouped = query.reshape(query.shape[0], kv_heads, -1, query.shape[3])
  return attend(grouped, keys, values, bias, allowed).reshape(query.shape)


def attend_causally(
  query: jax.Array, keys: jax.Array, values: jax.Array, bias: jax.Array | None, allowed: jax.Array | None
) -> jax.Array:
  """Computes `attend` with a causal mask in blocks of queries, each with the keys up to the block's end."""
  length, blocks = query.shape[2], []
  for start in range(0, length, _CAUSAL_BLOCK):
    end = min(start + _CAUSAL_BLOCK, length)
    part = lambda x, start=start, end=end: None if x is None else x[:, :, start:end, :end]
    queries = query[:, :, start:end]
    blocks.append(attend(queries, keys[:, :, :end], values[:, :, :end], part(bias), part(allowed)))
  return jnp.concatenate(blocks, axis=2)


@jax.custom_jvp
def select(x: jax.Array, index: jax.Array) -> jax.Array:
  """Returns x[..., index] for [..., n] and int [...], 0 if the index is out of range, without a pass over `x`."""
  is_inside = (index >= 0) & (index < x.shape[-1])
  taken = jnp.take_along_axis(x, jnp.where(is_inside, index, 0)[..., None], axis=-1)[..., 0]
  return jnp.where(is_inside, taken, 0)


@select.defjvp
def _select_jvp(primals, tangents):
  # A comparison instead of a scatter, so that the gradient fuses into the following sum.
  x, index = primals
  at = index[..., None] == jnp.arange(x.shape[-1])
  return select(x, index), jnp.sum(jnp.where(at, tangents[0], 0), axis=-1)
