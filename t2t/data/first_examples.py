"""Counts over the first examples of each task: number, cut texts, missing answers and unknown tokens."""

from collections.abc import Iterable, Mapping
import dataclasses
import itertools
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import example_windows, objectives, untruncated_lengths
from t2t.data.sources import bad_records, named

MOST_EXAMPLES = 1_000
_OF_OBJECTIVES = 200  # examples of text without answers
_MOST_TOKENS = 200_000  # fewer long examples are read
# Above this share of examples without an answer a lookup of labels has most likely failed.
MOST_UNANSWERED = 0.1
_LEAST_EXAMPLES = 10  # with fewer examples a single one is not a share
# Above this share of unknown tokens the vocabulary does not fit the text.
_MANY_UNKNOWN = 0.005
_FEW_EXAMPLES = 32  # with fewer examples, all of one class, chance may be the reason


@dataclasses.dataclass
class Counts:
  """Counts over the first examples of a task's split.

  limits: feature -> maximum number of tokens. examples: number of examples read; windows, where contexts are read in
  windows. complete: whether these are all examples of the split. cut: feature -> number of examples longer than the
  limit. longest: feature -> tokens of the longest example before cutting. tokens, unknown: number of tokens read, and
  of unknown ones among them. unanswered: number of examples without an answer. classes: class -> examples, for tasks
  with one class per example. options: texts of the classes, if all examples have the same; None: they differ, or there
  are none.
  """

  task: str
  split: str
  limits: Mapping[str, int]
  examples: int = 0
  complete: bool = False
  cut: dict[str, int] = dataclasses.field(default_factory=dict)
  longest: dict[str, int] = dataclasses.field(default_factory=dict)
  tokens: int = 0
  unknown: int = 0
  unanswered: int = 0
  classes: dict[str | int, int] = dataclasses.field(default_factory=dict)
  options: tuple[str, ...] | None = None

  def add(self, example: Mapping[str, Any], unknown_ids: Mapping[str, int]) -> None:
    """Counts an example.

    Args:
      example: NumPy values and bytes, with the lengths of `untruncated_lengths.measured` if it is already cut.
      unknown_ids: text feature -> id of unknown tokens; -1: there is none.
    """
    for name, unknown_id in unknown_ids.items():
      if name not in example or np.ndim(example[name]) != 1:
        continue
      length, limit = untruncated_lengths.length(example, name), self.limits.get(name)
      self.longest[name] = max(self.longest.get(name, 0), length)
      self.cut[name] = self.cut.get(name, 0) + (limit is not None and length > limit)
      ids = np.asarray(example[name])[:limit]
      self.tokens += ids.size
      self.unknown += int(np.count_nonzero(ids == unknown_id))
    has_answer = example_windows.has_answer(example)
    self.unanswered += not has_answer
    label = _class_of(example)
    if has_answer and label is not None:
      self.classes[label] = self.classes.get(label, 0) + 1
    options = tuple(_text(x) for x in np.ravel(example.get("options", ())))
    self.options = options if not self.examples or options == self.options else None
    self.examples += 1

  @property
  def read(self) -> str:
    """Description of the examples read."""
    return f"all {self.examples:,} examples" if self.complete else f"the first {self.examples:,} examples"


def _text(value: Any) -> str:
  return value.decode() if isinstance(value, bytes) else str(value)


def _class_of(example: Mapping[str, Any]) -> str | int | None:
  """Returns the class of an example: its number for a head, or its text; None without a single class."""
  if "answer_heads" in example:
    (head_numbers,) = np.nonzero(np.asarray(example["answer_heads"]))
    return (
      int(example["answer_targets"][head_numbers[0]])
      if len(head_numbers) == 1 and "candidates" not in example
      else None
    )
  if "options" in example and "candidates" not in example and "targets_pretokenized" in example:
    return _text(example["targets_pretokenized"])
  return None


def counted(
  examples: Iterable[Mapping[str, Any]],
  task: seqio.Task,
  split: str,
  limits: Mapping[str, int],
  *,
  most: int,
  whole: bool = False,
) -> Counts:
  """Counts the first of some examples.

  Args:
    examples: NumPy values and bytes.
    task: task of the examples.
    split: split of the task.
    limits: feature -> maximum number of tokens.
    most: maximum number of examples.
    whole: whether `examples` are the whole split.
  """
  counts = Counts(task.name, split, limits)
  texts = {
    name: task.output_features[name].vocabulary for name in untruncated_lengths.TEXTS if name in task.output_features
  }
  unknown_ids = {name: _unknown_id(vocabulary) for name, vocabulary in texts.items()}
  iterator = iter(examples)
  for example in itertools.islice(iterator, most):
    counts.add(example, unknown_ids)
    if counts.tokens >= _MOST_TOKENS:
      break
  counts.complete = whole and next(iterator, None) is None
  return counts


def _unknown_id(vocabulary: seqio.Vocabulary) -> int:
  """Returns the id of unknown tokens; -1 if every text has tokens, or if the id has another meaning."""
  unknown = vocabulary.unk_id
  return -1 if unknown is None or unknown in (vocabulary.eos_id, vocabulary.pad_id) else unknown


def read(
  plan: example_windows.DataPlan,
  task: seqio.Task,
  task_examples: tf.data.Dataset | None = None,
  progress: example_windows.Progress | None = None,
) -> Counts:
  """Counts the first examples of a task, in the order of its source.

  Args:
    plan: plan of the task, or of a mixture with it.
    task: one of `plan.tasks`.
    task_examples: its examples from `pipeline.task_examples`, if already built; building takes longer than reading.
    progress: counts of `task_examples`.

  Raises:
    UserError: no example among the records read, or a record cannot be used.
  """
  most = _OF_OBJECTIVES if objectives.of(task) else MOST_EXAMPLES
  if task_examples is None or progress is None or not untruncated_lengths.is_measured(task_examples):
    task_examples, progress = None, example_windows.Progress()
  # If the first of very many records yield no example, the first ones of training may.
  for train in (False, True):
    examples = None if train else task_examples
    if examples is None:
      of_task = dataclasses.replace(plan, task=untruncated_lengths.measured(task), train=train)
      examples = example_windows.in_order(of_task, trim=False, progress=progress)
    examples = examples.with_options(example_windows.options())
    try:
      # One more example shows whether these are all.
      counts = counted(_arrays(examples.take(most + 1)), task, plan.split, plan.lengths, most=most, whole=not train)
    except tf.errors.OpError as error:
      raise named.in_pipeline(error, task.name) from error
    if counts.examples:
      return counts
    if progress.num_records < bad_records.MOST_UNUSED:
      break
  raise bad_records.NoExamples(task.name, plan.split, progress.num_records)


_COUNTED = ("answer_heads", "answer_targets", "has_answer", "options", "candidates", "label", "targets_pretokenized")


def _arrays(examples: tf.data.Dataset) -> Iterable[dict[str, Any]]:
  """Yields the counted fields of each example."""
  names = {
    *untruncated_lengths.TEXTS,
    *(name + untruncated_lengths.SUFFIX for name in untruncated_lengths.TEXTS),
    *_COUNTED,
  }
  counted_fields = examples.map(
    example_windows.not_converted(lambda example: {name: x for name, x in example.items() if name in names})
  )
  return counted_fields.as_numpy_iterator()


# ---- Messages --------------------------------------------------------------------------------------------------------


def check(counts: Counts, *, writes: bool, draws_classes: bool, vocabulary: seqio.Vocabulary) -> None:
  """Refuses examples from which a model cannot learn the task.

  Args:
    counts: counts of the training split.
    writes: whether the answer is generated.
    draws_classes: whether an objective drew the class of each example, so that all classes occur.
    vocabulary: vocabulary of the targets.

  Raises:
    UserError: too many examples have no answer, the text of a class does not fit, or all are of one class.
  """
  where = f"{counts.task}: split {counts.split!r}"
  if counts.unanswered == counts.examples:
    raise UserError(
      f"{counts.task}: none of the first examples of split {counts.split!r} has an answer to learn from. Set "
      "config.data.train_split to another split, or correct the labels (-1 means no label)."
    )
  if counts.unanswered > MOST_UNANSWERED * max(counts.examples, _LEAST_EXAMPLES):
    raise UserError(
      f"{where}: {counts.unanswered:,} of {counts.read} have no answer, more than the limit of "
      f"{MOST_UNANSWERED:.0%}. Correct the labels (-1 means no label), or remove these examples in the task with "
      "dataset.filter(lambda example: example['label'] >= 0)."
    )
  if draws_classes and len(counts.classes) == 1 and counts.examples >= _FEW_EXAMPLES:
    raise UserError(
      f"{where}: {counts.read} are of one class, because there is no other document to draw a second text from. "
      "Give more documents."
    )
  if writes:
    check_options(counts, vocabulary)


def check_options(counts: Counts, vocabulary: seqio.Vocabulary) -> None:
  """Refuses class texts that do not fit into the targets, if all examples have the same classes.

  Raises:
    UserError: names the longest text and the length that it needs.
  """
  limit = counts.limits.get("targets")
  lengths = {text: len(vocabulary.encode(text)) + 1 for text in counts.options or ()}
  if limit is None or not lengths:
    return
  longest = max(lengths, key=lengths.__getitem__)
  if lengths[longest] > limit:
    raise UserError(
      f"config.data.targets_length={limit}: the answer {longest!r} of {counts.task} has {lengths[longest]} "
      f"tokens with EOS, and would be cut. Set config.data.targets_length={lengths[longest]}."
    )


def notes(counts: Counts) -> list[str]:
  """Returns sentences on cut, unanswered, unknown or one-class examples."""
  sentences = cuts(counts)
  if counts.unanswered:
    sentences.append(
      f"{counts.task}: {counts.unanswered:,} of {counts.read} of split {counts.split!r} have no answer, and training"
      " leaves them out"
    )
  share = counts.unknown / max(counts.tokens, 1)
  if share:
    advice = ". The vocabulary lacks part of this text; another config.data.vocabulary may have it."
    sentences.append(
      f"{counts.task}: {_percent(share)} of the tokens of {counts.read} are unknown"
      + (advice if share > _MANY_UNKNOWN else "")
    )
  if len(counts.classes) == 1 and (counts.complete or counts.examples >= _FEW_EXAMPLES) and counts.examples > 1:
    sentences.append(
      f"{counts.task}: {counts.read} of split {counts.split!r} are of one class, {next(iter(counts.classes))!r}"
      + ("" if counts.complete else "; if its records are sorted by class, shuffle them")
    )
  return sentences


def cuts(counts: Counts) -> list[str]:
  """Returns sentences on features with cut texts."""
  return [
    f"{counts.task}: {name}: {_percent(number / counts.examples)} of {counts.read} are cut at {counts.limits[name]}"
    f" tokens; the longest has {counts.longest[name]} (config.data.{name}_length)"
    for name, number in counts.cut.items()
    if number
  ]


def _percent(share: float) -> str:
  """Formats a share. In: 0.714, 0.0213, 0.0004. Out: "71 %", "2.1 %", "0.04 %"."""
  percent = 100 * share
  return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"
