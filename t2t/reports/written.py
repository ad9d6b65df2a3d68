"""Writes the report of a run to its workdir when the run ends or stops."""

import sys

from etils import epath
import jax

from t2t.reports import run as runs
from t2t.reports import single
from t2t.runtime import console
from t2t.storage import logs

NAME = "report.html"


def write(path: epath.Path, text: str) -> None:
  """Writes a page atomically, local or in a bucket.

  Raises:
    OSError: it cannot be written.
  """
  content = text.encode()
  logs.Log(path, keep=lambda _: content, content_type="text/html").close()


def at_end(workdir: epath.Path, *, ends: bool, prints: bool = True) -> None:
  """Writes the report at the end of a run, and prints its path; errors are only logged.

  Args:
    workdir: of the run; the first host writes.
    ends: whether the run has finished; its workdir is still locked.
    prints: whether to print the path.
  """
  if jax.process_index() != 0:
    return
  try:
    write(workdir / NAME, single.html(runs.read(str(workdir), state=runs.FINISHED if ends else runs.STOPPED)))
  except Exception as error:  # the run itself has succeeded
    console.tell(f"{workdir / NAME} could not be written ({error}); run `t2t report {workdir}` to try again")
    return
  if prints:
    console.tell(f"{'report':<15}{workdir / NAME}", file=sys.stdout)
