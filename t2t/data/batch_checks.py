"""Checks of a user's batch, and completion: missing features are derived, and arrays are padded."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from t2t import UserError, did_you_mean
from t2t.configuration.schema import Config
from t2t.models import span_pair
from t2t.models.architecture import predicted_side, sides
from t2t.models.head_config import HeadConfig
from t2t.training import recipe

Rows = Mapping[str, Any]  # feature -> array [rows, length], of NumPy or convertible to NumPy


class ArrayFraming(NamedTuple):
  """Meaning of ids in a batch: `begins` is the first decoder input; with `zero_pads` id 0 is padding."""

  begins: int = 0
  zero_pads: bool = True


def completed(
  rows: Rows,
  config: Config,
  *,
  where: str,
  framing: ArrayFraming = ArrayFraming(),  # noqa: B008 - it cannot be changed
) -> dict[str, np.ndarray]:
  """Returns a batch as the model takes it: missing features are derived from others, and all are padded.

  In:  {"encoder_input_tokens": [[5, 6]], "decoder_target_tokens": [[7, 1]]}, with inputs_length 3 and targets_length 2
  Out: these, the first as [[5, 6, 0]], with "decoder_input_tokens": [[0, 7]] and "decoder_loss_weights": [[1., 1.]]

  Args:
    rows: arrays [rows, length], at most as large as the config allows.
    config: config of the run.
    where: name of the batch, for messages.
    framing: special ids of the vocabulary, if there is one.

  Raises:
    UserError: a feature is missing, unknown, not of integers or too large, or has an id outside the model's range.
  """
  wanted = recipe.batch(config)
  # Where 0 is a token, segment ids mark the text in unpacked rows as well.
  segments = {f"{side}_segment_ids": wanted[f"{side}_input_tokens"] for side in sides(wanted)}
  may = segments | wanted
  if not isinstance(rows, Mapping):
    raise UserError(f"{where} is {type(rows).__name__}, not a dict. Give a dict of arrays. {_listed(wanted)}")
  for name in rows:
    if name not in may:
      hint = _other_name(str(name), may) or did_you_mean(str(name), may) or "."
      raise UserError(f"{where}: {name!r} is not a feature of this model{hint} {_listed(wanted)}")
  arrays = {name: _array(x, may[name], f"{where}: {name}") for name, x in rows.items()}
  if len({len(x) for x in arrays.values()}) > 1:
    sizes = ", ".join(f"{name} {len(x)}" for name, x in arrays.items())
    raise UserError(
      f"{where}: features have different numbers of rows ({sizes}). Give all features the same number of rows."
    )
  if not all(array.size for array in arrays.values()):
    raise UserError(f"{where} has no rows, or rows of length 0. Give arrays [rows, length] of at least [1, 1].")
  for name, array in arrays.items():
    _check_numbers(name, array, arrays, config, f"{where}: {name}")
  arrays = {name: _filled_up(x, may[name].shape) for name, x in arrays.items()}
  if not framing.zero_pads and (lacks := [name for name in segments if name not in arrays]):
    raise UserError(
      f"{where} has no {', '.join(lacks)}. Add segment ids to mark the text, because id 0 is a token of this "
      "vocabulary, not padding."
    )
  _fill_in(arrays, wanted, predicted_side(wanted), framing)
  if missing := [name for name in wanted if name not in arrays]:
    raise UserError(f"{where} has no {', '.join(missing)}. Add the missing arrays. {_listed(wanted)}")
  return {name: arrays[name] for name in may if name in arrays}


_IGNORED = -100  # label that PyTorch's cross entropy ignores


def _other_name(name: str, may: Mapping[str, Any]) -> str:
  """Returns the hint for a feature with the name of a Hugging Face column."""
  sides_here = [side for side in ("encoder", "decoder") if any(feature.startswith(side) for feature in may)]
  predicts = predicted_side(may)
  reads = sides_here[0]
  names = {
    "input_ids": f"{reads}_input_tokens",
    "tokens": f"{reads}_input_tokens",
    "labels": f"{predicts}_target_tokens",
    "targets": f"{predicts}_target_tokens",
    "decoder_input_ids": "decoder_input_tokens",
    "attention_mask": f"{reads}_segment_ids",
    "decoder_attention_mask": "decoder_segment_ids",
    "token_type_ids": f"{reads}_token_types",
    "position_ids": f"{reads}_positions",
    "loss_mask": f"{predicts}_loss_weights",
  }
  if name in names and names[name] in may:
    # Hugging Face's decoders take their inputs as labels and shift them.
    shifted = name in ("input_ids", "labels") and sides_here == ["decoder"]
    note = " targets[i] is the token after inputs[i], and inputs are derived from the targets." if shifted else ""
    return f". Hugging Face's {name} is called {names[name]} here.{note}"
  if name in names:
    return f". Leave {name} out, because t2t derives {name} from the tokens."
  if name in ("text", "texts", "sentence", "inputs", "label", "words", "tags"):
    return ". Batches contain token ids. Give texts with config.data.files."
  return ""


def _check_numbers(name: str, array: np.ndarray, arrays: Rows, config: Config, where: str) -> None:
  """Refuses values outside a table's rows, which would be read as other ids or counted as correct."""
  if name.endswith("_loss_weights"):
    if not np.isfinite(array).all() or (array < 0).any():
      raise UserError(f"{where} has weights from {array.min()} to {array.max()}. Give finite weights of at least 0.")
    return
  if name.endswith("_answer_targets"):
    _check_answers(array, np.asarray(arrays.get(name.replace("targets", "heads"), 0)), config.model.heads, where)
    return
  limits = (limit(config.model) for end, limit in _MOST.items() if name.endswith(end))
  most, limit_name = next(limits, (0, ""))
  if name.endswith("_target_tokens") and array.min() == _IGNORED:
    weights = name.replace("target_tokens", "loss_weights")
    raise UserError(
      f"{where} has {_IGNORED}, which marks ignored labels in Hugging Face and PyTorch. Give {weights} = (labels "
      f"!= {_IGNORED}), and 0 instead of {_IGNORED}."
    )
  if array.min() < 0 or (most and array.max() >= most):
    limit = f"from 0 to {most - 1}, because {limit_name} is {most}" if most else "at least 0"
    raise UserError(
      f"{where} has ids from {array.min()} to {array.max()}, but ids must be {limit}. Correct the ids of the batch."
    )


def _check_answers(targets: np.ndarray, head_numbers: np.ndarray, heads: Sequence[HeadConfig], where: str) -> None:
  """Refuses class ids that the head of an example does not have."""
  for number, head in enumerate(heads, start=1):
    answers = targets[head_numbers == number] >> (span_pair.CLASS_BITS if head.kind == "span_pair" else 0)
    if (
      head.answers_as in ("class", "tag", "span_pair", "cloze")
      and answers.size
      and (answers.min() < 0 or answers.max() >= head.num_classes)
    ):
      raise UserError(
        f"{where} has classes from {answers.min()} to {answers.max()}, but the head {head.name} has only the classes "
        f"0 to {head.num_classes - 1}. Correct the classes of the batch."
      )


# Suffix of a feature name -> number of valid ids (0: unlimited) and the config key that sets it.
_MOST: Mapping[str, Callable[[Any], tuple[int, str]]] = {
  "_tokens": lambda model: (model.vocab_size, "config.model.vocab_size"),
  "_token_types": lambda model: (model.segment_types, "config.model.segment_types"),
  "_positions": lambda model: (model.most_positions, "the model's number of positions"),
  "_answer_heads": lambda model: (len(model.heads) + 1, "the number of config.model.heads plus one"),
}


def _array(values: Any, wanted: jax.ShapeDtypeStruct, where: str) -> np.ndarray:
  if values is None or isinstance(values, str | bytes):
    raise UserError(f"{where} is {type(values).__name__}, not an array. Give an array [rows, length] of ids.")
  try:
    array = np.array(values)  # copied, because the caller may reuse the memory for the next batch
  except Exception as error:  # ragged rows, or any error of an array library
    raise UserError(
      f"{where} cannot be converted to an array [rows, length] ({error}). Give rows of numbers, all of the same length."
    ) from error
  if wanted.dtype == np.float32 and array.dtype.kind == "V" and jax.numpy.issubdtype(array.dtype, np.floating):
    array = array.astype(np.float32)  # bfloat16
  shape = list(array.shape)
  if len(shape) != 2 or any(size > most for size, most in zip(shape, wanted.shape, strict=True)):
    raise UserError(
      f"{where} has shape {shape}, but the config allows [rows, length] up to {list(wanted.shape)}. Correct the array, "
      "or raise config.train.batch_size, config.data.inputs_length or config.data.targets_length."
    )
  kinds = "bui" if wanted.dtype == np.int32 else "buif"
  if array.dtype.kind not in kinds:
    needed = "integers" if kinds == "bui" else "numbers"
    raise UserError(f"{where} has dtype {array.dtype}, but must contain {needed}. Convert the array.")
  if array.dtype.kind in "iu" and array.size and (array.max() > 2**31 - 1 or array.min() < -(2**31)):
    raise UserError(f"{where} has values beyond 32 bits. Give ids below 2**31.")
  return array.astype(wanted.dtype)


def _fill_in(arrays: dict[str, np.ndarray], wanted: Mapping[str, Any], predicts: str, framing: ArrayFraming) -> None:
  """Derives missing features of rows with one example each."""
  is_packed = f"{predicts}_positions" in wanted and f"{predicts}_segment_ids" in wanted
  targets, tokens = arrays.get(f"{predicts}_target_tokens"), arrays.get("encoder_input_tokens")
  defaults: dict[str, Callable[[], np.ndarray]] = {}
  if targets is not None:
    counts = targets > 0 if framing.zero_pads else arrays[f"{predicts}_segment_ids"] > 0
    defaults[f"{predicts}_loss_weights"] = lambda: counts.astype(np.float32)
    if predicts == "decoder" and not is_packed:
      fed = [(0, 0), (1, 0)]
      defaults["decoder_input_tokens"] = lambda: np.pad(targets[:, :-1], fed, constant_values=framing.begins)
  if tokens is not None and not is_packed:
    defaults["encoder_segment_ids"] = lambda: (tokens > 0).astype(np.int32)
    defaults["encoder_token_types"] = lambda: np.zeros_like(tokens)
  arrays |= {name: make() for name, make in defaults.items() if name in wanted and name not in arrays}


def _filled_up(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
  return np.pad(array, [(0, most - size) for size, most in zip(array.shape, shape, strict=True)])


def _listed(wanted: Mapping[str, jax.ShapeDtypeStruct]) -> str:
  shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in wanted.items())
  return f"This config's model takes {shapes}."
