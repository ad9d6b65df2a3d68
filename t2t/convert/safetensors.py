"""Reads and writes safetensors files tensor by tensor.

A file is 8 bytes with the length of a JSON header; the header, {name: {"dtype", "shape", "data_offsets"}}; and the
tensors' bytes, row-major and little-endian, at those offsets from the header's end. The safetensors library (0.8.0) is
not used: it opens only local files, needs all tensors in memory to write a file, and its error for a truncated file
contains neither the path nor the expected size.

Source: https://github.com/huggingface/safetensors, "Format".
"""

from collections.abc import Iterable, Mapping, Sequence
import contextlib
import dataclasses
import json
import math
import types
from typing import Any, BinaryIO

from etils import epath
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.storage import safe_read
from t2t.storage.safe_read import COPY_AGAIN

# Dtypes of parameters; other dtypes are buffers or quantized weights.
DTYPES = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(jnp.bfloat16)}
INTEGERS = {"I8": np.dtype("i1"), "U8": np.dtype("u1"), "U16": np.dtype("<u2"), "I32": np.dtype("<i4")}
# Bytes of each dtype of the format.
_SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1}
_SIZES |= {"I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4}
_SIZES |= {"I64": 8, "U64": 8, "F64": 8, "C64": 8}
# Enough for 100,000 tensors. The format allows 100 MB, which would take gigabytes as Python objects.
_LARGEST_HEADER = safe_read.MOST_JSON
_ALIGNMENT = 8
_MOST_DIMENSIONS = 16


@dataclasses.dataclass(frozen=True)
class TensorEntry:
  """Description of a tensor in a file.

  path: the file.
  name: the tensor's.
  dtype: in the format's terms.
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
    return math.prod(self.shape) * _SIZES[self.dtype]

  def read(self, integers: np.dtype | None = None) -> np.ndarray:
    """Reads the tensor, and no other part of the file.

    Args:
      integers: dtype of a tensor of signed bytes; None: the tensor must be a float.

    Raises:
      UserError: it is not a float: it was quantized, or is not a parameter.
    """
    if self.dtype not in DTYPES and (integers is None or self.dtype != "I8"):
      raise UserError(
        f"{self.path}: {self.name} has the dtype {self.dtype}, but parameters must have one of {', '.join(DTYPES)}."
        " If the checkpoint is quantized, convert it to floats with the library that quantized it."
      )
    with self.path.open("rb") as file:
      file.seek(self.begin)
      content = file.read(self.nbytes)
    if len(content) != self.nbytes:
      raise UserError(
        f"{self.path} ends within {self.name}: the file was truncated during the read. Run the command again."
      )
    dtype = DTYPES.get(self.dtype, integers)
    return np.frombuffer(content, dtype).reshape(self.shape)


def read_header(path: epath.Path) -> dict[str, TensorEntry]:
  """Reads the header of a file; returns its tensors by name.

  Raises:
    UserError: the file is not safetensors, is truncated, or its tensors overlap or leave unused bytes.
  """
  return read_entries_and_metadata(path)[0]


def read_entries_and_metadata(path: epath.Path) -> tuple[dict[str, TensorEntry], Mapping[str, Any]]:
  """Returns the tensors of a file as `read_header`, and the metadata of its header; raises as `read_header`."""
  size = safe_read.size(path)
  with path.open("rb") as file:
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or (size >= 9 and file.read(1) != b"{"):
      raise UserError(
        f"{path} is not a safetensors file ({size:,} bytes, no header). Download or export the file again."
      )
    if 8 + length > size:
      raise UserError(
        f"{path} is truncated: the header has {length:,} bytes, but the file has only {size:,}. {COPY_AGAIN}"
      )
    if length > _LARGEST_HEADER:
      raise UserError(
        f"{path}: the header has {length:,} bytes, more than the limit of {_LARGEST_HEADER:,}. {COPY_AGAIN}"
      )
    file.seek(8)
    text = file.read(length)
  try:
    header = json.loads(text, object_pairs_hook=_once)
    # A header that is not a JSON object has no items.
    entries = {name: _entry(path, name, value, 8 + length) for name, value in header.items() if name != "__metadata__"}
  except (ValueError, RecursionError, AttributeError) as error:
    if isinstance(error, UserError):
      raise
    raise UserError(f"{path}: the header is not valid safetensors ({error!r}). {COPY_AGAIN}") from error
  needed = max((entry.begin + entry.nbytes for entry in entries.values()), default=8 + length)
  if needed > size:
    raise UserError(
      f"{path} is truncated: the header requires {needed:,} bytes, but the file has only {size:,}. {COPY_AGAIN}"
    )
  _check_gapless(path, list(entries.values()), begin=8 + length, end=size)
  metadata = header.get("__metadata__")
  return entries, metadata if isinstance(metadata, dict) else {}


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
  """Builds a JSON object; rejects duplicate names, because readers would differ in which one counts."""
  if safe_read.name_given_twice(pairs) is not None:
    raise ValueError("a name occurs twice")
  return dict(pairs)


def _is_size(value: Any) -> bool:
  return type(value) is int and 0 <= value < 2**63


def _entry(path: epath.Path, name: str, value: Any, start: int) -> TensorEntry:
  """Parses a header's entry of one tensor."""
  if not isinstance(value, dict):
    raise UserError(f"{path}: {name} is {str(value)[:40]!r}, not a tensor. {COPY_AGAIN}")
  dtype, shape, offsets = (value.get(key) for key in ("dtype", "shape", "data_offsets"))
  for key, sizes in (("shape", shape), ("data_offsets", offsets)):
    if not isinstance(sizes, list) or len(sizes) > _MOST_DIMENSIONS or not all(map(_is_size, sizes)):
      raise UserError(f"{path}: the {key} of {name} is {str(sizes)[:40]}, not a list of sizes. {COPY_AGAIN}")
  if not isinstance(dtype, str) or dtype not in _SIZES:
    raise UserError(
      f"{path}: {name} has the unknown dtype {str(dtype)[:40]!r}. Known dtypes: {', '.join(_SIZES)}. {COPY_AGAIN}"
    )
  needed = math.prod(shape) * _SIZES[dtype]
  if len(offsets) != 2 or offsets[1] - offsets[0] != needed:
    raise UserError(
      f"{path}: {name} is {dtype} {shape} and needs {needed:,} bytes, but has the offsets {offsets}. {COPY_AGAIN}"
    )
  return TensorEntry(path, name, dtype, tuple(shape), start + offsets[0])


def _check_gapless(path: epath.Path, entries: list[TensorEntry], *, begin: int, end: int) -> None:
  """Checks that tensors are contiguous, as the format requires: no shared and no hidden bytes."""
  before = "the header"
  for entry in sorted(entries, key=lambda entry: (entry.begin, entry.nbytes)):
    if entry.begin != begin:
      problem = "overlap" if entry.begin < begin else "have unused bytes in between"
      raise UserError(f"{path}: {before} and {entry.name} {problem}, according to the offsets. {COPY_AGAIN}")
    begin, before = entry.begin + entry.nbytes, entry.name
  if begin != end:
    raise UserError(f"{path}: the last {end - begin:,} bytes belong to no tensor. {COPY_AGAIN}")


class SafetensorsWriter:
  """Writes one file sequentially, as buckets require.

  Args:
    path: the file.
    shapes: name -> shape, in writing order.
    dtype: a key of `DTYPES` or `INTEGERS`, of all tensors, or by name.
    metadata: further entries of the header's metadata.
  """

  def __init__(
    self,
    path: epath.Path,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    dtype: str | Mapping[str, str],
    metadata: Mapping[str, str] = types.MappingProxyType({}),
  ):
    self._left = list(shapes.items())
    self._names = dict.fromkeys(shapes, dtype) if isinstance(dtype, str) else dict(dtype)
    self._dtypes = {name: {**DTYPES, **INTEGERS}[kind] for name, kind in self._names.items()}
    header: dict = {"__metadata__": {"format": "pt", **metadata}}
    offset = 0
    for name, shape in shapes.items():
      end = offset + math.prod(shape) * self._dtypes[name].itemsize
      header[name] = {"dtype": self._names[name], "shape": list(shape), "data_offsets": [offset, end]}
      offset = end
    text = json.dumps(header).encode()
    # Pad with spaces, so that the tensors are aligned.
    text += b" " * (-len(text) % _ALIGNMENT)
    self._remote = "://" in str(path)  # buckets need bytes objects
    # For a bucket `open` returns a context manager, not a file.
    self._closing = contextlib.ExitStack()
    self._file: BinaryIO = self._closing.enter_context(path.open("wb"))
    self._file.write(len(text).to_bytes(8, "little") + text)

  def write(self, name: str, value: np.ndarray) -> int:
    """Writes the next tensor; returns its size in bytes."""
    expected, shape = self._left.pop(0)
    if name != expected or value.shape != tuple(shape):
      raise ValueError(f"expected {expected} {shape}, got {name} {value.shape}")
    content = np.ascontiguousarray(value, self._dtypes[name])
    self._file.write(content.tobytes() if self._remote else content.reshape(-1).view(np.uint8).data)
    return content.nbytes

  def __enter__(self) -> "SafetensorsWriter":
    return self

  def __exit__(self, *error) -> None:
    self._closing.close()


def shards(sizes: Iterable[tuple[str, int]], max_bytes: int) -> list[list[str]]:
  """Splits names into as few files as possible, each at most `max_bytes` large unless it has a single tensor.

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
