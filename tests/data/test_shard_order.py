"""Windows: equal shares, each record once an epoch, and any window restored from three integers."""

import collections
import dataclasses
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import shard_order, sources


@dataclasses.dataclass
class Numbered:
  """Records that say where they are: `sizes[i]` of shard i."""

  sizes: tuple[int, ...]
  num_columns = 1

  def shards(self):
    return [shard_order.Shard(float(10 * size)) for size in self.sizes]

  def read(self, piece):
    for number in range(piece.part, self.sizes[piece.shard], piece.parts):
      yield 10, (b"%d-%d" % (piece.shard, number),)

  def parse(self, found):
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=30), st.sampled_from([1, 2, 3, 8, 32]))
def test_shares_are_whole_and_equal(sizes, num_streams):
  """Each record is in one share; no share is more than an eighth, and a record of each shard, off the mean."""
  records = Numbered(tuple(sizes))
  shares = shard_order.shares(records.shards(), num_streams)
  found = [[record for piece in share for _, record in records.read(piece)] for share in shares]
  assert collections.Counter(sum(found, [])) == collections.Counter(
    (b"%d-%d" % (shard, number),) for shard, size in enumerate(sizes) for number in range(size)
  )
  mean = sum(sizes) / num_streams
  assert all(abs(len(share) - mean) <= mean / 8 + len(sizes) for share in found)


def test_a_shard_goes_to_as_few_streams_as_that_allows():
  """So that hosts open the files that they need and no others."""
  readers = lambda number, streams: max(
    collections.Counter(
      piece.shard for share in shard_order.shares([shard_order.Shard(1e9)] * number, streams) for piece in share
    ).values()
  )
  assert readers(4, 8) == 2 and readers(1, 8) == 8 and readers(5000, 256) == 1
  opened = [len(share) for share in shard_order.shares([shard_order.Shard(10_000.0)] * 5000, 256)]
  assert sum(opened) == 5000 and max(opened) == 20


def test_a_divisible_shard_is_cut_by_bytes():
  """Pieces follow each other without a gap, and the last has no end."""
  (share,) = shard_order.shares([shard_order.Shard(1e9, divisible=True)], 1)
  assert share[0].start == 0 and share[-1].stop == 0 and len(share) > 8
  assert all(left.stop == right.start for left, right in itertools.pairwise(share))


BEGINNING = shard_order.WindowPosition()


def taken(order, records, start=BEGINNING, number=30):
  return list(itertools.islice(order.windows(records, start), number))


@settings(max_examples=40, deadline=None)
@given(
  st.lists(st.integers(1, 60), min_size=1, max_size=6),
  st.integers(300, 8000),
  st.one_of(st.none(), st.integers(0, 9)),
  st.integers(0, 29),
)
def test_any_window_is_found_again(sizes, size, seed, number):
  """From its place alone come that window and all behind it, with their seeds."""
  records = Numbered(tuple(sizes))
  (share,) = shard_order.shares(records.shards(), 1)
  order = shard_order.Order(share, (seed or 0,), size, shuffled=seed is not None)
  whole = taken(order, records)
  assert taken(order, records, whole[number].position, 30 - number) == whole[number:]
  assert len({window.seed for window in whole}) == len(whole)


def test_an_epoch_has_each_record_once_in_another_order():
  """Also where a share is so small that several epochs make one window."""
  for size in (1_000, 100_000):
    records = Numbered((20, 30))
    (share,) = shard_order.shares(records.shards(), 1)
    order = shard_order.Order(share, (1, 2), size)
    found = [
      record
      for window in itertools.takewhile(
        lambda window: window.position.epoch < 128, order.windows(records, shard_order.WindowPosition())
      )
      for record in window.records
    ]
    epochs = [tuple(found[at : at + 50]) for at in range(0, len(found), 50)]
    assert len(epochs) == 128 and len(set(epochs)) == 128
    assert all(len(set(epoch)) == 50 for epoch in epochs)


def test_records_as_large_as_pieces_are_shared_out_evenly(tmp_path):
  """Books, one a line: a piece of a file is never so small that it may have none of them, or twice as many."""
  (tmp_path / "books.txt").write_text("\n".join("x" * 100_000 for _ in range(64)))
  records = sources.FileSource({"train": (str(tmp_path / "books.txt"),)}).records("train")
  shares = shard_order.shares(records.shards(), 8)
  assert [sum(1 for piece in share for _ in records.read(piece)) for share in shares] == [8] * 8


def test_what_is_passed_over_is_not_parsed():
  """Skipped records are read but not parsed."""
  records = Numbered((1000,))
  (share,) = shard_order.shares(records.shards(), 1)
  order = shard_order.Order(share, (1,), 3000)
  last = taken(order, records, number=80)[-1]
  parsed = []
  records.parse = lambda found: parsed.append(found) or found
  assert taken(order, records, last.position, 1) == [last] and len(parsed) == len(last.records)


def test_a_share_without_a_record_ends():
  """Empty epochs do not loop forever."""
  order = shard_order.Order((shard_order.Piece(0),), (1,), 1000)
  assert taken(order, Numbered((0,))) == []


@pytest.mark.parametrize("ending", ["\n", ""])
@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_lines_are_found_from_any_byte_on(tmp_path, ending, size):
  """Pieces of a file have each line once, in order, and a bad line has its number in the file."""
  lines = [f"line {number} " + "x" * (1 + number * 7 % 23) for number in range(60)]
  path = tmp_path / "a.txt"
  path.write_text("\n".join(lines) + ending)
  records = sources.FileSource({"train": (str(path),)}).records("train")
  cuts = [*range(0, path.stat().st_size, size), 0]
  pieces = [shard_order.Piece(0, start, stop) for start, stop in itertools.pairwise(cuts)]
  texts = lambda: [records.parse(raw)[0].decode() for piece in pieces for _, raw in records.read(piece)]
  assert texts() == lines
  path.write_bytes(path.read_bytes().replace(b"line 40 ", b"line \xff0 "))
  with pytest.raises(UserError, match="a.txt, line 41: not valid UTF-8"):
    texts()


def test_records_of_any_source_of_seqio():
  """Numbers, lists and ragged fields are the same again."""

  def dataset(split, shuffle_files=False, seed=None):
    answers = tf.ragged.constant([["a"], [], ["b", "c"]] * 4)
    return tf.data.Dataset.from_tensor_slices(
      {"question": [f"q{i}" for i in range(12)], "number": np.arange(12, dtype=np.int32), "answers": answers}
    )

  source = seqio.FunctionDataSource(dataset, splits=("train",))
  records = shard_order.SeqioRecords(source, "train")
  shares = shard_order.shares(records.shards(), 3)
  found = [record for share in shares for piece in share for _, record in records.read(piece)]
  again = list(records.features([tf.constant(column) for column in zip(*found, strict=True)]))
  expected = {row["question"].numpy(): row for row in dataset("train")}
  assert len(again) == 12
  for row in again:
    for name, value in expected.pop(row["question"].numpy()).items():
      np.testing.assert_array_equal(row[name], value)
