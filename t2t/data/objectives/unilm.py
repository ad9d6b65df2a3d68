"""UniLM: masked tokens of an encoder that reads each example in one of four directions."""

from collections.abc import Mapping, Sequence

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import vocabularies
from t2t.data.objectives import chunking, masking

Features = dict[str, tf.Tensor]

# Directions in the order of their numbers: bidirectional, sequence to sequence, left to right, right to left.
_BOTH, _TO_TARGETS, _RIGHTWARD, _LEFTWARD = range(4)
_RATES = (1 / 3, 1 / 3, 1 / 6, 1 / 6)  # fractions of examples (Dong et al. 2019, section 2.4)
# Token types of the first and of the second text, by direction.
_TYPES = ((0, 1), (2, 3), (4, 4), (5, 5))
TYPES = 6
_NGRAMS = (0.8, 0.1, 0.1)  # fractions of masked spans of one, two and three tokens


def tokens_and_ngrams(
  candidates: tf.Tensor, starts: tf.Tensor, seed: tf.Tensor, *, noise_density: float = 0.15
) -> tuple[tf.Tensor, tf.Tensor]:
  """Chooses single tokens, 80 % of the time, and runs of two or three, until there are enough.

  In:  candidates [F, T, T, T, T, F], noise_density 0.5
  Out: ([F, F, T, T, F, F], [0, 1, 2, 3, 4, 5])             a run of two; tokens are replaced independently

  Source: Dong et al. 2019 (UniLM), section 2.4.
  """
  del starts
  length_seed, order_seed = tf.unstack(tf.random.split(seed))
  size = tf.size(candidates)
  ends = tf.constant([_NGRAMS[0], _NGRAMS[0] + _NGRAMS[1]])
  spans = 1 + tf.searchsorted(ends, tf.random.stateless_uniform([size], length_seed), side="right")
  chosen, _ = masking.choose_spans(candidates, candidates, spans, order_seed, noise_density)
  return chosen, tf.range(size)


def ranks(direction: tf.Tensor, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
  """Returns the rank of each token; a token attends to tokens of its own and of lower ranks.

  In:  direction 1, 3 tokens in the first text and 2 in the second
  Out: [0, 0, 0, 1, 2]                      and [0, 0, 0, 0, 0], [0, 1, 2, 3, 4], [4, 3, 2, 1, 0] for 0, 2 and 3
  """
  index = tf.range(first + second)
  return tf.switch_case(
    direction,
    [
      lambda: tf.zeros_like(index),
      lambda: tf.maximum(index - first + 1, 0),
      lambda: index,
      lambda: index[::-1],
    ],
  )


def unilm(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  noise_density: float = 0.15,
  mask_rate: float = 0.8,
  random_rate: float = 0.1,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Masks some tokens, as `masked_lm` does, and draws the direction in which the example is read.

  In:  {"targets": [3, 4, 5, 6, 7]}         with [CLS] 101, [SEP] 102 and [MASK] 103
  Out: {"inputs": [101, 3, 103, 102, 5, 103, 7, 102], "targets": [101, 3, 4, 102, 5, 6, 7, 102],
        "loss_weights": [0, 0, 1, 0, 0, 1, 0, 0], "token_types": [2, 2, 2, 2, 3, 3, 3, 3],
        "input_ranks": [0, 0, 0, 0, 1, 2, 3, 4]}            sequence to sequence

  A third of the examples are bidirectional, and a third sequence to sequence: the first text is read in both
  directions, and the second attends to the first and to its left. A sixth each is read from left to right and from
  right to left, as one text. In all of them the loss is at masked tokens. Token types say the direction: 0 and 1 are
  the texts of bidirectional examples, 2 and 3 sequence to sequence, 4 left to right, 5 right to left. The second text
  continues the first; there is no next-sentence task.

  Args: see `masking.masked_lm`.

  Raises:
    UserError: lengths do not fit, or the vocabulary has neither a mask nor sentinels.

  Source: Dong et al. 2019 (UniLM), sections 2.2 to 2.4.
  """
  vocabulary = output_features["targets"].vocabulary
  if sequence_length["targets"] < sequence_length["inputs"]:
    raise UserError(
      f"config.data.targets_length={sequence_length['targets']} is too short: masked language models need one target "
      f"per input. Set config.data.targets_length={sequence_length['inputs']}."
    )
  mask_id, ordinary_ids = vocabularies.mask_id(vocabulary), vocabularies.ordinary_ids(vocabulary)
  replacement = {"mask_id": mask_id, "ordinary_ids": ordinary_ids, "mask_rate": mask_rate, "random_rate": random_rate}
  begin, end = masking.special_ids(vocabulary)
  length = chunking.room(sequence_length, {"inputs": len(begin) + 2 * len(end)})
  dataset = chunking.cut(dataset, length=length, merge_documents=merge_documents, whole_documents=True)

  @seqio.map_over_dataset(num_seeds=3)
  def corrupt(features: Features, seeds: Sequence[tf.Tensor]) -> Features:
    text = features["targets"]
    direction_seed, cut_seed = tf.unstack(tf.random.split(seeds[0]))
    drawn = tf.random.stateless_uniform([], direction_seed)
    direction = tf.searchsorted(tf.cumsum(tf.constant(_RATES[:-1])), drawn[None], side="right")[0]
    cut = tf.random.stateless_uniform([], cut_seed, tf.minimum(tf.size(text) - 1, 1), tf.size(text), tf.int32)
    is_pair = (direction < _RIGHTWARD) & (tf.size(text) > 1)
    cut = tf.where(is_pair, cut, tf.size(text))
    parts = [begin, text[:cut], end, text[cut:], tf.constant(end, tf.int32)[: tf.where(is_pair, len(end), 0)]]
    first, second = tf.concat(parts[:3], 0), tf.concat(parts[3:], 0)
    tokens = tf.concat([first, second], 0)
    types = tf.gather(tf.constant(_TYPES), direction)
    candidates = masking.is_one_of(tokens, ordinary_ids)
    chosen, groups = tokens_and_ngrams(candidates, candidates, seeds[1], noise_density=noise_density)
    inputs = masking.replace(tokens, chosen, groups, seeds[2], **replacement)
    return {
      "inputs": inputs,
      "targets": tokens,
      "loss_weights": tf.cast(chosen, tf.int32),
      "token_types": tf.repeat(types, tf.stack([tf.size(first), tf.size(second)])),
      "input_ranks": ranks(direction, tf.size(first), tf.size(second)),
    }

  return corrupt(dataset)
