"""Which features a model is trained on and how long they are: one table for the pipeline and for what plans it."""

from collections.abc import Mapping, Sequence

from t2t import UserError

ENCODER = ("inputs", "targets", "loss_weights", "token_types")
# Objectives whose examples have targets alone; those of all others have inputs as well.
WITHOUT_INPUTS = ("causal_lm", "fill_in_the_middle")

# architecture -> model features, and those that are there besides when examples are packed.  A decoder alone has
# decoder_causal_attention where it reads inputs.  Vocabularies whose token 0 is no padding bring segment ids unpacked.
ARCHITECTURES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
  "encoder_decoder": (
    ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"),
    ("encoder_segment_ids", "encoder_positions", "decoder_segment_ids", "decoder_positions"),
  ),
  "decoder_only": (
    ("decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"),
    ("decoder_segment_ids", "decoder_positions"),
  ),
  "encoder_only": (
    (
      *("encoder_input_tokens", "encoder_target_tokens", "encoder_loss_weights"),
      *("encoder_token_types", "encoder_segment_ids"),
    ),
    ("encoder_segment_ids", "encoder_positions"),
  ),
}


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
  if architecture not in ARCHITECTURES:
    raise UserError(f"architecture {architecture!r}: no feature converter; there are {', '.join(ARCHITECTURES)}")
  if architecture == "encoder_only":
    return dict.fromkeys(ENCODER, inputs_length)
  lengths = {"inputs": inputs_length, "targets": targets_length}
  return lengths if architecture == "encoder_decoder" or "inputs" in features else {"targets": targets_length}


def model_lengths(architecture: str, lengths: Mapping[str, int]) -> dict[str, int]:
  """Positions of the encoder and of the decoder, given `task_lengths`."""
  if architecture == "encoder_only":
    return {"encoder": lengths["inputs"]}
  if architecture == "decoder_only":
    return {"decoder": sum(lengths.values())}
  return {"encoder": lengths["inputs"], "decoder": lengths["targets"]}


def model_features(architecture: str, lengths: Mapping[str, int], *, pack: bool) -> dict[str, int]:
  """Name and length of each feature of a batch, given `task_lengths`."""
  always, packed = ARCHITECTURES[architecture]
  prefix = ("decoder_causal_attention",) if architecture == "decoder_only" and "inputs" in lengths else ()
  sides = model_lengths(architecture, lengths)
  return {name: sides[name.partition("_")[0]] for name in (*always, *prefix, *(packed if pack else ()))}
