"""`t2t report`: a page on a run, or on several beside each other."""

import argparse

from t2t import UserError
from t2t.reports import comparison, single, written
from t2t.reports import run as runs
from t2t.storage import gcs

_DESCRIPTION = """\
Writes a page on a run: curves of all that was measured, what its config has
changed, what happened and on what it ran.  Of several runs, the same beside
each other: curves, configs, final numbers.  The page is one file of less than
300 kB, which needs no network and no script.

RUN is a folder that `t2t train --workdir` wrote to, local or gs://, also while
it trains.  Every run writes RUN/report.html itself, at its end and when it is
stopped."""
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
    help=f"default: RUN/{written.NAME}; of several runs {written.NAME} in the folder that they all lie in",
  )
  parser.add_argument(
    "--over",
    choices=tuple(comparison.AXES),
    help="what the curves of several runs are drawn over: steps (default), tokens that were predicted, FLOPs, or time"
    " that was spent in steps",
  )
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def main(argv: list[str]) -> None:
  """The command.

  Raises:
    UserError: a folder is no run, or the page cannot be written.
  """
  options = _parser().parse_args(argv)
  if options.over and len(options.runs) == 1:
    raise UserError(f"--over {options.over}: is of several runs, and {options.runs[0]} is one; leave it out")
  if options.output:
    gcs.check(options.output, where="--output ")
  run_list = [runs.read(path) for path in options.runs]
  if len(run_list) == 1:
    path, text = run_list[0].path / written.NAME, single.html(run_list[0])
  else:
    text = comparison.html(run_list, over=options.over or "steps")
    folder = comparison.shared_folder(run_list)
    if not folder and not options.output:
      raise UserError("the runs lie in no folder together; give --output FILE, where the page is to be written")
    path = gcs.absolute(folder) / written.NAME if folder else None
  path = gcs.absolute(options.output) if options.output else path
  try:
    if not gcs.is_remote(path) and path.is_dir():
      raise UserError(f"--output {path}: is a folder; give a file, as {path / written.NAME}")
    written.write(path, text)
  except OSError as error:
    raise UserError(f"--output {path}: cannot be written ({error}); give another") from error
  print(path)
