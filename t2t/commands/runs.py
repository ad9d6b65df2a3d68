"""`t2t runs`: lists the runs in a folder, newest first."""

import argparse
import datetime
import json
from typing import Any

import rich.box
import rich.console
import rich.table

from t2t import UserError
from t2t.reports import run as runs
from t2t.runtime import amounts, console
from t2t.storage import gcs

_DESCRIPTION = """\
Lists the runs in a folder and two levels below it, newest first: step, last
losses, time of the last metrics, and whether the run is running, finished or
stopped.  A run in a bucket with a locked workdir is "held": it may be running
or dead.  A "model" is a checkpoint that t2t prune or t2t convert wrote."""
_EXAMPLES = """\
examples:
  t2t runs
  t2t runs gs://BUCKET/experiments --json"""
_DEFAULT, _WIDTH, _WIDEST_CONFIG, _NARROWEST = "runs", 80, 24, 12

_COLUMNS = ("run", "config", "step", "train", "held out", "written", "state")


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t runs",
    description=_DESCRIPTION,
    epilog=_EXAMPLES,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument("dir", metavar="DIR", nargs="?", default=_DEFAULT, help=f"local or gs://; default: {_DEFAULT}")
  parser.add_argument("--json", action="store_true", help="print the runs as a JSON list")
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def main(argv: list[str]) -> None:
  """Runs `t2t runs`.

  Raises:
    UserError: no runs are found.
  """
  options = _parser().parse_args(argv)
  gcs.check(options.dir, where="")
  root = gcs.absolute(options.dir)
  run_list, unread = [], False
  for folder in runs.find(root):
    try:
      run_list.append(runs.read(str(folder)))
    except UserError as error:  # list the other runs
      console.tell(str(error))
      unread = True
  if not run_list and not unread:
    why = "no such folder"
    if gcs.is_remote(root) or root.is_dir():
      why = f"no runs, because neither this folder nor two levels of folders below contain {runs.METRICS}"
    raise UserError(f"{options.dir}: {why}. Give the parent folder of the --workdir of `t2t train`.")
  never = datetime.datetime.min.replace(tzinfo=datetime.UTC)
  run_list.sort(key=lambda run: run.written or never, reverse=True)
  below = lambda run: str(run.path).removeprefix(str(root)).lstrip("/") or run.name
  if options.json:
    print(json.dumps([_told(run) | {"run": below(run)} for run in run_list], indent=1))
    return
  screen = rich.console.Console(highlight=False, markup=False)
  screen.width = min(screen.width, _WIDTH) if screen.is_terminal else _WIDTH
  rows = [(below(run), *_cells(run)) for run in run_list]
  widths = [max(map(len, cells)) for cells in zip(_COLUMNS, *rows, strict=True)]
  # rich would cut the last column, so all columns but the run have fixed widths. Short config names stay on one line.
  room = screen.width - sum(widths[2:]) - (len(widths) + 1)
  config_width = min(widths[1], _WIDEST_CONFIG, max(room - min(widths[0], _NARROWEST), len("config")))
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=0)
  table.add_column("run", overflow="fold", width=max(min(widths[0], room - config_width), 1))
  table.add_column("config", overflow="fold", width=config_width)
  for name, width in zip(_COLUMNS[2:], widths[2:], strict=True):
    table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True, width=width)
  for row in rows:
    table.add_row(*row)
  screen.print(table)


def _cells(run: runs.RecordedRun) -> tuple[str, ...]:
  """Returns the texts of `_COLUMNS[1:]`."""
  losses = (run.last(name) for name in ("train/loss", "eval/loss"))
  # The config of a model without a run plans steps of another run.
  steps = (run.step, None if run.state == runs.MODEL else run.steps)
  now = datetime.datetime.now(datetime.UTC)
  return (
    run.config_name,
    "/".join(amounts.compact_count(number) for number in steps if number is not None),
    *("" if loss is None else f"{loss:.4f}" for loss in losses),
    "" if run.written is None else _ago((now - run.written).total_seconds()),
    run.state,
  )


def _told(run: runs.RecordedRun) -> dict[str, Any]:
  return {
    "path": str(run.path),
    "config": run.config_name,
    "step": run.step,
    "steps": run.steps,
    "train_loss": run.last("train/loss"),
    "eval_loss": run.last("eval/loss"),
    "written": None if run.written is None else run.written.isoformat(timespec="seconds"),
    "state": run.state,
  }


def _ago(seconds: float) -> str:
  """Formats a duration as '3 min ago', in the largest unit that fits."""
  for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
    if seconds >= size:
      return f"{seconds / size:.0f} {unit} ago"
  return f"{max(seconds, 0):.0f} s ago"
