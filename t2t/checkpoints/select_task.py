"""Selects one task of a checkpoint with task-specific parameters (config.pals)."""

import dataclasses

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.models import adapters as adapters_lib


def choose(source: pretrained.Source, task: str, *, where: str) -> pretrained.Source:
  """Returns the checkpoint as the model of one of its tasks.

  Args:
    source: any checkpoint.
    task: its name; "": none, which is valid if there are not several.
    where: the option of the name, for messages.

  Raises:
    UserError: the name is unknown, or is missing although there are several.
  """
  known = adapters_lib.tasks(source.adapters)
  if not task and source.tasks:
    raise UserError(
      f"{where} is missing: the model of {source.name} has task-specific parameters. Give one of: {', '.join(known)}."
    )
  if task and not known:
    return _with_prefix(source, task, where)
  if task:
    adapters_lib.number_of(task, source.adapters, where=f"{where} {task}")
  return dataclasses.replace(source, task=task)


def _with_prefix(source: pretrained.Source, task: str, where: str) -> pretrained.Source:
  """Returns the checkpoint with the input prefix of one of its fine-tuning tasks."""
  trained = pretrained.trained_tasks(source)
  names = [candidate.name for candidate in trained if candidate.name == task] or [
    candidate.name for candidate in trained if candidate.name.endswith(f"_{task}")
  ]
  if len(names) == 1:
    return dataclasses.replace(source, prefix_task=names[0])
  if trained:
    listed = ", ".join(candidate.name for candidate in trained)
    raise UserError(f"{where} {task}: the model of {source.name} was not trained on this task. Give one of: {listed}.")
  raise UserError(f"{where} {task}: the model of {source.name} has no task-specific parameters. Leave the task out.")


def split_by_task(source: pretrained.Source) -> dict[str, pretrained.Source]:
  """Returns the checkpoint as a model for each of its tasks, by name; {} if there are not several."""
  return {task: dataclasses.replace(source, task=task) for task in source.tasks}
