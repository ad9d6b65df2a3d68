"""The baseline that answers each example of a task with the most frequent class of the training examples."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import operator
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import run_sources, sources
from t2t.data.head_examples import needs
from t2t.data.sources import named
from t2t.evaluation import few_shot, methods, results, task_metrics
from t2t.feature_spec import UNKNOWN
from t2t.param_tree import Params
from t2t.runtime import data_packages, hosts

if TYPE_CHECKING:  # imports this module
  from t2t.evaluation import evaluate

seqio = data_packages.lazy_module("seqio")
tf = data_packages.lazy_module("tensorflow")

# Tasks without training examples -> the task whose models predict for them.
TRAINED_AS = {
  "super_glue_axb": "super_glue_rte",
  "super_glue_axg": "super_glue_rte",
  "glue_mnli_mismatched": "glue_mnli",
  "glue_ax": "glue_mnli",
}
_FIELDS = ("targets", "label", "options", "classes")
NAME = "most_frequent"  # in config.eval.method and results.json

Example = Mapping[str, Any]


# ---- Answers ---------------------------------------------------------------------------------------------------------


class NoLabelsError(Exception):
  """A training split has no labelled examples."""


class MajorityRule:
  """Answers any example with the most frequent class of training examples; ties go to the first class that occurs.

  With "classes" (WSC) the class is the label, because the text of a class differs. With equal options, and without
  options, it is the target. With options that differ it is the place of the target. If their number differs, too, the
  answer does not depend on the training examples, see `most_alike` (ReCoRD).

  Args:
    train: training examples with the texts "targets" or "targets_pretokenized"; unlabelled ones do not count.

  Raises:
    NoLabelsError: there are no labelled examples.
  """

  def __init__(self, train: Iterable[Example]):
    targets: collections.Counter[str] = collections.Counter()
    labels: collections.Counter[int] = collections.Counter()
    places: collections.Counter[int] = collections.Counter()
    self._options: set[tuple[str, ...]] = set()
    sizes: set[int] = set()
    for example in train:
      target = methods.text(example.get("targets_pretokenized", example.get("targets", b"")))
      options = tuple(methods.text(option) for option in example.get("options", ()))
      label = np.asarray(example.get("label", 0))
      if target == UNKNOWN or (np.isnan(label) if np.issubdtype(label.dtype, np.floating) else label < 0):
        continue
      targets[target] += 1
      if "classes" in example:
        labels[int(label)] += 1
      if options:
        sizes.add(len(options))
        if len(self._options) < 2:  # only whether they are equal counts
          self._options.add(options)
        if target in options:
          places[options.index(target)] += 1
    if not targets:
      raise NoLabelsError
    self._target = _first_of(targets)
    self._label = _first_of(labels) if labels else None
    self._place = _first_of(places) if places and len(sizes) == 1 else None

  def fits(self, example: Example) -> bool:
    """Returns whether the rule can answer an example; a template has neither "classes" nor the task's own options."""
    is_constant = self._label is None and len(self._options) < 2
    return is_constant or not ("gold" in example or (self._label is not None and "classes" not in example))

  def __call__(self, example: Example) -> str:
    """Returns the answer to an example."""
    if self._label is not None:
      return methods.text(example["classes"][self._label])
    if len(self._options) < 2 or "options" not in example:
      return self._target
    options = [methods.text(option) for option in example["options"]]
    if self._place is not None and self._place < len(options):
      return options[self._place]
    return most_alike(tuple(options), methods.text(example.get("passage", example.get("inputs_pretokenized", b""))))


def _first_of(counts: collections.Counter) -> Any:
  return counts.most_common(1)[0][0]


@functools.lru_cache(maxsize=1)  # queries on one passage follow each other
def most_alike(entities: tuple[str, ...], passage: str) -> str:
  """Returns the entity with the highest sum of word F1 with the other mentions of entities in a passage.

  In:  ("Ann", "Ann Lee", "Bob"), "Ann Lee met Bob. Ann won."
  Out: "Ann"      1 for the mention in "Ann Lee", 2/3 for "Ann Lee" itself

  Source: Wang et al. 2019 (SuperGLUE), footnote 9.
  """
  mentions = [max(len(re.findall(rf"(?<!\w){re.escape(entity)}(?!\w)", passage)), 1) for entity in entities]
  normal = [task_metrics.normalize_answer(entity) for entity in entities]

  def likeness(number: int) -> float:
    overlaps = [task_metrics.word_f1(normal[number], other) for other in normal]
    return sum(map(operator.mul, mentions, overlaps)) - overlaps[number]

  return entities[max(range(len(entities)), key=likeness)]


def rule_of(data: DataConfig, architecture: str, trained: seqio.Task, *, name: str) -> MajorityRule:
  """Returns the rule of a task; reads the whole training split, without tokenization.

  Args:
    data: config of the data.
    architecture: of the model.
    trained: see `_trained_on`.
    name: of the task that is answered, for messages.

  Raises:
    UserError: there are no training examples, or they cannot be read.
  """
  if any(isinstance(step, seqio.CacheDatasetPlaceholder) for step in trained.preprocessors):
    examples: Iterable[Example] = few_shot.read(data, architecture, trained, data.train_split)
  else:
    records = trained.source.get_dataset(split=data.train_split, shuffle=False, seed=0)
    lengths = {"inputs": data.inputs_length, "targets": data.targets_length}
    kept = tf.autograph.experimental.do_not_convert(lambda x: {name: x[name] for name in _FIELDS if name in x})
    examples = needs.formatted(trained, records, lengths).map(kept).as_numpy_iterator()
  try:
    return MajorityRule(examples)
  except NoLabelsError:
    raise UserError(_without_training(name)) from None
  except tf.errors.OpError as error:
    raise sources.user_error(error) or error from None


def _trained_on(data: DataConfig, task: seqio.Task, name: str = "") -> seqio.Task:
  """Returns the task whose training examples count, as registered: without templates, and not made for heads.

  Args:
    data: config of the data.
    task: see `pipeline.find_tasks`.
    name: of the registered task, without the names of a template and of a draw of shots; "": that of `task`.

  Raises:
    UserError: neither the task nor the one that `TRAINED_AS` names has training examples.
  """
  if not name and data.templates:
    from t2t.data import templates

    name = templates.base_name(task)
  name = name or task.name
  registered = set(seqio.TaskRegistry.names())
  trained = run_sources.adapted(data, seqio.TaskRegistry.get(name)) if name in registered else task
  if data.train_split not in trained.splits and name in TRAINED_AS:
    trained = run_sources.adapted(data, seqio.TaskRegistry.get(TRAINED_AS[name]))
  if data.train_split not in trained.splits:
    raise UserError(_without_training(name))
  return trained


def _without_training(name: str) -> str:
  return (
    f"{name} has no training examples, so that it has no most frequent class. Name only other tasks in "
    "config.eval.tasks."
  )


# ---- As a method -----------------------------------------------------------------------------------------------------


class MostFrequent:
  """Predicts without a model, as SuperGLUE's "Most Frequent" (Wang et al. 2019, table 3); see `MajorityRule`."""

  def __init__(self, context: methods.EvaluationContext):
    self._context, self.rule = context, {}
    self._rules: dict[str, MajorityRule] = {}

  def task(self, task: seqio.Task) -> seqio.Task:
    return task

  def check(self, task: seqio.Task, example: Example) -> None:
    """Refuses tasks with score metrics, because the baseline has no probabilities, and tasks without training data."""
    if task.score_metric_fns:
      raise UserError(
        f"{task.name}: the metrics need the log-likelihood of targets, but config.eval.method=most_frequent computes "
        "none. Name only other tasks in config.eval.tasks."
      )
    data, architecture = self._context.data, self._context.config.architecture
    self._rules[task.name] = rule_of(data, architecture, _trained_on(data, task), name=task.name)
    if not self._rules[task.name].fits(example):
      raise UserError(
        f"{task.name}: config.eval.method=most_frequent cannot answer a template of this task, whose classes differ "
        "for each example. Leave out config.data.templates."
      )

  def inputs(self, task: seqio.Task, example: Example) -> Sequence[int]:
    del task, example
    return ()

  def answer(self, task: seqio.Task, examples: methods.Examples, params: Params, done: methods.Done) -> methods.Answers:
    """Returns the answer of the rule to each example."""
    del params
    texts = [self._rules[task.name](example) for example in examples]
    if done is not None:
      done(len(examples), 0)
    return methods.Answers(texts, np.zeros(len(texts)), [()] * len(texts))

  def log_likelihood(self, examples: methods.Examples, params: Params, done: methods.Done) -> np.ndarray:
    raise NotImplementedError("`check` refuses tasks with score metrics")


# ---- Beside a model --------------------------------------------------------------------------------------------------


def beside(
  evaluation: evaluate.Evaluation, data: DataConfig, architecture: str, task_results: Sequence[results.Result]
) -> list[results.Result]:
  """Adds the metrics of the baseline to the details of results of classes and numbers with local training examples.

  Results of other tasks are unchanged, and those of a task whose baseline fails, which is reported: the results of the
  model are complete without it. Uses no device.

  Args:
    evaluation: of the model.
    data: config of the data.
    architecture: of the model.
    task_results: of `evaluation`.
  """
  rules: dict[str, MajorityRule | None] = {}

  def with_baseline(result: results.Result) -> results.Result:
    task, examples = tasks[result.task]
    if not result.metrics or not _has_classes(task, examples[0]):
      return result
    try:
      if result.of_task not in rules:
        rules[result.of_task] = _local_rule(data, architecture, task, result.of_task)
      rule = rules[result.of_task]
      if rule is None or not rule.fits(examples[0]):
        return result
      baseline = evaluation.of_texts(task, [rule(example) for example in examples])
    except Exception as error:  # of a source, a preprocessor or a metric of the user
      rules[result.of_task] = None
      hosts.log_once(f"no baseline for {result.of_task}: {type(error).__name__}: {error}")
      return result
    record = {"metrics": dict(baseline.metrics), "score": baseline.score}
    return dataclasses.replace(result, details={**result.details, NAME: record})

  tasks = {task.name: (task, examples) for task, examples in evaluation.examples.items()}
  return [with_baseline(result) for result in task_results]


def _has_classes(task: seqio.Task, example: Example) -> bool:
  """Returns whether a task has classes, options or numbers as answers, and only metrics of answers."""
  if task.score_metric_fns or "tags" in example:
    return False
  return bool(task.predict_metric_fns) and ("label" in example or "options" in example)


def _local_rule(data: DataConfig, architecture: str, task: seqio.Task, name: str) -> MajorityRule | None:
  """Returns the rule of a task, or None if its training examples are not in a folder of released files."""
  try:
    trained = _trained_on(data, task, name)
  except UserError:  # there are no training examples
    return None
  source = named.unwrapped(trained.source)
  if not (isinstance(source, named.FolderSource) and source.folder):
    return None
  return rule_of(data, architecture, trained, name=task.name)
