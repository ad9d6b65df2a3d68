"""Predictions beside the columns of the table that they are of, in a file of its own format."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import csv
import json
import os
import pathlib
from typing import Any

from t2t import UserError
from t2t.generation import line_files

# Fields of a row that a table gets, in this order; of a class the probability of the one that is predicted.
_FIELDS = ("prediction", "probability", "tags", "start", "end", "score", "cut", "error")
_ROWS = ".rows.jsonl"


def rows_path(output: str) -> str:
  """The file beside a table that rows are appended to until all are there, and that a run goes on with."""
  return f"{output}{_ROWS}"


def check(output: str) -> None:
  """Refuses a compressed table, which would not be written so.

  Raises:
    UserError: it is one.
  """
  if pathlib.Path(output).suffix not in (".tsv", ".csv", ".parquet"):
    raise UserError(f"--output {output}: tables are written uncompressed; give a .tsv, .csv, .parquet or .jsonl file")


def write(output: str, inputs: Callable[[], Iterator[line_files.Line]]) -> None:
  """Writes the table, once all rows are there.

  Args:
    output: .tsv, .csv or .parquet; what stands there is replaced.
    inputs: () -> the lines of the input, in order.

  Raises:
    UserError: it cannot be written.
  """
  path = pathlib.Path(os.path.expanduser(output))
  names: dict[str, None] = {}
  fields: dict[str, None] = {}
  for line, row in _pairs(output, inputs):
    own = _own(line, row)
    names |= dict.fromkeys(line.others or ["inputs"])
    fields |= dict.fromkeys(own)
  ordered = [*names, *sorted(fields, key=lambda name: (_place(name), name))]
  part = path.with_name(f"{path.name}.part")
  try:
    records = ((line.others or {"inputs": line.text}) | _own(line, row) for line, row in _pairs(output, inputs))
    if path.suffix == ".parquet":
      _write_parquet(part, ordered, records)
    else:
      _write_text(part, ordered, records, tabs=path.suffix == ".tsv")
    part.replace(path)
  except OSError as error:
    raise UserError(f"--output {output}: cannot be written ({error.strerror}); the same command goes on") from error


def _pairs(
  output: str, inputs: Callable[[], Iterator[line_files.Line]]
) -> Iterator[tuple[line_files.Line, Mapping[str, Any]]]:
  with open(os.path.expanduser(rows_path(output)), "rb") as file, contextlib.closing(inputs()) as lines:
    yield from zip(lines, map(json.loads, file), strict=True)


def _own(line: line_files.Line, row: Mapping[str, Any]) -> dict[str, Any]:
  """The fields that a row of the table gets."""
  found = {}
  for name in _FIELDS:
    key = f"predicted_{name}" if name in line.others else name
    if key in row and not (name == "score" and "probabilities" in row):
      found[key] = row[key]
  probabilities, prediction = row.get("probabilities"), row.get("prediction", row.get("predicted_prediction"))
  key = "predicted_probability" if "probability" in line.others else "probability"
  if isinstance(probabilities, Mapping):
    found[key] = probabilities[prediction]
  elif isinstance(probabilities, list):
    found[key] = max(probabilities)
  if "tags" in row and "tags" not in line.others or "predicted_tags" in row:  # entities are told by them
    found = {name: x for name, x in found.items() if not isinstance(x, list) or name.endswith("tags")}
  return found


def _place(name: str) -> int:
  return _FIELDS.index(name.removeprefix("predicted_"))


def _cell(value: Any, *, tabs: bool) -> str:
  """A value as text; in a table of tabs it has no tabs and no line breaks."""
  if value is None:
    return ""
  if isinstance(value, list) and all(isinstance(x, str) and x.split() == [x] for x in value):
    value = " ".join(value)
  text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
  return " ".join(text.split()) if tabs and any(x in text for x in "\t\r\n") else text


def _write_text(path: pathlib.Path, names: Sequence[str], records: Iterator[Mapping[str, Any]], *, tabs: bool) -> None:
  with open(path, "w", encoding="utf-8", newline="") as file:
    if tabs:
      for row in (names, *([_cell(record.get(name), tabs=True) for name in names] for record in records)):
        file.write("\t".join(row) + "\n")
      return
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(record.get(name), tabs=False) for name in names] for record in records)


def _write_parquet(path: pathlib.Path, names: Sequence[str], records: Iterator[Mapping[str, Any]]) -> None:
  import pyarrow as pa
  import pyarrow.parquet

  found = list(records)
  columns = {name: [record.get(name) for record in found] for name in names}
  pyarrow.parquet.write_table(pa.table(columns), path)
