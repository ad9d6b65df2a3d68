"""Windows: what a stream of the data reads, a few megabytes at a time, in an order that can be computed.

A source consists of shards, which are dealt out to the streams in pieces.  In each epoch a stream reads its pieces in
an order that is drawn from (seed, stream, epoch); pieces follow each other in groups, a group is read from one end to
the other, and every so many bytes of it are a window.  So (epoch, group, window) says which records come next, and to
go on there costs no more than to read one group up to it.
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

# A record costs about as much as so many bytes of text, however short it is.
RECORD_COST = 256
# A divisible shard is cut into pieces of so many bytes: few enough to find a window again soon, and enough for a piece
# to have its share of records that are books.
_LARGEST_PIECE = 64 * 2**20
_SMALLEST_PIECE = 16 * 2**20
# How unlike the streams' shares may be: the records of a small share are seen more often.
_IMBALANCE = 1 / 8
# Records of a shard that holds no more are read once and kept.
_KEPT_BYTES = 8 * 2**20
_KEPT_RECORDS = 20_000


@dataclasses.dataclass(frozen=True)
class Shard:
  """What a source says of one of its files.

  weight: about how many bytes of text it holds.
  divisible: whether it can be read from any byte on.
  """

  weight: float
  divisible: bool = False


@dataclasses.dataclass(frozen=True, order=True)
class Piece:
  """A part of a shard.

  shard: its number in the source.
  start, stop: bytes of a divisible shard; those records that begin in between.  stop 0: to the end.
  part, parts: every `parts`-th record from `part` on.
  weight: about how many bytes of text.
  """

  shard: int
  start: int = 0
  stop: int = 0
  part: int = 0
  parts: int = 1
  weight: float = 0.0


@dataclasses.dataclass(frozen=True)
class WindowPosition:
  """Where a window is: the epoch, the group of pieces in it, and the window in the group."""

  epoch: int = 0
  group: int = 0
  window: int = 0


@dataclasses.dataclass(frozen=True)
class Window:
  """Records that are preprocessed together, and a seed of their own, below 2**62."""

  position: WindowPosition
  records: Sequence[Record]
  seed: int

  @property
  def columns(self) -> tuple[np.ndarray, ...]:
    """The records by columns, as `Records.features` takes them."""
    return tuple(np.array(column, object) for column in zip(*self.records, strict=True))


class Records(Protocol):
  """A split of a source as tuples of byte strings; `features` is its inverse, in a graph of TensorFlow's."""

  num_columns: int

  def shards(self) -> Sequence[Shard]:
    """Its files."""

  def read(self, piece: Piece) -> Iterator[tuple[int, Any]]:
    """The size in bytes of each record of a piece, always the same, and the record as `parse` takes it."""

  def parse(self, raw_record: Any) -> Record | None:
    """A record; None for one that is left out.  Of windows that are passed over it is not called."""

  def features(self, columns: Sequence[tf.Tensor]) -> tf.data.Dataset:
    """The source's own records, of one string tensor [n] for each column."""


# ---- Which stream reads what -----------------------------------------------------------------------------------------


def shares(shards: Sequence[Shard], num_streams: int) -> list[tuple[Piece, ...]]:
  """Deals out shards to streams: equal shares, each shard to as few streams as that allows.

  In:  four shards of equal weight that are not divisible, 8 streams
  Out: each stream has one piece: every second record of a shard

  Args:
    shards: of a source.
    num_streams: of all hosts.
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
  """The heaviest piece first, each to the stream that has least."""
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
  """How a stream goes through its share.

  Args:
    share: the stream's pieces.
    seed: words that the order, and each window's seed, are drawn from.
    size: bytes of a window, each record counted with `RECORD_COST` more.
    shuffled: pieces and records in another order each epoch; else in their own.
    forever: epoch after epoch; else one.
  """

  share: tuple[Piece, ...]
  seed: tuple[int, ...]
  size: int
  shuffled: bool = True
  forever: bool = True

  @property
  def epochs_together(self) -> int:
    """Epochs of a share that is smaller than a window follow each other in one, so that windows are not too small."""
    weight = sum(piece.weight for piece in self.share)
    return min(64, max(1, int(self.size // max(weight, 1.0)))) if self.forever else 1

  def random(self, *numbers: int) -> np.random.Generator:
    """Draws that depend on these numbers and the seed."""
    return np.random.default_rng(np.random.SeedSequence([*self.seed, *numbers]))

  def groups(self, epoch: int) -> list[tuple[Piece, ...]]:
    """The pieces of an epoch (of several together, if the share is so small), each group a window or more."""
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
    """Windows from `start` on; they end behind the first epoch if not `forever`, or if it has no record at all."""
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
    """What is read of a group, window by window, not yet parsed."""
    window, size = [], 0
    for length, raw_record in itertools.chain.from_iterable(map(records.read, group)):
      window.append(raw_record)
      size += RECORD_COST + length
      # A share of several epochs in a window is one window, however wrong its weight was.
      if size >= self.size and self.epochs_together == 1:
        yield window
        window, size = [], 0
    if window:
      yield window

  def _window(self, position: WindowPosition, records: Records, raw_records: list) -> Window | None:
    """The window, or None if none of its records is kept."""
    parsed = [record for record in map(records.parse, raw_records) if record is not None]
    if not parsed:
      return None
    numbers = dataclasses.astuple(position)
    if self.shuffled:
      # Epochs that share a window are each in an order of their own, one behind the other.
      orders = [
        self.random(position.epoch + number, position.group, position.window, 0)
        for number in range(self.epochs_together)
      ]
      parsed = [parsed[i] for order in orders for i in order.permutation(len(parsed))]
    return Window(position, parsed, int(self.random(*numbers, 1).integers(2**62)))


# ---- Sources of seqio's ----------------------------------------------------------------------------------------------


class SeqioRecords:
  """A split of any seqio source: its shards are read one by one, unshuffled, and their records turned into bytes."""

  def __init__(
    self,
    source: seqio.DataSource,
    split: str,
    *,
    kind: str = "",
    failure: Callable[[tf.errors.OpError, str], Exception] = lambda error, where: error,
  ):
    """Reads nothing yet but which shards there are.

    Args:
      source: need only do what seqio asks of one.
      split: of it.
      kind: what it is called in messages.
      failure: TensorFlow's error, and where it was -> what is raised.
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
    """As large as their files, if they are files; else all alike."""
    paths = self._source.list_shards(self._split)
    with contextlib.suppress(tf.errors.OpError):
      if all(tf.io.gfile.exists(path) for path in paths[:1]):
        return [Shard(float(tf.io.gfile.stat(path).length)) for path in paths]
    count = None
    with contextlib.suppress(KeyError):  # a source may know it of some splits alone
      count = self._source.num_input_examples(self._split)
    # A record of unknown size is taken for a kilobyte.
    return [Shard(1024 * count / self._number if count else float(_LARGEST_PIECE))] * self._number

  def read(self, piece: Piece) -> Iterator[tuple[int, Record]]:
    """The records of a piece; those of a small one are kept for the next epoch."""
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
    """As it is."""
    return raw_record

  def features(self, columns: Sequence[tf.Tensor]) -> tf.data.Dataset:
    """The source's own records again."""

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
