"""The report that every run leaves in its workdir, at its end and where it is stopped."""

import sys

from etils import epath
import jax

from t2t.reports import run as runs
from t2t.reports import single
from t2t.runtime import console
from t2t.storage import logs

NAME = "report.html"


def write(path: epath.Path, text: str) -> None:
  """Writes a page, local or in a bucket, whole or not at all.

  Raises:
    OSError: it cannot be written.
  """
  content = text.encode()
  logs.Log(path, keep=lambda _: content, content_type="text/html").close()


def at_end(workdir: epath.Path, *, ends: bool) -> None:
  """Writes the report of a run that has come to an end, and prints where; whatever goes wrong is told, and no more.

  Args:
    workdir: of the run; the first host writes.
    ends: whether the run itself has: it still holds its workdir.
  """
  if jax.process_index() != 0:
    return
  try:
    write(workdir / NAME, single.html(runs.read(str(workdir), state=runs.FINISHED if ends else runs.STOPPED)))
  except Exception as error:  # the run has done its work
    console.tell(f"{workdir / NAME}: could not be written ({error}); `t2t report {workdir}` tries again")
    return
  console.tell(f"{'report':<15}{workdir / NAME}", file=sys.stdout)
