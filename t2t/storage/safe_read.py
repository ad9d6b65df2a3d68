"""Reads small untrusted files: regular files only, with a size limit, and never executed.

A path may be a pipe, on which opening blocks forever, or an endless device. A JSON file may have gigabytes, or extreme
nesting.
"""

from collections.abc import Sequence
import json
import os
import stat
from typing import Any

from etils import epath

from t2t import UserError
from t2t.storage import encoding, gcs

COPY_AGAIN = "Copy or download the file again."  # remedy for a damaged file
# bytes; the index of a model of 90,000 tensors has 9 MB, and Python objects take 20 times the size
MOST_JSON = 16 * 2**20
_MOST = 256 * 2**20  # bytes of a vocabulary; Gemma's tokenizer.json has 33 MB


def is_file(path: epath.Path) -> bool:
  """Returns True for a regular file, also through a link, and for an existing object in a bucket."""
  if "://" in str(path):
    return path.exists() and not path.is_dir()
  try:
    return stat.S_ISREG(os.stat(path).st_mode)
  except (OSError, ValueError):  # ValueError: a name with a NUL
    return False


def size(path: epath.Path) -> int:
  """Returns the size of a file in bytes.

  Raises:
    UserError: it does not exist, or is a folder, a pipe or a device.
  """
  if not is_file(path):
    problem = "is not a file but a folder, a pipe or a device" if path.exists() else "does not exist"
    raise UserError(f"{path} {problem}. {COPY_AGAIN}")
  return epath.Path(path).stat().length


def read(path: epath.Path, *, most: int = _MOST) -> bytes:
  """Returns the content of a file.

  Raises:
    UserError: see `size`; or it has more than `most` bytes, or cannot be read.
  """
  num_bytes = size(path)
  if num_bytes > most:
    raise UserError(f"{path} has {num_bytes:,} bytes, more than the maximum of {most:,} for such a file. {COPY_AGAIN}")
  try:
    return gcs.read(path)
  except OSError as error:
    raise UserError(
      f"{path} cannot be read ({error.strerror or error}). Check the file and its permissions."
    ) from error


def read_text(path: epath.Path, *, where: str) -> str:
  """Returns the text of a UTF-8 file of a user, without a byte order mark.

  Args:
    path: local or in a bucket.
    where: option or key with the path, for messages.

  Raises:
    UserError: it cannot be read, or is not UTF-8.
  """
  try:
    return gcs.read(path).decode("utf-8-sig")
  except UnicodeDecodeError as error:
    raise UserError(f"{where}: {encoding.not_utf8(error.object, error, unit='file')}") from error
  except OSError as error:
    raise UserError(f"{where} cannot be read ({error.strerror or error}). Check path and permissions.") from error


def name_given_twice(pairs: Sequence[tuple[str, Any]]) -> str | None:
  """Returns the first name that a JSON object has twice, or None; readers differ in which value they take."""
  names = [name for name, _ in pairs]
  return next((name for name in names if names.count(name) > 1), None) if len(dict(pairs)) < len(pairs) else None


def read_json(path: epath.Path, *, most: int = MOST_JSON) -> dict[str, Any]:
  """Returns the JSON object in a file.

  Raises:
    UserError: see `read`; or it is not JSON, or not an object.
  """
  return json_object(read(path, most=most), path)


def json_object(content: bytes, where: Any) -> dict[str, Any]:
  """Parses a JSON object.

  Raises:
    UserError: not JSON, nested too deeply, or not an object.
  """
  try:
    parsed = json.loads(content)
  # ValueError also for invalid UTF-8, and for numbers with thousands of digits.
  except (ValueError, RecursionError) as error:
    raise UserError(f"{where} cannot be read as JSON ({error}). {COPY_AGAIN}") from error
  if not isinstance(parsed, dict):
    raise UserError(f"{where} is not a JSON object but {str(parsed)[:40]!r}. {COPY_AGAIN}")
  return parsed
