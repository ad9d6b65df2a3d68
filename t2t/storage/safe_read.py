"""Small files that others wrote: read within bounds, from files alone, and never as more than data.

What a path names may be a pipe, on which opening waits for ever, or a device, whose bytes have no end; and what is to
be JSON may be gigabytes, or brackets within brackets.
"""

from collections.abc import Sequence
import json
import os
import stat
from typing import Any

from etils import epath

from t2t import UserError
from t2t.storage import gcs

MOST_JSON = 16 * 2**20  # bytes; the index of a model of 90,000 tensors has 9 MB, and made into objects a byte takes 20
_MOST = 256 * 2**20  # bytes of a vocabulary; Gemma's tokenizer.json has 33 MB


def is_file(path: epath.Path) -> bool:
  """Whether there is a file that has an end, by itself or through a link; of a bucket, whether it is there."""
  if "://" in str(path):
    return path.exists() and not path.is_dir()
  try:
    return stat.S_ISREG(os.stat(path).st_mode)
  except (OSError, ValueError):  # ValueError: a name with a NUL
    return False


def size(path: epath.Path) -> int:
  """Bytes of a file.

  Raises:
    UserError: it is not there, or a folder, a pipe or a device.
  """
  if not is_file(path):
    problem = "is no file but a folder, a pipe or a device" if path.exists() else "is not there"
    raise UserError(f"{path}: {problem}; copy or download it again")
  return epath.Path(path).stat().length


def read(path: epath.Path, *, most: int = _MOST) -> bytes:
  """All of a file.

  Raises:
    UserError: see `size`; or it has more than `most` bytes, or cannot be read.
  """
  num_bytes = size(path)
  if num_bytes > most:
    raise UserError(
      f"{path}: has {num_bytes:,} bytes, and such a file no more than {most:,}; copy or download it again"
    )
  try:
    return gcs.read(path)
  except OSError as error:
    raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def name_given_twice(pairs: Sequence[tuple[str, Any]]) -> str | None:
  """Returns the first name that a JSON object has twice, because readers differ in which value they take; or None."""
  names = [name for name, _ in pairs]
  return next((name for name in names if names.count(name) > 1), None) if len(dict(pairs)) < len(pairs) else None


def read_json(path: epath.Path, *, most: int = MOST_JSON) -> dict[str, Any]:
  """The JSON object that a file holds.

  Raises:
    UserError: see `read`; or it is no JSON, or no object.
  """
  return json_object(read(path, most=most), path)


def json_object(content: bytes, where: Any) -> dict[str, Any]:
  """The JSON object of these bytes.

  Raises:
    UserError: it is no JSON, one within another by the thousand, or no object.
  """
  try:
    parsed = json.loads(content)
  # ValueError: of what is no UTF-8, and of a number with thousands of digits, too.
  except (ValueError, RecursionError) as error:
    raise UserError(f"{where}: cannot be read as JSON ({error}); copy or download it again") from error
  if not isinstance(parsed, dict):
    raise UserError(f"{where}: holds no JSON object but {str(parsed)[:40]!r}; copy or download it again")
  return parsed
