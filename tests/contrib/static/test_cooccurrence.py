"""Co-occurrence counts against a double loop, in any number of runs and shards, and after interruptions."""

import collections

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

from t2t import UserError
from t2t.contrib.static import cooccurrence


def by_loops(texts, window):
  """Counts as GloVe's cooccur.c: each word with the words before it, in both orders."""
  counts = collections.Counter()
  for ids in texts:
    for place, word in enumerate(ids):
      for other in range(max(0, place - window), place):
        counts[word, ids[other]] += 1 / (place - other)
        counts[ids[other], word] += 1 / (place - other)
  return counts


def read(shards):
  rows = [line.split() for path in shards for line in path.read_text().splitlines()]
  assert all(len(row) % 3 == 0 and len(row) <= 3 * cooccurrence.RECORDS for row in rows)
  pairs = [(int(row[i]), int(row[i + 1]), float(row[i + 2])) for row in rows for i in range(0, len(row), 3)]
  assert len({pair[:2] for pair in pairs}) == len(pairs)
  return {(i, j): weight for i, j, weight in pairs}


TEXTS = strategies.lists(strategies.lists(strategies.integers(3, 9), max_size=12), min_size=1, max_size=8)


@hypothesis.given(TEXTS, strategies.integers(1, 5), strategies.sampled_from([1, 7, 1_000]))
@hypothesis.settings(max_examples=30, deadline=None)
def test_counts_are_those_of_the_loops(tmp_path_factory, texts, window, most):
  hypothesis.assume(any(len(ids) > 1 for ids in texts))
  folder = tmp_path_factory.mktemp("counts")
  options = dict(size=10, window=window, settings={}, most=most)
  shards, number = cooccurrence.count(texts, folder, **options)
  expected, found = by_loops(texts, window), read(shards)
  assert found.keys() == expected.keys() and number == len(expected)
  for pair, weight in expected.items():
    assert found[pair] == pytest.approx(weight, rel=1e-5)
  assert not list(folder.glob("run-*")) and not list(folder.glob("*.part"))


def texts_of(seed=0):
  random = np.random.default_rng(seed)
  return [random.integers(3, 50, 30).tolist() for _ in range(40)]


@pytest.mark.parametrize("stop", [0, 17, 39])
def test_an_interrupted_count_goes_on(tmp_path, stop):
  texts, options = texts_of(), dict(size=50, window=4, settings={"input": "x"}, most=500)
  whole, _ = cooccurrence.count(texts, tmp_path / "whole", **options)
  assert len(whole) > 1

  def until_stopped():
    yield from texts[:stop]
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    cooccurrence.count(until_stopped(), tmp_path / "stopped", **options)
  seen = []
  rest = (seen.append(i) or ids for i, ids in enumerate(texts))
  again, _ = cooccurrence.count(rest, tmp_path / "stopped", **options)
  assert [path.read_text() for path in again] == [path.read_text() for path in whole]
  cooccurrence.count(iter(()), tmp_path / "stopped", **options)  # reads nothing: all shards are there


def test_a_merge_that_was_interrupted_goes_on(tmp_path, monkeypatch):
  texts, options = texts_of(), dict(size=50, window=4, settings={}, most=500)
  whole, _ = cooccurrence.count(texts, tmp_path / "whole", **options)
  lines = cooccurrence._lines
  calls = []

  def failing(rows, size):
    calls.append(1)
    if len(calls) == 2:
      raise KeyboardInterrupt
    return lines(rows, size)

  monkeypatch.setattr(cooccurrence, "_lines", failing)
  with pytest.raises(KeyboardInterrupt):
    cooccurrence.count(texts, tmp_path / "stopped", **options)
  monkeypatch.setattr(cooccurrence, "_lines", lines)
  again, _ = cooccurrence.count(iter(()), tmp_path / "stopped", **options)
  assert [path.read_text() for path in again] == [path.read_text() for path in whole]


def test_memory_is_bounded_by_the_pairs_of_a_part():
  runs = [cooccurrence.summed(np.arange(i, 3_000, 3), np.ones(1_000)) for i in range(3)]
  blocks = list(cooccurrence.merged(runs, most=300))
  assert max(map(len, blocks)) <= 300 and sum(map(len, blocks)) == 3_000
  assert np.all(np.diff(np.concatenate([block.pairs for block in blocks])) > 0)


def test_bad_settings_are_refused(tmp_path):
  options = dict(size=10, window=2, settings={"input": "a"})
  with pytest.raises(UserError, match="--window 0: a word needs neighbours"):
    cooccurrence.count([[3, 4]], tmp_path, **options | {"window": 0})
  with pytest.raises(UserError, match="no text has two words of the vocabulary"):
    cooccurrence.count([[3], []], tmp_path / "empty", **options)
  cooccurrence.count([[3, 4]], tmp_path, **options)
  with pytest.raises(UserError, match="has counts with another input, window. Give another folder"):
    cooccurrence.count([[3, 4]], tmp_path, **options | {"window": 3, "settings": {"input": "b"}})
