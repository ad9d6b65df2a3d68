"""A tag for each word of a text, said where the word begins."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from t2t.data import vocabularies
from t2t.data.answering.reading import Features, Reading


def first_tokens(words: Sequence[str], starts: np.ndarray, ends: np.ndarray) -> list[tuple[int, int]]:
  """(token, number of the word) of the first token of each word; words of which nothing is read have none.

  Args:
    words: with a space between them they are the text.
    starts, ends: characters of the tokens that are read.
  """
  begins = np.cumsum([0, *(len(word) + 1 for word in words)])
  # Of two words in one token the first.
  found: dict[int, int] = {}
  for number, word in enumerate(words):
    (tokens,) = np.nonzero((ends > begins[number]) & (starts < begins[number] + len(word)) & (ends > starts))
    if len(tokens):
      found.setdefault(int(tokens[0]), number)
  return sorted(found.items())


def make(example: Features, reading: Reading) -> Features:
  """A text of words, and the class of each at its first token; words that do not fit are not asked.

  In:  {"words": ["Ann", "Lees", "won"], "tags": [1, 2, 0]}             head 0, with [CLS] 101 and [SEP] 102
  Out: {"inputs": [101, 5, 6, 7, 8, 102], "token_types": [0, 0, 0, 0, 0, 0], "texts": [0, 0, 0, 0, 0, 0],
        "answer_heads": [0, 1, 1, 0, 1, 0], "answer_targets": [0, 1, 2, 0, 0, 0], "asked_words": [0, 1, 2],
        "has_answer": True}
  """

  def row(words, tags) -> tuple[np.ndarray, ...]:
    words, framing = [word.decode() for word in words], reading.framing
    tokens = vocabularies.tokens_of(reading.vocabulary, " ".join(words))
    room = reading.length - len(framing.begin) - len(framing.end)
    ids, starts, ends = (column[:room] for column in tokens)
    asked = first_tokens(words, starts, ends)
    inputs = np.concatenate([framing.begin, ids, framing.end]).astype(np.int32)
    heads, targets = np.zeros(len(inputs), np.int32), np.zeros(len(inputs), np.int32)
    for token, number in asked:
      heads[len(framing.begin) + token] = reading.number + 1
      targets[len(framing.begin) + token] = max(tags[number], 0)
    return inputs, heads, targets, np.array([number for _, number in asked], np.int32)

  tags = tf.cast(example["tags"], tf.int32)
  inputs, heads, targets, numbers = (
    tf.ensure_shape(x, [None]) for x in tf.numpy_function(row, [example["words"], tags], [tf.int32] * 4, stateful=False)
  )
  return {
    "inputs": inputs,
    "token_types": tf.zeros_like(inputs),
    "texts": tf.zeros_like(inputs),
    "answer_heads": heads,
    "answer_targets": targets,
    "asked_words": numbers,
    "has_answer": tf.reduce_all(tags >= 0),
  }
