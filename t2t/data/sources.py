"""Where text comes from: files of lines, JSON lines, Parquet and TFRecord; and the installed documentation.

Each file is read in two ways that must agree: by `read_texts` in plain Python (checks before training, vocabularies)
and by `FileSource` in tf.data (training).  Both number the records from 1 and both hand them to `parse`, so that a bad
record is the same error with the same file and line wherever it is met.
"""

from collections.abc import Iterator, Mapping, Sequence
import functools
import glob
import gzip
import io
import json
import pathlib
import re
import zlib

from etils import epath
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import documentation

# What a file is, by how its name ends; TFRecord shards end in .tfrecord-00000-of-00008.
KINDS = {
  "text": re.compile(r"\.txt(\.gz)?$"),
  "json": re.compile(r"\.(jsonl|json|ndjson)(\.gz)?$"),
  "parquet": re.compile(r"\.parquet$"),
  "tfrecord": re.compile(r"\.tfrecords?([-.][\w-]+)*$"),
}
_ENDINGS = ".txt, .jsonl, .jsonl.gz, .parquet or .tfrecord*"

# Records per call into Python: enough to hide the call's 0.1 ms, and few enough to keep 20 KB documents in the cache.
_PARSED_TOGETHER = 32


def kind(path: str, *, where: str = "config.data.files") -> str:
  """What sort of file this is, a key of `KINDS`.

  Raises:
    UserError: the name ends in nothing that is known.
  """
  name = path.rsplit("/", 1)[-1]
  for found, pattern in KINDS.items():
    if pattern.search(name):
      return found
  raise UserError(f"{where}: {path}: do not know how to read this file; the name must end in {_ENDINGS}")


# ---- Finding files ---------------------------------------------------------------------------------------------------


def find_files(patterns: str, *, where: str = "config.data.files") -> tuple[str, ...]:
  """All files that comma-separated globs match, sorted and each once.

  Args:
    patterns: local or remote (gs://...); `**` reaches into folders, of local files.
    where: what the user set, for messages.

  Raises:
    UserError: a pattern that matches no file; says how far its path exists.
  """
  found: set[str] = set()
  for pattern in filter(None, (part.strip() for part in patterns.split(","))):
    if "://" in pattern:
      matches = [path for path in tf.io.gfile.glob(pattern) if not tf.io.gfile.isdir(path)]
    else:
      pattern = str(pathlib.Path(pattern).expanduser())
      matches = [path for path in glob.glob(pattern, recursive=True) if not pathlib.Path(path).is_dir()]
    if not matches:
      raise UserError(_unmatched(pattern, where=where))
    found.update(matches)
  if not found:
    raise UserError(f"{where} is empty: give a glob of {_ENDINGS} files")
  for path in found:
    kind(path, where=where)
  return tuple(sorted(found))


def _unmatched(pattern: str, *, where: str) -> str:
  path = epath.Path(pattern)
  if "://" not in pattern and path.is_dir():
    return f"{where}: {pattern} is a folder; give a glob of its files, for example '{path / '*.jsonl.gz'}'"
  folder = path.parent
  while any(character in str(folder) for character in "*?[") or not folder.exists():
    if folder == folder.parent:
      return f"{where}: no file matches {pattern}, and none of its folders exists"
    folder = folder.parent
  try:
    names = sorted(child.name + ("/" if child.is_dir() else "") for child in folder.iterdir())
  except OSError as error:
    return f"{where}: no file matches {pattern}; {folder}/ cannot be listed ({error})"
  listing = ", ".join(names[:6]) + (f", ... ({len(names)} in all)" if len(names) > 6 else "")
  return f"{where}: no file matches {pattern}; the nearest folder that exists, {folder}/, holds {listing or 'nothing'}"


# ---- Records ---------------------------------------------------------------------------------------------------------


def parse(path: str, number: int, record: bytes, *, field: str, where: str = "config.data.files") -> str:
  """The text of one record, without white space around it; "" for a blank one, which readers leave out.

  Args:
    path: the file, which says what sort of record it is.
    number: of the record in the file, from 1; a line number where the file has lines.
    record: a line, a serialised tf.train.Example, or the text itself (Parquet).
    field: where the text is, in JSON objects and Examples.
    where: what the user set, for messages.

  Raises:
    UserError: what is wrong with the record, with file and line.
  """
  file_kind = kind(path, where=where)
  unit = "line" if file_kind in ("text", "json") else "record"
  place = f"{where}: {path}, {unit} {number}"
  if file_kind == "tfrecord":
    record = _example_field(record, field=field, place=place)
  try:
    text = record.decode("utf-8")
  except UnicodeDecodeError as error:
    raise UserError(
      f"{place}: not valid UTF-8 (byte {error.start + 1} of the {unit} is 0x{record[error.start]:02x}, {error.reason});"
      " convert the file, for example with `iconv -f latin1 -t utf-8`"
    ) from error
  if number == 1:
    text = text.removeprefix("\ufeff")  # a byte order mark, as Windows editors write
  if file_kind != "json":
    return text.strip()
  if not text or text.isspace():
    return ""
  try:
    value = json.loads(text)
  except (ValueError, RecursionError) as error:
    reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
    shown = text if len(text) <= 60 else text[:60] + "..."
    raise UserError(f"{place}: not JSON ({reason}): {shown}; each line must be one object") from error
  if not isinstance(value, dict):
    raise UserError(f"{place}: is a JSON {_json_type(value)}, not an object; each line must be like {{{field!r}: ...}}")
  if field not in value:
    raise UserError(f"{place}: has no field {field!r}; it has {_fields(value)}; {_field_key(where)}")
  if not isinstance(value[field], str):
    raise UserError(f"{place}: field {field!r} is a {_json_type(value[field])}, not a string; {_field_key(where)}")
  try:
    # JSON can escape half of a surrogate pair, which no UTF-8 text can hold.
    value[field].encode("utf-8")
  except UnicodeEncodeError as error:
    raise UserError(f"{place}: field {field!r} is not valid Unicode (an unpaired surrogate escape)") from error
  return value[field].strip()


def _field_key(where: str) -> str:
  """What to set, in the words of the command that asked: a config key, or an option beside `--input`."""
  return "give the text's name as --field" if where.startswith("--") else "set config.data.field to the text's name"


def _json_type(value) -> str:
  names = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "list"}
  return names.get(type(value), "object")


def _fields(names: Mapping | Sequence[str]) -> str:
  listed = [repr(name) for name in names]
  return (", ".join(listed[:10]) + (", ..." if len(listed) > 10 else "")) or "no fields at all"


def _example_field(record: bytes, *, field: str, place: str) -> bytes:
  try:
    features = tf.train.Example.FromString(record).features.feature
  except Exception as error:  # protobuf's DecodeError has moved between its versions
    raise UserError(f"{place}: not a serialised tf.train.Example; t2t reads TFRecord files of Examples") from error
  if field not in features:
    raise UserError(f"{place}: has no feature {field!r}; it has {_fields(sorted(features))}; {_field_key(place)}")
  values = features[field].bytes_list.value
  if len(values) != 1:
    stored = features[field].WhichOneof("kind") or "nothing"
    raise UserError(f"{place}: feature {field!r} is not one string ({stored}, {len(values)} byte strings)")
  return values[0]


# ---- Reading in plain Python -----------------------------------------------------------------------------------------


class _SeekableFile(io.RawIOBase):
  """A gfile as a Python file, which pyarrow wants: it reads a footer and row groups, not the whole of a remote file."""

  def __init__(self, path: str):
    super().__init__()
    self._file = tf.io.gfile.GFile(path, "rb")
    self._size = self._file.size()

  def readable(self):
    return True

  def seekable(self):
    return True

  def tell(self):
    return self._file.tell()

  def seek(self, offset, whence=io.SEEK_SET):
    start = {io.SEEK_SET: 0, io.SEEK_CUR: self._file.tell(), io.SEEK_END: self._size}[whence]
    self._file.seek(start + offset)
    return start + offset

  def readinto(self, buffer):
    content = self._file.read(len(buffer))
    buffer[: len(content)] = content
    return len(content)


def _open_parquet(path: str, *, field: str, where: str) -> pa.parquet.ParquetFile:
  try:
    file = pa.parquet.ParquetFile(_SeekableFile(path) if "://" in path else path)
  except (pa.ArrowInvalid, OSError) as error:
    raise UserError(f"{where}: {path}: not a readable Parquet file ({str(error).splitlines()[0]})") from error
  columns = file.schema_arrow
  if field not in columns.names:
    raise UserError(f"{where}: {path}: has no column {field!r}; it has {_fields(columns.names)}; {_field_key(where)}")
  column = columns.field(field).type
  if not (pa.types.is_string(column) or pa.types.is_large_string(column)):
    raise UserError(f"{where}: {path}: column {field!r} is {column}, not string; {_field_key(where)}")
  return file


def _parquet_row_group(path: str, row_group: int, *, field: str, where: str) -> list[bytes]:
  file = _open_parquet(path, field=field, where=where)
  try:
    column = file.read_row_group(row_group, columns=[field]).column(0)
  except (pa.ArrowInvalid, OSError) as error:
    raise UserError(f"{where}: {path}: row group {row_group} cannot be read ({str(error).splitlines()[0]})") from error
  if column.null_count:
    first = column.is_null().to_pylist().index(True)
    raise UserError(f"{where}: {path}: row {first + 1} of row group {row_group} has no text: {field!r} is null")
  # As bytes: files exist whose strings are not UTF-8, and `parse` names the record.
  return column.cast(pa.large_binary()).to_pylist()


def _lines(path: str, *, where: str) -> Iterator[tuple[int, bytes]]:
  number = 0
  try:
    with epath.Path(path).open("rb") as raw, gzip.open(raw, "rb") if path.endswith(".gz") else raw as file:
      for number, line in enumerate(file, 1):  # noqa: B007  the messages below name the last line that could be read
        yield number, line
  except (EOFError, gzip.BadGzipFile, zlib.error) as error:
    raise UserError(
      f"{where}: {path}: truncated or corrupt gzip after line {number} ({error}); check it with `gzip -t`"
    ) from error
  except (OSError, tf.errors.OpError) as error:
    raise UserError(f"{where}: {path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def _tfrecords(path: str, *, where: str) -> Iterator[tuple[int, bytes]]:
  number = 0
  records = tf.data.TFRecordDataset(path, compression_type="GZIP" if path.endswith(".gz") else "")
  try:
    for number, record in enumerate(records.as_numpy_iterator(), 1):  # noqa: B007  as above
      yield number, record
  except tf.errors.OpError as error:
    reason = error.message.splitlines()[0].split("[Op:")[0].split(" [[")[0]
    raise UserError(f"{where}: {path}: truncated or corrupt TFRecord after record {number} ({reason})") from error


def _records(path: str, *, field: str, where: str) -> Iterator[tuple[int, bytes]]:
  file_kind = kind(path, where=where)
  if file_kind == "tfrecord":
    yield from _tfrecords(path, where=where)
  elif file_kind == "parquet":
    number = 0
    for row_group in range(_open_parquet(path, field=field, where=where).num_row_groups):
      for record in _parquet_row_group(path, row_group, field=field, where=where):
        number += 1
        yield number, record
  else:
    yield from _lines(path, where=where)


def read_texts(path: str, *, field: str, where: str = "config.data.files") -> Iterator[str]:
  """The texts of one file in order, blank ones left out.

  Raises:
    UserError: the file or a record cannot be read; names the file and the line.
  """
  for number, record in _records(path, field=field, where=where):
    text = parse(path, number, record, field=field, where=where)
    if text:
      yield text


# ---- Reading in tf.data ----------------------------------------------------------------------------------------------


def text_hash(text: str | bytes) -> int:
  """A number below 2**32 that depends on the text alone: it says which documents are held out."""
  return zlib.crc32(text.encode() if isinstance(text, str) else text)


class FileSource(seqio.DataSource):
  """Files of text as a seqio source that yields {"text": string}.

  Shards: with eight times as many files as shards each shard reads files of its own, since that costs nothing and
  balances well enough.  With fewer, each shard reads all files and keeps every num_shards-th record of each, starting
  at another one in each file, so that shards are equal to within a record per file whatever the files' sizes; what is
  read and thrown away is not parsed.
  """

  def __init__(
    self,
    files: Mapping[str, Sequence[str]],
    *,
    field: str = "text",
    held_out_below: int = 0,
    where: Mapping[str, str] | None = None,
  ):
    """A source with a split for each key of `files`.

    Args:
      files: split -> paths, as `find_files` gives them.
      field: where the text is in JSON objects, Examples and Parquet tables.
      held_out_below: if not 0, documents whose `text_hash` is below it are the split "validation", and the others all
        other splits; both then read the same files.
      where: split -> the configuration key that names its files, for messages.
    """
    super().__init__(splits=tuple(files))
    self._files = {split: tuple(paths) for split, paths in files.items()}
    self._field = field
    self._held_out_below = held_out_below
    self._where = dict(where or {})

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """True: see the class."""
    return True

  def list_shards(self, split: str) -> Sequence[str]:
    """The files of a split."""
    return self._files[split]

  def get_dataset(
    self,
    split: str = "train",
    shuffle: bool = True,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    *,
    sequence_length: Mapping[str, int] | None = None,
    use_cached: bool = False,
    num_epochs: int | None = 1,
  ) -> tf.data.Dataset:
    """One pass over a shard of a split: {"text": string scalar}.

    Args:
      split: a key of the constructor's `files`.
      shuffle: files in another order each pass (records are shuffled by the task, after preprocessing).
      seed: of that order.
      shard_info: which shard of how many; all records without it.
      sequence_length: not used, as `use_cached` and `num_epochs`; seqio passes them.
      use_cached: see above.
      num_epochs: see above.
    """
    del sequence_length, use_cached, num_epochs
    paths = self.list_shards(split)
    where = self._where.get(split, "config.data.files")
    num_shards = shard_info.num_shards if shard_info else 1
    shard = shard_info.index if shard_info else 0
    by_files = len(paths) >= 8 * num_shards
    indices = range(shard, len(paths), num_shards) if by_files else range(len(paths))
    kinds = [kind(path, where=where) for path in paths]
    files = tf.data.Dataset.from_tensor_slices(
      {
        "index": np.array(indices, np.int64),
        "path": np.array([paths[i] for i in indices], object),
        "lines": np.array([kinds[i] in ("text", "json") for i in indices]),
        "tfrecord": np.array([kinds[i] == "tfrecord" for i in indices]),
        "compression": np.array(["GZIP" if paths[i].endswith(".gz") else "" for i in indices], object),
        "row_groups": np.array(
          [
            _open_parquet(paths[i], field=self._field, where=where).num_row_groups if kinds[i] == "parquet" else 0
            for i in indices
          ],
          np.int64,
        ),
      }
    )
    if shuffle:
      files = files.shuffle(len(indices), seed=seed)

    def row_group_records(index: np.ndarray, row_group: np.ndarray) -> np.ndarray:
      return np.array(_parquet_row_group(paths[index], int(row_group), field=self._field, where=where), object)

    def records(file: dict[str, tf.Tensor]) -> tf.data.Dataset:
      # A reader takes a list of files: each kind gets this file or none, so that all kinds fit in one dataset.
      def only(wanted: tf.Tensor) -> tf.Tensor:
        return tf.boolean_mask([file["path"]], [wanted])

      lines = tf.data.TextLineDataset(only(file["lines"]), compression_type=file["compression"])
      examples = tf.data.TFRecordDataset(only(file["tfrecord"]), compression_type=file["compression"])
      rows = tf.data.Dataset.range(file["row_groups"]).map(
        lambda row_group: tf.ensure_shape(
          tf.numpy_function(row_group_records, [file["index"], row_group], tf.string, stateful=False), [None]
        )
      )
      numbered = lines.concatenate(examples).concatenate(rows.unbatch()).enumerate(1)
      if not by_files:
        numbered = numbered.skip((shard - file["index"]) % num_shards).shard(num_shards, 0)
      return numbered.map(lambda number, record: (file["index"], number, record))

    is_held_out = self._held_out_below and split == "validation"

    def texts(indices: np.ndarray, numbers: np.ndarray, contents: np.ndarray) -> np.ndarray:
      found = []
      for index, number, content in zip(indices, numbers, contents, strict=True):
        text = parse(paths[index], int(number), content, field=self._field, where=where).encode()
        if text and (not self._held_out_below or (text_hash(text) < self._held_out_below) == is_held_out):
          found.append(text)
      return np.array(found, object)

    dataset = files.interleave(records, cycle_length=min(8, len(indices)) or 1, block_length=16)
    # Not "stateful", in TensorFlow's sense: a position can then be saved without the state of Python.
    dataset = dataset.batch(_PARSED_TOGETHER).map(
      lambda *record: tf.ensure_shape(tf.numpy_function(texts, record, tf.string, stateful=False), [None])
    )
    return dataset.unbatch().map(lambda text: {"text": text})


def user_error(error: tf.errors.OpError) -> UserError | None:
  """The `UserError` that was raised inside tf.data, which hands on only its text; None if it was something else."""
  raised = re.search(r"UserError: (.*?)\n(?:Traceback|\n|$)", error.message or "", re.DOTALL)
  if raised:
    return UserError(raised.group(1))
  broken = tf.errors.DataLossError | tf.errors.NotFoundError | tf.errors.PermissionDeniedError
  if isinstance(error, broken):
    reason = error.message.splitlines()[0].removeprefix("{{function_node __wrapped__IteratorGetNext}}").strip()
    return UserError(f"the data cannot be read any further: {reason}")
  return None


class DocumentationSource(FileSource):
  """The installed documentation, splits "train" and "validation"; read when it is first used, see `documentation`."""

  def __init__(self):
    """A source that has read nothing yet."""
    super().__init__({"train": (), "validation": ()})

  def list_shards(self, split: str) -> Sequence[str]:
    """The split's one file, made if it is not there."""
    return _documentation_files(str(documentation.folder()))[split]


@functools.lru_cache(maxsize=1)
def _documentation_files(folder: str) -> dict[str, tuple[str]]:
  del folder  # the key: a test may point the cache elsewhere
  return {split: (str(path),) for split, path in documentation.files().items()}
