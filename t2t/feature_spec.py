"""Which features a model is trained on and how long they are: one table for the pipeline and for what plans it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t2t import UserError
from t2t.models.architecture import ARCHITECTURES, Architecture, architecture_of

ENCODER = ("inputs", "targets", "loss_weights", "token_types")
# What stands beside the inputs of a task that heads answer: token by token which head is asked, what it should say, and
# which of several texts of the example the token belongs to.
ANSWERED = ("inputs", "token_types", "answer_heads", "answer_targets", "texts")
# What stands beside the targets of some tasks of an encoder with a decoder: where their loss counts, and at which
# places of a text they stand, if not at its first.
BESIDE_TARGETS = ("loss_weights", "target_places")
# Of pairs of texts: the tokens of both, and which of them each belongs to.
PAIRED = ("inputs", "token_types", "texts")
# Of a decoder alone whose rows say who sees whom: what is read, in the place of what stood there, what is predicted,
# where that counts, and whether all see each other.
NEXT_TOKENS = ("inputs", "targets", "loss_weights", "both_ways")
# The number of an example's task, where a model is told of it, and how many there may be: while rows are made of
# examples it stands in the high bits of their ids, see `converters.convert`.
TASK, TASK_BITS, MOST_TASKS = "task_number", 24, 127
UNKNOWN = "<unk>"  # what T5 writes as the answer of an example whose answer is not given
# Objectives whose examples have these.
WITH_NEXT_TOKENS = ("masked_next_token", "next_token")
# Objectives whose examples have targets alone; those of all others have inputs as well.
WITHOUT_INPUTS = ("causal_lm", "fill_in_the_middle")
# Those whose examples say where their tokens stand, by the feature that says so, see `places_of`.
WITH_PLACES = {"target_places": ("mass_in_place",), "input_places": ("translation_lm",)}


def places_of(kind: Architecture) -> str:
  """The feature by which a task may say where in its text each token stands, instead of at 0, 1, 2, ...

  It is of the side that is predicted; "" of a decoder alone, which reads and writes one text.
  """
  if kind.is_decoder_only:
    return ""
  return "target_places" if kind.is_generative else "input_places"


def are_compared(features: Sequence[str]) -> bool:
  """Whether a task yields pairs of texts that are compared; texts that are asked may be two as well."""
  return "texts" in features and "answer_heads" not in features


def task_lengths(
  architecture: str, features: Sequence[str], *, inputs_length: int, targets_length: int
) -> dict[str, int]:
  """How long each feature of a task may be, in the order that the feature converter expects.

  Args:
    architecture: of the model.
    features: those that the task yields.
    inputs_length, targets_length: of the config; an encoder alone has but inputs, whose targets are as long.

  Raises:
    UserError: no such architecture.
  """
  kind = architecture_of(architecture)
  if "texts" in features:
    base_features = PAIRED if are_compared(features) else ANSWERED
    return dict.fromkeys(
      (*base_features, *(name for name in ("targets", "loss_weights") if name in features)), inputs_length
    )
  if "both_ways" in features and kind.is_decoder_only:
    return dict.fromkeys(NEXT_TOKENS, targets_length)
  if not kind.is_generative:
    return dict.fromkeys((*ENCODER, *(name for name in features if name == places_of(kind))), inputs_length)
  if not kind.has_encoder_and_decoder and "inputs" not in features:
    return {"targets": targets_length}
  lengths = {"inputs": inputs_length, "targets": targets_length}
  beside = [name for name in BESIDE_TARGETS if name in features and kind.has_encoder_and_decoder]
  return lengths | dict.fromkeys(beside, targets_length)


def model_lengths(architecture: str, lengths: Mapping[str, int]) -> dict[str, int]:
  """Positions of the encoder and of the decoder, given `task_lengths`."""
  kind = ARCHITECTURES[architecture]
  if "texts" in lengths:
    return {kind.answers: lengths["inputs"]}
  if not kind.is_generative:
    return {"encoder": lengths["inputs"]}
  if kind.is_decoder_only:
    return {"decoder": lengths["targets"] if "both_ways" in lengths else sum(lengths.values())}
  return {"encoder": lengths["inputs"], "decoder": lengths["targets"]}


def check_learned(architecture: str, lengths: Mapping[str, int], most: int) -> None:
  """Whether so many positions are learned as a sequence may have.

  Args:
    architecture: of the model.
    lengths: of `task_lengths`.
    most: positions that are learned; 0: any number will do.

  Raises:
    UserError: there are fewer; names the keys that say how long a sequence is.
  """
  for side, length in model_lengths(architecture, lengths).items():
    if most and length > most:
      joined = ARCHITECTURES[architecture].is_decoder_only and "texts" not in lengths and "both_ways" not in lengths
      keys = (
        lengths if joined else [{"encoder": "inputs", "decoder": "inputs" if "texts" in lengths else "targets"}[side]]
      )
      raise UserError(
        f"{' + '.join(f'config.data.{key}_length' for key in keys)}: sequences of {length} in the {side}, but"
        f" config.model.max_length={most} positions are learned; shorten the data or learn more"
      )


def model_features(architecture: str, lengths: Mapping[str, int], *, pack: bool, tasks: bool = False) -> dict[str, int]:
  """Name and length of each feature of a batch, given `task_lengths`.

  Args:
    architecture: of the model.
    lengths: of the task's features.
    pack: whether a row has several examples.
    tasks: whether the model is told which task each position is of, or each row, where it has one example.
  """
  kind = ARCHITECTURES[architecture]
  sides = model_lengths(architecture, lengths)
  if tasks:
    lengths_of_tasks = {f"{side}_tasks": length if pack else 1 for side, length in sides.items()}
    return model_features(architecture, lengths, pack=pack) | lengths_of_tasks
  if "texts" in lengths:
    return dict.fromkeys(features_of_texts(architecture, tuple(lengths)), sides[kind.answers])
  names = [*kind.features, *(kind.with_inputs if "inputs" in lengths else ()), *(kind.packed if pack else ())]
  if places_of(kind) in lengths and not pack:
    names.append(f"{kind.predicts}_positions")
  return {name: sides[name.partition("_")[0]] for name in names}


def features_of_texts(architecture: str, features: Sequence[str]) -> tuple[str, ...]:
  """Features of a batch whose rows have several texts, whether or not its examples are packed.

  Args:
    architecture: of the model.
    features: of the task: heads are asked of the texts, or they are compared; tokens may be predicted as well.
  """
  side = ARCHITECTURES[architecture].answers
  names = ["input_tokens", "segment_ids", "positions"]
  names += ["answer_heads", "answer_targets", "answer_groups"] if "answer_heads" in features else []
  names += ["token_types"] if side == "encoder" else []
  names += ["target_tokens", "loss_weights"] if "targets" in features else []
  # What is read and not predicted is a prefix, as inputs are.
  prefix = () if "targets" in features else ARCHITECTURES[architecture].with_inputs
  return (*(f"{side}_{name}" for name in names), *prefix)


def texts_apart(groups: Any, texts: Any, *, numpy: Any = np) -> tuple[Any, Any]:
  """Segment ids and positions of a row in which an example may have several texts that do not see each other.

  In:  groups [1, 1, 2, 2, 2, 0], texts [0, 0, 0, 1, 1, 0]
  Out: [1, 1, 2, 3, 3, 0], [0, 1, 0, 0, 1, 0]

  Args:
    groups: number of the example of each token, from 1 on; 0: padding. int32 [length].
    texts: number of the text in the example, int32 [length].
    numpy: NumPy for arrays, tensorflow.experimental.numpy for tensors.
  """
  pairs = numpy.stack([groups, texts])
  begins = numpy.concatenate([groups[:1] == groups[:1], numpy.any(pairs[:, 1:] != pairs[:, :-1], axis=0)])
  number, index = (numpy.cumsum(x, dtype=np.int32) for x in (begins, numpy.ones_like(groups)))
  start = numpy.take(numpy.asarray(numpy.nonzero(begins)[0], dtype=np.int32), number - 1)
  return numpy.where(groups > 0, number, 0), numpy.where(groups > 0, index - 1 - start, 0)


def rows_of(vocab_size: int) -> int:
  """Rows of an embedding for a vocabulary: up to a multiple of 128, which meshes divide."""
  return -(-vocab_size // 128) * 128
