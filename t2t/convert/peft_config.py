"""Conversion between adapter_config.json of Hugging Face's PEFT library and sections of t2t's config.

A field that changes the meaning of the tensors is never ignored.

Source: PEFT 0.21, src/peft/tuners/lora/config.py, src/peft/tuners/ia3/config.py.
"""

from collections.abc import Callable, Mapping
import dataclasses
import json
import math
from typing import Any

from etils import epath

from t2t import UserError
from t2t.convert import peft_prompts
from t2t.convert.hf_mappings import Settings
from t2t.models.adapters.lora import LoraConfig
from t2t.storage import gcs, safe_read

NAME = "adapter_config.json"

# PEFT task type -> kinds of trained heads; empty: token prediction.
TASKS: dict[str | None, tuple[str, ...]] = {
  "CAUSAL_LM": (),
  "SEQ_2_SEQ_LM": (),
  "SEQ_CLS": ("class", "score"),
  "TOKEN_CLS": ("tag",),
  None: (),
}
TASK_OF = {"encoder_decoder": "SEQ_2_SEQ_LM", "decoder_only": "CAUSAL_LM", "encoder_only": None}


# The tensors determine the modules; initialization does not matter after training.
_SAID_BY_TENSORS = ("target_modules", "exclude_modules", "modules_to_save", "fan_in_fan_out")
_OF_NO_CONSEQUENCE = ("peft_version", "inference_mode", "auto_mapping", "revision", "megatron_core", "runtime_config")
_OF_NO_CONSEQUENCE += ("qalora_group_size", "eva_config", "ensure_weight_tying")
# Field -> values that t2t's adapter supports.
_MUST: dict[str, tuple[Any, ...]] = {
  "bias": ("none",),
  # Other values change the base's matrices.
  "init_lora_weights": (True, False, "gaussian", "eva"),
}


def _lora(settings: Settings, where: str) -> dict[str, Any]:
  """Returns fields of `LoraConfig`, without the targets."""
  rank = _number(settings, "r", 8, where)
  if type(rank) is not int or rank < 1:
    raise UserError(f"{where}: r={rank} is not a whole number of at least 1")
  alpha = _number(settings, "lora_alpha", 8, where)
  if not 0 < alpha < math.inf:
    raise UserError(f"{where}: lora_alpha={alpha} is not a finite number above 0")
  dropout = _number(settings, "lora_dropout", 0.0, where)
  if not 0 <= dropout < 1:
    raise UserError(f"{where}: lora_dropout={dropout} is not a number of at least 0 and below 1")
  switches = {ours: _switch(settings, theirs, where) for theirs, ours in _SWITCHES.items()}
  return {"rank": rank, "alpha": float(alpha), "dropout": float(dropout)} | switches


_SWITCHES = {"use_rslora": "rslora", "use_dora": "dora"}


def _switch(settings: Settings, key: str, where: str) -> bool:
  value = settings.get(key, False)
  if value not in (True, False, None):
    raise UserError(f"{where}: {key}={str(value)[:40]!r} is neither true nor false")
  return bool(value)


def _number(settings: Settings, key: str, default: float, where: str) -> Any:
  value = settings.get(key, default)
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise UserError(f"{where}: {key}={str(value)[:40]!r} is not a number")
  return value


def _written_lora(config: LoraConfig) -> dict[str, Any]:
  alpha = int(config.alpha) if config.alpha == int(config.alpha) else config.alpha
  peft_fields = {"r": config.rank, "lora_alpha": alpha, "lora_dropout": config.dropout, "bias": "none"}
  return (
    peft_fields | {"init_lora_weights": True} | {theirs: getattr(config, ours) for theirs, ours in _SWITCHES.items()}
  )


def _lora_parts(fields: Mapping[str, Any]) -> dict[str, str]:
  lengths = {"lora_magnitude_vector": "lora_magnitude"} if fields["dora"] else {}
  return {"lora_A.weight": "lora_down", "lora_B.weight": "lora_up"} | lengths


@dataclasses.dataclass(frozen=True)
class PeftKind:
  """A PEFT tuner with a counterpart in t2t.

  section: of t2t's config.
  fields: converts adapter_config.json to fields of the section, without the targets.
  known: fields of adapter_config.json that it reads.
  write: converts the section's record to fields of adapter_config.json; for prompts and prefixes see peft_prompts.py.
  parts: converts fields of the section to PEFT's name of a module's parameter -> t2t's name after the path of the
    matrix.
  """

  section: str
  fields: Callable[[Settings, str], dict[str, Any]]
  known: tuple[str, ...]
  write: Callable[[Any], dict[str, Any]] = lambda config: {}
  parts: Callable[[Mapping[str, Any]], dict[str, str]] = lambda fields: {}


# Prompts and prefixes: sizes; and initialization, which does not matter after training.
_FRONT = ("num_virtual_tokens", "token_dim", "num_transformer_submodules", "num_attention_heads", "num_layers")
_BEGAN = ("prompt_tuning_init", "prompt_tuning_init_text", "tokenizer_name_or_path", "tokenizer_kwargs")
_MADE = ("encoder_hidden_size", "prefix_projection", "init_weights")

KINDS = {
  "LORA": PeftKind(
    "lora",
    _lora,
    ("r", "lora_alpha", "lora_dropout", *_SWITCHES),
    _written_lora,
    _lora_parts,
  ),
  "IA3": PeftKind(
    "ia3",
    lambda settings, where: {},
    ("feedforward_modules", "init_ia3_weights"),  # the tensors determine the first, too
    lambda config: {"init_ia3_weights": True},
    lambda fields: {"ia3_l": "ia3"},
  ),
  "PROMPT_TUNING": PeftKind("prompt", peft_prompts.prompt_fields, (*_FRONT, *_BEGAN)),
  "PREFIX_TUNING": PeftKind("prefix", peft_prompts.prefix_fields, (*_FRONT, *_MADE)),
}


def read(folder: epath.Path) -> tuple[PeftKind, Settings, str | None]:
  """Returns the kind of a folder, its adapter_config.json, and its task type.

  Raises:
    UserError: t2t's adapter does not support a field.
  """
  where = f"{folder}/{NAME}"
  settings = safe_read.read_json(folder / NAME)
  name, task = settings.get("peft_type"), settings.get("task_type")
  if not isinstance(name, str) or name not in KINDS:
    raise UserError(f"{where}: peft_type={str(name)[:40]!r}: unsupported; t2t reads {', '.join(KINDS)}")
  if not isinstance(task, str | None) or task not in TASKS:
    raise UserError(
      f"{where}: task_type={str(task)[:40]!r}: unsupported; t2t reads {', '.join(filter(None, TASKS))}, or none"
    )
  kind = KINDS[name]
  passed = {"peft_type", "task_type", "base_model_name_or_path", *_SAID_BY_TENSORS, *_OF_NO_CONSEQUENCE, *kind.known}
  for field, value in settings.items():
    if field in passed:
      continue
    # Switched-off and empty fields have no effect.
    harmless = _MUST.get(field, (None, False, 0, "", [], {}))
    if not any(value == default and type(value) is type(default) for default in harmless):
      shown = json.dumps(value)[:60]
      raise UserError(f"{where}: {field}={shown}: config.{kind.section} does not support this setting")
  return kind, settings, task


def base_named(path: str) -> str:
  """Returns the base that a folder refers to: a path, a name on a hub, or ""."""
  base_name = safe_read.read_json(gcs.absolute(path) / NAME).get("base_model_name_or_path")
  return base_name if isinstance(base_name, str) else ""
