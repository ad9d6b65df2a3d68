"""Questions with one tag per word, which a head predicts at the first token of the word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
import unicodedata

import numpy as np

from t2t.data.head_examples.reading import Features, Reading
from t2t.data.vocabularies import offsets
from t2t.runtime import data_packages

tf = data_packages.lazy_module("tensorflow")


def first_tokens(words: Sequence[str], starts: np.ndarray, ends: np.ndarray) -> list[tuple[int, int]]:
  """Returns (token, word index) for the first token of each word; words without a token are left out.

  Args:
    words: words of the text, which joins them by single spaces.
    starts, ends: character offsets of the tokens.
  """
  begins = np.cumsum([0, *(len(word) + 1 for word in words)])
  # If two words share a token, the first word takes it.
  word_of_token: dict[int, int] = {}
  for number, word in enumerate(words):
    (tokens,) = np.nonzero((ends > begins[number]) & (starts < begins[number] + len(word)) & (ends > starts))
    if len(tokens):
      word_of_token.setdefault(int(tokens[0]), number)
  return sorted(word_of_token.items())


def split(text: str) -> list[str]:
  """Splits a text into words; each punctuation character is a word, as in CoNLL's texts.

  In:  "Ann Lee (58) saw Rome."
  Out: ["Ann", "Lee", "(", "58", ")", "saw", "Rome", "."]

  Source: punctuation of the code of Devlin et al. 2019: Unicode's, and all ASCII symbols.
  """
  spaced = "".join(f" {x} " if _is_punctuation(x) else x for x in text)
  return spaced.split()


def _is_punctuation(character: str) -> bool:
  if character.isascii():
    return character.isprintable() and not character.isalnum() and not character.isspace()
  return unicodedata.category(character).startswith("P")


def places(words: Sequence[str], text: str) -> list[tuple[int, int]] | None:
  """Returns the first character and the end (exclusive) of each word in a text; None if a word is missing or out of
  order.

  In:  ["Ann", "saw", "Rome", "."], "Ann saw Rome."
  Out: [(0, 3), (4, 7), (8, 12), (12, 13)]
  """
  word_spans, end = [], 0
  for word in words:
    start = text.find(word, end)
    if start < 0:
      return None
    end = start + len(word)
    word_spans.append((start, end))
  return word_spans


def _row(words: Sequence[str], tags: Sequence[int], reading: Reading) -> tuple[np.ndarray, ...]:
  """Returns ids, heads, targets, the index of the word of each target, and the number of tokens that do not fit."""
  framing = reading.framing
  tokens = offsets.tokens_of(reading.vocabulary, " ".join(words))
  ids, starts, ends = (column[: reading.length - framing.size(1)] for column in tokens)
  inputs = np.concatenate([framing.begin, ids, framing.end]).astype(np.int32)
  heads, targets = np.zeros_like(inputs), np.zeros_like(inputs)
  word_tokens = first_tokens(words, starts, ends)
  for token, number in word_tokens:
    heads[len(framing.begin) + token] = reading.number + 1
    targets[len(framing.begin) + token] = max(tags[number], 0)
  numbers = np.array([number for _, number in word_tokens], np.int32)
  return inputs, heads, targets, numbers, np.int32(len(tokens.ids) - len(ids))


def read(question: Mapping[str, Any], reading: Reading) -> dict[str, np.ndarray]:
  """Converts words without tags in NumPy; see `make`."""
  words = question["words"]
  inputs, heads, _, numbers, cut = _row(words, [-1] * len(words), reading)
  zeros = np.zeros_like(inputs)
  features = {"inputs": inputs, "inputs_uncut": len(inputs) + cut, "token_types": zeros, "texts": zeros}
  return features | {"answer_heads": heads, "asked_words": numbers}


def make(example: Features, reading: Reading) -> Features:
  """Converts words and their tags, with each target at the word's first token; words that do not fit have none.

  In:  {"words": ["Ann", "Lees", "won"], "tags": [1, 2, 0]}             head 0, with [CLS] 101 and [SEP] 102
  Out: {"inputs": [101, 5, 6, 7, 8, 102], "token_types": [0, 0, 0, 0, 0, 0], "texts": [0, 0, 0, 0, 0, 0],
        "answer_heads": [0, 1, 1, 0, 1, 0], "answer_targets": [0, 1, 2, 0, 0, 0], "asked_words": [0, 1, 2],
        "inputs_uncut": 6, "has_answer": True}
  """

  def row(words, tags) -> tuple[np.ndarray, ...]:
    return _row([word.decode() for word in words], tags, reading)

  tags = tf.cast(example["tags"], tf.int32)
  *columns, cut = tf.numpy_function(row, [example["words"], tags], [tf.int32] * 5, stateful=False)
  inputs, heads, targets, numbers = (tf.ensure_shape(x, [None]) for x in columns)
  return {
    "inputs": inputs,
    "token_types": tf.zeros_like(inputs),
    "texts": tf.zeros_like(inputs),
    "answer_heads": heads,
    "answer_targets": targets,
    "asked_words": numbers,
    "inputs_uncut": tf.size(inputs) + tf.ensure_shape(cut, []),
    "has_answer": tf.reduce_all(tags >= 0),
  }
