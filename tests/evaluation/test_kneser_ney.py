"""N-gram models with modified Kneser-Ney smoothing: probabilities sum to one and equal the formulas and NLTK's."""

import collections

import numpy as np
import pytest

from t2t import UserError
from t2t.evaluation import kneser_ney

VOCAB = 30
# The texts of `NLTK`.
SMALL = [[3, 4, 3, 5], [3, 4, 4], [5, 3, 4, 5, 3]]


def random_texts(seed, *, number=60):
  """Texts of a Markov chain; some words are rare, and ids 0 and 29 never occur."""
  random = np.random.default_rng(seed)
  texts = []
  for _ in range(number):
    text = [int(random.integers(1, 29))]
    while len(text) < random.integers(2, 15):
      text.append(1 + (text[-1] + int(random.zipf(1.7))) % 28)
    texts.append(text)
  return texts


class Plain:
  """The formulas of Chen & Goodman (1999) with dicts."""

  def __init__(self, texts, order):
    self.counts = {length: collections.Counter() for length in range(1, order + 1)}
    for text in texts:
      tokens = ("start", *text)
      for end in range(2, len(tokens) + 1):
        for length in range(1, min(order, end) + 1):
          self.counts[length][tokens[end - length : end]] += 1
    for length in range(1, order):
      # Distinct tokens before the n-gram; the longer counts are still those of the text.
      before = collections.Counter(gram[1:] for gram in self.counts[length + 1])
      self.counts[length] = {g: c if g[0] == "start" else before[g] for g, c in self.counts[length].items()}
    self.discounts = {length: self.estimated(list(counts.values())) for length, counts in self.counts.items()}

  @staticmethod
  def estimated(counts):
    n = [counts.count(j) for j in range(5)]
    if 0 in n[1:]:
      return 0.5, 1.0, 1.5
    y = n[1] / (n[1] + 2 * n[2])
    found = (1 - 2 * y * n[2] / n[1], 2 - 3 * y * n[3] / n[2], 3 - 4 * y * n[4] / n[3])
    return found if all(0 < d <= j for j, d in zip((1, 2, 3), found, strict=True)) else (0.5, 1.0, 1.5)

  def probability(self, tokens, word, length):
    """Returns that of a word after the tokens ("start", *text), by n-grams of at most `length`."""
    if not length:
      return 1 / VOCAB
    lower = self.probability(tokens, word, length - 1)
    context = tokens[len(tokens) - length + 1 :]
    after = {gram[-1]: c for gram, c in self.counts[length].items() if gram[:-1] == context}
    if length > len(tokens) + 1 or not after:
      return lower
    discount = lambda c: self.discounts[length][min(c, 3) - 1] if c else 0.0
    total, count = sum(after.values()), after.get(word, 0)
    return (count - discount(count)) / total + sum(map(discount, after.values())) / total * lower


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_equal_the_formulas(order):
  """For all words after seen and unseen contexts, at the start and within a text."""
  texts = random_texts(1, number=120)
  model, plain = kneser_ney.KneserNey(texts, order=order, vocab_size=VOCAB), Plain(texts, order)
  assert order == 1 or any(discounts != (0.5, 1.0, 1.5) for discounts in model.discounts)
  np.testing.assert_allclose(model.discounts, list(plain.discounts.values()), rtol=1e-12)
  for context in ([], [1], [2, 3], [5, 5, 5, 5], [0], [3, 29], *(text[:-1] for text in texts[:6])):
    expected = [plain.probability(("start", *context), word, order) for word in range(VOCAB)]
    np.testing.assert_allclose(model.distribution(context), expected, rtol=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_probabilities_of_all_words_sum_to_one(seed):
  """After any context, for texts with estimated discounts and for a text too short for them."""
  random = np.random.default_rng(seed)
  for texts in (random_texts(seed), [[4]], [[1, 1, 1]]):
    for order in (1, 2, 4):
      model = kneser_ney.KneserNey(texts, order=order, vocab_size=VOCAB)
      for length in (0, 1, 2, 6):
        values = model.distribution(random.integers(0, VOCAB, length).tolist())
        assert np.all(values > 0)
        np.testing.assert_allclose(values.sum(), 1.0, rtol=1e-12)


def test_the_tokens_of_a_text_have_the_probabilities_of_the_distributions():
  """Texts do not see each other."""
  model = kneser_ney.KneserNey(random_texts(0), order=3, vocab_size=VOCAB)
  other = [[1, 2, 29, 3], [], [4, 0]]
  expected = [model.distribution(text[:i])[word] for text in other for i, word in enumerate(text)]
  np.testing.assert_allclose(model.probabilities(other), expected, rtol=1e-12)
  np.testing.assert_allclose(model.probabilities(other[2:]), expected[4:], rtol=1e-12)


# Scores of 3, 4 and 5 by nltk.lm.KneserNeyInterpolated(2, discount=0.1) of NLTK 3.10.4 for `SMALL`, each text after one
# start symbol, by context; NLTK does not smooth unigrams.
NLTK = {
  (): (0.6583333333333333, 0.016666666666666666, 0.325),
  (3,): (0.01875, 0.7375, 0.24375),
  (4,): (0.3375, 0.325, 0.3375),
  (5,): (0.96875, 0.0125, 0.01875),
}


def test_probabilities_equal_those_of_nltk():
  discounts = [(0.0, 0.0, 0.0), (0.1, 0.1, 0.1)]
  model = kneser_ney.KneserNey(SMALL, order=2, vocab_size=6, discounts=discounts)
  for context, expected in NLTK.items():
    np.testing.assert_allclose(model.distribution(context)[3:], expected, rtol=1e-12)


def test_discounts_are_those_of_the_counts_of_counts():
  """n_1 = 8, n_2 = 4, n_3 = 2, n_4 = 1: Y = 1/2."""
  counts = np.repeat([1, 2, 3, 4, 9], [8, 4, 2, 1, 5])
  np.testing.assert_allclose(kneser_ney.estimated_discounts(counts), (0.5, 1.25, 2.0))
  assert kneser_ney.estimated_discounts(np.array([1, 1, 2, 4])) == (0.5, 1.0, 1.5)


@pytest.mark.parametrize(("texts", "order", "error"), [([[1]], 0, "--order 0"), ([[], []], 3, "0 tokens")])
def test_models_without_text_or_order_are_refused(texts, order, error):
  with pytest.raises(UserError, match=error):
    kneser_ney.KneserNey(texts, order=order, vocab_size=VOCAB)


def test_ids_beyond_the_vocabulary_are_refused():
  with pytest.raises(ValueError, match="vocab_size=30"):
    kneser_ney.KneserNey([[30]], order=2, vocab_size=VOCAB)
