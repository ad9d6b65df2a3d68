"""Text files and the installed documentation as seqio sources."""

import builtins
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
import re
from typing import NamedTuple
import zlib

import numpy as np
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import shard_order
from t2t.data.sources import bad_records, text_files
from t2t.storage import compression, outage


def text_hash(text: str | bytes) -> int:
  """Returns a hash of the text below 2**32, which decides whether a document is held out."""
  return zlib.crc32(text.encode() if isinstance(text, str) else text)


class FileSource(seqio.DataSource):
  """seqio source of text files: {"text": string}, or "first" and "second" for texts with translations.

  Training reads it through `records`, see shard_order.py; uncompressed files of lines can be read from any byte.
  """

  def __init__(
    self,
    files: Mapping[str, Sequence[str]],
    *,
    field: str = "text",
    annotations: str = "",
    translation: str = "",
    held_out_below: int = 0,
    where: Mapping[str, str] | None = None,
    malformed: float = 0.0,
  ):
    """Creates a source with a split for each key of `files`.

    Args:
      files: split -> paths, from `find_files`.
      field: text field of JSON objects, Examples and Parquet tables.
      annotations: field of JSON objects with ranges of characters, which become "entities"; "": none.
      translation: name of the translation, see bitext.py; "": none.
      held_out_below: if not 0, documents with a smaller `text_hash` form the split "validation", and the others all
        other splits; all splits then read the same files.
      where: split -> the configuration key that names its files, for messages.
      malformed: allowed share of malformed records, which are left out.
    """
    super().__init__(splits=tuple(files))
    self._files = {split: tuple(paths) for split, paths in files.items()}
    self._field, self._annotations, self._translation = field, annotations, translation
    self._held_out_below = held_out_below
    self._where = dict(where or {})
    self._tallies = {split: bad_records.Tally(malformed) for split in files}

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """True: a shard may be every n-th record."""
    return True

  def list_shards(self, split: str) -> Sequence[str]:
    return self._files[split]

  def tally(self, split: str) -> bad_records.Tally:
    """Returns the tally of a split, which all of its readers share."""
    return self._tallies[split]

  def count_in(self, tallies: Mapping[str, bad_records.Tally]) -> None:
    """Replaces the tallies of splits, so that other sources count in the same ones."""
    self._tallies = dict(tallies)

  def records(self, split: str) -> "FileRecords":
    """Returns a split in the form that shard_order.py reads."""
    where = self._where.get(split, "config.data.files")
    held_out = (split == "validation") if self._held_out_below else None
    return FileRecords(
      tuple(self.list_shards(split)),
      field=self._field,
      where=where,
      held_out_below=self._held_out_below,
      held_out=held_out,
      annotations=self._annotations,
      translation=self._translation,
      tally=self.tally(split),
    )

  def texts(self, split: str) -> Iterator[tuple[bytes, ...]]:
    """Yields the text of each record of a split in order, and its translation; tf.data would take ten times longer."""
    records = self.records(split)
    (share,) = shard_order.shares(records.shards(), 1)
    for piece in share:
      for _, raw_record in records.read(piece):
        if record := records.parse(raw_record):
          yield record[:1] if records.annotations else record

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
    """Returns one pass over a shard of a split, {"text": string} and annotations, for callers of seqio.

    Args:
      split: a key of the constructor's `files`.
      shuffle: whether to shuffle the files; the task shuffles records after preprocessing.
      seed: of the order.
      shard_info: index and number of shards; None: all records.
      sequence_length: not used, like `use_cached` and `num_epochs`; seqio passes them.
      use_cached: see above.
      num_epochs: see above.
    """
    del sequence_length, use_cached, num_epochs
    records = self.records(split)
    number, shard = (shard_info.num_shards, shard_info.index) if shard_info else (1, 0)

    def texts() -> Iterator[tuple[bytes, ...]]:
      share = shard_order.shares(records.shards(), number)[shard]
      order = np.random.default_rng(seed).permutation(len(share)) if shuffle else range(len(share))
      for piece in (share[i] for i in order):
        for _, raw_record in records.read(piece):
          if record := records.parse(raw_record):
            yield record

    signature = (tf.TensorSpec([], tf.string),) * records.num_columns
    return tf.data.Dataset.from_generator(texts, output_signature=signature).map(records.named)


@dataclasses.dataclass(frozen=True)
class FileRecords:
  """Texts of files, an implementation of `shard_order.Records`.

  files: their paths.
  field, where: see `FileSource`.
  held_out_below, held_out: whether to keep documents with a hash below the threshold, or the others; None: all.
  annotations: see `FileSource`; the second column, as bytes of int32 [n, 2].
  translation: see `FileSource`; the second column, its text.
  tally: of the records.
  """

  files: tuple[str, ...]
  field: str
  where: str
  held_out_below: int = 0
  held_out: bool | None = None
  annotations: str = ""
  translation: str = ""
  tally: bad_records.Tally = dataclasses.field(default_factory=lambda: bad_records.Tally(0.0), compare=False)

  @property
  def num_columns(self) -> int:
    """Number of columns: the text, and its annotations or its translation."""
    return 2 if self.annotations or self.translation else 1

  def shards(self) -> list[shard_order.Shard]:
    """Returns the shards; an uncompressed file of lines is divisible."""
    return [
      shard_order.Shard(
        size * (_UNPACKED if compression.ending(path) or path.endswith(".parquet") else 1.0),
        divisible=_is_divisible(path) and not self._beside(path),
      )
      for path, size in zip(self.files, text_files.sizes(self.files), strict=True)
    ]

  def read(self, piece: shard_order.Piece) -> Iterator[tuple[int, "_RawRecord | tuple[bytes, ...]"]]:
    """Yields the records of a piece as they are in the file; for the held-out split, which is small, the parsed texts.

    Raises:
      UserError: the file or a held-out record cannot be read; names the file and the line.
    """
    path = self.files[piece.shard]
    if translation_path := self._beside(path):
      from t2t.data.sources import bitext

      numbered_records = bitext.lines(path, translation_path, where=self.where)
    elif _is_divisible(path):
      numbered_records = text_files.lines(path, where=self.where, start=piece.start, stop=piece.stop)
    else:
      numbered_records = text_files.records(path, field=self.field, where=self.where)
    for number, record in itertools.islice(numbered_records, piece.part, None, piece.parts):
      raw = _RawRecord(piece, number, record)
      if not self.held_out:
        yield len(record), raw
      elif text := self.parse(raw):
        yield len(text[0]), text

  def _beside(self, path: str) -> str:
    """Returns the parallel file with the translations of a file, or "" if there is none."""
    if not self.translation:
      return ""
    from t2t.data.sources import bitext

    return bitext.beside(path, translation=self.translation, where=self.where)

  def parse(self, raw_record: "_RawRecord | tuple[bytes, ...]") -> tuple[bytes, ...] | None:
    """Returns the text of a record with its annotations or translation; None if it is blank or in another split.

    Raises:
      UserError: the record is malformed, and too many are; names the file and the line.
    """
    if not isinstance(raw_record, _RawRecord):
      return raw_record
    path, number = self.files[raw_record.piece.shard], raw_record.number
    try:
      columns = self._columns(path, number, raw_record.record)
    except UserError as error:
      if not raw_record.piece.start:
        self.tally.bad(error)
        return None
      # Lines were counted from the start of the piece; the second attempt has the line number in the file.
      number += text_files.lines_before(path, raw_record.piece.start)
      try:
        self._columns(path, number, raw_record.record)
      except UserError as exact:
        self.tally.bad(exact)
      return None
    self.tally.good()
    text = columns[0]
    is_selected = text and (self.held_out is None or (text_hash(text) < self.held_out_below) == self.held_out)
    return columns if is_selected else None

  def _columns(self, path: str, number: int, record: bytes) -> tuple[bytes, ...]:
    text = text_files.parse(path, number, record, field=self.field, where=self.where).encode()
    if not text:
      return (text,)
    if self.translation:
      from t2t.data.sources import bitext

      options = {"translation": self.translation, "where": self.where}
      return text, bitext.translated(path, number, record, **options).encode()
    if not self.annotations:
      return (text,)
    options = {"field": self.field, "annotations": self.annotations, "where": self.where}
    return text, text_files.marked(path, number, record, **options).tobytes()

  def features(self, columns: Sequence[tf.Tensor]) -> tf.data.Dataset:
    """Returns features from columns: {"text": string}, and "entities"; or "first" and "second"."""
    return tf.data.Dataset.from_tensor_slices(tuple(columns)).map(self.named)

  def named(self, text: tf.Tensor, extra: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
    """Returns the columns of a record by feature name."""
    if extra is None:
      return {"text": text}
    if self.translation:
      return {"first": text, "second": extra}
    return {"text": text, "entities": tf.reshape(tf.io.decode_raw(extra, tf.int32), [-1, 2])}


class _RawRecord(NamedTuple):
  """Unparsed record with its location."""

  piece: shard_order.Piece
  number: int
  record: bytes


# Bytes of text per compressed byte, approximately.
_UNPACKED = 3.0


def _is_divisible(path: str) -> bool:
  return text_files.kind(path) in ("text", "json", "pairs") and not compression.ending(path)


def without_graph(text: str) -> str:
  """Returns the text of an error without TensorFlow's description of its graph."""
  return re.sub(r"\{\{.*?\}\}|Error in user-defined function .*? with iterator: \S+:|\[\[.*|\[Op:.*", "", text)


def is_sentence(error: Exception) -> bool:
  """Returns whether tf.data passes on a `UserError`, or an outage of a store."""
  return bool(re.search(r"\b(UserError|Away): ", str(error)))


def user_error(error: tf.errors.OpError) -> Exception | None:
  """Recovers the exception raised inside tf.data, which keeps only its text: a `UserError`, or a Python exception.

  Returns None for TensorFlow's own errors, unless the data caused them.
  """
  message = re.sub(r"Error in user-defined function .*? with iterator: \S+", "", error.message or "")
  raised = re.search(r"(UserError|Away): (.*?)\n(?:Traceback|\n|$)", message, re.DOTALL)
  if raised:
    return (outage.Away if raised[1] == "Away" else UserError)(raised[2])
  broken = tf.errors.DataLossError | tf.errors.NotFoundError | tf.errors.PermissionDeniedError
  if isinstance(error, broken):
    reason = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", message.splitlines()[0]).strip()
    return UserError(f"the data cannot be read any further: {reason}")
  python = re.search(r"(\w+): (.*?)\n(Traceback \(most recent call last\):.*)", message, re.DOTALL)
  if not python:
    return None
  name, python_message, trace = python.groups()
  exception_type = getattr(builtins, name, None)
  is_error = (
    isinstance(exception_type, type)
    and issubclass(exception_type, Exception)
    and not issubclass(exception_type, UnicodeError)
  )
  exception = (
    exception_type(python_message.strip("'") if exception_type is KeyError else python_message)
    if is_error
    else RuntimeError(f"{name}: {python_message}")
  )
  # Keep the Python frames outside TensorFlow and seqio.
  frames = [frame.strip() for frame in trace.split("\n\n") if frame.lstrip().startswith("File ")]
  user_frames = [frame for frame in frames if not any(f"/{package}/" in frame for package in ("tensorflow", "seqio"))]
  exception.add_note("raised while the data was read, in\n  " + "\n  ".join(user_frames or frames[-1:]))
  return exception


class DocumentationSource(FileSource):
  """Installed documentation, splits "train" and "validation"; read on first use, see docs_corpus.py."""

  def __init__(self):
    super().__init__({"train": (), "validation": ()})

  def list_shards(self, split: str) -> Sequence[str]:
    """Returns the single file of a split, created if it is missing."""
    from t2t.data import docs_corpus

    return _documentation_files(str(docs_corpus.folder()))[split]


@functools.lru_cache(maxsize=1)
def _documentation_files(folder: str) -> dict[str, tuple[str]]:
  from t2t.data import docs_corpus

  del folder  # cache key: tests may move the cache
  return {split: (str(path),) for split, path in docs_corpus.files().items()}
