"""T5Gemma of Hugging Face: an encoder and a decoder of Gemma 2; hf_mappings.py explains the tables."""

import dataclasses
from typing import Any

from t2t.convert import gemma, hf_config, hf_mappings
from t2t.models.architecture import ENCODER_DECODER
from t2t.models.config import ENCODER_FIELDS, TransformerConfig

SIDES = ENCODER_DECODER.sides
_NORMS = {"self_attn": "self_attention", "cross_attn": "cross_attention", "feedforward": "mlp"}


def _names(side: str) -> dict[str, str]:
  """Returns names of one stack."""
  attentions = ("self_attn", "cross_attn") if side == "decoder" else ("self_attn",)
  layers, names = f"{side}/layers", {"mlp.gate_proj": "mlp/gate", "mlp.up_proj": "mlp/up", "mlp.down_proj": "mlp/down"}
  for theirs in attentions:
    projections = {"q": "query", "k": "key", "v": "value", "o": "out"}
    names |= {f"{theirs}.{name}_proj": f"{_NORMS[theirs]}/{ours}" for name, ours in projections.items()}
  for theirs in (*attentions, "feedforward"):
    names[f"pre_{theirs}_layernorm"] = f"{_NORMS[theirs]}_norm/scale"
    names[f"post_{theirs}_layernorm"] = f"branch_norms/{_NORMS[theirs]}/scale"
  return {
    f"model.{side}.embed_tokens.weight": "embed/table" if side == "decoder" else "encoder/embed/table",
    f"model.{side}.norm.weight": f"{side}/norm/scale",
    **{f"model.{side}.layers.{{}}.{name}.weight": f"{layers}/{path}" for name, path in names.items()},
  }


NAMES = {**_names("encoder"), **_names("decoder"), "lm_head.out_proj.weight": "head/projection"}

# Fields of a stack that the other stack may have with another value: t2t reads only the decoder's.
_UNSHARED = ("num_decoder_layers", "init_scale", "max_length", "logits_softcap", "tied_logits", "dtype")
_GLOBAL = ("global_attention_every", "global_attention_first")


def _section(settings: hf_mappings.Settings, side: str) -> dict[str, Any]:
  """Returns the settings of a stack as Gemma 2's, which counts a query in the window."""
  section = dict(settings.get(side) or {})
  if side == "encoder" and (window := section.get("sliding_window", 4096)):
    section["sliding_window"] = window + 1
  return section


def _read_stack(settings: hf_mappings.Settings, side: str) -> dict[str, Any]:
  """Returns the fields of a stack as those of a Gemma 2."""
  try:
    return hf_config.read_fields(gemma.GEMMA2, _section(settings, side))
  except hf_mappings.Unknown as error:
    raise hf_mappings.Unknown(f"{side}: {error}") from error


def _global_layers(fields: hf_mappings.Settings, like: hf_mappings.Settings) -> list[int]:
  """Returns the layers of the stack `fields` that attend to all positions, in the pattern of the stack `like`."""
  every, first = (like.get(name, 0) for name in _GLOBAL)
  return [index for index in range(fields["num_decoder_layers"]) if every and index % every == first]


def _pattern(stacks: dict[str, dict[str, Any]]) -> dict[str, int]:
  """Returns the pattern of global layers that both stacks have."""
  for like in sorted(stacks.values(), key=lambda fields: fields.get(_GLOBAL[0], 0)):
    if all(_global_layers(fields, fields) == _global_layers(fields, like) for fields in stacks.values()):
      return {name: like.get(name, 0) for name in _GLOBAL}
  layers = {side: _global_layers(fields, fields) for side, fields in stacks.items()}
  raise hf_mappings.Unknown(
    f"layer_types: the encoder has full_attention in the layers {layers['encoder']}, and the decoder in "
    f"{layers['decoder']}, but t2t supports only one pattern"
  )


def _read(settings: hf_mappings.Settings) -> dict[str, Any]:
  stacks = {side: _read_stack(settings, side) for side in SIDES}
  encoder, fields = stacks["encoder"], dict(stacks["decoder"])
  if bool(encoder["attention_window"]) != bool(fields["attention_window"]):
    raise hf_mappings.Unknown("layer_types: t2t supports sliding_attention only in both stacks, or in none")
  fields |= _pattern(stacks)
  own = {name.removeprefix("encoder_") for name in ENCODER_FIELDS}
  for name, value in encoder.items():
    if name not in (*own, *_UNSHARED, *_GLOBAL, "attention_scale_dim") and value != fields[name]:
      raise hf_mappings.Unknown(
        f"config.model.{name} would be {value!r} in the encoder and {fields[name]!r} in the decoder: t2t supports "
        "only equal values"
      )
  # A field of 0 has the head dimension, which may differ.
  scales = {side: stack["attention_scale_dim"] or stack["head_dim"] for side, stack in stacks.items()}
  if any(stack["attention_scale_dim"] for stack in stacks.values()):
    if scales["encoder"] != scales["decoder"]:
      raise hf_mappings.Unknown(
        f"query_pre_attn_scalar is {scales['encoder']} in the encoder and {scales['decoder']} in the decoder: t2t "
        "supports other values than head_dim only if they are equal"
      )
    fields["attention_scale_dim"] = scales["decoder"]
  fields |= {"num_encoder_layers": encoder["num_decoder_layers"], **_of_encoder(encoder, fields)}
  return fields | {
    "architecture": "encoder_decoder",
    "own_encoder_embedding": True,
    "tied_logits": settings.get("tie_word_embeddings", True),
  }


def _of_encoder(encoder: hf_mappings.Settings, decoder: hf_mappings.Settings) -> dict[str, int]:
  """Returns the fields of an encoder's sizes: 0 where they are the decoder's."""
  names = [name.removeprefix("encoder_") for name in ENCODER_FIELDS]
  changed = {f"encoder_{name}": encoder[name] if encoder[name] != decoder[name] else 0 for name in names}
  number = encoder["num_kv_heads"] or encoder["num_heads"]
  inherited = decoder["num_kv_heads"] or encoder["num_heads"]
  return changed | {"encoder_num_kv_heads": number if number != inherited else 0}


def _write(fields: hf_mappings.Settings) -> dict[str, Any]:
  model, settings = TransformerConfig(**fields), {}
  for side in SIDES:
    changed = {"num_encoder_layers": 0, "num_decoder_layers": fields[f"num_{side}_layers"]}
    changed |= {"own_encoder_embedding": False, "share_stacks": False, "heads": (), **dict.fromkeys(ENCODER_FIELDS, 0)}
    stack = dataclasses.replace(model.of_stack(side), architecture="decoder_only", **changed)
    section = hf_config.write_settings(gemma.GEMMA2, stack)
    if side == "encoder" and stack.attention_window:
      section["sliding_window"] -= 1
    settings[side] = section | {"model_type": "t5_gemma_module"}
  return settings | {
    "vocab_size": model.vocab_size,
    "tie_word_embeddings": model.tied_logits,
    "attention_dropout": model.dropout_rate,
  }


def _notes(settings: hf_mappings.Settings) -> tuple[str, ...]:
  notes = ["Gemma's tokenizer starts the inputs with BOS, but t2t ends them with EOS instead: fine-tune the model"]
  known = {*gemma.GEMMA2.keys, *gemma.GEMMA2.must, *gemma.GEMMA2.reads, *hf_config.HARMLESS}
  known |= {"dropout_rate", "cross_attention_hidden_size"}
  for side in SIDES:
    if unknown := sorted(set(settings.get(side) or {}) - known):
      notes.append(f"config.json: unknown keys in {side}: {', '.join(unknown)}")
  if window := (settings.get("encoder") or {}).get("sliding_window"):
    notes.append(
      f"layers with a window read {window} positions on each side in the encoder, as in transformers 5; transformers 4"
      f" and the authors' code read {window - 1}, as in the decoder"
    )
  return tuple(notes)


T5GEMMA = dataclasses.replace(
  gemma.GEMMA2,
  model_type="t5gemma",
  model_class="T5GemmaForConditionalGeneration",
  tasks={},
  keys={"dropout_rate": ("dropout_rate", 0.0)},
  must={"is_encoder_decoder": (True,)},
  fields={**gemma.GEMMA2.fields, "architecture": "encoder_decoder"},
  names=NAMES,
  reads=(*SIDES, "vocab_size", "tie_word_embeddings", "classifier_dropout_rate"),
  sections=SIDES,
  copies={"lm_head.out_proj.weight": "model.decoder.embed_tokens.weight"},
  read=_read,
  write=_write,
  notes=_notes,
)
