"""Lengths of a mixture's longest examples, for whoever leaves them open as T5X's evaluation does."""

from collections.abc import Sequence
import itertools

from ml_collections import ConfigDict

from t2t.configuration.loading import records
from t2t.data import pipeline, registry
from t2t.evaluation import evaluate


def adopt(config: ConfigDict, architecture: str, *, typed: Sequence[str]) -> None:
  """Makes config.data.inputs_length and targets_length those of the longest examples that are evaluated.

  Args:
    config: its mixture, split and tasks count.
    architecture: of the model.
    typed: the command line, which has the last word.

  Raises:
    UserError: see `evaluate.find_tasks`.
  """
  keys = [f"{side}_length" for side in ("inputs", "targets")]
  found = records(config)
  for module in found.data.task_modules:
    registry.load(module)
  longest = dict.fromkeys(keys, 1)
  for task in evaluate.find_tasks(found.data, architecture, found.eval.tasks):
    split = task.splits[0] if len(task.splits) == 1 else found.data.eval_split
    examples = pipeline.task_examples(found.data, architecture, task, split=split, trim=False).as_numpy_iterator()
    for example in itertools.islice(examples, found.eval.max_examples or None):
      for key in keys:
        longest[key] = max(longest[key], len(example.get(key.partition("_")[0], ())))
  for key in keys:
    if not any(argument.partition("=")[0] == f"--config.data.{key}" for argument in typed):
      config.data[key] = longest[key]
