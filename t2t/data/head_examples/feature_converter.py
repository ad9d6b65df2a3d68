"""The feature converter of heads: an example becomes the same features in training, evaluation and inference."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import sources
from t2t.data.head_examples import kinds
from t2t.data.head_examples.kinds import QuestionKind
from t2t.data.head_examples.reading import Features, Reading, checked
from t2t.data.special_tokens import Framing
from t2t.models.architecture import ARCHITECTURES
from t2t.models.config import HeadConfig

# Features of the right answer, and of what is counted in training; inference has no use for them.
_OF_ANSWERS = ("answer_targets", "answers", "has_answer", "inputs_uncut")
_OF_TEXTS = HeadConfig("texts", 1)  # a class head, which nobody asks


class ConvertedExample(NamedTuple):
  """Features of an example whose answer is not known.

  features: int32 [length] each: inputs, token_types, texts, answer_heads, and what the kind of question adds; of a
    context "windows", which have such features each, as `examples.gathered` has them of a task.
  cut: tokens of the texts that did not fit.
  """

  features: dict[str, Any]
  cut: int


@dataclasses.dataclass(frozen=True)
class HeadFeatureConverter:
  """Converts examples to the features that a model with heads reads, and that one of its heads is asked.

  `convert_dataset` takes the examples of a task, `__call__` an example without an answer.

  In:  {"parts": ["a b", "c"]}                         of an encoder, with [CLS] 101 and [SEP] 102; head 0
  Out: {"inputs": [101, 5, 6, 102, 7, 102], "token_types": [0, 0, 0, 0, 1, 1], "texts": [0, 0, 0, 0, 0, 0],
        "answer_heads": [1, 0, 0, 0, 0, 0]}, cut 0

  vocabulary: of the model.
  architecture: of the model.
  head: that is asked; None: nothing is, and texts are read as a class head would.
  length: of an example or a window at most, special tokens included.
  number: of the head, among the model's.
  task: name of the task, for messages.
  labels: classes of the task.
  order: of each of them the number that it has in the head; empty: the same.
  """

  vocabulary: seqio.Vocabulary
  architecture: str
  head: HeadConfig | None
  length: int
  number: int = 0
  task: str = ""
  labels: Sequence[str] = ()
  order: Sequence[int] = ()

  @functools.cached_property
  def reading(self) -> Reading:
    """Returns the settings with which texts are read."""
    kind, head = ARCHITECTURES[self.architecture], self.head or _OF_TEXTS
    framing, reads = Framing.of(self.vocabulary, self.architecture), head.spelled_out(kind).reads
    whole = self.head is not None and kind.is_generative and head.kind != "choice"
    return Reading(self.vocabulary, framing, self.length, self.number, reads, whole, self.task)

  # ---- Examples of a task ------------------------------------------------------------------------------------------

  def convert_dataset(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Converts examples, with their right answers; the texts stay, under other names, as do all other fields.

    In:  {"parts": ["a b", "c"], "label": 2, "options": ["x", "y", "z"], "targets": "z", "idx": 3}
    Out: {"inputs": [101, 5, 6, 102, 7, 102], "answer_heads": [1, 0, 0, 0, 0, 0], ..., "targets_pretokenized": "z",
          "idx": 3}

    Args:
      dataset: what the task's formats yield.
    """
    kind = kinds.KINDS[kinds.kind_of(dataset.element_spec)]
    kind.check(self.reading, "")

    @tf.autograph.experimental.do_not_convert  # it takes as long as all else, and no tensor decides anything in Python
    def convert(example: Features) -> Features:
      if self.labels and "options" in example:
        example = example | {"options": self._same_options(example["options"])}
      features = kind.make(example, self.reading)
      if self.head.kind in ("class", "tag"):
        features["answer_targets"] = self._in_range(features["answer_targets"])
        if tuple(self.order) != tuple(range(len(self.order))):
          features["answer_targets"] = self._renumbered(features)
      texts = {f"{name}_pretokenized": example[name] for name in ("inputs", "targets") if name in example}
      return {name: x for name, x in example.items() if name not in ("inputs", "targets")} | texts | features

    def apart(example: Features) -> tf.data.Dataset:
      """An example for each window, its number along."""
      rows = {name: example[name] for name in kind.windows}
      shared = {name: x for name, x in example.items() if name not in rows}
      numbers = tf.data.Dataset.range(rows["inputs"].nrows(), output_type=tf.int32)
      return numbers.map(lambda i: shared | {name: row[i] for name, row in rows.items()} | {"window": i})

    converted = dataset.map(convert, num_parallel_calls=tf.data.AUTOTUNE)
    return converted.flat_map(apart) if kind.windows else converted

  def _same_options(self, options: tf.Tensor) -> tf.Tensor:
    def refuse(options):
      texts = ", ".join(text.decode() for text in options)
      raise UserError(
        f"{self.task}: an example has the options {texts}, and the first one {', '.join(self.labels)}: a class is one"
        " of the same few for all examples; where they differ, keep them as 'candidates', and a head chooses among them"
      )

    # Of different numbers, too: joined they are one string each.
    same = tf.strings.reduce_join(options, separator="\n") == "\n".join(self.labels)
    return checked(options, same, refuse, options)

  def _in_range(self, targets: tf.Tensor) -> tf.Tensor:
    head = self.head

    def refuse(targets):
      raise UserError(
        f"{self.task}: an example has the label {int(targets.max())}, but there are {head.num_classes} classes, from 0"
        " on" + (f": {', '.join(head.labels)}" if head.labels else "")
      )

    return checked(targets, tf.reduce_max(targets) < head.num_classes, refuse, targets)

  def _renumbered(self, features: Features) -> tf.Tensor:
    """Targets as the head numbers its classes."""
    is_asked, order = features["answer_heads"] > 0, tf.constant(self.order, tf.int32)
    return tf.where(is_asked, tf.gather(order, tf.where(is_asked, features["answer_targets"], 0)), 0)

  # ---- An example without an answer ----------------------------------------------------------------------------------

  def __call__(self, example: Mapping[str, Any]) -> ConvertedExample:
    """Converts one example whose answer is not known.

    Args:
      example: texts and lists of texts, under the names that the examples of tasks have: "inputs" or "parts" in the
        order in which they are read, "candidates", "words", "question" and "context".
    """
    kind = self._kind_of(example)
    texts = {
      name: tf.constant(x, tf.string) if isinstance(x, str) else tf.constant(list(x), tf.string, shape=[len(x)])
      for name, x in example.items()
    }
    key = kind, tuple((name, x.shape.rank) for name, x in texts.items())
    program = self._programs.get(key) or self._programs.setdefault(key, self._program(*key))
    try:
      features = program(*texts.values())
    except tf.errors.OpError as error:
      raise sources.user_error(error) or error from None
    cut = kind.cut(texts, features, self.reading)
    names = [name for name in kind.windows or features if name not in _OF_ANSWERS]
    if not kind.windows:
      return ConvertedExample({name: features[name].numpy() for name in names}, cut)
    columns = [np.split(features[name].flat_values.numpy(), features[name].row_splits.numpy()[1:-1]) for name in names]
    return ConvertedExample(
      {"windows": [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]}, cut
    )

  @functools.cached_property
  def _programs(self) -> dict[tuple, Callable]:
    return {}

  def _program(self, kind: QuestionKind, fields: Sequence[tuple[str, int]]) -> Callable:
    """Compiles a kind for examples with these fields, which are texts or lists of texts."""
    signature = [tf.TensorSpec([None] * rank, tf.string) for _, rank in fields]

    @tf.function(input_signature=signature, autograph=False)
    def program(*texts: tf.Tensor) -> Features:
      example = {name: x for (name, _), x in zip(fields, texts, strict=True)}
      return kind.make(example | kind.unanswered(example), self.reading)

    return program

  @property
  def _kinds(self) -> list[QuestionKind]:
    head = self.head or _OF_TEXTS
    return [kind for kind in kinds.KINDS.values() if kind.head == head.kind and kind.unanswered is not None]

  def _kind_of(self, example: Mapping[str, Any]) -> QuestionKind:
    return next(kind for kind in self._kinds if set(kind.question) <= set(example))

  @property
  def fields(self) -> set[str]:
    """Fields of the questions that the head answers, beside "inputs" and "parts"."""
    return {name for kind in self._kinds for name in kind.question}

  @property
  def most_candidates(self) -> int:
    """So many there is room for."""
    framing = self.reading.framing
    return self.length // (len(framing.begin) + len(framing.between) + len(framing.end) + kinds.LEAST)

  def check(self, where: str) -> None:
    """Checks that there is room for what the head is asked.

    Args:
      where: what the user gives the length with, for the message.

    Raises:
      UserError: there is not.
    """
    for kind in self._kinds:
      kind.check(self.reading, where)
