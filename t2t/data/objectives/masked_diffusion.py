"""Masked diffusion: tokens are masked at a random noise level, and predicted with weight 1 / level.

A level is an integer from 1 to `feature_spec.NOISE_UNITS`, which stands for the probability t = level / NOISE_UNITS of
masking a token. It is drawn uniformly for each example (or block of an example) from the example's own seed. So t is
uniform on (0, 1] in steps of a millionth, and each masking probability is exact.
"""

from collections.abc import Mapping, Sequence

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import special_tokens, vocabularies
from t2t.data.objectives import chunking
from t2t.feature_spec import NOISE_UNITS

Features = dict[str, tf.Tensor]


def noise(
  tokens: tf.Tensor, noised: tf.Tensor, seeds: Sequence[tf.Tensor], *, mask_id: int, block: tf.Tensor | None = None
) -> Features:
  """Masks each token independently, with the probability of its level.

  In:  tokens [3, 4, 5, 6, 1], noised [F, F, T, T, T], mask_id 99, level 524288 drawn (t = 1/2)
  Out: {"inputs": [3, 4, 99, 6, 99], "targets": [3, 4, 5, 6, 1], "loss_weights": [0, 0, 1, 0, 1],
        "noise_levels": [0, 0, 524288, 524288, 524288], "both_ways": [1, 1, 1, 1, 1]}

  Args:
    tokens: int32 [length].
    noised: bool [length]; the other tokens are given, and have level 0.
    seeds: two of int [2], stateless.
    mask_id: id of the mask.
    block: index of each token's block, int32 [length], from 0; each block has its own level. None: one block.

  Source: Sahoo et al. 2024 (MDLM), section 3; Nie et al. 2025 (LLaDA), section 2.1.
  """
  size = tf.size(tokens)
  block = tf.zeros_like(tokens) if block is None else block
  levels = tf.random.stateless_uniform([size], seeds[0], 1, NOISE_UNITS + 1, tf.int32)
  levels = tf.where(noised, tf.gather(levels, block), 0)
  masked = tf.random.stateless_uniform([size], seeds[1], 0, NOISE_UNITS, tf.int32) < levels
  return {
    "inputs": tf.where(masked, mask_id, tokens),
    "targets": tokens,
    "loss_weights": tf.cast(masked, tf.int32),
    "noise_levels": levels,
    "both_ways": tf.ones_like(tokens),
  }


def _check_lengths(sequence_length: Mapping[str, int]) -> None:
  if sequence_length["targets"] < sequence_length["inputs"]:
    raise UserError(
      f"config.data.targets_length={sequence_length['targets']} is too short: masked diffusion needs one target per "
      f"input. Set config.data.targets_length={sequence_length['inputs']}."
    )


def masked_diffusion(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Masks every token of a chunk with probability t, drawn for the chunk; predicted tokens are those of `causal_lm`.

  In:  {"targets": [3, 4, 5, 6, 1]}         with 99 as mask and EOS 1, t = 1/2 drawn
  Out: {"inputs": [3, 99, 5, 6, 99], "targets": [3, 4, 5, 6, 1], "loss_weights": [0, 1, 0, 0, 1],
        "noise_levels": [524288, 524288, 524288, 524288, 524288], "both_ways": [1, 1, 1, 1, 1]}

  An encoder predicts each masked token at its place; a decoder from the state before it, as `masked_next_token`.
  config.train.loss=diffusion weights each with 1 / t.

  Args:
    dataset: {"targets": int32 [n]}, documents with EOS, which is masked like any token.
    sequence_length: maximum length of "inputs" and of all other features.
    output_features: "targets" has the vocabulary.
    merge_documents: see `causal_lm`; EOS separates documents.

  Raises:
    UserError: lengths do not fit, or the vocabulary has neither a mask nor sentinels.

  Source: Sahoo et al. 2024 (MDLM), equation 11; Nie et al. 2025 (LLaDA), equation 3.
  """
  mask_id = vocabularies.mask_id(output_features["targets"].vocabulary)
  _check_lengths(sequence_length)
  length = chunking.room(sequence_length, {"inputs": 0})
  dataset = chunking.cut(dataset, length=length, merge_documents=merge_documents, whole_documents=True)

  @seqio.map_over_dataset(num_seeds=2)
  def corrupt(features: Features, seeds: Sequence[tf.Tensor]) -> Features:
    tokens = features["targets"]
    return noise(tokens, tf.ones_like(tokens, tf.bool), seeds, mask_id=mask_id)

  return corrupt(dataset)


def answer_diffusion(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Masks tokens of an answer, after a prompt that is always given; EOS fills the row.

  In:  {"first": [3, 4, 5], "second": [6, 7]}         with 99 as mask and EOS 1, and sequence_length {"inputs": 8}
  Out: {"inputs": [3, 4, 5, 99, 7, 1, 99, 1], "targets": [3, 4, 5, 6, 7, 1, 1, 1],
        "loss_weights": [0, 0, 0, 1, 0, 0, 1, 0], "noise_levels": [0, 0, 0, k, k, k, k, k], "both_ways": [1] * 8}

  The model learns the length of an answer from the EOS that fill the row: they are targets like any other. If both
  texts and an EOS do not fit, the longer text is cut first.

  Args:
    dataset: {"first", "second": int32 [n]} without EOS.
    sequence_length, output_features: see `masked_diffusion`.
    merge_documents: no effect; a row is one pair.

  Raises:
    UserError: see `masked_diffusion`.

  Source: Nie et al. 2025 (LLaDA), section 2.3 and algorithm 2.
  """
  del merge_documents
  vocabulary = output_features["targets"].vocabulary
  mask_id = vocabularies.mask_id(vocabulary)
  _check_lengths(sequence_length)
  room = chunking.room(sequence_length, {"inputs": 1}, shortest=2)

  @seqio.map_over_dataset(num_seeds=2)
  def corrupt(features: Features, seeds: Sequence[tf.Tensor]) -> Features:
    texts = [features[name] for name in ("first", "second")]
    kept = special_tokens.shortened(tf.stack([tf.size(text) for text in texts]), room)
    given, answer = (text[: kept[i]] for i, text in enumerate(texts))
    ends = tf.fill([room + 1 - kept[0] - kept[1]], vocabulary.eos_id)
    tokens = tf.concat([given, answer, ends], 0)
    return noise(tokens, tf.range(room + 1) >= kept[0], seeds, mask_id=mask_id)

  return corrupt(dataset)
