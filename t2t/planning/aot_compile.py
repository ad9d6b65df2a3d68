"""Compiles the training step ahead of time, for attached devices or for TPUs that are not attached.

libtpu compiles for any TPU. It needs only its wheel (the [tpu] extra), and no accelerator.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import importlib.util
import math
import os
import re
import time

import jax

from t2t import UserError, accelerators, sharding
from t2t.configuration.schema import Config
from t2t.models.kernels import dispatch
from t2t.planning import kernel_cycles, roofline
from t2t.planning.hlo import cost as hlo_cost
from t2t.runtime import quiet, versions, xla_flags
from t2t.training import recipe

# Generation -> number of dimensions of a slice, and examples of slices.
GENERATIONS: Mapping[str, tuple[int, str]] = {
  "v4": (3, "v4:2x2x1, v4:2x2x4, v4:4x4x4, v4:8x8x16"),
  "v5e": (2, "v5e:1x1, v5e:2x2, v5e:2x4, v5e:4x4, v5e:4x8, v5e:8x8, v5e:8x16, v5e:16x16"),
  "v5p": (3, "v5p:2x2x1, v5p:2x2x2, v5p:2x4x4, v5p:4x4x4, v5p:8x8x8, v5p:8x8x16"),
  "v6e": (2, "v6e:1x1, v6e:2x2, v6e:2x4, v6e:4x4, v6e:4x8, v6e:8x8, v6e:8x16, v6e:16x16"),
  "tpu7x": (3, "tpu7x:2x2x1, tpu7x:2x2x2, tpu7x:4x4x4, tpu7x:8x8x16"),
}


def _known() -> str:
  return "\n".join(f"  {examples}, ..." for _, examples in GENERATIONS.values())


def num_devices(topology: str, *, slices: int = 1) -> int:
  """Returns the number of devices of `devices` without calling libtpu.

  Raises:
    UserError: the topology is unknown.
  """
  _check_topology(topology, slices)
  generation, _, shape = topology.partition(":")
  per_chip = 2 if generation == "tpu7x" else 1
  return per_chip * slices * math.prod(int(side) for side in shape.split("x"))


def _check_topology(topology: str, slices: int) -> None:
  generation, _, shape = topology.partition(":")
  sides = shape.split("x")
  if generation not in GENERATIONS or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape):
    raise UserError(f"--topology {topology}: unknown TPU topology. Examples:\n{_known()}")
  number, examples = GENERATIONS[generation]
  if len(sides) != number:
    raise UserError(f"--topology {topology}: a {generation} slice has {number} dimensions. Examples: {examples}")
  if slices < 1:
    raise UserError(f"--slices {slices} must be at least 1")


def devices(topology: str, *, slices: int = 1) -> Sequence[jax.Device]:
  """Returns the devices of one or several TPU slices that are not attached.

  Args:
    topology: generation and chips along each side, "v5e:16x16", "v5p:8x8x16".
    slices: number of such slices, connected by the data-centre network.

  Raises:
    UserError: the topology is unknown (the message has examples), or libtpu is not installed or fails.
  """
  _check_topology(topology, slices)
  generation, _, shape = topology.partition(":")
  sides = shape.split("x")
  if importlib.util.find_spec("libtpu") is None:
    raise UserError(
      f"--topology {topology}: libtpu is not installed. Run `{versions.install_command('tpu')}` (no TPU is needed), or "
      "omit --topology to compile for the attached devices."
    )
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  # Nothing runs on a TPU here, so other processes may use one, or compile for one, at the same time.
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  # Otherwise libtpu would look for a TPU and occupy it.
  jax.config.update("jax_platforms", "cpu")
  from jax.experimental import topologies

  # A v4's two cores are one device, as on Google Cloud; a slice of one chip has a host with one chip.
  options = {"chip_config_name": "megacore"} if generation == "v4" else {}
  if all(side == "1" for side in sides):
    options["chips_per_host_bounds"] = (1, 1, 1)
  if slices > 1:
    options["num_slices"] = slices
  try:
    with quiet.stderr():  # libtpu logs messages about the missing TPU
      return topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices
  except Exception as error:  # libtpu raises several types, for bad shapes and for failures
    text = str(error).splitlines()[0]
    raise UserError(
      f"--topology {topology}: libtpu fails: {text}\nGive a known topology. Examples:\n{_known()}"
    ) from error


def bytes_per_device(tree) -> int:
  """Returns the bytes per device of abstract arrays with shardings, without arrays in host memory."""
  on_device = [x for x in jax.tree.leaves(tree) if x.sharding.memory_kind != "pinned_host"]
  return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in on_device)


@dataclasses.dataclass(frozen=True)
class Compiled:
  """Result of compiling a step; bytes are per device.

  parameters: number of parameters over all devices.
  save: bytes that a save holds in the memory of the first host at most, see `checkpoints.host_memory`.
  arguments: bytes of state and batch; `parts` has them by name.
  temporaries, total: bytes of temporaries, and of the whole program.
  seconds: duration of the compilation.
  text: HLO text of the program; None if it does not fit.
  """

  parameters: int
  save: int
  parts: dict[str, int]
  arguments: int
  temporaries: int
  total: int
  seconds: float
  text: str | None


def compile_step(config: Config, mesh: jax.sharding.Mesh) -> Compiled:
  """Compiles the step for a mesh; its devices need not be attached.

  Raises:
    UserError: the mesh does not divide a size; or the compiler fails for another reason than lack of memory.
  """
  from t2t.checkpoints import host_memory

  platform = mesh.devices.flat[0].platform
  flags = xla_flags.as_options(platform) if config.train.xla_flags else {}
  with jax.set_mesh(mesh):
    program = recipe.make(config).build(mesh)
    state = program.state
    batch, key = recipe.arguments(config, mesh)
    params = (state.params, state.frozen_params)
    number = sum(math.prod(x.shape) for x in jax.tree.leaves(params))
    parts = {name: bytes_per_device(x) for name, x in (("parameters", params), ("optimizer", state.opt_state))}
    parts["batch"] = bytes_per_device(batch)
    save = host_memory.of_state(state, mesh, host_memory.limit_bytes(config.checkpoint.host_memory_gb))
    started = time.monotonic()
    try:
      compiled = _with_flags(program.train_step.lower(state, batch, key), flags)
    except UserError:
      raise
    except Exception as error:  # XLA errors, and others from kernel compilers
      arguments = sum(parts.values())
      needed = _needed(str(error), arguments)
      if needed is None:
        text = (str(error).splitlines() or [""])[0][:400]
        raise UserError(f"compilation of the training step fails: {type(error).__name__}: {text}") from error
      return Compiled(number, save, parts, arguments, needed - arguments, needed, time.monotonic() - started, None)
  memory = compiled.memory_analysis()
  arguments = memory.argument_size_in_bytes
  temporaries = memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
  total = arguments + temporaries + memory.output_size_in_bytes - memory.alias_size_in_bytes
  return Compiled(number, save, parts, arguments, temporaries, total, time.monotonic() - started, compiled.as_text())


def _with_flags(lowered: jax.stages.Lowered, flags: Mapping[str, str | bool]) -> jax.stages.Compiled:
  """Compiles with the flags that a program accepts; XLA reads some flags only from the environment."""
  try:
    return lowered.compile(compiler_options=dict(flags) or None)
  except jax.errors.JaxRuntimeError as error:
    unknown = re.search(r"No such compile option: '(\w+)'", str(error))
    if unknown is None or unknown[1] not in flags:
      raise
    return _with_flags(lowered, {name: value for name, value in flags.items() if name != unknown[1]})


_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _needed(message: str, arguments: int) -> int | None:
  """Returns the bytes that a program would need, from the compiler's error; None if the error has another cause."""
  used = re.search(r"Used ([\d.]+)([KMGT])\w* of [\d.]+[KMGT]\w* hbm", message)
  temporaries = re.search(r"HLO temporaries \(([\d.]+)([KMGT])\) exceeds", message)
  if not used and not temporaries:
    return None
  amount = used or temporaries
  return int(float(amount[1]) * _UNITS[amount[2]]) + (0 if used else arguments)


def counted(text: str, config: Config, mesh: jax.sharding.Mesh) -> hlo_cost.HloProgram:
  """Counts operations, bytes and collectives of a step's HLO text on one device of the mesh."""
  paces = accelerators.PACES.get(mesh.devices.flat[0].device_kind)
  return hlo_cost.analyse(text, mesh.shape, unknown_trips=unknown_trips(config, mesh), paces=paces)


def attention_kernels(config: Config, mesh: jax.sharding.Mesh) -> dict[str, dispatch.Choice]:
  """Returns the kernel of each kind of attention, see `recipe.attention_kernels`."""
  with jax.set_mesh(mesh):
    return recipe.attention_kernels(config, recipe.batch(config))


def predicted(executed: hlo_cost.HloProgram, config: Config, mesh: jax.sharding.Mesh) -> roofline.Times | None:
  """Returns the predicted times of a config's compiled step; None for devices without published figures."""
  kind = mesh.devices.flat[0].device_kind
  chip, peak = accelerators.CHIPS.get(kind), accelerators.peak_flops(kind)
  if chip is None or peak is None:
    return None
  share = kernel_cycles.share(config, kind, attention_kernels(config, mesh))
  head_dim = min(config.model.of_stack(side).head_dim for side in config.model.kind.sides)
  return roofline.times(executed, chip, peak, mesh, head_dim=head_dim, kernel_share=share)


def unknown_trips(config: Config, mesh: jax.sharding.Mesh) -> float:
  """Returns the number of logits chunks with a loss; the loop over chunks ends early if few positions have a loss."""
  rows = config.train.batch_size // config.train.microbatches
  tokens = rows * list(recipe.lengths(config).values())[-1] // sharding.num_shards("tokens", mesh)
  chunks = -(-tokens // config.train.logits_chunk_tokens)
  return math.ceil(chunks * recipe.share_predicted(config))
