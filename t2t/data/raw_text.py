"""Raw text of records: letters that spell a control token stay text, while a task's format may write control tokens.

The record as its source yields it is the boundary. In pre-training objectives all text comes from the record. In a task
with its own format the record's letters are protected before the first preprocessor and restored after the last. So a
format may write <extra_id_0>, and a record with these letters has no sentinel.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t2t.data import objectives, registry, sources, task_resolution, vocabularies

_SAMPLE = 1000  # records


def guarded(provider: task_resolution.Provider) -> task_resolution.Provider:
  """Returns the task or mixture with letters of records as text; the registry stays unchanged."""
  return task_resolution.copy(provider, _guarded, lambda rate: rate)


def is_guarded(task: seqio.Task) -> bool:
  """Returns True if a task is a result of `guarded` whose records are protected."""
  return not all(map(is_own, task.preprocessors))


def is_own(step: Callable) -> bool:
  """Returns True if a preprocessor is registered with its task, rather than added by `guarded`."""
  return registry.function_of(step) not in STEPS


def _guarded(task: seqio.Task) -> seqio.Task:
  written = not _is_text_alone(task)
  encoder = vocabularies.as_formatted if written else vocabularies.as_text
  features = {
    name: dataclasses.replace(feature, vocabulary=encoder(feature.vocabulary))
    for name, feature in task.output_features.items()
  }
  steps = [step for step in task.preprocessors if is_own(step)]
  if written:
    steps = [protect_records, *steps, give_back]
  return task.replace(preprocessors=steps, output_features=features)


def _is_text_alone(task: seqio.Task) -> bool:
  """Returns True if no step adds to the text of the records: an objective behind known steps."""
  steps = [registry.function_of(step) for step in task.preprocessors]
  is_library_code = all(getattr(step, "__module__", "").split(".")[0] in ("t2t", "seqio") for step in steps)
  objective_names = objectives.of(task)
  return is_library_code and bool(objective_names) and not any(map(objectives.is_parallel, objective_names))


# ---- Steps -----------------------------------------------------------------------------------------------------------


def protect_records(dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
  """Protects the letters of records; see `vocabularies.protect`."""
  protect = vocabularies.protect([feature.vocabulary for feature in output_features.values()])
  return dataset if protect is None else _of_strings(dataset, protect)


def give_back(dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
  """Restores the letters in texts beside the tokens."""
  if vocabularies.protect([feature.vocabulary for feature in output_features.values()]) is None:
    return dataset
  return _of_strings(dataset, vocabularies.plain)


STEPS = (protect_records, give_back)


def _of_strings(dataset: tf.data.Dataset, change) -> tf.data.Dataset:
  def changed(x: Any) -> Any:
    if x.dtype != tf.string:
      return x
    return x.with_flat_values(change(x.flat_values)) if isinstance(x, tf.RaggedTensor) else change(x)

  strings = [spec for spec in tf.nest.flatten(dataset.element_spec) if getattr(spec, "dtype", None) == tf.string]
  if not strings:
    return dataset
  single = not isinstance(dataset.element_spec, tuple)
  return dataset.map(
    tf.autograph.experimental.do_not_convert(
      lambda *parts: tf.nest.map_structure(changed, parts[0] if single else parts)
    ),
    num_parallel_calls=tf.data.AUTOTUNE,
  )


# ---- Content of the text ---------------------------------------------------------------------------------------------


def spelled(task: task_resolution.Provider, *, split: str) -> dict[str, int]:
  """Counts the control tokens that the first 1,000 records of each task spell, by name, most frequent first."""
  counts: dict[str, int] = {}
  for subtask in task_resolution.tasks_of(task):
    if split in subtask.splits:
      if type(subtask.source) is sources.FileSource:  # other kinds have their own records
        records = subtask.source.texts(split)
      else:
        records = subtask.source.get_dataset(split=split, shuffle=False, seed=0).as_numpy_iterator()
      texts = texts_of(itertools.islice(records, _SAMPLE))
      for name, number in count(subtask, texts).items():
        counts[name] = counts.get(name, 0) + number
  return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def count(task: seqio.Task, texts: Sequence[str]) -> dict[str, int]:
  """Counts the control tokens of a task's vocabularies in texts; see `vocabularies.count_control_tokens`."""
  all_vocabularies = [feature.vocabulary for feature in task.output_features.values()]
  distinct = [
    vocabulary for index, vocabulary in enumerate(all_vocabularies) if vocabulary not in all_vocabularies[:index]
  ]
  counts: dict[str, int] = {}
  for vocabulary in distinct:
    counts = {**vocabularies.count_control_tokens(vocabulary, texts), **counts}
  return counts


def texts_of(records) -> list[str]:
  """Returns the texts of records, from all their fields."""

  def texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
      return [text for item in value.values() for text in texts(item)]
    if isinstance(value, bytes):
      return [value.decode(errors="replace")]
    if isinstance(value, tuple | list):
      return [text for item in value for text in texts(item)]
    if isinstance(value, np.ndarray) and value.dtype == object:
      return [text for item in value.reshape(-1) for text in texts(item)]
    if hasattr(value, "flat_values"):
      return texts(np.asarray(value.flat_values))
    return []

  return [text for record in records for text in texts(record)]


def encode_again(vocabulary: seqio.Vocabulary, text: str, ids: Sequence[int]) -> list[int]:
  """Returns the ids of a text of an example, or of part of it, joined with others.

  Args:
    vocabulary: vocabulary of the text and the ids.
    text: text of the example.
    ids: ids of the example. Control tokens among them come from the task's format, so the text spells them.
  """
  has_control = bool(set(vocabularies.control_tokens_of(vocabulary).values()) & {int(i) for i in ids})
  return vocabularies.encode_text(vocabulary, text, special_tokens="all" if has_control else "none")


def spelled_note(counts: Mapping[str, int], *, special_tokens: bool) -> str:
  """Describes the control tokens that records spell, and how they are read."""
  statement = f"the first {_SAMPLE:,} records of each task spell {described(counts)}"
  if special_tokens:
    return f"{statement}, read as control tokens; set config.data.special_tokens=False to read them as text"
  return f"{statement}, read as text; set config.data.special_tokens=True to read them as control tokens"


def described(counts: Mapping[str, int], *, most: int = 5) -> str:
  """Lists the first names with their counts: "[PAD] 12, [MASK] 3, 4 others"."""
  listed = [f"{name} {number:,}" for name, number in list(counts.items())[:most]]
  return ", ".join(listed + ([f"{len(counts) - most} others"] if len(counts) > most else []))
