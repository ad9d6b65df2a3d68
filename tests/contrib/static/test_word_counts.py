"""Counts beside a vocabulary, and draws from their distribution."""

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

from t2t import UserError
from t2t.contrib.static import word_counts
from t2t.data import vocabularies
from t2t.data.vocabularies import training


def test_counts_have_the_ids_of_the_vocabulary(tmp_path):
  path = training.train_words(["b a b. B", "a b"], size=5, output_dir=tmp_path, min_count=2)
  vocabulary = vocabularies.load(str(path), extra_ids=0)
  assert word_counts.of_vocabulary(vocabulary).tolist() == [0, 0, 0, 4, 2]
  assert vocabulary.encode("B a c") == [3, 4, 2] and vocabulary.decode([3, 4]) == "b a"
  assert word_counts.of_vocabulary(vocabularies.load("bytes", extra_ids=0)) is None
  saved = tmp_path / "saved"
  vocabularies.save(vocabulary, saved)
  copy = vocabularies.load(str(saved), extra_ids=0)
  assert word_counts.of_vocabulary(copy).tolist() == [0, 0, 0, 4, 2]


def test_a_vocabulary_without_words_is_refused(tmp_path):
  with pytest.raises(UserError, match="--min_count 3: the vocabulary is empty.* 'a', occurs 2 times. .*--min_count 2"):
    training.train_words(["a a b"], size=10, output_dir=tmp_path, min_count=3)
  with pytest.raises(UserError, match="--input: there is no text"):
    training.train_words([], size=10, output_dir=tmp_path)
  with pytest.raises(UserError, match="--size 3: too small"):
    training.train_words(["a"], size=3, output_dir=tmp_path)


def test_a_bad_line_of_counts_is_named(tmp_path):
  path = tmp_path / "word_counts.tsv"
  for text in ("a\t3\nb\n", "a\t3\na\t2\n", "a\t3\nb\tx\n"):
    path.write_text(text)
    with pytest.raises(UserError, match="word_counts.tsv, line 2: "):
      word_counts.read(path)


def test_noise_is_the_count_to_a_power():
  assert word_counts.noise_distribution(np.array([0, 16, 1]), 4).tolist() == pytest.approx([0, 8 / 9, 1 / 9, 0])
  zipf = word_counts.noise_distribution(None, 3, power=1.0)
  np.testing.assert_allclose(zipf, np.array([6, 3, 2]) / 11)


@hypothesis.given(strategies.lists(strategies.integers(0, 1_000), min_size=1, max_size=30).filter(any))
def test_the_alias_table_has_the_distribution(counts):
  """Each id has its own share of its column, and shares of columns that name it as the other id."""
  probabilities = np.array(counts) / sum(counts)
  thresholds, other = word_counts.alias_table(probabilities)
  total = np.array(thresholds, np.float64)
  np.add.at(total, other, 1.0 - thresholds)
  np.testing.assert_allclose(total / len(counts), probabilities, atol=1e-6)
  assert np.all(total[probabilities == 0] == 0)
