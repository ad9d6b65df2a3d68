"""Reads rows of user tables, from files or from memory; each row has its location for messages."""

from collections.abc import Iterable, Mapping, Sequence
import functools
import hashlib
import json
from typing import Any, NamedTuple

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data.sources import tables, text_files


class TableRow(NamedTuple):
  """Row of a table.

  fields: column -> value: text, or a JSON or Parquet value.
  where: file and line, for messages: "train.tsv, line 7".
  """

  fields: Mapping[str, Any]
  where: str


class _RowsInMemory(NamedTuple):
  """Rows in memory.

  argument: name of the argument: "examples".
  names: column -> its classes in order, if known.
  """

  rows: tuple[TableRow, ...]
  argument: str
  names: Mapping[str, tuple[str, ...]]


_rows_in_memory: dict[str, _RowsInMemory] = {}


def keep(rows: Sequence[Mapping[str, Any]], *, where: str, names: Mapping[str, tuple[str, ...]]) -> str:
  """Keeps rows in memory, where `read` finds them.

  Args:
    rows: of a table.
    where: name of the argument, for messages.
    names: column -> its classes in order, if known.

  Returns:
    A name that replaces a glob of files; it contains a digest of the rows.
  """
  digest = hashlib.sha256(json.dumps(names, sort_keys=True).encode())
  for row in rows:
    digest.update(json.dumps(row, sort_keys=True, default=str).encode())
  name = f"{DataConfig.IN_MEMORY}{digest.hexdigest()[:16]}"
  _rows_in_memory[name] = _RowsInMemory(
    tuple(TableRow(row, f"{where}[{number}]") for number, row in enumerate(rows)), where, dict(names)
  )
  return name


def class_names(patterns: str, column: str) -> tuple[str, ...]:
  """Returns the classes of a column of rows in memory, in order, if they are known."""
  return _rows_in_memory[patterns].names.get(column, ()) if patterns in _rows_in_memory else ()


def described(patterns: str, *, key: str = "config.data.files=") -> str:
  """Names a table in messages: "config.data.files=train.tsv", or for rows in memory the argument, "examples"."""
  if patterns in _rows_in_memory:
    return _rows_in_memory[patterns].argument
  return DataConfig.described(patterns) if DataConfig.is_in_memory(patterns) else f"{key}{patterns}"


def find(patterns: str, *, where: str) -> tuple[str, ...]:
  """Returns the files of a table, sorted; () for rows in memory.

  Args:
    patterns: comma-separated globs, or the result of `keep`.
    where: the configuration key, for messages.

  Raises:
    UserError: a pattern matches no file, or a file is not a table.
  """
  return () if DataConfig.is_in_memory(patterns) else text_files.find_files(patterns, where=where)


def read(patterns: str, *, where: str) -> list[TableRow]:
  """Reads all rows of a table, in the order of files and lines.

  Args:
    patterns: see `find`.
    where: see `find`.

  Raises:
    UserError: see `find`; a file cannot be read or has no rows; or the rows were in the memory of another process.
  """
  if DataConfig.is_in_memory(patterns):
    if patterns not in _rows_in_memory:
      raise UserError(
        f"{where}={patterns}: these rows were passed to t2t.train by a Python program, and are not saved. Pass the rows"
        f" again as examples=, or give a table with --{where}=FILE."
      )
    return list(_rows_in_memory[patterns].rows)
  rows = _read(patterns, stamp(patterns, where=where), where)
  if not rows:
    raise UserError(
      f"{where}={patterns} has no row; give a table with a line of column names and at least one row below this line"
    )
  return rows


@functools.lru_cache(maxsize=2)
def _read(patterns: str, stamps: Any, where: str) -> list[TableRow]:
  del stamps  # cache key: changes with the files
  return [TableRow(row.values, row.location) for row in tables.read_rows(find(patterns, where=where), where=where)]


def forget() -> None:
  """Frees rows that have become examples; files may change before the next run in this process."""
  _read.cache_clear()
  text_files.sizes.cache_clear()


def names_of(rows: Iterable[TableRow]) -> list[str]:
  """Returns all columns, in the order of their first occurrence."""
  return list(dict.fromkeys(name for row in rows for name in row.fields))


def stamp(patterns: str, *, where: str) -> tuple[Any, ...]:
  """Returns names, sizes and modification times of files, to detect changes."""
  if not patterns or DataConfig.is_in_memory(patterns):
    return ()
  paths = find(patterns, where=where)
  return tuple(sorted((path, stat.size, stat.changed) for path, stat in text_files.stats(paths, where=where).items()))
