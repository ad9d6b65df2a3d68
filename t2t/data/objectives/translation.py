"""Objectives of parallel texts: translation, and masked language modelling of both texts (TLM)."""

from collections.abc import Mapping, Sequence

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import special_tokens, vocabularies
from t2t.data.objectives import chunking, masking

Features = dict[str, tf.Tensor]


def translation(dataset: tf.data.Dataset, *, merge_documents: bool = True) -> tf.data.Dataset:
  """Returns the first text as inputs and the second as targets: a translation, an answer, a summary.

  In:  {"first": [3, 4, 5], "second": [6, 7]}
  Out: {"inputs": [3, 4, 5], "targets": [6, 7]}             the next preprocessor trims and adds EOS

  Args:
    dataset: {"first", "second": int32 [n]} without EOS.
    merge_documents: no effect; an example is one pair.

  A decoder reads both in one row, with loss at the second text.

  Source: Raffel et al. 2020, section 2.3; for a decoder Radford et al. 2018, section 3.3.
  """
  del merge_documents
  return dataset.map(lambda features: {"inputs": features["first"], "targets": features["second"]})


def translation_lm(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  noise_density: float = 0.15,
  mask_rate: float = 0.8,
  random_rate: float = 0.1,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Masks tokens of two texts that attend to each other, see `masking.masked_lm`.

  In:  {"first": [3, 4, 5], "second": [6, 7]}         noise_density 0.4, [CLS] 101, [SEP] 102 and 99 as mask
  Out: {"inputs": [101, 3, 99, 5, 102, 101, 99, 7, 102], "targets": [101, 3, 4, 5, 102, 101, 6, 7, 102],
        "loss_weights": [0, 0, 1, 0, 0, 0, 1, 0, 0], "token_types": [0, 0, 0, 0, 0, 1, 1, 1, 1],
        "input_places": [0, 1, 2, 3, 4, 0, 1, 2, 3]}

  In reversed pairs, see `sentence_pairs.directed`, the first text has type 1 and the second 0.

  Each text has its special tokens, or EOS in a vocabulary without [CLS] and [SEP]. Positions restart at the second
  text, so that learned positions of corresponding words are similar. Token types give the text, and so the language:
  with config.model.segment_types=2 they are the paper's language embeddings. If texts do not fit, the longer one is cut
  first.

  Args:
    dataset: {"first", "second": int32 [n]} without EOS.
    sequence_length: maximum length of "inputs", for both texts; "targets" must not be shorter.
    output_features: "targets" has the vocabulary of both languages.
    noise_density: fraction of tokens of both texts that are masked.
    mask_rate, random_rate: see `masking.replace`.
    merge_documents: no effect; a row is one pair, or with config.data.pack several pairs without attention between
      them.

  Raises:
    UserError: lengths do not fit, or the vocabulary has neither a mask nor sentinels.

  Source: Lample & Conneau 2019 (XLM), section 3.4 and figure 1.
  """
  del merge_documents
  vocabulary = output_features["targets"].vocabulary
  if sequence_length["targets"] < sequence_length["inputs"]:
    raise UserError(
      f"config.data.targets_length={sequence_length['targets']} is too short: masked language models need one target "
      f"per input. Set config.data.targets_length={sequence_length['inputs']}."
    )
  begin, end = masking.special_ids(vocabulary)
  room = chunking.room(sequence_length, {"inputs": 2 * (len(begin) + len(end))}, shortest=2)
  mask_id, ordinary_ids = vocabularies.mask_id(vocabulary), vocabularies.ordinary_ids(vocabulary)
  replacement = {"mask_id": mask_id, "ordinary_ids": ordinary_ids, "mask_rate": mask_rate, "random_rate": random_rate}

  @seqio.map_over_dataset(num_seeds=2)
  def corrupt(features: Features, seeds: Sequence[tf.Tensor]) -> Features:
    swapped = features.get("swapped", 0)
    texts = [features[name] for name in ("first", "second")]
    kept_lengths = special_tokens.shortened(tf.stack([tf.size(text) for text in texts]), room)
    around = [tf.constant(ids, tf.int32) for ids in (begin, end)]
    framed = [tf.concat([around[0], text[: kept_lengths[i]], around[1]], 0) for i, text in enumerate(texts)]
    tokens = tf.concat(framed, 0)
    candidates = masking.is_one_of(tokens, ordinary_ids)
    chosen, groups = masking.random_tokens(candidates, candidates, seeds[0], noise_density=noise_density)
    return {
      "inputs": masking.replace(tokens, chosen, groups, seeds[1], **replacement),
      "targets": tokens,
      "loss_weights": tf.cast(chosen, tf.int32),
      "token_types": tf.concat([tf.fill(tf.shape(framed[0]), swapped), tf.fill(tf.shape(framed[1]), 1 - swapped)], 0),
      "input_places": tf.concat([tf.range(tf.size(text)) for text in framed], 0),
    }

  return corrupt(dataset)
