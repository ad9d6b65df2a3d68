"""Kinds of questions: each is identified by the fields of its examples and defines their features for a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from t2t import UserError
from t2t.data import special_tokens as framing_lib
from t2t.data import vocabularies
from t2t.data.head_examples import mentions, span_pairs, spans, tags
from t2t.data.head_examples.reading import Features, Reading, checked, label_of
from t2t.data.head_examples.text_questions import (
  LEAST,
  joins_space,
  read_choice,
  read_cloze,
  read_text,
  too_many_candidates,
)
from t2t.runtime import data_packages

tf = data_packages.lazy_module("tensorflow")

# Per token: the token type, the index of the text, the index of the head that answers there plus 1, and its target.
ANSWER_FEATURES = ("token_types", "texts", "answer_heads", "answer_targets")

# ---- Kinds -----------------------------------------------------------------------------------------------------------


def _parts(example: Features, reading: Reading) -> tf.Tensor:
  """Returns the texts of an example, string [parts]."""
  if reading.whole or "parts" not in example:
    return example["inputs"][None]
  return example["parts"]


def _of_text(example: Features, reading: Reading, target: tf.Tensor) -> Features:
  parts = reading.encode(_parts(example, reading))
  tokens, types = framing_lib.framed(parts, reading.framing, reading.length)
  token_index, length = reading.answering_position(tokens), tf.size(tokens)
  return {
    "inputs": tokens,
    "inputs_uncut": tf.size(parts.flat_values) + reading.framing.size(parts.nrows(out_type=tf.int32)),
    "token_types": types,
    "texts": tf.zeros_like(tokens),
    "answer_heads": framing_lib.one_hot(token_index, length, reading.number + 1),
    "answer_targets": framing_lib.one_hot(token_index, length, target),
  }


def _class(example: Features, reading: Reading) -> Features:
  """Converts a text and its class.

  In:  {"parts": ["a b", "c"], "label": 2, "options": ["x", "y", "z"]}      head 0, with [CLS] 101 and [SEP] 102
  Out: {"inputs": [101, 5, 6, 102, 7, 102], "inputs_uncut": 6, "token_types": [0, 0, 0, 0, 1, 1],
        "texts": [0, 0, 0, 0, 0, 0], "answer_heads": [1, 0, 0, 0, 0, 0], "answer_targets": [2, 0, 0, 0, 0, 0],
        "has_answer": True}
  """
  label = label_of(example)
  return _of_text(example, reading, tf.maximum(label, 0)) | {"has_answer": label >= 0}


def _cloze(example: Features, reading: Reading) -> Features:
  """Converts a template whose blank is one masked token, at which the head answers.

  In:  {"header": "", "blank_before": "a", "blank_space": " ", "blank_after": "b", "inputs_uncut": 6, "label": 1}
  Out: {"inputs": [101, 5, 103, 6, 102], "token_types": [0, 0, 0, 0, 0], "texts": [0, 0, 0, 0, 0],
        "answer_heads": [0, 0, 1, 0, 0], "answer_targets": [0, 0, 1, 0, 0], "inputs_uncut": 6, "has_answer": True}

  A text that is still too long loses the tokens farthest from the blank.
  """
  space = "" if joins_space(reading.vocabulary) else example["blank_space"]
  before = tf.strings.join([example["header"], example["blank_before"], space])
  parts = reading.encode(tf.stack([before, example["blank_after"]]))
  begin, end = (tf.constant(ids, tf.int32) for ids in (reading.framing.begin, reading.framing.end))
  room = reading.length - len(reading.framing.begin) - len(reading.framing.end) - 1
  behind = tf.minimum(tf.size(parts[1]), tf.maximum(room - tf.size(parts[0]), room // 2))
  first = tf.maximum(tf.size(parts[0]) - (room - behind), 0)
  mask = tf.constant([vocabularies.mask_id(reading.vocabulary)], tf.int32)
  tokens = tf.concat([begin, parts[0][first:], mask, parts[1][:behind], end], 0)
  position, length = tf.size(begin) + tf.size(parts[0]) - first, tf.size(tokens)
  label = label_of(example)
  return {
    "inputs": tokens,
    "inputs_uncut": example["inputs_uncut"],
    "token_types": tf.zeros_like(tokens),
    "texts": tf.zeros_like(tokens),
    "answer_heads": framing_lib.one_hot(position, length, reading.number + 1),
    "answer_targets": framing_lib.one_hot(position, length, tf.maximum(label, 0)),
    "has_answer": label >= 0,
  }


def _soft_class(example: Features, reading: Reading) -> Features:
  """Converts a text and a teacher's logits of its classes.

  The first positions, one for each class, have the bits of the logits; the head answers at the first of them.

  In:  {"parts": ["a b", "c"], "soft_labels": [0.5, -0.5], "label": 0, "options": ["x", "y"]}
  Out: as for a class, with "answer_heads": [1, 1, 0, 0, 0, 0], "answer_targets": [0x3f000000, -0x41000000, 0, 0, 0, 0]
  """
  bits = tf.bitcast(tf.cast(example["soft_labels"], tf.float32), tf.int32)
  features, classes = _of_text(example, reading, tf.constant(0)), tf.size(bits)
  length = tf.size(features["inputs"])

  def refuse(length) -> tf.Tensor:
    raise UserError(
      f"{reading.task}: an example has {int(length)} tokens, fewer than a teacher has classes. Leave the example "
      "out of config.data.train_labels."
    )

  length = checked(length, (length >= classes) & (reading.reads in ("first", "mean")), refuse, length)
  heads = tf.where(tf.range(length) < classes, reading.number + 1, 0)
  targets = tf.pad(bits, [[0, length - classes]])
  return features | {"answer_heads": heads, "answer_targets": targets, "has_answer": label_of(example) >= 0}


def _score(example: Features, reading: Reading) -> Features:
  """Converts a text and its score. The target is the score's float32 bits; NaN means that no score is given."""
  value = tf.cast(example["label"], tf.float32)
  return _of_text(example, reading, tf.bitcast(value, tf.int32)) | {"has_answer": ~tf.math.is_nan(value)}


def _right_candidates(example: Features) -> tf.Tensor:
  """Returns which candidates are right, bool [candidates]."""
  if "answers" in example:
    return tf.reduce_any(example["options"][:, None] == example["answers"][None, :], axis=1)
  return tf.range(tf.size(example["candidates"])) == label_of(example)


def _choice(example: Features, reading: Reading) -> Features:
  """Converts a text with candidates: each candidate follows a copy of the text, and the copies do not attend to each
  other.

  The head answers at one position per candidate. If not all candidates fit, the longest are cut first.

  In:  {"parts": ["a"], "candidates": ["b", "c"], "label": 1}               head 0, with [CLS] 101 and [SEP] 102
  Out: {"inputs": [101, 5, 102, 6, 102, 101, 5, 102, 7, 102], "token_types": [0, 0, 0, 1, 1, 0, 0, 0, 1, 1],
        "texts": [0, 0, 0, 0, 0, 1, 1, 1, 1, 1], "answer_heads": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0],
        "answer_targets": [0, 0, 0, 0, 0, 1, 0, 0, 0, 0], "inputs_uncut": 10, "has_answer": True}
  """
  parts, candidates = (reading.encode(example[name]) for name in ("parts", "candidates"))
  number, right, framing = candidates.nrows(out_type=tf.int32), _right_candidates(example), reading.framing
  around = len(framing.begin) + len(framing.end) + len(framing.between)
  room = tf.constant(reading.length)

  def refuse(number) -> tf.Tensor:
    raise too_many_candidates(int(number), reading)

  room = checked(room, room // tf.maximum(number, 1) >= around + LEAST, refuse, number)
  shared = around + (parts.nrows(out_type=tf.int32) - 1) * len(framing.between) + tf.size(parts.flat_values)
  lengths = shared + tf.cast(candidates.row_lengths(), tf.int32)
  most = tf.cond(tf.reduce_sum(lengths) > room, lambda: framing_lib.shortened(lengths, room), lambda: lengths)

  def candidate_row(arguments: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
    candidate, is_right, index, most = arguments
    tokens, types = framing_lib.framed(tf.concat([parts, candidate[None]], 0), framing, most)
    length, token_index = tf.size(tokens), reading.answering_position(tokens)
    target = tf.cast(is_right, tf.int32)
    heads = framing_lib.one_hot(token_index, length, reading.number + 1)
    return tokens, types, tf.fill([length], index), heads, framing_lib.one_hot(token_index, length, target)

  rows = tf.map_fn(
    candidate_row,
    (candidates, right, tf.range(number), most),
    fn_output_signature=(tf.RaggedTensorSpec([None], tf.int32, ragged_rank=0),) * 5,
  )
  names = ("inputs", "token_types", "texts", "answer_heads", "answer_targets")
  features = {name: row.flat_values for name, row in zip(names, rows, strict=True)}
  return features | {"inputs_uncut": tf.reduce_sum(lengths), "has_answer": tf.reduce_any(right)}


def _cut(question: Mapping[str, Any], features: Mapping[str, Any], reading: Reading) -> int:
  """Returns the number of tokens of a question that did not fit."""
  del question, reading
  return int(features["inputs_uncut"]) - len(features["inputs"])


@dataclasses.dataclass(frozen=True)
class QuestionKind:
  """Kind of question: the fields that identify it, the head that answers it, and its conversion to features.

  Attributes:
    question, answer: fields of an example; both together identify the kind.
    make: (example, reading) -> the model's features, with "has_answer".
    head: kind of the head that answers.
    number: number of classes of the head; 0: as many as options.
    windows: features of `make` that have one row per window; empty: an example is one row.
    check: (reading, the flag that sets the length, "" for the config) -> None; raises UserError if it is too small.
    read: (question, reading) -> the features of `make` in NumPy for a question without an answer, and "inputs_uncut";
      for `windows` a list of arrays each. None: inference uses `unanswered`.
    unanswered: question -> fields of an unknown answer, for `make`; without it and `read` inference does not support
      this kind.
    cut: (question, features, reading) -> number of tokens of the question that did not fit.
  """

  question: tuple[str, ...]
  answer: tuple[str, ...]
  make: Callable[[Features, Reading], Features]
  head: str
  number: int = 0
  windows: tuple[str, ...] = ()
  check: Callable[[Reading, str], None] = lambda reading, where: None
  read: Callable[[Mapping[str, Any], Reading], dict[str, Any]] | None = None
  unanswered: Callable[[Features], Features] | None = None
  cut: Callable[[Mapping[str, Any], Mapping[str, Any], Reading], int] = _cut

  @property
  def fields(self) -> tuple[str, ...]:
    """Fields that identify the kind."""
    return self.question + self.answer


# The first kind with fields that an example has applies.
KINDS: dict[str, QuestionKind] = {
  "soft_class": QuestionKind(("soft_labels",), ("options",), _soft_class, "class"),
  "cloze": QuestionKind(("blank_before", "blank_after"), ("blank_labels", "options"), _cloze, "cloze", read=read_cloze),
  "span": QuestionKind(
    ("question", "context"),
    ("answer_starts",),
    spans.make,
    "span",
    number=2,
    windows=("inputs", *ANSWER_FEATURES, *spans.OFFSETS),
    check=spans.check,
    read=spans.read,
    cut=spans.cut,
  ),
  "tag": QuestionKind(("words",), ("tags", "options"), tags.make, "tag", read=tags.read),
  "span_pair": QuestionKind(("text", "spans"), ("options",), span_pairs.make, "span_pair", read=span_pairs.read),
  "mention": QuestionKind(("passage", "query", "options"), (), mentions.make, "choice", number=1),
  "choice": QuestionKind(("candidates",), (), _choice, "choice", number=1, read=read_choice),
  "score": QuestionKind((), ("label",), _score, "score", number=1, read=read_text),
  "class": QuestionKind((), ("options",), _class, "class", read=read_text),
}


def kind_of(spec: Mapping[str, tf.TensorSpec]) -> str:
  """Returns the kind of question in examples with these fields; "" if no head can answer them."""
  for name, kind in KINDS.items():
    if set(kind.fields) <= set(spec):
      if name == "score" and not spec["label"].dtype.is_floating:
        continue
      return name
  return "class" if "classes" in spec else ""
