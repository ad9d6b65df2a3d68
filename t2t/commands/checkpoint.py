"""`t2t checkpoint`: lists, verifies, prunes and compares the checkpoints of runs."""

import argparse
from collections.abc import Sequence
import contextlib
import json
import math
import os
import sys
import textwrap
import time

from absl import logging
from etils import epath
import rich.box
import rich.console
import rich.table

from t2t import UserError
from t2t.checkpoints import inspect, manager, manifest, pretrained, restore, tensor_writer, verify, workdir_lock
from t2t.runtime import amounts, numeric, progress
from t2t.storage import gcs

_WIDEST = 120  # columns
_SHOWN = 20  # differences
_DESCRIPTION = """\
Lists, verifies, prunes and compares checkpoints.  DIR is a workdir that t2t
trained in, or its folder `checkpoints`; local or gs://."""
# Subcommand -> help text.
_ABOUT = {
  "list": (
    "Lists the steps: time, size, held-out loss, metrics at which a step is best, and whether it is intact (from "
    "small files and the sizes of all files)."
  ),
  "verify": (
    "Reads every file and compares it with the checksums of the save (in a bucket, with the checksums that the "
    "bucket stores), and checks the base model of an adapter; exit code 1 if a checkpoint is damaged or none is "
    "left."
  ),
  "prune": "Deletes all steps except the last --keep, the best by each metric, and the newest intact one.",
  "diff": (
    "Compares parameters and config keys of two checkpoints: newest steps of workdirs, or given steps, "
    "runs/a/checkpoints/500."
  ),
}
_EXAMPLES = """\
examples:
  t2t checkpoint list runs/tiny
  t2t checkpoint verify gs://BUCKET/t5_1_1_base
  t2t checkpoint prune runs/tiny --keep 2
  t2t checkpoint diff runs/tiny/checkpoints/500 runs/tiny"""


def _parser() -> argparse.ArgumentParser:
  form = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser(
    prog="t2t checkpoint", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=form, allow_abbrev=False
  )
  commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(_ABOUT))
  add = lambda name, text: commands.add_parser(
    name, help=text, description=textwrap.fill(text, 80), formatter_class=form, allow_abbrev=False
  )
  parsers = {name: add(name, text) for name, text in _ABOUT.items()}
  for name in ("list", "verify", "prune"):
    parsers[name].add_argument("dir", metavar="DIR", help="workdir that t2t trained in, local or gs://")
  parsers["verify"].add_argument("--step", type=int, metavar="N", help="verify only this step; default: all")
  parsers["prune"].add_argument(
    "--keep", type=numeric.integer(1), required=True, metavar="N", help="number of newest steps to keep"
  )
  parsers["prune"].add_argument("--yes", action="store_true", help="delete without confirmation")
  for name in ("a", "b"):
    parsers["diff"].add_argument(name, metavar=name.upper(), help="workdir, or WORKDIR/checkpoints/STEP")
  parsers["diff"].add_argument(
    "--all", action="store_true", help=f"print every parameter that differs, not only the {_SHOWN} most different"
  )
  for subparser in (parser, *parsers.values()):
    subparser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def main(argv: list[str]) -> int:
  """Runs `t2t checkpoint`; returns 1 if `verify` finds damage.

  Args:
    argv: arguments after `t2t checkpoint`.

  Raises:
    UserError: there are no checkpoints, or they cannot be read or deleted.
  """
  options = _parser().parse_args(argv)
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)  # Orbax warns about intended layouts
  return _COMMANDS[options.command](options)


def _console() -> rich.console.Console:
  console = rich.console.Console(highlight=False, markup=False)
  console.width = min(console.width, _WIDEST)
  return console


def _list(options: argparse.Namespace) -> int:
  folder = inspect.folder_of(options.dir)
  saved_steps, console = inspect.steps(folder), _console()
  best: dict[int, list[str]] = {}
  for of_stage in inspect.best(folder, saved_steps):
    for name, step in of_stage.items():
      best.setdefault(step, []).append(name)
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
  for name, justify in (("step", "right"), ("saved", "left"), ("size", "right"), ("loss", "right")):
    table.add_column(name, justify=justify, no_wrap=True)
  table.add_column("best by", overflow="fold")
  table.add_column("")
  for saved in saved_steps:
    state = "whole" if saved.noted else "no checksums"
    loss = saved.metrics.get("loss", math.nan)
    table.add_row(
      str(saved.step),
      "" if saved.saved is None else f"{saved.saved:%Y-%m-%d %H:%M}",
      amounts.nbytes(saved.size),
      "" if math.isnan(loss) else f"{loss:.4f}",
      " ".join(best.get(saved.step, ())),
      state if saved.whole else "DAMAGED",
    )
  console.print(f"{folder}", soft_wrap=True)
  console.print(table)
  for saved in saved_steps:
    for line in saved.faults:
      console.print(f"{saved.step}: {line}", soft_wrap=True)
  for line in _lost_bases(folder, [saved.step for saved in saved_steps]):
    console.print(line, soft_wrap=True)
  for name in inspect.set_aside(folder):
    console.print(f"{name}: set aside because it was damaged", soft_wrap=True)
  return 0


def _lost_bases(folder: epath.Path, steps: Sequence[int]) -> list[str]:
  """Returns one error message for each base model that no longer exists."""
  messages = {}
  for step in steps:
    try:
      if (base := restore.read_base(folder / str(step))) is not None:
        for base_part in base.all_bases:
          base_part.locate(folder.parent)
    except UserError as error:
      messages[str(error)] = None
  return list(messages)


def _verify(options: argparse.Namespace) -> int:
  folder = inspect.folder_of(options.dir)
  steps = verify.steps(folder)
  if options.step is not None:
    if options.step not in steps:
      there = (
        f"Give one of: {', '.join(map(str, steps))}"
        if steps
        else "Every step there was damaged and set aside; start the run again in another --workdir."
        if inspect.set_aside(folder)
        else "The folder contains no complete step."
      )
      raise UserError(f"--step {options.step}: no such checkpoint in {folder}. {there}")
    steps = [options.step]
  damaged, bases = [], {}
  for step in progress.track(steps, "reading checkpoints"):
    started, path = time.monotonic(), folder / str(step)
    faults = verify.of_step(path, step=step)
    seconds, size = time.monotonic() - started, amounts.nbytes(manifest.size(path))
    if faults and step not in verify.steps(folder):
      print(f"{step}: deleted during the check by a running job that no longer keeps it")
    elif faults:
      damaged.append(step)
      print(f"{step}: damaged ({size})")
      print("\n".join(f"  {line}" for line in faults))
    elif manifest.read(path) is None:
      print(f"{step}: no checksums, saved by an older t2t; all required files are there ({size}){_base(path, bases)}")
    else:
      print(f"{step}: whole ({size}, {seconds:.1f} s){_base(path, bases)}")
  lost = [why for why in bases.values() if why]
  for why in lost:
    print(why, file=sys.stderr)
  if damaged:
    print(
      f"{len(damaged)} of {len(steps)} steps are damaged; `t2t train` sets damaged steps aside and resumes from "
      "the newest intact step",
      file=sys.stderr,
    )
  aside = inspect.set_aside(folder)
  if not steps:
    print(
      f"{folder}: every step is damaged and set aside: {', '.join(aside)}. Start again in another --workdir.",
      file=sys.stderr,
    )
  return 1 if damaged or lost or not steps else 0


def _base(path: epath.Path, seen: dict[str, str]) -> str:
  """Returns a phrase that names the base models of a step.

  `seen` caches the error message of each base, or "" for an intact one.
  """
  base = restore.read_base(path)
  if base is None:
    return ""
  key = json.dumps(base.to_dict())
  if key not in seen:
    try:
      if (path / restore.FISHER).exists():  # a Fisher step has no base; only the model that it anchors is located
        base.locate(path.parent.parent)
      else:
        tensor_writer.of_base(pretrained.read_source(str(path), where=""))
      seen[key] = ""
    except UserError as error:
      seen[key] = str(error)
  return f", on top of {' and '.join(base_part.path for base_part in base.all_bases)}" + (
    ", without which the step cannot be read" if seen[key] else ""
  )


def _prune(options: argparse.Namespace) -> int:
  folder = inspect.folder_of(options.dir)
  with contextlib.ExitStack() as stack:
    if gcs.is_remote(folder):
      workdir = folder.parent if folder.name == manager.CHECKPOINTS else None
    else:  # the folder may be reached through symbolic links
      resolved = epath.Path(os.path.realpath(folder))
      workdir = resolved.parent if resolved.name == manager.CHECKPOINTS else None
    if workdir is not None:
      stack.enter_context(workdir_lock.held(workdir))  # no run writes there meanwhile
    superfluous = inspect.superfluous(folder, keep=options.keep)
    if not superfluous:
      print("nothing to delete: every step is among the last, the best, or the newest intact one")
      return 0
    size = amounts.nbytes(sum(saved.size for saved in superfluous))
    listing = f"{', '.join(str(saved.step) for saved in superfluous)} ({size})"
    if not options.yes and not _agreed(folder, listing):
      print("nothing was deleted")
      return 0
    for saved in superfluous:
      inspect.delete(folder, saved.step)
  print(f"deleted {listing}")
  return 0


def _agreed(folder: epath.Path, listing: str) -> bool:
  if not sys.stdin.isatty():
    raise UserError(
      f"{folder}: without a terminal, t2t cannot ask before deleting steps {listing}. Give --yes to delete these steps."
    )
  return input(f"{folder}: delete {listing}? [y/N] ").strip().lower() in ("y", "yes")


def _diff(options: argparse.Namespace) -> int:
  left, right = (restore.checkpoint_folder(path, where="") for path in (options.a, options.b))
  console, same, differences = _console(), 0, []
  for _, difference in inspect.parameters(left, right):
    same += difference is None
    differences += [] if difference is None else [difference]
  console.print(gcs.with_origins(f"A {left}\nB {right}"), soft_wrap=True)
  if differences:
    # Parameters of only one side come first, then the most different ones.
    most = lambda entry: -math.inf if entry.largest is None or math.isnan(entry.largest) else -entry.largest
    shown = sorted(differences, key=lambda entry: (most(entry), entry.name))[: None if options.all else _SHOWN]
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("parameter", overflow="fold")
    table.add_column("shape", overflow="fold")
    table.add_column("max |A - B|", justify="right", no_wrap=True)
    for entry in shown:
      a, b = ("absent" if shape is None else " x ".join(map(str, shape)) for shape in entry.shapes)
      table.add_row(entry.name, a if a == b else f"{a}, {b}", "" if entry.largest is None else f"{entry.largest:.3g}")
    console.print(table)
    if len(shown) < len(differences):
      console.print(f"and {len(differences) - len(shown)} more; --all shows them")
  console.print(f"{same} of {same + len(differences)} parameters are bit-identical")
  changes = inspect.configs(left, right)
  for key, (a, b) in changes.items():
    console.print(f"config.{key}: {a!r}, B has {b!r}", soft_wrap=True)
  if not changes:
    console.print("the configs are identical")
  return 0


_COMMANDS = {"list": _list, "verify": _verify, "prune": _prune, "diff": _diff}
