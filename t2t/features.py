"""Which features a model is trained on and how long they are: one table for the pipeline and for what plans it."""

from collections.abc import Mapping, Sequence

from t2t.models.architecture import ARCHITECTURES, architecture_of

ENCODER = ("inputs", "targets", "loss_weights", "token_types")
# Objectives whose examples have targets alone; those of all others have inputs as well.
WITHOUT_INPUTS = ("causal_lm", "fill_in_the_middle")


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
  if not kind.writes:
    return dict.fromkeys(ENCODER, inputs_length)
  lengths = {"inputs": inputs_length, "targets": targets_length}
  return lengths if kind.reads_apart or "inputs" in features else {"targets": targets_length}


def model_lengths(architecture: str, lengths: Mapping[str, int]) -> dict[str, int]:
  """Positions of the encoder and of the decoder, given `task_lengths`."""
  kind = ARCHITECTURES[architecture]
  if not kind.writes:
    return {"encoder": lengths["inputs"]}
  if kind.continues:
    return {"decoder": sum(lengths.values())}
  return {"encoder": lengths["inputs"], "decoder": lengths["targets"]}


def model_features(architecture: str, lengths: Mapping[str, int], *, pack: bool) -> dict[str, int]:
  """Name and length of each feature of a batch, given `task_lengths`."""
  kind = ARCHITECTURES[architecture]
  sides = model_lengths(architecture, lengths)
  names = (*kind.features, *(kind.with_inputs if "inputs" in lengths else ()), *(kind.packed if pack else ()))
  return {name: sides[name.partition("_")[0]] for name in names}
