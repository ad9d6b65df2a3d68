"""Numbers of tasks, by which a model reads which task a text is of; see `adapters_lib.tasks`.

A task is a source of config.data.sources, by its name there, or else one of those of config.data.mixture.  Its number
is its place among the names that the config of the adapter has, whatever is read beside it.
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
  """Number of each of seqio's tasks that are read; none where the model is told of no task.

  Args:
    data: what is read.
    adapters: of the model.
    provider: all of what is read; None: files alone.
    counted_tasks: those of seqio's tasks that count; None: all.

  Raises:
    UserError: one that is none of the model's tasks; or files without a name.
  """
  known_tasks = adapters_lib.tasks(adapters)
  if not known_tasks:
    return {}
  key = f"config.{'/'.join(adapters)}.tasks={','.join(known_tasks)}"
  if len(known_tasks) > feature_spec.MOST_TASKS:
    raise UserError(
      f"config.{'/'.join(adapters)}.tasks: {len(known_tasks)} tasks; there may be {feature_spec.MOST_TASKS}"
    )
  source = run_sources.of(data)
  if provider is None:
    if len(known_tasks) > 1:
      raise UserError(
        f"{key}: config.data.files={source.title} has no name by which it is one of them; give config.data.sources in"
        f" its place, as --config.data.sources.{known_tasks[0]}.files={source.title}"
      )
    return {}
  return {
    task: adapters_lib.number_of(name, adapters, where=data.source_key(name) or f"{source.key}: {name}")
    for task, name in source.names_of(provider).items()
    if counted_tasks is None or task in counted_tasks
  }


def tell(provider: task_resolution.Provider, numbers: Mapping[str, int]) -> task_resolution.Provider:
  """The task or mixture whose examples say of which task they are.

  In:  {"inputs": [7, 8], "targets": [9]}, of the task that has number 2
  Out: {"inputs": [7, 8], "targets": [9], "task_number": 2}

  Args:
    provider: stays as it is.
    numbers: see `check`.
  """

  def numbered(task: seqio.Task) -> seqio.Task:
    number = numbers[task.name]

    def add(dataset: tf.data.Dataset) -> tf.data.Dataset:
      say: Features = {feature_spec.TASK: tf.constant(number, tf.int32)}
      return dataset.map(lambda example: example | say, num_parallel_calls=tf.data.AUTOTUNE)

    return task.replace(preprocessors=[*task.preprocessors, add])

  return task_resolution.copy(provider, numbered, lambda rate: rate)
