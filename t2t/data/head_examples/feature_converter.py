"""Feature converter for heads, shared by training, evaluation and inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from t2t import UserError
from t2t.data import sources
from t2t.data.head_examples import kinds, text_questions
from t2t.data.head_examples.kinds import QuestionKind
from t2t.data.head_examples.reading import Features, Reading, checked
from t2t.data.special_tokens import Framing
from t2t.models import crf, span_pair
from t2t.models.architecture import ARCHITECTURES
from t2t.models.head_config import HeadConfig
from t2t.param_tree import Vocabulary
from t2t.runtime import data_packages

tf = data_packages.lazy_module("tensorflow")

# Features of the right answer and of training statistics; inference does not return them.
_OF_ANSWERS = ("answer_targets", "answers", "has_answer", "inputs_uncut")
_OF_TEXTS = HeadConfig("texts", 1)  # class head for texts without a question


class ConvertedExample(NamedTuple):
  """Features of one example without an answer.

  Attributes:
    features: int32 [length] each: inputs, token_types, texts, answer_heads, and the features of the question's kind.
      For a context, "windows" is a list with these features for each window, as `examples.gathered` returns it.
    cut: number of tokens of the texts that did not fit.
  """

  features: dict[str, Any]
  cut: int


def _tensor(field: Any) -> tf.Tensor:
  """Returns a text, a list of texts or an array of numbers as a tensor."""
  if isinstance(field, np.ndarray):
    return tf.constant(field, tf.int32)
  return tf.constant(field, tf.string) if isinstance(field, str) else tf.constant(field, tf.string, shape=[len(field)])


@dataclasses.dataclass(frozen=True)
class HeadFeatureConverter:
  """Converts examples to the features of a model with heads; one head answers.

  `convert_dataset` converts a task's examples, `__call__` converts one example without an answer.

  In:  {"parts": ["a b", "c"]}                         encoder with [CLS] 101 and [SEP] 102; head 0
  Out: {"inputs": [101, 5, 6, 102, 7, 102], "token_types": [0, 0, 0, 0, 1, 1], "texts": [0, 0, 0, 0, 0, 0],
        "answer_heads": [1, 0, 0, 0, 0, 0]}, cut 0

  Attributes:
    vocabulary: vocabulary of the model.
    architecture: architecture of the model.
    head: the head that answers; None: no head, and texts are read as for a class head.
    length: maximum number of tokens of an example or a window, including special tokens.
    number: index of the head in the model.
    task: name of the task, for messages.
    labels: classes of the task.
    order: index in the head of each class of the task; empty: the same order.
  """

  vocabulary: Vocabulary
  architecture: str
  head: HeadConfig | None
  length: int
  number: int = 0
  task: str = ""
  labels: Sequence[str] = ()
  order: Sequence[int] = ()

  @functools.cached_property
  def reading(self) -> Reading:
    kind, head = ARCHITECTURES[self.architecture], self.head or _OF_TEXTS
    framing, reads = Framing.of(self.vocabulary, self.architecture), head.spelled_out(kind).reads
    whole = self.head is not None and kind.is_generative and head.kind != "choice"
    return Reading(self.vocabulary, framing, self.length, self.number, reads, whole, self.task)

  # ---- Examples of a task ------------------------------------------------------------------------------------------

  def convert_dataset(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Converts examples with their answers; other fields stay, and texts are renamed to `*_pretokenized`.

    In:  {"parts": ["a b", "c"], "label": 2, "options": ["x", "y", "z"], "targets": "z", "idx": 3}
    Out: {"inputs": [101, 5, 6, 102, 7, 102], "answer_heads": [1, 0, 0, 0, 0, 0], ..., "targets_pretokenized": "z",
          "idx": 3}

    Args:
      dataset: output of the task's text preprocessors.
    """
    kind = kinds.KINDS[kinds.kind_of(dataset.element_spec)]
    kind.check(self.reading, "")

    @tf.autograph.experimental.do_not_convert  # autograph doubles the time and is not needed
    def convert(example: Features) -> Features:
      if self.labels and "options" in example:
        example = example | {"options": self._same_options(example["options"])}
      features = kind.make(example, self.reading)
      if self.head.answers_as in ("class", "tag", "span_pair", "cloze") and "soft_labels" not in example:
        features["answer_targets"] = self._classes(features)
      texts = {f"{name}_pretokenized": example[name] for name in ("inputs", "targets") if name in example}
      return {name: x for name, x in example.items() if name not in ("inputs", "targets")} | texts | features

    def apart(example: Features) -> tf.data.Dataset:
      """Returns one example per window, with its index as "window"."""
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
        f"{self.task}: an example has the options {texts}, but the first example has {', '.join(self.labels)}. A "
        "class head needs the same options in all examples. If options differ, keep them as 'candidates' for a "
        "choice head."
      )

    # Lists of different lengths cannot be compared element by element, so each is joined to one string.
    same = tf.strings.reduce_join(options, separator="\n") == "\n".join(self.labels)
    return checked(options, same, refuse, options)

  def _classes(self, features: Features) -> tf.Tensor:
    """Returns the targets with classes in range, numbered as in the head; bits below those of a pair's class stay."""
    bits = span_pair.CLASS_BITS if self.head.kind == "span_pair" else 0
    targets = features["answer_targets"]
    classes = self._in_range(tf.bitwise.right_shift(targets, bits))
    if tuple(self.order) != tuple(range(len(self.order))):
      classes = self._renumbered(features["answer_heads"] > 0, classes)
    if self.head.scheme:
      classes = self._of_scheme(features["answer_heads"] > 0, classes)
    return targets - tf.bitwise.left_shift(tf.bitwise.right_shift(targets, bits), bits) + classes * 2**bits

  def _of_scheme(self, is_asked: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
    """Refuses tags that the head's scheme does not allow after the tag before."""
    allowed, allowed_first = crf.allowed_by_bio(self.head.labels, name=self.head.name)
    tags = tf.boolean_mask(classes, is_asked)
    pairs = tf.gather_nd(tf.constant(allowed), tf.stack([tags[:-1], tags[1:]], axis=1))

    def refuse(tags):
      names = " ".join(self.head.labels[tag] for tag in tags)
      raise UserError(
        f"{self.task}: an example has the tags {names}, which the scheme {self.head.scheme!r} of the head "
        f"{self.head.name!r} does not allow. Correct the tags in the data, or remove scheme from config.model.heads."
      )

    holds = tf.reduce_all(tf.gather(tf.constant(allowed_first), tags[:1])) & tf.reduce_all(pairs)
    return checked(classes, holds, refuse, tags)

  def _in_range(self, targets: tf.Tensor) -> tf.Tensor:
    head = self.head

    def refuse(targets):
      raise UserError(
        f"{self.task}: the label {int(targets.max())} is out of range, because the head {head.name!r} has "
        f"{head.num_classes} classes, numbered from 0"
        + (f" ({', '.join(head.labels)})" if head.labels else "")
        + ". Correct the label in the data."
      )

    return checked(targets, tf.reduce_max(targets) < head.num_classes, refuse, targets)

  def _renumbered(self, is_asked: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
    """Maps the task's class indices to the head's."""
    return tf.where(is_asked, tf.gather(tf.constant(self.order, tf.int32), tf.where(is_asked, classes, 0)), 0)

  # ---- An example without an answer ----------------------------------------------------------------------------------

  def __call__(self, example: Mapping[str, Any]) -> ConvertedExample:
    """Converts one example without an answer.

    Args:
      example: texts, lists of texts and an array of bounds, under the field names of tasks: "inputs", or "parts" in
        reading order, "candidates", "words", "question" and "context", "text" and "spans".
    """
    kind = self._kind_of(example)
    if kind.read is None:
      return self._converted_in_tensorflow(kind, example)
    features = kind.read(example, self.reading)
    cut = kind.cut(example, features, self.reading)
    names = [name for name in features if name not in _OF_ANSWERS]
    if not kind.windows:
      return ConvertedExample({name: features[name] for name in names}, cut)
    rows = zip(*(features[name] for name in names), strict=True)
    return ConvertedExample({"windows": [dict(zip(names, row, strict=True)) for row in rows]}, cut)

  def _converted_in_tensorflow(self, kind: QuestionKind, example: Mapping[str, Any]) -> ConvertedExample:
    """Converts a question of a kind without a NumPy function, as a row without windows."""
    texts = {name: _tensor(x) for name, x in example.items()}
    key = kind, tuple((name, x.dtype, x.shape.rank) for name, x in texts.items())
    program = self._programs.get(key) or self._programs.setdefault(key, self._program(*key))
    try:
      features = program(*texts.values())
    except tf.errors.OpError as error:
      raise sources.user_error(error) or error from None
    cut = kind.cut(texts, features, self.reading)
    return ConvertedExample({name: x.numpy() for name, x in features.items() if name not in _OF_ANSWERS}, cut)

  @functools.cached_property
  def _programs(self) -> dict[tuple, Callable]:
    return {}

  def _program(self, kind: QuestionKind, fields: Sequence[tuple[str, tf.DType, int]]) -> Callable:
    """Compiles the conversion of a kind of question for these fields, (name, dtype, rank) each."""
    signature = [tf.TensorSpec([None] * rank, dtype) for _, dtype, rank in fields]

    @tf.function(input_signature=signature, autograph=False)
    def program(*texts: tf.Tensor) -> Features:
      example = {name: x for (name, *_), x in zip(fields, texts, strict=True)}
      return kind.make(example | kind.unanswered(example), self.reading)

    return program

  @property
  def _kinds(self) -> list[QuestionKind]:
    head = self.head or _OF_TEXTS
    return [kind for kind in kinds.KINDS.values() if kind.head == head.answers_as and (kind.read or kind.unanswered)]

  def _kind_of(self, example: Mapping[str, Any]) -> QuestionKind:
    return next(kind for kind in self._kinds if set(kind.question) <= set(example))

  @property
  def fields(self) -> set[str]:
    """Names of the example fields that the head's questions use, in addition to "inputs" and "parts"."""
    return {name for kind in self._kinds for name in kind.question}

  @property
  def most_candidates(self) -> int:
    """Maximum number of candidates that fit."""
    framing = self.reading.framing
    return self.length // (len(framing.begin) + len(framing.between) + len(framing.end) + text_questions.LEAST)

  def check(self, where: str) -> None:
    """Checks that `length` suffices for the head's questions.

    Args:
      where: the flag or key that sets the length, for the message.

    Raises:
      UserError: the length is too small.
    """
    for kind in self._kinds:
      kind.check(self.reading, where)
