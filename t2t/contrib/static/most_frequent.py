"""The baseline that answers each example of a task with the most frequent class of the training examples."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t2t import UserError
from t2t.evaluation import few_shot, methods
from t2t.param_tree import Params
from t2t.runtime import data_packages

seqio = data_packages.lazy_module("seqio")

# Tasks without training examples -> the task whose models predict for them.
TRAINED_AS = {
  "super_glue_axb": "super_glue_rte",
  "super_glue_axg": "super_glue_rte",
  "glue_mnli_mismatched": "glue_mnli",
  "glue_ax": "glue_mnli",
}


def choose(train: Sequence[Mapping[str, Any]], example: Mapping[str, Any]) -> str:
  """Returns the answer to an example.

  With the same options in all examples, and without options, it is the most frequent target. With options that differ
  it is the one at the most frequent place; where their number differs, too, the one that the input names most often
  (ReCoRD). Ties go to the first.

  Args:
    train: training examples.
    example: the example to answer.
  """
  targets = [methods.text(x["targets_pretokenized"]) for x in train]
  options = [[methods.text(option) for option in x["options"]] for x in train if "options" in x]
  if not options or "options" not in example or all(of_example == options[0] for of_example in options):
    return collections.Counter(targets).most_common(1)[0][0]
  choices = [methods.text(option) for option in example["options"]]
  if {len(choices), *map(len, options)} == {len(choices)}:
    places = [of_example.index(target) for of_example, target in zip(options, targets, strict=True)]
    return choices[collections.Counter(places).most_common(1)[0][0]]
  text = methods.text(example["inputs_pretokenized"])
  return max(choices, key=text.count)


class MostFrequent:
  """Predicts without a model, as SuperGLUE's "Most Frequent" (Wang et al. 2019, table 3); see `choose`."""

  def __init__(self, context: methods.EvaluationContext):
    self._context, self.rule = context, {}

  def task(self, task: seqio.Task) -> seqio.Task:
    return task

  def check(self, task: seqio.Task, example: Mapping[str, Any]) -> None:
    """Refuses tasks with score metrics, because the baseline has no probabilities."""
    del example
    if task.score_metric_fns:
      raise UserError(
        f"{task.name}: the metrics need the log-likelihood of targets, but config.eval.method=most_frequent computes "
        "none. Name only other tasks in config.eval.tasks."
      )

  def inputs(self, task: seqio.Task, example: Mapping[str, Any]) -> Sequence[int]:
    del task, example
    return ()

  def answer(self, task: seqio.Task, examples: methods.Examples, params: Params, done: methods.Done) -> methods.Answers:
    """Returns the same answer to all examples, or the one at the same place of their options."""
    del params
    data = self._context.data
    trained = task if data.train_split in task.splits else seqio.TaskRegistry.get(self._trained_as(task))
    train = few_shot.read(data, self._context.config.architecture, trained, data.train_split)
    texts = [choose(train, example) for example in examples]
    if done is not None:
      done(len(examples), 0)
    return methods.Answers(texts, np.zeros(len(texts)), [()] * len(texts))

  @staticmethod
  def _trained_as(task: seqio.Task) -> str:
    if task.name not in TRAINED_AS:
      raise UserError(
        f"{task.name} has no training examples, so that it has no most frequent class. Name only other tasks in "
        "config.eval.tasks."
      )
    return TRAINED_AS[task.name]

  def log_likelihood(self, examples: methods.Examples, params: Params, done: methods.Done) -> np.ndarray:
    raise NotImplementedError("`check` refuses tasks with score metrics")
