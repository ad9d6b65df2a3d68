"""`t2t adapt`: post-training operations on adapters."""

import argparse
import shlex
import textwrap

from absl import logging
import jax

from t2t import UserError
from t2t.checkpoints import merge_adapters
from t2t.convert import atomic_output
from t2t.storage import gcs

_EXAMPLES = """\
examples:
  t2t adapt merge runs/lora --output runs/merged
  t2t adapt merge runs/lora --step 500 --output gs://BUCKET/merged"""


def _parser() -> argparse.ArgumentParser:
  form = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser(
    prog="t2t adapt",
    description="Post-training operations on adapters.",
    epilog=_EXAMPLES,
    formatter_class=form,
    allow_abbrev=False,
  )
  commands = parser.add_subparsers(dest="command", required=True, metavar="merge")
  text = (
    "Merges the adapter of a run into its base model and writes a checkpoint without an adapter, which every "
    "command reads. Works parameter by parameter: memory holds only the largest one."
  )
  merge = commands.add_parser(
    "merge", help=text, description=textwrap.fill(text, 80), formatter_class=form, allow_abbrev=False
  )
  merge.add_argument("run", metavar="RUN", help="workdir in which the adapter was trained, local or gs://")
  merge.add_argument("--output", required=True, metavar="DIR", help="folder to create")
  merge.add_argument("--step", type=int, metavar="N", help="checkpoint step of the run; default: the newest")
  for subparser in (parser, merge):
    subparser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def main(argv: list[str]) -> None:
  """Runs `t2t adapt`.

  Args:
    argv: arguments after `t2t adapt`.

  Raises:
    UserError: see `merge_adapters`.
  """
  options = _parser().parse_args(argv)
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  # The merge computes only small products, and a run on this machine may hold its accelerators.
  jax.config.update("jax_platforms", "cpu")
  _COMMANDS[options.command](options)


def _merge(options: argparse.Namespace) -> None:
  gcs.check(options.run, where="")
  gcs.check(options.output, where="--output ")
  atomic_output.check(gcs.absolute(options.output), 0)
  source, foreign = merge_adapters.open_merged(_step_of(options.run, options.step))
  with atomic_output.progress(
    sum(tensor.nbytes for tensor in foreign.tensors.values()), len(foreign.tensors)
  ) as advance:
    merge_adapters.save(source, foreign, options.output, advance=advance)
  names = ", ".join(f"config.{name}" for name in source.adapters)
  print(f"{options.output}  {names} of {source.name}, merged: a model without an adapter")
  for note in foreign.notes:
    print(f"  {note}")
  print(f"  try: t2t convert --from t2t {shlex.quote(options.output)} --to hf FOLDER")


def _step_of(run: str, step: int | None) -> str:
  """Returns the path of a run's step; without a step, the run itself, for its newest step."""
  if step is None:
    return run
  folder = gcs.absolute(run) / "checkpoints"
  steps = sorted(int(name) for name in gcs.names(folder, where="") if name.isdigit())
  if step not in steps:
    if not steps:
      raise UserError(f"--step {step}: {folder} contains no checkpoints. Give a run that saved checkpoints.")
    raise UserError(f"--step {step}: {run} has no such checkpoint. Give one of: {', '.join(map(str, steps))}")
  return str(folder / str(step))


_COMMANDS = {"merge": _merge}
