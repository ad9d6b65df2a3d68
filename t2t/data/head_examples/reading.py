"""Settings with which a model reads the texts of an example: ids, special tokens, and the position that answers."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

from t2t.data import special_tokens as framing_lib
from t2t.data.special_tokens import Framing
from t2t.param_tree import Vocabulary
from t2t.runtime import data_packages

tf = data_packages.lazy_module("tensorflow")

Features = dict[str, Any]  # tensors


@dataclasses.dataclass(frozen=True)
class Reading:
  """Settings with which a model reads texts.

  Attributes:
    vocabulary: vocabulary of the model.
    framing: special tokens around texts.
    length: maximum number of positions.
    number: index in the model of the head that answers.
    reads: "first", "last", "mean", "concat", "each" or "spans": the position that represents a text.
    whole: whether to read "inputs" as one text instead of "parts"; generative models are trained on it.
    task: name of the task, for messages.
  """

  vocabulary: Vocabulary
  framing: Framing
  length: int
  number: int
  reads: str
  whole: bool
  task: str = ""

  def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Returns the ids of texts, string [texts], without special tokens."""
    return framing_lib.encode(self.vocabulary, texts)

  def answering_position(self, tokens: tf.Tensor) -> tf.Tensor:
    """Returns the position that represents a text."""
    return tf.size(tokens) - 1 if self.reads == "last" else tf.constant(0)


def checked(x: tf.Tensor, holds: tf.Tensor, refuse: Callable, value: tf.Tensor) -> tf.Tensor:
  """Returns `x` if `holds`, and raises the error of `refuse(value)` otherwise."""
  raised = lambda: tf.ensure_shape(tf.numpy_function(refuse, [value], x.dtype), x.shape)
  return tf.cond(holds, lambda: x, raised)


def label_of(example: Features) -> tf.Tensor:
  """Returns the index of the right class, int32 []; -1 if it is not given."""
  if "label" in example:
    return tf.cast(example["label"], tf.int32)
  matches = tf.where(example["options"] == example["targets"])
  return tf.concat([tf.cast(matches[:, 0], tf.int32), [-1]], 0)[0]
