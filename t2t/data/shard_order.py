"""Windows: parts of a stream's data, a few megabytes each, in a computable order.

A source consists of shards, which are divided among the streams in pieces. In each epoch a stream reads its pieces in
an order drawn from (seed, stream, epoch). Pieces form groups, a group is read in sequence, and a window is a fixed
number of its bytes. So (epoch, group, window) determines the next records, and resuming there costs reading at most one
group.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import heapq
import itertools
from typing import Any, Protocol

import numpy as np
import seqio
import tensorflow as tf

from t2t.runtime import waiting

Record = tuple[bytes, ...]

# Cost of a record, equal to this many bytes of text, however short it is.
RECORD_COST = 256
# Bytes of a piece of a divisible shard: few enough to find a window again soon, and enough for a fair share of records
# as long as books.
_LARGEST_PIECE = 64 * 2**20
_SMALLEST_PIECE = 16 * 2**20
# Maximum imbalance of the streams' shares: records of a small share are seen more often.
_IMBALANCE = 1 / 8
# Records of a smaller shard are read once and kept.
_KEPT_BYTES = 8 * 2**20
_KEPT_RECORDS = 20_000


@dataclasses.dataclass(frozen=True)
class Shard:
  """Description of a file of a source.

  weight: approximate number of bytes of text. divisible: whether reading can start at any byte.
  """

  weight: float
  divisible: bool = False


@dataclasses.dataclass(frozen=True, order=True)
class Piece:
  """Part of a shard.

  shard: number of the shard in the source. start, stop: bytes of a divisible shard; records that begin in between. stop
  0: to the end. part, parts: every `parts`-th record from `part` on. weight: approximate number of bytes of text.
  """

  shard: int
  start: int = 0
  stop: int = 0
  part: int = 0
  parts: int = 1
  weight: float = 0.0


@dataclasses.dataclass(frozen=True)
class WindowPosition:
  """Position of a window: the epoch, the group of pieces in the epoch, and the window in the group."""

  epoch: int = 0
  group: int = 0
  window: int = 0


@dataclasses.dataclass(frozen=True)
class Window:
  """Records that are preprocessed together, with their own seed below 2**62."""

  position: WindowPosition
  records: Sequence[Record]
  seed: int

  @property
  def columns(self) -> tuple[np.ndarray, ...]:
    """The records as columns, for `Records.features`."""
    return tuple(np.array(column, object) for column in zip(*self.records, strict=True))


class Records(Protocol):
  """Split of a source as tuples of byte strings; `features` is the inverse, in a TensorFlow graph."""

  num_columns: int

  def shards(self) -> Sequence[Shard]:
    """Returns the files of the split."""

  def read(self, piece: Piece) -> Iterator[tuple[int, Any]]:
    """Yields size in bytes, which is always the same, and raw record of a piece, for `parse`."""

  def parse(self, raw_record: Any) -> Record | None:
    """Returns a record, or None for one that is left out. Skipped windows do not call it."""

  def features(self, columns: Sequence[tf.Tensor]) -> tf.data.Dataset:
    """Returns the source's records from one string tensor [n] per column."""


# ---- Shares of streams -----------------------------------------------------------------------------------------------


def shares(shards: Sequence[Shard], num_streams: int) -> list[tuple[Piece, ...]]:
  """Divides shards among streams: equal shares, each shard in as few streams as possible.

  In:  four shards of equal weight that are not divisible, 8 streams
  Out: each stream has one piece: every second record of a shard

  Args:
    shards: shards of a source.
    num_streams: number of streams on all hosts.
  """
  total = sum(shard.weight for shard in shards)
  fine = total / (32 * num_streams)
  limit = min(max(fine, _SMALLEST_PIECE), _LARGEST_PIECE)
  undivided = []
  for number, shard in enumerate(shards):
    cuts = int(np.ceil(shard.weight / limit)) if shard.divisible and shard.weight else 1
    ends = np.linspace(0, shard.weight, cuts + 1).astype(np.int64).tolist()
    ends[-1] = 0  # a file may have grown since it was listed
    undivided += [Piece(number, start, stop, weight=shard.weight / cuts) for start, stop in itertools.pairwise(ends)]
  for parts in (number for number in range(1, num_streams + 1) if num_streams % number == 0):
    pieces = []
    for piece in undivided:
      number = parts if piece.weight > fine else 1
      pieces += [
        dataclasses.replace(piece, part=part, parts=number, weight=piece.weight / number) for part in range(number)
      ]
    dealt, loads = _dealt(pieces, num_streams)
    mean = total / num_streams
    if mean and max(abs(load - mean) for load in loads) <= _IMBALANCE * mean:
      break
  return [tuple(sorted(share)) for share in dealt]


def _dealt(pieces: Sequence[Piece], num_streams: int) -> tuple[list[list[Piece]], list[float]]:
  """Assigns the heaviest piece first, always to the stream with the least weight."""
  dealt: list[list[Piece]] = [[] for _ in range(num_streams)]
  heap = [(0.0, stream) for stream in range(num_streams)]
  for piece in sorted(pieces, key=lambda piece: (-piece.weight, piece)):
    load, stream = heap[0]
    dealt[stream].append(piece)
    heapq.heapreplace(heap, (load + piece.weight, stream))
  return dealt, [load for load, _ in heap]


# ---- The order -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Order:
  """Order in which a stream reads its share.

  Args:
    share: pieces of the stream.
    seed: integers from which the order and each window's seed are drawn.
    size: bytes of a window, each record counted with `RECORD_COST` more.
    shuffled: pieces and records in another order each epoch; otherwise in their own.
    forever: repeats epochs; otherwise one pass.
  """

  share: tuple[Piece, ...]
  seed: tuple[int, ...]
  size: int
  shuffled: bool = True
  forever: bool = True

  @property
  def epochs_together(self) -> int:
    """Number of epochs in one window, so that the windows of a small share are not too small."""
    weight = sum(piece.weight for piece in self.share)
    return min(64, max(1, int(self.size // max(weight, 1.0)))) if self.forever else 1

  def random(self, *numbers: int) -> np.random.Generator:
    """Returns a random generator that depends on these numbers and the seed."""
    return np.random.default_rng(np.random.SeedSequence([*self.seed, *numbers]))

  def groups(self, epoch: int) -> list[tuple[Piece, ...]]:
    """Returns the pieces of an epoch (of several, for a small share) in groups of at least a window."""
    if self.epochs_together > 1:
      return [self.share]
    order = self.random(epoch).permutation(len(self.share)) if self.shuffled else range(len(self.share))
    groups: list[list[Piece]] = [[]]
    weight = 0.0
    for number in order:
      if weight >= self.size:
        groups.append([])
        weight = 0.0
      groups[-1].append(self.share[number])
      weight += self.share[number].weight
    return [tuple(group) for group in groups]

  def windows(self, records: Records, start: WindowPosition) -> Iterator[Window]:
    """Yields windows from `start` on; ends after the first epoch if not `forever`, or after an epoch without a
    record."""
    position, empty = start, start.group == start.window == 0
    while True:
      for number, group in enumerate(self.groups(position.epoch)):
        if number < position.group:
          continue
        first = position.window if number == position.group else 0
        for index, raw_records in enumerate(self.cut(records, group)):
          if index >= first and (
            window := self._window(WindowPosition(position.epoch, number, index), records, raw_records)
          ):
            yield window
            empty = False
      if empty or not self.forever:
        return
      position, empty = WindowPosition(position.epoch + self.epochs_together), True

  def cut(self, records: Records, group: Sequence[Piece]) -> Iterator[list]:
    """Yields the raw records of a group, window by window."""
    window, size = [], 0
    for length, raw_record in itertools.chain.from_iterable(map(records.read, group)):
      window.append(raw_record)
      size += RECORD_COST + length
      # A share with several epochs per window is one window, even if its weight was wrong.
      if size >= self.size and self.epochs_together == 1:
        yield window
        window, size = [], 0
    if window:
      yield window

  def _window(self, position: WindowPosition, records: Records, raw_records: list) -> Window | None:
    """Returns the window, or None if no record is kept."""
    parsed = [record for record in map(records.parse, raw_records) if record is not None]
    if not parsed:
      return None
    numbers = dataclasses.astuple(position)
    if self.shuffled:
      # Epochs that share a window follow each other, each in its own order.
      orders = [
        self.random(position.epoch + number, position.group, position.window, 0)
        for number in range(self.epochs_together)
      ]
      parsed = [parsed[i] for order in orders for i in order.permutation(len(parsed))]
    else:
      parsed = parsed * self.epochs_together
    return Window(position, parsed, int(self.random(*numbers, 1).integers(2**62)))


# ---- seqio sources ---------------------------------------------------------------------------------------------------


class SeqioRecords:
  """Split of any seqio source: shards are read in sequence, unshuffled, and records are turned into bytes."""

  def __init__(
    self,
    source: seqio.DataSource,
    split: str,
    *,
    kind: str = "",
    failure: Callable[[tf.errors.OpError, str], Exception] = lambda error, where: error,
  ):
    """Reads only the list of shards.

    Args:
      source: any implementation of seqio's interface.
      split: split of the source.
      kind: name of the source in messages.
      failure: function from TensorFlow's error and its location to the raised exception.
    """
    self._kind, self._failure = kind or type(source).__name__, failure
    self._source, self._split = source, split
    self._number = len(source.list_shards(split))
    first = self._dataset(0)
    self._spec = first.element_spec
    self._specs = tf.nest.flatten(self._spec, expand_composites=True)
    self.num_columns = len(self._specs)
    self._kept_records: dict[Piece, list[tuple[int, Record]]] = {}
    self._kept_bytes = 0

  def shards(self) -> list[Shard]:
    """Returns shards with the sizes of their files; equal sizes if they are not files."""
    paths = self._source.list_shards(self._split)
    with contextlib.suppress(tf.errors.OpError):
      if all(tf.io.gfile.exists(path) for path in paths[:1]):
        return [Shard(float(tf.io.gfile.stat(path).length)) for path in paths]
    count = None
    with contextlib.suppress(KeyError):  # a source may know it only for some splits
      count = self._source.num_input_examples(self._split)
    # A record of unknown size counts as a kilobyte.
    return [Shard(1024 * count / self._number if count else float(_LARGEST_PIECE))] * self._number

  def read(self, piece: Piece) -> Iterator[tuple[int, Record]]:
    """Yields the records of a piece; a small piece is kept for the next epoch."""
    piece = dataclasses.replace(piece, weight=0.0)
    if piece in self._kept_records:
      yield from self._kept_records[piece]
      return
    kept_records, size = [], 0
    for record in self._read(piece):
      sized_record = (sum(map(len, record)), record)
      size += sized_record[0]
      if kept_records is not None:
        kept_records.append(sized_record)
        if len(kept_records) > _KEPT_RECORDS or size > _KEPT_BYTES:
          kept_records = None
      yield sized_record
    if kept_records is not None and self._kept_bytes + size <= 8 * _KEPT_BYTES:
      self._kept_records[piece], self._kept_bytes = kept_records, self._kept_bytes + size

  def parse(self, raw_record: Record) -> Record:
    return raw_record

  def features(self, columns: Sequence[tf.Tensor]) -> tf.data.Dataset:
    """Returns the source's records again."""

    def parse(*components: tf.Tensor):
      parsed = []
      for component, spec in zip(components, self._specs, strict=True):
        if not _is_text(spec):
          component = tf.ensure_shape(tf.io.parse_tensor(component, spec.dtype), spec.shape)
        parsed.append(component)
      return tf.nest.pack_sequence_as(self._spec, parsed, expand_composites=True)

    return tf.data.Dataset.from_tensor_slices(tuple(columns)).map(parse)

  def _dataset(self, shard: int) -> tf.data.Dataset:
    info = seqio.ShardInfo(shard, self._number) if self._number > 1 else None
    return self._source.get_dataset(split=self._split, shuffle=False, shard_info=info)

  def _read(self, piece: Piece) -> Iterator[Record]:
    dataset = self._dataset(piece.shard)
    if piece.parts > 1:
      dataset = dataset.shard(piece.parts, piece.part)

    def components(*element):
      element = element[0] if len(element) == 1 else element
      flat = tf.nest.flatten(element, expand_composites=True)
      return tuple(
        x if _is_text(spec) else tf.io.serialize_tensor(x) for x, spec in zip(flat, self._specs, strict=True)
      )

    batches = dataset.map(components).batch(64).as_numpy_iterator()
    number, shard_name = (
      0,
      f"shard {piece.shard} of {self._number} of split {self._split} of {self._kind}",
    )
    while True:
      waiting.begin(shard_name, number)
      try:
        columns = next(batches, None)
      except tf.errors.OpError as error:
        raise self._failure(error, shard_name + (f", after record {number}" if number else "")) from error
      finally:
        waiting.end()
      if columns is None:
        return
      number += len(columns[0])
      yield from zip(*columns, strict=True)


def _is_text(spec: tf.TensorSpec) -> bool:
  return spec.dtype == tf.string and spec.shape.rank == 0
