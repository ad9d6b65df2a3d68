"""Reads CSV (RFC 4180) and TSV: a header, then rows, each numbered by the line in which it begins."""

from collections.abc import Iterable, Iterator, Sequence
import csv
import re

from t2t import UserError
from t2t.data.sources import bad_records
from t2t.storage import encoding

_DELIMITERS = (",", ";", "\t", "|")
_DELIMITER_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_SEPARATOR = re.compile(r"\ufeff?sep=(.)\r?\n?", re.IGNORECASE)  # first line of a file written by Excel
_LARGEST_FIELD = 64 * 2**20  # characters
_MOST_LINES = 100_000  # of one row; an unclosed quote would extend to the end of the file


class _Lines:
  """Decodes lines for `csv.reader`, and counts them."""

  def __init__(self, lines: Iterable[tuple[int, bytes]]):
    self._lines = iter(lines)
    self.number = 0
    self.begin = 1  # first line of the row
    self.reason = ""  # why the row is malformed
    self.read: list[str] = []  # lines of the row

  def start(self) -> None:
    self.begin, self.reason, self.read = self.number + 1, "", []

  def __iter__(self):
    return self

  def __next__(self) -> str:
    self.read.append(line := self._next())
    return line

  def _next(self) -> str:
    self.number, line = next(self._lines)
    if self.number - self.begin > _MOST_LINES:
      raise csv.Error(f"a quoted field spans more than {_MOST_LINES:,} lines")
    if isinstance(line, bad_records.DamagedRecord):
      self.reason = self.reason or line.reason
      return "\n"
    if self.number == 1:
      line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark, written by Excel
    try:
      return line.decode("utf-8")
    except UnicodeDecodeError as error:
      self.reason = self.reason or encoding.not_utf8(line, error)
      return line.decode("utf-8", errors="replace")


def rows(
  lines: Iterable[tuple[int, bytes]], *, path: str, where: str, tabs: bool = False
) -> Iterator[tuple[int, dict[str, str] | bad_records.DamagedRecord]]:
  """Yields the rows below the header, each with the number of its first line; skips blank lines.

  In:  b'id,text\\n', b'1,"a ""b""\\n', b'c"\\n'
  Out: (2, {"id": "1", "text": 'a "b"\\nc'})

  Args:
    lines: of the file, with their numbers; a file without lines has no rows.
    path: of the file, for messages.
    where: the configuration key that names it.
    tabs: whether tabs separate the columns. Then a line is a row, and quotes are letters, except around a whole field.
      Otherwise commas separate them; or semicolons, tabs or bars if the header has no comma; or the separator in a line
      `sep=;` above the header, written by Excel.

  Raises:
    UserError: there is no header, or a name in it is missing or repeated. The first name may be missing, as for the row
      index written by pandas; that column is left out.
  """
  header: list[str] | None = None
  for number, row, delimiter in _fields(lines, path=path, where=where, tabs=tabs):
    if header is None:
      header = row
    elif isinstance(row, bad_records.DamagedRecord):
      yield number, row
    elif len(row) == len(header):
      if len(row) > 1 or row[0]:
        yield number, {name: value for name, value in zip(header, row, strict=True) if name}
    elif row and row != [""]:
      reason = (
        f"the row has {'no' if len(row) == 1 else f'{len(row)} fields, separated by'} {_DELIMITER_NAMES[delimiter]},"
        f" but the header has {len(header)} fields"
      )
      hint = (
        "Separate fields by one tab. If a field contains a tab or a line break, write the table as CSV."
        if tabs
        else _quote_hint(delimiter)
      )
      yield number, bad_records.DamagedRecord(b"", f"{reason}. {hint}")


def header(lines: Iterable[tuple[int, bytes]], *, path: str, where: str, tabs: bool = False) -> list[str]:
  """Returns the column names; arguments and errors as in `rows`, but a file without lines is an error."""
  _, names, _ = next(_fields(lines, path=path, where=where, tabs=tabs), (0, None, ""))
  if names is None:
    raise UserError(f"{where}: {path} is empty; give a table with the names of the columns in the first line")
  return [name for name in names if name]


def _fields(
  lines: Iterable[tuple[int, bytes]], *, path: str, where: str, tabs: bool
) -> Iterator[tuple[int, list[str] | bad_records.DamagedRecord, str]]:
  """Yields line, fields and delimiter of each row; the first row is the header, which is checked."""
  csv.field_size_limit(_LARGEST_FIELD)
  numbered = _Lines(lines)
  delimiter, header_reason, is_header = "\t", "", True
  reader: Iterator[list[str]] = map(_tab_row, numbered)
  if not tabs:
    first = next(numbered, "")
    separator = _SEPARATOR.fullmatch(first)
    if separator and separator[1] not in _DELIMITERS:
      *names, last = _DELIMITER_NAMES.values()
      raise UserError(
        f"{where}: {path}, line 1: the separator in {first.strip()!r} is not supported; separate columns by"
        f" {', '.join(names)} or {last}"
      )
    if separator:
      first = next(numbered, "")
    delimiter, header_reason = separator[1] if separator else _delimiter(first), numbered.reason
    numbered.number = int(bool(separator))
    reader = csv.reader(_Chained(first, numbered), delimiter=delimiter, strict=True)
  while True:
    numbered.start()
    numbered.reason = header_reason if is_header else ""
    try:
      row = next(reader, None)
    except csv.Error as error:
      row, numbered.reason = [], numbered.reason or _csv_reason(error)
    if row is None:
      return
    if not (tabs or numbered.reason):
      numbered.reason = _spaced_quote(row, numbered.read, delimiter)
    if is_header:
      location = f"{where}: {path}, line {numbered.begin}"
      if numbered.reason:
        raise UserError(f"{location}: {numbered.reason}")
      row, is_header = _checked_header(row, delimiter, location=location), False
    yield numbered.begin, bad_records.DamagedRecord(b"", numbered.reason) if numbered.reason else row, delimiter


class _Chained:
  """Iterator over the first line and all others, counted as they are read."""

  def __init__(self, first: str, following: _Lines):
    self._first, self._following = first, following

  def __iter__(self):
    return self

  def __next__(self) -> str:
    if self._first:
      first, self._first = self._first, ""
      self._following.number += 1
      self._following.read.append(first)
      return first
    return next(self._following)


def _delimiter(header: str) -> str:
  outside = "".join(header.split('"')[::2])
  return next((delimiter for delimiter in _DELIMITERS if delimiter in outside), ",")


def _spaced_quote(row: Sequence[str], lines: Sequence[str], delimiter: str) -> str:
  """Returns the reason why a quote after a space quotes nothing; "" if there is no such quote."""
  if not any(field[:1] == " " and field.lstrip(" ")[:1] == '"' for field in row):
    return ""
  try:
    (unspaced_row,) = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
  except (csv.Error, ValueError):
    unspaced_row = []
  if [field.lstrip(" ") for field in unspaced_row] == [field.lstrip(" ") for field in row]:
    return ""
  name = _DELIMITER_NAMES[delimiter].removesuffix("s")
  return f'a quote after a {name} and a space quotes nothing; remove the space: {delimiter}"..."'


def _quote_hint(delimiter: str) -> str:
  name = _DELIMITER_NAMES[delimiter].removesuffix("s")
  return f'Put a field with a {name} or a line break in quotes: "...".'


def _csv_reason(error: csv.Error) -> str:
  message = str(error)
  if "new-line character" in message:
    return "lines end in carriage returns without line feeds; convert the file, for example with `tr '\\r' '\\n'`"
  if "expected after" in message:
    return 'a quote is inside a quoted field; double the inner quote: ""'
  if "unexpected end" in message:
    return "a quote is opened here and never closed; close the quote"
  return f"not CSV ({message}); correct the row"


def _tab_row(line: str) -> list[str]:
  return [_unquoted(field) for field in line.rstrip("\r\n").split("\t")]


def _unquoted(field: str) -> str:
  """Removes the quotes around a field if all inner quotes are doubled, because other programs write fields so."""
  inner = field[1:-1]
  if len(field) < 2 or field[0] != '"' or field[-1] != '"' or '"' in inner.replace('""', ""):
    return field
  return inner.replace('""', '"')


def _checked_header(row: Sequence[str], delimiter: str, *, location: str) -> list[str]:
  names = [name.strip() for name in row]
  if not any(names):
    raise UserError(f"{location}: no header; name the columns in the first line, separated by commas or tabs")
  for i, name in enumerate(names):
    if not name and i:
      raise UserError(
        f"{location}: column {i + 1} of the header has no name; give each column a different name in a line above the"
        " first row"
      )
    if names.count(name) > 1:
      raise UserError(
        f"{location}: the header, separated by {_DELIMITER_NAMES[delimiter]}, names {name!r} {names.count(name)} times;"
        " give each column a different name"
      )
  return names
