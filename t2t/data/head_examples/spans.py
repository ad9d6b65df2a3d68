"""Extractive questions: a question with windows of the context that contains its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from t2t import UserError
from t2t.data.head_examples.reading import Features, Reading
from t2t.data.special_tokens import Framing
from t2t.data.vocabularies import offsets
from t2t.runtime import data_packages

tf = data_packages.lazy_module("tensorflow")

# Per token: its first character in the context, and the end (exclusive); -1 for tokens outside of the context.
OFFSETS = ("context_starts", "context_ends")

# Values of the code of Devlin et al. 2019, and of transformers.
MOST_OF_QUESTION = 64  # tokens; longer questions are cut
OVERLAP = 128  # tokens that a window shares with the previous window


class ContextWindow(NamedTuple):
  """A question and a part of a context, int32 [tokens] each.

  Attributes:
    inputs: ids.
    token_types: 0 before the context, 1 from its first token.
    head_mask: 1 at the context's tokens, and at the position for "no answer".
    targets: 1 at the first token of the answer, 2 at the last, 3 if both are one token. If the window does not contain
      the whole answer, 3 at the position for "no answer".
    context_starts, context_ends: see `OFFSETS`.
  """

  inputs: np.ndarray
  token_types: np.ndarray
  head_mask: np.ndarray
  targets: np.ndarray
  context_starts: np.ndarray
  context_ends: np.ndarray


def shortest(framing: Framing) -> int:
  """Returns the minimum length of a window that overlaps the previous one, for a question of any length."""
  around = len(framing.begin) + len(framing.between) + max(len(framing.end), 1)
  return around + MOST_OF_QUESTION + OVERLAP + 1


def check(reading: Reading, where: str) -> None:
  """Checks that there is room for overlapping windows.

  Args:
    reading: settings with which contexts are read.
    where: the flag that sets the length; "": config.data.inputs_length.

  Raises:
    UserError: the length is too small.
  """
  least = shortest(reading.framing)
  if reading.length >= least:
    return
  how_read = (
    f"A context is read in windows that overlap by {OVERLAP} tokens. Each window follows a question of up to "
    f"{MOST_OF_QUESTION} tokens."
  )
  if where:
    raise UserError(f"{where} {reading.length} is too short. {how_read} Give {least} or more.")
  raise UserError(
    f"config.data.inputs_length={reading.length} is too short for {reading.task}. {how_read} "
    f"Set --config.data.inputs_length={least} or more (BERT: 384)."
  )


def windows(
  question: Sequence[int],
  context: offsets.Tokens,
  answer: tuple[int, int] | None,
  *,
  framing: Framing,
  length: int,
  eos_id: int,
) -> list[ContextWindow]:
  """Splits a context into overlapping windows, each after the question.

  The position for "no answer" is the first one, [CLS]. In a decoder, which attends to the left only, it is an EOS after
  the window.

  Args:
    question: ids.
    context: ids and character offsets.
    answer: first character, and the end (exclusive); None: no answer.
    framing: special tokens around texts.
    length: maximum number of tokens of a window; see `check`.
    eos_id: EOS of the vocabulary.
  """
  question = question[:MOST_OF_QUESTION]
  end = framing.end or (eos_id,)
  before = np.array([*framing.begin, *question, *framing.between], np.int32)
  room, number = length - len(before) - len(end), len(context.ids)
  context_windows, start = [], 0
  while True:
    stop = min(start + room, number)
    inputs = np.concatenate([before, context.ids[start:stop], np.array(end, np.int32)])
    context_slice = slice(len(before), len(before) + stop - start)
    types, head_mask, targets, starts, ends = (np.full(len(inputs), x, np.int32) for x in (0, 0, 0, -1, -1))
    # RoBERTa's two separators belong to neither text. It embeds no types; Longformer's question ends before them.
    types[len(before) - (len(framing.between) if len(framing.between) > 1 else 0) :] = 1
    starts[context_slice], ends[context_slice] = context.starts[start:stop], context.ends[start:stop]
    nothing = 0 if framing.end else len(inputs) - 1
    head_mask[context_slice] = head_mask[nothing] = 1
    first, last = _bounds(starts[context_slice], ends[context_slice], answer) or (nothing - len(before),) * 2
    targets[len(before) + first] += 1
    targets[len(before) + last] += 2
    context_windows.append(ContextWindow(inputs, types, head_mask, targets, starts, ends))
    if stop == number:
      return context_windows
    start += room - OVERLAP


def _bounds(starts: np.ndarray, ends: np.ndarray, answer: tuple[int, int] | None) -> tuple[int, int] | None:
  """Returns the first and the last token of an answer, both inclusive; None if the window does not contain all of it.

  If several tokens share a character of the answer, all of them are taken.

  In:  starts [0, 1, 1, 1, 2], ends [1, 2, 2, 2, 3], answer (1, 2)
  Out: (1, 3)
  """
  if answer is None or not len(starts):
    return None
  (before,), (behind,) = np.nonzero(starts <= answer[0]), np.nonzero(ends >= answer[1])
  if not len(before) or not len(behind):
    return None
  same = lambda i: np.flatnonzero((starts == starts[i]) & (ends == ends[i]))
  first, last = int(same(before[-1])[0]), int(same(behind[0])[-1])
  return (first, last) if first <= last else None


def _checked_answer(context: str, starts: np.ndarray, texts: np.ndarray, record: bytes, task: str):
  """Returns the first character of the first answer and its end (exclusive); None if there is no answer."""
  if not len(texts):
    return None
  start, text = int(starts[0]), texts[0].decode()
  if context[start : start + len(text)] != text or start < 0:
    context_part = context[max(start, 0) : max(start, 0) + max(len(text), 1)]
    raise UserError(
      f"{task}: record {record.decode()!r}: the answer {text!r} is not in the context at character {start}. The "
      f"context has {context_part!r} there. Correct 'answer_start', which counts the characters of the context from 0."
    )
  return start, start + len(text)


def cut(question: Mapping[str, Any], features: Mapping[str, Any], reading: Reading) -> int:
  """Returns the number of tokens of the question that did not fit; a context is read whole, in windows."""
  del features
  return max(0, len(offsets.tokens_of(reading.vocabulary, question["question"]).ids) - MOST_OF_QUESTION)


def _windows_of(question: str, context: str, answer: tuple[int, int] | None, reading: Reading) -> list[ContextWindow]:
  return windows(
    offsets.tokens_of(reading.vocabulary, question).ids,
    offsets.tokens_of(reading.vocabulary, context),
    answer,
    framing=reading.framing,
    length=reading.length,
    eos_id=reading.vocabulary.eos_id,
  )


def read(question: Mapping[str, Any], reading: Reading) -> dict[str, list[np.ndarray]]:
  """Converts a question and its context without an answer in NumPy: a list of windows by feature; see `make`."""
  rows = _windows_of(question["question"], question["context"], None, reading)
  heads = [row.head_mask * (reading.number + 1) for row in rows]
  features = {name: [getattr(row, name) for row in rows] for name in ("inputs", "token_types", *OFFSETS)}
  return features | {"texts": [np.zeros_like(row) for row in heads], "answer_heads": heads}


def make(example: Features, reading: Reading) -> Features:
  """Converts a question and its context; token features have one row per window.

  "answers" are texts, which evaluation compares with the characters of the context that the head selects.

  In:  {"question": "Who?", "context": "Ann met Bob.", "answer_starts": [8], "answer_texts": ["Bob"], "id": "q1"}
  Out: {"inputs": [[101, 2040, 1029, 102, 5754, 2777, 3960, 1012, 102]], "token_types": [[0, 0, 0, 0, 1, 1, 1, 1, 1]],
        "texts": [[0, 0, 0, 0, 0, 0, 0, 0, 0]], "answer_heads": [[1, 0, 0, 0, 1, 1, 1, 1, 0]],
        "answer_targets": [[0, 0, 0, 0, 0, 0, 3, 0, 0]], "context_starts": [[-1, -1, -1, -1, 0, 4, 8, 11, -1]],
        "context_ends": [[-1, -1, -1, -1, 3, 7, 11, 12, -1]], "answers": ["Bob"], "has_answer": True}
  """

  def rows(question, context, starts, texts, record) -> tuple[np.ndarray, ...]:
    context = context.decode()
    answer = _checked_answer(context, starts, texts, record, reading.task)
    context_windows = _windows_of(question.decode(), context, answer, reading)
    lengths = np.array([len(window.inputs) for window in context_windows], np.int64)
    return lengths, *(np.concatenate(column) for column in zip(*context_windows, strict=True))

  arguments = [example[name] for name in ("question", "context", "answer_starts", "answer_texts")]
  arguments.append(example["id"] if "id" in example else tf.constant(""))
  lengths, *columns = tf.numpy_function(
    rows, arguments, [tf.int64] + [tf.int32] * len(ContextWindow._fields), stateful=False
  )
  lengths = tf.ensure_shape(lengths, [None])
  features = {
    name: tf.RaggedTensor.from_row_lengths(tf.ensure_shape(column, [None]), lengths)
    for name, column in zip(ContextWindow._fields, columns, strict=True)
  }
  heads, targets = features.pop("head_mask") * (reading.number + 1), features.pop("targets")
  return features | {
    "texts": tf.zeros_like(heads),
    "answer_heads": heads,
    "answer_targets": targets,
    "answers": example["answer_texts"],
    "has_answer": (tf.size(example["answer_texts"]) > 0) | ("no_answer" in example),
  }
