"""Converts optimizer and learning-rate schedule of T5X's gin files to config keys."""

import math
from typing import Any

from t2t.convert.gin import param_map as gin_names
from t2t.convert.gin.bindings import UNSET, BindingReader
from t2t.convert.gin.parser import Reference, show
from t2t.convert.gin.same import same

_NORMALIZING = "EncoderDecoderModel.loss_normalizing_factor"
_MEAN = "NUM_REAL_TARGET_TOKENS"  # T5X's name of the mean over the targets of a batch

_NO_CLIP = 1e30  # above any root mean square of an update, because infinity is not a valid threshold


def settings(reader: BindingReader, earlier: int) -> dict[str, Any]:
  """Returns keys of config.optimizer.

  Args:
    reader: the files.
    earlier: steps of the checkpoint, which T5X continues to count.
  """
  optimizer_def = reader.value("EncoderDecoderModel.optimizer_def")
  if not isinstance(optimizer_def, Reference):
    return {}
  parts = [optimizer_def]
  if optimizer_def.name.endswith("chain"):
    reader.optimizers.add("chain")
    chained = reader.value("chain.transformations")
    parts = [part for part in chained if isinstance(part, Reference)] if isinstance(chained, list | tuple) else []
  names = {part.name.rpartition(".")[2] for part in parts}
  reader.optimizers |= names
  strangers = names - {"Adafactor", "adamw", "clip_by_global_norm"}
  if strangers or not names & {"Adafactor", "adamw"}:
    unknown = f"{', '.join(sorted(strangers))}: " if strangers and len(parts) > 1 else ""
    reader.refuse(
      "EncoderDecoderModel.optimizer_def",
      optimizer_def,
      f"{unknown}t2t supports Adafactor and optax's adamw, with clip_by_global_norm; give "
      "--config.optimizer.name=NAME, and"
      " its keys (`t2t train --help optimizer`)",
      "optimizer.name",
    )
    return _schedule(reader, earlier)
  values = _adafactor(reader, earlier) if "Adafactor" in names else _adamw(reader, earlier, clipped=len(names) > 1)
  _check_normalizing(reader, clips=bool(values.get("optimizer.clip_norm")))
  return values


def _adafactor(reader: BindingReader, earlier: int) -> dict[str, Any]:
  values = {"optimizer.name": "adafactor", "optimizer.clip_norm": 0.0} | same(reader, gin_names.ADAFACTOR)
  if reader.key("Adafactor.clipping_threshold") and reader.value("Adafactor.clipping_threshold") is None:
    values["optimizer.adafactor_clip"] = _NO_CLIP
  decay, exponent = (reader.value(f"Adafactor.weight_decay_rate{name}") for name in ("", "_lr_exponent"))
  if isinstance(decay, float) and exponent == 1.0:
    values |= {"optimizer.weight_decay": decay, "optimizer.no_decay": ()}
  elif isinstance(decay, float) and decay:
    reader.refuse(
      "Adafactor.weight_decay_rate",
      decay,
      "config.optimizer.weight_decay is multiplied with the learning rate: set weight_decay_rate_lr_exponent = 1.0, "
      "or give"
      " --config.optimizer.weight_decay=RATE",
      "optimizer.weight_decay",
    )
  return values | _schedule(reader, earlier)


def _adamw(reader: BindingReader, earlier: int, *, clipped: bool) -> dict[str, Any]:
  # optax's defaults.
  values = {"optimizer.weight_decay": 1e-4, "optimizer.epsilon": 1e-8} | same(reader, gin_names.ADAMW)
  if not clipped:
    values["optimizer.clip_norm"] = 0.0
  fixed = {"optimizer.name": "adamw", "optimizer.scale_by_parameter": False, "optimizer.no_decay": ()}
  if "optimizer.learning_rate" in values:
    return fixed | values | {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0}
  return fixed | values | _schedule(reader, earlier)


def _check_normalizing(reader: BindingReader, *, clips: bool) -> None:
  """Checks the normalization of the loss: t2t uses the mean over a batch's targets, T5X the sum or a multiple.

  Adafactor and AdamW are invariant to the scale of the gradient; gradient clipping is not.
  """
  factor = reader.value(_NORMALIZING)
  if factor is UNSET or isinstance(factor, str) and factor.upper() == _MEAN:
    return
  why = "t2t uses the mean over a batch's targets"
  if factor == "AVERAGE_PER_SEQUENCE":
    reader.refuse(_NORMALIZING, factor, f"{why}, in which long sequences have more weight")
  elif clips:
    reader.refuse(
      _NORMALIZING,
      factor,
      f"{why}, T5X clips the gradient of {'their sum' if factor is None else f'their sum over {show(factor)}'}: set it"
      f" to '{_MEAN}', with the same norm, or give --config.optimizer.clip_norm=NORM for the mean",
      "optimizer.clip_norm",
    )
  elif factor is not None:
    reader.tell(_NORMALIZING, factor, f"divisor of the loss; {why}, and the optimizer is invariant to it")


def _schedule(reader: BindingReader, earlier: int) -> dict[str, Any]:
  prefix = "create_learning_rate_scheduler"
  defaults = {"factors": "constant * linear_warmup * rsqrt_decay", "base_learning_rate": 0.5, "warmup_steps": 1_000}
  read = {name: reader.value(f"{prefix}.{name}") for name in defaults}
  if all(value is UNSET for value in read.values()):
    return {}
  for name, value in read.items():
    kind = type(defaults[name])
    if value is not UNSET and (
      isinstance(value, bool) or not isinstance(value, kind | (int if kind is float else kind))
    ):
      reader.refuse(f"{prefix}.{name}", value, f"is not of type {kind.__name__}")
      return {}
  factors, base, warmup = (defaults[name] if value is UNSET else value for name, value in read.items())
  names = " * ".join(sorted(factor.strip() for factor in factors.split("*")))
  if names not in gin_names.SCHEDULES:
    reader.refuse(
      f"{prefix}.factors",
      factors,
      f"t2t supports {', '.join(gin_names.SCHEDULES)}; or give --config.optimizer.schedule=NAME and its keys",
      "optimizer.schedule",
    )
    return {}
  schedule, is_root = gin_names.SCHEDULES[names]
  is_flat = schedule == "constant" and "linear_warmup" not in names
  offset = reader.value(f"{prefix}.step_offset")
  begins = earlier - (offset if isinstance(offset, int) else 0)  # step of T5X's schedule at the beginning of this run
  if begins and not is_flat:
    if schedule == "constant" and begins >= warmup:
      is_flat = True  # the warm-up is over
    else:
      reader.refuse(
        f"{prefix}.step_offset" if offset is not UNSET else f"{prefix}.factors",
        offset if offset is not UNSET else factors,
        f"T5X's schedule begins at step {begins:,}, t2t's at 0: set {prefix}.step_offset = {earlier}, or give"
        " --config.optimizer.schedule=NAME and its keys",
        "optimizer.schedule",
        "optimizer.learning_rate",
      )
  return {
    "optimizer.learning_rate": float(base / math.sqrt(max(warmup, 1)) if is_root else base),
    "optimizer.schedule": schedule,
    "optimizer.warmup_steps": 0 if is_flat else int(warmup),
  }
