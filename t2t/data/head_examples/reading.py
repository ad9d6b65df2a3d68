"""How a model reads the texts of an example: in which tokens, what stands around them, and which position answers."""

from collections.abc import Callable
import dataclasses

import seqio
import tensorflow as tf

from t2t.data import special_tokens as framing_lib
from t2t.data.special_tokens import Framing

Features = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Reading:
  """How a model reads.

  vocabulary: of its tokens.
  framing: the ids around texts.
  length: positions.
  number: of the head that is asked, among the model's.
  reads: "first", "last", "mean" or "each": the position of a text that answers for it.
  whole: whether parts of a text are read as they are written, in one: a model that writes knows them so.
  task: whose examples are read, for messages.
  """

  vocabulary: seqio.Vocabulary
  framing: Framing
  length: int
  number: int
  reads: str
  whole: bool
  task: str = ""

  def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Ids of texts, string [texts]; nothing around them."""
    return framing_lib.encode(self.vocabulary, texts)

  def answering_position(self, tokens: tf.Tensor) -> tf.Tensor:
    """The position that answers for a text."""
    return tf.size(tokens) - 1 if self.reads == "last" else tf.constant(0)


def checked(x: tf.Tensor, holds: tf.Tensor, refuse: Callable, value: tf.Tensor) -> tf.Tensor:
  """`x`, or what `refuse` raises of `value`."""
  raised = lambda: tf.ensure_shape(tf.numpy_function(refuse, [value], x.dtype), x.shape)
  return tf.cond(holds, lambda: x, raised)
