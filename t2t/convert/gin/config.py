"""T5X's gin files as t2t configs: what says the same, and a list of what t2t has nothing for.

A gin file binds parameters of functions: here and there, in the files that it includes, and through macros.  What
counts is the last value of each.  It is asked for by name, and what nobody asked for is told.
"""

from collections.abc import Mapping
import math
import os
import re
import sys
from typing import Any

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.convert.gin import bindings as gin_bindings
from t2t.convert.gin import names as gin_names
from t2t.convert.gin.parser import Reference
from t2t.models import sizes

_STEP = re.compile(r".*checkpoint_(\d+)/?")


# ---- What says the same ----------------------------------------------------------------------------------------------


def to_config(gin: gin_bindings.Gin) -> tuple[str, tuple[str, ...]]:
  """The text of a t2t config that says what a gin file says, and what it cannot say, a sentence each.

  The text is Python, to be saved as a file and given to `t2t train --config`.
  """
  asked = gin_bindings.Asked(gin)
  values: dict[str, Any] = {}
  for part in (_model, _data, _training, _optimizer):
    values |= part(asked)
  told = sorted({*asked.notes, *gin_bindings.left(asked)}, key=_by_line)
  return _text_of(gin, values), (*gin_bindings.not_given(asked), *told)


def _by_line(note: str) -> tuple[str, int]:
  match = re.match(r"(.*?):(\d+): ", note)
  return (match[1], int(match[2])) if match else (note, 0)


def _same(asked: gin_bindings.Asked, table: Mapping[str, str]) -> dict[str, Any]:
  """The keys of those parameters that are bound, with their values."""
  found, defaults = {}, default.get_config()
  for name, key in table.items():
    value = asked.value(name)
    section, _, field = key.partition(".")
    kind = type(defaults[section][field])
    if value is gin_bindings.UNSET or value is None:
      # None is T5X's word for no limit and for its default.
      continue
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, (kind, int) if kind is float else kind):
      asked.cannot(name, value, f"config.{key} is of type {kind.__name__}")
      continue
    found[key] = kind(value)
  return found


def _of(table: Mapping[str, str], *sections: str) -> dict[str, str]:
  return {name: key for name, key in table.items() if key.split(".")[0] in sections}


def _model(asked: gin_bindings.Asked) -> dict[str, Any]:
  model = _same(asked, _of(gin_names.SAME, "model"))
  module, which = asked.value("EncoderDecoderModel.module"), asked.value("train.model")
  asked.macros.add("MODEL")  # of a file that describes a model and no run
  if isinstance(which, Reference) and not which.name.endswith("EncoderDecoderModel"):
    asked.cannot("train.model", which, "only encoder-decoders are known; set config.model")
    return {}
  if not model:
    if isinstance(module, Reference):
      asked.cannot(
        "EncoderDecoderModel.module", module, "the sizes of T5X's T5Config are known alone; set config.model"
      )
    else:
      asked.notes.append(f"{asked.gin.path}: says no model; the config's default is T5 1.1 small")
    return {}
  # Dropout that is left to the command line is not what T5X has where it is not named.
  given = {"model.dropout_rate": 0.0} if asked.key("T5Config.dropout_rate") else {}
  model = {"model.architecture": "encoder_decoder"} | gin_names.THEIR_DEFAULTS | given | model
  activations = asked.value("T5Config.mlp_activations")
  activations = ("relu",) if activations is gin_bindings.UNSET else activations
  names = " * ".join(map(str, activations)) if isinstance(activations, list | tuple) else ""
  if names in gin_names.ACTIVATIONS:
    model["model.mlp_activation"] = gin_names.ACTIVATIONS[names]
  else:
    asked.cannot("T5Config.mlp_activations", activations, f"t2t has {', '.join(gin_names.ACTIVATIONS)}")
  return model


def _data(asked: gin_bindings.Asked) -> dict[str, Any]:
  data = _same(asked, _of(gin_names.SAME, "data"))
  mixture = asked.value("train/DatasetConfig.mixture_or_task_name")
  module = asked.value("train/DatasetConfig.module")
  if isinstance(mixture, str):
    name, known = gin_names.MIXTURES.get(mixture, (mixture, ""))
    data["data.mixture"] = name
    modules = known or (module if isinstance(module, str) else "")
    data["data.task_modules"] = (modules,) if modules else ()
    if not known:
      imported = [
        each.module for each in asked.gin.imports if not re.match(r"(t5x|seqio|__\w+__|flax|optax)\b", each.module)
      ]
      whose = f" ({', '.join(imported)} may be what registered it for T5X)" if imported else ""
      asked.cannot(
        "train/DatasetConfig.mixture_or_task_name",
        mixture,
        f"t2t registers none of this name; name a module that does in config.data.task_modules{whose}",
      )
  lengths = asked.value("train/DatasetConfig.task_feature_lengths")
  for feature, length in (lengths if isinstance(lengths, dict) else {}).items():
    if feature in ("inputs", "targets") and isinstance(length, int):
      data[f"data.{feature}_length"] = length
    elif length is not gin_bindings.UNSET:
      asked.cannot(
        "train/DatasetConfig.task_feature_lengths", {feature: length}, "t2t has lengths of inputs and targets"
      )
  _check_held_out(asked)
  return data | _vocabulary(asked)


def _check_held_out(asked: gin_bindings.Asked) -> None:
  """What T5X evaluates on, with targets and without, is one set of data in t2t, and much like what it trains on."""
  split = asked.value("train_eval/DatasetConfig.split")
  for name in ("mixture_or_task_name", "task_feature_lengths", "module", "pack", "batch_size"):
    wanted = asked.value(f"train/DatasetConfig.{name}")
    for scope in ("train_eval", "infer_eval"):
      value = asked.value(f"{scope}/DatasetConfig.{name}")
      # Answers are never packed, and the batch is one of those that t2t has a key for.
      is_told = name not in ("pack", "batch_size") or (name == "pack" and scope == "train_eval")
      if is_told and value not in (gin_bindings.UNSET, None, wanted):
        asked.cannot(f"{scope}/DatasetConfig.{name}", value, "t2t evaluates what it trains on, on another split")
  value = asked.value("infer_eval/DatasetConfig.split")
  if value not in (gin_bindings.UNSET, split):
    asked.cannot("infer_eval/DatasetConfig.split", value, "there is one such split, config.data.eval_split")


def _vocabulary(asked: gin_bindings.Asked) -> dict[str, Any]:
  which = [asked.value(f"EncoderDecoderModel.{side}_vocabulary") for side in ("input", "output")]
  if which[1] not in (gin_bindings.UNSET, which[0]):
    asked.cannot("EncoderDecoderModel.output_vocabulary", which[1], "inputs and targets have one vocabulary")
  if not isinstance(which[0], Reference):
    return {}
  scope, _, function = which[0].name.rpartition("/")
  function = f"{f'{scope}/' if scope else ''}{function.rpartition('.')[2]}"
  extra_ids = asked.value(f"{function}.extra_ids")
  found = {"data.extra_ids": extra_ids if isinstance(extra_ids, int) else 0}
  if function.endswith("ByteVocabulary"):
    return {"data.vocabulary": "bytes"} | found
  path = asked.value(f"{function}.sentencepiece_model_file")
  if not isinstance(path, str):
    asked.cannot("EncoderDecoderModel.input_vocabulary", which[0], 'config.data.vocabulary takes files and "bytes"')
    return {}
  return {"data.vocabulary": path} | found


def _training(asked: gin_bindings.Asked) -> dict[str, Any]:
  found = _same(asked, _of(gin_names.SAME, "train", "eval", "checkpoint"))
  if any(function == "EncoderDecoderModel" for _, function, _ in asked.gin.bindings):
    found = {"train.z_loss": 0.0} | found
  batch = asked.value("train_eval/DatasetConfig.batch_size")
  if isinstance(batch, int) and batch != found.get("train.batch_size"):
    found["eval.batch_size"] = batch
  steps, path = asked.value("train.total_steps"), asked.value("RestoreCheckpointConfig.path")
  if isinstance(steps, int):
    found["train.steps"] = steps
  if isinstance(path, str) and path:
    found["init.checkpoint"] = path
    earlier = int(match[1]) if (match := _STEP.fullmatch(path)) else 0
    if isinstance(steps, int) and earlier:
      found["train.steps"] = steps - earlier
      asked.cannot(
        "train.total_steps",
        steps,
        f"T5X goes on counting from the checkpoint's step {earlier:,} on, t2t from 0: {steps - earlier:,} steps",
      )
  elif path not in (gin_bindings.UNSET, None, [], ()):
    asked.cannot("RestoreCheckpointConfig.path", path, "config.init.checkpoint is one path")
  for partitioner in ("PjitPartitioner", "ModelBasedPjitPartitioner"):
    parts, submesh = (asked.value(f"{partitioner}.{name}") for name in ("num_partitions", "model_parallel_submesh"))
    parts = math.prod(submesh) if isinstance(submesh, tuple) and submesh else parts
    if isinstance(parts, int) and parts > 1:
      found["mesh.tensor"] = parts
  return found


def _optimizer(asked: gin_bindings.Asked) -> dict[str, Any]:
  which = asked.value("EncoderDecoderModel.optimizer_def")
  if not isinstance(which, Reference):
    return {}
  parts = [which]
  if which.name.endswith("chain"):
    chained = asked.value("chain.transformations")
    parts = [part for part in chained if isinstance(part, Reference)] if isinstance(chained, list | tuple) else []
  names = {part.name.rpartition(".")[2] for part in parts}
  if "Adafactor" in names:
    found = {"optimizer.name": "adafactor", "optimizer.clip_norm": 0.0} | _same(asked, gin_names.ADAFACTOR)
    decay, exponent = (asked.value(f"Adafactor.weight_decay_rate{name}") for name in ("", "_lr_exponent"))
    if isinstance(decay, float) and exponent == 1.0:
      found["optimizer.weight_decay"] = decay
    elif isinstance(decay, float) and decay:
      asked.cannot("Adafactor.weight_decay_rate", decay, "config.optimizer.weight_decay is times the learning rate")
    return found | _schedule(asked)
  if "adamw" in names:
    # optax's own defaults.
    found = {"optimizer.weight_decay": 1e-4, "optimizer.epsilon": 1e-8} | _same(asked, gin_names.ADAMW)
    others = {"optimizer.name": "adamw", "optimizer.scale_by_parameter": False, "optimizer.no_decay": ()}
    if "optimizer.learning_rate" in found:
      return others | found | {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0}
    return others | found | _schedule(asked)
  asked.cannot("EncoderDecoderModel.optimizer_def", which, "config.optimizer.name has adafactor, adamw and sgd")
  return _schedule(asked)


def _schedule(asked: gin_bindings.Asked) -> dict[str, Any]:
  prefix = "create_learning_rate_scheduler"
  defaults = {"factors": "constant * linear_warmup * rsqrt_decay", "base_learning_rate": 0.5, "warmup_steps": 1_000}
  read = {name: asked.value(f"{prefix}.{name}") for name in defaults}
  if all(value is gin_bindings.UNSET for value in read.values()):
    return {}
  factors, base, warmup = (
    read[name] if isinstance(read[name], type(value) | int) else value for name, value in defaults.items()
  )
  names = " * ".join(sorted(factor.strip() for factor in str(factors).split("*")))
  if names not in gin_names.SCHEDULES:
    asked.cannot(f"{prefix}.factors", factors, f"t2t has {', '.join(gin_names.SCHEDULES)}")
    return {}
  schedule, is_root = gin_names.SCHEDULES[names]
  is_flat = schedule == "constant" and "linear_warmup" not in names
  return {
    "optimizer.learning_rate": float(base / math.sqrt(max(warmup, 1)) if is_root else base),
    "optimizer.schedule": schedule,
    "optimizer.warmup_steps": 0 if is_flat else int(warmup),
  }


# ---- Writing ---------------------------------------------------------------------------------------------------------

_FAMILIES = {"t5_1_1": sizes.t5_1_1, "t5_1_0": sizes.t5_1_0, "mt5": sizes.mt5, "byt5": sizes.byt5}
_SECTIONS = ("model", "data", "train", "optimizer", "eval", "checkpoint", "init", "mesh")
# What a config of a published size may change and still be of that size.
_NOT_THE_SIZE = ("dtype", "gradient_dtype", "quantization", "dropout_rate", "remat", "attention_kernel")


def _published(model: Mapping[str, Any]) -> tuple[str, str] | None:
  """The family and size of a model's shape, if it has been published."""
  for family, fields_of in _FAMILIES.items():
    for size in sizes.T5_SIZES:
      fields = fields_of(size)
      if all(fields[key] == value for key, value in model.items() if key not in _NOT_THE_SIZE):
        return family, size
  return None


def _literal(value: Any) -> str:
  if isinstance(value, int) and not isinstance(value, bool):
    return f"{value:_}"
  if isinstance(value, tuple):
    return "(" + "".join(f"{_literal(x)}, " for x in value).removesuffix(" " if len(value) == 1 else ", ") + ")"
  return f'"{value}"' if isinstance(value, str) and not re.search(r'["\\\n]', value) else repr(value)


def _text_of(gin: gin_bindings.Gin, values: Mapping[str, Any]) -> str:
  """The config as an overlay on the default one: what it has already is left out."""
  config = default.get_config().unlock()
  model = {key.partition(".")[2]: value for key, value in values.items() if key.startswith("model.")}
  published = _published(model) if model else None
  lines, imports = [], ["from t2t.configs import default"]
  if published:
    family, size = published
    fields = _FAMILIES[family](size)
    if ConfigDict(fields) != config.model:
      imports.append("from t2t.models import sizes")
      lines.append(f'config.model.update(sizes.{family}("{size}"))')
    config.model.update(fields)
  for key, value in sorted(values.items(), key=lambda item: _SECTIONS.index(item[0].partition(".")[0])):
    section, _, field = key.partition(".")
    if config[section][field] != value:
      lines.append(f"config.{key} = {_literal(value)}")
  name = os.path.basename(gin.path)
  body = "\n".join(f"  {line}" for line in lines)
  return (
    f'"""What {name} says.\n\n  t2t train --config THIS_FILE.py --workdir WORKDIR\n"""\n\n'
    "from ml_collections import ConfigDict\n\n" + "\n".join(imports) + "\n\n\n"
    f'def get_config() -> ConfigDict:\n  """The recipe of {name}."""\n  config = default.get_config()\n'
    f"{body}{chr(10) if body else ''}  return config\n"
  )


def main(path: str) -> None:
  """Prints the config, and on the terminal what it cannot say: `t2t convert --gin base.gin > base.py`."""
  text, notes = to_config(gin_bindings.read(path))
  print(text, end="")
  sys.stdout.flush()
  if notes:
    print("\nwhat the config does not say:\n" + "\n".join(f"  {note}" for note in notes), file=sys.stderr)
