"""Gemma 1, 2 and 3 (text) of Hugging Face; hf_mappings.py explains the tables."""

import dataclasses
from typing import Any

from t2t.convert import decoders, hf_mappings, modern_bert

# In Gemma "gelu" means the tanh approximation.
_ACTIVATIONS = {"gelu_pytorch_tanh": "gated_gelu", "gelu": "gated_gelu", "gelu_new": "gated_gelu", "silu": "gated_silu"}


def _read_shape(settings: hf_mappings.Settings, activation: str) -> dict[str, Any]:
  num_heads, num_kv_heads = settings["num_attention_heads"], settings["num_key_value_heads"]
  return {
    "num_kv_heads": num_kv_heads if num_kv_heads != num_heads else 0,
    "head_dim": settings["head_dim"],
    "mlp_activation": activation,
    "tied_logits": settings.get("tie_word_embeddings", True),
  }


def _write_shape(fields: hf_mappings.Settings) -> dict[str, Any]:
  return {
    "num_key_value_heads": fields["num_kv_heads"] or fields["num_heads"],
    "head_dim": fields["head_dim"],
    "tie_word_embeddings": fields["tied_logits"],
    "attention_dropout": fields["dropout_rate"],
  }


def _read_gemma(settings: hf_mappings.Settings) -> dict[str, Any]:
  settings = {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256} | dict(settings)
  named = {key: settings[key] for key in ("hidden_act", "hidden_activation") if settings.get(key)}
  activations = [hf_mappings.look_up(_ACTIVATIONS, key, name) for key, name in named.items()]
  if len(set(activations)) > 1:
    raise hf_mappings.Unknown(
      f"hidden_act={named['hidden_act']!r} and hidden_activation={named['hidden_activation']!r}: the values "
      "differ, and transformers reads only hidden_act. Remove the key with the wrong value."
    )
  activation = next(iter(activations), "gated_gelu")
  return _read_shape(settings, activation) | decoders.read_rotary(settings)


def _gemma_notes(settings: hf_mappings.Settings) -> tuple[str, ...]:
  if settings.get("hidden_act") != "gelu":
    return ()
  return (
    "hidden_act='gelu' is read as the tanh approximation, with which Gemma was trained, as in transformers 5;"
    " transformers 4 computes the exact GELU, with slightly different logits",
  )


def _write_gemma(fields: hf_mappings.Settings) -> dict[str, Any]:
  activation = hf_mappings.name_of(_ACTIVATIONS, "mlp_activation", fields["mlp_activation"])
  return _write_shape(fields) | {"hidden_act": activation} | decoders.write_rotary(fields)


GEMMA = dataclasses.replace(
  decoders.LLAMA,
  model_type="gemma",
  model_class="GemmaForCausalLM",
  tasks={"GemmaForSequenceClassification": decoders.SCORE, "GemmaForTokenClassification": decoders.TAG},
  keys={
    **decoders.LLAMA.keys,
    "vocab_size": ("vocab_size", 256_000),
    "hidden_size": ("embed_dim", 3072),
    "intermediate_size": ("mlp_dim", 24_576),
    "num_hidden_layers": ("num_decoder_layers", 28),
    "num_attention_heads": ("num_heads", 16),
    "max_position_embeddings": ("max_length", 8192),
  },
  must={"attention_bias": (False,), "use_bidirectional_attention": (None, False)},
  fields=decoders.LLAMA.fields | {"norm_offset": True, "scale_embedding": True},
  reads=(*decoders.LLAMA.reads, "hidden_activation"),
  read=_read_gemma,
  write=_write_gemma,
  notes=_gemma_notes,
)

# ---- Gemma 2 ---------------------------------------------------------------------------------------------------------

GEMMA2_NAMES = decoders.LLAMA_NAMES | {
  "model.layers.{}.post_attention_layernorm.weight": "decoder/layers/branch_norms/self_attention/scale",
  "model.layers.{}.pre_feedforward_layernorm.weight": "decoder/layers/mlp_norm/scale",
  "model.layers.{}.post_feedforward_layernorm.weight": "decoder/layers/branch_norms/mlp/scale",
}
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"


def _read_windows(settings: hf_mappings.Settings, every: int) -> dict[str, int]:
  """Returns which layers have global attention; by default the last of each `every`."""
  number, window = settings["num_hidden_layers"], settings["sliding_window"]
  types = settings.get("layer_types") or [_LOCAL if (i + 1) % every else _GLOBAL for i in range(number)]
  sees_all = [i for i, kind in enumerate(types) if kind == _GLOBAL]
  if not window or len(sees_all) == number:
    return {"attention_window": 0}
  if window == 1:
    raise hf_mappings.Unknown("sliding_window=1: t2t supports only windows of at least 2 positions")
  # Hugging Face's window includes the position itself.
  windows = {"attention_window": window - 1}
  if not sees_all:
    return windows
  first = sees_all[0]
  every = sees_all[1] - first if len(sees_all) > 1 else number
  if first >= every or sees_all != list(range(first, number, every)):
    raise hf_mappings.Unknown(f"layer_types={types}: t2t supports global attention only in every n-th layer")
  return windows | {"global_attention_every": every, "global_attention_first": first}


def _write_windows(fields: hf_mappings.Settings) -> dict[str, Any]:
  every, first, window = (
    fields[name] for name in ("global_attention_every", "global_attention_first", "attention_window")
  )
  is_local = lambda i: window and not (every and i % every == first)
  types = [_LOCAL if is_local(i) else _GLOBAL for i in range(fields["num_decoder_layers"])]
  return {"layer_types": types, "sliding_window": window + 1 if window else 4096}


_GEMMA2_DEFAULTS = {
  "num_hidden_layers": 26,
  "num_attention_heads": 8,
  "num_key_value_heads": 4,
  "head_dim": 256,
  "sliding_window": 4096,
  "query_pre_attn_scalar": 256,
}


def _read_scales(settings: hf_mappings.Settings, caps: tuple[float, float]) -> dict[str, Any]:
  scale = settings["query_pre_attn_scalar"]
  if scale != int(scale):
    raise hf_mappings.Unknown(f"query_pre_attn_scalar={scale}: t2t supports only whole numbers")
  return {
    "attention_scale_dim": int(scale) if scale != settings["head_dim"] else 0,
    "attention_softcap": float(settings.get("attn_logit_softcapping", caps[0]) or 0.0),
    "logits_softcap": float(settings.get("final_logit_softcapping", caps[1]) or 0.0),
  }


def _write_scales(fields: hf_mappings.Settings) -> dict[str, Any]:
  return {
    "query_pre_attn_scalar": fields["attention_scale_dim"] or fields["head_dim"],
    "attn_logit_softcapping": fields["attention_softcap"] or None,
    "final_logit_softcapping": fields["logits_softcap"] or None,
  }


def _activation(settings: hf_mappings.Settings) -> str:
  name = settings.get("hidden_activation", "gelu_pytorch_tanh")
  return hf_mappings.look_up(hf_mappings.GATED, "hidden_activation", name)


def _read_gemma2(settings: hf_mappings.Settings) -> dict[str, Any]:
  settings = _GEMMA2_DEFAULTS | dict(settings)
  fields = _read_windows(settings, 2) | _read_scales(settings, (50.0, 30.0))
  return _read_shape(settings, _activation(settings)) | fields | decoders.read_rotary(settings)


def _write_common(fields: hf_mappings.Settings) -> dict[str, Any]:
  # transformers checks this although the head width is independent.
  if fields["embed_dim"] % fields["num_heads"]:
    raise hf_mappings.Unknown(
      f"config.model.embed_dim={fields['embed_dim']}: transformers requires a multiple of "
      f"config.model.num_heads={fields['num_heads']}"
    )
  activation = hf_mappings.name_of(hf_mappings.GATED, "mlp_activation", fields["mlp_activation"])
  shape = _write_shape(fields) | {"hidden_activation": activation} | decoders.write_rotary(fields)
  return shape | _write_windows(fields) | _write_scales(fields)


GEMMA2 = dataclasses.replace(
  GEMMA,
  model_type="gemma2",
  model_class="Gemma2ForCausalLM",
  tasks={"Gemma2ForSequenceClassification": decoders.SCORE, "Gemma2ForTokenClassification": decoders.TAG},
  keys={
    **GEMMA.keys,
    "hidden_size": ("embed_dim", 2304),
    "intermediate_size": ("mlp_dim", 9216),
    "num_hidden_layers": ("num_decoder_layers", 26),
    "num_attention_heads": ("num_heads", 8),
  },
  fields=GEMMA.fields | {"branch_norm": True},
  names=GEMMA2_NAMES,
  reads=(
    *(*GEMMA.reads, "layer_types", "sliding_window", "query_pre_attn_scalar"),
    *("attn_logit_softcapping", "final_logit_softcapping"),
  ),
  read=_read_gemma2,
  notes=lambda settings: (),
  write=_write_common,
)

# ---- Gemma 3 ---------------------------------------------------------------------------------------------------------

GEMMA3_NAMES = GEMMA2_NAMES | {
  "model.layers.{}.self_attn.q_norm.weight": "decoder/layers/self_attention/query_norm/scale",
  "model.layers.{}.self_attn.k_norm.weight": "decoder/layers/self_attention/key_norm/scale",
}


def _read_gemma3(settings: hf_mappings.Settings) -> dict[str, Any]:
  settings = _GEMMA2_DEFAULTS | dict(settings)
  every = settings.get("sliding_window_pattern") or settings.get("_sliding_window_pattern") or 6
  windows = _read_windows(settings, every)
  local = modern_bert.rotary_base(settings, _LOCAL, "rope_local_base_freq", 10_000.0)
  fields = windows | _read_scales(settings, (0.0, 0.0))
  fields["rotary_base"] = modern_bert.rotary_base(settings, _GLOBAL, "rope_theta", 1_000_000.0)
  fields["local_rotary_base"] = local if windows["attention_window"] else 0.0
  return _read_shape(settings, _activation(settings)) | fields


def _write_gemma3(fields: hf_mappings.Settings) -> dict[str, Any]:
  return _write_common(fields) | {"rope_local_base_freq": fields["local_rotary_base"] or fields["rotary_base"]}


GEMMA3 = dataclasses.replace(
  GEMMA2,
  model_type="gemma3_text",
  model_class="Gemma3ForCausalLM",
  tasks={"Gemma3TextForSequenceClassification": decoders.SCORE},
  keys=GEMMA2.keys | {"vocab_size": ("vocab_size", 262_208), "max_position_embeddings": ("max_length", 131_072)},
  fields=GEMMA2.fields | {"qk_norm": True},
  names=GEMMA3_NAMES,
  reads=(*GEMMA2.reads, "rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"),
  read=_read_gemma3,
  write=_write_gemma3,
)
