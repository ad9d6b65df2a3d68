"""Token ids that other programs have prepared, as a seqio source: one stream of ids in .npy or .bin files.

nanoGPT, llm.c, Megatron and Levanter write a corpus as one long array of ids, in which an end id follows each document.
Files are read by ranges, in a bucket too, and never as a whole.
"""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import functools
import itertools
import struct
from typing import BinaryIO, NamedTuple

import numpy as np
import tensorflow as tf

from t2t import UserError
from t2t.data import shard_order
from t2t.data.sources import bad_records, file_validation, files, text_files
from t2t.runtime import progress
from t2t.storage import gcs, safe_read

DTYPES = ("uint16", "uint32", "int32")  # of .bin files
_BLOCK = 2**18  # tokens per read
# Tokens after which a document without an end is divided, so that a stream without end ids can be read in parallel.
_LONGEST = 2**20
# Tokens of the parts of text without an end: about `_PARTS` a file, so that a small file has parts to shuffle and share
# out, and a large one few seams.
_SHORTEST_PART, _LONGEST_PART, _PARTS = 2**11, 2**16, 256
_WEIGHT = 4  # bytes of English text per token, the unit of shard_order.py
# llm.c and modded-nanogpt: a header of 256 int32 before the ids, which begins with a number and the version.
_LLM_C = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
_LLM_C_BYTES = 1024


class IdFormat(NamedTuple):
  """Meaning of the ids.

  dtype: of the ids in .bin files; "": not given.
  end: id after each document.
  vocab_size: number of ids.
  dtype_key: name of the setting, for messages.
  """

  dtype: str
  end: int
  vocab_size: int
  dtype_key: str = "config.data.tokens_dtype"


class IdLayout(NamedTuple):
  """Place of the ids in a file: their type, the bytes before them, and their number."""

  dtype: np.dtype
  start: int
  size: int


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
  with gcs.open_binary(path) if gcs.is_remote(path) else open(path, "rb") as file:
    yield file


# ---- Headers ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def layout(path: str, size: int, format_: IdFormat, *, where: str) -> IdLayout:
  """Returns the place of the ids in a file.

  Args:
    path: local or in a bucket.
    size: of the file in bytes.
    format_: of the ids.
    where: config key of the file, for messages.

  Raises:
    UserError: the file has no ids, another shape than one row, a type without integers, or another length than its type
      and header say.
  """
  location = f"{where}: {path}"
  try:
    with _opened(path) as file:
      if path.lower().endswith(".npy"):
        dtype, start, number = _npy(file, location)
      else:
        dtype, start, number = _bin(file, format_, location)
  except OSError as error:
    raise bad_records.interrupted(path, "its first bytes", error, where=where) from error
  if format_.dtype and dtype.newbyteorder("=") != np.dtype(format_.dtype):
    raise UserError(
      f"{location}: the ids have type {dtype.name}, but {format_.dtype_key}={format_.dtype}. Set "
      f"{format_.dtype_key}={dtype.name if dtype.name in DTYPES else ''}."
    )
  if number is None:
    number, rest = divmod(size - start, dtype.itemsize)
    if rest:
      raise UserError(
        f"{location} has {size:,} bytes, which is no multiple of the {dtype.itemsize} bytes of a {dtype.name}. Set "
        f"{format_.dtype_key} to the type of the ids ({', '.join(DTYPES)}), or copy the file again."
      )
  if size != start + number * dtype.itemsize:
    raise UserError(
      f"{location}: the header promises {number:,} ids of type {dtype.name}, {start + number * dtype.itemsize:,} bytes "
      f"in all, but the file has {size:,} bytes. {safe_read.COPY_AGAIN}"
    )
  if not number:
    raise UserError(f"{location} has no ids. Leave the file out, or write it again.")
  return IdLayout(dtype, start, number)


def _npy(file: BinaryIO, location: str) -> tuple[np.dtype, int, int]:
  readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
  try:
    shape, _, dtype = readers[np.lib.format.read_magic(file)](file)
  except (ValueError, KeyError, EOFError) as error:
    raise UserError(
      f"{location} is not a NumPy file of ids ({str(error).splitlines()[0] or 'empty'}). Write the ids with numpy.save."
    ) from error
  if len(shape) != 1:
    raise UserError(
      f"{location} has an array of shape {shape}, but ids must be one row. Write it with numpy.save(path, "
      "ids.reshape(-1)), with the end id after each document."
    )
  if dtype.kind not in "ui":
    raise UserError(f"{location} has values of type {dtype.name}, but ids must be integers, for example uint16.")
  return dtype, file.tell(), shape[0]


def _bin(file: BinaryIO, format_: IdFormat, location: str) -> tuple[np.dtype, int, int | None]:
  header = file.read(12)
  if len(header) == 12:
    magic, version, number = struct.unpack("<iii", header)
    if (magic, version) in _LLM_C:
      return np.dtype(_LLM_C[magic, version]), _LLM_C_BYTES, number
  if format_.dtype not in DTYPES:
    given = f"{format_.dtype_key}={format_.dtype} is not one of" if format_.dtype else f"{format_.dtype_key} is empty:"
    raise UserError(
      f"{location}: {given} {', '.join(DTYPES)}, and a .bin file does not contain its type. Set {format_.dtype_key}="
      "uint16 for nanoGPT's files, and for vocabularies up to 65,536 ids in general."
    )
  return np.dtype(format_.dtype).newbyteorder("<"), 0, None


# ---- Documents -------------------------------------------------------------------------------------------------------


def _blocks(path: str, place: IdLayout, start: int) -> Iterator[tuple[int, np.ndarray]]:
  """Yields position and ids, int64 [n], of all blocks from a position on."""
  with _opened(path) as file:
    file.seek(place.start + start * place.dtype.itemsize)
    while start < place.size:
      number = min(_BLOCK - start % _BLOCK, place.size - start)
      content = file.read(number * place.dtype.itemsize)
      if len(content) < number * place.dtype.itemsize:
        raise EOFError(f"it ends after id {start + len(content) // place.dtype.itemsize:,}")
      yield start, np.frombuffer(content, place.dtype).astype(np.int64)
      start += number


def documents(
  path: str, place: IdLayout, *, end: int, start: int = 0, stop: int = 0
) -> Iterator[tuple[int, np.ndarray]]:
  """Yields the documents that begin at ids `start` to `stop` (0: the end), each with its position and its end id.

  A document begins after an end id. Without an end id within 2**20 ids, one also begins at a multiple of 2**20. So any
  range of a file finds its documents with a bounded search.

  In:  ids 5 6 1 7 8 9 1, end 1, start 2
  Out: (3, [7 8 9 1])

  Args:
    path: of the file.
    place: of the ids.
    end: id after each document.
    start, stop: range of ids.
  """
  # Reading begins where it is known whether a document without an end is divided at `start`.
  first = max(0, (start - 1) // _LONGEST * _LONGEST - _LONGEST)
  begin = 0 if first == 0 else None  # position of the current document; None: unknown
  last_end = first - 1  # position of the last end id, or the one before the first id read
  parts: list[np.ndarray] = []
  part = int(np.clip(2 ** round(np.log2(place.size / _PARTS)), _SHORTEST_PART, _LONGEST_PART))
  for position, ids in _blocks(path, place, first):
    cuts = (np.flatnonzero(ids == end) + 1).tolist()
    if position % _LONGEST == 0 and position and last_end < position - _LONGEST:
      cuts.insert(0, 0)
    last_cut = 0
    for cut in cuts:
      if begin is not None:
        parts.append(ids[last_cut:cut])
        if begin >= start:
          yield from _document(begin, np.concatenate(parts), end=end, part=part)
      begin, parts, last_cut = position + cut, [], cut
      if stop and begin >= stop:
        return
      if cut:
        last_end = position + cut - 1
    if begin is not None and last_cut < len(ids):
      parts.append(ids[last_cut:])
  if parts and begin is not None and begin >= start:
    yield from _document(begin, np.concatenate(parts), end=end, part=part)


def _document(begin: int, ids: np.ndarray, *, end: int, part: int) -> Iterator[tuple[int, np.ndarray]]:
  """Yields a document, or the parts of one without an end."""
  step = len(ids) if ids.size and ids[-1] == end else part
  for offset in range(0, len(ids), step or 1):
    yield begin + offset, ids[offset : offset + step]


def checked(path: str, position: int, ids: np.ndarray, format_: IdFormat, *, where: str) -> np.ndarray:
  """Returns ids as int32.

  Raises:
    UserError: an id is not in the vocabulary; names its place, counted from 0 as in NumPy.
  """
  wrong = np.flatnonzero((ids < 0) | (ids >= format_.vocab_size))
  if wrong.size:
    raise UserError(
      f"{where}: {path}: id {ids[wrong[0]]:,} at position {position + wrong[0]:,} is not in the vocabulary, which has "
      f"{format_.vocab_size:,} ids. Set config.data.vocabulary to the vocabulary of the ids, and "
      f"{format_.dtype_key} to their type."
    )
  return ids.astype(np.int32)


# ---- The source ------------------------------------------------------------------------------------------------------


class _RawTokens(NamedTuple):
  shard: int
  position: int
  ids: np.ndarray


@dataclasses.dataclass(frozen=True)
class TokenRecords:
  """Documents of token files, an implementation of `shard_order.Records`; see `files.FileRecords`."""

  files: tuple[str, ...]
  format_: IdFormat
  where: str
  held_out_below: int = 0
  held_out: bool | None = None
  tally: bad_records.Tally = dataclasses.field(default_factory=lambda: bad_records.Tally(0.0), compare=False)

  num_columns = 1

  def layouts(self) -> list[IdLayout]:
    """Returns the place of the ids in each file."""
    sizes = text_files.sizes(self.files)
    return [layout(path, size, self.format_, where=self.where) for path, size in zip(self.files, sizes, strict=True)]

  def shards(self) -> list[shard_order.Shard]:
    """Returns the shards, all divisible; four bytes of a shard are one token."""
    return [shard_order.Shard(float(_WEIGHT * place.size), divisible=True) for place in self.layouts()]

  def read(self, piece: shard_order.Piece) -> Iterator[tuple[int, "_RawTokens | tuple[bytes, ...]"]]:
    """Yields the documents of a piece; for the held-out split, which is small, the parsed ones.

    Raises:
      UserError: the file cannot be read, or an id of a held-out document is not in the vocabulary.
    """
    path, place = self.files[piece.shard], self.layouts()[piece.shard]
    # The last piece has no stop.
    limits = {"start": -(-piece.start // _WEIGHT), "stop": -(-piece.stop // _WEIGHT)}
    read = lambda: documents(path, place, end=self.format_.end, **limits)
    numbered = bad_records.numbered(read, path, unit="position", broken="truncated file of ids", where=self.where)
    for position, ids in itertools.islice(numbered, piece.part, None, piece.parts):
      raw = _RawTokens(piece.shard, position, ids)
      if not self.held_out:
        yield _WEIGHT * len(ids), raw
      elif record := self.parse(raw):
        yield _WEIGHT * len(ids), record

  def parse(self, raw_record: "_RawTokens | tuple[bytes, ...]") -> tuple[bytes, ...] | None:
    """Returns the ids as bytes of int32; None for an empty document, and for one of another split.

    Raises:
      UserError: an id is not in the vocabulary.
    """
    if not isinstance(raw_record, _RawTokens):
      return raw_record
    try:
      ids = checked(self.files[raw_record.shard], raw_record.position, raw_record.ids, self.format_, where=self.where)
    except UserError as error:
      self.tally.bad(error)
      return None
    self.tally.good()
    content = ids.tobytes()
    if not is_document(ids, self.format_.end):
      return None
    is_selected = self.held_out is None or (files.text_hash(content) < self.held_out_below) == self.held_out
    return (content,) if is_selected else None

  def features(self, columns: Sequence[tf.Tensor]) -> tf.data.Dataset:
    """Returns features from columns: {"tokens": int32 [n]}."""
    return tf.data.Dataset.from_tensor_slices(tuple(columns)).map(self.named)

  def named(self, content: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the column of a record by feature name."""
    return {"tokens": tf.io.decode_raw(content, tf.int32)}


def is_document(ids: np.ndarray, end: int) -> bool:
  """Returns True if there is a token beside the end id."""
  return len(ids) > 1 or (len(ids) == 1 and ids[0] != end)


class TokenSource(files.FileSource):
  """seqio source of token files: {"tokens": int32 [n]}, with the end id of the document; see `files.FileSource`."""

  def __init__(self, *arguments, format_: IdFormat, **options):
    super().__init__(*arguments, **options)
    self._format = format_

  def records(self, split: str) -> TokenRecords:
    return TokenRecords(
      tuple(self.list_shards(split)),
      self._format,
      self._where.get(split, "config.data.files"),
      held_out_below=self._held_out_below,
      held_out=(split == "validation") if self._held_out_below else None,
      tally=self.tally(split),
    )


# ---- The check before training ---------------------------------------------------------------------------------------


def scan(records: TokenRecords) -> file_validation.Scan:
  """Reads all documents of files up to a size, or the first ones of some files; see `file_validation.scan`.

  Returns:
    The counts, with tokens in place of characters.

  Raises:
    UserError: a file cannot be read, an id is not in the vocabulary, or no file has a document.
  """
  return _scan(records, tuple(text_files.stats(records.files, where=records.where).items()))


@functools.lru_cache(maxsize=16)
def _scan(records: TokenRecords, stats: tuple[tuple[str, text_files.Stat], ...]) -> file_validation.Scan:
  records.layouts()  # checks the headers of all files
  complete = sum(stat.size for _, stat in stats) <= file_validation.READ_WHOLE_BYTES
  paths = list(records.files)
  if not complete:
    paths = paths[:: max(1, len(paths) // file_validation.SAMPLED_FILES)][: file_validation.SAMPLED_FILES]
  whole = dataclasses.replace(records, held_out_below=0, held_out=None)
  size = 0

  def read() -> Iterator[tuple[bytes, int]]:
    nonlocal size
    for path in paths:
      piece = shard_order.Piece(records.files.index(path))
      number = None if complete else file_validation.SAMPLED_RECORDS
      for num_bytes, raw in itertools.islice(whole.read(piece), number):
        size += num_bytes
        if columns := whole.parse(raw):
          yield columns[0], num_bytes // _WEIGHT

  documents, tokens, held_out, smallest_hash, copies = file_validation.summed(
    progress.track(read(), f"checking {len(paths)} file(s) of {records.where}")
  )
  if not documents:
    raise UserError(f"{records.where}: {paths[0]} has only end ids ({records.format_.end}). Give files with documents.")
  return file_validation.Scan(complete, documents, tokens, smallest_hash, held_out, copies, size)
