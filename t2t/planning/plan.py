"""Predicts whether a training step fits a TPU slice, and how fast it is, before paying for the slice.

libtpu compiles the step of `t2t train`, optimizer included, for the TPU on any machine. The report is derived from that
program. Without --topology the step is compiled for the attached devices.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import math
import os
import pathlib
import sys
import textwrap
import time
from typing import Any

import jax
import rich.console

from t2t import UserError, accelerators, losses, sharding
from t2t.configuration.schema import Config
from t2t.models.config import TransformerConfig
from t2t.models.kernels import dispatch
from t2t.planning import aot_compile, roofline
from t2t.runtime import amounts, cache_folder
from t2t.training import mesh_selection, recipe

Plan = dict[str, Any]


# ---- One plan --------------------------------------------------------------------------------------------------------


def make_plan(config: Config, devices: list[jax.Device], *, hlo: str | None = None) -> Plan:
  """Compiles the step of `config` for `devices` and returns its memory and predicted time.

  Args:
    config: see configs/default.py; its mesh must fit the devices.
    devices: attached devices, or devices of a topology.
    hlo: path of a file for the HLO text.

  Returns:
    The fields that `--json` prints (see `t2t plan --help`); bytes and FLOP/s per device, None for unknown values.

  Raises:
    UserError: see `aot_compile.compile_step`.
  """
  mesh, why = mesh_selection.make(config, devices=devices)
  chosen = aot_compile.attention_kernels(config, mesh)
  compiled = aot_compile.compile_step(config, mesh)
  kind = devices[0].device_kind
  chip = accelerators.CHIPS.get(kind)
  capacity = _capacity(devices[0], chip)
  lengths = recipe.lengths(config)
  model = config.model
  tokens = config.train.batch_size * sum(lengths.values())
  flops = recipe.make(config).flops(predicted=recipe.share_predicted(config))
  schedule = recipe.pipeline_schedule(config, mesh)
  memory = {**compiled.parts, "arguments": compiled.arguments, "temporaries": compiled.temporaries}
  memory |= {"activations": None, "total": compiled.total, "capacity": capacity}
  fits = None if capacity is None else compiled.total <= capacity
  plan: Plan = {
    "device": f"{len(devices)} x {kind}",
    "chips": len(devices) // (chip.per_chip if chip else 1),
    "mesh": dict(mesh.shape),
    "mesh_chosen": why,
    "batch_size": config.train.batch_size,
    "microbatches": config.train.microbatches,
    "takes_microbatches": losses.LOSSES[config.train.loss or "cross_entropy"].supports_microbatching,
    "pipeline": None if schedule is None else {**dataclasses.asdict(schedule), "bubble": schedule.bubble},
    "remat": config.model.remat,
    "quantization": config.model.quantization,
    "attention": {part: str(choice) for part, choice in chosen.items()},
    "optimizer": config.optimizer.name,
    "lengths": lengths,
    "rows_at_a_time": config.train.batch_size // sharding.num_shards("batch", mesh) // config.train.microbatches,
    "parameters": compiled.parameters,
    "save_host_bytes": compiled.save,
    "active_parameters": compiled.parameters - round(_idle_parameters(model)),
    "memory_per_chip": memory,
    "fits": fits,
    "tokens_per_step": tokens,
    "flops_per_step": flops,
    "flops_per_token": flops / tokens,
    "executed_flops_per_step": None,
    "bytes_per_step": None,
    "host_bytes_per_step": None,
    "collective_bytes": None,
    "seconds_at_peak": None,
    "predicted_step_seconds": None,
    "bound": None,
    "kernel_seconds": None,
    "predicted_mfu": None,
    "tokens_per_second": None,
    "compile_seconds": compiled.seconds,
  }
  if fits is False:
    plan["would_fit"] = would_fit(plan)
  if compiled.text is None:
    return plan
  if hlo:
    pathlib.Path(hlo).write_text(compiled.text)
  return plan | _running(config, mesh, compiled, plan)


def _running(config: Config, mesh: jax.sharding.Mesh, compiled: aot_compile.Compiled, plan: Plan) -> Plan:
  """Returns the plan's fields that depend on the compiled program."""
  kind = mesh.devices.flat[0].device_kind
  executed = aot_compile.counted(compiled.text, config, mesh)
  saved = min(executed.saved_bytes, compiled.temporaries)
  running: Plan = {
    # Layers that are not scanned fill no stacks, so their activations cannot be separated from other temporaries.
    "memory_per_chip": plan["memory_per_chip"] | {"activations": saved or None},
    "executed_flops_per_step": executed.flops * mesh.size,
    "bytes_per_step": executed.bytes,
    "host_bytes_per_step": executed.host_bytes,
    "collective_bytes": {
      kind: {roofline.name(axes): number for axes, number in by_axes.items()}
      for kind, by_axes in executed.sent().items()
    },
    "uncounted_kernels": list(executed.uncounted),
  }
  times = aot_compile.predicted(executed, config, mesh)
  if times is None:
    return running
  return running | {
    "kernel_seconds": times.kernels,
    "seconds_at_peak": {
      "compute": times.compute,
      "memory": times.memory,
      "host": times.host,
      "links": times.links,
    },
    "exposed_seconds": times.exposed,
    "waiting_seconds": times.waiting,
    "bound": times.bound,
    "predicted_step_seconds": times.predicted,
    "predicted_mfu": plan["flops_per_step"] / times.predicted / (accelerators.peak_flops(kind) * mesh.size),
    "tokens_per_second": plan["tokens_per_step"] / times.predicted,
  }


def _capacity(device: jax.Device, chip: accelerators.Chip | None) -> int | None:
  """Returns a device's memory for a program: from the table or the device, or a CPU device's share of the machine."""
  if chip is not None:
    return int(chip.hbm_bytes)
  if device.platform == "cpu":
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // jax.local_device_count()
  stats = device.memory_stats()
  return stats["bytes_limit"] if stats else None


def would_fit(plan: Plan) -> list[str]:
  """Returns changes of the config after which the step should fit; the last one has an unknown effect on activations.

  Args:
    plan: a plan with a total above its capacity.
  """
  memory, rows = plan["memory_per_chip"], plan["rows_at_a_time"]
  capacity, gradients = memory["capacity"], memory["parameters"]  # float32, sharded like the parameters
  state = memory["parameters"] + memory["optimizer"] + gradients
  changes = []
  if state > capacity:
    # It shrinks with the number of shards; the smallest power of two that leaves a third for activations.
    unsharded = 4 * plan["parameters"] / memory["parameters"] * state
    least = 2 ** math.ceil(math.log2(unsharded / (capacity * 2 / 3)))
    if least <= math.prod(plan["mesh"].values()):
      changes.append(f"split the parameters at least {least} ways: config.mesh.fsdp times config.mesh.tensor")
    else:
      changes.append(
        f"{least} chips or more: parameters, optimizer and gradients alone fill {unsharded / capacity:.0f}"
      )
    if plan["optimizer"] != "adafactor" and memory["optimizer"] > memory["parameters"] / 2:
      changes.append("--config.optimizer.name=adafactor: its state is little more than the parameters")
    return changes
  # Gradients stay, and with microbatches their accumulators; the rest is proportional to the rows per microbatch.
  sums = gradients if plan["takes_microbatches"] else 0
  activations, room = max(memory["temporaries"] - gradients, 0), capacity - memory["arguments"] - gradients - sums
  parts = next((n for n in range(2, rows + 1) if rows % n == 0 and activations / n <= room), None)
  if parts:
    at_once = f"{rows // parts} row{'s' if rows > parts else ''} of the batch at a time, not {rows}"
    if plan["takes_microbatches"]:
      changes.append(f"--config.train.microbatches={plan['microbatches'] * parts}: {at_once}")
    changes.append(f"--config.train.batch_size={plan['batch_size'] // parts}")
  else:
    changes.append("more chips, or a mesh with more tensor and less fsdp: one row of the batch does not fit a chip")
  if plan["remat"] != "full":
    changes.append("--config.model.remat=full: keeps one array per layer, computes a third more; may not suffice")
  return changes


# ---- Cache -----------------------------------------------------------------------------------------------------------


@functools.cache
def _version(distribution: str) -> str | None:
  try:
    return importlib.metadata.version(distribution)
  except importlib.metadata.PackageNotFoundError:
    return None


@functools.cache
def _sources() -> str:
  """Returns a hash of t2t's sources, which determine the program."""
  digest = hashlib.sha256()
  package = pathlib.Path(__file__).parents[1]
  for path in sorted(package.rglob("*.py")):
    if "data" not in path.relative_to(package).parts:
      digest.update(path.read_bytes())
  return digest.hexdigest()


def cache_path(config: Config, where: str) -> pathlib.Path:
  """Returns the cache path of a plan, which depends on the config, the devices, t2t and the compiler.

  Args:
    config: the whole config.
    where: name of the devices: topology and slices, or the attached devices.
  """
  versions = {name: _version(name) for name in ("jax", "jaxlib", "libtpu", "flax", "optax")}
  flags = {name: os.environ.get(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
  key = json.dumps([config.to_dict(), where, versions, flags, _sources()], sort_keys=True)
  return cache_folder.cache_dir() / "plans" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def cached(path: pathlib.Path, compute: Callable[[], Plan]) -> Plan:
  """Returns the plan at `path`, or computes and stores it."""
  with contextlib.suppress(OSError, ValueError):
    return json.loads(path.read_text())
  plan = compute()
  with contextlib.suppress(OSError):  # without a cache it is only slower
    cache_folder.write_atomically(path, json.dumps(plan).encode())
  return plan


# ---- Report ----------------------------------------------------------------------------------------------------------


def with_budget(plan: Plan, tokens: float | None, price: float | None) -> Plan:
  """Adds hours, chip-hours and cost of training on `tokens` to a plan; the currency is that of `price`."""
  if tokens is None or not plan["tokens_per_second"]:
    return plan
  hours = tokens / plan["tokens_per_second"] / 3600
  plan = plan | {"tokens": tokens, "hours": hours, "chip_hours": hours * plan["chips"]}
  return plan if price is None else plan | {"cost": price * plan["chip_hours"]}


def seconds(number: float) -> str:
  """Formats seconds: 1.234 s, 56.7 ms, 89.1 us."""
  if number >= 1:
    return f"{number:.3f} s"
  return f"{number * 1e3:.3g} ms" if number >= 1e-3 else f"{number * 1e6:.3g} us"


_bytes = functools.partial(amounts.nbytes, digits=4)  # four digits, because they matter for a nearly full chip


def report(plan: Plan) -> str:
  """Returns a plan as text, at most 80 columns wide."""
  memory = plan["memory_per_chip"]
  mesh = " x ".join(f"{axis} {size}" for axis, size in plan["mesh"].items() if size > 1) or "one device"
  sides = " + ".join(f"{length:,} {side}" for side, length in plan["lengths"].items())
  number, _, kind = plan["device"].partition(" x ")
  lines = [
    f"{number} x {accelerators.sold_as(kind)}, {mesh}",
    *textwrap.wrap(f"mesh: {plan['mesh_chosen']}" if plan["mesh_chosen"] else "", 80),
    f"{plan['parameters']:,} parameters{_active(plan)}, {plan['optimizer']}, remat {plan['remat']}"
    + (f", products in {plan['quantization']}" if plan["quantization"] else ""),
    f"batch {plan['batch_size']:,} x ({sides}) positions"
    + (f", in {plan['microbatches']} microbatches" if plan["microbatches"] > 1 else ""),
    *textwrap.wrap(_pipeline(plan["pipeline"]), 80),
    *textwrap.wrap(dispatch.described(plan["attention"]), 80),
    "",
    *_verdict(plan),
    "",
    "memory of one chip" if not plan["device"].endswith("TPU7x") else "memory of half a chip, which is one device",
  ]
  row = lambda label, value, note="": lines.append(f"  {label:<25}{value:>12}  {note}".rstrip())
  row("parameters", _bytes(memory["parameters"]))
  row("optimizer", _bytes(memory["optimizer"]))
  row("batch", _bytes(memory["batch"]))
  if memory["activations"] is not None:
    row("activations", _bytes(memory["activations"]), "kept by layers for the backward pass")
    row("other temporaries", _bytes(memory["temporaries"] - memory["activations"]), "gradients among them")
  else:
    row("temporaries", _bytes(memory["temporaries"]))
  share = f"of {_bytes(memory['capacity'])}" if memory["capacity"] else "of an unknown capacity"
  row("total", _bytes(memory["total"]), share)
  lines += ["", "memory of one host"]
  row("copy made by a save", _bytes(plan["save_host_bytes"]), "limit: checkpoint.host_memory_gb")
  if plan["collective_bytes"] is not None:
    lines += ["", *_work(plan)]
  return "\n".join(lines)


def _pipeline(schedule: dict[str, Any] | None) -> str:
  """Describes a pipeline; "" without stages."""
  if schedule is None:
    return ""
  rounds = f" in {schedule['rounds']} rounds" if schedule["rounds"] > 1 else ""
  return (
    f"pipeline: {schedule['microbatches']} microbatches pass {schedule['stages']} stages{rounds}; a bubble of "
    f"{schedule['bubble']:.0%} of the layers' time"
  )


def sum_of_stages(plans: Sequence[Plan]) -> str:
  """Returns a table of a run's stages with their steps, memory and time."""
  lines = [f"{'stage':<22}{'steps':>10}{'memory':>10}  {'fits':<8}{'step':>10}{'all of it':>14}"]
  hours = [
    plan["steps"] * plan["predicted_step_seconds"] / 3600 if plan["predicted_step_seconds"] else None for plan in plans
  ]
  for plan, stage_hours in zip(plans, hours, strict=True):
    fits = {True: "yes", False: "NO", None: "unknown"}[plan["fits"]]
    step = plan["predicted_step_seconds"]
    lines.append(
      f"{plan['stage'][:21]:<22}{plan['steps']:>10,}{_bytes(plan['memory_per_chip']['total']):>10}  {fits:<8}"
      + (f"{seconds(step):>10}{stage_hours:>12,.1f} h" if step else f"{'unknown':>10}").rstrip()
    )
  if None not in hours:
    chips = plans[0]["chips"]
    lines.append(f"together {sum(hours):,.1f} h, {chips * sum(hours):,.0f} chip-hours (a prediction)")
  return "\n".join(lines)


def _idle_parameters(model: TransformerConfig) -> float:
  """Returns the number of parameters that a token does not use, of experts."""
  num_layers = model.num_encoder_layers + model.num_decoder_layers
  num_layers = len(model.kind.sides) if model.share_layers else num_layers
  return num_layers * model.feed_forward_class.idle_parameters(model)


def _active(plan: Plan) -> str:
  active = plan["active_parameters"]
  return "" if active == plan["parameters"] else f" ({active:,} active)"


def _verdict(plan: Plan) -> list[str]:
  memory = plan["memory_per_chip"]
  if plan["fits"] is None:
    return ["unknown whether it fits: the memory of this device is unknown"]
  if plan["fits"]:
    free = memory["capacity"] - memory["total"]
    lines = [f"it fits, with {_bytes(free)} to spare ({free / memory['capacity']:.0%})"]
    if step := plan["predicted_step_seconds"]:
      lines.append(f"a step should take {seconds(step)}: {plan['tokens_per_second']:,.0f} tokens/s, a prediction")
    return lines
  lines = [f"it does NOT fit: {_bytes(memory['total'] - memory['capacity'])} too much for each chip"]
  lines.append("what should make it fit (arithmetic; --search compiles what it proposes):")
  for change in plan["would_fit"]:
    lines += textwrap.wrap(change, 80, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
  return lines


def _work(plan: Plan) -> list[str]:
  lines = ["one step"]
  row = lambda label, value, note="": lines.append(f"  {label:<25}{value:>12}  {note}".rstrip())
  row("tokens", f"{plan['tokens_per_step']:,}", "positions of inputs and targets")
  row(
    "model FLOPs",
    amounts.with_prefix(plan["flops_per_step"]),
    f"{amounts.with_prefix(plan['flops_per_token'])} per token",
  )
  row("", "", "6 x weights of matmuls, and attention")
  repeated = plan["executed_flops_per_step"] / plan["flops_per_step"]
  row(
    "executed FLOPs",
    amounts.with_prefix(plan["executed_flops_per_step"]),
    f"{repeated:.2f} x the model's, loops counted",
  )
  row("memory traffic, a chip", _bytes(plan["bytes_per_step"]), "estimate")
  if plan["host_bytes_per_step"]:
    row("to and from the host", _bytes(plan["host_bytes_per_step"]), "a chip")
  if plan["uncounted_kernels"]:
    row("not counted", "", ", ".join(plan["uncounted_kernels"]))
  if plan["collective_bytes"]:
    lines += ["", "sent by each chip"]
    for kind, by_axes in sorted(plan["collective_bytes"].items()):
      for axes, number in sorted(by_axes.items()):
        row(kind, _bytes(number), f"over {axes}")
  times = plan["seconds_at_peak"]
  if times is None:
    return [*lines, "", "no prediction: the peaks of this device are not in t2t/accelerators.py"]
  lines += ["", "time at the chip's published peaks"]
  row("compute", seconds(times["compute"]))
  row("memory", seconds(times["memory"]))
  if times["host"]:
    row("host", seconds(times["host"]))
  for axes, number in sorted(times["links"].items()):
    row(f"links, {axes}", seconds(number))
  lines += ["", "prediction (not a measurement; the rule is in t2t/planning/roofline.py)"]
  row("step", seconds(plan["predicted_step_seconds"]), f"{seconds(plan['exposed_seconds'])} of it waiting for links")
  row("longest part", plan["bound"], roofline.BOUNDS[plan["bound"]])
  row("MFU", f"{plan['predicted_mfu']:.1%}")
  row("tokens/s", f"{plan['tokens_per_second']:,.0f}", f"{plan['tokens_per_second'] / plan['chips']:,.0f} per chip")
  if "hours" in plan:
    row(
      f"{amounts.with_prefix(plan['tokens'])} tokens",
      f"{plan['hours']:,.1f} h",
      f"{plan['chip_hours']:,.0f} chip-hours",
    )
  if "cost" in plan:
    row("cost", f"{plan['cost']:,.0f}", "at the price given per chip-hour")
  return lines


# ---- Command ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
  """Shows progress on standard error: with a clock on a terminal, in two lines elsewhere."""
  console = rich.console.Console(stderr=True)
  started = time.monotonic()
  if not console.is_terminal:
    print(f"{text} ...", file=sys.stderr, flush=True)
    yield
    print(f"{text}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return
  with console.status(f"{text} (up to a minute or two)"):
    yield


def find_devices(topology: str | None, *, slices: int) -> tuple[list[jax.Device], str]:
  """Returns the devices to compile for, and their name."""
  if topology is None:
    if slices != 1:
      raise UserError(f"--slices {slices} needs --topology. Give for example --topology v5e:4x4.")
    devices = jax.devices()
    return devices, f"here: {len(devices)} x {devices[0].device_kind}"
  return list(aot_compile.devices(topology, slices=slices)), topology + (f" x {slices}" if slices > 1 else "")
