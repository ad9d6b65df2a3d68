"""Writes predictions as further columns of the input table, in its file format."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
import contextlib
import itertools
import json
import os
import pathlib
from typing import Any

from t2t import UserError
from t2t.inference import jsonl_io

# Columns added to a table, in this order, and their fields of a row.
_FIELDS = {
  **{name: name for name in ("prediction", "probability", "tags", "start", "end")},
  "log_probability": "score",
  **{name: name for name in ("filled", "layers", "cut", "error")},
}
_ROWS = ".rows.jsonl"


def rows_path(output: str) -> str:
  """Returns the path of the file beside a table that collects rows until all are complete; a run resumes from it."""
  return f"{output}{_ROWS}"


def check(output: str, input_path: str) -> None:
  """Checks that the output can be written as named and replaces no other file.

  Args:
    output: path of the table to write.
    input_path: path of the input.

  Raises:
    UserError: the output is compressed, is the input, or exists and was not made by `t2t infer`.
  """
  check_new(output, input_path)
  if pathlib.Path(output).suffix not in (".tsv", ".csv", ".parquet"):
    raise UserError(f"--output {output}: tables cannot be compressed; give a .tsv, .csv, .parquet or .jsonl file")


def check_new(output: str, input_path: str) -> None:
  """Checks that a file that is written from complete rows replaces no other file.

  Raises:
    UserError: the output is the input, or exists and was not made by `t2t infer`.
  """
  path = pathlib.Path(os.path.expanduser(output))
  if path.exists() and os.path.realpath(path) == os.path.realpath(os.path.expanduser(input_path)):
    raise UserError(f"--output {output} is also the input file; give another --output")
  if path.exists() and not pathlib.Path(os.path.expanduser(rows_path(output))).exists():
    raise UserError(
      f"--output {output} exists, but its file of rows {path.name}{_ROWS} is missing; give another --output, or "
      f"delete {output} to start over"
    )


def write(output: str, inputs: Callable[[], Iterator[jsonl_io.Line]]) -> None:
  """Writes the table after all rows are complete.

  Args:
    output: .tsv, .csv or .parquet; an existing file is replaced.
    inputs: returns the lines of the input, in order.

  Raises:
    UserError: the file cannot be written.
  """
  names: dict[str, None] = {}
  fields: dict[str, None] = {}
  for line, row in pairs(output, inputs):
    columns = _columns(line, row)
    names |= dict.fromkeys(line.others or ["inputs"])
    fields |= dict.fromkeys(columns)
  ordered = [*names, *sorted(fields, key=lambda name: (_column_index(name), name))]
  records = ((line.others or {"inputs": line.text}) | _columns(line, row) for line, row in pairs(output, inputs))
  with replacing(output) as part:
    if output.endswith(".parquet"):
      _write_parquet(part, ordered, records)
    else:
      _write_text(part, ordered, records, tabs=output.endswith(".tsv"))


@contextlib.contextmanager
def replacing(output: str) -> Generator[pathlib.Path]:
  """Yields the path of a file to write, which replaces `output` at the end of the block.

  Raises:
    UserError: the file cannot be written.
  """
  path = pathlib.Path(os.path.expanduser(output))
  part = path.with_name(f"{path.name}.part")
  try:
    yield part
    part.replace(path)
  except OSError as error:
    raise UserError(
      f"--output {output} cannot be written ({error.strerror}); free space or fix the permissions, then rerun the same "
      "command"
    ) from error


def pairs(
  output: str, inputs: Callable[[], Iterator[jsonl_io.Line]]
) -> Iterator[tuple[jsonl_io.Line, Mapping[str, Any]]]:
  """Yields each line with its complete row; see `write`."""
  with open(os.path.expanduser(rows_path(output)), "rb") as file, contextlib.closing(inputs()) as lines:
    yield from zip(lines, map(json.loads, file), strict=True)


def _columns(line: jsonl_io.Line, row: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the added columns of a row; a class has only the probability of the predicted class."""
  # Names as in `jsonl_io.row`.
  values = {name: row.get(f"predicted_{name}" if name in line.others else name) for name in jsonl_io.ROW_FIELDS}
  if isinstance(values["probabilities"], Mapping):
    values["probability"] = values["probabilities"][values["prediction"]]
  elif isinstance(values["probabilities"], list):
    values["probability"] = max(values["probabilities"])
  if values["tags"] is not None and isinstance(values["prediction"], list):  # entities, which the tags already contain
    values["prediction"] = None
  if values["probability"] is not None:
    values["score"] = None
  columns = {
    column: values[name] for column, name in _FIELDS.items() if values[name] is not None or name == "prediction"
  }
  if values["tags"] is not None:
    columns = {name: x for name, x in columns.items() if name != "prediction" or x is not None}
  return {f"predicted_{name}" if name in line.others else name: x for name, x in columns.items()}


def _column_index(name: str) -> int:
  return list(_FIELDS).index(name.removeprefix("predicted_"))


def _cell(value: Any, *, tabs: bool) -> str:
  """Formats a value as text; with `tabs`, without tabs and line breaks."""
  if value is None:
    return ""
  if isinstance(value, list) and all(isinstance(x, str) and x.split() == [x] for x in value):
    value = " ".join(value)
  text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
  return " ".join(text.split()) if tabs and any(x in text for x in "\t\r\n") else text


def _write_text(path: pathlib.Path, names: Sequence[str], records: Iterator[Mapping[str, Any]], *, tabs: bool) -> None:
  # Unpaired surrogates, which JSON can escape, stay escaped.
  with open(path, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
    rows = ([_cell(record.get(name), tabs=tabs) for name in names] for record in records)
    for row in itertools.chain([names], rows):
      file.write(("\t".join(row) if tabs else ",".join(map(_quoted, row)) or '""') + "\n")


def _quoted(text: str) -> str:
  # Python's csv writer does not quote carriage returns, but its reader ends a line at them.
  return '"' + text.replace('"', '""') + '"' if any(x in text for x in ',"\r\n') else text


def _write_parquet(path: pathlib.Path, names: Sequence[str], records: Iterator[Mapping[str, Any]]) -> None:
  import pyarrow as pa
  import pyarrow.parquet

  def column(values: Sequence[Any]) -> pa.Array:
    try:
      return pa.array(values)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):  # mixed types, which Parquet does not support
      texts = (None if value is None else _cell(value, tabs=False) for value in values)
      return pa.array([text and text.encode("utf-8", "backslashreplace").decode() for text in texts], pa.string())

  rows = list(records)
  columns = {name: column([record.get(name) for record in rows]) for name in names}
  pyarrow.parquet.write_table(pa.table(columns), path)
