"""Reads ArrayRecord files, which grain and TensorFlow Datasets write, with Google's array_record library.

A record is a JSON object, a serialised tf.train.Example or the text itself.
"""

from collections.abc import Iterator
import contextlib
import os

import tensorflow as tf

from t2t import UserError
from t2t.data.sources import bad_records
from t2t.storage import gcs

_AT_ONCE = 256  # records per call


def records(path: str, *, where: str) -> Iterator[tuple[int, bytes]]:
  """Yields the records of a file, numbered from 1.

  Args:
    path: of a local file.
    where: configuration key of the file, for messages.

  Raises:
    UserError: the file cannot be read to its end, or is in a bucket, which the library does not read.
  """
  if gcs.is_remote(path):
    raise UserError(
      f"{where}: {path}: ArrayRecord files are read from disks only. Copy the files to a disk, or "
      "write them as TFRecord."
    )

  def read() -> Iterator[tuple[int, bytes]]:
    from array_record.python import array_record_module

    with open(path, "rb"):
      pass  # raises the system's error, for which the library has no message
    reader = array_record_module.ArrayRecordReader(path)
    try:
      number = reader.num_records()
      if not number and (size := os.path.getsize(path)):
        raise ValueError(f"no index of records in {size:,} bytes")
      for start in range(0, number, _AT_ONCE):
        yield from enumerate(reader.read(start, min(start + _AT_ONCE, number)), start + 1)
    except (RuntimeError, IndexError) as error:
      raise ValueError((str(error).splitlines() or [type(error).__name__])[0]) from error
    finally:
      with contextlib.suppress(RuntimeError):  # a damaged file raises its error again
        reader.close()

  return bad_records.numbered(read, path, unit="record", broken="truncated or corrupt ArrayRecord", where=where)


def kind(record: bytes) -> str:
  """Returns the kind of a record, a key of `text_files.KINDS`: "json", "tfrecord" for an Example, or "text"."""
  if record.lstrip().startswith(b"{"):
    return "json"
  # Each Example begins with the tag of its only field.
  if record.startswith(b"\n"):
    try:
      return "tfrecord" if tf.train.Example.FromString(record).features.feature else "text"
    except Exception:  # protobuf's DecodeError has moved between its versions
      return "text"
  return "text"
