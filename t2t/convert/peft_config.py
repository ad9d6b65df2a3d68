"""adapter_config.json of Hugging Face's PEFT library, as sections of t2t's config and back.

No field is passed over that would change what the tensors mean.

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

# Their task type -> the kinds of heads that it trains; none: tokens are predicted.
TASKS: dict[str | None, tuple[str, ...]] = {
  "CAUSAL_LM": (),
  "SEQ_2_SEQ_LM": (),
  "SEQ_CLS": ("class", "score"),
  "TOKEN_CLS": ("tag",),
  None: (),
}
TASK_OF = {"encoder_decoder": "SEQ_2_SEQ_LM", "decoder_only": "CAUSAL_LM", "encoder_only": None}


# Which modules there are the tensors say; how they began, and where, is of no consequence once they are trained.
_SAID_BY_TENSORS = ("target_modules", "exclude_modules", "modules_to_save", "fan_in_fan_out")
_OF_NO_CONSEQUENCE = ("peft_version", "inference_mode", "auto_mapping", "revision", "megatron_core", "runtime_config")
_OF_NO_CONSEQUENCE += ("qalora_group_size", "eva_config", "ensure_weight_tying")
# Field -> the values that say no more than t2t's adapter does.
_MUST: dict[str, tuple[Any, ...]] = {
  "bias": ("none",),
  # Others change the base's own matrices.
  "init_lora_weights": (True, False, "gaussian", "eva"),
}


def _lora(settings: Settings, where: str) -> dict[str, Any]:
  """Fields of `LoraConfig`, but for what is adapted."""
  rank = _number(settings, "r", 8, where)
  if type(rank) is not int or rank < 1:
    raise UserError(f"{where}: r={rank}: must be a whole number, at least 1")
  alpha = _number(settings, "lora_alpha", 8, where)
  if not 0 < alpha < math.inf:
    raise UserError(f"{where}: lora_alpha={alpha}: must be a number above 0")
  dropout = _number(settings, "lora_dropout", 0.0, where)
  if not 0 <= dropout < 1:
    raise UserError(f"{where}: lora_dropout={dropout}: must be at least 0 and below 1")
  switches = {ours: _switch(settings, theirs, where) for theirs, ours in _SWITCHES.items()}
  return {"rank": rank, "alpha": float(alpha), "dropout": float(dropout)} | switches


_SWITCHES = {"use_rslora": "rslora", "use_dora": "dora"}


def _switch(settings: Settings, key: str, where: str) -> bool:
  value = settings.get(key, False)
  if value not in (True, False, None):
    raise UserError(f"{where}: {key}={str(value)[:40]!r}: must be true or false")
  return bool(value)


def _number(settings: Settings, key: str, default: float, where: str) -> Any:
  value = settings.get(key, default)
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise UserError(f"{where}: {key}={str(value)[:40]!r}: must be a number")
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
  """A tuner of theirs that t2t has a counterpart of.

  section: of t2t's config.
  fields: adapter_config.json -> fields of the section, but for what is adapted.
  known: the fields that it reads.
  write: the section's record -> fields of adapter_config.json; of what stands in front see peft_prompts.py.
  parts: fields of the section -> what theirs calls the parameters of a module -> what t2t does, behind the path of the
    matrix.
  """

  section: str
  fields: Callable[[Settings, str], dict[str, Any]]
  known: tuple[str, ...]
  write: Callable[[Any], dict[str, Any]] = lambda config: {}
  parts: Callable[[Mapping[str, Any]], dict[str, str]] = lambda fields: {}


# Of what stands in front: its sizes, and how it began or was made, which no longer matters.
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
    ("feedforward_modules", "init_ia3_weights"),  # the first the tensors say, too
    lambda config: {"init_ia3_weights": True},
    lambda fields: {"ia3_l": "ia3"},
  ),
  "PROMPT_TUNING": PeftKind("prompt", peft_prompts.prompt_fields, (*_FRONT, *_BEGAN)),
  "PREFIX_TUNING": PeftKind("prefix", peft_prompts.prefix_fields, (*_FRONT, *_MADE)),
}


def read(folder: epath.Path) -> tuple[PeftKind, Settings, str | None]:
  """What kind a folder is of, its adapter_config.json, and its task type.

  Raises:
    UserError: a field says what t2t's adapter cannot; names it.
  """
  where = f"{folder}/{NAME}"
  settings = safe_read.read_json(folder / NAME)
  name, task = settings.get("peft_type"), settings.get("task_type")
  if not isinstance(name, str) or name not in KINDS:
    raise UserError(f"{where}: peft_type={str(name)[:40]!r}: t2t reads {', '.join(KINDS)}")
  if not isinstance(task, str | None) or task not in TASKS:
    raise UserError(f"{where}: task_type={str(task)[:40]!r}: t2t reads {', '.join(filter(None, TASKS))}, or none")
  kind = KINDS[name]
  passed = {"peft_type", "task_type", "base_model_name_or_path", *_SAID_BY_TENSORS, *_OF_NO_CONSEQUENCE, *kind.known}
  for field, value in settings.items():
    if field in passed:
      continue
    # What is off, or empty, says nothing.
    harmless = _MUST.get(field, (None, False, 0, "", [], {}))
    if not any(value == default and type(value) is type(default) for default in harmless):
      shown = json.dumps(value)[:60]
      raise UserError(f"{where}: {field}={shown}: config.{kind.section} has nothing like it; it is not read")
  return kind, settings, task


def base_named(path: str) -> str:
  """Where a folder says that its base lies: a path, a name on a hub, or ""."""
  base_name = safe_read.read_json(gcs.absolute(path) / NAME).get("base_model_name_or_path")
  return base_name if isinstance(base_name, str) else ""
