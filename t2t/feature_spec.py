"""Names and lengths of the features that a model trains on, shared by the data pipeline and by planning."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t2t import UserError
from t2t.models.architecture import ARCHITECTURES, Architecture, architecture_of

ENCODER = ("inputs", "targets", "loss_weights", "token_types")
# Features of a task for heads: for each input token the head that predicts there, its label, and the index of the text
# in the example that the token belongs to.
ANSWERED = ("inputs", "token_types", "answer_heads", "answer_targets", "texts")
# Optional features beside the targets of an encoder-decoder: loss weights, token positions in the original text where
# these are not 0, 1, 2, ..., and the tokens that the decoder reads where these are not the targets.
BESIDE_TARGETS = ("loss_weights", "target_places", "target_inputs")
# Optional feature beside the inputs of an encoder: the order in which tokens are predicted, see `AttentionMask.ranks`.
RANKS = "input_ranks"
# Features of text pairs: the tokens of both texts, and the text that each token belongs to.
PAIRED = ("inputs", "token_types", "texts")
# Features of a decoder-only model with an explicit mask: input tokens, which replace the shifted targets, labels, loss
# weights, and the positions that attend in both directions.
NEXT_TOKENS = ("inputs", "targets", "loss_weights", "both_ways")
# Feature with the example's task id for models that take it, number of bits of a token id, and largest number of tasks.
# During packing, the bits above a token id contain the task id, see `feature_converters.convert`.
TASK, TASK_BITS, MOST_TASKS = "task_number", 24, 127
UNKNOWN = "<unk>"  # T5's label of an example without an answer
# Objectives with the features NEXT_TOKENS.
WITH_NEXT_TOKENS = ("masked_next_token", "next_token", "masked_diffusion", "answer_diffusion")
# Objectives with targets only; all others have inputs, too.
WITHOUT_INPUTS = ("causal_lm", "fill_in_the_middle")
# Corpora whose tasks of t2t/tasks are called CORPUS_OBJECTIVE.
CORPORA = ("c4", "docs", "wikipedia")
# Optional features beside the inputs of an encoder, and their names in a batch: token positions in the original text,
# ranks, which limit attention (`AttentionMask.ranks`), noise levels of masked diffusion, the distance up to which
# words are the context of each word, and counts of pairs, the bits of float32.
BESIDE_INPUTS = {
  "input_places": "encoder_positions",
  "input_ranks": "encoder_ranks",
  "noise_levels": "encoder_noise_levels",
  "windows": "encoder_windows",
  "pair_counts": "encoder_pair_counts",
}
BESIDE_NEXT_TOKENS = {"noise_levels": "decoder_noise_levels"}  # optional feature beside NEXT_TOKENS
NOISE_UNITS = 2**20  # a token is masked with probability level / NOISE_UNITS; float32 holds it exactly
# Objectives of masked diffusion, which need config.train.loss=diffusion.
DIFFUSION = ("masked_diffusion", "answer_diffusion")
# Objectives of word vectors, which need config.train.loss=negative_sampling.
STATIC = ("skip_gram", "cbow")
# Objectives that provide optional features, by feature name, see `optional_features`.
WITH_OPTIONAL = {
  "target_places": ("mass_in_place",),
  "input_places": ("translation_lm",),
  "input_ranks": ("unilm", "permuted_lm", "overlapping_permuted_lm"),
  "noise_levels": DIFFUSION,
  "windows": STATIC,
  "pair_counts": ("glove",),
}
# Objectives that predict unmasked tokens in the order of their ranks; models need two streams.
IN_ORDER = ("permuted_lm", "overlapping_permuted_lm")
# Objectives whose examples begin in the middle of the one before.
WITH_OVERLAP = ("overlapping_permuted_lm",)


def optional_features(kind: Architecture) -> dict[str, str]:
  """Returns the features of the predicted side that a task may give, with their names in a batch.

  Positions replace 0, 1, 2, ...; ranks limit the attention of an encoder. A decoder-only model has only noise levels.
  """
  if kind.is_decoder_only:
    return BESIDE_NEXT_TOKENS
  return {"target_places": "decoder_positions"} if kind.is_generative else BESIDE_INPUTS


def are_compared(features: Sequence[str]) -> bool:
  """Returns True for tasks that compare pairs of texts; texts with head labels may be pairs, too, and do not count."""
  return "texts" in features and "answer_heads" not in features


def task_lengths(
  architecture: str, features: Sequence[str], *, inputs_length: int, targets_length: int
) -> dict[str, int]:
  """Returns the maximum length of each feature of a task, in the order that the feature converter expects.

  Args:
    architecture: name of the architecture.
    features: features of the task's examples.
    inputs_length, targets_length: lengths in the config; an encoder-only model uses inputs_length for its targets, too.

  Raises:
    UserError: the architecture is unknown.
  """
  kind = architecture_of(architecture)
  if "texts" in features:
    base_features = PAIRED if are_compared(features) else ANSWERED
    return dict.fromkeys(
      (*base_features, *(name for name in ("targets", "loss_weights") if name in features)), inputs_length
    )
  if "both_ways" in features and kind.is_decoder_only:
    beside_next = [name for name in BESIDE_NEXT_TOKENS if name in features]
    return dict.fromkeys((*NEXT_TOKENS, *beside_next), targets_length)
  if not kind.is_generative:
    return dict.fromkeys((*ENCODER, *(name for name in features if name in BESIDE_INPUTS)), inputs_length)
  if not kind.has_encoder_and_decoder and "inputs" not in features:
    return {"targets": targets_length}
  lengths = {"inputs": inputs_length, "targets": targets_length}
  beside = [name for name in BESIDE_TARGETS if name in features and kind.has_encoder_and_decoder]
  return lengths | dict.fromkeys(beside, targets_length)


def model_lengths(architecture: str, lengths: Mapping[str, int]) -> dict[str, int]:
  """Returns the sequence lengths of the encoder and the decoder from the lengths of `task_lengths`."""
  kind = ARCHITECTURES[architecture]
  if "texts" in lengths:
    return {kind.answers: lengths["inputs"]}
  if not kind.is_generative:
    return {"encoder": lengths["inputs"]}
  if kind.is_decoder_only:
    return {"decoder": lengths["targets"] if "both_ways" in lengths else sum(lengths.values())}
  return {"encoder": lengths["inputs"], "decoder": lengths["targets"]}


def check_learned(architecture: str, lengths: Mapping[str, int], most: int) -> None:
  """Checks that the learned position embeddings cover the sequence length.

  Args:
    architecture: name of the architecture.
    lengths: result of `task_lengths`.
    most: number of learned positions; 0: any length is allowed.

  Raises:
    UserError: a sequence is longer; the message contains the config keys of its length.
  """
  for side, length in model_lengths(architecture, lengths).items():
    if most and length > most:
      joined = ARCHITECTURES[architecture].is_decoder_only and "texts" not in lengths and "both_ways" not in lengths
      keys = (
        lengths if joined else [{"encoder": "inputs", "decoder": "inputs" if "texts" in lengths else "targets"}[side]]
      )
      raise UserError(
        f"{' + '.join(f'config.data.{key}_length' for key in keys)}: sequences of {length} tokens in the {side}, "
        f"but only config.model.max_length={most} positions are learned. Shorten the sequences or set "
        f"--config.model.max_length={length}."
      )


def model_features(
  architecture: str, lengths: Mapping[str, int], *, pack: bool, tasks: bool = False, continuous: bool = False
) -> dict[str, int]:
  """Returns name and length of each feature of a batch from the lengths of `task_lengths`.

  Args:
    architecture: name of the architecture.
    lengths: lengths of the task's features.
    pack: whether a row contains several examples.
    tasks: whether the model takes task ids: one per position with packing, else one per row.
    continuous: whether rows continue those of the batch before, with a flag per row.
  """
  kind = ARCHITECTURES[architecture]
  if continuous:
    flag = {f"{kind.predicts}_continues": 1}
    return model_features(architecture, lengths, pack=pack, tasks=tasks) | flag
  sides = model_lengths(architecture, lengths)
  if tasks:
    lengths_of_tasks = {f"{side}_tasks": length if pack else 1 for side, length in sides.items()}
    return model_features(architecture, lengths, pack=pack) | lengths_of_tasks
  if "texts" in lengths:
    return dict.fromkeys(features_of_texts(architecture, tuple(lengths)), sides[kind.answers])
  names = [*kind.features, *(kind.with_inputs if "inputs" in lengths else ()), *(kind.packed if pack else ())]
  added = [in_batch for name, in_batch in optional_features(kind).items() if name in lengths]
  names += [name for name in added if name not in names]
  return {name: sides[name.partition("_")[0]] for name in names}


def features_of_texts(architecture: str, features: Sequence[str]) -> tuple[str, ...]:
  """Returns the features of a batch with several texts in a row, packed or not.

  Args:
    architecture: name of the architecture.
    features: features of the task, with head labels or with compared texts; tokens may be predicted, too.
  """
  side = ARCHITECTURES[architecture].answers
  names = ["input_tokens", "segment_ids", "positions"]
  names += ["answer_heads", "answer_targets", "answer_groups"] if "answer_heads" in features else []
  names += ["token_types"] if side == "encoder" else []
  names += ["target_tokens", "loss_weights"] if "targets" in features else []
  # Texts without predicted tokens are a prefix with bidirectional attention, as inputs are.
  prefix = () if "targets" in features else ARCHITECTURES[architecture].with_inputs
  return (*(f"{side}_{name}" for name in names), *prefix)


def texts_apart(groups: Any, texts: Any, *, numpy: Any = np) -> tuple[Any, Any]:
  """Returns segment ids and positions of a row of examples with several texts, which do not attend to each other.

  In:  groups [1, 1, 2, 2, 2, 0], texts [0, 0, 0, 1, 1, 0]
  Out: [1, 1, 2, 3, 3, 0], [0, 1, 0, 0, 1, 0]

  Args:
    groups: example index of each token, from 1; 0 is padding. int32 [length].
    texts: index of the text in the example, int32 [length].
    numpy: NumPy for arrays, tensorflow.experimental.numpy for tensors.
  """
  pairs = numpy.stack([groups, texts])
  begins = numpy.concatenate([groups[:1] == groups[:1], numpy.any(pairs[:, 1:] != pairs[:, :-1], axis=0)])
  number, index = (numpy.cumsum(x, dtype=np.int32) for x in (begins, numpy.ones_like(groups)))
  start = numpy.take(numpy.asarray(numpy.nonzero(begins)[0], dtype=np.int32), number - 1)
  return numpy.where(groups > 0, number, 0), numpy.where(groups > 0, index - 1 - start, 0)


def rows_of(vocab_size: int) -> int:
  """Returns the number of embedding rows for a vocabulary: rounded up to a multiple of 128, which meshes divide."""
  return -(-vocab_size // 128) * 128


def continuing_nothing(features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns features of rows of which none continues a row of the batch before, see `data.continuous_rows`."""
  return {name: np.zeros_like(x) if name.endswith("_continues") else x for name, x in features.items()}
