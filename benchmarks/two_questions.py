"""Tasks of `t2t study forgetting`: two questions about the same letters, with the same words as answers.

  colour things: k q d m r y b  ->  third     most of the things have the third colour
  shape things: k q d m r y b   ->  first     most of the things have the first shape

Things are letters; each has a fixed random colour and shape, out of four each. The first word selects the question, so
one model can answer both; training on the second alone gives no reason to keep the first. Tasks with the suffix
_held_out have no training examples: a mixture only evaluates them.
"""

import functools
import string

import numpy as np
import seqio
import tensorflow as tf

from t2t.data import postprocessors, preprocessors, vocabularies
from t2t.evaluation import task_metrics

QUESTIONS, KINDS = ("colour", "shape"), ("first", "second", "third", "fourth")
_THINGS, _SHOWN = np.array(list(string.ascii_lowercase)), 7  # in total, and in an example
_SIZES = {"train": 4_096, "validation": 256}
_TEXT = seqio.Feature(vocabularies.load("bytes", extra_ids=0), add_eos=True)


def _drawn(question: str, split: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns lines of things, and the most frequent kind of each; lines with ties are excluded."""
  of_thing = np.random.default_rng(QUESTIONS.index(question)).permutation(len(_THINGS)) % len(KINDS)
  random = np.random.default_rng(10 + list(_SIZES).index(split))
  drawn = random.integers(len(_THINGS), size=(4 * _SIZES[split], _SHOWN))
  counts = np.stack([np.sum(of_thing[drawn] == kind, axis=1) for kind in range(len(KINDS))], axis=1)
  top = np.sort(counts, axis=1)
  clear = np.flatnonzero(top[:, -1] > top[:, -2])[: _SIZES[split]]
  return np.array([" ".join(line) for line in _THINGS[drawn[clear]]]), np.argmax(counts[clear], axis=1)


def _dataset(split: str, shuffle_files: bool, seed: int | None = None, *, question: str) -> tf.data.Dataset:
  del shuffle_files, seed
  lines, labels = _drawn(question, split)
  return tf.data.Dataset.from_tensor_slices({"things": lines, "label": labels})


for _question in QUESTIONS:
  for _name, _splits in ((_question, tuple(_SIZES)), (f"{_question}_held_out", ("validation",))):
    seqio.TaskRegistry.add(
      _name,
      source=seqio.FunctionDataSource(
        functools.partial(_dataset, question=_question), splits=_splits, num_input_examples=_SIZES
      ),
      preprocessors=preprocessors.text_to_text(
        functools.partial(preprocessors.labelled, prefix=_question, fields=("things",), labels=KINDS)
      ),
      output_features={"inputs": _TEXT, "targets": _TEXT},
      postprocess_fn=postprocessors.label(KINDS),
      metric_fns=[task_metrics.accuracy],
    )

seqio.MixtureRegistry.add("colour_alone", [("colour", 1.0), ("shape_held_out", 1.0)])
seqio.MixtureRegistry.add("shape_alone", [("shape", 1.0), ("colour_held_out", 1.0)])
# A tenth of the examples is from the old task.
seqio.MixtureRegistry.add("shape_with_colour", [("shape", 0.9), ("colour", 0.1)])
