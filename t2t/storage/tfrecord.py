"""Reads and writes TFRecord framing, used by data files and TensorBoard events, without TensorFlow.

A record is a uint64 length, the length's checksum, the data, and the data's checksum, all little-endian. Checksums are
CRC-32C, rotated and shifted by a constant.

Source: tensorflow/core/lib/io/record_writer.h.
"""

from collections.abc import Callable, Iterator
import struct
from typing import BinaryIO

import google_crc32c


def frame(data: bytes) -> bytes:
  """Returns `data` as a record."""
  length = struct.pack("<Q", len(data))
  return b"".join((length, _checksum(length), data, _checksum(data)))


_LARGEST = 2**30  # bytes; memory is allocated before reading


def read(file: BinaryIO, *, damaged: Callable[[bytes], bytes] | None = None) -> Iterator[bytes]:
  """Yields the data of each record in order.

  Args:
    file: at the first record.
    damaged: data of a record with a wrong checksum -> the data to yield; None to raise an error.

  Raises:
    ValueError: the file ends within a record, or a checksum is wrong.
  """
  while header := file.read(12):
    if len(header) < 12 or header[8:] != _checksum(header[:8]):
      raise ValueError("the file ends within a record" if len(header) < 12 else "a length's checksum is wrong")
    (length,) = struct.unpack("<Q", header[:8])
    if length > _LARGEST:
      raise ValueError(f"a record's length is {length:,} bytes, more than the maximum of {_LARGEST:,}")
    data, checksum = file.read(length), file.read(4)
    if len(data) < length or len(checksum) < 4:
      raise ValueError("the file ends within a record")
    if checksum == _checksum(data):
      yield data
    elif damaged is not None:
      yield damaged(data)
    else:
      raise ValueError("a record's checksum is wrong")


def salvage(content: bytes) -> tuple[list[bytes], list[bytes]]:
  """Returns the data of each whole record, and the bytes that belong to no record.

  A last record that was not completely written is in neither.
  """
  whole_records, damaged, at = [], [], 0
  while at < len(content):
    data = _record_at(content, at)
    if data is not None:
      whole_records.append(data)
      at += len(data) + 16
      continue
    # Searches for the next record, because the wrong length does not show its start.
    following = (offset for offset in range(at + 1, len(content) - 15) if _record_at(content, offset) is not None)
    end = next(following, None)
    if end is None and _ends_within(content[at:]):
      break
    end = len(content) if end is None else end
    damaged.append(content[at:end])
    at = end
  return whole_records, damaged


def _record_at(content: bytes, at: int) -> bytes | None:
  header = content[at : at + 12]
  if len(header) < 12 or header[8:] != _checksum(header[:8]):
    return None
  end = at + 12 + struct.unpack("<Q", header[:8])[0]
  data = content[at + 12 : end]
  return data if end + 4 <= len(content) and content[end : end + 4] == _checksum(data) else None


def _ends_within(tail: bytes) -> bool:
  if len(tail) < 12:
    return True
  return tail[8:12] == _checksum(tail[:8]) and len(tail) < 16 + struct.unpack("<Q", tail[:8])[0]


def _checksum(data: bytes) -> bytes:
  crc = google_crc32c.value(data)
  return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
