"""Examples of tasks as models with heads read them: seqio tasks in place of those that are answered in writing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from t2t.data import raw_text, task_resolution
from t2t.data.head_examples import needs
from t2t.data.head_examples.feature_converter import HeadFeatureConverter
from t2t.data.head_examples.kinds import ANSWER_FEATURES
from t2t.models.config import HeadConfig


def for_heads(
  provider: task_resolution.Provider, architecture: str, heads: Sequence[HeadConfig]
) -> task_resolution.Provider:
  """The task or mixture whose examples are what a model with these heads reads, and what they are asked.

  Args:
    provider: in the vocabulary of the model, read from the user's files.
    architecture: of the model.
    heads: its own, in their order.

  Raises:
    UserError: a task that none of them answers.
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
  """One example for all windows of a context, which it has as "windows"; other examples as they are.

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
