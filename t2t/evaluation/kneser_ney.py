"""An n-gram model of token ids with interpolated modified Kneser-Ney smoothing, in NumPy."""

from collections.abc import Iterable, Sequence
import dataclasses

import numpy as np

from t2t import UserError

MOST_ORDER = 6
Discounts = tuple[float, float, float]  # of counts 1, 2, and 3 or more
_FALLBACK: Discounts = (0.5, 1.0, 1.5)  # KenLM's --discount_fallback, for counts of counts without an estimate


@dataclasses.dataclass(frozen=True)
class _Level:
  """The n-grams of one length k, sorted.

  Attributes:
    keys: number of the first k - 1 tokens among the shorter n-grams, times (vocab_size + 1), plus the last token.
    counts: adjusted counts, int64 [n-grams].
    discounts: D(count), float64 [n-grams].
    totals: sum of the counts after each context of k - 1 tokens, float64 [contexts].
    backoffs: probability that each context leaves to the shorter context, float64 [contexts].
  """

  keys: np.ndarray
  counts: np.ndarray
  discounts: np.ndarray
  totals: np.ndarray
  backoffs: np.ndarray


class KneserNey:
  """An n-gram model: p(w | context) = max(c - D(c), 0) / total + backoff * p(w | context without its first token).

  The longest n-grams have their counts in the text. Shorter n-grams count the distinct tokens before them, except at
  the start of a sequence, where nothing precedes them. The shortest level is interpolated with the uniform
  distribution over the vocabulary, so that every token has a probability.

  Attributes:
    order: tokens of the longest n-grams.
    vocab_size: number of token ids.
    num_tokens: number of counted tokens.
    discounts: of each length from 1 to `order`, or to that of the longest text.

  Source: Chen & Goodman 1999, "An empirical study of smoothing techniques for language modeling", section 3; sequence
  starts and the unigram level as in KenLM (Heafield et al. 2013).
  """

  def __init__(
    self,
    sequences: Iterable[Sequence[int] | np.ndarray],
    *,
    order: int,
    vocab_size: int,
    discounts: Sequence[Discounts] = (),
  ):
    """Counts the n-grams of sequences.

    Memory: about 100 bytes for each token and length, at the peak.

    Args:
      sequences: token ids, each a text of its own; n-grams do not cross their borders.
      order: at least 1, at most `MOST_ORDER`.
      vocab_size: larger than every id.
      discounts: of each length; (): estimated from the counts of counts.

    Raises:
      UserError: there is no token, or the order is out of range.
      ValueError: an id is out of range.
    """
    if not 1 <= order <= MOST_ORDER:
      raise UserError(f"--order {order}: must be between 1 and {MOST_ORDER}.")
    self.order, self.vocab_size = order, vocab_size
    tokens, offsets = self._joined(sequences)
    self.num_tokens = int(np.count_nonzero(offsets))
    if not self.num_tokens:
      raise UserError("config.data: the training text has 0 tokens to count. Give text with at least one token.")
    # ---- Counts: an n-gram is its context's number and its last token, so that a sort of integers counts any length.
    keys, raw, begins, suffixes = [], [], [], []
    ids = np.zeros(len(tokens), np.int64)  # of the n-gram that ends at each position; of the empty one at first
    for length in range(1, order + 1):
      there = np.flatnonzero(offsets >= length - 1)
      if not len(there):  # no text is that long
        break
      before = ids[there - 1] if length > 1 else np.zeros(len(there), np.int64)
      distinct, first, inverse, counts = np.unique(
        before * (vocab_size + 1) + tokens[there], return_index=True, return_inverse=True, return_counts=True
      )
      suffixes.append(ids[there[first]])
      contexts, last = np.divmod(distinct, vocab_size + 1)
      begins.append(last == vocab_size if length == 1 else begins[-1][contexts])
      keys.append(distinct)
      raw.append(counts)
      ids = np.full(len(tokens), -1, np.int64)
      ids[there] = inverse.reshape(-1)
    # ---- Probabilities of each length.
    self._levels, self.discounts = [], []
    for index in range(len(raw)):
      counts = raw[index]
      if index + 1 < len(raw):
        different_before = np.bincount(suffixes[index + 1], minlength=len(counts))
        counts = np.where(begins[index], counts, different_before)
      if index == 0:
        counts = np.where(begins[0], 0, counts)  # the start is a context, and never predicted
      of_level = discounts[index] if discounts else estimated_discounts(counts)
      of_counts = np.array([0.0, *of_level])[np.minimum(counts, 3)]
      contexts = keys[index] // (vocab_size + 1)
      number = len(keys[index - 1]) if index else 1
      totals = np.bincount(contexts, counts, number)
      removed = np.bincount(contexts, of_counts, number)
      backoffs = np.divide(removed, totals, out=np.ones(number), where=totals > 0)
      self._levels.append(_Level(keys[index], counts, of_counts, totals, backoffs))
      self.discounts.append(of_level)

  @property
  def num_ngrams(self) -> list[int]:
    """Number of distinct n-grams of each length from 1 to `order`."""
    return [int(np.count_nonzero(level.counts)) for level in self._levels]

  def probabilities(self, sequences: Iterable[Sequence[int] | np.ndarray]) -> np.ndarray:
    """Returns the probability of each token after the tokens before it, float64 [tokens of all sequences].

    Args:
      sequences: see `KneserNey`.

    Raises:
      ValueError: an id is out of range.
    """
    tokens, offsets = self._joined(sequences)
    ids = np.zeros(len(tokens), np.int64)
    values = np.full(len(tokens), 1.0 / self.vocab_size)
    for length, level in enumerate(self._levels, start=1):
      contexts = ids if length == 1 else np.where(offsets >= length - 1, np.roll(ids, 1), -1)
      values, ids = self._interpolated(level, contexts, tokens, values)
    return values[offsets > 0]

  def distribution(self, context: Sequence[int]) -> np.ndarray:
    """Returns the probability of every token after a context, float64 [vocab_size].

    Args:
      context: all tokens of the sequence so far; (): its start.
    """
    tokens = [self.vocab_size, *context]
    words = np.arange(self.vocab_size, dtype=np.int64)
    values = np.full(self.vocab_size, 1.0 / self.vocab_size)
    for length, level in enumerate(self._levels, start=1):
      number = self._number(tokens[len(tokens) - length + 1 :]) if length <= len(tokens) + 1 else -1
      values, _ = self._interpolated(level, np.full(self.vocab_size, number, np.int64), words, values)
    return values

  def _interpolated(
    self, level: _Level, contexts: np.ndarray, words: np.ndarray, shorter: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the probabilities of a level, and the numbers of the n-grams, -1 for unseen ones.

    Args:
      level: of the n-grams.
      contexts: number of each context; -1: unseen.
      words: the tokens.
      shorter: their probabilities after shorter contexts.
    """
    wanted = np.where(contexts >= 0, contexts * (self.vocab_size + 1) + words, -1)
    index = np.minimum(np.searchsorted(level.keys, wanted), len(level.keys) - 1)
    is_seen = level.keys[index] == wanted
    has_context = (contexts >= 0) & (level.totals[contexts] > 0)
    totals = np.where(has_context, level.totals[contexts], 1.0)
    discounted = np.where(is_seen, level.counts[index] - level.discounts[index], 0.0) / totals
    backoffs = level.backoffs[contexts]
    return np.where(has_context, discounted + backoffs * shorter, shorter), np.where(is_seen, index, -1)

  def _number(self, tokens: Sequence[int]) -> int:
    """Returns the number of an n-gram in its level, -1 for an unseen one; 0 for the empty one."""
    number = 0
    for level, token in zip(self._levels, tokens, strict=False):
      key = number * (self.vocab_size + 1) + token
      index = int(np.searchsorted(level.keys, key))
      if index == len(level.keys) or level.keys[index] != key:
        return -1
      number = index
    return number

  def _joined(self, sequences: Iterable[Sequence[int] | np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of all sequences with a start, `vocab_size`, before each; and each one's offset from it."""
    arrays = [np.asarray(sequence, np.int64) for sequence in sequences]
    arrays = [array for array in arrays if len(array)]
    if any(array.min() < 0 or array.max() >= self.vocab_size for array in arrays):
      raise ValueError(f"token ids must be at least 0 and below vocab_size={self.vocab_size}")
    start = np.array([self.vocab_size], np.int64)
    parts = [part for array in arrays for part in (start, array)]
    offsets = [np.arange(len(array) + 1, dtype=np.int64) for array in arrays]
    return tuple(np.concatenate(x) if x else np.zeros(0, np.int64) for x in (parts, offsets))


def estimated_discounts(counts: np.ndarray) -> Discounts:
  """Returns the discounts of modified Kneser-Ney from counts of counts.

  With n_j the number of n-grams of count j and Y = n_1 / (n_1 + 2 n_2), D_j = j - (j + 1) Y n_{j+1} / n_j.

  Args:
    counts: of distinct n-grams, int [n-grams].

  Returns:
    D_1, D_2 and D_3+; 0.5, 1 and 1.5 if a count does not occur or an estimate is not in (0, j].

  Source: Chen & Goodman 1999, section 3.
  """
  number = np.bincount(np.minimum(counts, 5), minlength=5).astype(np.float64)
  if not np.all(number[1:5]):
    return _FALLBACK
  share = number[1] / (number[1] + 2 * number[2])
  first, second, third = (j - (j + 1) * share * number[j + 1] / number[j] for j in (1, 2, 3))
  estimates = (float(first), float(second), float(third))
  return estimates if all(0 < x <= j for j, x in enumerate(estimates, start=1)) else _FALLBACK
