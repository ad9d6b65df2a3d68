"""Resumable files of embeddings, one for each input line: .npy and .parquet."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import hashlib
import io
import json
import os
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from t2t import UserError
from t2t.inference import jsonl_io

ENDINGS = (".npy", ".parquet")
_GROUP_BYTES = 1 << 26  # embeddings in a row group


class VectorFile:
  """An .npy file of the embeddings of all lines, written in order and resumed after the last complete embedding.

  NumPy refuses to load the file until it is complete. The embedding of a line without text is NaN.

  Args:
    file: opened for reading and appending.
    path: of the file, for messages.
    shape: of all embeddings together.
  """

  def __init__(self, file: io.IOBase, path: str, shape: Sequence[int]):
    self._file, self._path = file, path
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": tuple(shape)})
    self._header, self._empty = header.getvalue(), np.full(shape[1:], np.nan, "<f4")
    self.done = max(0, os.fstat(file.fileno()).st_size - len(self._header)) // self._empty.nbytes

  def beside(
    self, lines: Iterable[jsonl_io.Line], *, where: str, form: jsonl_io.Form
  ) -> Iterator[tuple[jsonl_io.Line, jsonl_io.Row | None]]:
    """Yields each line with a row that has only its number, or None if its embedding is missing."""
    del where, form  # `output` has checked that the lines are unchanged
    for line in lines:
      yield line, {"line": line.number} if line.number <= self.done else None

  def write(self, rows: Iterable[jsonl_io.Row]) -> None:
    """Appends embeddings; they survive a killed run once this returns."""
    rows = list(rows)
    vectors = [self._empty if row["vector"] is None else row["vector"].astype("<f4", copy=False) for row in rows]
    if not self.done:
      self._file.truncate(0)
      jsonl_io.append(self._file, self._header, path=self._path)
    self._file.truncate(len(self._header) + self.done * self._empty.nbytes)
    jsonl_io.append(self._file, b"".join(vector.tobytes() for vector in vectors), path=self._path)
    self.done += len(rows)


@contextlib.contextmanager
def output(
  path: str, run: Mapping[str, Any], *, read: Callable[[], Iterable[jsonl_io.Line]], shape: Sequence[int]
) -> Iterator[VectorFile]:
  """Opens the embeddings of a run, locked against other processes.

  A .parquet file can only be written as a whole: it is converted at the end from an .npy file beside it.

  Args:
    path: a local file; its ending selects the format.
    run: values that the embeddings depend on.
    read: returns the lines of the input, one for each embedding.
    shape: of one embedding.

  Raises:
    UserError: the file cannot be written, or belongs to another run or other lines.
  """
  path = os.path.expanduser(path)
  total, digest = digest_of(read())
  run = {**run, "lines": total, "texts": digest}
  parquet = path.endswith(".parquet")
  part = f"{path}.part.npy" if parquet else path
  is_complete = parquet and os.path.exists(path)
  with jsonl_io.opened(part) as file:
    try:
      if is_complete or os.fstat(file.fileno()).st_size:
        jsonl_io.check_run(path, run)
      else:
        jsonl_io.record_run(path, run)
      vectors_file = VectorFile(file, path, (total, *shape))
      vectors_file.done = total if is_complete else vectors_file.done
      yield vectors_file
      if parquet and not is_complete and vectors_file.done == total:
        _to_parquet(part, path, read())
        is_complete = True
    finally:
      if is_complete:
        os.remove(part)


def open_index(path: str, run: Mapping[str, Any], lines: Iterable[jsonl_io.Line], *, option: str) -> np.ndarray:
  """Opens the embeddings that `t2t embed` wrote to an .npy file, memory-mapped: float32 [lines, embed].

  Args:
    path: of the file.
    run: values that the embeddings depend on.
    lines: texts that the embeddings must belong to.
    option: of the path, for messages.

  Raises:
    UserError: the file is missing or incomplete, or has the embeddings of another checkpoint, layer or text.
  """
  path = os.path.expanduser(path)
  again = "Run `t2t embed` with the options of this command, or leave out " + option
  try:
    stored = json.loads(pathlib.Path(f"{path}.run.json").read_text())
    vectors = np.load(path, mmap_mode="r", allow_pickle=False)
  except (OSError, ValueError, EOFError) as error:
    raise UserError(f"{option} {path} is not a complete .npy file of `t2t embed` ({error}). {again}.") from error
  differences = [
    f"{name} {stored.get(name)} instead of {run.get(name)}"
    for name in ("checkpoint", "task", "inputs_length", "pool", "layer")
    if stored.get(name) != run.get(name)
  ]
  if differences:
    raise UserError(f"{option} {path} belongs to another model: {'; '.join(differences)}. {again}.")
  if (stored.get("lines"), stored.get("texts")) != digest_of(lines):
    raise UserError(f"{option} {path} belongs to other lines, those of {stored.get('input')}. {again}.")
  if vectors.dtype != np.float32 or vectors.ndim != 2 or len(vectors) != stored["lines"]:
    raise UserError(f"{option} {path} has the shape {list(vectors.shape)}, not [{stored['lines']}, embed]. {again}.")
  return vectors


def digest_of(lines: Iterable[jsonl_io.Line]) -> tuple[int, str]:
  """Returns the number of lines and a digest of their texts, as the record of a run has them."""
  digest, number = hashlib.sha256(), 0
  for line in lines:
    number = line.number
    digest.update(json.dumps([line.text, line.others.get("parts")]).encode())
  return number, digest.hexdigest()[:16]


def _to_parquet(part: str, path: str, lines: Iterable[jsonl_io.Line]) -> None:
  """Writes lines, texts and embeddings; all layers get one column each."""
  vectors = np.load(part, mmap_mode="r")
  names = ["vector"] if vectors.ndim == 2 else [f"layer_{i}" for i in range(vectors.shape[1])]
  vector = pa.list_(pa.float32(), vectors.shape[-1])
  fields = {"line": pa.int64(), "inputs": pa.string(), **dict.fromkeys(names, vector)}
  schema = pa.schema(list(fields.items()))
  size = max(1, _GROUP_BYTES // vectors[0].nbytes)
  partial_path, line_iterator = pathlib.Path(f"{path}.part"), iter(lines)
  with pa.parquet.ParquetWriter(partial_path, schema) as writer:
    for start in range(0, len(vectors), size):
      rows = np.asarray(vectors[start : start + size]).reshape(-1, len(names), vectors.shape[-1])
      texts = [next(line_iterator).text for _ in rows]
      empty = pa.array(np.isnan(rows[:, 0, 0]))
      columns = [
        pa.FixedSizeListArray.from_arrays(rows[:, i].ravel(), type=vector, mask=empty) for i in range(len(names))
      ]
      numbers = pa.array(range(start + 1, start + 1 + len(rows)), pa.int64())
      writer.write_table(pa.Table.from_arrays([numbers, pa.array(texts, pa.string()), *columns], schema=schema))
  partial_path.replace(path)
