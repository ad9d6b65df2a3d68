from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest
import toy

from t2t import UserError, sharding
from t2t.models import quantized_matmul, transformer


def abstract_params(**fields) -> nnx.State:
  model = jax.eval_shape(lambda: transformer.build(toy.config(**fields), nnx.Rngs(0)))
  return nnx.split(model, graph=False)[1]


def test_minus_one_takes_the_devices_that_are_left():
  """An axis of -1 is filled in, and an axis without a size has size 1."""
  assert sharding.mesh_sizes({"fsdp": -1, "tensor": 2}, 8) == {"data": 1, "fsdp": 4, "tensor": 2}
  assert sharding.mesh_sizes({"data": 2, "fsdp": 2, "tensor": 2}, 8) == {"data": 2, "fsdp": 2, "tensor": 2}


@pytest.mark.parametrize(
  ("shape", "message"),
  [
    (
      {"model": 2},
      "config.mesh.model: unknown mesh axis. The axes are dcn_data, stage, data, fsdp, expert, sequence, tensor",
    ),
    ({"data": -1, "fsdp": -1}, "data and fsdp are -1"),
    ({"tensor": 0}, "config.mesh.tensor=0"),
    ({"tensor": -2}, "config.mesh.tensor=-2"),
    ({"data": 2, "tensor": 2}, "needs 4 device"),
    ({"data": 3, "fsdp": -1}, "3 does not divide 8"),
  ],
)
def test_a_mesh_that_does_not_fit_is_refused(shape, message):
  """The message names the axis or the sizes."""
  with pytest.raises(UserError, match=message):
    sharding.mesh_sizes(shape, 8)


def test_mesh_has_automatic_axes():
  """Explicit axes, JAX's default, would make every operation require a sharding."""
  mesh = sharding.make_mesh({"fsdp": -1})
  assert dict(mesh.shape) == {"data": 1, "fsdp": 8, "tensor": 1}
  assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


def test_the_fastest_links_are_tensors():
  """Device numbers follow proximity; the axis that sends most gets adjacent numbers."""
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
  ids = np.vectorize(lambda device: device.id)(mesh.devices)
  np.testing.assert_array_equal(ids.reshape(-1), np.arange(8))
  sizes = sharding.mesh_sizes({"dcn_data": 2, "data": 2, "fsdp": 2, "sequence": 2, "tensor": 2}, 32)
  assert list(sizes) == ["dcn_data", "data", "fsdp", "sequence", "tensor"]


def test_shard_does_nothing_without_a_mesh():
  """Model code runs unchanged on one device."""
  x = jnp.ones((2, 3))
  assert sharding.shard(x, "batch", "embed") is x


def test_shard_splits_an_activation():
  """batch is split over data and fsdp, mlp over tensor, length not at all."""
  with jax.set_mesh(sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})):
    x = jax.jit(lambda x: sharding.shard(x, "batch", "length", "mlp"))(np.ones((8, 3, 6)))
  assert x.sharding.spec == PartitionSpec(("data", "fsdp"), None, "tensor")
  assert {shard.data.shape for shard in x.addressable_shards} == {(2, 3, 3)}


def test_shard_wants_a_name_for_each_dimension():
  """A missing name is an error, not another sharding."""
  with jax.set_mesh(sharding.make_mesh({"data": 8})), pytest.raises(ValueError, match="2 axis names"):
    sharding.shard(jnp.ones((8, 2, 2)), "batch", "embed")


def test_batch_lies_over_data_and_fsdp():
  """Tensor-parallel devices share the rows of a batch."""
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
  assert sharding.batch_sharding(mesh).shard_shape((8, 5)) == (2, 5)
  assert sharding.replicated(mesh).shard_shape((8, 5)) == (8, 5)
  assert sharding.num_shards("batch", mesh) == 4
  assert sharding.num_shards("batch") == 1
  with jax.set_mesh(mesh):
    assert sharding.num_shards("batch") == 4


def test_parameters_lie_over_fsdp_and_tensor():
  """embed is split over fsdp; heads, mlp and vocab over tensor; layers never."""
  shardings = sharding.param_shardings(abstract_params(), sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2}))
  specs = {path: tuple(x.spec) for path, x in toy.flat(shardings).items()}
  assert specs["embed/table"] == ("tensor", "fsdp")
  assert specs["head/projection"] == ("fsdp", "tensor")
  assert specs["encoder/position_bias/table"] == (None, "tensor")
  assert specs["encoder/norm/scale"] == ("fsdp",)
  assert specs["encoder/layers/mlp/up"] == (None, "fsdp", "tensor")
  assert specs["decoder/layers/mlp/down"] == (None, "tensor", "fsdp")
  assert specs["decoder/layers/self_attention/query"] == (None, "fsdp", "tensor")
  assert specs["decoder/layers/cross_attention/out"] == (None, "tensor", "fsdp")


@pytest.mark.parametrize("kind", toy.KINDS)
def test_every_parameter_has_a_place_on_the_mesh(kind):
  """Matrices of a layer are split over fsdp and tensor, and no mesh axis is used twice, for any kind of model."""
  model = jax.eval_shape(lambda: transformer.build(toy.KINDS[kind], nnx.Rngs(0)))
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
  shardings = sharding.param_shardings(nnx.split(model, graph=False)[1], mesh)
  specs = {path: tuple(x.spec) for path, x in toy.flat(shardings).items()}
  for path, spec in specs.items():
    if path.rsplit("/", 1)[-1] in ("query", "key", "value", "out", "gate", "up", "down"):
      assert sorted(filter(None, spec)) == ["fsdp", "tensor"], path
    if path.endswith(("query_bias", "key_bias", "up_bias")):
      assert spec[-1] == "tensor", path


def test_a_dimension_that_does_not_divide_is_refused():
  """The message names the mesh axis, the dimension and sizes that work."""
  mesh = sharding.make_mesh({"data": 2, "tensor": 4})
  with pytest.raises(UserError, match=r"config.mesh.tensor=4 does not divide vocab=42 .*that work: \[1, 2, 3, 6, 7\]"):
    sharding.param_shardings(abstract_params(vocab_size=42), mesh)


def test_a_parameter_whose_axes_do_not_fit_is_an_error():
  """A stacked parameter has one more dimension than names; any other number is an error in the model."""
  assert sharding.logical_axes("w", (3, 4, 5), ("embed", "mlp")) == ("layers", "embed", "mlp")
  with pytest.raises(ValueError, match="parameter w has the shape"):
    sharding.logical_axes("w", (3,), ("embed", "mlp"))


@pytest.mark.parametrize(
  "sizes", [{"data": 2, "fsdp": 2, "tensor": 2}, {"dcn_data": 2, "fsdp": 2, "tensor": 2}], ids=str
)
def test_a_product_keeps_its_rows_on_devices_with_few(sizes):
  """XLA exchanges them with a matrix that is split as (tensor, fsdp), and a result that is split by features."""
  random = np.random.default_rng(0)
  x, kernel = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 6, 16), (16, 32)))
  mesh = sharding.make_mesh({"data": 1} | sizes)

  def step(x, kernel, cotangent):
    product = lambda x, kernel: sharding.split_residual(quantized_matmul.product(x, kernel, axes=("mlp", "embed")))
    y, transpose = jax.vjp(product, sharding.shard(x, "batch", "length", "mlp"), kernel)
    return y, *transpose(cotangent)

  cotangent = random.standard_normal((4, 6, 32)).astype(np.float32)
  with jax.set_mesh(mesh):
    kernel_sharding = jax.NamedSharding(mesh, jax.P("tensor", "fsdp"))
    found = jax.jit(step, in_shardings=(sharding.batch_sharding(mesh), kernel_sharding, None))(x, kernel, cotangent)
  expected = x @ kernel, cotangent @ kernel.T, np.einsum("blk,bln->kn", x, cotangent)
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_allclose(one, other, atol=1e-4)
