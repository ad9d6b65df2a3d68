"""Writes a config as Python source that changes the default config."""

from collections.abc import Mapping
import math
import os
import re
from typing import Any

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

_FAMILIES = {
  "t5_1_1": (presets.t5_1_1, presets.T5_SIZES),
  "t5_1_0": (presets.t5_1_0, presets.T5_SIZES),
  "mt5": (presets.mt5, presets.T5_SIZES),
  "byt5": (presets.byt5, presets.T5_SIZES),
  "ul2": (presets.ul2, presets.UL2_SIZES),
}
_SECTIONS = ("model", "data", "train", "optimizer", "eval", "checkpoint", "init", "mesh")
# Fields that do not belong to a published size.
_NOT_THE_SIZE = (
  "dtype",
  "gradient_dtype",
  "quantization",
  "dropout_rate",
  "remat",
  "attention_kernel",
  "attention_block",
  "unroll",
  "pipeline_microbatches",
  "pipeline_rounds",
)


def _published(model: Mapping[str, Any]) -> tuple[str, str] | None:
  """Returns family and size of a published model with these fields; None if there is none."""
  for family, (fields_of, names) in _FAMILIES.items():
    for size in names:
      fields = fields_of(size)
      if all(fields[key] == value for key, value in model.items() if key not in _NOT_THE_SIZE):
        return family, size
  return None


def _literal(value: Any) -> str:
  if isinstance(value, int) and not isinstance(value, bool):
    return f"{value:_}"
  if isinstance(value, float) and math.isinf(value):
    return f'float("{value}")'
  if isinstance(value, tuple):
    return "(" + "".join(f"{_literal(x)}, " for x in value).removesuffix(" " if len(value) == 1 else ", ") + ")"
  return (
    f'"{value}"' if isinstance(value, str) and re.fullmatch(r'[^"\\]*', value) and value.isprintable() else repr(value)
  )


def _base(values: Mapping[str, Any]) -> tuple[ConfigDict, str]:
  """Returns the default config with the published model of the values, and the source line that sets it, or ""."""
  config = default.get_config()
  model = {key.partition(".")[2]: value for key, value in values.items() if key.startswith("model.")}
  published = _published(model) if model else None
  if published is None:
    return config, ""
  family, size = published
  before = config.model.to_dict()
  config.model.update(_FAMILIES[family][0](size))
  is_new = config.model.to_dict() != before
  return config, f'config.model.update(presets.{family}("{size}"))' if is_new else ""


def config_of(values: Mapping[str, Any]) -> ConfigDict:
  """Returns the config that `text_of` describes."""
  config, _ = _base(values)
  for key, value in values.items():
    section, _, field = key.partition(".")
    config[section][field] = value
  return config


def text_of(path: str, values: Mapping[str, Any], kind: str) -> str:
  """Returns the config as an overlay on the default one, without unchanged keys.

  Args:
    path: names of the source files.
    values: config key -> value, for example "train.steps".
    kind: of the run, which selects the command.
  """
  config, sized = _base(values)
  imports = ["from t2t.configs import default", *(["from t2t.models import presets"] if sized else [])]
  lines = [sized] if sized else []
  for key, value in sorted(values.items(), key=lambda item: _SECTIONS.index(item[0].partition(".")[0])):
    section, _, field = key.partition(".")
    if config[section][field] != value:
      lines.append(f"config.{key} = {_literal(value)}")
  name = re.sub(r'["\\]|[^ -~]', "_", ", ".join(os.path.basename(part) for part in path.split(", ")))
  checkpoint = "" if kind == "train" else " --checkpoint CHECKPOINT"
  body = "\n".join(f"  {line}" for line in lines)
  return (
    f'"""What {name} says.\n\n  t2t {kind} --config THIS_FILE.py{checkpoint} --workdir WORKDIR\n"""\n\n'
    "from ml_collections import ConfigDict\n\n" + "\n".join(imports) + "\n\n\n"
    f'def get_config() -> ConfigDict:\n  """The recipe of {name}."""\n  config = default.get_config()\n'
    f"{body}{chr(10) if body else ''}  return config\n"
  )
