"""Encoder-decoder objectives whose targets have loss weights or positions."""

from collections.abc import Mapping, Sequence

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import vocabularies
from t2t.data.objectives import chunking, corruption, masking

Features = dict[str, tf.Tensor]


def _behind(x: tf.Tensor, end: tf.Tensor | int) -> tf.Tensor:
  return tf.concat([tf.cast(x, tf.int32), [end]], 0)


def bert_style_masked_only(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  noise_density: float = 0.15,
  mask_rate: float = 0.9,
  random_rate: float = 0.1,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Corrupts inputs by `masking.hide`, with the whole text as targets and loss only at corrupted tokens.

  In:  {"targets": [3, 4, 5, 6, 7, 8]}      noise_density 0.3, with 99 as mask and EOS 1
  Out: {"inputs": [3, 99, 5, 6, 7, 4, 1], "targets": [3, 4, 5, 6, 7, 8, 1], "loss_weights": [0, 1, 0, 0, 0, 1, 0]}

  The decoder reads all previous tokens, as in `bert_style`. Only the loss differs: the model learns neither to copy
  text nor to end it.

  Chunks fit both lengths; set them equal, because the longer one is not filled.

  Args: see `span_corruption`, including one part per epoch of a long document.
  """
  vocabulary = output_features["targets"].vocabulary
  mask_id, ordinary_ids = vocabularies.mask_id(vocabulary), vocabularies.ordinary_ids(vocabulary)
  length = chunking.room(sequence_length, {"inputs": 1, "targets": 1})
  dataset = chunking.cut(dataset, length=length, merge_documents=merge_documents)

  @seqio.map_over_dataset(num_seeds=1)
  def corrupt(features: Features, seed: tf.Tensor) -> Features:
    tokens = features["targets"]
    options = {"mask_rate": mask_rate, "random_rate": random_rate, "noise_density": noise_density}
    inputs, hidden = masking.hide(tokens, seed, mask_id=mask_id, ordinary_ids=ordinary_ids, **options)
    return {
      "inputs": _behind(inputs, vocabulary.eos_id),
      "targets": _behind(tokens, vocabulary.eos_id),
      "loss_weights": _behind(hidden, 0),
    }

  return corrupt(dataset)


def masked_lm_seq2seq(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  noise_density: float = 0.15,
  mask_rate: float = 0.8,
  random_rate: float = 0.1,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Corrupts inputs as `masking.masked_lm` does; the decoder predicts the chosen tokens and reads only those.

  In:  {"targets": [3, 4, 5, 6, 7, 8]}      noise_density 0.3, with 99 as mask and EOS 1
  Out: {"inputs": [3, 99, 5, 6, 7, 4, 1], "targets": [3, 4, 5, 6, 7, 8, 1], "loss_weights": [0, 1, 0, 0, 0, 1, 0],
        "target_inputs": [99, 4, 99, 99, 99, 8, 99]}

  The decoder reads "target_inputs" shifted by one position. In place of all other tokens it reads masks, so that it has
  to take the text from the encoder.

  Chunks fit both lengths; set them equal, because the longer one is not filled.

  Args: see `masking.masked_lm`.

  Source: the masking rule of Devlin et al. 2019, section 3.1; masks in the decoder's input as in Song et al. 2019
    (MASS), section 3.1.
  """
  vocabulary = output_features["targets"].vocabulary
  mask_id, ordinary_ids = vocabularies.mask_id(vocabulary), vocabularies.ordinary_ids(vocabulary)
  replacement = {"mask_id": mask_id, "ordinary_ids": ordinary_ids, "mask_rate": mask_rate, "random_rate": random_rate}
  length = chunking.room(sequence_length, {"inputs": 1, "targets": 1})
  dataset = chunking.cut(dataset, length=length, merge_documents=merge_documents)

  @seqio.map_over_dataset(num_seeds=2)
  def corrupt(features: Features, seeds: Sequence[tf.Tensor]) -> Features:
    tokens = features["targets"]
    candidates = masking.is_one_of(tokens, ordinary_ids)
    chosen, groups = masking.random_tokens(candidates, candidates, seeds[0], noise_density=noise_density)
    return {
      "inputs": _behind(masking.replace(tokens, chosen, groups, seeds[1], **replacement), vocabulary.eos_id),
      "targets": _behind(tokens, vocabulary.eos_id),
      "loss_weights": _behind(chosen, 0),
      "target_inputs": _behind(tf.where(chosen, tokens, mask_id), mask_id),
    }

  return corrupt(dataset)


def mass_in_place(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  noise_density: float = 0.5,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Masks a fragment as `mass` does, with the fragment's positions in the text as decoder positions.

  In:  {"targets": [3, 4, 5, 6, 7, 8]}      with 99 as mask and EOS 1
  Out: {"inputs": [3, 4, 99, 99, 99, 8, 1], "targets": [5, 6, 7, 1], "target_places": [2, 3, 4, 5]}

  The decoder's start token, at the position of the first target, replaces MASS's mask. Relative or rotary positions
  encode distances only, so such a model learns the same from `mass`.

  Args: see `span_corruption`, including one part per epoch of a long document.

  Raises:
    UserError: targets do not fit.

  Source: Song et al. 2019 (MASS), section 3.2 and figure 1.
  """
  vocabulary = output_features["targets"].vocabulary
  mask_id, eos_id = vocabularies.mask_id(vocabulary), vocabulary.eos_id
  length = chunking.room(sequence_length, {"inputs": 1})
  longest = max(round(length * noise_density), 1) + 1
  if longest > sequence_length["targets"]:
    raise UserError(
      f"config.data.targets_length={sequence_length['targets']} is too short. With "
      f"config.data.inputs_length={sequence_length['inputs']} the targets are {longest - 1} of {length} text tokens, "
      f"and EOS. Set config.data.targets_length={longest}."
    )
  dataset = chunking.cut(dataset, length=length, merge_documents=merge_documents)

  @seqio.map_over_dataset(num_seeds=1)
  def corrupt(features: Features, seed: tf.Tensor) -> Features:
    tokens = features["targets"]
    inside = corruption.fragment(tf.ones_like(tokens, tf.bool), seed, noise_density=noise_density)
    places = tf.boolean_mask(tf.range(tf.size(tokens)), inside)
    return {
      "inputs": tf.concat([tf.where(inside, mask_id, tokens), [eos_id]], 0),
      "targets": tf.concat([tf.boolean_mask(tokens, inside), [eos_id]], 0),
      "target_places": tf.concat([places, places[-1:] + 1], 0),
    }

  return corrupt(dataset)
