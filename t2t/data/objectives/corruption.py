"""Corruption of one sequence of token ids: takes tensors and stateless seeds, returns tensors.

registry.py applies these functions to datasets; masking.py chooses the predicted tokens of masked language models.
"""

from collections.abc import Sequence
import dataclasses

import tensorflow as tf

from t2t import UserError

Features = dict[str, tf.Tensor]


# ---- Lengths ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SpanLengths:
  """Lengths of one example in tokens; inputs and targets include EOS."""

  raw: int  # tokens of text in one example
  inputs: int
  targets: int
  spans: int  # noise spans, equal to the sentinels in inputs and in targets


def span_counts(length: int, *, noise_density: float, mean_noise_span_length: float) -> tuple[int, int]:
  """Returns (noise tokens, noise spans) for `length` tokens: both at least 1, with at least one token that is not
  noise.

  In:  568, 0.15, 3.0
  Out: (85, 28)
  """
  length = max(length, 2)  # a second token is assumed for a single token, and cut off later
  noise_tokens = min(max(round(length * noise_density), 1), length - 1)
  # Each noise span follows a text span, so spans cannot exceed the tokens of either kind.
  spans = min(max(round(noise_tokens / mean_noise_span_length), 1), length - noise_tokens)
  return noise_tokens, spans


def span_lengths(inputs_length: int, *, noise_density: float, mean_noise_span_length: float) -> SpanLengths:
  """Returns lengths for the most text whose corrupted inputs fit in `inputs_length`.

  In:  512, 0.15, 3.0
  Out: SpanLengths(raw=568, inputs=512, targets=114, spans=28)

  Inputs are the remaining text, one sentinel per noise span and EOS. Targets are the noise, as many sentinels and EOS.

  Source: the arithmetic of T5's C4 span corruption (Raffel et al. 2020, section 3.3.4).
  """

  def lengths(raw: int) -> SpanLengths:
    noise, spans = span_counts(raw, noise_density=noise_density, mean_noise_span_length=mean_noise_span_length)
    return SpanLengths(raw, max(raw, 2) - noise + spans + 1, noise + spans + 1, spans)

  raw = 1
  # Inputs never shrink as text grows: one more token adds at most one noise token, and then a span.
  while lengths(raw + 1).inputs <= inputs_length:
    raw += 1
  # At density 0.5 rounding may make targets longer than inputs by one; T5 keeps targets shorter.
  if noise_density == 0.5 and lengths(raw).targets > lengths(raw).inputs and raw > 1:
    raw -= 1
  return lengths(raw)


def check_noise(
  noise_density: float,
  mean_noise_span_length: float | None = None,
  *,
  mask_rate: float = 0.0,
  random_rate: float = 0.0,
) -> None:
  """Checks that a density is between 0 and 1, a mean span length at least 1, and rates sum up to at most 1.

  Noise without spans may have density 1, so that all tokens are predicted; noise spans need text between them.

  Raises:
    UserError: names the configuration key and the published value.
  """
  all_is_noise = noise_density == 1 and mean_noise_span_length is None
  if not 0 < noise_density < 1 and not all_is_noise:
    raise UserError(
      f"config.data.noise_density={noise_density}: the value must be "
      + ("below 1 for noise spans" if noise_density == 1 else "between 0 and 1")
      + " (T5 uses 0.15)"
    )
  if mean_noise_span_length is not None and mean_noise_span_length < 1:
    raise UserError(
      f"config.data.mean_noise_span_length={mean_noise_span_length}: the value must be at least 1 (T5 uses 3.0)"
    )
  for key, rate in (("mask_rate", mask_rate), ("random_rate", random_rate)):
    if not 0 <= rate <= 1:
      raise UserError(f"config.data.{key}={rate}: the value must be from 0 to 1, or -1 for the published value")
  if mask_rate + random_rate > 1 + 1e-9:
    raise UserError(
      f"config.data.mask_rate={mask_rate} and config.data.random_rate={random_rate} add up to more than 1. The rest of "
      "the tokens to predict stays unchanged. Lower one of the rates (BERT uses 0.8 and 0.1)."
    )


def check_lengths(
  inputs_length: int, targets_length: int, *, noise_density: float, mean_noise_span_length: float, extra_ids: int
) -> SpanLengths:
  """Returns `span_lengths` after checking that targets fit and sentinels suffice.

  Raises:
    UserError: names the config key and a valid value.
  """
  check_noise(noise_density, mean_noise_span_length)
  return check_mixture(
    inputs_length, targets_length, noise=[(noise_density, mean_noise_span_length)], extra_ids=extra_ids
  )[0]


def check_mixture(
  inputs_length: int,
  targets_length: int,
  *,
  noise: Sequence[tuple[float, float]],
  extra_ids: int,
  mode_length: int = 0,
) -> list[SpanLengths]:
  """Runs `check_lengths` for several kinds of noise; errors give values that fit all kinds.

  Args:
    inputs_length: tokens, EOS included.
    targets_length: tokens, EOS included.
    noise: noise_density and mean_noise_span_length of each kind.
    extra_ids: number of sentinels.
    mode_length: mode tokens before the inputs, which `SpanLengths.inputs` leaves out.

  Raises:
    UserError: names the config key and a valid value.
  """
  shortest = mode_length + 3
  if inputs_length < shortest:
    mode = f"{mode_length} mode tokens, " if mode_length else ""
    raise UserError(
      f"config.data.inputs_length={inputs_length} is too short for {mode}one token, a sentinel and EOS. Set "
      f"config.data.inputs_length={shortest} or more (T5 uses 512)."
    )
  lengths = [
    span_lengths(inputs_length - mode_length, noise_density=density, mean_noise_span_length=mean)
    for density, mean in noise
  ]
  check_fit(lengths, inputs_length, targets_length, extra_ids=extra_ids)
  return lengths


def check_fit(lengths: Sequence[SpanLengths], inputs_length: int, targets_length: int, *, extra_ids: int) -> None:
  """Checks that targets fit and sentinels suffice, for several kinds of noise.

  Raises:
    UserError: names the config key and a valid value.
  """
  longest = max(lengths, key=lambda kind: kind.targets)
  if longest.targets > targets_length:
    raise UserError(
      f"config.data.targets_length={targets_length} is too short. With config.data.inputs_length={inputs_length}, the "
      f"{longest.raw} tokens of a text have {longest.targets} target tokens. Set "
      f"config.data.targets_length={longest.targets}."
    )
  spans = max(kind.spans for kind in lengths)
  if spans > extra_ids:
    raise UserError(
      f"config.data.extra_ids={extra_ids} is too small. config.data.inputs_length={inputs_length} gives {spans} noise "
      f"spans, and each span needs a sentinel. Set config.data.extra_ids={spans} with enough config.model.vocab_size, "
      "or lower config.data.inputs_length."
    )


# ---- Span corruption of one sequence ---------------------------------------------------------------------------------


def random_partition(num_items: tf.Tensor, num_parts: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Splits `num_items` into `num_parts` nonempty parts; all partitions are equally likely.

  In:  num_items 5, num_parts 3
  Out: [1, 3, 1]                            cuts after items 1 and 4, drawn from the positions 1..4

  Args:
    num_items: int32 scalar, at least `num_parts`.
    num_parts: int32 scalar, at least 1.
    seed: int [2], stateless.
  """
  # The first num_parts - 1 positions of a random permutation are the cuts.
  places = tf.argsort(tf.random.stateless_uniform([num_items - 1], seed)) + 1
  cuts = tf.sort(places[: num_parts - 1])
  return tf.concat([cuts, [num_items]], 0) - tf.concat([[0], cuts], 0)


def noise_mask(
  length: tf.Tensor,
  seeds: Sequence[tf.Tensor],
  *,
  noise_density: float | tf.Tensor,
  mean_noise_span_length: float | tf.Tensor,
) -> tf.Tensor:
  """Draws a noise mask: text spans and noise spans of random lengths alternate, starting with text.

  In:  length 8, noise_density 0.4, mean_noise_span_length 1.5
  Out: [F, F, T, F, F, F, T, T]             3 noise tokens in 2 spans, [1, 2]; 5 others in [2, 3]

  Args:
    length: int32 scalar, at least 1; a single token is never noise.
    seeds: two of int [2], stateless.
    noise_density: fraction of noise tokens; a float or float64 scalar.
    mean_noise_span_length: tokens; a float or float64 scalar. Infinity: one noise span at the end of the text.

  Returns:
    bool [length].

  Source: Raffel et al. 2020, section 3.1.4, with the random partition of T5's code.
  """
  padded = tf.maximum(length, 2)
  # Equals `span_counts`: tf.round and Python's round both round halves to even, in float64.
  noise_tokens = tf.cast(tf.round(tf.cast(padded, tf.float64) * noise_density), tf.int32)
  noise_tokens = tf.clip_by_value(noise_tokens, 1, padded - 1)
  spans = tf.cast(tf.round(tf.cast(noise_tokens, tf.float64) / mean_noise_span_length), tf.int32)
  spans = tf.clip_by_value(spans, 1, padded - noise_tokens)
  noise_spans = random_partition(noise_tokens, spans, seeds[0])
  text_spans = random_partition(padded - noise_tokens, spans, seeds[1])
  span_ends = tf.cumsum(tf.reshape(tf.stack([text_spans, noise_spans], 1), [-1]))
  # The span of token i is the number of spans that end before it; odd numbers are noise.
  span_of_token = tf.searchsorted(span_ends, tf.range(length), side="right")
  return span_of_token % 2 == 1


def spans_to_sentinels(tokens: tf.Tensor, mask: tf.Tensor, *, first_sentinel: int) -> tf.Tensor:
  """Replaces each run of masked tokens by one sentinel; sentinel ids decrease from `first_sentinel`.

  In:  tokens [7, 8, 9, 4, 5], mask [F, T, T, F, T], first_sentinel 99
  Out: [7, 99, 4, 98]

  Args:
    tokens: int32 [length].
    mask: bool [length].
    first_sentinel: id of <extra_id_0>.
  """
  starts = mask & ~tf.concat([[False], mask[:-1]], 0)
  sentinels = first_sentinel + 1 - tf.cumsum(tf.cast(starts, tokens.dtype))
  return tf.boolean_mask(tf.where(starts, sentinels, tokens), starts | ~mask)


def corrupt_spans(
  tokens: tf.Tensor,
  seeds: Sequence[tf.Tensor],
  *,
  first_sentinel: int,
  noise_density: float | tf.Tensor = 0.15,
  mean_noise_span_length: float | tf.Tensor = 3.0,
) -> Features:
  """Returns inputs without noise spans, and targets with only noise spans; sentinels link both.

  In:  [3, 4, 5, 6, 7, 8], noise_density 0.3, first_sentinel 99
  Out: {"inputs": [3, 4, 5, 6, 99], "targets": [99, 7, 8]}              2 noise tokens in 1 span, at the end

  Args:
    tokens: int32 [length].
    seeds: two of int [2], stateless.
    first_sentinel: id of <extra_id_0>.
    noise_density: as in `noise_mask`.
    mean_noise_span_length: as in `noise_mask`.
  """
  mask = noise_mask(tf.size(tokens), seeds, noise_density=noise_density, mean_noise_span_length=mean_noise_span_length)
  return {
    "inputs": spans_to_sentinels(tokens, mask, first_sentinel=first_sentinel),
    "targets": spans_to_sentinels(tokens, ~mask, first_sentinel=first_sentinel),
  }


# ---- Independent noise -----------------------------------------------------------------------------------------------


def noise_count(length: tf.Tensor, noise_density: float) -> tf.Tensor:
  """Returns the number of noise tokens: the rounded fraction of `length`, at least 1 if `length` is.

  In:  length 10, noise_density 0.15
  Out: 2                                    1.5, and halves are rounded to even
  """
  count = tf.cast(tf.round(tf.cast(length, tf.float64) * noise_density), tf.int32)
  return tf.clip_by_value(count, tf.minimum(length, 1), length)


def lowest(keys: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
  """Returns True at the `count` lowest keys; the first of equal keys wins.

  In:  keys [0.3, 0.1, 0.9, 0.1], count 2
  Out: [F, T, F, T]
  """
  return tf.math.invert_permutation(tf.argsort(keys, stable=True)) < count


def random_mask(length: tf.Tensor, seed: tf.Tensor, *, noise_density: float) -> tf.Tensor:
  """Returns True at `noise_count` random positions; all sets of positions are equally likely.

  In:  length 6, noise_density 0.3
  Out: [F, T, F, F, T, F]
  """
  return lowest(tf.random.stateless_uniform([length], seed), noise_count(length, noise_density))


# ---- Text continuation -----------------------------------------------------------------------------------------------


def random_prefix(tokens: tf.Tensor, seed: tf.Tensor) -> Features:
  """Splits a text at a random point into inputs and targets.

  In:  [3, 4, 5, 6, 7]
  Out: {"inputs": [3, 4], "targets": [5, 6, 7]}             split point 2, drawn from 1..4

  A single token becomes the target of empty inputs.

  Source: Raffel et al. 2020, section 3.2.3; Liu et al. 2018; Dong et al. 2019 (UniLM).
  """
  size = tf.size(tokens)
  split = tf.random.stateless_uniform([], seed, tf.minimum(size - 1, 1), size, tf.int32)
  return {"inputs": tokens[:split], "targets": tokens[split:]}


def fill_in_the_middle(
  tokens: tf.Tensor, seed: tf.Tensor, *, marks: tuple[int, int, int], eos_id: int, suffix_first: bool = False
) -> tf.Tensor:
  """Moves a random middle part of a text to its end, so that left-to-right generation fills the gap.

  In:  [3, 4, 5, 6, 7], marks (97, 98, 99), eos_id 1        cut into [3], [4, 5], [6, 7]
  Out: [97, 3, 98, 6, 7, 99, 4, 5, 1]
       [97, 98, 6, 7, 99, 3, 4, 5, 1]                       suffix_first

  Args:
    tokens: int32 [length].
    seed: int [2], stateless.
    marks: ids that precede the prefix, the suffix and the middle.
    eos_id: id after the middle, where the text meets the suffix.
    suffix_first: whether the suffix precedes the prefix, with marks that let both orders train one another (the
      paper's SPM, in the variant for joint training).

  Source: Bavarian et al. 2022, section 3; cut between tokens, whereas the paper cuts between characters.
  """
  cuts = tf.sort(tf.random.stateless_uniform([2], seed, 0, tf.size(tokens) + 1, tf.int32))
  prefix, middle, suffix = tokens[: cuts[0]], tokens[cuts[0] : cuts[1]], tokens[cuts[1] :]
  before, behind, between = ([mark] for mark in marks)
  if suffix_first:
    return tf.concat([before, behind, suffix, between, prefix, middle, [eos_id]], 0)
  return tf.concat([before, prefix, behind, suffix, between, middle, [eos_id]], 0)


# ---- Denoising of the whole text -------------------------------------------------------------------------------------


def mask_tokens(tokens: tf.Tensor, seed: tf.Tensor, *, mask_id: int, noise_density: float) -> tf.Tensor:
  """Replaces random tokens by the mask.

  In:  [3, 4, 5, 6, 7, 8], mask_id 99, noise_density 0.3
  Out: [3, 99, 5, 6, 99, 8]

  Source: Lewis et al. 2020 (BART), section 2.2, token masking.
  """
  return tf.where(random_mask(tf.size(tokens), seed, noise_density=noise_density), mask_id, tokens)


def delete_tokens(tokens: tf.Tensor, seed: tf.Tensor, *, noise_density: float) -> tf.Tensor:
  """Deletes random tokens, so that the model must also find their positions.

  In:  [3, 4, 5, 6, 7, 8], noise_density 0.3
  Out: [3, 5, 6, 8]

  Source: Lewis et al. 2020 (BART), section 2.2, token deletion.
  """
  return tf.boolean_mask(tokens, ~random_mask(tf.size(tokens), seed, noise_density=noise_density))


def infill(
  tokens: tf.Tensor, seed: tf.Tensor, *, mask_id: int, noise_density: float = 0.3, mean_noise_span_length: float = 3.0
) -> tf.Tensor:
  """Replaces each random span by one mask; lengths are Poisson, and length 0 inserts a mask.

  In:  [3, 4, 5, 6, 7, 8, 9, 10], mask_id 99, noise_density 0.5
  Out: [3, 99, 6, 7, 99, 10]                4 noise tokens in 2 spans, [4, 5] and [8, 9]

  Spans are drawn until they have `noise_count` tokens; the last one is cut. Insertions are limited to the tokens that
  other masks save, so that inputs are never longer than the text.

  Source: Lewis et al. 2020 (BART), section 2.2, text infilling.
  """
  length_seed, order_seed = tf.unstack(tf.random.split(seed))
  noise = noise_count(tf.size(tokens), noise_density)
  # One draw per noise token, and more for draws of 0; if they do not suffice, the last span takes the rest.
  draws = tf.random.stateless_poisson([noise + 8], length_seed, mean_noise_span_length, tf.int32)
  ends = tf.concat([tf.minimum(tf.cumsum(draws), noise)[:-1], [noise]], 0)
  starts = tf.concat([[0], ends[:-1]], 0)
  spans = tf.boolean_mask(ends - starts, starts < noise)
  insertions = spans == 0
  room = noise - tf.math.count_nonzero(spans, dtype=tf.int32)
  spans = tf.boolean_mask(spans, ~insertions | (tf.cumsum(tf.cast(insertions, tf.int32)) <= room))
  # Spans and remaining tokens in random order, with the number of text tokens of each.
  num_spans, num_left = tf.size(spans), tf.size(tokens) - noise
  order = tf.argsort(tf.random.stateless_uniform([num_spans + num_left], order_seed))
  sizes = tf.gather(tf.concat([spans, tf.ones([num_left], tf.int32)], 0), order)
  places = tf.minimum(tf.cumsum(sizes, exclusive=True), tf.size(tokens) - 1)  # an insertion may be last
  return tf.where(order < num_spans, mask_id, tf.gather(tokens, places))


def permute_sentences(tokens: tf.Tensor, seed: tf.Tensor, *, sentence_ends: tf.Tensor) -> tf.Tensor:
  """Permutes the sentences randomly.

  In:  [3, 4, 9, 5, 9, 6, 7]                where 9 ends a sentence
  Out: [5, 9, 6, 7, 3, 4, 9]

  Args:
    tokens: int32 [length].
    seed: int [2], stateless.
    sentence_ends: bool [vocab_size], ids that end a sentence; the last of several consecutive ends counts. Text after
      the last end is a sentence, too.

  Source: Lewis et al. 2020 (BART), section 2.2, sentence permutation.
  """
  ends = tf.gather(sentence_ends, tokens)
  last = ends & ~tf.concat([ends[1:], [False]], 0)
  sentence = tf.cumsum(tf.cast(last, tf.int32), exclusive=True)
  keys = tf.random.stateless_uniform([tf.size(tokens)], seed)  # at most one sentence per token
  return tf.gather(tokens, tf.argsort(tf.gather(keys, sentence), stable=True))


def permute_and_infill(
  tokens: tf.Tensor,
  seed: tf.Tensor,
  *,
  mask_id: int,
  sentence_ends: tf.Tensor,
  noise_density: float = 0.3,
  mean_noise_span_length: float = 3.0,
) -> tf.Tensor:
  """Permutes the sentences, then infills: the noise of BART.

  In:  [3, 4, 9, 5, 9, 6, 7]                where 9 ends a sentence, mask_id 99, noise_density 0.4
  Out: [5, 9, 6, 99, 9]                     [7, 3, 4] is the span

  Source: Lewis et al. 2020 (BART), section 5.1.
  """
  permute_seed, infill_seed = tf.unstack(tf.random.split(seed))
  permuted = permute_sentences(tokens, permute_seed, sentence_ends=sentence_ends)
  return infill(
    permuted,
    infill_seed,
    mask_id=mask_id,
    noise_density=noise_density,
    mean_noise_span_length=mean_noise_span_length,
  )


def rotate(tokens: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Rotates the text to start at a random token.

  In:  [3, 4, 5, 6, 7]
  Out: [6, 7, 3, 4, 5]

  Source: Lewis et al. 2020 (BART), section 2.2, document rotation.
  """
  return tf.roll(tokens, -tf.random.stateless_uniform([], seed, 0, tf.size(tokens), tf.int32), 0)


def shuffle(tokens: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Permutes the tokens randomly.

  In:  [3, 4, 5, 6]
  Out: [5, 3, 6, 4]

  Source: Raffel et al. 2020, section 3.3.1, deshuffling.
  """
  return tf.gather(tokens, tf.argsort(tf.random.stateless_uniform([tf.size(tokens)], seed)))


# ---- One contiguous fragment -----------------------------------------------------------------------------------------


def fragment(candidates: tf.Tensor, seed: tf.Tensor, *, noise_density: float = 0.5) -> tf.Tensor:
  """Returns True at `noise_count` consecutive candidates; all such runs are equally likely.

  In:  candidates [F, T, T, T, T, F]
  Out: [F, F, T, T, F, F]
  """
  index = tf.cumsum(tf.cast(candidates, tf.int32), exclusive=True)
  number = tf.math.count_nonzero(candidates, dtype=tf.int32)
  count = noise_count(number, noise_density)
  start = tf.random.stateless_uniform([], seed, 0, number - count + 1, tf.int32)
  return candidates & (index >= start) & (index < start + count)


def mask_fragment(tokens: tf.Tensor, seed: tf.Tensor, *, mask_id: int, noise_density: float = 0.5) -> Features:
  """Replaces the tokens of one contiguous fragment by masks; the fragment is the target.

  In:  [3, 4, 5, 6, 7, 8], mask_id 99
  Out: {"inputs": [3, 4, 99, 99, 99, 8], "targets": [5, 6, 7]}

  Source: Song et al. 2019 (MASS), section 3.2.
  """
  inside = fragment(tf.ones_like(tokens, tf.bool), seed, noise_density=noise_density)
  return {"inputs": tf.where(inside, mask_id, tokens), "targets": tf.boolean_mask(tokens, inside)}
