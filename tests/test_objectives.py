"""Span corruption: literal ids, T5's arithmetic, and what must hold for any length."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import objectives

T5 = {"noise_density": 0.15, "mean_noise_span_length": 3.0}
SEEDS = (tf.constant([0, 1]), tf.constant([2, 3]))


def rows(*rows_of_targets):
  dataset = tf.data.Dataset.from_tensor_slices(tf.ragged.constant(rows_of_targets, tf.int32))
  return dataset.map(lambda row: {"targets": row})


def lists(dataset):
  return [{key: value.tolist() for key, value in row.items()} for row in dataset.as_numpy_iterator()]


def features(vocab_size=97, extra_ids=3):
  vocabulary = seqio.PassThroughVocabulary(vocab_size)
  vocabulary._extra_ids = extra_ids
  feature = seqio.Feature(vocabulary=vocabulary)
  return {"inputs": feature, "targets": feature}


def test_t5_lengths():
  """568 raw tokens become 512 and 114, as in T5."""
  assert objectives.span_lengths(512, **T5) == objectives.SpanLengths(raw=568, inputs=512, targets=114, spans=28)
  assert objectives.span_counts(568, **T5) == (85, 28)


def test_docstring_examples():
  """What the docstrings show is what the functions do."""
  sentinels = objectives.spans_to_sentinels(
    tf.constant([7, 8, 9, 4, 5]), tf.constant([False, True, True, False, True]), first_sentinel=99
  )
  np.testing.assert_array_equal(sentinels, [7, 99, 4, 98])
  corrupted = objectives.corrupt_spans(tf.range(3, 9), SEEDS, first_sentinel=99, noise_density=0.3)
  np.testing.assert_array_equal(corrupted["inputs"], [3, 4, 5, 6, 99])
  np.testing.assert_array_equal(corrupted["targets"], [99, 7, 8])
  assert lists(objectives.concatenate(rows([1, 2], [3], [4, 5]), group=2)) == [
    {"targets": [1, 2, 3]},
    {"targets": [4, 5]},
  ]
  assert lists(objectives.split(rows([1, 2, 3, 4, 5]), length=2)) == [
    {"targets": [1, 2]},
    {"targets": [3, 4]},
    {"targets": [5]},
  ]
  out = objectives.span_corruption(rows([3, 4, 5, 6, 7]), {"inputs": 6, "targets": 3}, features())
  assert lists(out) == [{"inputs": [3, 4, 5, 6, 99], "targets": [99, 7]}]


def test_the_mask_of_a_seed_is_fixed():
  """Noise is drawn statelessly: these seeds give these spans, today and after a restart."""

  def draw(seeds):
    return objectives.noise_mask(tf.constant(8), seeds, noise_density=0.4, mean_noise_span_length=1.5)

  np.testing.assert_array_equal(draw(SEEDS), draw(SEEDS))
  drawn = {tuple(draw((tf.constant([i, 1]), tf.constant([i, 2]))).numpy().tolist()) for i in range(40)}
  assert (False, False, True, False, False, False, True, True) in drawn  # the docstring's
  assert len(drawn) == 2 * 4  # 3 noise tokens in 2 spans, times 5 others in 2 spans: every way, and no other


def test_partitions_are_all_reached():
  """5 items in 3 parts: all 6 ways, each part at least 1."""
  ways = {tuple(objectives.random_partition(5, 3, tf.constant([i, 7])).numpy().tolist()) for i in range(60)}
  assert ways == {(1, 1, 3), (1, 3, 1), (3, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)}


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(length=st.integers(1, 700), seed=st.integers(0, 2**30), density=st.sampled_from([0.15, 0.3, 0.5]))
def test_inputs_and_targets_hold_the_text(length, seed, density):
  """Sentinels replaced by the spans of the other side give the text back, and the lengths are as counted."""
  tokens = np.arange(1, length + 1, dtype=np.int32)
  seeds = (tf.constant([seed, 0]), tf.constant([seed, 1]))
  out = objectives.corrupt_spans(tf.constant(tokens), seeds, first_sentinel=9999, noise_density=density)
  inputs, targets = out["inputs"].numpy(), out["targets"].numpy()
  spans = {}
  for token in targets:
    if token > 9000:
      spans[token] = []
    else:
      spans[max(spans, key=lambda s: -s)].append(token)  # the latest sentinel is the smallest
  rebuilt = []
  for token in inputs:
    rebuilt += spans.pop(token) if token > 9000 else [token]
  if length > 1:
    np.testing.assert_array_equal(rebuilt, tokens)
    noise, count = objectives.span_counts(length, noise_density=density, mean_noise_span_length=3.0)
    assert (len(inputs), len(targets)) == (length - noise + count, noise + count)
    assert targets[0] == 9999
  else:
    assert inputs.tolist() == [1] and targets.tolist() == [9999]


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
  inputs_length=st.integers(3, 600),
  density=st.floats(0.05, 0.8),
  mean=st.floats(1.0, 10.0),
  shorter=st.integers(0, 599),
)
def test_no_piece_is_longer_than_the_full_one(inputs_length, density, mean, shorter):
  """What is left over at the end of a document fits as well: nothing is ever trimmed."""
  arguments = {"noise_density": density, "mean_noise_span_length": mean}
  full = objectives.span_lengths(inputs_length, **arguments)
  length = max(1, full.raw - shorter)
  noise, spans = objectives.span_counts(length, **arguments)
  assert full.inputs <= inputs_length
  assert max(length, 2) - noise + spans + 1 <= full.inputs
  assert noise + spans + 1 <= full.targets


def test_every_example_is_full_when_documents_merge():
  """Short documents are joined: all examples but the last hold 568 tokens; apart, each holds its document."""
  documents = [[5] * 71 for _ in range(24)]  # 3 x 568
  lengths = {"inputs": 512, "targets": 114}
  merged = lists(objectives.span_corruption(rows(*documents), lengths, features(extra_ids=100, vocab_size=900)))
  assert [len(e["inputs"]) + 1 for e in merged] == [512] * 3
  assert [len(e["targets"]) + 1 for e in merged] == [114] * 3
  apart = objectives.span_corruption(
    rows(*documents), lengths, features(extra_ids=100, vocab_size=900), merge_documents=False
  )
  noise, spans = objectives.span_counts(71, **T5)
  assert [len(e["inputs"]) for e in lists(apart)] == [71 - noise + spans] * 24


@pytest.mark.parametrize(
  "arguments, message",
  [
    ({"targets_length": 113}, "config.data.targets_length=113 is too short.*targets_length=114"),
    ({"extra_ids": 27}, "config.data.extra_ids=27.*28 noise spans.*extra_ids=28"),
    ({"noise_density": 1.0}, "config.data.noise_density=1.0"),
    ({"mean_noise_span_length": 0.5}, "config.data.mean_noise_span_length=0.5"),
    ({"inputs_length": 2}, "config.data.inputs_length=2"),
  ],
)
def test_lengths_that_do_not_work(arguments, message):
  """Each names its key and what would do."""
  given = {"inputs_length": 512, "targets_length": 114, "extra_ids": 100, **T5, **arguments}
  with pytest.raises(UserError, match=message):
    objectives.check_lengths(given.pop("inputs_length"), given.pop("targets_length"), **given)


def test_an_unknown_objective_names_the_nearest():
  with pytest.raises(UserError, match="span_corupt.*did you mean span_corruption"):
    objectives.preprocessors("span_corupt")
