"""Decompresses gzip, bzip2, xz, Zstandard and Brotli files by their extension; other content is an error."""

import bz2
from collections.abc import Callable
import gzip
import io
import lzma
from typing import BinaryIO, NamedTuple
import zlib

import pyarrow as pa

from t2t import UserError
from t2t.storage import outage

_BLOCK = 2**20  # bytes per read


class Format(NamedTuple):
  """A compression format.

  Attributes:
    name: of the format.
    magic: the first bytes of every file of this format; Brotli has none.
    open: file of compressed bytes -> file of bytes.
    test: command that checks a file.
  """

  name: str
  magic: bytes
  open: Callable[[BinaryIO], io.RawIOBase]
  test: str


class DamagedArchive(EOFError):
  """A compressed file that is truncated or corrupt."""


class _RawStream(io.RawIOBase):
  """Reads from a decompressor of any library, and converts its errors about content to `DamagedArchive`."""

  def __init__(self, decompressed: BinaryIO):
    super().__init__()
    self._decompressed = decompressed

  def readable(self):
    return True

  def readinto(self, buffer):
    try:
      content = self._decompressed.read(len(buffer))
    except (OSError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
      if getattr(error, "errno", None) is not None or outage.reason(error):
        raise  # an error of the system or of the store, not of the content
      reason = (str(error).splitlines() or [type(error).__name__])[0]
      if "too much memory" in reason:
        reason = "it needs a window of more than 128 MiB. Decompress it with `zstd -d --long=31`"
      raise DamagedArchive(reason) from error
    buffer[: len(content)] = content
    return len(content)


def _arrow(file: BinaryIO, codec: str) -> io.RawIOBase:
  return _RawStream(pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec))


# File extension -> compression.
FORMATS = {
  ".gz": Format("gzip", b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file), "gzip -t"),
  ".bz2": Format("bzip2", b"BZh", lambda file: _RawStream(bz2.BZ2File(file)), "bzip2 -t"),
  ".xz": Format("xz", b"\xfd7zXZ\0", lambda file: _RawStream(lzma.LZMAFile(file)), "xz -t"),  # noqa: SIM115
  ".zst": Format("Zstandard", b"\x28\xb5\x2f\xfd", lambda file: _arrow(file, "zstd"), "zstd -t"),
  ".br": Format("Brotli", b"", lambda file: _arrow(file, "brotli"), "brotli -t"),
}
_SKIPPABLE = bytes(range(0x50, 0x60))  # first byte of a Zstandard frame without data, followed by 2a 4d 18
_HEAD = 10  # bytes that identify the format


def ending(path: str) -> str:
  """Returns the key of `FORMATS` that ends the path; "" if the file is not compressed."""
  return next((end for end in FORMATS if path.lower().endswith(end)), "")


def sniff(head: bytes) -> str:
  """Returns the key of `FORMATS` for content that begins with `head`; "" if none matches."""
  if head[:3] == b"BZh" and head[4:10] not in (b"1AY&SY", b"\x17rE8P\x90"):
    return ""  # a text may begin with these letters
  if head[1:4] == b"\x2a\x4d\x18" and head[0] in _SKIPPABLE:
    return ".zst"
  return next((end for end, codec in FORMATS.items() if codec.magic and head.startswith(codec.magic)), "")


def renamed(path: str, actual: str, *, where: str) -> UserError:
  """Returns the error for a file with an extension that does not match its compression.

  Args:
    path: of the file.
    actual: key of `FORMATS` of the content; "" if it is not compressed.
    where: the configuration key that names it.
  """
  plain = path[: len(path) - len(ending(path))]
  content = f"compressed with {FORMATS[actual].name}" if actual else "not compressed"
  name = f"ends in {ending(path)}" if ending(path) else "has no extension for it"
  return UserError(f"{where}: {path}: is {content}, but its name {name}. Rename it to {plain}{actual}")


# Errors of reading damaged content.
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)


def damage(path: str, error: Exception) -> str:
  """Returns the message about a damaged file, with the command that checks it."""
  format_ = FORMATS[ending(path)]
  return f"truncated or corrupt {format_.name} ({error}). Check it with `{format_.test}`"


def checked(file: io.BufferedReader, path: str, *, where: str) -> io.BufferedReader:
  """Returns the bytes of any file, decompressed if its extension says so; for errors see `opened`."""
  if ending(path):
    return opened(file, path, where=where)
  if actual := sniff(file.peek(_HEAD)[:_HEAD]):
    raise renamed(path, actual, where=where)
  return file


def opened(file: io.BufferedReader, path: str, *, where: str) -> io.BufferedReader:
  """Returns the decompressed bytes of a file with an extension of a compression.

  Reading raises EOFError, gzip.BadGzipFile or zlib.error if the content is damaged.

  Raises:
    UserError: the content has another compression, or looks like text.
  """
  expected = ending(path)
  head = file.peek(_HEAD)[:_HEAD]
  actual = sniff(head)
  if actual != expected and (actual or (_is_text(head) and FORMATS[expected].magic)):
    raise renamed(path, actual, where=where)
  if not head:
    return file  # an empty file, which gzip also reads as no bytes
  return io.BufferedReader(FORMATS[expected].open(file), _BLOCK)


def _is_text(head: bytes) -> bool:
  return bool(head) and all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head)
