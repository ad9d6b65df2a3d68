"""Noise drawn token by token, whose targets are what it took out: the other strategies that T5 was compared with.

The functions of one sequence take `mask`, which of its tokens are noise.
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
  """Inputs are the text without its noise, and targets the noise; nothing says where it was.

  In:  tokens [3, 4, 5, 6, 7], mask [F, T, T, F, T]
  Out: {"inputs": [3, 6], "targets": [4, 5, 7]}
  """
  return {"inputs": tf.boolean_mask(tokens, ~mask), "targets": tf.boolean_mask(tokens, mask)}


def replace_runs(tokens: tf.Tensor, mask: tf.Tensor, *, first_sentinel: int) -> Features:
  """A sentinel of its own in place of each run of noise in the inputs, and of each run of text in the targets.

  In:  tokens [3, 4, 5, 6, 7, 8], mask [F, T, T, F, T, F], first_sentinel 99
  Out: {"inputs": [3, 99, 6, 98, 8], "targets": [99, 4, 5, 98, 7, 97]}      the last sentinel: the text goes on

  A text that begins with noise would number its sentinels differently on both sides.
  """
  return {
    "inputs": corruption.spans_to_sentinels(tokens, mask, first_sentinel=first_sentinel),
    "targets": corruption.spans_to_sentinels(tokens, ~mask, first_sentinel=first_sentinel),
  }


def replace_each(tokens: tf.Tensor, mask: tf.Tensor, *, first_sentinel: int) -> Features:
  """A sentinel of its own in place of each token of noise, neighbours or not, and in the targets in front of it.

  In:  tokens [3, 4, 5, 6, 7, 8], mask [F, T, T, F, T, F], first_sentinel 99
  Out: {"inputs": [3, 99, 98, 6, 97, 8], "targets": [99, 4, 98, 5, 97, 7]}
  """
  sentinels = first_sentinel + 1 - tf.cumsum(tf.cast(mask, tokens.dtype))
  pairs = tf.stack([sentinels, tokens], 1)
  return {"inputs": tf.where(mask, sentinels, tokens), "targets": tf.reshape(tf.boolean_mask(pairs, mask), [-1])}


def later_mask(length: tf.Tensor, seed: tf.Tensor, *, noise_density: float) -> tf.Tensor:
  """`corruption.random_mask` whose first token is never noise, as in `corruption.noise_mask`.

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
  """Random tokens are left out of the inputs, and the targets are those tokens; see `drop`.

  In:  {"targets": [3, 4, 5, 6, 7, 8]}      noise_density 0.3
  Out: {"inputs": [3, 5, 6, 8], "targets": [4, 7]}          EOS is added by the next preprocessor

  Exactly `corruption.noise_count` tokens are noise, where T5 tosses a coin for each, so that inputs are full: 512 hold
  601 tokens of text, whose targets are 91 long.

  Args and errors: as in `span_corruption`, T5's draw of one part of a long document included.

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
  """`span_corruption` whose spans are what random tokens happen to make, most of one token; see `replace_runs`.

  In:  {"targets": [3, 4, 5, 6, 7, 8]}      noise_density 0.5, 99 the last id
  Out: {"inputs": [3, 99, 6, 98, 8], "targets": [99, 4, 5, 98, 7, 97]}      EOS is added by the next preprocessor

  Examples fit however the tokens fall: 512 inputs hold 511 tokens of text, and are full where no two of the noise are
  neighbours; the targets are 156 long then.

  Args and errors: as in `drop_tokens`.

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
  """Each random token has a sentinel of its own, neighbours too, so that the inputs are as long as the text.

  In:  {"targets": [3, 4, 5, 6, 7, 8]}      noise_density 0.5, 99 the last id
  Out: {"inputs": [3, 99, 98, 6, 97, 8], "targets": [99, 4, 98, 5, 97, 7]}  EOS is added by the next preprocessor

  512 inputs hold 511 tokens of text, whose targets are 155 long.

  Args and errors: as in `drop_tokens`.

  Source: `iid_span_corruption` with runs that are not merged, which Raffel et al. 2020, section 3.3.2, merge.
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
  """`corruption.noise_count`, of Python's numbers."""
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
  """Cuts documents into pieces that fit, draws the noise of each, and divides it.

  Args:
    dataset, sequence_length, output_features, merge_documents: as in `span_corruption`.
    draw: length, seed -> which tokens are noise.
    divide: tokens, noise -> inputs and targets.
    sizes: tokens of a piece -> the most inputs, targets and sentinels that it makes, EOS included; never less of more.
    noise_density: part of the tokens that is noise.
  """
  vocabulary = output_features["targets"].vocabulary
  inputs_length, targets_length = sequence_length["inputs"], sequence_length["targets"]
  if inputs_length < 3:
    raise UserError(f"config.data.inputs_length={inputs_length}: two tokens and EOS need 3; T5 has 512")
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
