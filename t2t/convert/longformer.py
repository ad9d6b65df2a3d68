"""Longformer of Hugging Face: RoBERTa with a window and global tokens; hf_mappings.py explains the tables."""

import dataclasses
from typing import Any

from t2t.convert import encoders, hf_mappings

_ATTENTION = "longformer.encoder.layer.{}.attention.self."
LONGFORMER_NAMES = {name.replace("roberta.", "longformer.", 1): ours for name, ours in encoders.ROBERTA_NAMES.items()}
LONGFORMER_NAMES |= {
  f"{_ATTENTION}{part}_global.{kind}": f"encoder/layers/self_attention/global_{part}{suffix}"
  for part in ("query", "key", "value")
  for kind, suffix in (("weight", ""), ("bias", "_bias"))
}

# Key of config.json for which tokens are global; without it, as transformers chooses them for the class.
_GLOBAL = "t2t_global_tokens"


def _read_longformer(settings: hf_mappings.Settings) -> dict[str, Any]:
  layers, sizes = settings.get("num_hidden_layers", 12), settings.get("attention_window", 512)
  sizes = sizes if isinstance(sizes, list) else [sizes] * layers
  if len(set(sizes)) != 1 or type(sizes[0]) is not int or sizes[0] % 2 or sizes[0] < 2:
    raise hf_mappings.Unknown(f"attention_window={str(sizes)[:40]}: t2t supports one even size for all layers")
  fields = encoders.ROBERTA.read({"max_position_embeddings": 512} | dict(settings))
  return fields | {"attention_window": sizes[0] // 2, "global_tokens": settings.get(_GLOBAL, "")}


def _write_longformer(fields: hf_mappings.Settings) -> dict[str, Any]:
  settings = {"attention_window": [2 * fields["attention_window"]] * fields["num_encoder_layers"]}
  settings |= {_GLOBAL: fields["global_tokens"]} if fields["global_tokens"] else {}
  return encoders.ROBERTA.write(fields) | settings


def _longformer(names: Any) -> dict[str, str]:
  return {name.replace("roberta.", "longformer.", 1): ours for name, ours in names.items()}


LONGFORMER = dataclasses.replace(
  encoders.ROBERTA,
  model_type="longformer",
  model_class="LongformerForMaskedLM",
  bare_class="LongformerModel",
  tasks={
    name.replace("Roberta", "Longformer"): dataclasses.replace(task, names=_longformer(task.names))
    for name, task in encoders.ROBERTA.tasks.items()
  },
  keys=encoders.BERT.keys,
  # transformers' model has no key for the kind of positions and of stack.
  must={},
  fields=encoders.ROBERTA.fields | {"attention": "longformer"},
  names=LONGFORMER_NAMES,
  reads=(*encoders.ROBERTA.reads, "attention_window", _GLOBAL),
  prefix="longformer.",
  copies={name: original.replace("roberta.", "longformer.", 1) for name, original in encoders.ROBERTA.copies.items()},
  pooler=_longformer(encoders.ROBERTA.pooler),
  read=_read_longformer,
  write=_write_longformer,
)
