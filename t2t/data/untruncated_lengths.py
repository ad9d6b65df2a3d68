"""Untruncated lengths: examples carry the lengths of their texts before cutting, so that cut texts can be counted."""

from collections.abc import Mapping
import functools
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t2t.data import registry

SUFFIX = "_uncut"
TEXTS = ("inputs", "targets")


def _cuts(step: Any) -> bool:
  return registry.function_of(step) is seqio.preprocessors.append_eos_after_trim


def measured(task: seqio.Task) -> seqio.Task:
  """Returns the task with a step that adds the number of tokens of each text before cutting, EOS included.

  In:  {"inputs": [5, 6, 7], "targets": [8]}                of a task whose next step cuts and adds EOS
  Out: {"inputs": [5, 6, 7], "targets": [8], "inputs_uncut": 4, "targets_uncut": 2}

  Args:
    task: stays unchanged; lengths from its own steps stay, too.
  """
  steps = list(task.preprocessors)
  cuts = [_cuts(step) for step in steps]
  cut_index = cuts.index(True) if any(cuts) else len(steps)
  texts = {name: feature for name, feature in task.output_features.items() if name in TEXTS and feature.rank == 1}

  def measure(dataset: tf.data.Dataset, ends: bool) -> tf.data.Dataset:
    spec = dataset.element_spec
    if not isinstance(spec, Mapping):
      return dataset
    is_list = lambda name: isinstance(spec.get(name), tf.TensorSpec) and spec[name].shape.rank == 1
    lacking = {name: ends and texts[name].add_eos for name in texts if is_list(name) and name + SUFFIX not in spec}
    if not lacking:
      return dataset
    count = lambda example, name: tf.size(example[name]) + int(lacking[name])
    return dataset.map(lambda example: {**example, **{name + SUFFIX: count(example, name) for name in lacking}})

  # A later step may drop unknown features.
  steps = [
    *steps[:cut_index],
    functools.partial(measure, ends=any(cuts)),
    *steps[cut_index:],
    functools.partial(measure, ends=False),
  ]
  return task.replace(preprocessors=steps)


def is_measured(dataset: tf.data.Dataset) -> bool:
  """Returns True if each text of the examples has its untruncated length."""
  spec = dataset.element_spec
  return isinstance(spec, Mapping) and all(name + SUFFIX in spec for name in TEXTS if name in spec)


def untrimmed(task: seqio.Task) -> seqio.Task:
  """Returns the task without cutting; for mixtures, which drop the features of `measured`."""
  uncut_step = lambda step: seqio.preprocessors.append_eos if _cuts(step) else step
  return task.replace(preprocessors=[uncut_step(step) for step in task.preprocessors])


def trimmed(
  example: Mapping[str, Any], lengths: Mapping[str, int], features: Mapping[str, seqio.Feature]
) -> dict[str, Any]:
  """Cuts an example of `untrimmed` as its task does, and adds the lengths of `measured`.

  Args:
    example: NumPy values.
    lengths: feature -> maximum number of tokens.
    features: features of the task.
  """
  cut_example = dict(example)
  for name in TEXTS:
    if np.ndim(example.get(name, 0)) == 1:
      ids, limit = example[name], lengths.get(name, np.shape(example[name])[0])
      cut_example[name + SUFFIX] = len(ids)
      if len(ids) > limit:
        ends = features[name].add_eos and ids[-1] == features[name].vocabulary.eos_id
        cut_example[name] = np.append(ids[: limit - 1], ids[-1:]) if ends else ids[:limit]
  return cut_example


def length(example: Mapping[str, Any], name: str) -> int:
  """Returns the number of tokens of a text before cutting, or its present length if unknown."""
  return int(example.get(name + SUFFIX, np.shape(example[name])[0]))
