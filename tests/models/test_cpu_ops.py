"""bfloat16 products on a CPU: results near the float32 formula, at any shape, and bfloat16 operands."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import pytest

from t2t.models import cpu_ops, quantized_matmul

_SIZES = st.sampled_from([1, 2, 3, 7, 8, 33])


def normal(*shape, seed=0, dtype="bfloat16"):
  return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def wide(x):
  return np.asarray(x, np.float64)


def assert_near(found, expected):
  """Compares up to 8-bit rounding and a few summed terms, relative to the largest entry."""
  np.testing.assert_allclose(wide(found), wide(expected), atol=0.02 * (1 + np.abs(wide(expected)).max()))


@pytest.mark.slow
@given(batch=_SIZES, length=_SIZES, inner=_SIZES, width=_SIZES)
@settings(max_examples=12, deadline=None)
def test_a_dense_layer_and_its_gradients(batch, length, inner, width):
  """All arrays are bfloat16."""
  x, kernel, cotangent = (
    normal(batch, length, inner),
    normal(inner, width, seed=2),
    normal(batch, length, width, seed=1),
  )
  y, vjp = jax.vjp(jax.jit(cpu_ops.dense), x, kernel)
  d_x, d_kernel = vjp(cotangent)
  assert {each.dtype for each in (y, d_x, d_kernel)} == {jnp.dtype("bfloat16")}
  assert_near(y, wide(x) @ wide(kernel))
  assert_near(d_x, wide(cotangent) @ wide(kernel).T)
  assert_near(d_kernel, np.einsum("bli,blo->io", wide(x), wide(cotangent)))


def test_logits_keep_what_bfloat16_would_round():
  """A float32 result is not rounded."""
  x, kernel = normal(4, 64), normal(64, 32, seed=1)
  found = cpu_ops.dense(x, kernel, jnp.float32)
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, wide(x) @ wide(kernel), rtol=1e-5, atol=1e-5)


@pytest.mark.exhaustive
@given(batch=_SIZES, heads=_SIZES, queries=_SIZES, keys=_SIZES, kv=_SIZES, biased=st.booleans(), hides=st.booleans())
@settings(max_examples=12, deadline=None)
def test_attention_and_its_gradients(batch, heads, queries, keys, kv, biased, hides):
  """Arrays transposed from [batch, length, heads, kv], as in layers, with masks."""
  arrays = [normal(batch, length, heads, kv, seed=i) for i, length in enumerate((queries, keys, keys))]
  bias = normal(1, heads, queries, keys, seed=3, dtype="float32") if biased else None
  allowed = np.arange(keys) <= np.arange(queries)[:, None] if hides else None
  read_out = normal(batch, heads, queries, kv, seed=4, dtype="float32")
  turned = lambda x: jnp.swapaxes(x, 1, 2)

  def ours(arrays, bias):
    return jnp.sum(read_out * cpu_ops.attend(*map(turned, arrays), bias, allowed))

  def formula(arrays, bias):
    query, keys, values = (turned(x).astype(jnp.float32) for x in arrays)
    scores = jnp.einsum("bhqk,bhsk->bhqs", query, keys) + (0.0 if bias is None else bias)
    scores = scores if allowed is None else jnp.where(allowed, scores, -jnp.inf)
    return jnp.sum(read_out * jnp.einsum("bhqs,bhsk->bhqk", jax.nn.softmax(scores, axis=-1), values))

  found, expected = (jax.jit(jax.value_and_grad(f, argnums=(0, 1)))(arrays, bias) for f in (ours, formula))
  assert jax.tree.map(lambda x: x.dtype, found[1]) == jax.tree.map(lambda x: x.dtype, expected[1])
  for one, other in zip(jax.tree.leaves(found[1]), jax.tree.leaves(expected[1]), strict=True):
    assert_near(one, other)


@pytest.mark.exhaustive_from(9)
@pytest.mark.parametrize("alike", [(), (1,), (2,), (1, 2)])
@pytest.mark.parametrize("queries", [1, 2, 3, 4, 5])
def test_gradients_of_few_queries(queries, alike):
  """Arrays in their memory layout, and a bias shared by heads or queries."""
  arrays = [normal(2, 2, length, 16, seed=i, dtype="float32") for i, length in enumerate((queries, 7, 7))]
  bias = normal(*(1 if axis in alike else size for axis, size in enumerate((1, 2, queries, 7))), dtype="float32")
  allowed = np.arange(7) < 5
  read_out = normal(2, 2, queries, 16, seed=4, dtype="float32")

  def formula(query, keys, values, bias):
    scores = jnp.where(allowed, jnp.einsum("bhqk,bhsk->bhqs", query, keys) + bias, -jnp.inf)
    return jnp.einsum("bhqs,bhsk->bhqk", jax.nn.softmax(scores, axis=-1), values)

  gradient = lambda attend: jax.jit(jax.grad(lambda *x: jnp.sum(read_out * attend(*x)), argnums=(0, 1, 2, 3)))
  found = gradient(lambda *x: cpu_ops.attend(*x, allowed))(*arrays, bias)
  for one, other in zip(found, gradient(formula)(*arrays, bias), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive
@given(
  groups=st.integers(1, 4),
  queries=st.integers(1, 3),
  biased=st.sampled_from(["", "alike", "each"]),
  hides=st.booleans(),
  one=st.booleans(),
)
@settings(max_examples=12, deadline=None)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_heads_that_share_their_keys_are_more_queries(dtype, groups, queries, biased, hides, one):
  """Equal to a copy of the keys for each head; `one`: bias and mask are the same for all queries."""
  batch, kv_heads, kv, length, rows = 2, 3, 8, 5, 1 if one else queries
  query = normal(batch, kv_heads * groups, queries, kv, dtype=dtype)
  keys, values = (normal(batch, kv_heads, length, kv, seed=i, dtype=dtype) for i in (1, 2))
  bias_heads = 1 if biased == "alike" else kv_heads * groups
  bias = normal(1, bias_heads, rows, length, seed=3, dtype="float32") if biased else None
  allowed = np.random.default_rng(4).random((batch, 1, rows, length)) < 0.7 if hides else None
  copied = (jnp.repeat(x, groups, axis=1).astype(jnp.float32) for x in (keys, values))
  found = cpu_ops.attend_in_groups(query, keys, values, bias, allowed)
  assert found.dtype == query.dtype
  expected = cpu_ops.attend(query.astype(jnp.float32), *copied, bias, allowed)
  if dtype == "float32":
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
  else:
    assert_near(found, expected)


@pytest.mark.slow
def test_what_all_values_have_in_common_changes_no_gradient():
  """A softmax's gradient subtracts the common part from sums that are a thousand times as small."""
  query, keys, values, read_out = (normal(2, 4, 32, 16, seed=i) for i in range(4))
  common = 16.0
  gradient = lambda values: jax.grad(
    lambda query: jnp.sum(cpu_ops.attend(query, keys, values, None, None).astype(jnp.float32) * read_out)
  )(query)
  rounded = (values + jnp.bfloat16(common)).astype(jnp.bfloat16)  # bfloat16 keeps this part of them
  found, expected = wide(gradient(rounded)), wide(gradient(rounded - jnp.bfloat16(common)))
  assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def multiplied(program: str) -> list[tuple[str, ...]]:
  """Returns the operand dtypes of each product of a compiled program."""
  found = re.findall(r" \w+\[[^ ]* dot\(%?([\w.-]+), %?([\w.-]+)\)", program)
  dtypes = dict(re.findall(r"%?([\w.-]+) = (\w+)\[", program))
  return [tuple(dtypes[name] for name in operands) for operands in found]


@pytest.fixture(scope="module")
def products_of_bfloat16():
  """Skips on CPUs without bfloat16 products."""
  program = jax.jit(cpu_ops.dense).lower(normal(64, 128), normal(128, 128)).compile().as_text()
  if "__ynn_fusion" not in program:
    pytest.skip("this CPU, or this version of XLA, has no products of bfloat16")


@pytest.mark.usefixtures("products_of_bfloat16")
@pytest.mark.parametrize("queries", [1, 2])
def test_what_is_written_token_by_token_is_multiplied_in_bfloat16(queries):
  """A single row would be converted to float32, and all keys and values with it, for each token."""
  query, keys = normal(4, 2, queries, 64), normal(4, 2, 128, 64, seed=1)
  program = jax.jit(cpu_ops.attend).lower(query, keys, keys, None, None).compile().as_text()
  assert multiplied(program) == [("bf16", "bf16")] * 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_part_is_written_where_it_lies(dtype):
  """Bits are unchanged, and a loop converts no whole bfloat16 array to float32."""
  x, part = normal(2, 16, 4, dtype=dtype).at[0, 0, 0].set(jnp.nan), normal(2, 3, 4, seed=1, dtype=dtype)
  write = lambda x, part, index: cpu_ops.write(x, part, index, 1)
  found, expected = np.asarray(write(x, part, 5)), np.asarray(x).copy()
  expected[:, 5:8] = part
  assert found.dtype == expected.dtype
  assert found.tobytes() == expected.tobytes()
  of_all = jax.grad(lambda x, part: jnp.sum(write(x, part, 5).astype(jnp.float32)), argnums=(0, 1))(x, part)
  assert [np.asarray(each, np.float32).sum() for each in of_all] == [2 * (16 - 3) * 4, 2 * 3 * 4]
  again = lambda index, x: write(x, part + index, index)
  program = jax.jit(lambda x: jax.lax.fori_loop(0, 13, again, x)).lower(x).compile().as_text()
  assert ("f32[2,16,4]" in program) == (dtype == "float32")


@pytest.mark.usefixtures("products_of_bfloat16")
def test_products_are_of_bfloat16():
  """No product of a dense layer or an attention, forward or backward, has operands converted to float32."""

  def layer(x, kernel):
    heads = lambda y: jnp.swapaxes(y.reshape(4, 64, 2, 64), 1, 2)
    of_kernels = (heads(cpu_ops.dense(x, each.astype(x.dtype))) for each in kernel)
    return jnp.sum(cpu_ops.attend(*of_kernels, None, None).astype(jnp.float32))

  grad = jax.jit(jax.grad(layer, argnums=(0, 1)))
  program = grad.lower(normal(4, 64, 128), normal(3, 128, 128, dtype="float32")).compile().as_text()
  found = multiplied(program)
  assert len(found) >= 3 * 3 + 2 + 4  # of three layers, of attention, and of its gradient
  assert set(found) == {("bf16", "bf16")}


def test_a_mesh_gathers_nothing_to_multiply():
  """Devices with parts of the rows send sums and keep their rows."""
  mesh = jax.make_mesh((4,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
  place = lambda x, *axes: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))
  x, kernel = normal(8, 16, 32), normal(32, 16, seed=1, dtype="float32")
  product = lambda x, kernel: jnp.sum(quantized_matmul.product(x, kernel).astype(jnp.float32) ** 2)
  grad = jax.jit(jax.grad(product, argnums=(0, 1)))
  with jax.set_mesh(mesh):
    apart = place(x, "fsdp"), place(kernel)
    program = grad.lower(*apart).compile().as_text()
    found = grad(*apart)
  assert "all-reduce" in program
  assert "all-gather" not in program
  for one, other in zip(found, grad(x, kernel), strict=True):
    assert_near(one, other)


def test_what_is_selected_by_an_index_and_its_gradient():
  """Bitwise equal to the sum of a comparison mask; zero if the index is out of range."""
  x, cotangent = normal(2, 6, 9, dtype="float32"), normal(2, 6, seed=1, dtype="float32")
  index = jnp.array([[0, 8, 4, 3, 9, -1]] * 2)
  compared = lambda x: jnp.sum(jnp.where(index[..., None] == jnp.arange(9), x, 0.0), axis=-1)
  found, vjp = jax.vjp(jax.jit(lambda x: cpu_ops.select(x, index)), x)
  expected, expected_vjp = jax.vjp(compared, x)
  np.testing.assert_array_equal(found, expected)
  np.testing.assert_array_equal(vjp(cotangent)[0], expected_vjp(cotangent)[0])
  assert found[0, -2:].tolist() == [0.0, 0.0]
