"""`t2t report`: writes a page on a run, or a comparison of several runs."""

import argparse

from t2t import UserError
from t2t.reports import comparison, single, sweep_page, written
from t2t.reports import run as runs
from t2t.storage import gcs

_DESCRIPTION = """\
Writes a page on a run: curves of all metrics, changes of its config, events and
hardware.  For several runs, it compares curves, configs and final numbers.  The
page is one file of less than 300 kB without scripts or network access.

RUN is a folder that `t2t train --workdir` wrote to, local or gs://, also during
training.  Every run writes RUN/report.html itself when it finishes or stops.
The folder of `t2t sweep` has a page, too: table, picture and links to the runs."""
_EXAMPLES = """\
examples:
  t2t report runs/tiny
  t2t report runs/small runs/large --over tokens --output compared.html"""


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t report",
    description=_DESCRIPTION,
    epilog=_EXAMPLES,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument("runs", metavar="RUN", nargs="+", help="workdir of a run")
  parser.add_argument(
    "--output",
    metavar="FILE",
    help=f"default: RUN/{written.NAME}; for several runs {written.NAME} in their common folder",
  )
  parser.add_argument(
    "--over",
    choices=tuple(comparison.AXES),
    help="horizontal axis for several runs: steps (default), predicted tokens, FLOPs, or time spent in steps",
  )
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def main(argv: list[str]) -> None:
  """Runs `t2t report`.

  Raises:
    UserError: a folder is not a run, or the page cannot be written.
  """
  options = _parser().parse_args(argv)
  if options.over and len(options.runs) == 1:
    raise UserError(
      f"--over {options.over} applies only to several runs. Leave out --over, or give more runs than {options.runs[0]}."
    )
  if options.output:
    gcs.check(options.output, where="--output ")
  rows = sweep_page.read(gcs.absolute(options.runs[0])) if len(options.runs) == 1 else []
  run_list = [] if rows else [runs.read(path) for path in options.runs]
  if rows:
    folder = gcs.absolute(options.runs[0])
    path, text = folder / written.NAME, sweep_page.html(folder.name, rows)
  elif len(run_list) == 1:
    path, text = run_list[0].path / written.NAME, single.html(run_list[0])
  else:
    text = comparison.html(run_list, over=options.over or "steps")
    folder = comparison.shared_folder(run_list)
    if not folder and not options.output:
      raise UserError("--output is missing, and the runs have no common folder. Give --output FILE.")
    path = gcs.absolute(folder) / written.NAME if folder else None
  path = gcs.absolute(options.output) if options.output else path
  try:
    if not gcs.is_remote(path) and path.is_dir():
      raise UserError(f"--output {path} is a folder. Give a file, for example {path / written.NAME}.")
    written.write(path, text)
  except OSError as error:
    raise UserError(f"--output {path} cannot be written ({error}). Give the path of a writable file.") from error
  print(path)
