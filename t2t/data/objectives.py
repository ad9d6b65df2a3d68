"""Pre-training objectives as seqio preprocessors: functions from tf.data.Dataset to tf.data.Dataset.

An objective turns documents, {"text": string}, into examples, {"inputs": int32 [n], "targets": int32 [m]}, that end in
EOS and fit the sequence lengths.  To add one, write its preprocessors here and name them in `OBJECTIVES`.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools

import seqio
import tensorflow as tf

from t2t import UserError, did_you_mean
from t2t.data import vocabularies

Features = dict[str, tf.Tensor]
Preprocessor = Callable[..., tf.data.Dataset]

GROUP = 128  # pieces of documents that are concatenated before they are split, as T5 does with whole documents
MAX_DOCUMENT = 65_536  # tokens; of a longer document one part is drawn, as T5


# ---- How long things are ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SpanLengths:
  """Lengths that belong together, all in tokens; inputs and targets include EOS."""

  raw: int  # tokens of text that one example holds
  inputs: int
  targets: int
  spans: int  # noise spans, so also sentinels in inputs and in targets


def span_counts(length: int, *, noise_density: float, mean_noise_span_length: float) -> tuple[int, int]:
  """(noise tokens, noise spans) in `length` tokens, both at least 1, and at least one token that is not noise.

  In:  568, 0.15, 3.0
  Out: (85, 28)
  """
  length = max(length, 2)  # a single token is treated as if there were a second, which is then cut off
  noise_tokens = min(max(round(length * noise_density), 1), length - 1)
  # Each noise span follows a span of text, so that there cannot be more of them than there are tokens of either kind.
  spans = min(max(round(noise_tokens / mean_noise_span_length), 1), length - noise_tokens)
  return noise_tokens, spans


def span_lengths(inputs_length: int, *, noise_density: float, mean_noise_span_length: float) -> SpanLengths:
  """The most text whose inputs, corrupted, fit in `inputs_length`, and how long its targets are.

  In:  512, 0.15, 3.0
  Out: SpanLengths(raw=568, inputs=512, targets=114, spans=28)

  Inputs are the text that is left, a sentinel for each noise span and EOS; targets the noise, as many sentinels, EOS.

  Source: the arithmetic of T5's C4 span corruption (Raffel et al. 2020, section 3.3.4).
  """

  def lengths(raw: int) -> SpanLengths:
    noise, spans = span_counts(raw, noise_density=noise_density, mean_noise_span_length=mean_noise_span_length)
    return SpanLengths(raw, max(raw, 2) - noise + spans + 1, noise + spans + 1, spans)

  raw = 1
  # Inputs never get shorter as text is added: of one more token, noise takes at most one, and a span then adds one.
  while lengths(raw + 1).inputs <= inputs_length:
    raw += 1
  # At density 0.5 both halves are equal and rounding may make targets the longer by one; T5 keeps targets the shorter.
  if noise_density == 0.5 and lengths(raw).targets > lengths(raw).inputs and raw > 1:
    raw -= 1
  return lengths(raw)


def check_lengths(
  inputs_length: int, targets_length: int, *, noise_density: float, mean_noise_span_length: float, extra_ids: int
) -> SpanLengths:
  """`span_lengths`, having seen that targets fit and that there are sentinels enough.

  Raises:
    UserError: names the configuration key and a value that would do.
  """
  if not 0 < noise_density < 1:
    raise UserError(f"config.data.noise_density={noise_density}: must lie between 0 and 1; T5 has 0.15")
  if mean_noise_span_length < 1:
    raise UserError(f"config.data.mean_noise_span_length={mean_noise_span_length}: must be 1 or more; T5 has 3.0")
  if inputs_length < 3:
    raise UserError(f"config.data.inputs_length={inputs_length}: one token, a sentinel and EOS need 3; T5 has 512")
  lengths = span_lengths(inputs_length, noise_density=noise_density, mean_noise_span_length=mean_noise_span_length)
  if lengths.targets > targets_length:
    raise UserError(
      f"config.data.targets_length={targets_length} is too short: inputs_length={inputs_length} holds"
      f" {lengths.raw} tokens of text, whose targets are {lengths.targets} long;"
      f" set config.data.targets_length={lengths.targets}"
    )
  if lengths.spans > extra_ids:
    raise UserError(
      f"config.data.extra_ids={extra_ids}: inputs_length={inputs_length} makes {lengths.spans} noise spans, each with a"
      f" sentinel of its own; set config.data.extra_ids={lengths.spans} (and room in config.model.vocab_size)"
      " or a shorter config.data.inputs_length"
    )
  return lengths


# ---- Span corruption of one sequence ---------------------------------------------------------------------------------


def random_partition(num_items: tf.Tensor, num_parts: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Splits `num_items` into `num_parts` of at least one item, every way equally likely.

  In:  num_items 5, num_parts 3
  Out: [1, 3, 1]                            cuts behind items 1 and 4, drawn from the places 1..4

  Args:
    num_items: int32 scalar, at least `num_parts`.
    num_parts: int32 scalar, at least 1.
    seed: int [2], stateless.
  """
  # The first num_parts - 1 places of a random order are the cuts.
  places = tf.argsort(tf.random.stateless_uniform([num_items - 1], seed)) + 1
  cuts = tf.sort(places[: num_parts - 1])
  return tf.concat([cuts, [num_items]], 0) - tf.concat([[0], cuts], 0)


def noise_mask(
  length: tf.Tensor, seeds: Sequence[tf.Tensor], *, noise_density: float, mean_noise_span_length: float
) -> tf.Tensor:
  """Which tokens are noise: spans of text and of noise take turns, text first, their lengths drawn at random.

  In:  length 8, noise_density 0.4, mean_noise_span_length 1.5
  Out: [F, F, T, F, F, F, T, T]             3 noise tokens in 2 spans, [1, 2]; 5 others in [2, 3]

  Args:
    length: int32 scalar, at least 1; a single token is never noise.
    seeds: two of int [2], stateless.

  Returns:
    bool [length].

  Source: Raffel et al. 2020, section 3.1.4, with the random partition of T5's code.
  """
  padded = tf.maximum(length, 2)
  # The same numbers as `span_counts`: tf.round and Python's round both round halves to even, and both count in float64.
  noise_tokens = tf.cast(tf.round(tf.cast(padded, tf.float64) * noise_density), tf.int32)
  noise_tokens = tf.clip_by_value(noise_tokens, 1, padded - 1)
  spans = tf.cast(tf.round(tf.cast(noise_tokens, tf.float64) / mean_noise_span_length), tf.int32)
  spans = tf.clip_by_value(spans, 1, padded - noise_tokens)
  noise_spans = random_partition(noise_tokens, spans, seeds[0])
  text_spans = random_partition(padded - noise_tokens, spans, seeds[1])
  span_ends = tf.cumsum(tf.reshape(tf.stack([text_spans, noise_spans], 1), [-1]))
  # Token i lies in the span whose number is how many spans have ended by then; odd numbers are noise.
  span_of_token = tf.searchsorted(span_ends, tf.range(length), side="right")
  return span_of_token % 2 == 1


def spans_to_sentinels(tokens: tf.Tensor, mask: tf.Tensor, *, first_sentinel: int) -> tf.Tensor:
  """Puts one sentinel in place of each run of masked tokens, counting down from `first_sentinel`.

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
  noise_density: float = 0.15,
  mean_noise_span_length: float = 3.0,
) -> Features:
  """Inputs without the noise spans, and targets with nothing else; sentinels say which span goes where.

  In:  [3, 4, 5, 6, 7, 8], noise_density 0.3, first_sentinel 99
  Out: {"inputs": [3, 4, 5, 6, 99], "targets": [99, 7, 8]}              2 noise tokens in 1 span, which is the last

  Args:
    tokens: int32 [length].
    seeds: two of int [2], stateless.
  """
  mask = noise_mask(tf.size(tokens), seeds, noise_density=noise_density, mean_noise_span_length=mean_noise_span_length)
  return {
    "inputs": spans_to_sentinels(tokens, mask, first_sentinel=first_sentinel),
    "targets": spans_to_sentinels(tokens, ~mask, first_sentinel=first_sentinel),
  }


# ---- Preprocessors ---------------------------------------------------------------------------------------------------


def tokenize(dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
  """Text to ids, without EOS; documents without a token are left out.

  In:  {"text": "a b"}                      with a vocabulary that has "a" 5 and "b" 6
  Out: {"targets": [5, 6]}
  """
  vocabulary = output_features["targets"].vocabulary
  dataset = dataset.map(
    lambda document: {"targets": vocabulary.encode_tf(document["text"])}, num_parallel_calls=tf.data.AUTOTUNE
  )
  return dataset.filter(lambda features: tf.size(features["targets"]) > 0)


@seqio.map_over_dataset(num_seeds=1)
def random_chunk(features: Features, seed: tf.Tensor) -> Features:
  """Draws one of the parts of `MAX_DOCUMENT` tokens that a document consists of.

  In:  {"targets": [1, 2, 3, 4, 5]}         if MAX_DOCUMENT were 2
  Out: {"targets": [3, 4]}                  part 1 of [1, 2], [3, 4], [5]
  """
  tokens = features["targets"]
  num_parts = (tf.size(tokens) + MAX_DOCUMENT - 1) // MAX_DOCUMENT
  start = MAX_DOCUMENT * tf.random.stateless_uniform([], seed, 0, num_parts, tf.int32)
  return {"targets": tokens[start : start + MAX_DOCUMENT]}


def concatenate(dataset: tf.data.Dataset, *, group: int = GROUP) -> tf.data.Dataset:
  """Joins each `group` documents into one sequence.

  In:  {"targets": [1, 2]}, {"targets": [3]}, {"targets": [4, 5]}        group 2
  Out: {"targets": [1, 2, 3]}, {"targets": [4, 5]}
  """
  return dataset.ragged_batch(group).map(lambda features: {"targets": features["targets"].flat_values})


def split(dataset: tf.data.Dataset, *, length: int) -> tf.data.Dataset:
  """Cuts each sequence into pieces of `length`; the last one of a sequence is what is left.

  In:  {"targets": [1, 2, 3, 4, 5]}         length 2
  Out: {"targets": [1, 2]}, {"targets": [3, 4]}, {"targets": [5]}
  """

  def pieces(features: Features) -> Features:
    tokens = features["targets"]
    size = tf.size(tokens, tf.int64)
    splits = tf.concat([tf.range(0, size, length, tf.int64), [size]], 0)
    return {"targets": tf.RaggedTensor.from_row_splits(tokens, splits, validate=False)}

  # A ragged tensor that is taken apart: a dataset inside the dataset for each document would cost milliseconds each.
  return dataset.map(pieces, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def _sentinels(output_features: Mapping[str, seqio.Feature], count: int) -> list[int]:
  return vocabularies.sentinel_ids(output_features["targets"].vocabulary, count)


def span_corruption(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  noise_density: float = 0.15,
  mean_noise_span_length: float = 3.0,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """T5's objective: spans of the text are taken out of the inputs, and the targets are those spans.

  With `merge_documents`, as T5: documents are concatenated and cut into pieces that fill the inputs to the last token
  (568 raw tokens for 512), whatever document they belong to; next to nothing is spent on padding, and the model sees
  documents meet without a mark.  T5 concatenates 128 documents; here it is 128 pieces of documents no longer than an
  example, which is the same for short documents, and for long ones gives the first example after 70 thousand
  tokens at most and not after 128 books.  Without `merge_documents` each document is cut on its own, examples are as
  long as their documents, and the feature converter packs several into one sequence with segment ids, so that
  attention never crosses from one document into another.

  In:  {"targets": [3, 4, 5, 6, 7]}         with sequence_length {"inputs": 6, "targets": 3} and 99 as the last id
  Out: {"inputs": [3, 4, 5, 6, 99], "targets": [99, 7]}           EOS is added by the next preprocessor

  Args:
    dataset: {"targets": int32 [n]} without EOS.
    sequence_length: maximum lengths of "inputs" and "targets", EOS included.
    output_features: its "targets" has the vocabulary that sentinels are taken from.
    noise_density: part of the tokens that is taken out.
    mean_noise_span_length: tokens.
    merge_documents: see above.

  Raises:
    UserError: targets do not fit their length, or there are fewer sentinels than spans.

  Source: Raffel et al. 2020, sections 3.1.4 and 3.3.4.
  """
  lengths = check_lengths(
    sequence_length["inputs"],
    sequence_length["targets"],
    noise_density=noise_density,
    mean_noise_span_length=mean_noise_span_length,
    extra_ids=vocabularies.num_sentinels(output_features["targets"].vocabulary),
  )
  first_sentinel = _sentinels(output_features, 1)[0]
  if merge_documents:
    dataset = concatenate(split(random_chunk(dataset), length=lengths.raw))
  dataset = split(dataset, length=lengths.raw)

  @seqio.map_over_dataset(num_seeds=2)
  def corrupt(features: Features, seeds: Sequence[tf.Tensor]) -> Features:
    return corrupt_spans(
      features["targets"],
      seeds,
      first_sentinel=first_sentinel,
      noise_density=noise_density,
      mean_noise_span_length=mean_noise_span_length,
    )

  return corrupt(dataset)


def _span_corruption(*, noise_density: float, mean_noise_span_length: float, pack: bool) -> list[Preprocessor]:
  corrupt = functools.partial(
    span_corruption,
    noise_density=noise_density,
    mean_noise_span_length=mean_noise_span_length,
    merge_documents=not pack,
  )
  return [tokenize, corrupt, seqio.preprocessors.append_eos_after_trim]


# name -> preprocessors from {"text": string} to {"inputs", "targets"}, given the keywords of `preprocessors`
OBJECTIVES: dict[str, Callable[..., list[Preprocessor]]] = {
  "span_corruption": _span_corruption,
}


def preprocessors(
  name: str, *, noise_density: float = 0.15, mean_noise_span_length: float = 3.0, pack: bool = False
) -> list[Preprocessor]:
  """The preprocessors of an objective, for a seqio task whose source yields {"text": string}.

  Args:
    name: a key of `OBJECTIVES`.
    noise_density: part of the tokens that is taken out.
    mean_noise_span_length: tokens.
    pack: examples are kept apart because the feature converter packs them.

  Raises:
    UserError: no such objective; names the nearest.
  """
  if name not in OBJECTIVES:
    hint = did_you_mean(name, OBJECTIVES)
    raise UserError(f"config.data.objective={name}: no such objective{hint} There are: {', '.join(sorted(OBJECTIVES))}")
  return OBJECTIVES[name](noise_density=noise_density, mean_noise_span_length=mean_noise_span_length, pack=pack)
