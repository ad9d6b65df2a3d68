"""Windows and subsampling of word2vec's objectives: the docstrings' arrays, and properties for any text."""

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.contrib.static import windows, word_counts
from t2t.data import objectives, vocabularies
from t2t.data.vocabularies import training


def test_pairs_are_counted_as_they_are_listed():
  assert windows.pair_counts(tf.constant([1, 2, 1])).numpy().tolist() == [1, 2, 1]
  assert windows.contexts([3, 4, 5], [1, 1, 2]) == [(3, 4), (4, 3), (4, 5), (5, 3), (5, 4)]


@hypothesis.given(strategies.lists(strategies.integers(1, 9), min_size=1, max_size=30))
@hypothesis.settings(max_examples=50, deadline=None)
def test_each_word_has_as_many_pairs_as_words_in_reach(drawn):
  pairs = windows.contexts(list(range(len(drawn))), drawn)
  counts = np.bincount([word for word, _ in pairs], minlength=len(drawn))
  assert windows.pair_counts(tf.constant(drawn)).numpy().tolist() == counts.tolist()
  assert all(0 < abs(word - other) <= drawn[word] for word, other in pairs)


@hypothesis.given(
  strategies.lists(strategies.integers(0, 10_000), min_size=1, max_size=20).filter(any), strategies.floats(1e-6, 0.5)
)
def test_frequent_words_are_kept_less_often_and_rare_ones_always(counts, threshold):
  counts = np.array(counts, np.float64)
  keep = word_counts.keep_probabilities(counts, threshold)
  share = counts / counts.sum()
  # A word is kept for sure up to the frequency at which sqrt(t / f) + t / f is 1.
  sure = share <= threshold * ((1 + 5**0.5) / 2) ** 2 * (1 - 1e-6)
  assert np.all(keep[sure] > 1 - 1e-6) and np.all((keep >= 0) & (keep <= 1))
  assert np.all(np.diff(keep[np.argsort(share)]) <= 1e-6)


def test_the_formula_is_that_of_word2vec():
  """word2vec.c: (sqrt(count / (sample * total)) + 1) * (sample * total) / count."""
  counts, sample = np.array([0.0, 3.0, 100.0, 5_000.0]), 1e-3
  total = counts.sum()
  expected = [min(1.0, ((count / (sample * total)) ** 0.5 + 1) * (sample * total) / count) for count in counts[1:]]
  np.testing.assert_allclose(word_counts.keep_probabilities(counts, sample), [1.0, *expected], rtol=1e-6)
  assert word_counts.keep_probabilities(counts, 0.0).tolist() == [1.0] * 4


@pytest.fixture(scope="module")
def words(tmp_path_factory):
  folder = tmp_path_factory.mktemp("words")
  path = training.train_words(["a a a a a a a a b b b b c c d"], size=100, output_dir=folder, min_count=2)
  return vocabularies.load(str(path), extra_ids=0)


def examples(vocabulary, texts, *, seed=0, length=8, name="skip_gram", **options):
  task = seqio.Task(
    "words",
    source=seqio.FunctionDataSource(
      lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices({"text": texts}), splits=("train",)
    ),
    preprocessors=objectives.preprocessors(name, **options),
    output_features=objectives.output_features(name, vocabulary),
  )
  lengths = dict.fromkeys(("inputs", "targets", "loss_weights", "windows"), length)
  dataset = task.get_dataset(lengths, "train", shuffle=False, seed=seed)
  return [{key: x.tolist() for key, x in row.items()} for row in dataset.as_numpy_iterator()]


def test_unknown_words_are_dropped_and_the_rest_is_cut(words):
  a, b, c = (words.encode(word)[0] for word in "abc")
  made = examples(words, ["a b zzz c", "d", "a"], pack=True, subsampling=0.0, window=2)
  assert [row["inputs"] for row in made] == [[a, b, c]]  # one word has no context, and "d" occurs too rarely
  assert made[0]["inputs"] == made[0]["targets"]
  assert made[0]["loss_weights"] == windows.pair_counts(tf.constant(made[0]["windows"])).numpy().tolist()
  joined = examples(words, ["a b", "c a"], subsampling=0.0)
  assert [row["inputs"] for row in joined] == [[a, b, c, a]]
  cbow = examples(words, ["a b c a"], subsampling=0.0, name="cbow")
  assert [row["loss_weights"] for row in cbow] == [[1, 1, 1, 1]]


def test_windows_are_uniform_and_the_seed_decides(words):
  text = [" ".join("abc" * 400)]
  options = dict(subsampling=0.0, window=4, length=1200)
  drawn = examples(words, text, **options)[0]["windows"]
  assert np.bincount(drawn, minlength=5)[1:].min() > 1200 / 4 * 0.7 and set(drawn) == {1, 2, 3, 4}
  assert examples(words, text, **options)[0]["windows"] == drawn
  assert examples(words, text, seed=1, **options)[0]["windows"] != drawn


def test_subsampling_keeps_the_given_share(words):
  counts = word_counts.of_vocabulary(words)
  text, sample = [" ".join("a" * 4_000)], 0.05
  kept = sum(len(row["inputs"]) for row in examples(words, text, subsampling=sample, length=512))
  expected = word_counts.keep_probabilities(counts, sample)[words.encode("a")[0]]
  assert 0.1 < expected < 0.9
  assert kept / 4_000 == pytest.approx(expected, abs=0.03)


def test_settings_out_of_range_are_refused(words):
  for options, message in (
    ({"window": 0}, "config.data.window=0: a word needs context"),
    ({"subsampling": 1.5}, "config.data.subsampling=1.5: must be at least 0"),
  ):
    with pytest.raises(UserError, match=message):
      examples(words, ["a b"], **options)
  with pytest.raises(UserError, match="config.data.window=3 has no effect with config.data.objective=masked_lm"):
    objectives.preprocessors("masked_lm", window=3)
