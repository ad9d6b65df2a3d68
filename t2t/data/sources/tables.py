"""Reads tables whose rows have several fields, in memory: CSV, TSV, JSON lines and Parquet, each also compressed."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import json
import re
from typing import Any

from t2t import UserError
from t2t.data.sources import bad_records, fields, parquet_files, text_files

_LARGEST = 2**30  # bytes of all files
_SPACE = re.compile(r"[ \t\r\n,]*")  # between elements of a JSON list
_KINDS = ("csv", "pairs", "json", "parquet")


@dataclasses.dataclass(frozen=True)
class TableRecord:
  """A record of a table.

  path: of its file.
  number: of the line that it begins in, or of the record in Parquet, from 1.
  values: column -> value: strings of CSV and TSV; of JSON lines and Parquet also numbers, booleans, lists, objects and
    None.
  """

  path: str
  number: int
  values: Mapping[str, Any]

  @property
  def location(self) -> str:
    """The file and the line, for messages: "train.csv, line 3"."""
    return _location(self.path, self.number)


def read_rows(paths: Sequence[str], *, where: str = "config.data.files") -> Iterator[TableRecord]:
  """The records of files in the order of `paths`, and of each file from its first to its last.

  The first line of .csv and .tsv names the columns.  Blank lines are left out.

  Args:
    paths: files, as `text_files.find_files` gives them.
    where: the configuration key that names them, for messages.

  Raises:
    UserError: files that are no tables, or more than 1 GiB; the first line that is not a record of as many fields as
      the header, not UTF-8 or not a JSON object.
  """
  check(paths, where=where)
  for path in paths:
    for number, record in _records(path, where=where):
      if isinstance(record, bad_records.DamagedRecord):
        raise UserError(f"{where}: {_location(path, number)}: {record.reason}")
      yield TableRecord(path, number, record)


def columns(paths: Sequence[str], *, where: str = "config.data.files") -> tuple[str, ...]:
  """The names of the columns of all files, in the order in which they first come; of JSON lines all lines are read.

  Raises:
    UserError: see `read_rows`; a table that lacks a column which another one has, except for JSON lines.
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
        f"{where}: {path}: has no column {missing[0]!r}, which {path_of_column[missing[0]]} has; its columns are"
        f" {fields.listed(names)}; give tables of the same columns"
      )
  return tuple(path_of_column)


def check(paths: Sequence[str], *, where: str) -> None:
  """Refuses files that are no tables, and more than memory should hold.

  Raises:
    UserError: names the file.
  """
  for path in paths:
    if text_files.kind(path, where=where) not in _KINDS:
      raise UserError(f"{where}: {path}: is not a table; give .csv, .tsv, .jsonl or .parquet")
  size = sum(stat.size for stat in text_files.stats(paths, where=where).values())
  if size > _LARGEST:
    raise UserError(
      f"{where}: {len(paths)} file(s) with {size:,} bytes; a table is held in memory, and may have {_LARGEST:,};"
      " give fewer rows, or register a task of your own (docs/own_tasks.md)"
    )


def _location(path: str, number: int) -> str:
  return f"{path}, {'record' if text_files.kind(path) == 'parquet' else 'line'} {number}"


def _header(path: str, *, where: str) -> list[str]:
  if text_files.kind(path, where=where) == "parquet":
    return parquet_files.names(path, where=where)
  return text_files.csv_header(path, where=where)


def _records(path: str, *, where: str) -> Iterator[tuple[int, Mapping[str, Any] | bad_records.DamagedRecord]]:
  file_kind = text_files.kind(path, where=where)
  if file_kind == "parquet":
    parquet_files.names(path, where=where)
    return parquet_files.rows(path, where=where)
  if file_kind == "json":
    return _json_rows(path, where=where)
  return text_files.csv_rows(path, where=where)


def _json_rows(path: str, *, where: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
  """The objects of JSON lines, or of a file that is one JSON list."""
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
  """The objects of a list; each has the number of the line that it begins in."""
  try:
    text = content.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    line = content[: error.start].count(b"\n") + 1
    raise UserError(f"{where}: {path}, line {line}: not valid UTF-8 ({error.reason}); convert it to UTF-8") from error
  decoder, position, number, counted = json.JSONDecoder(object_pairs_hook=text_files.once), text.index("[") + 1, 1, 0
  while True:
    position = _SPACE.match(text, position).end()
    if text.startswith("]", position):
      position = _SPACE.match(text, position + 1).end()
      if position < len(text):
        number += text.count("\n", counted, position)
        raise UserError(
          f"{where}: {path}, line {number}: goes on behind the end of its list; give each list a file of its own, or an"
          " object on each line (`jq -c '.[]'` makes lines of lists)"
        )
      return
    number, counted = number + text.count("\n", counted, position), position
    try:
      value, position = decoder.raw_decode(text, position)
    except (ValueError, RecursionError) as error:
      raise UserError(f"{where}: {path}, line {number}: not JSON ({error})") from error
    if not isinstance(value, dict):
      raise UserError(f"{where}: {path}, line {number}: is a JSON {fields.json_type(value)}, not an object")
    yield number, value
