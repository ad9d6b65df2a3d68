"""The name of the config that a checkpoint was trained with, for the commands that another command prints."""

import shlex

from t2t.reports import history
from t2t.storage import gcs


def quoted_name(path: str) -> str:
  """Returns the --config of the last run in a workdir, quoted for a shell; "CONFIG" if the workdir does not record it.

  Args:
    path: a workdir, or one of its checkpoints.
  """
  folder = gcs.absolute(path)
  folder = folder.parent.parent if folder.name.isdigit() else folder  # WORKDIR/checkpoints/STEP
  notes = history.read(folder) if history.NAME in gcs.names(folder, where="") else []
  return next((shlex.quote(note["config"]) for note in reversed(notes) if note.get("config")), "CONFIG")
