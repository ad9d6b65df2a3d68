"""Explains why a pattern of data files matches none."""

from collections.abc import Callable
import os

from etils import epath

from t2t.storage import gcs


def explained(pattern: str, *, where: str, has_kind: Callable[[str], bool]) -> str:
  """Returns the error message for a glob without a match: the nearest folder that exists, and its content.

  Args:
    pattern: local or in a bucket.
    where: name of the setting.
    has_kind: whether the name of a file has a supported ending.
  """
  path = epath.Path(pattern)
  remote = gcs.is_remote(pattern)
  if not remote and path.is_dir():
    endings = [name[name.index(".") :] for name in gcs.names(path, where=where) if has_kind(name)]
    example = path / f"*{max(endings, key=endings.count) if endings else '.txt'}"
    return f"{where}: {pattern} is a folder; give a glob of its files, for example '{example}'"
  folder = path.parent
  while any(character in str(folder) for character in "*?[{") or not (remote or folder.exists()):
    if folder == folder.parent:
      return f"{where}: no file matches {pattern}, and none of its folders exists; check the path"
    folder = folder.parent
  if not remote and not folder.is_dir():
    return f"{where}: no file matches {pattern}, because {folder} is a file, not a folder; correct the path"
  try:
    names = gcs.names(folder, where=where)
    # Buckets have no empty folders, and the root of a bucket always exists.
    while remote and not names and str(folder).count("/") > 2:
      folder = folder.parent
      names = gcs.names(folder, where=where)
  except OSError as error:
    return (
      f"{where}: no file matches {pattern}. The folder {os.path.join(folder, '')} cannot be listed ({error}). "
      "Check the folder."
    )
  names = sorted(names, key=lambda name: name.startswith("."))  # hidden files last
  listing = ", ".join(names[:6]) + (f", ... ({len(names)} in all)" if len(names) > 6 else "")
  return (
    f"{where}: no file matches {pattern}. The nearest folder that exists, {os.path.join(folder, '')}, contains "
    f"{listing or 'nothing'}. Check the pattern."
  )
