"""Task ids, from which a model reads the task of a text; see `adapters_lib.tasks`.

A task is a source of config.data.sources, by its name there, or a task of config.data.mixture. Its id is its index
among the names in the adapter's config, independent of the other data.
"""

from collections.abc import Collection, Mapping

import seqio
import tensorflow as tf

from t2t import UserError, feature_spec
from t2t.configuration.schema import DataConfig
from t2t.data import run_sources, task_resolution
from t2t.models import adapters as adapters_lib

Features = dict[str, tf.Tensor]


def check(
  data: DataConfig,
  adapters: adapters_lib.Adapters,
  provider: task_resolution.Provider | None,
  *,
  counted_tasks: Collection[str] | None = None,
) -> dict[str, int]:
  """Returns the id of each seqio task in the data; empty if the model has no task ids.

  Args:
    data: config of the data.
    adapters: adapters of the model.
    provider: all tasks of the data; None: only files.
    counted_tasks: seqio tasks to include; None: all.

  Raises:
    UserError: a task is not one of the model's, or files have no name.
  """
  known_tasks = adapters_lib.tasks(adapters)
  if not known_tasks:
    return {}
  key = f"config.{'/'.join(adapters)}.tasks={','.join(known_tasks)}"
  if len(known_tasks) > feature_spec.MOST_TASKS:
    raise UserError(
      f"config.{'/'.join(adapters)}.tasks has {len(known_tasks)} tasks, but at most {feature_spec.MOST_TASKS} are "
      "possible. Remove tasks."
    )
  source = run_sources.of(data)
  if provider is None:
    if len(known_tasks) > 1:
      raise UserError(
        f"{key} needs the name of the task, but config.data.files={source.title} has no task name. Give a named source "
        f"instead: --config.data.sources.{known_tasks[0]}.files={source.title}."
      )
    return {}
  return {
    task: adapters_lib.number_of(name, adapters, where=data.source_key(name) or f"{source.key}: {name}")
    for task, name in source.names_of(provider).items()
    if counted_tasks is None or task in counted_tasks
  }


def tell(provider: task_resolution.Provider, numbers: Mapping[str, int]) -> task_resolution.Provider:
  """Returns the task or mixture whose examples contain their task id.

  In:  {"inputs": [7, 8], "targets": [9]}, of the task with id 2
  Out: {"inputs": [7, 8], "targets": [9], "task_number": 2}

  Args:
    provider: stays unchanged.
    numbers: see `check`.
  """

  def numbered(task: seqio.Task) -> seqio.Task:
    number = numbers[task.name]

    def add(dataset: tf.data.Dataset) -> tf.data.Dataset:
      say: Features = {feature_spec.TASK: tf.constant(number, tf.int32)}
      return dataset.map(lambda example: example | say, num_parallel_calls=tf.data.AUTOTUNE)

    return task.replace(preprocessors=[*task.preprocessors, add])

  return task_resolution.copy(provider, numbered, lambda rate: rate)
