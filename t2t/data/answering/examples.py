"""Examples of tasks as models with heads read them: seqio tasks in place of those that are answered in writing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import functools
from typing import Any

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import raw_text, selection
from t2t.data.answering import kinds, needs, spans
from t2t.data.answering.kinds import ANSWER_FEATURES
from t2t.data.answering.reading import Reading
from t2t.data.framing import Framing
from t2t.models.architecture import ARCHITECTURES
from t2t.models.config import HeadConfig


def for_heads(found: selection.Found, architecture: str, heads: Sequence[HeadConfig]) -> selection.Found:
  """The task or mixture whose examples are what a model with these heads reads, and what they are asked.

  Args:
    found: in the vocabulary of the model, read from the user's files.
    architecture: of the model.
    heads: its own, in their order.

  Raises:
    UserError: a task that none of them answers.
  """

  def answered(task: seqio.Task) -> seqio.Task:
    number, need = needs.head_of(task, heads)
    vocabulary = task.output_features["inputs"].vocabulary
    as_it_is = seqio.Feature(seqio.PassThroughVocabulary(0), add_eos=False)
    step = functools.partial(
      ask,
      vocabulary=vocabulary,
      architecture=architecture,
      number=number,
      head=heads[number],
      task=task.name,
      labels=need.labels,
      order=needs.order_of(heads[number], need),
    )
    features = {"inputs": seqio.Feature(vocabulary, add_eos=False)} | dict.fromkeys(ANSWER_FEATURES, as_it_is)
    asked = task.replace(preprocessors=[*needs.formats_of(task), step], output_features=features)
    return raw_text.guarded(asked) if raw_text.is_guarded(task) else asked

  return selection.copy(found, answered, lambda rate: rate)


def ask(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  *,
  vocabulary: seqio.Vocabulary,
  architecture: str,
  number: int,
  head: HeadConfig,
  task: str,
  labels: Sequence[str] = (),
  order: Sequence[int] = (),
) -> tf.data.Dataset:
  """Texts to ids and to what a head is asked of them; the texts stay, under other names, as do all other fields.

  In:  {"parts": ["a b", "c"], "label": 2, "options": ["x", "y", "z"], "targets": "z", "idx": 3}
  Out: {"inputs": [101, 5, 6, 102, 7, 102], "answer_heads": [1, 0, 0, 0, 0, 0], ..., "targets_pretokenized": "z",
        "idx": 3}

  Args:
    dataset: what the task's formats yield.
    sequence_length: tokens of "inputs".
    vocabulary: of the model.
    architecture: of the model.
    number: of the head, among the model's.
    head: itself.
    task: name of the task, for messages.
    labels: classes of the task.
    order: of each of them the number that it has in the head; empty: the same.
  """
  reading = Reading(
    vocabulary,
    Framing.of(vocabulary, architecture),
    length=sequence_length["inputs"],
    number=number,
    reads=head.spelled_out(ARCHITECTURES[architecture]).reads,
    whole=ARCHITECTURES[architecture].writes,
    task=task,
  )
  kind = kinds.KINDS[kinds.kind_of(dataset.element_spec)]
  kind.check(reading)

  @tf.autograph.experimental.do_not_convert  # it takes as long as all else, and no tensor decides anything in Python
  def one(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    if labels and "options" in example:
      example = example | {"options": _same_options(example["options"], labels, task)}
    asked = kind.make(example, reading)
    if head.kind in ("class", "tag"):
      asked["answer_targets"] = _in_range(asked["answer_targets"], head, task)
      if tuple(order) != tuple(range(len(order))):
        asked["answer_targets"] = _renumbered(asked, order)
    texts = {f"{name}_pretokenized": example[name] for name in ("inputs", "targets") if name in example}
    return {name: x for name, x in example.items() if name not in ("inputs", "targets")} | texts | asked

  def apart(example: dict[str, tf.Tensor]) -> tf.data.Dataset:
    """An example for each window, its number along."""
    rows = {name: example[name] for name in ("inputs", *ANSWER_FEATURES, *spans.OFFSETS)}
    shared = {name: x for name, x in example.items() if name not in rows}
    numbers = tf.data.Dataset.range(rows["inputs"].nrows(), output_type=tf.int32)
    return numbers.map(lambda i: shared | {name: row[i] for name, row in rows.items()} | {"window": i})

  found = dataset.map(one, num_parallel_calls=tf.data.AUTOTUNE)
  return found.flat_map(apart) if kind.windows else found


def _checked(x: tf.Tensor, holds: tf.Tensor, refuse, given: tf.Tensor) -> tf.Tensor:
  """`x`, or what `refuse` raises of `given`."""
  raised = lambda: tf.ensure_shape(tf.numpy_function(refuse, [given], x.dtype), x.shape)
  return tf.cond(holds, lambda: x, raised)


def _same_options(options: tf.Tensor, labels: Sequence[str], task: str) -> tf.Tensor:
  def refuse(options):
    texts = ", ".join(text.decode() for text in options)
    raise UserError(
      f"{task}: an example has the options {texts}, and the first one {', '.join(labels)}: a class is one of the same"
      " few for all examples; where they differ, keep them as 'candidates', and a head chooses among them"
    )

  # Of different numbers, too: joined they are one string each.
  same = tf.strings.reduce_join(options, separator="\n") == "\n".join(labels)
  return _checked(options, same, refuse, options)


def _in_range(targets: tf.Tensor, head: HeadConfig, task: str) -> tf.Tensor:
  def refuse(targets):
    raise UserError(
      f"{task}: an example has the label {int(targets.max())}, but there are {head.num_classes} classes, from 0 on"
      + (f": {', '.join(head.labels)}" if head.labels else "")
    )

  return _checked(targets, tf.reduce_max(targets) < head.num_classes, refuse, targets)


def _renumbered(asked: dict[str, tf.Tensor], order: Sequence[int]) -> tf.Tensor:
  """Targets as the head numbers its classes."""
  is_asked = asked["answer_heads"] > 0
  return tf.where(is_asked, tf.gather(tf.constant(order, tf.int32), tf.where(is_asked, asked["answer_targets"], 0)), 0)


def gathered(examples: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
  """One example for all windows of a context, which it has as "windows"; other examples as they are.

  In:  {"id": "a", "window": 0, ...}, {"id": "a", "window": 1, ...}, {"id": "b", "window": 0, ...}
  Out: {"id": "a", "windows": [{"window": 0, ...}, {"window": 1, ...}], ...}, {"id": "b", "windows": [...], ...}
  """
  last: dict[str, Any] | None = None
  for example in examples:
    if "window" in example and example["window"] > 0:
      last["windows"].append(example)
      continue
    if last is not None:
      yield last
    last = dict(example) | ({"windows": [example]} if "window" in example else {})
  if last is not None:
    yield last
