"""Questions about two spans of a text, such as whether a pronoun refers to a noun: a head predicts the pair's class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from t2t import UserError
from t2t.data.head_examples.reading import Features, Reading, label_of
from t2t.data.vocabularies import offsets
from t2t.models.span_pair import CLASS_BITS, FIRST, SECOND
from t2t.runtime import data_packages

tf = data_packages.lazy_module("tensorflow")


def _row(text: str, spans: np.ndarray, reading: Reading) -> tuple[np.ndarray, ...]:
  """Returns ids, marks, and the number of tokens without a limit."""
  framing = reading.framing
  tokens = offsets.tokens_of(reading.vocabulary, text)
  marks = np.zeros(len(tokens.ids), np.int32)
  for bit, (start, end) in zip((FIRST, SECOND), spans, strict=True):
    inside = (tokens.starts < end) & (tokens.ends > start) & (tokens.ends > tokens.starts)
    if not 0 <= start < end <= len(text) or not inside.any():
      raise UserError(
        f"{reading.task}: the span [{start}, {end}] has no token of the text {text[:80]!r} with {len(text)} "
        "characters. Correct 'spans', the first character and the end of two spans."
      )
    marks[inside] += bit
  (places,) = np.nonzero(marks)
  room = reading.length - framing.size(1)
  first = max(0, min(int(places[0]), int(places[-1]) + 1 - room))
  if places[-1] >= first + room:
    least = int(places[-1] - places[0]) + 1 + framing.size(1)
    raise UserError(
      f"config.data.inputs_length={reading.length} is too short: two spans of {reading.task or 'a text'} need "
      f"{least} tokens. Set --config.data.inputs_length={least} or more."
    )
  ids, marks = tokens.ids[first : first + room], marks[first : first + room]
  around = np.zeros(len(framing.begin), np.int32), np.zeros(len(framing.end), np.int32)
  inputs = np.concatenate([framing.begin, ids, framing.end]).astype(np.int32)
  uncut = np.int32(len(tokens.ids) + framing.size(1))
  return inputs, np.concatenate([around[0], marks, around[1]]), uncut


def read(question: Mapping[str, Any], reading: Reading) -> dict[str, np.ndarray]:
  """Converts a text with two spans without a class in NumPy; see `make`."""
  inputs, marks, uncut = _row(question["text"], question["spans"], reading)
  zeros, heads = np.zeros_like(inputs), np.where(marks > 0, reading.number + 1, 0).astype(np.int32)
  features = {"inputs": inputs, "inputs_uncut": uncut, "token_types": zeros, "texts": zeros}
  return features | {"answer_heads": heads, "answer_marks": marks}


def make(example: Features, reading: Reading) -> Features:
  """Converts a text with two spans; every token that shares a character with a span belongs to the span.

  In:  {"text": "Ann said she won", "spans": [[0, 3], [9, 12]], "label": 1, "options": ["no", "yes"]}
        head 0, words 5, 6, ... with [CLS] 101 and [SEP] 102
  Out: {"inputs": [101, 5, 6, 7, 8, 102], "token_types": [0, 0, 0, 0, 0, 0], "texts": [0, 0, 0, 0, 0, 0],
        "answer_heads": [0, 1, 0, 1, 0, 0], "answer_marks": [0, 1, 0, 2, 0, 0], "answer_targets": [0, 5, 0, 6, 0, 0],
        "inputs_uncut": 6, "has_answer": True}

  A target has 1 in the first span, 2 in the second, and 4 times the class. If the text does not fit, its end is cut, or
  its beginning where the end has a span.
  """

  row = lambda text, spans: _row(text.decode(), spans, reading)
  *columns, uncut = tf.numpy_function(row, [example["text"], example["spans"]], [tf.int32] * 3, stateful=False)
  inputs, marks = (tf.ensure_shape(x, [None]) for x in columns)
  label, is_marked = label_of(example), marks > 0
  classes = tf.where(is_marked, tf.maximum(label, 0) * 2**CLASS_BITS, 0)
  return {
    "inputs": inputs,
    "token_types": tf.zeros_like(inputs),
    "texts": tf.zeros_like(inputs),
    "answer_heads": tf.where(is_marked, reading.number + 1, 0),
    "answer_marks": marks,
    "answer_targets": marks + classes,
    "inputs_uncut": tf.ensure_shape(uncut, []),
    "has_answer": label >= 0,
  }
