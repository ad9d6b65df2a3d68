"""Reads input lines and writes a resumable output file."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import io
import json
import os
import pathlib
import re
import sys
from typing import Any

from t2t import UserError
from t2t.storage import compression, encoding, gcs

PIPE = "-"  # path of standard input or output

Row = dict[str, Any]


# ---- Input -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Line:
  """A line of the input.

  number: from 1.
  text: "" if the line has only whitespace.
  others: other fields of a JSON object.
  """

  number: int
  text: str
  others: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Form:
  """Fields of input lines and their output rows.

  field: of an object, with its text.
  lists: fields that may have the texts as a list; joined, they replace the text.
  needs: required fields besides the text.
  may: optional fields that change the prediction.
  row_fields: fields of a row besides those of all rows.
  reads: reader of the text, for messages, such as "a tag head"; "": accepts any text.
  columns: text columns of the table that the model was fine-tuned on, or fields of `reads`; () without them.
  """

  field: str = "inputs"
  lists: tuple[str, ...] = ()
  needs: tuple[str, ...] = ()
  may: tuple[str, ...] = ()
  row_fields: tuple[str, ...] = ()
  reads: str = ""
  columns: tuple[str, ...] = ()


TEXTS = Form()
ADAPTER = "adapter"  # field that selects one of several adapters


_TABLES = re.compile(r"\.(csv|tsv|parquet)(\.\w+)?$", re.IGNORECASE)
_JSON = re.compile(r"\.json(\.\w+)?$", re.IGNORECASE)  # one list, or an object on each line


def is_table(path: str) -> bool:
  """Returns True if the file name is that of a table: .tsv, .csv or .parquet."""
  return bool(_TABLES.search(path))


def _has_rows(path: str) -> bool:
  return is_table(path) or bool(_JSON.search(path))


def location(path: str, number: int = 0, *, option: str = "--input") -> str:
  """Returns the name of a line of the input, or of the whole input, for messages."""
  name = "standard input" if path == PIPE else path
  if _has_rows(path) and number:
    return f"{option}: {name}, row {number}"
  return f"{option}: {name}, line {number}" if number else f"{option}: {name}"


def read(path: str, *, field: str = "", form: Form = TEXTS, option: str = "--input") -> Iterator[Line]:
  """Yields the lines of an input.

  Args:
    path: a .txt file with an input on each line, a .jsonl file with an object on each line, a .json list of
      objects, or a .tsv, .csv or .parquet table with column names. Each may be compressed, and local or gs://.
      "-" is standard input: its lines are objects if `field` is given or the form has further fields, otherwise
      texts.
    field: of an object, with its text; "": `form.field`.
    form: of the lines.
    option: of the path, for messages.

  Raises:
    UserError: the input is unreadable or empty; or a line, which the message names, is not UTF-8, not an
      object, or lacks the field.
  """
  number, where_of = 0, functools.partial(location, path, option=option)
  if _has_rows(path):
    for number, values in enumerate(_table_rows(path, option, (field,) if field else (*form.columns, form.field)), 1):
      # A table keeps all columns, including the text.
      text, _ = _taken(dict(values), field or form.field, where_of(number), form, named=bool(field))
      yield Line(number, text if text.strip() else "", values)
    if not number:
      raise UserError(f"{where_of()} has no row; give at least one row below the column names")
    return
  as_json = _is_json(path, field, form, option)
  with _open_input(path, option) as file:
    for number, content in enumerate(file, 1):  # noqa: B007  the last number is needed below
      where = where_of(number)
      text = _decoded(content, where)
      if number == 1:
        text = text.removeprefix("\ufeff")  # byte order mark of Windows editors
      other_fields: Mapping[str, Any] = {}
      if as_json and text.strip():
        text, other_fields = _parsed(text, field or form.field, where, form, named=bool(field))
      yield Line(number, text if text.strip() else "", other_fields)
  if not number:
    raise UserError(f"{where_of()} is empty; give at least one line")


def _table_rows(path: str, option: str, read: Sequence[str]) -> Iterator[dict[str, Any]]:
  """Yields the rows of a table with JSON values; the columns in `read` must not be bytes."""
  from t2t.data.sources import tables, text_files

  for row in tables.read_rows(text_files.find_files(path, where=option), where=option):
    if binary := [name for name in read if isinstance(row.values.get(name), bytes)]:
      raise UserError(
        f"{option}: {row.location}: column {binary[0]!r} is binary and not UTF-8; convert the column to text"
      )
    yield json.loads(json.dumps(dict(row.values), default=str))


def made(number: int, value: str | Mapping[str, Any], *, form: Form, where: str) -> Line:
  """Returns the line of a text, or of the fields of an object.

  Raises:
    UserError: the value is neither, or lacks a field; the message begins with `where`.
  """
  if isinstance(value, str):
    check_text(value, form.field, where)
    return Line(number, value if value.strip() else "", {})
  try:
    text = json.dumps(value)
  except TypeError as error:
    raise UserError(f"{where} cannot be converted to JSON ({error}); give a text, or a mapping of texts") from None
  line_text, other_fields = _parsed(text, form.field, where, form)
  return Line(number, line_text if line_text.strip() else "", other_fields)


def _is_json(path: str, field: str, form: Form, option: str) -> bool:
  if path == PIPE:
    return bool(field or form.needs or form.may or len(form.columns) > 1)
  name = path[: len(path) - len(compression.ending(path))].lower()
  if name.endswith((".jsonl", ".ndjson")):
    return True
  if not name.endswith(".txt"):
    packed = ", ".join(compression.FORMATS)
    raise UserError(
      f"{location(path, option=option)}: unknown file type. Give .txt (an input on each line), .jsonl (an object on "
      f"each line), a table (.tsv, .csv, .parquet, .json), or - for standard input. Files may be compressed ({packed})."
    )
  if field:
    raise UserError(
      f"--field {field}: {path} has lines of text without fields; leave out --field, or give a .jsonl file"
    )
  return False


@contextlib.contextmanager
def _open_input(path: str, option: str) -> Iterator[io.IOBase]:
  if path == PIPE:
    yield sys.stdin.buffer
    return
  if not gcs.is_remote(path) and not os.path.exists(os.path.expanduser(path)):
    raise UserError(f"{location(path, option=option)}: no such file; check the path")
  try:
    with gcs.open_binary(path) if gcs.is_remote(path) else open(os.path.expanduser(path), "rb") as file:
      yield compression.checked(file, path, where=option)
  except compression.DAMAGED as error:
    raise UserError(f"{location(path, option=option)}: {compression.damage(path, error)}") from error
  except OSError as error:
    raise UserError(
      f"{location(path, option=option)} cannot be read ({error.strerror or error}); check the path and its permissions"
    ) from error


def _decoded(content: bytes, where: str) -> str:
  content = content.removesuffix(b"\n").removesuffix(b"\r")
  try:
    return content.decode("utf-8")
  except UnicodeDecodeError as error:
    raise UserError(f"{where}: {encoding.not_utf8(content, error)}") from error


# Fields of a row that t2t writes; see `row`.
_OWN = ("line", "inputs", "prediction", "score", "alternatives", "probabilities", "fillings", "vector", "cut", "error")


# Predicted fields of all ways.
ROW_FIELDS = (*_OWN[2:], "probability", "tags", "words", "start", "end", "filled", "layers")


def _parsed(text: str, field: str, where: str, form: Form, *, named: bool = False) -> tuple[str, Mapping[str, Any]]:
  """Returns the text of a JSON object, and its other fields."""
  shown = text if len(text) <= 60 else text[:60] + "..."
  try:
    value = json.loads(text)
  except (ValueError, RecursionError) as error:
    reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
    raise UserError(f"{where} is not valid JSON ({reason}); correct this line: {shown}") from error
  if not isinstance(value, dict):
    raise UserError(f'{where} is {shown}, not a JSON object; write each line like {{"{field}": "..."}}')
  return _taken(value, field, where, form, named=named)


def _taken(value: dict[str, Any], field: str, where: str, form: Form, *, named: bool) -> tuple[str, Mapping[str, Any]]:
  """Returns the text of an object and its other fields; for table columns, all fields.

  Args:
    value: the object.
    field: with its text, unless the object has the columns of the form.
    where: location of the line, for messages.
    form: of the lines.
    named: whether the user gave the field.
  """
  if form.columns and not named and all(name in value for name in form.columns):
    if "line" in value:
      raise UserError(f"{where} has the field 'line', but this name is reserved for the output; rename the field")
    column_values = (value[name] for name in form.columns)
    return " ".join(x if isinstance(x, str) else "" if x is None else json.dumps(x) for x in column_values), value
  for name in form.lists:
    if name in value:
      value = {field: " ".join(texts(value, name, where))} | value
  if field not in value:
    field_names = ", ".join(map(repr, value)) or "none"
    lists = "".join(f" or the list {name!r}" for name in form.lists)
    if form.columns and not named:
      missing = next(name for name in form.columns if name not in value)
      if form.reads:
        raise UserError(
          f"{where} has no field {missing!r} (fields: {field_names}), but {form.reads} reads "
          f"{', '.join(map(repr, form.columns))}. Add or rename a field."
        )
      raise UserError(
        f"{where} has no column {missing!r} (columns: {field_names}). The model was trained on "
        f"{', '.join(map(repr, form.columns))}. Rename a column, or give the name of the text column with --field."
      )
    needed = f", but {form.reads} reads the text {field!r}{lists}" if form.reads else ""
    raise UserError(
      f"{where} has no field {field!r} (fields: {field_names}){needed}. Rename a field, or give the name of the text "
      "field with --field."
    )
  text = value.pop(field)
  check_text(text, field, where)
  reserved = [name for name in value if name in (*_OWN, *form.row_fields) and name not in form.lists]
  if reserved:
    raise UserError(
      f"{where} has the field {reserved[0]!r}, but this name is reserved for the output; rename the field"
    )
  return text, value


def check_text(text: Any, field: str, where: str) -> None:
  """Checks that a field of an object is a text.

  Raises:
    UserError: the field is not a string, or not valid Unicode.
  """
  if not isinstance(text, str):
    raise UserError(f"{where}: field {field!r} is {json.dumps(text)[:60]}, not a string; give a string")
  if reason := encoding.unpaired_surrogate(text):  # possible as a JSON escape
    raise UserError(f"{where}: field {field!r} {reason}")


def json_kind(value: Any) -> str:
  """Returns the name of a value's JSON type, with an article."""
  kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
  return kinds.get(type(value), "null")


def texts(fields: Mapping[str, Any], name: str, where: str) -> list[str]:
  """Returns the texts of a list field of an object.

  Raises:
    UserError: the field is not a non-empty list of texts.
  """
  items = fields[name]
  if not isinstance(items, list) or not items or not all(isinstance(text, str) for text in items):
    shown = json.dumps(items)[:60]
    raise UserError(f'{where}: field {name!r} is {shown}, not a list of texts; give a list such as ["a", "b"]')
  for text in items:
    check_text(text, name, where)
  return items


def row(line: Line, answer: Mapping[str, Any]) -> Row:
  """Returns the output row of an input line.

  In:  Line(3, "2 + 2 =", {"id": "a"}), {"prediction": "4", "score": -0.5}
  Out: {"line": 3, "inputs": "2 + 2 =", "prediction": "4", "score": -0.5, "id": "a"}
  """
  # Only a table may have columns with these names, see `_taken`.
  answer = {f"predicted_{name}" if name in line.others else name: x for name, x in answer.items()}
  return {"line": line.number, "inputs": line.text, **answer, **line.others}


def _is_of(written_row: Row, line: Line, form: Form) -> bool:
  # Compares JSON texts, because NaN does not equal itself.
  as_text = lambda fields: json.dumps(fields, sort_keys=True)
  own_names = (*_OWN, *form.row_fields)
  expected, output_names = (
    row(line, {}),
    (*own_names, *(f"predicted_{name}" for name in own_names if name in line.others)),
  )
  input_fields = {name: value for name, value in written_row.items() if name in expected or name not in output_names}
  return as_text(input_fields) == as_text(expected)


# ---- Output ----------------------------------------------------------------------------------------------------------


class Output:
  """Output rows as JSON lines, in the order of the input; no interruption duplicates or omits a row.

  `path`.run.json records the run that a file belongs to.

  Args:
    file: opened for reading and appending, or standard output.
    path: of the file; "-" is standard output.
    run: values that the rows depend on, by option.
  """

  def __init__(self, file: io.IOBase, path: str, run: Mapping[str, Any]):
    self._file, self._path, self._run = file, path, run
    self._size = self._done = 0
    if path != PIPE and os.fstat(file.fileno()).st_size:
      check_run(path, run)
      for content in self._contents():
        self._size += len(content)
        self._done += 1
    self._begun = False

  @property
  def done(self) -> int:
    return self._done

  def _contents(self) -> Iterator[bytes]:
    """Yields the stored rows as bytes, without an incomplete last row of a killed run."""
    if self._path == PIPE:
      return
    with open(self._path, "rb") as file:
      yield from (content for content in file if content.endswith(b"\n"))

  def rows(self) -> Iterator[Row]:
    """Yields the rows that the file had when it was opened.

    Raises:
      UserError: the file was modified by something else.
    """
    for number, content in zip(range(1, self._done + 1), self._contents()):  # noqa: B905  it grows meanwhile
      try:
        stored_row = json.loads(content)
      except ValueError:
        stored_row = None
      if not isinstance(stored_row, dict) or stored_row.get("line") != number or "inputs" not in stored_row:
        raise UserError(f"--output {self._path}: line {number} was not written by t2t; {self._start_anew()}")
      yield stored_row

  def beside(self, lines: Iterable[Line], *, where: str, form: Form = TEXTS) -> Iterator[tuple[Line, Row | None]]:
    """Yields each line of the input with its stored row, or None.

    Args:
      lines: of the input.
      where: location of the input, for messages.
      form: of its lines.

    Raises:
      UserError: the rows belong to another input.
    """
    rows = self.rows()
    for line in lines:
      stored_row = next(rows, None)
      if stored_row is not None and not _is_of(stored_row, line, form):
        raise UserError(
          f"--output {self._path} belongs to another input: line {line.number} of the output differs from line "
          f"{line.number} of {where}; {self._start_anew()}"
        )
      yield line, stored_row
    if next(rows, None) is not None:
      raise UserError(
        f"--output {self._path} belongs to another input: the output has {self._done} lines, more than {where}; "
        f"{self._start_anew()}"
      )

  def write(self, rows: Iterable[Row]) -> None:
    """Appends rows; they survive a killed run once this returns."""
    if not self._begun and self._path != PIPE:
      if not self._done:
        record_run(self._path, self._run)
      self._file.truncate(self._size)
    self._begun = True
    append(self._file, b"".join(map(_encoded, rows)), path=self._path)

  def _start_anew(self) -> str:
    return _start_anew(self._path)


def _start_anew(path: str) -> str:
  return f"give another --output, or delete {path} to start over"


def append(file: io.IOBase, content: bytes, *, path: str) -> None:
  """Writes all bytes to the file.

  Raises:
    UserError: the file cannot be written.
  """
  remaining = memoryview(content)
  try:
    while remaining:
      remaining = remaining[file.write(remaining) :]
    file.flush()
  except BrokenPipeError:
    raise
  except OSError as error:
    raise UserError(
      f"--output {path} cannot be written ({error.strerror}); free space or fix the permissions, then rerun the "
      "same command to resume"
    ) from error


# ---- Record of the run -----------------------------------------------------------------------------------------------


# Keys that describe the input of an output without texts.
_OF_LINES = ("lines", "texts")


def _record(path: str) -> pathlib.Path:
  return pathlib.Path(f"{path}.run.json")


def record_run(path: str, run: Mapping[str, Any]) -> None:
  """Writes the values that an output depends on beside it."""
  part = _record(path).with_name(_record(path).name + ".part")
  part.write_text(json.dumps(run, indent=2) + "\n")
  part.replace(_record(path))


def check_run(path: str, run: Mapping[str, Any]) -> None:
  """Checks that an existing output belongs to this run.

  Raises:
    UserError: it does not; lists the differences.
  """
  try:
    before = json.loads(_record(path).read_text())
  except (OSError, ValueError):
    raise UserError(
      f"--output {path} exists, but its record {_record(path).name} is missing or damaged; {_start_anew(path)}"
    ) from None
  differences = [
    f"--{name} {run.get(name)}, previously {before.get(name)}"
    for name in run | before
    if name not in ("input", *_OF_LINES) and before.get(name) != run.get(name)  # lines themselves are compared
  ]
  if differences:
    raise UserError(
      f"--output {path} belongs to a run with other options: {'; '.join(differences)}. Restore these values to resume "
      f"that run. Otherwise {_start_anew(path)}."
    )
  if any(before.get(name) != run.get(name) for name in _OF_LINES):
    raise UserError(
      f"--output {path} belongs to another input: the lines of {run['input']} differ from the recorded "
      f"lines; {_start_anew(path)}"
    )


def _encoded(fields: Row) -> bytes:
  try:
    return (json.dumps(fields, ensure_ascii=False) + "\n").encode()
  except UnicodeEncodeError:  # unpaired surrogate in another field, kept escaped
    return (json.dumps(fields) + "\n").encode()


@contextlib.contextmanager
def output(path: str, run: Mapping[str, Any]) -> Iterator[Output]:
  """Opens the output of a run, locked against other processes; "-" is standard output.

  Raises:
    UserError: the file cannot be written, or belongs to another run; lists the differences.
  """
  if path == PIPE:
    yield Output(sys.stdout.buffer, path, run)
    return
  with opened(path) as file:
    yield Output(file, os.path.expanduser(path), run)


def check_local(path: str) -> None:
  """Checks that an output is local, before the input is read.

  Raises:
    UserError: the output is on a bucket.
  """
  if "://" in path:
    raise UserError(
      f"--output {path} must be a local file, because t2t cannot append to a file in a bucket; give a local path and "
      "copy the file afterwards"
    )


@contextlib.contextmanager
def opened(path: str) -> Iterator[io.IOBase]:
  """Opens a local file for reading and appending, locked against other processes.

  Raises:
    UserError: the file cannot be written, or is locked.
  """
  from t2t.runtime import file_lock

  check_local(path)
  path = os.path.expanduser(path)
  try:
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a+b", buffering=0)  # noqa: SIM115  closed below
  except OSError as error:
    raise UserError(f"--output {path} cannot be written ({error.strerror}); give another path") from error
  with file:
    try:
      is_free = file_lock.lock(file)
    except OSError as error:
      raise UserError(f"--output {path}: its file system has no locks ({error.strerror}); give another path") from error
    if not is_free:
      raise UserError(
        f"--output {path}: another process is writing to this file; wait for that process, or give another --output"
      )
    yield file
