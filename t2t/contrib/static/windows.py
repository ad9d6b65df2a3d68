"""Objectives of word2vec: words of a text, thinned out, each with the distance up to which others are its context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
from typing import Any

from absl import logging
import numpy as np

from t2t import UserError
from t2t.contrib.static import word_counts
from t2t.data.objectives import chunking
from t2t.runtime import data_packages

seqio, tf = data_packages.lazy_module("seqio"), data_packages.lazy_module("tensorflow")

Features = dict[str, Any]  # tensors


def check(window: int, subsampling: float) -> None:
  """Checks the settings of the objectives.

  Raises:
    UserError: a number is out of range.
  """
  if window < 1:
    raise UserError(
      f"config.data.window={window}: a word needs context, so that the window must be 1 or more (word2vec uses 5). Set "
      "config.data.window=5."
    )
  if not 0 <= subsampling < 1:
    raise UserError(
      f"config.data.subsampling={subsampling}: must be at least 0 and below 1 (word2vec uses 1e-5, and 0 keeps all "
      "words). Set config.data.subsampling=1e-5."
    )


def pair_counts(windows: tf.Tensor) -> tf.Tensor:
  """Returns the number of context words of each word of one text, int32 [length].

  In:  [1, 2, 1]
  Out: [1, 2, 1]
  """
  size = tf.size(windows)
  places = tf.range(size)
  return tf.minimum(places, windows) + tf.minimum(size - 1 - places, windows)


def windows(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  predicts_each: bool,
  window: int = 5,
  subsampling: float = 1e-5,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Drops unknown words and frequent ones at random, cuts the rest into chunks, and draws a window for each word.

  In:  {"targets": [3, 4, 5, 6]}            with window 2, of which 1, 2, 2, 1 are drawn
  Out: {"inputs": [3, 4, 5, 6], "targets": [3, 4, 5, 6], "loss_weights": [1, 3, 3, 1], "windows": [1, 2, 2, 1]}

  The windows are uniform on 1 to `window`. The loss weights are the numbers of predictions: one for each context word
  (skip-gram), or one for each word with context (CBOW).

  Args:
    dataset: {"targets": int32 [n]} without EOS.
    sequence_length: maximum length of "inputs" and of all other features.
    output_features: "targets" has the vocabulary. Without counts of its words none are dropped for their frequency.
    predicts_each: whether a word is predicted from each context word, not from their mean.
    window: largest distance of a context word.
    subsampling: threshold t of word2vec; 0: no word is dropped for its frequency.
    merge_documents: whether windows cross the ends of documents, as in a text of one line.

  Raises:
    UserError: a number is out of range.

  Source: Mikolov et al. 2013a, section 3; Mikolov et al. 2013b, section 2.3; word2vec.c.
  """
  check(window, subsampling)
  vocabulary = output_features["targets"].vocabulary
  keep = _keep(vocabulary, subsampling)

  @seqio.map_over_dataset(num_seeds=1)
  def thin(features: Features, seed: tf.Tensor) -> Features:
    tokens = features["targets"]
    drawn = tf.random.stateless_uniform(tf.shape(tokens), seed)
    return {"targets": tf.boolean_mask(tokens, drawn < tf.gather(keep, tokens))}

  @seqio.map_over_dataset(num_seeds=1)
  def with_windows(features: Features, seed: tf.Tensor) -> Features:
    tokens = features["targets"]
    drawn = tf.random.stateless_uniform(tf.shape(tokens), seed, 1, window + 1, tf.int32)
    numbers = pair_counts(drawn)
    weights = numbers if predicts_each else tf.minimum(numbers, 1)
    return {"inputs": tokens, "targets": tokens, "loss_weights": weights, "windows": drawn}

  has_context = lambda features: tf.size(features["targets"]) > 1
  length = chunking.room(sequence_length, {"inputs": 0}, shortest=2)
  dataset = thin(dataset).filter(lambda features: tf.size(features["targets"]) > 0)
  dataset = chunking.cut(dataset, length=length, merge_documents=merge_documents, whole_documents=True)
  return with_windows(dataset.filter(has_context))


skip_gram = functools.partial(windows, predicts_each=True)
cbow = functools.partial(windows, predicts_each=False)


def _keep(vocabulary: seqio.Vocabulary, subsampling: float) -> np.ndarray:
  """Returns the probability of keeping each id, float32 [vocab_size]; 0 for unknown words."""
  counts = word_counts.of_vocabulary(vocabulary)
  if counts is None:
    if subsampling:
      logging.warning(
        "the vocabulary has no counts of words, so that no word is dropped for its frequency: `t2t vocab train --type "
        "word` writes a vocabulary with counts"
      )
    keep = np.ones(vocabulary.vocab_size, np.float32)
  else:
    keep = word_counts.keep_probabilities(counts, subsampling)
    keep = np.pad(keep, (0, max(0, vocabulary.vocab_size - len(keep))), constant_values=1.0)
  if vocabulary.unk_id is not None:
    keep[vocabulary.unk_id] = 0.0
  return keep


def contexts(tokens: Sequence[int], drawn: Sequence[int]) -> list[tuple[int, int]]:
  """Lists the pairs (word, context word) of one text, for tests and documents.

  In:  [3, 4, 5], windows [1, 1, 2]
  Out: [(3, 4), (4, 3), (4, 5), (5, 3), (5, 4)]
  """
  return [
    (word, tokens[other])
    for place, (word, reach) in enumerate(zip(tokens, drawn, strict=True))
    for other in range(max(0, place - reach), min(len(tokens), place + reach + 1))
    if other != place
  ]
