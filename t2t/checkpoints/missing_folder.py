"""The error on the path of a checkpoint that does not exist."""

import difflib
import os
import pathlib

from etils import epath

from t2t.storage import gcs


def problem(path: str, root: epath.Path) -> str:
  """Returns the problem with the nearest name that exists; "" if the folder exists.

    In:  "runs/tiny_brt/checkpoints/10" beside runs/tiny_bert/checkpoints/10
    Out: "the folder does not exist; did you mean runs/tiny_bert/checkpoints/10?"

  Args:
    path: the user's value, local or gs://.
    root: the same, absolute.
  """
  if gcs.is_remote(root):
    return "" if gcs.names(root, where=path) else "the folder does not exist"
  folder = pathlib.Path(root)
  if folder.exists():
    return ""
  missing = next(x for x in (*reversed(folder.parents), folder) if not x.exists())
  below = folder.relative_to(missing)
  try:
    siblings = [x.name for x in missing.parent.iterdir() if (x / below).is_dir()]
  except OSError:  # no right to list it
    siblings = []
  near = difflib.get_close_matches(missing.name, siblings, n=1)  # with their parents all names would be similar
  if not near:
    return "the folder does not exist"
  nearest = str(missing.parent / near[0] / below)
  return f"the folder does not exist; did you mean {nearest if os.path.isabs(path) else os.path.relpath(nearest)}?"
