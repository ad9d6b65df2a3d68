"""Converts seqio tasks to tasks that a head answers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from t2t.data import raw_text, task_resolution
from t2t.data.head_examples import needs
from t2t.data.head_examples.feature_converter import HeadFeatureConverter
from t2t.data.head_examples.kinds import ANSWER_FEATURES
from t2t.models.head_config import HeadConfig


def for_heads(
  provider: task_resolution.Provider, architecture: str, heads: Sequence[HeadConfig]
) -> task_resolution.Provider:
  """Returns the task or mixture with the features that a model with these heads reads.

  Args:
    provider: the task or mixture, in the model's vocabulary and with the user's files as its source.
    architecture: architecture of the model.
    heads: heads of the model, in their order.

  Raises:
    UserError: no head answers one of the tasks.
  """

  def answered(task: seqio.Task) -> seqio.Task:
    number, need = needs.head_of(task, heads)
    vocabulary = task.output_features["inputs"].vocabulary
    as_it_is = seqio.Feature(seqio.PassThroughVocabulary(0), add_eos=False)

    def convert(dataset: tf.data.Dataset, sequence_length: Mapping[str, int]) -> tf.data.Dataset:
      return HeadFeatureConverter(
        vocabulary,
        architecture,
        heads[number],
        sequence_length["inputs"],
        number=number,
        task=task.name,
        labels=need.labels,
        order=needs.order_of(heads[number], need),
      ).convert_dataset(dataset)

    features = {"inputs": seqio.Feature(vocabulary, add_eos=False)} | dict.fromkeys(ANSWER_FEATURES, as_it_is)
    answered_task = task.replace(preprocessors=[*needs.formats_of(task), convert], output_features=features)
    return raw_text.guarded(answered_task) if raw_text.is_guarded(task) else answered_task

  return task_resolution.copy(provider, answered, lambda rate: rate)


def gathered(examples: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
  """Yields one example per context, with its windows in the list "windows"; other examples are unchanged.

  In:  {"id": "a", "window": 0, ...}, {"id": "a", "window": 1, ...}, {"id": "b", "window": 0, ...}
  Out: {"id": "a", "windows": [{"window": 0, ...}, {"window": 1, ...}], ...}, {"id": "b", "windows": [...], ...}
  """
  last: dict[str, Any] | None = None
  for example in examples:
    if "window" in example and example["window"] > 0:
      last["windows"].append(example)
      continue
    if last is not None:
      yield last
    last = dict(example) | ({"windows": [example]} if "window" in example else {})
  if last is not None:
    yield last
