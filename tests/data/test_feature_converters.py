"""Conversion of task features to model features, as literal arrays."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import feature_converters


class Vocabulary(seqio.PassThroughVocabulary):
  """Pass-through ids: 1 is EOS, 9 the mask and 7 the separator."""

  mask_id, sep_id, cls_id = 9, 7, None

  def __init__(self, *, pad_id=0, bos_id=0):
    super().__init__(100, eos_id=1)
    self._pad, self._bos = pad_id, bos_id

  @property
  def pad_id(self):
    return self._pad

  @property
  def bos_id(self):
    return self._bos


ZERO_PADS = Vocabulary()
# Like GPT-2's vocabulary: 0 is an ordinary token, and EOS serves as padding and BOS.
ZERO_IS_TEXT = Vocabulary(pad_id=1, bos_id=1)


def convert(examples, architecture, *, inputs_length=8, targets_length=6, vocabulary=ZERO_PADS, pack=False):
  features = tuple(examples[0])
  lengths = feature_converters.feature_lengths(
    architecture, features, inputs_length=inputs_length, targets_length=targets_length
  )
  signature = {name: tf.TensorSpec([None], tf.int32) for name in features}
  dataset = tf.data.Dataset.from_generator(lambda: iter(examples), output_signature=signature)
  converted = feature_converters.convert(dataset, architecture, lengths, vocabulary=vocabulary, pack=pack)
  return [{name: x.tolist() for name, x in row.items()} for row in converted.as_numpy_iterator()]


def test_encoder_decoder_features_are_seqios():
  """A vocabulary that pads with 0 gives the same features as seqio's converter."""
  assert convert([{"inputs": [3, 4, 1], "targets": [5, 1]}], "encoder_decoder", inputs_length=4, targets_length=3) == [
    {
      "encoder_input_tokens": [3, 4, 1, 0],
      "decoder_target_tokens": [5, 1, 0],
      "decoder_input_tokens": [0, 5, 1],
      "decoder_loss_weights": [1, 1, 0],
    }
  ]


def test_an_encoder_without_inputs_reads_one_token():
  """A language model that runs as an encoder-decoder has EOS as its inputs."""
  found = convert([{"targets": [5, 6, 1]}], "encoder_decoder", inputs_length=3)
  assert found[0]["encoder_input_tokens"] == [1, 0, 0]
  assert found[0]["decoder_target_tokens"] == [5, 6, 1, 0, 0, 0]


def test_a_decoder_takes_targets_alone():
  """Features of a causal language model."""
  assert convert([{"targets": [5, 6, 1]}], "decoder_only", targets_length=4) == [
    {
      "decoder_target_tokens": [5, 6, 1, 0],
      "decoder_input_tokens": [0, 5, 6, 1],
      "decoder_loss_weights": [1, 1, 1, 0],
    }
  ]


def test_a_decoder_takes_inputs_before_targets():
  """Only targets have a loss; the prefix consists of the start token and the inputs."""
  assert convert([{"inputs": [3, 4], "targets": [5, 1]}], "decoder_only", inputs_length=3, targets_length=3) == [
    {
      "decoder_target_tokens": [3, 4, 5, 1, 0, 0],
      "decoder_input_tokens": [0, 3, 4, 5, 1, 0],
      "decoder_loss_weights": [0, 0, 1, 1, 0, 0],
      "decoder_causal_attention": [1, 1, 1, 0, 0, 0],
    }
  ]


@pytest.mark.slow
def test_a_token_0_is_no_padding():
  """A token 0 has a loss and a segment, packed or not; padding and BOS are the vocabulary's own ids."""
  examples = [{"targets": [0, 5, 0]}, {"targets": [0, 6]}]
  assert convert(examples, "decoder_only", targets_length=4, vocabulary=ZERO_IS_TEXT) == [
    {
      "decoder_target_tokens": [0, 5, 0, 1],
      "decoder_input_tokens": [1, 0, 5, 0],
      "decoder_loss_weights": [1, 1, 1, 0],
      "decoder_segment_ids": [1, 1, 1, 0],
    },
    {
      "decoder_target_tokens": [0, 6, 1, 1],
      "decoder_input_tokens": [1, 0, 6, 1],
      "decoder_loss_weights": [1, 1, 0, 0],
      "decoder_segment_ids": [1, 1, 0, 0],
    },
  ]
  packed = convert(examples, "decoder_only", vocabulary=ZERO_IS_TEXT, pack=True)
  assert packed == [
    {
      "decoder_target_tokens": [0, 5, 0, 0, 6, 1],
      "decoder_input_tokens": [1, 0, 5, 1, 0, 1],
      "decoder_loss_weights": [1, 1, 1, 1, 1, 0],
      "decoder_segment_ids": [1, 1, 1, 2, 2, 0],
      "decoder_positions": [0, 1, 2, 0, 1, 0],
    }
  ]


@pytest.mark.slow
def test_an_encoder_takes_weights_from_the_task():
  """Loss weights come from the task, even at tokens other than the mask; a weight of 0 is not padding."""
  examples = [
    {"inputs": [8, 9, 4, 1], "targets": [8, 7, 4, 1], "loss_weights": [0, 1, 0, 0]},
    {"inputs": [8, 5, 1], "targets": [8, 3, 1], "loss_weights": [0, 1, 0]},
  ]
  assert convert(examples, "encoder_only", pack=True) == [
    {
      "encoder_input_tokens": [8, 9, 4, 1, 8, 5, 1, 0],
      "encoder_target_tokens": [8, 7, 4, 1, 8, 3, 1, 0],
      "encoder_loss_weights": [0, 1, 0, 0, 0, 1, 0, 0],
      "encoder_token_types": [0, 0, 1, 1, 0, 0, 0, 0],
      "encoder_segment_ids": [1, 1, 1, 1, 2, 2, 2, 0],
      "encoder_positions": [0, 1, 2, 3, 0, 1, 2, 0],
    }
  ]
  first = convert(examples, "encoder_only", inputs_length=5)[0]
  assert first["encoder_loss_weights"] == [0, 1, 0, 0, 0]
  assert first["encoder_segment_ids"] == [1, 1, 1, 1, 0]


def test_an_encoder_without_weights_has_loss_where_the_mask_is():
  """Tasks without weights follow seqio's convention."""
  found = convert([{"inputs": [8, 9, 9, 1], "targets": [8, 3, 4, 1]}], "encoder_only", inputs_length=5)[0]
  assert found["encoder_loss_weights"] == [0, 1, 1, 0, 0]


def test_token_types():
  """Type 0 covers BERT's first part with its separator, and type 1 covers the rest."""
  cls, a, b, sep, c = 2, 5, 6, 7, 8
  tokens = tf.constant([cls, a, b, sep, c, sep])
  np.testing.assert_array_equal(feature_converters.token_types(tokens, sep), [0, 0, 0, 0, 1, 1])
  np.testing.assert_array_equal(feature_converters.token_types(tokens, None), [0] * 6)


def test_lengths_of_the_model():
  """A decoder-only model puts inputs and targets in one sequence; an encoder-only model has only its inputs."""

  def lengths(architecture, *features):
    found = feature_converters.feature_lengths(architecture, features, inputs_length=8, targets_length=6)
    return feature_converters.model_lengths(architecture, found)

  assert lengths("encoder_decoder", "inputs", "targets") == {"encoder": 8, "decoder": 6}
  assert lengths("decoder_only", "inputs", "targets") == {"decoder": 14}
  assert lengths("decoder_only", "targets") == {"decoder": 6}
  assert lengths("encoder_only", "inputs", "targets", "loss_weights") == {"encoder": 8}


def test_an_unknown_architecture_is_refused():
  """The message lists the known architectures."""
  with pytest.raises(UserError, match="encoder_decoder, decoder_only, encoder_only"):
    feature_converters.feature_lengths("encoder", ("targets",), inputs_length=8, targets_length=6)
