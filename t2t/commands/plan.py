"""Whether a training step fits a TPU slice, and how fast it may be, before the slice is paid for.

The step that `t2t train` runs, optimizer included, is compiled for the TPU by libtpu, on any machine; what is reported
is read off that program.  Without --topology it is compiled for the devices that are here.
"""

import argparse
import json
import pathlib
import sys

from t2t import UserError
from t2t.commands.options import config_parser, inherited, parse
from t2t.configuration import stages
from t2t.configuration.loading import records
from t2t.configuration.schema import Config
from t2t.planning import aot_compile, autotune, tpu_types
from t2t.planning import plan as plan_lib
from t2t.runtime import numeric, xla_flags
from t2t.training import mesh_selection, recipe

_EPILOG = """\
examples:
  t2t plan --config t5_1_1_xxl --topology v5e:16x16 \\
    --config.mesh.fsdp=32 --config.mesh.tensor=8
  t2t plan --config t5_1_1_xxl --topology v5p:8x8x16 --search \\
    --tokens 1e12 --price 4.2
"""


def _parser() -> argparse.ArgumentParser:
  parser = config_parser("t2t plan", __doc__, epilog=_EPILOG)
  parser.add_argument("--topology", help="TPU slice to compile for: v5e-16 or v5e:4x4, v5p:8x8x16, ...; without: here")
  parser.add_argument(
    "--slices", type=numeric.integer(1), default=1, help="so many such slices, connected by the network"
  )
  parser.add_argument(
    "--search", action="store_true", help="try meshes, their orders, remat, microbatches and batches; rank them"
  )
  parser.add_argument(
    "--max_compiles", type=numeric.integer(1), default=12, help="of --search; each takes up to a minute or two"
  )
  parser.add_argument(
    "--budget",
    type=numeric.number(0, above=True),
    help="seconds that --search may take; it ends after the compile in hand",
  )
  parser.add_argument(
    "--tokens", type=numeric.number(0, above=True), help="says the hours and chip-hours of so many tokens"
  )
  parser.add_argument("--price", type=numeric.number(0, above=True), help="of a chip-hour: says the cost of --tokens")
  parser.add_argument("--hlo", help="write the compiled program to this file")
  parser.add_argument(
    "--json",
    action="store_true",
    help="print one JSON object on the last line: parameters, memory_per_chip (bytes: arguments, temporaries, total,"
    " capacity), fits, flops_per_step, collective_bytes (kind: axes: bytes that a chip sends), host_bytes_per_step,"
    " predicted_step_seconds, predicted_mfu, tokens_per_second, and what else the report shows",
  )
  return parser


def main(argv: list[str]) -> None:
  """The command."""
  parser = _parser()
  options, config = parse(parser, argv)
  if options.price is not None and options.tokens is None:
    raise UserError(f"--price {options.price:g}: needs --tokens, which it is the price of")
  options.topology = options.topology and tpu_types.topology(options.topology)
  if options.slices > 1 and config.mesh.dcn_data == 1:
    config.mesh.dcn_data = options.slices  # the one mesh that there is for them
  run = _stages(records(inherited(config, parser, argv)))
  for stage in run:
    recipe.check_positive(stage.config)
    recipe.check_positions(stage.config)
  if options.hlo:
    _check_writable(options.hlo)
  largest = recipe.largest(run)
  if options.search:
    if largest.name:
      print(f"{largest.described}, which has the most tokens in a batch:", file=sys.stderr)
    autotune.search(largest.config, options)
    return
  if options.topology:
    # What needs no compiler is said before one is asked for.
    mesh_selection.choose(largest.config, aot_compile.num_devices(options.topology, slices=options.slices))
  devices, where = plan_lib.find_devices(options.topology, slices=options.slices)

  plans = []
  for stage in mesh_selection.on_one(run, devices):
    label = f"{options.config}, stage {stage.name}," if stage.name else options.config

    def compute(config: Config = stage.config, label: str = label, hlo: str | None = _hlo(options.hlo, stage)):
      with plan_lib.working(f"compiling {label} for {where}"):
        return plan_lib.make_plan(config, devices, hlo=hlo)

    plan = compute() if options.hlo else plan_lib.cached(plan_lib.cache_path(stage.config, where), compute)
    plan = {"config": options.config, "topology": options.topology, "slices": options.slices} | plan
    plan = plan_lib.with_budget(plan, options.tokens, options.price)
    if stage.name:
      print(f"{stage.described}: {stage.changes}\n")
      plan |= {"stage": stage.name, "steps": stage.end - stage.begin}
    print(plan_lib.report(plan) + ("\n" if stage.name else ""))
    plans.append(plan)
  if len(plans) > 1:
    print(plan_lib.sum_of_stages(plans))
  flags = xla_flags.as_options(devices[0].platform) if largest.config.train.xla_flags else {}
  if flags:
    print("\ncompiled with flags of XLA that `t2t train` sets (t2t/runtime/xla_flags.py):", file=sys.stderr)
    print("\n".join(f"  --{name}={value}" for name, value in flags.items()), file=sys.stderr)
  if options.json:
    print(json.dumps(_of_all(plans)))


def _stages(config: Config) -> tuple[stages.Stage, ...]:
  """Those of a run, with what only its data say."""
  run_stages = stages.of(config)
  if any(recipe.asks_data(stage.config) for stage in run_stages):
    from t2t.data import train_data  # and TensorFlow with it

    run_stages = train_data.resolved_stages(config)
  return run_stages


def _check_writable(path: str) -> None:
  """Refuses a file of `--hlo` that cannot be written, before minutes are spent on what it is for."""
  file = pathlib.Path(path)
  is_new = not file.exists()
  try:
    file.open("a").close()
  except OSError as error:
    raise UserError(f"--hlo {path}: cannot be written ({error.strerror})") from error
  if is_new:
    file.unlink()


def _hlo(path: str | None, stage: stages.Stage) -> str | None:
  """The file of a stage's program: step.long.txt of step.txt."""
  program_path = pathlib.Path(path or "")
  return str(program_path.with_suffix(f".{stage.name}{program_path.suffix}")) if path and stage.name else path


def _of_all(plans: list[plan_lib.Plan]) -> plan_lib.Plan:
  """What --json prints: the plan of the stage that needs most memory, and of several all, in order."""
  most = max(plans, key=lambda plan: plan["memory_per_chip"]["total"])
  return most | ({"stages": plans} if len(plans) > 1 else {})
