"""Checkpoints whose model tells tasks apart (config.pals), as the models of one task each that they are."""

import dataclasses

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.models import adapters as adapters_lib


def choose(source: pretrained.Source, task: str, *, where: str) -> pretrained.Source:
  """The checkpoint as the model of one of its tasks.

  Args:
    source: any checkpoint.
    task: its name; "": none was named, which does where there are not several.
    where: how the user names it, for messages.

  Raises:
    UserError: there is none of that name, or none was named of several.
  """
  known = adapters_lib.tasks(source.adapters)
  if not task and source.tasks:
    raise UserError(
      f"{where} is missing: the model of {source.path} tells tasks apart, and must be told which one a text is of; give"
      f" one of {', '.join(known)}"
    )
  if task and not known:
    return _with_prefix(source, task, where)
  if task:
    adapters_lib.number_of(task, source.adapters, where=f"{where} {task}")
  return dataclasses.replace(source, task=task)


def _with_prefix(source: pretrained.Source, task: str, where: str) -> pretrained.Source:
  """The checkpoint, whose inputs get the prefix of one of the tasks that it was fine-tuned on."""
  trained = pretrained.trained_tasks(source)
  names = [candidate.name for candidate in trained if candidate.name == task] or [
    candidate.name for candidate in trained if candidate.name.endswith(f"_{task}")
  ]
  if len(names) == 1:
    return dataclasses.replace(source, prefix_task=names[0])
  if trained:
    listed = ", ".join(candidate.name for candidate in trained)
    raise UserError(f"{where} {task}: the model of {source.path} was trained on {listed}; give one of them")
  raise UserError(f"{where} {task}: the model of {source.path} tells no tasks apart; leave it out")


def split_by_task(source: pretrained.Source) -> dict[str, pretrained.Source]:
  """The checkpoint as the model of each of its tasks, by name; none where it need not be told of them."""
  return {task: dataclasses.replace(source, task=task) for task in source.tasks}
