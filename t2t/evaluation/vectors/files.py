"""Lines and tab-separated rows of evaluation files."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from t2t import UserError
from t2t.storage import encoding, gcs, safe_read


class Row(NamedTuple):
  """Row of a table: the fields by column, and file and line for messages."""

  fields: Mapping[str, str]
  where: str


def lines(path: str) -> list[str]:
  """Returns the lines of a file, local or gs://, without line ends.

  Raises:
    UserError: the file is missing, empty, or not UTF-8.
  """
  gcs.check(path, where="FILE ")
  text = safe_read.read_text(gcs.absolute(path), where=f"FILE {path}")
  if not text.strip():
    raise UserError(f"FILE {path} is empty. Give a file with at least one line of text.")
  return encoding.lines(text)


def rows(path: str, columns: Sequence[str], *, headless: Mapping[str, int] | None = None) -> list[Row]:
  """Returns the rows of a tab-separated table; quotes are letters, as in the files of the STS benchmark.

  Args:
    path: of the file, local or gs://.
    columns: names that the header must have.
    headless: column -> index, for files without these names in the first line; None: a header is required.

  Raises:
    UserError: a column is missing, or a row has too few fields.
  """
  table = lines(path)
  header = table[0].split("\t")
  missing = [name for name in columns if name not in header]
  indices = {name: index for index, name in enumerate(header)}
  if missing and headless is None or 0 < len(missing) < len(columns):
    raise UserError(
      f"FILE {path}, line 1: no column {missing[0]!r} (columns: {', '.join(header)}). Give a tab-separated table with "
      f"the columns {', '.join(columns)}."
    )
  first = 2
  if missing:
    assert headless is not None
    indices, first = dict(headless), 1
  table_rows, least = [], max(indices[name] for name in columns) + 1
  for number, line in enumerate(table[first - 1 :], first):
    if not line.strip():
      continue
    where, fields = f"FILE {path}, line {number}", line.split("\t")
    if len(fields) < least:
      raise UserError(
        f"{where} has {len(fields)} fields, separated by tabs, but needs {least} ({', '.join(columns)}). Correct the "
        "line."
      )
    table_rows.append(Row({name: fields[i].strip() for name, i in indices.items() if i < len(fields)}, where))
  if not table_rows:
    raise UserError(f"FILE {path} has a header and no rows. Give at least one row.")
  return table_rows


def number(row: Row, column: str) -> float:
  """Returns a field as a finite number.

  Raises:
    UserError: it is not a number.
  """
  text = row.fields[column]
  try:
    value = float(text)
  except ValueError:
    value = float("nan")
  if not abs(value) < float("inf"):
    raise UserError(f"{row.where}: {column} is {text!r}, not a number. Correct the line.")
  return value


def text_of(row: Row, column: str) -> str:
  """Returns a field with text.

  Raises:
    UserError: it is empty.
  """
  if not row.fields[column]:
    raise UserError(
      f"{row.where}: {column} is empty, and an empty text has no vector. Remove the row, or add the text."
    )
  return row.fields[column]
