"""Feature converters: map a task's features to a model's, by architecture.

They are seqio's, except the encoder's, which takes loss positions from the task, and those for tasks with positions or
with pairs of texts.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools

import seqio
import tensorflow as tf
from tensorflow.experimental import numpy as tnp

from t2t import feature_spec
from t2t.data import vocabularies
from t2t.models.architecture import ARCHITECTURES, ENCODER_DECODER

_SPEC = seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)

# Optional features of tasks -> features of the model.
_BESIDE_TARGETS = {
  "loss_weights": "decoder_loss_weights",
  "target_places": "decoder_positions",
  "target_inputs": "decoder_input_tokens",
}

# Features of a task that are ids of its vocabulary; the others are counts or flags.
_IDS = ("inputs", "targets")


def token_types(tokens: tf.Tensor, sep_id: int | None) -> tf.Tensor:
  """Returns the token types of a pair, as in BERT: 0 up to the first separator, 1 after it.

  In:  [CLS] a b [SEP] c [SEP]
  Out: [0, 0, 0, 0, 1, 1]
  """
  if sep_id is None:
    return tf.zeros_like(tokens)
  before = tf.cumsum(tf.cast(tokens == sep_id, tf.int32), exclusive=True)
  return tf.minimum(before, 1)


class EncoderFeatureConverter(seqio.FeatureConverter):
  """Converter for masked language models: seqio's, with loss weights and token types from the task.

  Packed, two examples:
    [{"inputs": [8, 9, 4, 1], "targets": [8, 7, 4, 1], "loss_weights": [0, 1, 0, 0], "token_types": [0, 0, 0, 0]},
     {"inputs": [8, 9, 1], "targets": [8, 3, 1], "loss_weights": [0, 1, 0], "token_types": [0, 0, 0]}]
  become, with length 8:
     encoder_input_tokens [8, 9, 4, 1, 8, 9, 1, 0]
    encoder_target_tokens [8, 7, 4, 1, 8, 3, 1, 0]
     encoder_loss_weights [0, 1, 0, 0, 0, 1, 0, 0]
      encoder_token_types [0, 0, 0, 0, 0, 0, 0, 0]
      encoder_segment_ids [1, 1, 1, 1, 2, 2, 2, 0]
        encoder_positions [0, 1, 2, 3, 0, 1, 2, 0]
  A task's "input_places" are the positions, packed or not, and its "input_ranks" become encoder_ranks.
  """

  TASK_FEATURES = dict.fromkeys(feature_spec.ENCODER, _SPEC)
  MODEL_FEATURES = dict.fromkeys(
    ("encoder_input_tokens", "encoder_target_tokens", "encoder_loss_weights", "encoder_token_types"), _SPEC
  )
  PACKING_FEATURE_DTYPES = {"encoder_segment_ids": tf.int32, "encoder_positions": tf.int32}

  def __init__(self, task_features: Sequence[str] = (), **options):
    super().__init__(**options)
    self._beside_names = {name: feature_spec.BESIDE_INPUTS[name] for name in task_features}
    self.TASK_FEATURES = {**self.TASK_FEATURES, **dict.fromkeys(self._beside_names, _SPEC)}
    self.MODEL_FEATURES = {**self.MODEL_FEATURES, **dict.fromkeys(self._beside_names.values(), _SPEC)}

  def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
    def convert(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
      model_features = {
        "encoder_input_tokens": features["inputs"],
        "encoder_target_tokens": features["targets"],
        "encoder_loss_weights": features["loss_weights"],
        "encoder_token_types": features["token_types"],
      }
      if self.pack:
        model_features["encoder_segment_ids"] = features["inputs_segment_ids"]
        model_features["encoder_positions"] = features["inputs_positions"]
      return model_features | {name: features[task_feature] for task_feature, name in self._beside_names.items()}

    fill = seqio.trim_and_pack_dataset if self.pack else seqio.trim_and_pad_dataset
    return fill(ds, task_feature_lengths).map(convert, num_parallel_calls=tf.data.AUTOTUNE)

  def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> Mapping[str, int]:
    """Returns the length of the inputs for every feature."""
    names = [*self.MODEL_FEATURES, *(self.PACKING_FEATURE_DTYPES if self.pack else ())]
    return dict.fromkeys(names, task_feature_lengths["inputs"])


class TargetsFeatureConverter(seqio.EncDecFeatureConverter):
  """seqio's encoder-decoder converter with additional features of the targets, see `_BESIDE_TARGETS`.

  Packed, two examples:
    [{"inputs": [8, 9, 9, 1], "targets": [6, 4, 1], "loss_weights": [1, 1, 0], "target_places": [1, 2, 3]},
     {"inputs": [9, 1], "targets": [5, 1], "loss_weights": [1, 0], "target_places": [0, 1]}]
  become, beside seqio's features of inputs and targets, with length 6:
     decoder_loss_weights [1, 1, 0, 1, 0, 0]
        decoder_positions [1, 2, 3, 0, 1, 0]
  The decoder reads a task's "target_inputs" instead of the targets, shifted alike.
  """

  def __init__(self, task_features: Sequence[str], **options):
    super().__init__(**options)
    self._beside_names = {_BESIDE_TARGETS[name]: name for name in task_features}
    self.TASK_FEATURES = {**self.TASK_FEATURES, **dict.fromkeys(task_features, _SPEC)}
    self.MODEL_FEATURES = {**self.MODEL_FEATURES, **dict.fromkeys(self._beside_names, _SPEC)}

  def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
    def convert(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
      targets, segments = example["targets"], example.get("targets_segment_ids")
      read = example.get("target_inputs", targets)
      model_features = {
        "encoder_input_tokens": example["inputs"],
        "decoder_target_tokens": targets,
        "decoder_input_tokens": seqio.utils.make_autoregressive_inputs(read, segments, bos_id=self.bos_id),
        "decoder_loss_weights": tf.cast(targets > 0, tf.int32),
      }
      if self.pack:
        for side, name in (("encoder", "inputs"), ("decoder", "targets")):
          model_features |= {f"{side}_{kind}": example[f"{name}_{kind}"] for kind in ("segment_ids", "positions")}
      beside = {name: feature for name, feature in self._beside_names.items() if feature != "target_inputs"}
      return model_features | {name: example[task_feature] for name, task_feature in beside.items()}

    fill = seqio.trim_and_pack_dataset if self.pack else seqio.trim_and_pad_dataset
    return fill(ds, task_feature_lengths).map(convert, num_parallel_calls=tf.data.AUTOTUNE)

  def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> Mapping[str, int]:
    """Returns seqio's lengths, with the length of the targets for the additional features."""
    beside_lengths = dict.fromkeys(self._beside_names, task_feature_lengths["targets"])
    return {**super().get_model_feature_lengths(task_feature_lengths), **beside_lengths}


def _encoder_decoder_converter(*, task_features: Sequence[str], **options) -> seqio.FeatureConverter:
  return TargetsFeatureConverter(task_features, **options) if task_features else seqio.EncDecFeatureConverter(**options)


class NextTokensFeatureConverter(seqio.FeatureConverter):
  """Converter for a decoder with an attention direction per row: inputs are one position behind their targets.

  Packed, two examples, the first bidirectional:
    [{"inputs": [3, 99, 5, 1], "targets": [3, 4, 5, 1], "loss_weights": [0, 1, 0, 0], "both_ways": [1, 1, 1, 1]},
     {"inputs": [6, 7, 1], "targets": [6, 7, 1], "loss_weights": [1, 1, 1], "both_ways": [0, 0, 0]}]
  become, with length 8 and BOS 0:
        decoder_input_tokens [0, 3, 99, 5, 0, 6, 7, 0]
       decoder_target_tokens [3, 4, 5, 1, 6, 7, 1, 0]
        decoder_loss_weights [0, 1, 0, 0, 1, 1, 1, 0]
    decoder_causal_attention [1, 1, 1, 1, 0, 0, 0, 0]
         decoder_segment_ids [1, 1, 1, 1, 2, 2, 2, 0]
           decoder_positions [0, 1, 2, 3, 0, 1, 2, 0]
  A task's "noise_levels" become decoder_noise_levels.
  """

  TASK_FEATURES = dict.fromkeys(feature_spec.NEXT_TOKENS, _SPEC)
  MODEL_FEATURES = dict.fromkeys(
    ("decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights", "decoder_causal_attention"), _SPEC
  )
  PACKING_FEATURE_DTYPES = {"decoder_segment_ids": tf.int32, "decoder_positions": tf.int32}

  def __init__(self, task_features: Sequence[str] = (), **options):
    super().__init__(**options)
    self._beside_names = {name: feature_spec.BESIDE_NEXT_TOKENS[name] for name in task_features}
    self.TASK_FEATURES = {**self.TASK_FEATURES, **dict.fromkeys(self._beside_names, _SPEC)}
    self.MODEL_FEATURES = {**self.MODEL_FEATURES, **dict.fromkeys(self._beside_names.values(), _SPEC)}

  def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
    def convert(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
      segments = example.get("inputs_segment_ids")
      read = seqio.utils.make_autoregressive_inputs(example["inputs"], segments, bos_id=self.bos_id)
      model_features = {
        "decoder_input_tokens": read,
        "decoder_target_tokens": example["targets"],
        "decoder_loss_weights": example["loss_weights"],
        "decoder_causal_attention": example["both_ways"],
      }
      if self.pack:
        model_features["decoder_segment_ids"] = segments
        model_features["decoder_positions"] = example["inputs_positions"]
      return model_features | {name: example[task_feature] for task_feature, name in self._beside_names.items()}

    fill = seqio.trim_and_pack_dataset if self.pack else seqio.trim_and_pad_dataset
    return fill(ds, task_feature_lengths).map(convert, num_parallel_calls=tf.data.AUTOTUNE)

  def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> Mapping[str, int]:
    """Returns the length of the targets for every feature."""
    names = [*self.MODEL_FEATURES, *(self.PACKING_FEATURE_DTYPES if self.pack else ())]
    return dict.fromkeys(names, task_feature_lengths["targets"])


class TextsFeatureConverter(seqio.FeatureConverter):
  """Converter for texts with answers of heads, or for texts that are compared: for encoders, encoder-decoders,
  decoders.

  Packed, two examples, the second with two texts that do not attend to each other:
    [{"inputs": [8, 9, 4], "token_types": [0, 0, 0], "texts": [0, 0, 0], "answer_heads": [1, 0, 0],
      "answer_targets": [5, 0, 0]},
     {"inputs": [8, 9, 8, 7], "token_types": [0, 1, 0, 1], "texts": [0, 0, 1, 1], "answer_heads": [2, 0, 2, 0],
      "answer_targets": [0, 0, 1, 0]}]
  become, with length 8:
       encoder_input_tokens [8, 9, 4, 8, 9, 8, 7, 0]
        encoder_token_types [0, 0, 0, 0, 1, 0, 1, 0]
       encoder_answer_heads [1, 0, 0, 2, 0, 2, 0, 0]
     encoder_answer_targets [5, 0, 0, 0, 0, 1, 0, 0]
      encoder_answer_groups [1, 1, 1, 2, 2, 2, 2, 0]
        encoder_segment_ids [1, 1, 1, 2, 2, 3, 3, 0]
          encoder_positions [0, 1, 2, 0, 1, 0, 1, 0]
  Targets and loss weights of predicted tokens are added beside them; compared pairs have no answers. A decoder has
  decoder_causal_attention instead of token types, 1 for every token, because it reads the texts as inputs.
  """

  TASK_FEATURES = {}
  MODEL_FEATURES = {}
  PACKING_FEATURE_DTYPES = {}

  def __init__(self, architecture: str, task_features: Sequence[str], **options):
    super().__init__(**options)
    self._side = ARCHITECTURES[architecture].answers
    self.TASK_FEATURES = dict.fromkeys(task_features, _SPEC)
    self.MODEL_FEATURES = dict.fromkeys(feature_spec.features_of_texts(architecture, task_features), _SPEC)

  def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
    names = {"inputs": "input_tokens", "targets": "target_tokens"}

    def convert(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
      real = tf.cast(example["inputs"] > 0, tf.int32)
      groups = example["inputs_segment_ids"] if self.pack else real
      segments, positions = feature_spec.texts_apart(groups, example["texts"], numpy=tnp)
      unprefixed = {names.get(name, name): example[name] for name in self.TASK_FEATURES if name != "texts"}
      unprefixed |= {"answer_groups": groups, "segment_ids": segments, "positions": positions, "causal_attention": real}
      return {name: unprefixed[name.removeprefix(f"{self._side}_")] for name in self.MODEL_FEATURES}

    fill = seqio.trim_and_pack_dataset if self.pack else seqio.trim_and_pad_dataset
    return fill(ds, task_feature_lengths).map(convert, num_parallel_calls=tf.data.AUTOTUNE)

  def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> Mapping[str, int]:
    """Returns the length of the inputs for every feature."""
    return dict.fromkeys(self.MODEL_FEATURES, task_feature_lengths["inputs"])


# architecture -> its feature converter
FEATURE_CONVERTERS: dict[str, Callable[..., seqio.FeatureConverter]] = {
  "encoder_decoder": _encoder_decoder_converter,
  # "inputs" and "targets" in sequence, with the loss on targets; or "targets" alone.
  "decoder_only": seqio.DecoderFeatureConverter,
  "encoder_only": EncoderFeatureConverter,
}


def _tasks_apart(example: dict[str, tf.Tensor], *, pack: bool) -> dict[str, tf.Tensor]:
  """Separates the task number from the ids: per position, or per row if unpacked.

  In:  decoder_input_tokens [0, 2 * 2**24 + 7, 9], decoder_target_tokens [2 * 2**24 + 7, 9, 0], packed
  Out: decoder_input_tokens [0, 7, 9], decoder_target_tokens [7, 9, 0], decoder_tasks [2, 0, 0]
  """
  apart_features = dict(example)
  for side in ENCODER_DECODER.sides:
    tokens = [f"{side}_{kind}_tokens" for kind in ("input", "target") if f"{side}_{kind}_tokens" in example]
    if tokens:
      # The first input token of a decoder has no task number.
      tasks = tf.bitwise.right_shift(example[tokens[-1]], feature_spec.TASK_BITS)
      apart_features[f"{side}_tasks"] = tasks if pack else tf.reduce_max(tasks, keepdims=True)
    for name in tokens:
      apart_features[name] = tf.bitwise.bitwise_and(example[name], 2**feature_spec.TASK_BITS - 1)
  return apart_features


# The same functions as in `t2t plan`, which does not import TensorFlow.
feature_lengths, model_lengths = feature_spec.task_lengths, feature_spec.model_lengths


@dataclasses.dataclass(frozen=True)
class _Completed:
  """Adds features that an architecture needs and a task may leave out."""

  architecture: str
  vocabulary: seqio.Vocabulary

  def __call__(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    features = dict(features)
    if ARCHITECTURES[self.architecture].has_encoder_and_decoder and "inputs" not in features:
      # A language model without a prompt gives the encoder one token.
      features["inputs"] = tf.constant([self.vocabulary.eos_id], tf.int32)
    if not ARCHITECTURES[self.architecture].is_generative:
      inputs = features["inputs"]
      if "loss_weights" not in features:
        # seqio's convention: loss at the masks.
        mask = vocabularies.mask_id(self.vocabulary)
        features["loss_weights"] = tf.cast(inputs == mask, tf.int32)
      if "token_types" not in features:
        features["token_types"] = token_types(features["targets"], vocabularies.sep_id(self.vocabulary))
    return features


def convert(
  examples: tf.data.Dataset,
  architecture: str,
  lengths: Mapping[str, int],
  *,
  vocabulary: seqio.Vocabulary,
  pack: bool,
) -> tf.data.Dataset:
  """Yields model features, one example or packed sequence at a time.

  seqio pads with 0 and recognizes padding by it. During conversion every number is therefore raised by one, so that
  token 0 and weight 0 do not count as padding. The number of an example's task, if there is one, is in the high bits of
  its ids, so that cutting, joining, moving and packing keep it.

  Args:
    examples: examples of a task.
    architecture: a key of `FEATURE_CONVERTERS`.
    lengths: see `feature_lengths`.
    vocabulary: vocabulary of the targets.
    pack: put several examples in one sequence.
  """
  kind = ARCHITECTURES[architecture]
  beside_features = _BESIDE_TARGETS if kind.has_encoder_and_decoder else feature_spec.optional_features(kind)
  beside_names = {name: of_model for name, of_model in beside_features.items() if name in lengths}
  zero_is_padding = vocabularies.pads_with_zero(vocabulary) and kind.is_generative
  optional = tuple(beside_names)
  seen = {"loss_weights": "decoder_loss_weights", "both_ways": "decoder_causal_attention"}
  beside_names |= seen if "both_ways" in lengths else {}
  shift = 0 if zero_is_padding and not beside_names else 1
  bos_id = vocabularies.bos_id(vocabulary)
  options = {"pack": pack, "apply_length_check": False}
  if "texts" in lengths:
    shift = 1  # numbers of texts, classes and bits are not ids, and include 0
    converter = TextsFeatureConverter(architecture, tuple(lengths), **options)
    complete = dict
  else:
    has_direction = "both_ways" in lengths
    options |= {"task_features": optional} if has_direction or not kind.is_decoder_only else {}
    make = NextTokensFeatureConverter if has_direction else FEATURE_CONVERTERS[architecture]
    converter = make(bos_id=bos_id + shift, **options)
    complete = _Completed(architecture, vocabulary)
  names = tuple(lengths)
  # AutoGraph takes as long as everything else, and only seqio's packing needs it.
  not_converted = tf.autograph.experimental.do_not_convert
  has_task = feature_spec.TASK in examples.element_spec

  def raise_all(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    shifted = {name: tf.cast(x, tf.int32) + shift for name, x in complete(example).items() if name in names}
    if has_task:
      high = tf.bitwise.left_shift(example[feature_spec.TASK], feature_spec.TASK_BITS)
      # Padding that a task made itself stays padding.
      shifted |= {name: tf.where(x == 0, 0, x + high) for name, x in shifted.items() if name in _IDS}
    return shifted

  raised = examples.map(not_converted(raise_all), num_parallel_calls=tf.data.AUTOTUNE)
  converted = (converter if pack else not_converted(converter.__call__))(raised, lengths)
  if has_task:
    split_tasks = functools.partial(_tasks_apart, pack=pack)
    converted = converted.map(not_converted(split_tasks), num_parallel_calls=tf.data.AUTOTUNE)
  if not shift:
    return converted
  padding = max(vocabulary.pad_id, 0)
  raised_too = {"encoder_loss_weights", "encoder_token_types"}
  raised_too |= set(beside_names.values())

  def lower(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    features = dict(features)
    for side in ("encoder", "decoder"):
      tokens = features.get(f"{side}_input_tokens" if side == "encoder" else f"{side}_target_tokens")
      if tokens is not None and not zero_is_padding:
        # Without segment ids a model takes id 0 for padding.
        features.setdefault(f"{side}_segment_ids", tf.cast(tokens > 0, tf.int32))
    for name, x in features.items():
      if name.endswith("_tokens"):
        features[name] = tf.where(x > 0, x - 1, padding)
      elif name in raised_too or name.endswith("answer_heads"):
        features[name] = tf.maximum(x - 1, 0)
      elif name.endswith("answer_targets"):
        # 0 for padding by now, but any value where a head is asked.
        has_head = features[name.replace("targets", "heads")] > 0
        features[name] = tf.where(has_head, x - 1, 0)
    return features

  return converted.map(not_converted(lower), num_parallel_calls=tf.data.AUTOTUNE)
