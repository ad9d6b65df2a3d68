"""Masked language modelling: chooses the tokens to predict, and replaces them.

Functions that choose tokens take `candidates`, tokens that may be chosen, and `starts`, tokens that start a word. They
return the chosen tokens and the group of each token; all tokens of a group are masked, replaced or kept alike.
"""

from collections.abc import Callable, Mapping, Sequence
import math

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import vocabularies
from t2t.data.objectives import chunking, corruption

_CONTINUE = 0.8  # 1 - p of SpanBERT's geometric span lengths
_LONGEST_SPAN = 10  # words; lengths up to it have a mean of 3.8
_LONGEST_NGRAM = 3  # words (Lan et al. 2020, section 3.1)


def frame(
  tokens: tf.Tensor, seed: tf.Tensor, *, begin: Sequence[int], end: Sequence[int], two_segments: bool
) -> tf.Tensor:
  """Adds special tokens around a text; with `two_segments`, half of the texts have `end` also at a random point.

  In:  [3, 4, 5, 6, 7], begin [101], end [102]
  Out: [101, 3, 4, 5, 6, 7, 102]
       [101, 3, 4, 102, 5, 6, 7, 102]       two_segments, cut point 2, drawn from 1..4

  The second form is BERT's [CLS] A [SEP] B [SEP], where B continues A. Without a next-sentence task, it only trains the
  embedding of the second segment. A single token stays one segment.

  Source: Devlin et al. 2019, section 3.
  """
  parts = [tokens]
  if two_segments:
    size = tf.size(tokens)
    coin_seed, cut_seed = tf.unstack(tf.random.split(seed))
    cut = tf.random.stateless_uniform([], cut_seed, tf.minimum(size - 1, 1), size, tf.int32)
    twice = (tf.random.stateless_uniform([], coin_seed) < 0.5) & (size > 1)
    parts = [tokens[:cut], tf.constant(end)[: tf.where(twice, len(end), 0)], tokens[cut:]]
  return tf.concat([tf.constant(begin, tf.int32), *parts, tf.constant(end, tf.int32)], 0)


def special_ids(vocabulary: seqio.Vocabulary) -> tuple[list[int], list[int]]:
  """Returns ids before and after a text: [CLS] and [SEP] if the vocabulary has both, else none and EOS."""
  cls_id, sep_id = vocabularies.cls_id(vocabulary), vocabularies.sep_id(vocabulary)
  return ([], [vocabulary.eos_id]) if cls_id is None or sep_id is None else ([cls_id], [sep_id])


def is_one_of(tokens: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
  """Returns True at tokens in `ids`, which are ascending.

  In:  tokens [3, 101, 5], ids [3, 4, 5, 6]
  Out: [T, F, T]
  """
  ids = tf.convert_to_tensor(ids)
  places = tf.minimum(tf.searchsorted(ids, tokens), tf.size(ids) - 1)
  return tf.gather(ids, places) == tokens


# ---- Choice of tokens ------------------------------------------------------------------------------------------------


def words(candidates: tf.Tensor, starts: tf.Tensor) -> tf.Tensor:
  """Returns the index of each token's word; a token that is no candidate is a separate word.

  In:  candidates [F, T, T, T, T, F], starts [T, F, F, T, F, T]
  Out: [0, 1, 1, 2, 2, 3]                   the first candidate always starts a word
  """
  behind_candidate = tf.concat([[False], candidates[:-1]], 0)
  return tf.cumsum(tf.cast(starts | ~candidates | ~behind_candidate, tf.int32)) - 1


def random_tokens(
  candidates: tf.Tensor, starts: tf.Tensor, seed: tf.Tensor, *, noise_density: float = 0.15
) -> tuple[tf.Tensor, tf.Tensor]:
  """Chooses single tokens: exactly `corruption.noise_count` candidates.

  In:  candidates [F, T, T, T, T, F], noise_density 0.3
  Out: ([F, F, F, T, F, F], [0, 1, 2, 3, 4, 5])             chosen tokens, groups

  Source: Devlin et al. 2019, section 3.1; new choices in each epoch, as in RoBERTa (Liu et al. 2019, section 4.1).
  """
  del starts
  count = corruption.noise_count(tf.math.count_nonzero(candidates, dtype=tf.int32), noise_density)
  keys = tf.where(candidates, tf.random.stateless_uniform([tf.size(candidates)], seed), 2.0)
  return corruption.lowest(keys, count), tf.range(tf.size(candidates))


def whole_words(
  candidates: tf.Tensor, starts: tf.Tensor, seed: tf.Tensor, *, noise_density: float = 0.15
) -> tuple[tf.Tensor, tf.Tensor]:
  """Chooses whole words in random order, as long as they fit in the number of tokens of `random_tokens`.

  In:  candidates [F, T, T, T, T, T, F], starts [T, T, F, T, T, F, T], noise_density 0.5
  Out: ([F, T, T, F, F, F, F], [0, 1, 2, 3, 4, 5, 6])       the word of tokens 1 and 2

  If every word is longer than this number, one word is chosen.

  Source: whole-word masking as added to BERT's code in 2019. Tokens of a word are chosen together, but replaced
  independently.
  """
  length = tf.size(candidates)
  word = words(candidates, starts)
  sizes = tf.math.unsorted_segment_sum(tf.cast(candidates, tf.int32), word, length)
  budget = corruption.noise_count(tf.reduce_sum(sizes), noise_density)
  order = tf.argsort(tf.where(sizes > 0, tf.random.stateless_uniform([length], seed), 2.0))
  sizes = tf.gather(sizes, order)
  chosen = tf.zeros([length], tf.bool)
  for _ in range(2):  # a round stops at the first word that does not fit; the second fills most of the rest
    spare = budget - tf.reduce_sum(tf.where(chosen, sizes, 0))
    fits = ~chosen & (sizes > 0) & (sizes <= spare)
    chosen |= fits & (tf.cumsum(tf.where(fits, sizes, 0)) <= spare)
  chosen |= ~tf.reduce_any(chosen) & (tf.range(length) == 0)
  return tf.gather(chosen, tf.gather(tf.math.invert_permutation(order), word)) & candidates, tf.range(length)


def word_spans(
  candidates: tf.Tensor, starts: tf.Tensor, seed: tf.Tensor, *, noise_density: float = 0.15
) -> tuple[tf.Tensor, tf.Tensor]:
  """Chooses spans of words until they have `corruption.noise_count` tokens; the last span is cut.

  In:  candidates [F, T, T, T, T, T, F], starts [T, T, F, T, T, T, T], noise_density 0.6
  Out: ([F, T, T, T, F, F, F], [0, 1, 1, 1, 2, 2, 2])       the span of the words [1, 2] and [3]

  The text is divided into spans with geometric numbers of words (p = 0.2, from 1 to 10, mean 3.8), which are taken in
  random order. A span is a group: it is masked, replaced or kept as a whole.

  Source: Joshi et al. 2020 (SpanBERT), section 3.1.
  """
  length_seed, order_seed = tf.unstack(tf.random.split(seed))
  # The inverse distribution function of the truncated geometric distribution.
  uniform = tf.random.stateless_uniform([tf.size(candidates)], length_seed) * (1 - _CONTINUE**_LONGEST_SPAN)
  spans = tf.minimum(1 + tf.cast(tf.math.log(1 - uniform) / math.log(_CONTINUE), tf.int32), _LONGEST_SPAN)
  return choose_spans(candidates, starts, spans, order_seed, noise_density)


def word_ngrams(
  candidates: tf.Tensor, starts: tf.Tensor, seed: tf.Tensor, *, noise_density: float = 0.15
) -> tuple[tf.Tensor, tf.Tensor]:
  """Chooses spans as `word_spans` does, of one to three words; the probability of n words is proportional to 1 / n.

  In:  candidates [F, T, T, T, T, T, F], starts [T, T, F, T, T, T, T], noise_density 0.6
  Out: ([F, T, T, T, F, F, F], [0, 1, 1, 1, 2, 2, 2])       two words, and the third

  Source: Lan et al. 2020 (ALBERT), section 3.1.
  """
  length_seed, order_seed = tf.unstack(tf.random.split(seed))
  weights = [1 / n for n in range(1, _LONGEST_NGRAM + 1)]
  ends = tf.constant([sum(weights[: n + 1]) / sum(weights) for n in range(_LONGEST_NGRAM - 1)])
  uniform = tf.random.stateless_uniform([tf.size(candidates)], length_seed)
  spans = 1 + tf.searchsorted(ends, uniform, side="right")
  return choose_spans(candidates, starts, spans, order_seed, noise_density)


def one_fragment(
  candidates: tf.Tensor, starts: tf.Tensor, seed: tf.Tensor, *, noise_density: float = 0.5
) -> tuple[tf.Tensor, tf.Tensor]:
  """Chooses one run of `corruption.noise_count` consecutive tokens.

  In:  candidates [F, T, T, T, T, F]
  Out: ([F, F, T, T, F, F], [0, 1, 2, 3, 4, 5])

  Source: Song et al. 2019 (MASS), section 3.2, applied to an encoder.
  """
  del starts
  return corruption.fragment(candidates, seed, noise_density=noise_density), tf.range(tf.size(candidates))


def choose_spans(
  candidates: tf.Tensor, starts: tf.Tensor, spans: tf.Tensor, order_seed: tf.Tensor, noise_density: float
) -> tuple[tf.Tensor, tf.Tensor]:
  """Chooses spans with the given numbers of words, in random order, until they have enough tokens."""
  length = tf.size(candidates)
  span_of_word = tf.searchsorted(tf.cumsum(spans), tf.range(length), side="right")
  groups = tf.gather(span_of_word, words(candidates, starts))
  keys = tf.gather(tf.random.stateless_uniform([length], order_seed), groups)
  count = corruption.noise_count(tf.math.count_nonzero(candidates, dtype=tf.int32), noise_density)
  return corruption.lowest(tf.where(candidates, keys, 2.0), count), groups


# ---- Replacement -----------------------------------------------------------------------------------------------------


def replace(
  tokens: tf.Tensor,
  chosen: tf.Tensor,
  groups: tf.Tensor,
  seed: tf.Tensor,
  *,
  mask_id: int,
  ordinary_ids: tf.Tensor,
  mask_rate: float = 0.8,
  random_rate: float = 0.1,
) -> tf.Tensor:
  """Replaces chosen groups: 80 % become masks, 10 % random tokens, and 10 % stay unchanged.

  In:  tokens [3, 4, 5, 6, 7], chosen [F, T, T, T, F], groups [0, 1, 2, 3, 4], mask_id 99
  Out: [3, 99, 8, 6, 7]                     a mask, a random token, and an unchanged token

  Args:
    tokens: int32 [length].
    chosen: bool [length].
    groups: int32 [length], below `length`; tokens of a group are treated alike.
    seed: int [2], stateless.
    mask_id: id of the mask.
    ordinary_ids: int32 [n], the ids of random tokens.
    mask_rate: fraction of groups that become masks.
    random_rate: fraction of groups that become random tokens, drawn independently.

  Source: Devlin et al. 2019, section 3.1.
  """
  fate_seed, token_seed = tf.unstack(tf.random.split(seed))
  fate = tf.gather(tf.random.stateless_uniform([tf.size(tokens)], fate_seed), groups)
  drawn = tf.random.stateless_uniform([tf.size(tokens)], token_seed, 0, tf.size(ordinary_ids), tf.int32)
  replaced = tf.where(fate < mask_rate + random_rate, tf.gather(ordinary_ids, drawn), tokens)
  return tf.where(chosen, tf.where(fate < mask_rate, mask_id, replaced), tokens)


def bert_style(
  tokens: tf.Tensor,
  seed: tf.Tensor,
  *,
  mask_id: int,
  ordinary_ids: tf.Tensor,
  noise_density: float = 0.15,
  mask_rate: float = 0.9,
  random_rate: float = 0.1,
) -> tf.Tensor:
  """Applies T5's variant of BERT's noise, with the whole text as target: 90 % masks and 10 % random tokens.

  In:  [3, 4, 5, 6, 7, 8], mask_id 99, noise_density 0.3
  Out: [3, 99, 5, 6, 7, 4]

  Source: Raffel et al. 2020, section 3.3.1.
  """
  rates = {"mask_rate": mask_rate, "random_rate": random_rate}
  return hide(tokens, seed, mask_id=mask_id, ordinary_ids=ordinary_ids, noise_density=noise_density, **rates)[0]


def hide(
  tokens: tf.Tensor,
  seed: tf.Tensor,
  *,
  mask_id: int,
  ordinary_ids: tf.Tensor,
  noise_density: float = 0.15,
  mask_rate: float = 0.9,
  random_rate: float = 0.1,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Applies `bert_style`, and returns which tokens it chose.

  In:  [3, 4, 5, 6, 7, 8], mask_id 99, noise_density 0.3
  Out: [3, 99, 5, 6, 7, 4], [F, T, F, F, F, T]
  """
  choose_seed, replace_seed = tf.unstack(tf.random.split(seed))
  candidates = is_one_of(tokens, ordinary_ids)
  chosen, groups = random_tokens(candidates, candidates, choose_seed, noise_density=noise_density)
  rates = {"mask_rate": mask_rate, "random_rate": random_rate}
  inputs = replace(tokens, chosen, groups, replace_seed, mask_id=mask_id, ordinary_ids=ordinary_ids, **rates)
  return inputs, chosen


# ---- Masked language modelling of an encoder -------------------------------------------------------------------------


def masked_lm(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  choose: Callable[..., tuple[tf.Tensor, tf.Tensor]] = random_tokens,
  two_segments: bool = True,
  noise_density: float = 0.15,
  mask_rate: float = 0.8,
  random_rate: float = 0.1,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Masks some tokens for an encoder, with loss only at these tokens (BERT).

  In:  {"targets": [3, 4, 5, 6, 7]}         with 99 as mask and EOS 1
  Out: {"inputs": [3, 99, 5, 6, 7, 1], "targets": [3, 4, 5, 6, 7, 1], "loss_weights": [0, 1, 0, 0, 0, 0]}

  [CLS] and [SEP] enclose the text if the vocabulary has both; otherwise EOS follows it. If [CLS] is not BOS (BERT, not
  RoBERTa), half of the examples have two segments, see `frame`.

  Args:
    dataset: {"targets": int32 [n]} without EOS; optional "starts", 1 where a word starts, else from the vocabulary.
    sequence_length: maximum length of "inputs", special tokens included; "targets" must not be shorter.
    output_features: "targets" has the vocabulary.
    choose: chooses the tokens: `random_tokens`, `whole_words`, `word_spans` or similar.
    two_segments: False: every example is one segment.
    noise_density: fraction of text tokens to predict.
    mask_rate, random_rate: see `replace`.
    merge_documents: see `span_corruption`; but every token of a long document occurs in each epoch.

  Raises:
    UserError: lengths do not fit, or the vocabulary has neither a mask nor sentinels.

  Source: Devlin et al. 2019, section 3.1.
  """
  vocabulary = output_features["targets"].vocabulary
  if sequence_length["targets"] < sequence_length["inputs"]:
    raise UserError(
      f"config.data.targets_length={sequence_length['targets']} is too short: masked language models need one target "
      f"per input. Set config.data.targets_length={sequence_length['inputs']}."
    )
  mask_id = vocabularies.mask_id(vocabulary)
  replacement = {"mask_id": mask_id, "mask_rate": mask_rate, "random_rate": random_rate}
  begin, end = special_ids(vocabulary)
  two_segments = two_segments and bool(begin) and begin != [vocabularies.bos_id(vocabulary)]
  length = chunking.room(sequence_length, {"inputs": len(begin) + (2 if two_segments else 1) * len(end)})
  dataset = chunking.cut(dataset, length=length, merge_documents=merge_documents, whole_documents=True)
  ordinary_ids, starts_word = vocabularies.ordinary_ids(vocabulary), vocabularies.starts_word(vocabulary)

  @seqio.map_over_dataset(num_seeds=3)
  def corrupt(features: corruption.Features, seeds: Sequence[tf.Tensor]) -> corruption.Features:
    tokens = frame(features["targets"], seeds[0], begin=begin, end=end, two_segments=two_segments)
    candidates = is_one_of(tokens, ordinary_ids)
    if "starts" in features:  # a special token is a separate word
      around = {"begin": [1] * len(begin), "end": [1] * len(end)}
      starts = frame(features["starts"], seeds[0], two_segments=two_segments, **around) > 0
    else:
      starts = tf.gather(starts_word, tokens)
    chosen, groups = choose(candidates, starts, seeds[1], noise_density=noise_density)
    inputs = replace(tokens, chosen, groups, seeds[2], ordinary_ids=ordinary_ids, **replacement)
    return {"inputs": inputs, "targets": tokens, "loss_weights": tf.cast(chosen, tf.int32)}

  return corrupt(dataset)


# ---- Labels of the span boundary objective ---------------------------------------------------------------------------


def asked_spans(chosen: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the tokens that a boundary head predicts, and span bounds: 1 at starts, 2 at ends, 3 at single tokens.

  In:  chosen [T, F, T, T, F, T, F]
  Out: [0, 0, 1, 1, 0, 1, 0], [0, 0, 1, 2, 0, 3, 0]         the first span has no left boundary

  Adjacent spans are merged, as in SpanBERT's code, so that no boundary token is masked. A span at the end of the text
  is skipped unless a special token follows it.

  Args:
    chosen: bool [length], masked tokens of a text with special tokens.
  """
  size = tf.size(chosen)
  before, behind = tf.concat([[False], chosen[:-1]], 0), tf.concat([chosen[1:], [False]], 0)
  starts, ends = chosen & ~before, chosen & ~behind
  span = tf.cumsum(tf.cast(starts, tf.int32))
  # Spans are numbered from 1; 0 if the first or last token is in no span.
  first = tf.where(chosen[:1], 1, 0)
  last = tf.where(chosen[-1:], span[-1:], 0)
  is_predicted = chosen & (span != first) & (span != last)
  targets = tf.cast(starts, tf.int32) + 2 * tf.cast(ends, tf.int32)
  return tf.cast(is_predicted, tf.int32), tf.where(is_predicted, targets, tf.zeros([size], tf.int32))


def masked_spans(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  noise_density: float = 0.15,
  mask_rate: float = 0.8,
  random_rate: float = 0.1,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Masks spans of words, whose tokens are predicted twice (SpanBERT); see `asked_spans`.

  In:  {"targets": [3, 4, 5, 6, 7]}         with 99 as mask and EOS 1
  Out: {"inputs": [3, 99, 99, 6, 7, 1], "targets": [3, 4, 5, 6, 7, 1], "loss_weights": [0, 1, 1, 0, 0, 0],
        "token_types": [0, 0, 0, 0, 0, 0], "texts": [0, 0, 0, 0, 0, 0], "answer_heads": [0, 1, 1, 0, 0, 0],
        "answer_targets": [0, 1, 2, 0, 0, 0]}

  Args: see `masked_lm`; each example is one segment.

  Source: Joshi et al. 2020, section 3.
  """
  masked = masked_lm(
    dataset,
    sequence_length,
    output_features,
    choose=word_spans,
    two_segments=False,
    noise_density=noise_density,
    mask_rate=mask_rate,
    random_rate=random_rate,
    merge_documents=merge_documents,
  )

  def ask(features: corruption.Features) -> corruption.Features:
    heads, targets = asked_spans(features["loss_weights"] > 0)
    nothing = tf.zeros_like(heads)
    head_features = {"token_types": nothing, "texts": nothing, "answer_heads": heads, "answer_targets": targets}
    return features | head_features

  return masked.map(ask, num_parallel_calls=tf.data.AUTOTUNE)
