"""Selects the mesh of a run from config.mesh, the model and the devices."""

from collections.abc import Sequence
import math

from flax import nnx
import jax

from t2t import accelerators, sharding
from t2t.configuration.schema import Config
from t2t.configuration.stages import Stage
from t2t.param_tree import split_frozen
from t2t.runtime import amounts
from t2t.training import recipe

# A TPU works on rows of 128 numbers, so a thinner shard is padded to 128 and costs as much to send.
_THINNEST = 128
_SHARE_OF_STATE = 0.5  # of a device's memory; activations need the rest


def choose(config: Config, num_devices: int, *, device_kind: str = "") -> tuple[dict[str, int], str]:
  """Returns the sizes of the axes of `config.mesh`, and the reason for the size of fsdp ("" if the config sets it).

  With `fsdp=0`, parameters are sharded while shards stay at least as wide as a TPU's rows. They are sharded further
  only if the training state would otherwise fill a device. The remaining devices go to data, which only communicates
  gradients once a step.

  Args:
    config: its mesh, model and optimizer are read; see configs/default.py.
    num_devices: of the mesh.
    device_kind: its memory is the limit, if it is known.

  Raises:
    UserError: the sizes do not fit the devices; see `sharding.mesh_sizes`.
  """
  shape = config.mesh.sizes
  if shape["fsdp"] != 0:
    return sharding.mesh_sizes(shape, num_devices), ""
  if -1 in shape.values():
    return sharding.mesh_sizes(shape | {"fsdp": 1}, num_devices), ""
  sizes = sharding.mesh_sizes(shape | {"fsdp": -1}, num_devices)
  most = sizes["fsdp"]
  model = config.model
  widths = (model.embed_dim, model.encoder_embed_dim, model.embedding_dim)
  widths += (model.output_embedding_dim, model.bottleneck_dim)
  widths = [width for width in widths if width]
  # These axes shard parameters as well; stages shard layers, and other parameters along the same dimension as fsdp.
  also = sizes.get("sequence", 1) * sizes.get("stage", 1) * sizes.get("expert", 1)
  works = [n for n in range(1, most + 1) if most % n == 0 and all(width % (n * also) == 0 for width in widths)] or [1]
  fsdp = max((n for n in works if min(widths) // (n * also) >= _THINNEST), default=1)
  why = f"the largest with shards of {min(widths)} features at least {_THINNEST} wide" if fsdp < most else "all devices"
  chip = accelerators.CHIPS.get(device_kind)
  if chip is not None:
    room = _SHARE_OF_STATE * chip.hbm_bytes * also * sizes["tensor"]
    state = _state_bytes(config)
    if state / fsdp > room:
      fsdp = min((n for n in works if state / n <= room), default=max(works))
      why = f"to fit {amounts.nbytes(state)} of parameters, gradients and optimizer state"
  sizes |= {"fsdp": fsdp, "data": sizes["data"] * (most // fsdp)}
  remainder = f"; the rest is data {sizes['data']}" if sizes["data"] > 1 else ""
  return sizes, f"fsdp {fsdp}, {why}{remainder}" if most > 1 else ""


def make(config: Config, *, devices: Sequence[jax.Device] | None = None) -> tuple[jax.sharding.Mesh, str]:
  """Returns the mesh of a config over local devices or a topology, and the reason (see `choose`)."""
  devices = jax.devices() if devices is None else list(devices)
  sizes, why = choose(config, len(devices), device_kind=devices[0].device_kind)
  return sharding.make_mesh(sizes, devices=devices, order=config.mesh.physical_layout), why


def on_one(run: Sequence[Stage], devices: Sequence[jax.Device]) -> list[Stage]:
  """Returns the stages of a run with one common mesh, that of the stage with the largest batch."""
  if len(run) == 1:
    return list(run)
  sizes, _ = choose(recipe.largest(run).config, len(devices), device_kind=devices[0].device_kind)
  return [stage.with_(mesh=sizes) for stage in run]


def _state_bytes(config: Config) -> int:
  """Returns bytes of parameters, gradients and optimizer state over all devices."""
  training_recipe = recipe.make(config)

  def make(key):
    params = nnx.to_pure_dict(nnx.split(training_recipe.model_fn(key), graph=False)[1])
    trained, frozen = split_frozen(params, training_recipe.freeze, halved=training_recipe.halved)
    return frozen, trained, trained, () if config.train.offload_optimizer else training_recipe.tx.init(trained)

  shapes = jax.eval_shape(make, jax.eval_shape(lambda: jax.random.key(0)))
  return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes))
