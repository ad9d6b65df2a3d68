"""Normalizes paths from Python code: str or os.PathLike, such as pathlib.Path."""

import os
import re
from typing import Any

from t2t import UserError


def text(path: Any, *, called: str) -> str:
  """Returns a path as a str.

    In:  pathlib.Path("gs://bucket/runs"), of which pathlib keeps one slash
    Out: "gs://bucket/runs"

  Args:
    path: a str, bytes or os.PathLike.
    called: name of the argument, for messages.

  Raises:
    UserError: it is not a path, or its storage is not supported.
  """
  try:
    decoded = os.fsdecode(path)
  except TypeError:
    raise UserError(f"{called} is {type(path).__name__}, not a path. Give a str or a pathlib.Path.") from None
  if (scheme := re.match(r"(s3a|abfss?|wasbs?|hdfs):/", decoded)) is not None:
    raise UserError(
      f"{called} is {decoded}: {scheme[1]}:// is not supported. Give a local path, or one of gs://, hf://, s3:// or az://."
    )
  return re.sub(r"^(gs|hf|s3|az):/(?!/)", r"\1://", decoded)
