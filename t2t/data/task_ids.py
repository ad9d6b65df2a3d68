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
  found: task_resolution.Found | None,
  *,
  asked: Collection[str] | None = None,
) -> dict[str, int]:
  """Number of each of seqio's tasks that are read; none where the model is told of no task.

  Args:
    data: what is read.
    adapters: of the model.
    found: all of what is read; None: files alone.
    asked: those of seqio's tasks that count; None: all.

  Raises:
    UserError: one that is none of the model's tasks; or files without a name.
  """
  known = adapters_lib.tasks(adapters)
  if not known:
    return {}
  key = f"config.{'/'.join(adapters)}.tasks={','.join(known)}"
  if len(known) > feature_spec.MOST_TASKS:
    raise UserError(f"config.{'/'.join(adapters)}.tasks: {len(known)} tasks; there may be {feature_spec.MOST_TASKS}")
  source = run_sources.of(data)
  if found is None:
    if len(known) > 1:
      raise UserError(
        f"{key}: config.data.files={source.title} has no name by which it is one of them; give config.data.sources in"
        f" its place, as --config.data.sources.{known[0]}.files={source.title}"
      )
    return {}
  return {
    task: adapters_lib.number_of(name, adapters, where=data.source_key(name) or f"{source.key}: {name}")
    for task, name in source.names_of(found).items()
    if asked is None or task in asked
  }


def tell(found: task_resolution.Found, numbers: Mapping[str, int]) -> task_resolution.Found:
  """The task or mixture whose examples say of which task they are.

  In:  {"inputs": [7, 8], "targets": [9]}, of the task that has number 2
  Out: {"inputs": [7, 8], "targets": [9], "task_number": 2}

  Args:
    found: stays as it is.
    numbers: see `check`.
  """

  def told(task: seqio.Task) -> seqio.Task:
    number = numbers[task.name]

    def add(dataset: tf.data.Dataset) -> tf.data.Dataset:
      say: Features = {feature_spec.TASK: tf.constant(number, tf.int32)}
      return dataset.map(lambda example: example | say, num_parallel_calls=tf.data.AUTOTUNE)

    return task.replace(preprocessors=[*task.preprocessors, add])

  return task_resolution.copy(found, told, lambda rate: rate)
