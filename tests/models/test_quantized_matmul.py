"""8-bit products: their errors, their gradients, and their saved activations."""

import dataclasses
import importlib.util
import re

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix
import toy

from t2t import UserError, sharding
from t2t.models import quantized_matmul, transformer
from t2t.models.config import QUANTIZATIONS

pytestmark = pytest.mark.slow


def normal(*shape, seed=0):
  return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def rounded(x, kind, axis):
  """Rounds each slice along `axis` to scaled 8-bit numbers; float64."""
  others = [i for i in range(x.ndim) if i != axis % x.ndim]
  found = qwix.dequantize(qwix.quantize(x.astype(jnp.float32), kind, channelwise_axes=others))
  largest = np.max(np.abs(np.asarray(x, np.float64)), axis=axis, keepdims=True)
  assert np.all(np.abs(found - x) <= {"int8": 1 / 127.5, "float8_e4m3fn": 2**-4, "float8_e5m2": 2**-3}[kind] * largest)
  return np.asarray(found, np.float64)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "forward", "backward"), [("int8",) * 3, ("fp8", "float8_e4m3fn", "float8_e5m2")])
def test_both_ways_are_products_of_what_8_bits_hold(kind, forward, backward, dtype):
  """y and dx are products of rounded operands, with a scale per row and column; the kernel's gradient is exact."""
  x, cotangent = normal(2, 9, 64).astype(dtype), normal(2, 9, 32, seed=1).astype(dtype)
  kernel = normal(64, 32, seed=2)
  y, vjp = jax.vjp(lambda x, kernel: quantized_matmul.product(x, kernel, quantization=kind), x, kernel)
  d_x, d_kernel = vjp(cotangent)
  assert (y.dtype, d_x.dtype, d_kernel.dtype) == (dtype, dtype, jnp.float32)
  tolerance = dict(rtol=1e-2, atol=1e-2) if dtype == "bfloat16" else dict(rtol=1e-4, atol=1e-4)
  expected = rounded(x, forward, -1) @ rounded(kernel, forward, 0)
  np.testing.assert_allclose(np.asarray(y, np.float64), expected, **tolerance)
  expected = rounded(cotangent, backward, -1) @ rounded(kernel, forward, 1).T
  np.testing.assert_allclose(np.asarray(d_x, np.float64), expected, **tolerance)
  exact = np.einsum("bli,blo->io", *(np.asarray(each, np.float64) for each in (x, cotangent)))
  np.testing.assert_allclose(d_kernel, exact, **tolerance)


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_rows_do_not_share_a_scale(kind):
  """A row a million times larger than its neighbours does not affect them."""
  x, kernel = normal(4, 64), normal(64, 32, seed=1)
  large = x.at[1].multiply(2.0**20)
  expected = quantized_matmul.product(x, kernel, quantization=kind).at[1].multiply(2.0**20)
  np.testing.assert_array_equal(quantized_matmul.product(large, kernel, quantization=kind), expected)


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_nothing_is_the_product_of_nothing(kind):
  """Rows of zeros, such as padding, and rows of NaN."""
  x, kernel = normal(3, 16).at[0].set(0.0).at[1, 3].set(jnp.nan), normal(16, 8, seed=1)
  y, vjp = jax.vjp(lambda x: quantized_matmul.product(x, kernel, quantization=kind), x)
  assert np.all(np.asarray(y[0]) == 0.0)
  assert np.all(np.isnan(y[1]))
  assert np.all(np.asarray(vjp(jnp.zeros_like(y))[0]) == 0.0)


def loss_and_params(config, *, copies=1):
  graphdef, params = toy.split(toy.model(config))
  batch = toy.batch((7, 4) * copies, (3, 5) * copies, architecture=config.architecture)
  return lambda params: toy.summed_loss()(nnx.merge(graphdef, params), batch, None)[0], params


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["t5_1_1", "llama", "bert"])
def test_a_model_in_8_bits_is_near_itself(kind):
  """Its loss and the direction of its gradient, embeddings and norms included."""
  plain = toy.KINDS[kind]
  found = {}
  for quantization in ("", *QUANTIZATIONS):
    function, params = loss_and_params(dataclasses.replace(plain, quantization=quantization))
    loss, gradient = jax.jit(jax.value_and_grad(function))(params)
    found[quantization] = loss, np.concatenate([np.ravel(x) for x in jax.tree.leaves(gradient)])
  loss, gradient = found.pop("")
  for own_loss, own in found.values():
    assert own_loss != loss
    np.testing.assert_allclose(own_loss, loss, rtol=0.05)
    assert own @ gradient > 0.98 * np.linalg.norm(own) * np.linalg.norm(gradient)


@pytest.mark.exhaustive
def test_what_is_kept_has_the_bits_of_activations():
  """Under `minimal` no 32-bit sum of int8 products is saved for the backward pass."""
  config = toy.config(dtype="bfloat16", quantization="int8", remat="minimal")
  function, params = loss_and_params(config)
  kept = jax.tree.leaves(jax.eval_shape(lambda params: jax.vjp(function, params)[1], params))
  layers = [x for x in kept if x.ndim >= 3 and x.shape[0] == config.num_encoder_layers]
  assert any(x.dtype == jnp.bfloat16 for x in layers)
  assert not any(x.dtype == jnp.int32 and x.ndim == 4 for x in layers)


@pytest.mark.exhaustive
def test_devices_do_not_send_sums_of_32_bits():
  """If a tensor axis splits the summed dimension, the product is not in 8 bits; the others are."""
  function, params = loss_and_params(toy.config(dtype="bfloat16", quantization="int8"), copies=4)
  found = {}
  _, abstract = nnx.split(jax.eval_shape(lambda: transformer.build(toy.config(), nnx.Rngs(0))), graph=False)
  for sizes in ({"fsdp": 8}, {"fsdp": 4, "tensor": 2}):
    mesh = sharding.make_mesh(sizes)
    with jax.set_mesh(mesh):
      placed = jax.device_put(params, sharding.param_shardings(abstract, mesh))
      text = jax.jit(jax.grad(function)).lower(placed).compile().as_text()
    assert not re.search(r"= \(?s32\[\d+,\d.*(all-reduce|reduce-scatter)", text)
    found["tensor" in sizes] = len(re.findall(r"= s32\[[\d,]+\]\S* dot\(", text))
  assert 0 < found[True] < found[False]


def test_it_needs_its_library(monkeypatch):
  """Reported when the config is read, with the command to install it."""
  find = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "qwix" else find(name))
  with pytest.raises(UserError, match="quantization=int8: the package qwix is missing. Run: pip install"):
    toy.config(quantization="int8")


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_of_8_bits_every_mesh_makes_the_same(kind):
  """Scales are of whole rows and columns for any sharding of a kernel: integers are bitwise equal."""
  random = np.random.default_rng(0)
  shapes = dict(x=(8, 16, 24), kernel=(24, 32), cotangent=(8, 16, 32))
  arrays = [random.normal(size=shape).astype(np.float32) for shape in shapes.values()]

  def made(mesh):
    with jax.set_mesh(mesh):
      rows, columns = sharding.batch_sharding(mesh), jax.NamedSharding(mesh, jax.P("fsdp"))
      x, kernel, cotangent = map(jax.device_put, arrays, (rows, columns, rows))

      def forward_and_back(x, kernel, cotangent):
        y, back = jax.vjp(
          lambda *of: quantized_matmul.product(*of, quantization=kind, axes=("embed", "mlp")), x, kernel
        )
        return y, *back(cotangent)

      return jax.jit(forward_and_back)(x, kernel, cotangent)

  one, split = made(sharding.make_mesh({"fsdp": 1}, devices=jax.devices()[:1])), made(sharding.make_mesh({"fsdp": 8}))
  for a, b, exact in zip(one, split, (True, True, False), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=0 if exact and kind == "int8" else 1e-4)
