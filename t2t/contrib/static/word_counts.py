"""Counts of the words of a vocabulary, from the file beside the vocabulary."""

from etils import epath
import numpy as np

from t2t import UserError
from t2t.data import vocabularies
from t2t.data.vocabularies import control_tokens
from t2t.param_tree import Vocabulary
from t2t.storage import vocabulary_files


def read(path: epath.Path) -> dict[str, int]:
  """Reads a file with a word, a tab and a count in each line.

  Raises:
    UserError: a line is not of this form; gives file and line.
  """
  counts: dict[str, int] = {}
  for number, line in enumerate(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"), 1):
    word, tab, count = line.rpartition("\t")
    if not (tab and word and count.isascii() and count.isdigit()) or word in counts:
      raise UserError(
        f"{path}, line {number}: {line[:40]!r} is not a new word, a tab and a count. Correct the line, or train the "
        "vocabulary again with `t2t vocab train --type word`."
      )
    counts[word] = int(count)
  return counts


def of_vocabulary(vocabulary: Vocabulary) -> np.ndarray | None:
  """Returns the count of each id, float64 [vocab_size], 0 for special ids; None for a vocabulary without counts.

  Raises:
    UserError: the file of counts is not valid, or its words are not those of the vocabulary.
  """
  published = control_tokens.as_published(vocabulary)
  if not isinstance(published, control_tokens.FileVocabulary):
    return None
  path = next((file for file in published.files if file.name == vocabulary_files.COUNTS), None)
  if path is None:
    return None
  by_word, special = read(path), vocabularies.special_ids(published)
  words = [text.removeprefix(" ") for text in vocabularies.token_texts(published)]
  missing = [word for i, word in enumerate(words) if i not in special and word not in by_word]
  if missing:
    raise UserError(
      f"{path} has no count of {missing[0]!r}, a word of the vocabulary beside it. Copy both files from one folder."
    )
  return np.array([0 if i in special else by_word[word] for i, word in enumerate(words)], np.float64)


def noise_distribution(counts: np.ndarray | None, size: int, *, power: float = 0.75) -> np.ndarray:
  """Returns the probability of each id as a negative example, float64 [size]: counts to a power, normalized.

  In:  counts [0, 16, 1], size 4, power 0.75
  Out: [0, 8 / 9, 1 / 9, 0]

  Args:
    counts: see `of_vocabulary`; None: Zipf's law, 1 / (id + 1), because common vocabularies sort ids by frequency.
    size: rows of the embedding; rows after the vocabulary have probability 0 if there are counts.
    power: exponent.

  Source: Mikolov et al. 2013b, section 2.2.
  """
  if counts is None:
    counts = 1.0 / np.arange(1, size + 1)
  weights = np.where(counts > 0, np.maximum(counts, 1e-300) ** power, 0.0)
  return np.pad(weights / weights.sum(), (0, size - len(weights)))


def alias_table(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns thresholds, float32 [n], and other ids, int32 [n], of Walker's method.

  An id drawn uniformly is kept if a number in [0, 1) is below its threshold; otherwise the other id replaces it.

  Source: Walker 1977; Vose 1991.
  """
  size = len(probabilities)
  scaled = np.asarray(probabilities, np.float64) * size
  thresholds, other = np.ones(size), np.arange(size)
  small, large = list(np.flatnonzero(scaled < 1)), list(np.flatnonzero(scaled >= 1))
  while small and large:
    low, high = small.pop(), large[-1]
    thresholds[low], other[low] = scaled[low], high
    scaled[high] -= 1.0 - scaled[low]
    if scaled[high] < 1:
      small.append(large.pop())
  # Rounding leaves ids without a partner; an id of probability 0 has a partner in any case.
  for left in small:
    if probabilities[left] == 0:
      thresholds[left], other[left] = 0.0, int(np.argmax(probabilities))
  return thresholds.astype(np.float32), other.astype(np.int32)


def keep_probabilities(counts: np.ndarray, threshold: float) -> np.ndarray:
  """Returns the probability of keeping each word of a text, float32 [n], as word2vec computes it.

  In:  counts [0, 1, 999999], threshold 1e-5
  Out: [1, 1, 0.00317...]

  With the share f of a word among all words it is min(1, sqrt(t / f) + t / f).

  Args:
    counts: see `of_vocabulary`.
    threshold: t; 0: all words are kept.

  Source: word2vec.c; Mikolov et al. 2013b, section 2.3, discard with probability 1 - sqrt(t / f).
  """
  if not threshold:
    return np.ones(len(counts), np.float32)
  share = counts / counts.sum()
  ratio = np.divide(threshold, share, out=np.ones_like(share), where=share > 0)
  return np.minimum(1.0, np.sqrt(ratio) + ratio).astype(np.float32)
