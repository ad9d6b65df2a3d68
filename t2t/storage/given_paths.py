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
    UserError: it is no path.
  """
  try:
    found = os.fsdecode(path)
  except TypeError:
    raise UserError(f"{called} is {type(path).__name__}: give a path, a str or a pathlib.Path") from None
  return re.sub(r"^gs:/(?!/)", "gs://", found)
