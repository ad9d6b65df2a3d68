"""Default features: fills in features that follow from a task's other features, so that tasks can be mixed."""

from collections.abc import Callable, Mapping, Sequence

import seqio
import tensorflow as tf

from t2t.data import feature_converters, vocabularies

Features = dict[str, tf.Tensor]


def _places(tokens: tf.Tensor, sep_id: int | None) -> tf.Tensor:
  del sep_id
  return tf.range(tf.size(tokens))


# Feature -> the feature that it follows from, and the function that computes it: the model's default without the
# feature.
_FOLLOWS: dict[str, tuple[str, Callable[[tf.Tensor, int | None], tf.Tensor]]] = {
  "input_places": ("inputs", _places),
  "input_ranks": ("inputs", lambda tokens, sep_id: tf.zeros_like(tokens)),
  "target_places": ("targets", _places),
  "token_types": ("targets", feature_converters.token_types),
}


def alike(tasks: Sequence[seqio.Task], languages: Mapping[str, Sequence[int]] | None = None) -> list[seqio.Task]:
  """Returns the tasks with equal features, if each missing one follows from the others; otherwise the tasks unchanged.

  Beside a task with examples {"input_places": [0, 1, 2, 0, 1], "token_types": [0, 0, 0, 1, 1]}: In:  {"inputs": [101,
  3, 99, 102], "targets": [101, 3, 4, 102], "loss_weights": [0, 0, 1, 0]} Out: with it {"input_places": [0, 1, 2, 3],
  "token_types": [0, 0, 0, 0]}

  Args:
    tasks: tasks with different names.
    languages: task name -> the token type of its texts, and for translations a second one; other tasks keep their
      types.
  """
  known_features = {name: feature for task in tasks for name, feature in task.output_features.items()}
  lacking = {task.name: [name for name in known_features if name not in task.output_features] for task in tasks}
  for task in tasks:
    if any(name not in _FOLLOWS or _FOLLOWS[name][0] not in task.output_features for name in lacking[task.name]):
      return list(tasks)
  filled_tasks = [_with(task, {name: known_features[name] for name in lacking[task.name]}) for task in tasks]
  return [
    _with_languages(task, languages[task.name]) if task.name in (languages or {}) else task for task in filled_tasks
  ]


def _with(task: seqio.Task, added: Mapping[str, seqio.Feature]) -> seqio.Task:
  """Returns a task with additional features."""
  if not added:
    return task
  targets = task.output_features["targets"] if "targets" in task.output_features else task.output_features["inputs"]
  sep_id = vocabularies.sep_id(targets.vocabulary)

  def fill(dataset: tf.data.Dataset) -> tf.data.Dataset:
    def filled(features: Features) -> Features:
      rules = {name: _FOLLOWS[name] for name in added}
      return features | {name: tf.cast(make(features[of], sep_id), tf.int32) for name, (of, make) in rules.items()}

    return dataset.map(filled, num_parallel_calls=tf.data.AUTOTUNE)

  return task.replace(preprocessors=[*task.preprocessors, fill], output_features={**task.output_features, **added})


def _with_languages(task: seqio.Task, languages: Sequence[int]) -> seqio.Task:
  """Returns a task with languages as token types.

  In:  {"token_types": [0, 0, 0, 1, 1]}, languages [2, 0]; [0, 0, 1], languages [4]
  Out: {"token_types": [2, 2, 2, 0, 0]}; [4, 4, 4]
  """
  table = [languages[0], languages[-1]]

  def tell(dataset: tf.data.Dataset) -> tf.data.Dataset:
    def with_languages(features: Features) -> Features:
      return features | {"token_types": tf.gather(tf.constant(table, tf.int32), features["token_types"])}

    return dataset.map(with_languages, num_parallel_calls=tf.data.AUTOTUNE)

  return task.replace(preprocessors=[*task.preprocessors, tell])
