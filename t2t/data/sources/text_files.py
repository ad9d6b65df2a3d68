"""Reads text files in plain Python: lines, JSON lines, Parquet, TFRecord and others, local or in a bucket.

Records are numbered from 1, and all readers use `parse`. So a bad record raises the same error, with the same file and
line, wherever it is read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import concurrent.futures
import contextlib
import dataclasses
import errno
import functools
import glob
import io
import itertools
import json
import os
import pathlib
import re
from typing import Any

import numpy as np

from t2t import UserError
from t2t.data.sources import bad_records, fields
from t2t.runtime import console, data_packages
from t2t.storage import compression, encoding, gcs, safe_read
from t2t.storage import tfrecord as tfrecords

tf = data_packages.lazy_module("tensorflow")

# File kind -> end of the file name; TFRecord shards end in .tfrecord-00000-of-00008.
_COMPRESSED = "(" + "|".join(map(re.escape, compression.FORMATS)) + ")?$"
KINDS = {
  "text": re.compile(r"\.txt" + _COMPRESSED, re.IGNORECASE),
  "pairs": re.compile(r"\.tsv" + _COMPRESSED, re.IGNORECASE),  # texts and translations
  "csv": re.compile(r"\.csv" + _COMPRESSED, re.IGNORECASE),
  "tmx": re.compile(r"\.tmx" + _COMPRESSED, re.IGNORECASE),  # translation memories
  "json": re.compile(r"\.(jsonl|json|ndjson)" + _COMPRESSED, re.IGNORECASE),
  "parquet": re.compile(r"\.parquet$", re.IGNORECASE),
  "tfrecord": re.compile(r"\.tfrecords?([-.][\w-]+)*$", re.IGNORECASE),
  "array_record": re.compile(r"\.array_?records?([-.][\w-]+)*$", re.IGNORECASE),
  "tokens": re.compile(r"\.(npy|bin)$", re.IGNORECASE),  # ids, see token_files.py
}
_ENDINGS = (
  ".txt, .jsonl, .json, .csv, .tsv or .tmx, each also compressed (.gz, .bz2, .xz, .zst, .br), .parquet, "
  ".tfrecord* or .array_record*; with token ids in .npy or .bin"
)
# End of the name of an unsupported file -> what to do.
_OTHERS = {
  ".zip": "Unpack the file with `unzip`.",
  ".tar": "Unpack the file with `tar -xf`.",
  ".tar.gz": "Unpack the file with `tar -xf`.",
  ".tgz": "Unpack the file with `tar -xf`.",
  ".7z": "Unpack the file.",
  ".lz4": "Unpack the file with `lz4 -d`.",
  ".xls": "Save the file as CSV (UTF-8).",
  ".xlsx": "Save the file as CSV (UTF-8).",
  ".arrow": "Write the file as Parquet.",
  ".feather": "Write the file as Parquet.",
  ".parquet.gz": "Unpack the file with `gunzip`, because Parquet is already compressed.",
}

_BLOCK = 2**20  # bytes per read
_MOST_COMMAS = 8  # parts of a comma-separated list that are tried as one name
_HEAD = 400  # first bytes of a file, which identify its format
# One kilobyte of gzip can expand to a line of one megabyte.
_LONGEST_LINE = 64 * 2**20
_ENDLESS = 2**29


def kind(path: str, *, where: str = "config.data.files") -> str:
  """Returns the kind of a file, a key of `KINDS`.

  Raises:
    UserError: the end of the name is unknown.
  """
  name = path.rsplit("/", 1)[-1]
  for file_kind, pattern in KINDS.items():
    if pattern.search(name):
      return file_kind
  step = next((f"{step} " for end, step in _OTHERS.items() if name.lower().endswith(end)), "")
  raise UserError(f"{where}: {path}: unknown file format. {step}The name must end in {_ENDINGS}.")


def _has_kind(name: str) -> bool:
  return "." in name[1:] and not name.startswith(".") and any(pattern.search(name) for pattern in KINDS.values())


# ---- Finding files ---------------------------------------------------------------------------------------------------


def find_files(patterns: str, *, where: str = "config.data.files", pairs: bool = True) -> tuple[str, ...]:
  """Returns all files that comma-separated globs match, sorted; a file with several names or links is listed once.

  Args:
    patterns: local or in a bucket (gs://...); `**` matches nested folders. The name of an existing file is used
      literally, with brackets and commas.
    where: name of the setting, for messages.
    pairs: whether to allow files of texts and translations.

  Raises:
    UserError: a pattern matches no file; names the part of its path that exists.
  """
  paths: set[str] = set()
  for pattern in _split(os.fspath(patterns)):
    matches = gcs.glob(pattern, where=where) if gcs.is_remote(pattern) else _glob(pattern)
    if not matches:
      from t2t.data.sources import unmatched

      raise UserError(unmatched.explained(pattern, where=where, has_kind=_has_kind))
    paths.update(matches)
  if not paths:
    raise UserError(f"{where} is empty; give a path or glob of files that end in {_ENDINGS}")
  for path in paths:
    if kind(path, where=where) == "pairs" and not pairs:
      raise UserError(
        f"{where}: {path} has two tab-separated columns in each line, but only one text is read. Give a file for each"
        " language; `cut -f1` extracts the first column."
      )
  return _each_once(sorted(paths), where=where)


def _split(patterns: str) -> list[str]:
  """Splits at commas, except those in the name of an existing file."""
  parts, globs = patterns.split(","), []
  while parts:
    names = [(length, ",".join(parts[:length]).strip()) for length in range(min(len(parts), _MOST_COMMAS), 1, -1)]
    length, part = next(
      (candidate for candidate in names if os.path.isfile(os.path.expanduser(candidate[1]))), (1, parts[0].strip())
    )
    parts = parts[length:]
    if part:
      globs.append(part if gcs.is_remote(part) else str(pathlib.Path(part).expanduser()))
  return globs


def _glob(pattern: str) -> list[str]:
  """Returns the local files that a pattern matches; brackets that match nothing are literal."""
  if os.path.isfile(pattern):
    return [pattern]
  paths: list[str] = []
  for variant in (pattern, pattern.replace("[", "[[]")):
    paths = paths or [path for path in _expanded(variant) if not os.path.isdir(path)]
  return paths


def _expanded(pattern: str) -> list[str]:
  """Expands as `glob.glob`, but `**` enters each folder once, because cyclic links would double with each level."""
  names = pattern.split(os.sep)
  if "**" not in names:
    return glob.glob(pattern)
  wildcard_index = names.index("**")
  head, tail = os.sep.join(names[:wildcard_index]), os.sep.join(names[wildcard_index + 1 :]) or "*"
  bases = glob.glob(head) if head else [os.sep if wildcard_index else ""]
  return [
    path for base in bases for folder in _folders(base) for path in _expanded(os.path.join(glob.escape(folder), tail))
  ]


def _folders(base: str) -> Iterator[str]:
  """Yields a folder and all folders below it, except hidden ones; linked folders last, each once."""
  folders, links, seen = [base], [], set()
  while folders or links:
    folder = folders.pop() if folders else links.pop(0)
    if (real := os.path.realpath(folder)) in seen:
      continue
    seen.add(real)
    yield folder
    try:
      with os.scandir(folder or ".") as entries:
        inner = [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError:  # unreadable folder, skipped as in `glob`
      continue
    for entry in sorted(inner, key=lambda entry: entry.name):
      (links if entry.is_symlink() else folders).append(os.path.join(folder, entry.name))


def _each_once(paths: Sequence[str], *, where: str) -> tuple[str, ...]:
  """Returns the first name of each file; later names, through links or linked folders, are dropped."""
  first_names: dict[str, str] = {}
  repeats: list[tuple[str, str]] = []
  folder_of = functools.cache(os.path.realpath)
  for path in paths:
    real = path
    if not gcs.is_remote(path):
      folder, name = os.path.split(path)
      real = os.path.realpath(path) if os.path.islink(path) else os.path.join(folder_of(folder), name)
    if real in first_names:
      repeats.append((path, first_names[real]))
    else:
      first_names[real] = path
  if repeats:
    suffix = f" (and {len(repeats) - 1:,} others are found twice)" if len(repeats) > 1 else ""
    _tell_once(f"{where}: {repeats[0][0]} is the same file as {repeats[0][1]}{suffix}; each is read once")
  return tuple(first_names.values())


@functools.cache
def _tell_once(text: str) -> None:
  console.tell(text)


@dataclasses.dataclass(frozen=True)
class Stat:
  """File state for change detection: size in bytes, and modification time in nanoseconds or generation."""

  size: int
  changed: int


def stats(paths: Sequence[str], *, where: str = "config.data.files") -> dict[str, Stat]:
  """Returns the state of each file, requested in parallel; opens none.

  Raises:
    UserError: a file is missing or unreadable; names it.
  """

  def local(path: str) -> Stat:
    try:
      status = os.stat(path)
      if not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
      raise UserError(
        f"{where}: {path} cannot be read ({error.strerror}); check the path and permissions of the file"
      ) from error
    return Stat(status.st_size, status.st_mtime_ns)

  remote = [path for path in paths if gcs.is_remote(path)]
  listed = gcs.stats(remote, where=where) if remote else {}
  with concurrent.futures.ThreadPoolExecutor(32) as pool:
    file_stats = pool.map(lambda path: Stat(*listed[path]) if path in listed else local(path), paths)
    return dict(zip(paths, file_stats, strict=True))


@functools.lru_cache(maxsize=64)
def sizes(paths: tuple[str, ...]) -> tuple[int, ...]:
  """Returns the bytes of each file; cached during a run."""
  return tuple(stat.size for stat in stats(paths).values())


# ---- Records ---------------------------------------------------------------------------------------------------------


def parse(path: str, number: int, record: bytes, *, field: str, where: str = "config.data.files") -> str:
  """Returns the text of one record, without white space around it; "" for a blank record, which readers skip.

  Args:
    path: the file; its name determines the kind of the record.
    number: of the record in the file, from 1; the line number if the file has lines. A .tsv line has two texts, of
      which the first is returned.
    record: a line, a serialised tf.train.Example, or the text itself (Parquet, TMX).
    field: text field of JSON objects and Examples; for TMX the language.
    where: name of the setting, for messages.

  Raises:
    UserError: the record is malformed; names file and line.
  """
  file_kind = kind(path, where=where)
  unit = "line" if file_kind in ("text", "json", "pairs", "csv") else "unit" if file_kind == "tmx" else "record"
  location = f"{where}: {path}, {unit} {number}"
  if isinstance(record, bad_records.DamagedRecord):
    raise UserError(f"{location}: {record.reason}")
  if file_kind == "array_record":
    from t2t.data.sources import array_records

    file_kind = array_records.kind(record)
  if file_kind == "tfrecord":
    record = _example_field(record, field=field, location=location)
  if file_kind == "tmx":
    from t2t.data.sources import tmx

    return tmx.text(json.loads(record), field)
  if file_kind == "csv":
    return _csv_field(json.loads(record), field, location=location, where=where)
  try:
    text = record.decode("utf-8")
  except UnicodeDecodeError as error:
    if file_kind in ("parquet", "tfrecord"):
      raise UserError(
        f"{location}: field {field!r} is not valid UTF-8 (byte {error.start + 1}, {error.reason}); {_field_key(where)},"
        " or write the field as strings"
      ) from error
    raise UserError(f"{location}: {encoding.not_utf8(record, error, unit=unit, head=_head(path))}") from error
  if number == 1:
    text = text.removeprefix("\ufeff")  # a byte order mark, as Windows editors write
  if file_kind == "pairs" and not text.isspace():
    columns = text.rstrip("\r\n").split("\t")
    if len(columns) != 2:
      raise UserError(
        f"{location}: the line has {'no tab' if len(columns) == 1 else f'{len(columns)} columns, separated by tabs'};"
        " give a text and its translation, separated by one tab"
      )
    text = columns[0]
  if file_kind != "json":
    return text.strip()
  if not text or text.isspace():
    return ""
  try:
    return fields.text(_object(text, field, location=location), field, key=_field_key(where)).strip()
  except fields.UnreadableField as error:
    raise UserError(f"{location}: {error}") from error


def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
  """Builds a JSON object without repeated names, for `json.loads(object_pairs_hook=)`.

  Raises:
    ValueError: a name is repeated; parsers disagree which value counts.
  """
  if (name := safe_read.name_given_twice(pairs)) is not None:
    raise ValueError(f"{name!r} is repeated in an object; give each name once")
  return dict(pairs)


def _object(text: str, field: str, *, location: str, hook: Callable | None = None) -> Mapping[str, Any]:
  """Parses a line of JSON as an object."""
  try:
    value = json.loads(text.rstrip("\r\n"), object_pairs_hook=hook)
  except (ValueError, RecursionError) as error:
    reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
    shown = text.strip() if len(text) <= 60 else text[:60].strip() + "..."
    hint = " `jq -c '.[]'` converts a file with one list, and `jq -c .` an indented file."
    raise UserError(
      f"{location}: {shown!r} is not JSON ({reason}). Each line must be one object."
      + (hint if text.strip() in ("[", "{", "[{") else "")
    ) from error
  if isinstance(value, dict):
    return value
  hint = " `jq -c '.[]'` converts a list to lines." if isinstance(value, list) and value else ""
  raise UserError(
    f"{location}: the line has the JSON type {fields.json_type(value)}, not object. Each line must be like"
    f' {{"{field}": ...}}.{hint}'
  )


def json_object(path: str, number: int, line: bytes, *, where: str) -> Mapping[str, Any] | None:
  """Parses a line of JSON as an object; returns None for a blank line.

  Raises:
    UserError: the line is not a JSON object, or not UTF-8; names the file and the line.
  """
  location = f"{where}: {path}, line {number}"
  if isinstance(line, bad_records.DamagedRecord):
    raise UserError(f"{location}: {line.reason}")
  try:
    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
  except UnicodeDecodeError as error:
    raise UserError(f"{location}: {encoding.not_utf8(line, error, head=_head(path))}") from error
  return _object(text, "text", location=location, hook=once) if text.strip() else None


def _csv_field(row: Mapping[str, str], field: str, *, location: str, where: str) -> str:
  if field not in row:
    raise UserError(f"{location}: no column {field!r} (columns: {fields.listed(row)}); {_field_key(where)}")
  return row[field].strip()


def _head(path: str) -> bytes:
  """Returns the first bytes of a file, which identify its format."""
  try:
    with gcs.open_binary(path) if gcs.is_remote(path) else open(path, "rb") as file:
      return file.read(_HEAD)
  except OSError:
    return b""


def marked(path: str, number: int, record: bytes, *, field: str, annotations: str, where: str) -> np.ndarray:
  """Returns the annotated ranges of characters in the text that `parse` returns: int32 [n, 2].

  In:  {"text": " Ann saw Rome", "entities": [[1, 4], [9, 13]]}
  Out: [[0, 3], [8, 12]]

  Args:
    path, number, record, field, where: as in `parse`, which accepts the record.
    annotations: name of the field with [start, end] of each phrase.

  Raises:
    UserError: the file is not JSON lines, the field is missing, or ranges overlap or exceed the text.
  """
  if kind(path, where=where) != "json":
    raise UserError(
      f"{where}: {path} has no annotated phrases, but the objective masks annotated phrases. Give JSON lines with a"
      f" field {annotations!r}, a list of [start, end] of each phrase. For another field name, set"
      " config.data.annotations."
    )
  location = f"{where}: {path}, line {number}"
  value = json.loads(record.decode("utf-8-sig"))
  ranges = value.get(annotations)
  if not isinstance(ranges, list):
    problem = f"field {annotations!r} is not a list" if annotations in value else f"no field {annotations!r}"
    raise UserError(
      f"{location}: {problem} (fields: {fields.listed(value)}). Set config.data.annotations to the name of the list"
      " with [start, end] of each phrase. The list of a text without phrases is []."
    )
  text = fields.text(value, field, key=_field_key(where))
  from t2t.data.objectives import entity_masking

  phrases = entity_masking.checked(ranges, len(text), location=f"{location}: field {annotations!r}")
  # `parse` strips the text, so phrases are shifted and cut.
  phrases = np.clip(phrases - (len(text) - len(text.lstrip())), 0, len(text.strip()))
  return phrases[phrases[:, 0] < phrases[:, 1]]


def _field_key(where: str) -> str:
  """Returns the advice to set the field: a config key, or the option beside `--input`."""
  return (
    "set config.data.field to the name of the text field"
    if where.startswith("config.")
    else "give the name of the text field as --field"
  )


def _example_field(record: bytes, *, field: str, location: str) -> bytes:
  parse = tf.train.Example.FromString
  try:
    features = parse(record).features.feature
  except Exception as error:  # protobuf's DecodeError has moved between its versions
    raise UserError(
      f"{location}: not a serialised tf.train.Example; write the TFRecord file with records of type tf.train.Example"
    ) from error
  if field not in features:
    raise UserError(
      f"{location}: no feature {field!r} (features: {fields.listed(sorted(features))}); {_field_key(location)}"
    )
  values = features[field].bytes_list.value
  if len(values) != 1:
    stored = features[field].WhichOneof("kind") or "nothing"
    raise UserError(
      f"{location}: feature {field!r} must contain one byte string, not {len(values)} (stored as {stored});"
      f" {_field_key(location)}"
    )
  return values[0]


# ---- Reading in plain Python -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _open_decompressed(path: str, *, where: str) -> Iterator[io.BufferedReader]:
  """Opens and decompresses a file; reads raise OSError, or the errors of `compression.opened` for damaged content."""
  with gcs.open_binary(path) if gcs.is_remote(path) else open(path, "rb", buffering=_BLOCK) as file:
    yield compression.opened(file, path, where=where) if compression.ending(path) else file


def _lines(path: str, start: int, stop: int, where: str) -> Iterator[tuple[int, bytes]]:
  """Yields lines as `lines` does, with the original exceptions."""
  with _open_decompressed(path, where=where) as file:
    position = start
    if start:
      file.seek(start - 1)
      # The end of the previous line belongs to the previous range.
      position += _to_line_end(file) - 1
    number = 0
    while not stop or position < stop:
      line = file.readline(_LONGEST_LINE + 1)
      if not line:
        return
      number += 1
      position += len(line)
      if not start and number == 1 and (compressed_kind := compression.sniff(line)):
        raise compression.renamed(path, compressed_kind, where=where)
      if len(line) > _LONGEST_LINE and not line.endswith(b"\n"):
        line_rest = _to_line_end(file)
        line = bad_records.DamagedRecord(
          b"",
          f"the line has {len(line) + line_rest:,} bytes, more than the limit of {_LONGEST_LINE:,}; split the line",
        )
        position += line_rest
      yield number, line


def _to_line_end(file: io.BufferedReader) -> int:
  """Reads up to the end of a line; returns the number of bytes.

  Raises:
    ValueError: the line is too long to be text.
  """
  num_bytes = 0
  while block := file.readline(_BLOCK):
    num_bytes += len(block)
    if block.endswith(b"\n"):
      break
    if num_bytes > _ENDLESS:
      raise ValueError(f"no line ends within {_ENDLESS:,} bytes")
  return num_bytes


def lines(path: str, *, where: str, start: int = 0, stop: int = 0) -> Iterator[tuple[int, bytes]]:
  """Yields the lines that begin in bytes `start` to `stop` (0: the end), numbered from the first of them.

  Raises:
    UserError: the file cannot be read to its end.
  """
  number = 0
  try:
    for number, line in bad_records.patiently(lambda: _lines(path, start, stop, where), path):
      yield number, line
  except compression.DAMAGED as error:
    packed = compression.FORMATS[compression.ending(path)]
    raise UserError(
      f"{where}: {path}: truncated or corrupt {packed.name} after line {number} ({error}). Check the file with"
      f" `{packed.test}`, and copy or download the file again."
    ) from error
  except UserError:
    raise
  except ValueError as error:
    raise UserError(f"{where}: {path} is not text after line {number} ({error}); give a text file") from error
  except OSError as error:
    after = f"line {number}" + (f" after byte {start}" if start else "")
    raise bad_records.interrupted(path, after, error, where=where) from error


def _tfrecords(path: str, *, where: str) -> Iterator[tuple[int, bytes]]:
  damaged = lambda data: bad_records.DamagedRecord(
    data, "the checksum of the record is wrong; copy or download the file again"
  )

  def read() -> Iterator[tuple[int, bytes]]:
    with _open_decompressed(path, where=where) as file:
      yield from enumerate(tfrecords.read(file, damaged=damaged), 1)

  return bad_records.numbered(read, path, unit="record", broken="truncated or corrupt TFRecord", where=where)


def units(path: str, *, where: str) -> Iterator[tuple[int, bytes]]:
  """Yields the units of a TMX file as JSON, numbered from 1.

  Raises:
    UserError: the file cannot be read to its end.
  """

  from t2t.data.sources import tmx

  def read() -> Iterator[tuple[int, bytes]]:
    with _open_decompressed(path, where=where) as file:
      encoded_units = (json.dumps(unit, ensure_ascii=False).encode() for unit in tmx.units(file))
      yield from enumerate(encoded_units, 1)

  return bad_records.numbered(read, path, unit="unit", broken="truncated or invalid TMX", where=where)


def _parquet(path: str, *, field: str, where: str) -> Iterator[tuple[int, bytes]]:
  from t2t.data.sources import parquet_files

  def read() -> Iterator[tuple[int, bytes]]:
    file = parquet_files.Texts(path, field=field, key=_field_key(where), where=where)
    yield from enumerate(itertools.chain.from_iterable(map(file.row_group, range(file.num_row_groups))), 1)

  number = 0
  try:
    for number, record in bad_records.patiently(read, path):
      yield number, record
  except OSError as error:
    raise bad_records.interrupted(path, f"record {number}", error, where=where) from error


def csv_rows(path: str, *, where: str) -> Iterator[tuple[int, dict[str, str] | bad_records.DamagedRecord]]:
  """Yields the rows of a CSV file, or of a .tsv with a header; see csv_files.py."""
  from t2t.data.sources import csv_files

  tabs = kind(path, where=where) == "pairs"
  return csv_files.rows(lines(path, where=where), path=path, where=where, tabs=tabs)


def csv_header(path: str, *, where: str) -> list[str]:
  """Returns the column names of a file that `csv_rows` reads.

  Raises:
    UserError: there is no line or no header, see csv_files.py.
  """
  from t2t.data.sources import csv_files

  tabs = kind(path, where=where) == "pairs"
  return csv_files.header(lines(path, where=where), path=path, where=where, tabs=tabs)


def _csv(path: str, *, where: str) -> Iterator[tuple[int, bytes]]:
  for number, row in csv_rows(path, where=where):
    yield number, row if isinstance(row, bad_records.DamagedRecord) else json.dumps(row).encode()


def records(path: str, *, field: str, where: str) -> Iterator[tuple[int, bytes]]:
  """Yields the number, from 1, and the content of each record of a file.

  Raises:
    UserError: the file cannot be read to its end.
  """
  file_kind = kind(path, where=where)
  if file_kind == "tokens":
    raise UserError(
      f"{where}: {path} has token ids, not text. Give text here; config.data.files takes files of ids if the name of"
      " each one ends in .npy or .bin."
    )
  if file_kind == "array_record":
    from t2t.data.sources import array_records

    return array_records.records(path, where=where)
  if file_kind == "tfrecord":
    return _tfrecords(path, where=where)
  if file_kind == "parquet":
    return _parquet(path, field=field, where=where)
  if file_kind == "csv":
    return _csv(path, where=where)
  if file_kind == "tmx":
    return units(path, where=where)
  return lines(path, where=where)


def read_texts(
  path: str, *, field: str, where: str = "config.data.files", tally: bad_records.Tally | None = None
) -> Iterator[str]:
  """Yields the texts of a file in order, without blank ones and without malformed ones that `tally` allows.

  Raises:
    UserError: the file or a record cannot be read; names the file and the line.
  """
  numbered_records = records(path, field=field, where=where)
  return texts(
    numbered_records, path, field=field, where=where, tally=bad_records.Tally(0.0) if tally is None else tally
  )


def texts(
  numbered_records: Iterable[tuple[int, bytes]], path: str, *, field: str, where: str, tally: bad_records.Tally
) -> Iterator[str]:
  """Yields the texts of records that were read from a file, as `read_texts` does."""
  for number, record in numbered_records:
    try:
      text = parse(path, number, record, field=field, where=where)
    except UserError as error:
      tally.bad(error)
      continue
    tally.good()
    if text:
      yield text


def lines_before(path: str, offset: int) -> int:
  """Counts the lines of a file that begin before a byte, for messages."""
  number, offset = 1, offset - 1
  with _open_decompressed(path, where="") as file:
    while offset > 0 and (block := file.read(min(offset, 2**20))):
      number += block.count(b"\n")
      offset -= len(block)
  return number
