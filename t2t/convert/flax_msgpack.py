"""Index of Flax's msgpack files: names and offsets of arrays, without reading the arrays.

An array is a msgpack extension of type 1 with msgpack content: shape, name of the dtype and bytes.  Larger arrays than
a gigabyte are dicts of several such chunks.  Nothing in these files is executed.
"""

from collections.abc import Mapping
import dataclasses
import math
import mmap
import os
import re
import struct
from typing import Any

from etils import epath
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.storage import safe_read

Tree = Any  # nested dicts and lists of `MsgpackArray`, numbers, strings, bytes and None

# The first byte of a value determines its type. These are followed by a length in a struct format; others contain a
# small number or a short length. Source: the msgpack specification.
_SIZED = {
  first: (kind, form)
  for kind, start, forms in (
    ("bytes", 0xC4, "BHI"),
    ("extension", 0xC7, "BHI"),
    ("text", 0xD9, "BHI"),
    ("list", 0xDC, "HI"),
    ("dict", 0xDE, "HI"),
  )
  for first, form in enumerate(forms, start)
}
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_NUMBERS = dict(enumerate("fdBHIQbhiq", 0xCA))
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}

_ARRAY, _SCALAR = 1, 3  # Flax's extensions
_CHUNKED = "__msgpack_chunked_array__"
_DTYPE = re.compile(r"bool|(bfloat|float|int|uint)\d+")
_DEPTH = 64  # nested dicts; a state has about ten levels
_MOST_VALUES = 500_000  # values of a file; a state has thousands, and reading half a million takes two seconds
_MOST_TEXT = 16 * 2**20  # bytes of a value that is not an array


@dataclasses.dataclass(frozen=True)
class MsgpackArray:
  """An array of a file, read lazily.

  shape, dtype: as stored.
  pieces: offset in the file and number of elements, in the order of the flattened array.
  buffer: the file.
  """

  shape: tuple[int, ...]
  dtype: np.dtype
  pieces: tuple[tuple[int, int], ...]
  buffer: bytes | mmap.mmap = dataclasses.field(repr=False)

  def read(self) -> np.ndarray:
    """Returns the array, as a view of the file if it is contiguous there."""
    pieces = [np.frombuffer(self.buffer, self.dtype, count, offset) for offset, count in self.pieces]
    return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).reshape(self.shape)


def read(path: epath.Path) -> Tree:
  """Returns the content of a file, with lazy arrays.

  A local file is memory-mapped, so that only used parts are read; an object in a bucket is read whole.

  Raises:
    UserError: the file is truncated, not msgpack, or does not exist.
  """
  safe_read.size(path)
  return _MsgpackReader(path, _buffer(path)).root()


def first_key(path: epath.Path) -> str | None:
  """Returns the first key of the dict in a file; None without a dict. Reads a few bytes."""
  if not safe_read.is_file(path):
    return None
  with path.open("rb") as file:
    head = file.read(64)
  if not head or not (0x80 <= head[0] <= 0x8F or head[0] in (0xDE, 0xDF)):
    return None
  try:
    reader = _MsgpackReader(path, head)
    reader.size()
    key = reader.value(0)
  except UserError:
    return None
  return key if isinstance(key, str) else None


def _buffer(path: epath.Path) -> bytes | mmap.mmap:
  if "://" in str(path):
    return path.read_bytes()
  with open(os.fspath(path), "rb") as file:
    # An empty file cannot be mapped.
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""


class _MsgpackReader:
  """Parser that skips from header to header."""

  def __init__(self, path: epath.Path, buffer: bytes | mmap.mmap):
    self.path = path
    self.buffer = buffer
    self.at = 0
    self._left = _MOST_VALUES

  def root(self) -> Tree:
    return self.value(0)

  def _wrong(self, problem: str) -> UserError:
    return UserError(
      f"{self.path} is not a valid Flax checkpoint: found {problem} at byte {self.at:,}. Download the file again."
    )

  def _skip(self, count: int) -> int:
    """Skips some bytes and returns their start."""
    start, end = self.at, self.at + count
    if end > len(self.buffer):
      raise UserError(
        f"{self.path} is truncated: the value at byte {start:,} needs {count:,} bytes, but the file ends at byte"
        f" {len(self.buffer):,}. Copy the file again."
      )
    self.at = end
    return start

  def _bytes(self, count: int) -> bytes:
    start = self._skip(count)
    return bytes(self.buffer[start : start + count])

  def _number(self, form: str) -> int | float:
    return struct.unpack(f">{form}", self._bytes(struct.calcsize(form)))[0]

  def size(self) -> tuple[str, Any]:
    """Reads the header of a value: its kind, and its size, or the value of a "constant"."""
    first = self._bytes(1)[0]
    if first <= 0x7F or first >= 0xE0:
      return "constant", first if first <= 0x7F else first - 0x100
    if first <= 0x8F:
      return "dict", first & 0x0F
    if first <= 0x9F:
      return "list", first & 0x0F
    if first <= 0xBF:
      return "text", first & 0x1F
    if first in _CONSTANTS:
      return "constant", _CONSTANTS[first]
    if first in _NUMBERS:
      return "constant", self._number(_NUMBERS[first])
    if first in _FIXED_EXTENSIONS:
      return "extension", _FIXED_EXTENSIONS[first]
    if first in _SIZED:
      kind, form = _SIZED[first]
      return kind, self._number(form)
    raise self._wrong(f"the invalid type {first:#x} of a value")

  def value(self, depth: int) -> Tree:
    """Reads the next value."""
    if depth > _DEPTH:
      raise self._wrong(f"more than {_DEPTH} nested dicts or lists")
    self._left -= 1
    if self._left < 0:
      raise self._wrong(f"more than {_MOST_VALUES:,} values")
    kind, size = self.size()
    if kind == "constant":
      return size
    if kind in ("text", "bytes") and size > _MOST_TEXT:
      raise self._wrong(f"a text or byte string of {size:,} bytes, more than the limit of {_MOST_TEXT:,},")
    if kind == "text":
      return self._bytes(size).decode(errors="replace")
    if kind == "bytes":
      return self._bytes(size)
    if kind == "list":
      return [self.value(depth + 1) for _ in range(size)]
    if kind == "dict":
      return self._unchunked(self._dict(size, depth + 1))
    return self._extension(size, depth)

  def _dict(self, size: int, depth: int) -> dict[str, Tree]:
    entries: dict[str, Tree] = {}
    for _ in range(size):
      key = self._key(depth)
      if key in entries:  # ambiguous
        raise self._wrong(f"the second value of the key {key[:40]!r} in a dict")
      entries[key] = self.value(depth)
    return entries

  def _key(self, depth: int) -> str:
    """Reads a key. A dict as key is rejected: nested dicts would double the key's length at each level and exhaust the
    memory.
    """
    at, key = self.at, self.value(depth)
    if not isinstance(key, str | bytes | int | float):
      self.at = at
      raise self._wrong("a key that is neither text nor a number")
    return str(key)

  def _extension(self, size: int, depth: int) -> MsgpackArray | None:
    """Reads an array; returns None for other extensions, which are not parameters."""
    code = self._bytes(1)[0]
    start = self._skip(size)
    if code not in (_ARRAY, _SCALAR):
      return None
    self.at = start
    content, shape, name = self.size(), self.value(depth + 1), self.value(depth + 1)
    kind, length = self.size()
    name = name.decode(errors="replace") if isinstance(name, bytes) else name
    known = (
      _DTYPE.fullmatch(str(name)) and isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    )
    if content != ("list", 3) or kind not in ("bytes", "text") or not known:
      raise self._wrong(f"an array with an invalid header (shape {shape!r}, dtype {name!r})")
    try:
      dtype = jnp.dtype(name)
    except TypeError as error:  # for example float33
      raise self._wrong(f"an array with the unknown dtype {name!r}") from error
    offset, self.at = self._skip(length), start + size
    if (needed := math.prod(shape) * dtype.itemsize) != length:
      raise self._wrong(f"{length:,} instead of {needed:,} bytes for an array {shape} of {name}")
    return MsgpackArray(tuple(shape), dtype, ((offset, math.prod(shape)),), self.buffer)

  def _unchunked(self, tree: Mapping[str, Tree]) -> Tree:
    if _CHUNKED not in tree:
      return tree
    shape, chunks = (
      [tree[key].get(str(index)) for index in range(len(tree[key]))] if isinstance(tree.get(key), dict) else []
      for key in ("shape", "chunks")
    )
    if not all(type(size) is int and size >= 0 for size in shape):
      raise self._wrong(f"a chunked array of the invalid shape {str(shape)[:40]}")
    pieces = tuple(piece for chunk in chunks if isinstance(chunk, MsgpackArray) for piece in chunk.pieces)
    stored = sum(count for _, count in pieces)
    if not pieces or stored != math.prod(shape):
      raise self._wrong(f"chunks with {stored:,} instead of {math.prod(shape):,} numbers for an array {shape}")
    return MsgpackArray(tuple(shape), chunks[0].dtype, pieces, self.buffer)
