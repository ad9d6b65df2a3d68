"""Permutation language modelling: tokens are predicted in a random order (Yang et al. 2019)."""

from collections.abc import Callable, Mapping, Sequence

import seqio
import tensorflow as tf

from t2t.data import vocabularies
from t2t.data.objectives import chunking, corruption, masking

Features = dict[str, tf.Tensor]

LONGEST, CONTEXT = 5, 6  # tokens of a span, and of its context for each token: the authors' max_gram and mask_alpha


def spans_in_context(
  candidates: tf.Tensor, starts: tf.Tensor, seed: tf.Tensor, *, noise_density: float = 1 / CONTEXT
) -> tuple[tf.Tensor, tf.Tensor]:
  """Chooses spans of n tokens, each at a random place in 6 n tokens of context: exactly `corruption.noise_count`.

  In:  candidates [T] * 14, noise_density 0.2
  Out: ([F, F, F, T, T, F, F, F, F, F, F, F, F, T], [0, 1, 2, ..., 13])     a span of 2 with 12 tokens around it

  Lengths are 1 to 5, with probabilities in proportion to 1 / n. Spans that are too many lose tokens at random, and
  random tokens are added to spans that are too few.

  Source: Yang et al. 2019, section 2.3, and `_sample_mask` in the accompanying code, there with whole words.
  """
  del starts
  length = tf.size(candidates)
  number = length // (CONTEXT + 1) + 1
  seeds = tf.unstack(tf.random.split(seed, 3))
  lengths = tf.range(1, LONGEST + 1)
  ends = tf.cumsum(1.0 / tf.cast(lengths, tf.float32))
  drawn = tf.random.stateless_uniform([number], seeds[0]) * ends[-1]
  sizes = tf.gather(lengths, tf.searchsorted(ends, drawn, side="right"))
  before = tf.cast(tf.random.stateless_uniform([number], seeds[1]) * tf.cast(CONTEXT * sizes, tf.float32), tf.int32)
  begins = tf.cumsum((CONTEXT + 1) * sizes, exclusive=True) + before
  places = tf.range(length)[:, None]
  in_span = tf.reduce_any((places >= begins) & (places < begins + sizes), axis=1)
  keys = tf.random.stateless_uniform([length], seeds[2]) + tf.where(in_span, 0.0, 1.0) + tf.where(candidates, 0.0, 2.0)
  count = corruption.noise_count(tf.math.count_nonzero(candidates, dtype=tf.int32), noise_density)
  return corruption.lowest(keys, count), tf.range(length)


def ranks(chosen: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Returns the index of each chosen token in a random order, from 1; 0 for the others, which all tokens may read.

  In:  [T, F, F, T, T]
  Out: [2, 0, 0, 3, 1]
  """
  keys = tf.where(chosen, tf.random.stateless_uniform([tf.size(chosen)], seed), 2.0)
  return tf.where(chosen, 1 + tf.math.invert_permutation(tf.argsort(keys)), 0)


def ranks_of_halves(chosen: tf.Tensor, seed: tf.Tensor, half: int) -> tf.Tensor:
  """Returns `ranks` of the first `half` tokens, and of the others, which begin above the highest of the first.

  In:  [T, F, T, F, T], half 3
  Out: [2, 0, 1, 3, 4]
  """
  first, second = (ranks(part, seed) for part in (chosen[:half], chosen[half:]))
  return tf.concat([first, second + tf.reduce_max(first) + 1], 0)


def permuted_lm(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  choose: Callable[..., tuple[tf.Tensor, tf.Tensor]] = spans_in_context,
  overlap: bool = False,
  noise_density: float = 1 / CONTEXT,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Chooses tokens that are predicted in a random order, each from all other tokens and the chosen ones before it.

  In:  {"targets": [3, 4, 5, 6, 7]}         with EOS 1
  Out: {"inputs": [3, 4, 5, 6, 7, 1], "targets": [3, 4, 5, 6, 7, 1], "loss_weights": [0, 1, 0, 1, 0, 0],
        "input_ranks": [0, 2, 0, 1, 0, 0]}        5 and 7 precede 6, and 6 precedes 4

  No token is masked: config.model.two_streams hides each token from its own prediction. [CLS] and [SEP] enclose the
  text as in `masking.masked_lm`, and are never predicted.

  With `overlap`, an example begins in the middle of the one before, and its first half reads nothing of its second: the
  ranks of the second begin above those of the first. So the states of the first half can be the memory of the next
  example, of which the second half is the first. [SEP] and [CLS] are then at the end.

  In:  {"targets": [3, 4, 5, 6, 7, 8, 9]}   with EOS 1, and sequence_length {"inputs": 6}
  Out: {"inputs": [3, 4, 5, 6, 7, 1], "targets": ..., "loss_weights": [0, 1, 0, 0, 1, 0],
        "input_ranks": [0, 1, 0, 2, 3, 2]},
       {"inputs": [6, 7, 8, 9, 1], ...}

  Args:
    dataset: {"targets": int32 [n]} without EOS.
    sequence_length: maximum length of "inputs" and of all other features, special tokens included.
    output_features: "targets" has the vocabulary.
    choose: chooses the tokens, see `masking.masked_lm`.
    overlap: see above; the model needs config.model.memory_reuse at half of the inputs' length.
    noise_density: fraction of text tokens to predict; XLNet 85 of 512.
    merge_documents: see `masking.masked_lm`.

  Raises:
    UserError: lengths do not fit.

  Source: Yang et al. 2019, sections 2.2 and 2.3.
  """
  vocabulary = output_features["targets"].vocabulary
  begin, end = masking.special_ids(vocabulary)
  begin, end = ([], [*end, *begin]) if overlap else (begin, end)
  two_segments = bool(begin) and begin != [vocabularies.bos_id(vocabulary)]
  length = chunking.room(sequence_length, {"inputs": len(begin) + (2 if two_segments else 1) * len(end)})
  half = sequence_length["inputs"] // 2 if overlap else 0
  dataset = chunking.cut(dataset, length=length, merge_documents=merge_documents, whole_documents=True, stride=half)
  ordinary_ids = vocabularies.ordinary_ids(vocabulary)

  @seqio.map_over_dataset(num_seeds=3)
  def permute(features: Features, seeds: Sequence[tf.Tensor]) -> Features:
    tokens = masking.frame(features["targets"], seeds[0], begin=begin, end=end, two_segments=two_segments)
    candidates = masking.is_one_of(tokens, ordinary_ids)
    chosen, _ = choose(candidates, candidates, seeds[1], noise_density=noise_density)
    weights = tf.cast(chosen, tf.int32)
    order = ranks_of_halves(chosen, seeds[2], half) if half else ranks(chosen, seeds[2])
    return {"inputs": tokens, "targets": tokens, "loss_weights": weights, "input_ranks": order}

  return permute(dataset)
