"""Predicts memory and speed of a training step on a TPU slice, without the slice.

libtpu compiles the step of `t2t train`, including the optimizer, for the TPU on any machine; the report is computed
from the compiled program.  Without --topology the step is compiled for the local devices.
"""

import argparse
import json
import pathlib
import sys

from t2t import UserError, losses
from t2t.commands.options import config_parser, inherited, parse
from t2t.configuration import stages
from t2t.configuration.loading import records
from t2t.configuration.schema import Config
from t2t.planning import aot_compile, tpu_types
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
  parser.add_argument(
    "--topology", help="TPU slice to compile for: v5e-16 or v5e:4x4, v5p:8x8x16, ...; default: local devices"
  )
  parser.add_argument(
    "--slices", type=numeric.integer(1), default=1, help="number of slices, connected by the data-center network"
  )
  parser.add_argument(
    "--search",
    action="store_true",
    help="compare meshes, their physical layouts, remat, microbatches and batch sizes, and rank them",
  )
  parser.add_argument(
    "--max_compiles",
    type=numeric.integer(1),
    default=12,
    help="limit of --search; a compilation takes up to two minutes",
  )
  parser.add_argument(
    "--budget",
    type=numeric.number(0, above=True),
    help="time limit of --search in seconds; the current compilation finishes first",
  )
  parser.add_argument(
    "--tokens", type=numeric.number(0, above=True), help="print the hours and chip-hours for this number of tokens"
  )
  parser.add_argument(
    "--price", type=numeric.number(0, above=True), help="price of a chip-hour: prints the cost of --tokens"
  )
  parser.add_argument("--hlo", help="file for the compiled program")
  parser.add_argument(
    "--json",
    action="store_true",
    help=(
      "print one JSON object on the last line: parameters, memory_per_chip (bytes: arguments, temporaries, total, "
      "capacity), fits, flops_per_step, collective_bytes (kind: axes: bytes sent per chip), host_bytes_per_step, "
      "save_host_bytes (host memory of a save), "
      "predicted_step_seconds, predicted_mfu, tokens_per_second, and the other numbers of the report"
    ),
  )
  return parser


def main(argv: list[str]) -> None:
  """Runs `t2t plan`."""
  parser = _parser()
  options, config = parse(parser, argv)
  if options.price is not None and options.tokens is None:
    raise UserError(f"--price {options.price:g} needs the number of tokens. Give --tokens N.")
  options.topology = options.topology and tpu_types.topology(options.topology)
  if options.slices > 1 and config.mesh.dcn_data == 1:
    config.mesh.dcn_data = options.slices  # the only possible mesh
  run = _stages(_with_teachers(records(inherited(config, parser, argv))))
  for stage in run:
    recipe.check_positive(stage.config)
    recipe.check_positions(stage.config)
  if options.hlo:
    _check_writable(options.hlo)
  largest = recipe.largest(run)
  if options.search:
    if largest.name:
      print(f"{largest.described}, which has the most tokens in a batch:", file=sys.stderr)
    from t2t.planning import autotune

    autotune.search(largest.config, options)
    return
  if options.topology:
    # Check what needs no compiler before libtpu is loaded.
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
    print("\ncompiled with the XLA flags of `t2t train` (t2t/runtime/xla_flags.py):", file=sys.stderr)
    print("\n".join(f"  --{name}={value}" for name, value in flags.items()), file=sys.stderr)
  if options.json:
    print(json.dumps(_of_all(plans)))


def _with_teachers(config: Config) -> Config:
  """Returns the config with the models of its teachers; other configs unchanged."""
  if not losses.has_teacher(config):
    return config
  from t2t.checkpoints import teachers  # few runs have teachers

  return teachers.resolved(config)


def _stages(config: Config) -> tuple[stages.Stage, ...]:
  """Returns the stages of a run, with values that depend on the data."""
  run_stages = stages.of(config)
  if any(recipe.asks_data(stage.config) for stage in run_stages):
    from t2t.data import train_data  # imports TensorFlow

    run_stages = train_data.resolved_stages(config)
  return run_stages


def _check_writable(path: str) -> None:
  """Raises an error early if the file of `--hlo` cannot be written."""
  file = pathlib.Path(path)
  is_new = not file.exists()
  try:
    file.open("a").close()
  except OSError as error:
    raise UserError(f"--hlo {path} cannot be written ({error.strerror}). Give the path of a writable file.") from error
  if is_new:
    file.unlink()


def _hlo(path: str | None, stage: stages.Stage) -> str | None:
  """Returns the program file of a stage: step.long.txt for step.txt."""
  program_path = pathlib.Path(path or "")
  return str(program_path.with_suffix(f".{stage.name}{program_path.suffix}")) if path and stage.name else path


def _of_all(plans: list[plan_lib.Plan]) -> plan_lib.Plan:
  """Returns the output of --json: the plan of the stage with the largest memory, and the list of plans if there are
  several.
  """
  most = max(plans, key=lambda plan: plan["memory_per_chip"]["total"])
  return most | ({"stages": plans} if len(plans) > 1 else {})
