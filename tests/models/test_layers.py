import dataclasses

from flax import nnx
from hypothesis import given, settings, strategies
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import sharding
from t2t.models import feed_forward, layers


def normal(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_dropout_without_a_key_does_nothing():
  """Evaluation passes no key; a rate of zero draws nothing."""
  x = jnp.ones((2, 3))
  assert layers.dropout(x, 0.5, None) is x
  assert layers.dropout(x, 0.0, jax.random.key(0)) is x


def test_dropout_is_the_same_for_the_same_key():
  """Another key gives another mask."""
  x = jnp.ones((64, 64))
  first, again, other = (layers.dropout(x, 0.5, jax.random.key(seed)) for seed in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert np.any(first != other)


def test_dropout_keeps_the_mean():
  """A fraction `rate` of the entries is zero, and the others grow by 1 / (1 - rate)."""
  dropped = layers.dropout(jnp.full((400, 400), 3.0), 0.25, jax.random.key(0))
  assert set(np.unique(dropped)) == {0.0, 4.0}
  assert np.mean(dropped == 0.0) == pytest.approx(0.25, abs=0.01)
  assert np.mean(dropped) == pytest.approx(3.0, abs=0.03)


def test_dropout_shares_one_draw_along_an_axis():
  """With broadcast_axis=-2 the same features are dropped at all positions, and others in other sequences."""
  dropped = np.asarray(layers.dropout(jnp.ones((2, 5, 50)), 0.5, jax.random.key(0), broadcast_axis=-2))
  np.testing.assert_array_equal(dropped, np.broadcast_to(dropped[:, :1], dropped.shape))
  assert np.any(dropped[0] != dropped[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5_1_1", "bert", "gpt2"])
def test_t5_alone_drops_out_behind_the_activation(kind):
  """BERT's intermediate layer and GPT-2's have no dropout (transformers: BertIntermediate, GPT2MLP.act)."""
  mlp = feed_forward.Mlp(dataclasses.replace(toy.KINDS[kind], dropout_rate=0.5), nnx.Rngs(0))
  x = normal(2, 3, 16)
  assert np.allclose(mlp(x, jax.random.key(0)), mlp(x)) == (kind != "t5_1_1")


def test_parameters_are_float32_with_their_axes():
  """`scale` is the standard deviation; the axes are metadata."""
  parameter = layers.param(nnx.Rngs(0), (200, 300), ("embed", "mlp"), scale=0.5)
  assert parameter.get_metadata()["axes"] == ("embed", "mlp")
  assert parameter[...].dtype == jnp.float32
  assert np.std(parameter[...]) == pytest.approx(0.5, rel=0.02)


def test_embed_looks_up_rows():
  """Each id becomes its row, in the dtype of the activations."""
  embed = layers.Embed(toy.config(dtype="bfloat16"), nnx.Rngs(0))
  out = embed(jnp.array([[3, 0], [39, 3]]))
  assert out.dtype == jnp.bfloat16
  rows = embed.table[...].astype(jnp.bfloat16)
  np.testing.assert_array_equal(out, np.asarray(rows)[np.array([[3, 0], [39, 3]])])


def test_embed_adds_positions_and_segments():
  """Sums rows of three tables; positions start at the offset, or are given."""
  config = toy.encoder(positions="learned", max_length=5, position_offset=2, segment_types=2, embedding_norm=False)
  embed = layers.Embed(config, nnx.Rngs(0))
  token, place, part = (np.asarray(x[...]) for x in (embed.table, embed.positions, embed.segments))
  assert place.shape == (7, 16)
  tokens = jnp.array([[3, 0, 39]])
  np.testing.assert_allclose(embed(tokens)[0], token[[3, 0, 39]] + place[2:5] + part[0], rtol=1e-6)
  given = embed(tokens, positions=jnp.array([[4, 0, 1]]), segments=jnp.array([[1, 0, 1]]))
  np.testing.assert_allclose(given[0], token[[3, 0, 39]] + place[[6, 2, 3]] + part[[1, 0, 1]], rtol=1e-6)


@pytest.mark.slow
def test_a_small_embedding_is_normed_and_then_projected():
  """ALBERT: the table and its norm have the width `embedding_dim`; a dense layer projects to embed_dim."""
  embed = layers.Embed(toy.encoder(embedding_dim=10, biases=True), nnx.Rngs(0))
  embed.projection_bias = nnx.Param(jnp.arange(16.0))
  rows = embed.table[...][jnp.array([[3, 7]])]
  assert rows.shape == (1, 2, 10)
  np.testing.assert_allclose(
    embed(jnp.array([[3, 7]])), embed.norm(rows) @ embed.projection[...] + np.arange(16), rtol=1e-5
  )


def test_rms_norm_is_its_formula():
  """x / sqrt(mean(x**2) + epsilon) * scale, without subtracting the mean."""
  norm = layers.Norm(toy.config(norm_epsilon=0.1), 16)
  norm.scale = nnx.Param(jnp.arange(16.0))
  x = normal(2, 3, 16) + 5.0
  expected = x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 0.1) * np.arange(16)
  np.testing.assert_allclose(norm(x), expected, rtol=1e-5)


def test_layer_norm_is_its_formula():
  """(x - mean) / sqrt(variance + epsilon) * scale + bias."""
  norm = layers.Norm(toy.config(norm="layer", biases=True, norm_epsilon=0.1), 16)
  norm.scale, norm.bias = nnx.Param(jnp.arange(16.0)), nnx.Param(jnp.arange(16.0)[::-1])
  x = normal(2, 3, 16) + 5.0
  expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.1) * np.arange(16)
  np.testing.assert_allclose(norm(x), expected + np.arange(16)[::-1], rtol=1e-4, atol=1e-5)
  assert layers.Norm(toy.config(norm="layer"), 16).bias is None
  assert layers.Norm(toy.config(biases=True), 16).bias is None  # root mean square norms have no bias


@settings(deadline=None, max_examples=20)
@given(strategies.floats(min_value=0.01, max_value=1e4))
def test_rms_norm_ignores_the_scale_of_its_input(factor):
  """norm(factor * x) = norm(x) if epsilon is negligible."""
  norm = layers.Norm(toy.config(norm_epsilon=1e-12), 16)
  np.testing.assert_allclose(norm(factor * normal(3, 16)), norm(normal(3, 16)), rtol=1e-4)


def test_rms_norm_computes_in_float32():
  """bfloat16 inputs are normed in float32 and rounded once at the end."""
  norm = layers.Norm(toy.config(), 16)
  x = jnp.asarray(normal(4, 16), jnp.bfloat16)
  out = norm(x)
  assert out.dtype == jnp.bfloat16
  np.testing.assert_array_equal(out, norm(x.astype(jnp.float32)).astype(jnp.bfloat16))


def tanh_gelu(z):
  return 0.5 * z * (1 + jnp.tanh(jnp.sqrt(2 / jnp.pi) * (z + 0.044715 * z**3)))


def exact_gelu(z):
  return 0.5 * z * (1 + jax.scipy.special.erf(z / jnp.sqrt(2.0)))


@pytest.mark.parametrize(
  ("activation", "function"),
  [
    ("relu", lambda z: jnp.maximum(z, 0)),
    ("gelu", exact_gelu),
    ("gelu_tanh", tanh_gelu),
    ("gated_gelu", tanh_gelu),
    ("gated_gelu_exact", exact_gelu),
    ("gated_silu", lambda z: z / (1 + jnp.exp(-z))),
  ],
)
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_mlp_is_its_formula(activation, function, platform, monkeypatch):
  """f(x W_gate) * (x W_up) W_down, or f(x W_up) W_down; and its gradient.

  A CPU uses another order of operations than accelerators.
  """
  monkeypatch.setattr(sharding, "platform", lambda: platform)
  mlp = feed_forward.Mlp(toy.config(mlp_activation=activation), nnx.Rngs(0))
  assert (mlp.gate is not None) == activation.startswith("gated")
  up, down = mlp.up[...], mlp.down[...]

  def formula(x):
    return (function(x @ up) if mlp.gate is None else function(x @ mlp.gate[...]) * (x @ up)) @ down

  x = 3 * normal(2, 3, 16)
  np.testing.assert_allclose(mlp(x), formula(x), atol=1e-5, rtol=1e-5)
  found, expected = (jax.jit(jax.grad(lambda x, f=f: jnp.sum(f(x) ** 2)))(x) for f in (mlp, formula))
  np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("activation", layers.ACTIVATIONS)
def test_gradients_of_activations_are_jaxs(activation):
  """Even though the forward pass computes the derivative; in bfloat16 to its precision, and with shards as without."""
  x, read_out = jnp.asarray([[-3.0, -0.5, 0.0, 2.0], *normal(7, 4)]), normal(8, 4, seed=1)
  plain = layers.ACTIVATIONS[activation]
  ours = lambda x: layers.activate(activation, x)
  np.testing.assert_array_equal(ours(x), plain(x))

  def gradient(function, x):
    return jax.jit(jax.grad(lambda x: jnp.sum(read_out * function(x))))(x)

  expected = gradient(plain, x)
  np.testing.assert_allclose(gradient(ours, x), expected, atol=1e-6)
  narrow = gradient(ours, x.astype(jnp.bfloat16))
  assert narrow.dtype == jnp.bfloat16
  np.testing.assert_allclose(narrow.astype(jnp.float32), expected, atol=0.05)
  spread = jax.device_put(x, sharding.batch_sharding(sharding.make_mesh({"fsdp": -1})))
  found = gradient(ours, spread)
  assert found.sharding.is_equivalent_to(spread.sharding, 2)
  np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("activation", layers.ACTIVATIONS)
def test_an_activation_saves_one_array(activation):
  """Saves one array of the input's size; the count for automatic differentiation is a comparison."""
  x = jnp.asarray(normal(5, 7))
  saved = lambda function: sum(leaf.size == x.size for leaf in jax.tree.leaves(jax.vjp(function, x)[1]))
  assert saved(lambda x: layers.activate(activation, x)) == 1
  if activation == "gelu_tanh":
    assert saved(layers.ACTIVATIONS[activation]) > 3


def test_each_dense_layer_has_a_bias():
  """With biases: f(x W_gate + a) * (x W_up + b) W_down + c."""
  mlp = feed_forward.Mlp(toy.config(mlp_activation="gated_silu", biases=True), nnx.Rngs(0))
  for name, size in (("gate_bias", 32), ("up_bias", 32), ("down_bias", 16)):
    setattr(mlp, name, nnx.Param(jnp.asarray(normal(size))))
  x, read = normal(2, 3, 16), lambda name: np.asarray(getattr(mlp, name)[...])
  gate, up = (x @ read(name) + read(f"{name}_bias") for name in ("gate", "up"))
  expected = (gate / (1 + np.exp(-gate)) * up) @ read("down") + read("down_bias")
  np.testing.assert_allclose(mlp(x), expected, atol=1e-4)


@pytest.mark.parametrize("gradient_dtype", ["", "bfloat16", "float32"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_gradient_of_a_kernel_comes_in_its_dtype(dtype, gradient_dtype):
  """x^T dy, rounded to `gradient_dtype` once; outputs and gradients of the inputs do not depend on it."""
  x, kernel, cotangent = (jnp.asarray(normal(*shape, seed=sum(shape))) for shape in ((2, 9, 16), (16, 8), (2, 9, 8)))
  x, cotangent = x.astype(dtype), cotangent.astype(dtype)
  y, vjp = jax.vjp(lambda x, w: layers.dense(x, nnx.Param(w), gradient_dtype=gradient_dtype), x, kernel)
  expected, plain = jax.vjp(lambda x, w: x @ w.astype(dtype), x, kernel)
  np.testing.assert_array_equal(y, expected)
  (d_x, d_kernel), (expected_d_x, _) = vjp(cotangent), plain(cotangent)
  np.testing.assert_allclose(*(np.asarray(each, np.float32) for each in (d_x, expected_d_x)), rtol=0.01, atol=1e-6)
  assert d_kernel.dtype == jnp.float32
  exact = np.einsum("bli,blo->io", *(np.asarray(each, np.float64) for each in (x, cotangent)))
  rounded = (gradient_dtype or dtype) == "bfloat16"
  np.testing.assert_allclose(d_kernel, exact, rtol=0.01 if rounded else 1e-4, atol=1e-4)
  assert np.array_equal(d_kernel, d_kernel.astype("bfloat16").astype("float32")) == rounded


@pytest.mark.parametrize(("devices", "dtype"), [(32, "bfloat16"), (64, "float32")])
def test_gradients_of_many_devices_are_summed_in_float32(devices, dtype):
  """A bfloat16 sum over many devices loses terms; over few it is as good, with half the bytes."""
  mesh = jax.sharding.AbstractMesh((devices // 2, 2), ("data", "fsdp"), (jax.sharding.AxisType.Auto,) * 2)
  x, kernel = jnp.ones((64, 2, 16), "bfloat16"), jnp.ones((16, 8))
  function = lambda x, w: jnp.sum(layers.dense(x, nnx.Param(w)).astype(jnp.float32))
  with jax.sharding.use_abstract_mesh(mesh):
    program = jax.make_jaxpr(jax.grad(function, argnums=1))(x, kernel)
  products = [each for each, _ in toy.equations(program.jaxpr) if each.primitive.name == "dot_general"]
  of_kernel = [each.outvars[0].aval for each in products if set(each.outvars[0].aval.shape) == {16, 8}]
  assert [each.dtype for each in of_kernel] == [dtype]


@pytest.mark.slow
def test_what_many_positions_share_is_added_up_in_float32():
  """A row looked up 8,000 times, segments, packed positions, a bias: a bfloat16 sum stops at 256 equal terms."""
  config = toy.encoder(dtype="bfloat16", positions="learned", max_length=512, segment_types=2, embedding_norm=False)
  tokens = jnp.where(jnp.arange(8192).reshape(16, 512) % 128 == 0, 5, 3)
  cotangent = jnp.asarray(1 + 0.3 * normal(16, 512, 16), "bfloat16")
  exact = np.asarray(cotangent, np.float64)

  def looked_up(model):
    return model(tokens, positions=tokens % 4, segments=tokens // 5)

  graphdef, params = toy.split(layers.Embed(config, nnx.Rngs(0)))
  gradient = jax.vjp(lambda params: looked_up(nnx.merge(graphdef, params)), params)[1](cotangent)[0]
  of = {token: np.sum(exact[np.asarray(tokens) == token], axis=0) for token in (3, 5)}
  found = gradient["table"][3], gradient["table"][5], gradient["segments"][0], gradient["positions"][3]
  for each, expected in zip(found, (of[3], of[5], of[3], of[3]), strict=True):
    np.testing.assert_allclose(each, expected, rtol=1e-4)
  kernel, bias = nnx.Param(jnp.zeros((16, 16))), jnp.zeros(16)
  summed = jax.vjp(lambda b: layers.dense(cotangent, kernel, nnx.Param(b)), bias)[1](cotangent)[0]
  np.testing.assert_allclose(summed, np.sum(exact, axis=(0, 1)), rtol=1e-4)


def test_initial_weights_are_as_large_as_the_config_says():
  """By fan-in, or `init_scale`; at the end of pre-norm branches divided by the root of twice the layers."""

  def deviations(**fields):
    mlp = feed_forward.Mlp(toy.config(embed_dim=100, mlp_dim=200, **fields), nnx.Rngs(0))
    return [float(np.std(kernel[...])) for kernel in (mlp.up, mlp.down)]

  assert deviations() == pytest.approx([0.1, 200**-0.5], rel=0.05)
  assert deviations(init_scale=0.02) == pytest.approx([0.02, 0.02 / 6**0.5], rel=0.05)
  assert deviations(init_scale=0.02, post_norm=True) == pytest.approx([0.02, 0.02], rel=0.05)


def test_mlp_drops_the_same_features_at_all_positions():
  """Equal positions stay equal under dropout; another key gives another result."""
  mlp = feed_forward.Mlp(dataclasses.replace(toy.config(), dropout_rate=0.5), nnx.Rngs(0))
  x = jnp.broadcast_to(normal(1, 1, 16), (1, 4, 16))
  out = np.asarray(mlp(x, jax.random.key(0)))
  np.testing.assert_allclose(out, np.broadcast_to(out[:, :1], out.shape), rtol=1e-6)
  assert np.any(np.abs(out - mlp(x, jax.random.key(1))) > 0.01)
  assert np.any(np.abs(out - mlp(x)) > 0.01)
