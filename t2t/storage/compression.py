"""Decompresses gzip, bzip2, xz and Zstandard files, by the end of their names; content that differs is named."""

import bz2
from collections.abc import Callable
import gzip
import io
import lzma
from typing import BinaryIO, NamedTuple
import zlib

import pyarrow as pa

from t2t import UserError

_BLOCK = 2**20  # bytes that are read at a time


class Format(NamedTuple):
  """A way to compress.

  name: of the format.
  magic: the first bytes of every file of this format.
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
  """Reads from a decompressor; its errors of content become `DamagedArchive`, whatever library it is from."""

  def __init__(self, decompressed: BinaryIO):
    super().__init__()
    self._decompressed = decompressed

  def readable(self):
    return True

  def readinto(self, buffer):
    try:
      content = self._decompressed.read(len(buffer))
    except (OSError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
      if getattr(error, "errno", None) is not None:
        raise  # the system's, and not the content's
      reason = (str(error).splitlines() or [type(error).__name__])[0]
      if "too much memory" in reason:
        reason = "it needs a window of more than 128 MiB; unpack it with `zstd -d --long=31`"
      raise DamagedArchive(reason) from error
    buffer[: len(content)] = content
    return len(content)


def _zstandard(file: BinaryIO) -> BinaryIO:
  return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")


# The end of a name -> how the file is compressed.
FORMATS = {
  ".gz": Format("gzip", b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file), "gzip -t"),
  ".bz2": Format("bzip2", b"BZh", lambda file: _RawStream(bz2.BZ2File(file)), "bzip2 -t"),
  ".xz": Format("xz", b"\xfd7zXZ\0", lambda file: _RawStream(lzma.LZMAFile(file)), "xz -t"),  # noqa: SIM115
  ".zst": Format("Zstandard", b"\x28\xb5\x2f\xfd", lambda file: _RawStream(_zstandard(file)), "zstd -t"),
}
_SKIPPABLE = bytes(range(0x50, 0x60))  # first byte of a Zstandard frame without data, followed by 2a 4d 18
_HEAD = 10  # bytes that tell the format


def ending(path: str) -> str:
  """The key of `FORMATS` that a path ends in; "" if it names no compressed file."""
  return next((end for end in FORMATS if path.lower().endswith(end)), "")


def sniff(head: bytes) -> str:
  """The key of `FORMATS` whose content begins like `head`; "" if none does."""
  if head[:3] == b"BZh" and head[4:10] not in (b"1AY&SY", b"\x17rE8P\x90"):
    return ""  # a text may begin with these letters
  if head[1:4] == b"\x2a\x4d\x18" and head[0] in _SKIPPABLE:
    return ".zst"
  return next((end for end, codec in FORMATS.items() if head.startswith(codec.magic)), "")


def renamed(path: str, actual: str, *, where: str) -> UserError:
  """The error of a file whose name does not say how its content is compressed.

  Args:
    path: of the file.
    actual: key of `FORMATS` that the content is in; "": it is not compressed.
    where: the configuration key that names it.
  """
  plain = path[: len(path) - len(ending(path))]
  content = f"compressed with {FORMATS[actual].name}" if actual else "not compressed"
  name = f"ends in {ending(path)}" if ending(path) else "does not say so"
  return UserError(f"{where}: {path}: is {content}, and its name {name}; rename it to {plain}{actual}")


# What reading raises where the content is damaged.
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)


def damage(path: str, error: Exception) -> str:
  """The message on a damaged file, with the command that checks it."""
  format_ = FORMATS[ending(path)]
  return f"truncated or corrupt {format_.name} ({error}); check it with `{format_.test}`"


def checked(file: io.BufferedReader, path: str, *, where: str) -> io.BufferedReader:
  """The bytes of any file, decompressed if its name says that it is compressed; errors as those of `opened`."""
  if ending(path):
    return opened(file, path, where=where)
  if actual := sniff(file.peek(_HEAD)[:_HEAD]):
    raise renamed(path, actual, where=where)
  return file


def opened(file: io.BufferedReader, path: str, *, where: str) -> io.BufferedReader:
  """The decompressed bytes of a file whose name says that it is compressed.

  Reading raises EOFError, gzip.BadGzipFile or zlib.error where the content is damaged.

  Raises:
    UserError: its content is compressed in another way, or looks like text.
  """
  expected = ending(path)
  head = file.peek(_HEAD)[:_HEAD]
  actual = sniff(head)
  if actual != expected and (actual or _is_text(head)):
    raise renamed(path, actual, where=where)
  if not head:
    return file  # an empty file, which gzip reads as no bytes
  return io.BufferedReader(FORMATS[expected].open(file), _BLOCK)


def _is_text(head: bytes) -> bool:
  return bool(head) and all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head)
