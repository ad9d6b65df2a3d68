"""Independent token noise with the removed tokens as targets: the alternatives that T5 was compared with.

Functions of one sequence take `mask`, True at noise tokens.
"""

from collections.abc import Callable, Mapping

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import vocabularies
from t2t.data.objectives import chunking, corruption

Features = dict[str, tf.Tensor]


# ---- One sequence ----------------------------------------------------------------------------------------------------


def drop(tokens: tf.Tensor, mask: tf.Tensor) -> Features:
  """Returns the text without noise as inputs, and the noise as targets, without marks of its positions.

  In:  tokens [3, 4, 5, 6, 7], mask [F, T, T, F, T]
  Out: {"inputs": [3, 6], "targets": [4, 5, 7]}
  """
  return {"inputs": tf.boolean_mask(tokens, ~mask), "targets": tf.boolean_mask(tokens, mask)}


def replace_runs(tokens: tf.Tensor, mask: tf.Tensor, *, first_sentinel: int) -> Features:
  """Replaces each run of noise in inputs, and each run of text in targets, by a sentinel.

  In:  tokens [3, 4, 5, 6, 7, 8], mask [F, T, T, F, T, F], first_sentinel 99
  Out: {"inputs": [3, 99, 6, 98, 8], "targets": [99, 4, 5, 98, 7, 97]}      the last sentinel: more text

  A text that begins with noise would have different sentinel numbers in inputs and targets.
  """
  return {
    "inputs": corruption.spans_to_sentinels(tokens, mask, first_sentinel=first_sentinel),
    "targets": corruption.spans_to_sentinels(tokens, ~mask, first_sentinel=first_sentinel),
  }


def replace_each(tokens: tf.Tensor, mask: tf.Tensor, *, first_sentinel: int) -> Features:
  """Replaces each noise token in inputs by its own sentinel; targets are pairs of sentinel and token.

  In:  tokens [3, 4, 5, 6, 7, 8], mask [F, T, T, F, T, F], first_sentinel 99
  Out: {"inputs": [3, 99, 98, 6, 97, 8], "targets": [99, 4, 98, 5, 97, 7]}
  """
  sentinels = first_sentinel + 1 - tf.cumsum(tf.cast(mask, tokens.dtype))
  pairs = tf.stack([sentinels, tokens], 1)
  return {"inputs": tf.where(mask, sentinels, tokens), "targets": tf.reshape(tf.boolean_mask(pairs, mask), [-1])}


def later_mask(length: tf.Tensor, seed: tf.Tensor, *, noise_density: float) -> tf.Tensor:
  """Draws `corruption.random_mask` without noise at the first token, as in `corruption.noise_mask`.

  In:  length 6, noise_density 0.3
  Out: [F, T, F, F, T, F]
  """
  count = tf.minimum(corruption.noise_count(length, noise_density), length - 1)
  return tf.concat([[False], corruption.lowest(tf.random.stateless_uniform([length - 1], seed), count)], 0)


# ---- Datasets --------------------------------------------------------------------------------------------------------


def drop_tokens(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  noise_density: float = 0.15,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Drops random tokens from the inputs; the targets are those tokens; see `drop`.

  In:  {"targets": [3, 4, 5, 6, 7, 8]}      noise_density 0.3
  Out: {"inputs": [3, 5, 6, 8], "targets": [4, 7]}          EOS is added by the next preprocessor

  Exactly `corruption.noise_count` tokens are noise, so that inputs are full; T5 draws each token independently. 512
  inputs hold 601 tokens of text, with 91 targets.

  Args and errors: see `span_corruption`, including one part per epoch of a long document.

  Source: Raffel et al. 2020, section 3.3.2 and table 5, "drop corrupted tokens".
  """

  def sizes(raw: int) -> tuple[int, int, int]:
    noise = _noise(raw, noise_density)
    return raw - noise + 1, noise + 1, 0

  return _take_out(
    dataset,
    sequence_length,
    output_features,
    draw=corruption.random_mask,
    divide=lambda tokens, mask, first_sentinel: drop(tokens, mask),
    sizes=sizes,
    noise_density=noise_density,
    merge_documents=merge_documents,
  )


def iid_span_corruption(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  noise_density: float = 0.15,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Corrupts spans that are runs of random tokens, mostly of one token; see `replace_runs`.

  In:  {"targets": [3, 4, 5, 6, 7, 8]}      noise_density 0.5, 99 the last id
  Out: {"inputs": [3, 99, 6, 98, 8], "targets": [99, 4, 5, 98, 7, 97]}      EOS is added by the next preprocessor

  Examples always fit: 512 inputs hold 511 tokens of text. They are full, with 156 targets, if no two noise tokens are
  neighbours.

  Args and errors: see `drop_tokens`.

  Source: Raffel et al. 2020, section 3.3.2 and table 5, "replace corrupted spans".
  """

  def sizes(raw: int) -> tuple[int, int, int]:
    noise = min(_noise(raw, noise_density), raw - 1)
    spans, spans_of_text = min(noise, raw - noise), min(noise + 1, raw - noise)
    return raw - noise + spans + 1, noise + spans_of_text + 1, spans_of_text

  return _take_out(
    dataset,
    sequence_length,
    output_features,
    draw=later_mask,
    divide=replace_runs,
    sizes=sizes,
    noise_density=noise_density,
    merge_documents=merge_documents,
  )


def iid_token_corruption(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  noise_density: float = 0.15,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Replaces each random token by its own sentinel, so that inputs are as long as the text; see `replace_each`.

  In:  {"targets": [3, 4, 5, 6, 7, 8]}      noise_density 0.5, 99 the last id
  Out: {"inputs": [3, 99, 98, 6, 97, 8], "targets": [99, 4, 98, 5, 97, 7]}  EOS is added by the next preprocessor

  512 inputs hold 511 tokens of text, with 155 targets.

  Args and errors: see `drop_tokens`.

  Source: `iid_span_corruption` without the merging of runs in Raffel et al. 2020, section 3.3.2.
  """

  def sizes(raw: int) -> tuple[int, int, int]:
    noise = _noise(raw, noise_density)
    return raw + 1, 2 * noise + 1, noise

  return _take_out(
    dataset,
    sequence_length,
    output_features,
    draw=corruption.random_mask,
    divide=replace_each,
    sizes=sizes,
    noise_density=noise_density,
    merge_documents=merge_documents,
  )


def _noise(raw: int, noise_density: float) -> int:
  return max(round(raw * noise_density), 1)


def _take_out(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  draw: Callable[..., tf.Tensor],
  divide: Callable[..., Features],
  sizes: Callable[[int], tuple[int, int, int]],
  noise_density: float,
  merge_documents: bool,
) -> tf.data.Dataset:
  """Cuts documents into chunks that fit, draws noise for each, and splits chunks into inputs and targets.

  Args:
    dataset, sequence_length, output_features, merge_documents: see `span_corruption`.
    draw: maps length and seed to a noise mask.
    divide: maps tokens and mask to inputs and targets.
    sizes: maps tokens of a chunk to maximum inputs, targets and sentinels, EOS included; monotonic.
    noise_density: fraction of noise tokens.
  """
  vocabulary = output_features["targets"].vocabulary
  inputs_length, targets_length = sequence_length["inputs"], sequence_length["targets"]
  if inputs_length < 3:
    raise UserError(
      f"config.data.inputs_length={inputs_length} is too short for two tokens and EOS. Set config.data.inputs_length=3 "
      "or more (T5 uses 512)."
    )
  raw = 2
  while sizes(raw + 1)[0] <= inputs_length:
    raw += 1
  lengths = corruption.SpanLengths(raw, *sizes(raw))
  available = vocabularies.num_sentinels(vocabulary)
  corruption.check_fit([lengths], inputs_length, targets_length, extra_ids=available)
  first_sentinel = vocabularies.sentinel_ids(vocabulary, 1)[0] if lengths.spans else 0
  dataset = chunking.cut(dataset, length=raw, merge_documents=merge_documents)

  @seqio.map_over_dataset(num_seeds=1)
  def corrupt(features: Features, seed: tf.Tensor) -> Features:
    tokens = features["targets"]
    mask = draw(tf.size(tokens), seed, noise_density=noise_density)
    return divide(tokens, mask, first_sentinel=first_sentinel)

  return corrupt(dataset)
