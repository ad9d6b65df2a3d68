"""Paths as Python code gives them: a str, or any os.PathLike such as pathlib.Path."""

import os
import re
from typing import Any

from t2t import UserError


def text(path: Any, *, called: str) -> str:
  """A path as a str.

  In:  pathlib.Path("gs://bucket/runs")
  Out: "gs://bucket/runs", of whose slashes pathlib keeps one

  Args:
    path: a str, bytes or os.PathLike.
    called: name of the argument, for messages.

  Raises:
    UserError: it is no path, or one of a storage that t2t does not read.
  """
  try:
    decoded = os.fsdecode(path)
  except TypeError:
    raise UserError(f"{called} is {type(path).__name__}: give a path, a str or a pathlib.Path") from None
  if (scheme := re.match(r"(s3|s3a|az|abfs|wasbs|hdfs):/", decoded)) is not None:
    raise UserError(f"{called} is {decoded}: {scheme[1]}:// is not read; copy it, and give a local path or gs://")
  return re.sub(r"^gs:/(?!/)", "gs://", decoded)
