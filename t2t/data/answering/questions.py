"""Texts that somebody gives, framed as the examples of tasks are, without a task."""

from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import numpy as np
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data.answering import kinds, spans, tags
from t2t.data.framing import Framing
from t2t.data.vocabularies import offsets
from t2t.models.architecture import ARCHITECTURES
from t2t.models.config import HeadConfig

_NO_LIMIT = 1 << 30


class Question(NamedTuple):
  """What a model is given.

  features: int32 [length] each: inputs, token_types, texts, answer_heads; of words besides asked_words [words], of a
    context context_starts and context_ends.
  cut: tokens of the texts that did not fit.
  """

  features: dict[str, np.ndarray]
  cut: int


class Questions:
  """Texts as a model reads them, and where a head is asked; what it should say is not known.

  In:  ["a b", "c"]                                    of an encoder, with [CLS] 101 and [SEP] 102; head 0
  Out: {"inputs": [101, 5, 6, 102, 7, 102], "token_types": [0, 0, 0, 0, 1, 1], "texts": [0, 0, 0, 0, 0, 0],
        "answer_heads": [1, 0, 0, 0, 0, 0]}, cut 0

  Args:
    vocabulary: of the model.
    architecture: of the model.
    head: that is asked; None: nothing is, and texts are read as a class head would.
    number: of the head, among the model's.
    length: of all together at most, special tokens included.
  """

  def __init__(
    self, vocabulary: seqio.Vocabulary, architecture: str, *, head: HeadConfig | None, number: int = 0, length: int
  ):
    self._length, framing = length, Framing.of(vocabulary, architecture)
    reads = head.reads if head is not None else ""
    reads = reads or ("last" if ARCHITECTURES[architecture].continues else "first")
    # Parts of what a model that writes reads in one have been put together before they come here.
    reading = kinds.Reading(vocabulary, framing, length, number=number, reads=reads, whole=False)
    self._reading = reading
    self._least = len(framing.begin) + len(framing.between) + len(framing.end) + kinds.LEAST
    kind = head.kind if head is not None else "class"
    no_answer = tf.constant(float("nan") if kind == "score" else -1)
    texts = tf.TensorSpec([None], tf.string)

    def program(reading: kinds.Reading):
      @tf.function(input_signature=(texts, texts))
      def make(parts: tf.Tensor, candidates: tf.Tensor) -> kinds.Features:
        return kinds.KINDS[kind].make({"parts": parts, "candidates": candidates, "label": no_answer}, reading)

      return make

    self._make, self._whole = program(reading), program(dataclasses.replace(reading, length=_NO_LIMIT))

  @property
  def most_candidates(self) -> int:
    """So many there is room for."""
    return self._length // self._least

  def __call__(self, parts: Sequence[str], candidates: Sequence[str] = ()) -> Question:
    """See the class.

    Args:
      parts: texts, in the order in which they are read.
      candidates: of which a choice head chooses one, `most_candidates` at most; each is read behind the parts.
    """
    given = tf.constant(list(parts), tf.string), tf.constant(list(candidates), tf.string, shape=[len(candidates)])
    whole = {name: np.asarray(x) for name, x in self._whole(*given).items()}
    found = whole
    if len(whole["inputs"]) > self._length:
      found = {name: np.asarray(x) for name, x in self._make(*given).items()}
    features = {name: found[name] for name in ("inputs", "token_types", "texts", "answer_heads")}
    return Question(features, len(whole["inputs"]) - len(found["inputs"]))

  def of_words(self, words: Sequence[str]) -> Question:
    """Words, each of which a tag head is asked about.

    In:  ["Ann", "Lees", "won"]                                                              see `tags.make`
    Out: {"inputs": [101, 5, 6, 7, 8, 102], "token_types": [0, 0, 0, 0, 0, 0], "texts": [0, 0, 0, 0, 0, 0],
          "answer_heads": [0, 1, 1, 0, 1, 0], "asked_words": [0, 1, 2]}, cut 0
    """
    found = tags.read(words, self._reading)
    zeros = np.zeros_like(found.inputs)
    features = {"inputs": found.inputs, "token_types": zeros, "texts": zeros, "answer_heads": found.heads}
    return Question(features | {"asked_words": found.asked}, found.cut)

  def of_context(self, question: str, context: str) -> list[Question]:
    """The windows of a context that a span head is asked about; see `spans.make`, whose answer nobody knows here.

    What did not fit is of the question.
    """
    found = spans.read(question, context, None, self._reading)
    cut = max(0, len(offsets.tokens_of(self._reading.vocabulary, question).ids) - spans.MOST_OF_QUESTION)
    return [
      Question(
        {
          "inputs": window.inputs,
          "token_types": window.token_types,
          "texts": np.zeros_like(window.inputs),
          "answer_heads": window.asked * (self._reading.number + 1),
          "context_starts": window.context_starts,
          "context_ends": window.context_ends,
        },
        cut,
      )
      for window in found
    ]

  def check_windows(self, where: str) -> None:
    """Whether there is room for a window of a context that goes on behind the one before.

    Args:
      where: what the user gives the length with, for the message.

    Raises:
      UserError: there is not.
    """
    least = spans.shortest(self._reading.framing)
    if self._length < least:
      raise UserError(
        f"{where} {self._length}: a context is read in windows, of which each has {spans.OVERLAP} tokens of the one"
        f" before, behind a question of up to {spans.MOST_OF_QUESTION}; give {least} or more"
      )


def reads_whole(architecture: str, head: HeadConfig) -> bool:
  """Whether a head was trained on the parts of a text put together in one, as a model that writes reads them."""
  return ARCHITECTURES[architecture].writes and head.kind != "choice"
