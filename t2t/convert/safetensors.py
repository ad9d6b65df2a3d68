"""Files in the safetensors format, read and written tensor by tensor.

A file is 8 bytes with the length of a JSON header; the header, {name: {"dtype", "shape", "data_offsets"}};
and the tensors' bytes, row by row and little-endian, at those offsets from the header's end.
Why not the library of that name (0.8.0): it opens files of this machine alone, no buckets; it writes a file from
tensors that are all in memory at once; and of a file that was cut off it does not say which one or how long it must be.

Source: https://github.com/huggingface/safetensors, "Format".
"""

from collections.abc import Iterable, Mapping, Sequence
import contextlib
import dataclasses
import json
import math
from typing import Any, BinaryIO

from etils import epath
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.storage import safe_read

# Those of parameters; the rest are buffers, or weights that were quantised.
DTYPES = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(jnp.bfloat16)}
# Bytes of each dtype that the format knows.
_SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1}
_SIZES |= {"I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4}
_SIZES |= {"I64": 8, "U64": 8, "F64": 8, "C64": 8}
# Of 100,000 tensors. The format allows 100 MB, which as Python's objects would take gigabytes.
_LARGEST_HEADER = safe_read.MOST_JSON
_ALIGNMENT = 8
_MOST_DIMENSIONS = 16


@dataclasses.dataclass(frozen=True)
class TensorEntry:
  """A tensor of a file: where its bytes are.

  path: the file.
  name: the tensor's.
  dtype: as the format calls it.
  shape: rows first.
  begin: offset of its first byte in the file.
  """

  path: epath.Path
  name: str
  dtype: str
  shape: tuple[int, ...]
  begin: int

  @property
  def nbytes(self) -> int:
    """In the file."""
    return math.prod(self.shape) * _SIZES[self.dtype]

  def read(self) -> np.ndarray:
    """The tensor, and nothing else of the file.

    Raises:
      UserError: not a float: it was quantised, or is no parameter.
    """
    if self.dtype not in DTYPES:
      raise UserError(
        f"{self.path}: {self.name} is {self.dtype}; parameters must be {', '.join(DTYPES)}."
        " A quantised checkpoint must be turned into floats by what quantised it"
      )
    with self.path.open("rb") as file:
      file.seek(self.begin)
      content = file.read(self.nbytes)
    if len(content) != self.nbytes:
      raise UserError(f"{self.path}: ends within {self.name}; the file was cut off while it was read")
    return np.frombuffer(content, DTYPES[self.dtype]).reshape(self.shape)


def read_header(path: epath.Path) -> dict[str, TensorEntry]:
  """The tensors of a file by name; only the header is read.

  Raises:
    UserError: not a safetensors file, or one that was cut off: says how long it must be; or tensors that are not what
      their offsets say, one upon the other, or with bytes between them that belong to none.
  """
  size = safe_read.size(path)
  with path.open("rb") as file:
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or (size >= 9 and file.read(1) != b"{"):
      raise UserError(f"{path}: not a safetensors file ({size:,} bytes, no header); download or export it again")
    if 8 + length > size:
      raise UserError(f"{path}: cut off: its header is {length:,} bytes long, the file {size:,}; {_AGAIN}")
    if length > _LARGEST_HEADER:
      raise UserError(f"{path}: its header is {length:,} bytes long; {_LARGEST_HEADER:,} are the most that is read")
    file.seek(8)
    text = file.read(length)
  try:
    header = json.loads(text, object_pairs_hook=_once)
    # One that is no object, as a list, has no items.
    entries = {name: _entry(path, name, value, 8 + length) for name, value in header.items() if name != "__metadata__"}
  except (ValueError, RecursionError, AttributeError) as error:
    if isinstance(error, UserError):
      raise
    raise UserError(f"{path}: its header is not that of a safetensors file ({error!r}); {_AGAIN}") from error
  needed = max((entry.begin + entry.nbytes for entry in entries.values()), default=8 + length)
  if needed > size:
    raise UserError(f"{path}: cut off: its header says {needed:,} bytes, the file has {size:,}; {_AGAIN}")
  _check_gapless(path, list(entries.values()), begin=8 + length, end=size)
  return entries


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
  """An object of JSON, none of whose names comes twice: readers would not agree which one counts."""
  if safe_read.name_given_twice(pairs) is not None:
    raise ValueError("a name stands in it twice")
  return dict(pairs)


def _is_size(value: Any) -> bool:
  return type(value) is int and 0 <= value < 2**63


def _entry(path: epath.Path, name: str, value: Any, start: int) -> TensorEntry:
  """What a header says of one tensor."""
  if not isinstance(value, dict):
    raise UserError(f"{path}: {name} is {str(value)[:40]!r}, no tensor; {_AGAIN}")
  dtype, shape, offsets = (value.get(key) for key in ("dtype", "shape", "data_offsets"))
  for key, sizes in (("shape", shape), ("data_offsets", offsets)):
    if not isinstance(sizes, list) or len(sizes) > _MOST_DIMENSIONS or not all(map(_is_size, sizes)):
      raise UserError(f"{path}: {name}: its {key} is {str(sizes)[:40]}, no list of sizes; {_AGAIN}")
  if not isinstance(dtype, str) or dtype not in _SIZES:
    raise UserError(f"{path}: {name} is of dtype {str(dtype)[:40]!r}; known are {', '.join(_SIZES)}")
  if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * _SIZES[dtype]:
    raise UserError(f"{path}: {name} is {dtype} {shape}, which its offsets {offsets} do not say; {_AGAIN}")
  return TensorEntry(path, name, dtype, tuple(shape), start + offsets[0])


def _check_gapless(path: epath.Path, entries: list[TensorEntry], *, begin: int, end: int) -> None:
  """Whether tensors lie one behind the other, as the format asks: none shows another's bytes, and none are hidden."""
  before = "the header"
  for entry in sorted(entries, key=lambda entry: (entry.begin, entry.nbytes)):
    if entry.begin != begin:
      problem = "overlap" if entry.begin < begin else "leave bytes between them"
      raise UserError(f"{path}: {before} and {entry.name} {problem}, by their offsets; {_AGAIN}")
    begin, before = entry.begin + entry.nbytes, entry.name
  if begin != end:
    raise UserError(f"{path}: {end - begin:,} bytes follow that belong to no tensor; {_AGAIN}")


_AGAIN = "copy or download it again"


class SafetensorsWriter:
  """Writes one file from its first byte to its last; buckets take no other order.

  Args:
    path: the file.
    shapes: name -> shape, in the order in which they will be written.
    dtype: a key of `DTYPES`, of all of them.
  """

  def __init__(self, path: epath.Path, shapes: Mapping[str, tuple[int, ...]], *, dtype: str):
    self._dtype, self._left = DTYPES[dtype], list(shapes.items())
    header: dict = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
      end = offset + math.prod(shape) * self._dtype.itemsize
      header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
      offset = end
    text = json.dumps(header).encode()
    # Spaces, so that the tensors begin at a multiple of their own size.
    text += b" " * (-len(text) % _ALIGNMENT)
    self._remote = "://" in str(path)  # where what is written must be bytes
    # Of a bucket `open` gives what is to be entered, and not yet a file.
    self._closing = contextlib.ExitStack()
    self._file: BinaryIO = self._closing.enter_context(path.open("wb"))
    self._file.write(len(text).to_bytes(8, "little") + text)

  def write(self, name: str, value: np.ndarray) -> int:
    """Writes the next tensor; returns its size in bytes."""
    expected, shape = self._left.pop(0)
    if name != expected or value.shape != tuple(shape):
      raise ValueError(f"{expected} {shape} comes next, not {name} {value.shape}")
    content = np.ascontiguousarray(value, self._dtype)
    self._file.write(content.tobytes() if self._remote else content.reshape(-1).view(np.uint8).data)
    return content.nbytes

  def __enter__(self) -> "SafetensorsWriter":
    return self

  def __exit__(self, *error) -> None:
    self._closing.close()


def shards(sizes: Iterable[tuple[str, int]], max_bytes: int) -> list[list[str]]:
  """Names in as many lists as files are needed, none larger than `max_bytes` unless it is a single tensor.

  In:  [("a", 3), ("b", 4), ("c", 2)], 6
  Out: [["a"], ["b", "c"]]
  """
  groups: list[list[str]] = []
  room = 0
  for name, size in sizes:
    if not groups or size > room:
      groups.append([])
      room = max_bytes
    groups[-1].append(name)
    room -= size
  return groups
