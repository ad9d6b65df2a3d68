"""Reads tables with several columns into memory: CSV, TSV, JSON lines and Parquet, also compressed."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import json
import re
from typing import Any

from t2t import UserError
from t2t.data.sources import bad_records, fields, text_files

_LARGEST = 2**30  # maximum bytes of all files
_SPACE = re.compile(r"[ \t\r\n,]*")  # between elements of a JSON list
_KINDS = ("csv", "pairs", "json", "parquet")


@dataclasses.dataclass(frozen=True)
class TableRecord:
  """Record of a table.

  path: of its file.
  number: first line of the record, or its index in Parquet, from 1.
  values: column -> value: strings in CSV and TSV; in JSON lines and Parquet also numbers, booleans, lists, objects,
    None.
  """

  path: str
  number: int
  values: Mapping[str, Any]

  @property
  def location(self) -> str:
    """File and line, for messages: "train.csv, line 3"."""
    return _location(self.path, self.number)


def read_rows(paths: Sequence[str], *, where: str = "config.data.files") -> Iterator[TableRecord]:
  """Yields the records of files, in the order of `paths` and of the records in each file.

  The first line of a .csv or .tsv contains the column names. Blank lines are skipped.

  Args:
    paths: files, from `text_files.find_files`.
    where: the configuration key that names them, for messages.

  Raises:
    UserError: a file is not a table, the files exceed 1 GiB, or a line is invalid: another number of fields than the
      header, not UTF-8, or not a JSON object. Names the first such line.
  """
  check(paths, where=where)
  for path in paths:
    for number, record in _records(path, where=where):
      if isinstance(record, bad_records.DamagedRecord):
        raise UserError(f"{where}: {_location(path, number)}: {record.reason}")
      yield TableRecord(path, number, record)


def columns(paths: Sequence[str], *, where: str = "config.data.files") -> tuple[str, ...]:
  """Returns the column names of all files, in the order of first occurrence; JSON lines are read to the end.

  Raises:
    UserError: see `read_rows`; or a table lacks a column of another table, except for JSON lines.
  """
  check(paths, where=where)
  path_of_column: dict[str, str] = {}
  tables: list[tuple[str, list[str]]] = []
  for path in paths:
    if text_files.kind(path, where=where) == "json":
      path_of_column |= {
        name: path for row in read_rows([path], where=where) for name in row.values if name not in path_of_column
      }
      continue
    names = _header(path, where=where)
    tables.append((path, names))
    path_of_column |= {name: path for name in names if name not in path_of_column}
  for path, names in tables:
    if missing := [name for name in path_of_column if name not in names]:
      raise UserError(
        f"{where}: {path} has no column {missing[0]!r} (columns: {fields.listed(names)}), but"
        f" {path_of_column[missing[0]]} has this column. Give tables with the same columns."
      )
  return tuple(path_of_column)


def check(paths: Sequence[str], *, where: str) -> None:
  """Refuses files that are not tables, and tables that are too large for memory.

  Raises:
    UserError: names the file.
  """
  for path in paths:
    if text_files.kind(path, where=where) not in _KINDS:
      raise UserError(f"{where}: {path} is not a table; give a .csv, .tsv, .jsonl or .parquet file")
  size = sum(stat.size for stat in text_files.stats(paths, where=where).values())
  if size > _LARGEST:
    raise UserError(
      f"{where}: {len(paths)} file(s) have {size:,} bytes, more than the limit of {_LARGEST:,} for a table in memory."
      " Give fewer rows, or register your own task (docs/own_tasks.md)."
    )


def _location(path: str, number: int) -> str:
  return f"{path}, {'record' if text_files.kind(path) == 'parquet' else 'line'} {number}"


def _header(path: str, *, where: str) -> list[str]:
  if text_files.kind(path, where=where) == "parquet":
    from t2t.data.sources import parquet_files

    return parquet_files.names(path, where=where)
  return text_files.csv_header(path, where=where)


def _records(path: str, *, where: str) -> Iterator[tuple[int, Mapping[str, Any] | bad_records.DamagedRecord]]:
  file_kind = text_files.kind(path, where=where)
  if file_kind == "parquet":
    from t2t.data.sources import parquet_files

    parquet_files.names(path, where=where)
    return parquet_files.rows(path, where=where)
  if file_kind == "json":
    return _json_rows(path, where=where)
  return text_files.csv_rows(path, where=where)


def _json_rows(path: str, *, where: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
  """Yields the objects of JSON lines, or of a file with a single JSON list."""
  lines = text_files.lines(path, where=where)
  first = next(lines, None)
  lines = itertools.chain([first] if first else [], lines)
  if first and first[1].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
    yield from _json_list(b"".join(line for _, line in lines), path, where=where)
    return
  for number, line in lines:
    record = text_files.json_object(path, number, line, where=where)
    if record is not None:
      yield number, record


def _json_list(content: bytes, path: str, *, where: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
  """Yields the objects of a list, each with the number of its first line."""
  try:
    text = content.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    line = content[: error.start].count(b"\n") + 1
    raise UserError(
      f"{where}: {path}, line {line}: not valid UTF-8 ({error.reason}); convert the file to UTF-8"
    ) from error
  decoder, position, number, counted = json.JSONDecoder(object_pairs_hook=text_files.once), text.index("[") + 1, 1, 0
  while True:
    position = _SPACE.match(text, position).end()
    if text.startswith("]", position):
      position = _SPACE.match(text, position + 1).end()
      if position < len(text):
        number += text.count("\n", counted, position)
        raise UserError(
          f"{where}: {path}, line {number}: text after the end of the list. Write one list to a file, or one object to"
          " a line (`jq -c '.[]'` converts lists to lines)."
        )
      return
    number, counted = number + text.count("\n", counted, position), position
    try:
      value, position = decoder.raw_decode(text, position)
    except (ValueError, RecursionError) as error:
      raise UserError(f"{where}: {path}, line {number}: not JSON ({error}); correct the file") from error
    if not isinstance(value, dict):
      raise UserError(
        f"{where}: {path}, line {number}: the list has an element of type {fields.json_type(value)}, not object; give a"
        " list of objects"
      )
    yield number, value
