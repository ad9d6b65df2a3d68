"""Files of text: lines, JSON lines, Parquet and TFRecord, local or in a bucket, read in plain Python.

Records are numbered from 1, and `parse` makes text of them, so that a bad one is the same error with the same file and
line wherever it is met.
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

from etils import epath
import numpy as np
import tensorflow as tf

from t2t import UserError
from t2t.data.sources import bad_records, fields
from t2t.runtime import console
from t2t.storage import compression, encoding, gcs, safe_read
from t2t.storage import tfrecord as tfrecords

# What a file is, by how its name ends; TFRecord shards end in .tfrecord-00000-of-00008.
_COMPRESSED = "(" + "|".join(map(re.escape, compression.FORMATS)) + ")?$"
KINDS = {
  "text": re.compile(r"\.txt" + _COMPRESSED, re.IGNORECASE),
  "pairs": re.compile(r"\.tsv" + _COMPRESSED, re.IGNORECASE),  # of texts and their translations
  "csv": re.compile(r"\.csv" + _COMPRESSED, re.IGNORECASE),
  "tmx": re.compile(r"\.tmx" + _COMPRESSED, re.IGNORECASE),  # translation memories
  "json": re.compile(r"\.(jsonl|json|ndjson)" + _COMPRESSED, re.IGNORECASE),
  "parquet": re.compile(r"\.parquet$", re.IGNORECASE),
  "tfrecord": re.compile(r"\.tfrecords?([-.][\w-]+)*$", re.IGNORECASE),
}
_ENDINGS = (
  ".txt, .jsonl, .json, .csv, .tsv or .tmx, each also compressed (.gz, .bz2, .xz, .zst), .parquet or .tfrecord*"
)
# What else data comes as, by the end of the name -> what to do.
_OTHERS = {
  ".zip": "unpack it with `unzip`",
  ".tar": "unpack it with `tar -xf`",
  ".tar.gz": "unpack it with `tar -xf`",
  ".tgz": "unpack it with `tar -xf`",
  ".7z": "unpack it",
  ".lz4": "unpack it with `lz4 -d`",
  ".xls": "save it as CSV (UTF-8)",
  ".xlsx": "save it as CSV (UTF-8)",
  ".arrow": "write it as Parquet",
  ".feather": "write it as Parquet",
  ".parquet.gz": "unpack it with `gunzip`: Parquet compresses its own columns",
}

_BLOCK = 2**20  # bytes that are read at a time
_MOST_COMMAS = 8  # parts of a list that are tried as one name
_HEAD = 400  # bytes of the beginning of a file that say what it is
# A kilobyte of gzip can be a megabyte of one line.
_LONGEST_LINE = 64 * 2**20
_ENDLESS = 2**29


def kind(path: str, *, where: str = "config.data.files") -> str:
  """What sort of file this is, a key of `KINDS`.

  Raises:
    UserError: the name ends in nothing that is known.
  """
  name = path.rsplit("/", 1)[-1]
  for file_kind, pattern in KINDS.items():
    if pattern.search(name):
      return file_kind
  step = next((f"{step}; " for end, step in _OTHERS.items() if name.lower().endswith(end)), "")
  raise UserError(f"{where}: {path}: do not know how to read this file; {step}the name must end in {_ENDINGS}")


def _has_kind(name: str) -> bool:
  return "." in name[1:] and not name.startswith(".") and any(pattern.search(name) for pattern in KINDS.values())


# ---- Finding files ---------------------------------------------------------------------------------------------------


def find_files(patterns: str, *, where: str = "config.data.files", pairs: bool = True) -> tuple[str, ...]:
  """All files that comma-separated globs match, sorted and each once, by however many names and links it is found.

  Args:
    patterns: local or in a bucket (gs://...); `**` reaches into folders.  The name of a file that exists is taken as it
      stands, with brackets and commas in it.
    where: what the user set, for messages.
    pairs: also files of texts and their translations.

  Raises:
    UserError: a pattern that matches no file; says how far its path exists.
  """
  paths: set[str] = set()
  for pattern in _split(os.fspath(patterns)):
    matches = gcs.glob(pattern, where=where) if gcs.is_remote(pattern) else _glob(pattern)
    if not matches:
      raise UserError(_unmatched(pattern, where=where))
    paths.update(matches)
  if not paths:
    raise UserError(f"{where} is empty: give a glob of {_ENDINGS} files")
  for path in paths:
    if kind(path, where=where) == "pairs" and not pairs:
      raise UserError(
        f"{where}: {path}: has two texts in each line, not one; give a file for each, `cut -f1` makes one"
      )
  return _each_once(sorted(paths), where=where)


def _split(patterns: str) -> list[str]:
  """The parts between commas; commas in the name of a file that exists do not count."""
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
  """The local files that a pattern matches; brackets that match nothing are letters of a name."""
  if os.path.isfile(pattern):
    return [pattern]
  paths: list[str] = []
  for variant in (pattern, pattern.replace("[", "[[]")):
    paths = paths or [path for path in _expanded(variant) if not os.path.isdir(path)]
  return paths


def _expanded(pattern: str) -> list[str]:
  """`glob.glob`, but `**` enters each folder once: links that lead round would otherwise double with each level."""
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
  """A folder and all below it, except hidden ones; those behind links last, and each once."""
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
    except OSError:  # one that may not be looked into, as `glob` has it
      continue
    for entry in sorted(inner, key=lambda entry: entry.name):
      (links if entry.is_symlink() else folders).append(os.path.join(folder, entry.name))


def _each_once(paths: Sequence[str], *, where: str) -> tuple[str, ...]:
  """The first name of each file; links, and folders that are links, lead to files which have another name already."""
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


def _unmatched(pattern: str, *, where: str) -> str:
  path = epath.Path(pattern)
  remote = gcs.is_remote(pattern)
  if not remote and path.is_dir():
    endings = [name[name.index(".") :] for name in gcs.names(path, where=where) if _has_kind(name)]
    example = path / f"*{max(endings, key=endings.count) if endings else '.txt'}"
    return f"{where}: {pattern} is a folder; give a glob of its files, for example '{example}'"
  folder = path.parent
  while any(character in str(folder) for character in "*?[{") or not (remote or folder.exists()):
    if folder == folder.parent:
      return f"{where}: no file matches {pattern}, and none of its folders exists"
    folder = folder.parent
  if not remote and not folder.is_dir():
    return f"{where}: no file matches {pattern}: {folder} is a file, not a folder"
  try:
    names = gcs.names(folder, where=where)
    # A bucket has no empty folders, and its own name is one that exists.
    while remote and not names and str(folder).count("/") > 2:
      folder = folder.parent
      names = gcs.names(folder, where=where)
  except OSError as error:
    return f"{where}: no file matches {pattern}; {folder}/ cannot be listed ({error})"
  listing = ", ".join(names[:6]) + (f", ... ({len(names)} in all)" if len(names) > 6 else "")
  return f"{where}: no file matches {pattern}; the nearest folder that exists, {folder}/, holds {listing or 'nothing'}"


@dataclasses.dataclass(frozen=True)
class Stat:
  """What says that a file is still the same: its size in bytes, and its time in nanoseconds or its generation."""

  size: int
  changed: int


def stats(paths: Sequence[str], *, where: str = "config.data.files") -> dict[str, Stat]:
  """Asks for each file once, for many at a time; none is opened.

  Raises:
    UserError: a file is not there or may not be read; names it.
  """

  def local(path: str) -> Stat:
    try:
      status = os.stat(path)
      if not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
      raise UserError(f"{where}: {path}: cannot be read ({error.strerror})") from error
    return Stat(status.st_size, status.st_mtime_ns)

  remote = [path for path in paths if gcs.is_remote(path)]
  listed = gcs.stats(remote, where=where) if remote else {}
  with concurrent.futures.ThreadPoolExecutor(32) as pool:
    file_stats = pool.map(lambda path: Stat(*listed[path]) if path in listed else local(path), paths)
    return dict(zip(paths, file_stats, strict=True))


@functools.lru_cache(maxsize=64)
def sizes(paths: tuple[str, ...]) -> tuple[int, ...]:
  """Bytes of each file; each is asked for once in a run."""
  return tuple(stat.size for stat in stats(paths).values())


# ---- Records ---------------------------------------------------------------------------------------------------------


def parse(path: str, number: int, record: bytes, *, field: str, where: str = "config.data.files") -> str:
  """The text of one record, without white space around it; "" for a blank one, which readers leave out.

  Args:
    path: the file, which says what sort of record it is.
    number: of the record in the file, from 1; a line number where the file has lines, of which .tsv have two texts: the
      first.
    record: a line, a serialised tf.train.Example, or the text itself (Parquet, TMX).
    field: where the text is, in JSON objects and Examples; of TMX its language.
    where: what the user set, for messages.

  Raises:
    UserError: what is wrong with the record, with file and line.
  """
  file_kind = kind(path, where=where)
  unit = "line" if file_kind in ("text", "json", "pairs", "csv") else "unit" if file_kind == "tmx" else "record"
  location = f"{where}: {path}, {unit} {number}"
  if isinstance(record, bad_records.DamagedRecord):
    raise UserError(f"{location}: {record.reason}")
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
        " or write the file with strings"
      ) from error
    raise UserError(f"{location}: {encoding.not_utf8(record, error, unit=unit, head=_head(path))}") from error
  if number == 1:
    text = text.removeprefix("\ufeff")  # a byte order mark, as Windows editors write
  if file_kind == "pairs" and not text.isspace():
    columns = text.rstrip("\r\n").split("\t")
    if len(columns) != 2:
      raise UserError(f"{location}: {len(columns)} column(s), separated by tabs; a text and its translation are two")
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
  """An object of JSON none of whose names comes twice, for `json.loads(object_pairs_hook=)`.

  Raises:
    ValueError: names what comes twice; readers would not agree which value counts.
  """
  if (name := safe_read.name_given_twice(pairs)) is not None:
    raise ValueError(f"{name!r} comes twice in an object; give each name once")
  return dict(pairs)


def _object(text: str, field: str, *, location: str, hook: Callable | None = None) -> Mapping[str, Any]:
  """A line of JSON as an object."""
  try:
    value = json.loads(text.rstrip("\r\n"), object_pairs_hook=hook)
  except (ValueError, RecursionError) as error:
    reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
    shown = text.strip() if len(text) <= 60 else text[:60].strip() + "..."
    hint = "; if the file is one list, `jq -c '.[]'` makes lines of it, and if it is indented, `jq -c .`"
    raise UserError(
      f"{location}: not JSON ({reason}): {shown}; each line must be one object"
      + (hint if text.strip() in ("[", "{", "[{") else "")
    ) from error
  if isinstance(value, dict):
    return value
  hint = "; `jq -c '.[]'` makes lines of a list" if isinstance(value, list) and value else ""
  raise UserError(
    f"{location}: is a JSON {fields.json_type(value)}, not an object; each line must be like {{{field!r}: ...}}{hint}"
  )


def json_object(path: str, number: int, line: bytes, *, where: str) -> Mapping[str, Any] | None:
  """A line of JSON as an object; None for a blank one.

  Raises:
    UserError: it is none, or not UTF-8; names the file and the line.
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
    raise UserError(f"{location}: has no column {field!r}; it has {fields.listed(row)}; {_field_key(where)}")
  return row[field].strip()


def _head(path: str) -> bytes:
  """The first bytes of a file, which say what it is."""
  try:
    with gcs.open_binary(path) if gcs.is_remote(path) else open(path, "rb") as file:
      return file.read(_HEAD)
  except OSError:
    return b""


def marked(path: str, number: int, record: bytes, *, field: str, annotations: str, where: str) -> np.ndarray:
  """What a record marks in its text, as ranges of characters of what `parse` gives: int32 [n, 2].

  In:  {"text": " Ann saw Rome", "entities": [[1, 4], [9, 13]]}
  Out: [[0, 3], [8, 12]]

  Args:
    path, number, record, field, where: as in `parse`, which takes the record.
    annotations: name of the field with [start, end] of each phrase.

  Raises:
    UserError: files that are not of JSON lines; no such field, ranges outside of the text, or that overlap.
  """
  if kind(path, where=where) != "json":
    raise UserError(
      f"{where}: {path}: marks phrases in no text, and the objective hides what is marked; give JSON lines with a field"
      f" {annotations!r} of [start, end] of each phrase, config.data.annotations"
    )
  location = f"{where}: {path}, line {number}"
  value = json.loads(record.decode("utf-8-sig"))
  ranges = value.get(annotations)
  if not isinstance(ranges, list):
    problem = f"field {annotations!r} is no list" if annotations in value else f"has no field {annotations!r}"
    raise UserError(
      f"{location}: {problem}; it has {fields.listed(value)}; set config.data.annotations to the name of the list with"
      " [start, end] of each phrase, which is [] where there is none"
    )
  text = fields.text(value, field, key=_field_key(where))
  from t2t.data.objectives import entity_masking

  phrases = entity_masking.checked(ranges, len(text), location=f"{location}: field {annotations!r}")
  # White space around a text is left out, and what of a phrase stands in it.
  phrases = np.clip(phrases - (len(text) - len(text.lstrip())), 0, len(text.strip()))
  return phrases[phrases[:, 0] < phrases[:, 1]]


def _field_key(where: str) -> str:
  """What to set, in the words of the command that asked: a config key, or an option beside `--input`."""
  return (
    "set config.data.field to the text's name" if where.startswith("config.") else "give the text's name as --field"
  )


def _example_field(record: bytes, *, field: str, location: str) -> bytes:
  try:
    features = tf.train.Example.FromString(record).features.feature
  except Exception as error:  # protobuf's DecodeError has moved between its versions
    raise UserError(f"{location}: not a serialised tf.train.Example; t2t reads TFRecord files of Examples") from error
  if field not in features:
    raise UserError(
      f"{location}: has no feature {field!r}; it has {fields.listed(sorted(features))}; {_field_key(location)}"
    )
  values = features[field].bytes_list.value
  if len(values) != 1:
    stored = features[field].WhichOneof("kind") or "nothing"
    raise UserError(f"{location}: feature {field!r} is not one string ({stored}, {len(values)} byte strings)")
  return values[0]


# ---- Reading in plain Python -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _open_decompressed(path: str, *, where: str) -> Iterator[io.BufferedReader]:
  """A file's bytes, decompressed; reading raises OSError, or the errors of `compression.opened` for damaged content."""
  with gcs.open_binary(path) if gcs.is_remote(path) else open(path, "rb", buffering=_BLOCK) as file:
    yield compression.opened(file, path, where=where) if compression.ending(path) else file


def _lines(path: str, start: int, stop: int, where: str) -> Iterator[tuple[int, bytes]]:
  """See `lines`; what goes wrong is raised as it is."""
  with _open_decompressed(path, where=where) as file:
    position = start
    if start:
      file.seek(start - 1)
      # The end of the line before belongs to whoever reads that.
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
          b"", f"has {len(line) + line_rest:,} bytes, and a line may have {_LONGEST_LINE:,}"
        )
        position += line_rest
      yield number, line


def _to_line_end(file: io.BufferedReader) -> int:
  """Reads up to the end of a line; how many bytes that were.

  Raises:
    ValueError: it has none for so long that it is no text.
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
  """The lines that begin in bytes `start` to `stop` (0: the end), numbered from the first of them.

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
      f"{where}: {path}: truncated or corrupt {packed.name} after line {number} ({error}); check it with"
      f" `{packed.test}`"
    ) from error
  except UserError:
    raise
  except ValueError as error:
    raise UserError(f"{where}: {path}: is no text after line {number}: {error}") from error
  except OSError as error:
    after = f"line {number}" + (f" behind byte {start}" if start else "")
    raise UserError(f"{where}: {path}: cannot be read after {after} ({error.strerror or error})") from error


def _tfrecords(path: str, *, where: str) -> Iterator[tuple[int, bytes]]:
  damaged = lambda data: bad_records.DamagedRecord(data, "its checksum is not that of its bytes")

  def read() -> Iterator[tuple[int, bytes]]:
    with _open_decompressed(path, where=where) as file:
      yield from enumerate(tfrecords.read(file, damaged=damaged), 1)

  return bad_records.numbered(read, path, unit="record", broken="truncated or corrupt TFRecord", where=where)


def units(path: str, *, where: str) -> Iterator[tuple[int, bytes]]:
  """The units of a TMX file, as JSON, numbered from 1.

  Raises:
    UserError: the file cannot be read to its end.
  """

  from t2t.data.sources import tmx

  def read() -> Iterator[tuple[int, bytes]]:
    with _open_decompressed(path, where=where) as file:
      encoded_units = (json.dumps(unit, ensure_ascii=False).encode() for unit in tmx.units(file))
      yield from enumerate(encoded_units, 1)

  return bad_records.numbered(read, path, unit="unit", broken="truncated or no TMX", where=where)


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
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise UserError(f"{where}: {path}: cannot be read after record {number} ({reason})") from error


def csv_rows(path: str, *, where: str) -> Iterator[tuple[int, dict[str, str] | bad_records.DamagedRecord]]:
  """The rows of a CSV file, or of a .tsv whose first line names its columns, see csv_files.py."""
  from t2t.data.sources import csv_files

  tabs = kind(path, where=where) == "pairs"
  return csv_files.rows(lines(path, where=where), path=path, where=where, tabs=tabs)


def csv_header(path: str, *, where: str) -> list[str]:
  """The names of the columns of a file that `csv_rows` reads.

  Raises:
    UserError: no line, or no header, see csv_files.py.
  """
  from t2t.data.sources import csv_files

  tabs = kind(path, where=where) == "pairs"
  return csv_files.header(lines(path, where=where), path=path, where=where, tabs=tabs)


def _csv(path: str, *, where: str) -> Iterator[tuple[int, bytes]]:
  for number, row in csv_rows(path, where=where):
    yield number, row if isinstance(row, bad_records.DamagedRecord) else json.dumps(row).encode()


def records(path: str, *, field: str, where: str) -> Iterator[tuple[int, bytes]]:
  """Number, from 1, and content of each record of a file.

  Raises:
    UserError: the file cannot be read to its end.
  """
  file_kind = kind(path, where=where)
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
  """The texts of one file in order, blank ones left out, and those that `tally` lets pass.

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
  """`read_texts` of records that are read already, of a file of that path."""
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
  """Lines of a file that begin before a byte, for messages."""
  number, offset = 1, offset - 1
  with _open_decompressed(path, where="") as file:
    while offset > 0 and (block := file.read(min(offset, 2**20))):
      number += block.count(b"\n")
      offset -= len(block)
  return number
