"""Objectives of a decoder with an attention mask per row: bidirectional masked tokens, or left-to-right text.

Both yield the same features, so one run can mix them as sources on the same files, with rows of both in one batch
(GPT-BERT, Charpentier & Samuel 2024). "inputs" are shifted right by one, after BOS, so the state at each position
predicts the next token, masked or not yet read.
"""

from collections.abc import Mapping, Sequence

import seqio
import tensorflow as tf

from t2t.data import vocabularies
from t2t.data.objectives import chunking, masking

Features = dict[str, tf.Tensor]


def masked_next_token(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  noise_density: float = 0.15,
  mask_rate: float = 0.8,
  random_rate: float = 0.1,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Masks some tokens in bidirectional text; the state before a masked token predicts it.

  In:  {"targets": [3, 4, 5, 6, 1]}         with 99 as mask and EOS 1
  Out: {"inputs": [3, 99, 5, 6, 1], "targets": [3, 4, 5, 6, 1], "loss_weights": [0, 1, 0, 0, 0],
        "both_ways": [1, 1, 1, 1, 1]}       read as [BOS, 3, 99, 5, 6], where the state of 3 predicts 4

  80 % of the chosen tokens become masks, 10 % random tokens, and 10 % stay, as in `masking.masked_lm`. The model needs
  config.model.bidirectional_prefix.

  Args:
    dataset: {"targets": int32 [n]}, documents with EOS.
    sequence_length: maximum length of "targets" and of all other features.
    output_features: "targets" has the vocabulary.
    noise_density: fraction of text tokens to mask.
    mask_rate, random_rate: see `masking.replace`.
    merge_documents: see `causal_lm`; EOS separates documents.

  Raises:
    UserError: the vocabulary has neither a mask nor sentinels.

  Source: Charpentier & Samuel 2024 (GPT-BERT), section 2; BehnamGhader et al. 2024 (LLM2Vec), section 2.1.
  """
  vocabulary = output_features["targets"].vocabulary
  mask_id, ordinary_ids = vocabularies.mask_id(vocabulary), vocabularies.ordinary_ids(vocabulary)
  replacement = {"mask_id": mask_id, "ordinary_ids": ordinary_ids, "mask_rate": mask_rate, "random_rate": random_rate}
  dataset = _cut(dataset, sequence_length, merge_documents=merge_documents)

  @seqio.map_over_dataset(num_seeds=2)
  def hide(features: Features, seeds: Sequence[tf.Tensor]) -> Features:
    tokens = features["targets"]
    candidates = masking.is_one_of(tokens, ordinary_ids)
    chosen, groups = masking.random_tokens(candidates, candidates, seeds[0], noise_density=noise_density)
    inputs = masking.replace(tokens, chosen, groups, seeds[1], **replacement)
    weights, both_ways = tf.cast(chosen, tf.int32), tf.ones_like(tokens)
    return {"inputs": inputs, "targets": tokens, "loss_weights": weights, "both_ways": both_ways}

  return hide(dataset)


def next_token(
  dataset: tf.data.Dataset, sequence_length: Mapping[str, int], *, merge_documents: bool = True
) -> tf.data.Dataset:
  """Formats `causal_lm` as rows that can be mixed with rows of `masked_next_token`.

  In:  {"targets": [3, 4, 5, 6, 1]}
  Out: {"inputs": [3, 4, 5, 6, 1], "targets": [3, 4, 5, 6, 1], "loss_weights": [1, 1, 1, 1, 1],
        "both_ways": [0, 0, 0, 0, 0]}

  Args: see `masked_next_token`.
  """

  def beside(features: Features) -> Features:
    tokens = features["targets"]
    ones, zeros = tf.ones_like(tokens), tf.zeros_like(tokens)
    return {"inputs": tokens, "targets": tokens, "loss_weights": ones, "both_ways": zeros}

  dataset = _cut(dataset, sequence_length, merge_documents=merge_documents)
  return dataset.map(beside, num_parallel_calls=tf.data.AUTOTUNE)


def _cut(dataset: tf.data.Dataset, sequence_length: Mapping[str, int], *, merge_documents: bool) -> tf.data.Dataset:
  length = chunking.room(sequence_length, {"targets": 0})
  return chunking.cut(dataset, length=length, merge_documents=merge_documents, whole_documents=True)
