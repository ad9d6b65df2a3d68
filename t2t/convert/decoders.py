"""GPT-2, MPT, Llama, Mistral, Qwen 2 and Qwen 3 of Hugging Face; hf_mappings.py explains the tables."""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

from t2t.convert import encoders, hf_mappings

_ATTENTION = tuple(f"decoder/layers/self_attention/{name}" for name in ("query", "key", "value"))
GPT2_NAMES = {
  "transformer.wte.weight": "embed/table",
  "transformer.wpe.weight": "embed/positions",
  "transformer.h.{}.ln_1.weight": "decoder/layers/self_attention_norm/scale",
  "transformer.h.{}.ln_1.bias": "decoder/layers/self_attention_norm/bias",
  "transformer.h.{}.attn.c_attn.weight": _ATTENTION,
  "transformer.h.{}.attn.c_attn.bias": tuple(f"{name}_bias" for name in _ATTENTION),
  "transformer.h.{}.attn.c_proj.weight": "decoder/layers/self_attention/out",
  "transformer.h.{}.attn.c_proj.bias": "decoder/layers/self_attention/out_bias",
  "transformer.h.{}.ln_2.weight": "decoder/layers/mlp_norm/scale",
  "transformer.h.{}.ln_2.bias": "decoder/layers/mlp_norm/bias",
  "transformer.h.{}.mlp.c_fc.weight": "decoder/layers/mlp/up",
  "transformer.h.{}.mlp.c_fc.bias": "decoder/layers/mlp/up_bias",
  "transformer.h.{}.mlp.c_proj.weight": "decoder/layers/mlp/down",
  "transformer.h.{}.mlp.c_proj.bias": "decoder/layers/mlp/down_bias",
  "transformer.ln_f.weight": "decoder/norm/scale",
  "transformer.ln_f.bias": "decoder/norm/bias",
  "lm_head.weight": "head/projection",
}


# Applied to the last token, without a bias.
SCORE = hf_mappings.HeadTask(
  ("class", "score"), {"score.weight": "projection"}, dropout_rate=0.0, fields={"bias": False}
)
# Applied to every token.
TAG = hf_mappings.HeadTask(
  ("tag",),
  {"score.weight": "projection", "score.bias": "projection_bias"},
  dropout_key="classifier_dropout",
  dropout_rate=0.1,
)


def _read_gpt2(settings: hf_mappings.Settings) -> dict[str, Any]:
  activation = settings.get("activation_function", "gelu_new")
  return {
    "mlp_dim": settings.get("n_inner") or 4 * settings.get("n_embd", 768),
    "mlp_activation": hf_mappings.look_up(hf_mappings.PLAIN, "activation_function", activation),
    "tied_logits": settings.get("tie_word_embeddings", True),
  }


def _write_gpt2(fields: hf_mappings.Settings) -> dict[str, Any]:
  return {
    "n_inner": fields["mlp_dim"],
    "activation_function": hf_mappings.name_of(hf_mappings.PLAIN, "mlp_activation", fields["mlp_activation"]),
    "tie_word_embeddings": fields["tied_logits"],
    "attn_pdrop": fields["dropout_rate"],
    "embd_pdrop": fields["dropout_rate"],
  }


GPT2 = hf_mappings.Family(
  model_type="gpt2",
  model_class="GPT2LMHeadModel",
  tasks={
    "GPT2ForSequenceClassification": SCORE,
    "GPT2ForTokenClassification": dataclasses.replace(TAG, names=encoders.CLASSIFIER),
    "GPT2ForQuestionAnswering": encoders.SPAN,
  },
  keys={
    "vocab_size": ("vocab_size", 50_257),
    "n_embd": ("embed_dim", 768),
    "n_layer": ("num_decoder_layers", 12),
    "n_head": ("num_heads", 12),
    "n_positions": ("max_length", 1024),
    "layer_norm_epsilon": ("norm_epsilon", 1e-5),
    "initializer_range": ("init_scale", 0.02),
    "resid_pdrop": ("dropout_rate", 0.1),
  },
  must={
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
  },
  fields={
    "architecture": "decoder_only",
    "positions": "learned",
    "scale_attention": True,
    "norm": "layer",
    "biases": True,
    "broadcast_dropout": False,
  },
  names=GPT2_NAMES,
  reads=("n_inner", "activation_function", "tie_word_embeddings", "attn_pdrop", "embd_pdrop"),
  prefix="transformer.",
  copies={"lm_head.weight": "transformer.wte.weight"},
  # Causal mask.
  buffers=(".attn.bias", ".attn.masked_bias"),
  transposed=False,
  square=True,
  read=_read_gpt2,
  write=_write_gpt2,
)

# ---- MPT -------------------------------------------------------------------------------------------------------------

MPT_NAMES = {
  "transformer.wte.weight": "embed/table",
  "transformer.blocks.{}.norm_1.weight": "decoder/layers/self_attention_norm/scale",
  "transformer.blocks.{}.attn.Wqkv.weight": _ATTENTION,
  "transformer.blocks.{}.attn.out_proj.weight": "decoder/layers/self_attention/out",
  "transformer.blocks.{}.norm_2.weight": "decoder/layers/mlp_norm/scale",
  "transformer.blocks.{}.ffn.up_proj.weight": "decoder/layers/mlp/up",
  "transformer.blocks.{}.ffn.down_proj.weight": "decoder/layers/mlp/down",
  "transformer.norm_f.weight": "decoder/norm/scale",
  "lm_head.weight": "head/projection",
}
# Supported attention: key of "attn_config" -> required value, or the default of an irrelevant key.
_MPT_ATTENTION = {
  "attn_type": "multihead_attention",
  "clip_qkv": None,
  "softmax_scale": None,
  "prefix_lm": False,
  "qk_ln": False,
  "alibi": True,
  "alibi_bias_max": 8,
}


def _read_mpt(settings: hf_mappings.Settings) -> dict[str, Any]:
  attention = _MPT_ATTENTION | (settings.get("attn_config") or {})
  for key, value in _MPT_ATTENTION.items():
    if attention[key] != value:
      raise hf_mappings.Unknown(f"attn_config.{key}={attention[key]!r}: t2t supports only {value!r}")
  return {
    "mlp_dim": 4 * settings.get("d_model", 2048),
    "tied_logits": settings.get("tie_word_embeddings", True),
  }


def _write_mpt(fields: hf_mappings.Settings) -> dict[str, Any]:
  return {
    "attn_config": _MPT_ATTENTION,  # without a dropout rate, because transformers requires an integer
    "tie_word_embeddings": fields["tied_logits"],
    "emb_pdrop": fields["dropout_rate"],
  }


MPT = hf_mappings.Family(
  model_type="mpt",
  model_class="MptForCausalLM",
  tasks={
    "MptForSequenceClassification": SCORE,
    "MptForTokenClassification": dataclasses.replace(TAG, names=encoders.CLASSIFIER),
    "MptForQuestionAnswering": encoders.SPAN,
  },
  keys={
    "vocab_size": ("vocab_size", 50_368),
    "d_model": ("embed_dim", 2048),
    "n_layers": ("num_decoder_layers", 24),
    "n_heads": ("num_heads", 16),
    "max_seq_len": ("max_length", 2048),
    "layer_norm_epsilon": ("norm_epsilon", 1e-5),
    "initializer_range": ("init_scale", 0.02),
    "resid_pdrop": ("dropout_rate", 0.0),
  },
  must={"expansion_ratio": (4,), "no_bias": (True,), "logit_scale": (None,), "embedding_fraction": (1.0,)},
  fields={
    "architecture": "decoder_only",
    "positions": "alibi",
    "scale_attention": True,
    "norm": "layer",
    "mlp_activation": "gelu",
    "broadcast_dropout": False,
  },
  names=MPT_NAMES,
  reads=("attn_config", "tie_word_embeddings", "emb_pdrop"),
  prefix="transformer.",
  copies={"lm_head.weight": "transformer.wte.weight"},
  square=True,
  read=_read_mpt,
  write=_write_mpt,
)

# ---- Llama -----------------------------------------------------------------------------------------------------------

LLAMA_NAMES = {
  "model.embed_tokens.weight": "embed/table",
  "model.layers.{}.input_layernorm.weight": "decoder/layers/self_attention_norm/scale",
  "model.layers.{}.self_attn.q_proj.weight": "decoder/layers/self_attention/query",
  "model.layers.{}.self_attn.k_proj.weight": "decoder/layers/self_attention/key",
  "model.layers.{}.self_attn.v_proj.weight": "decoder/layers/self_attention/value",
  "model.layers.{}.self_attn.o_proj.weight": "decoder/layers/self_attention/out",
  "model.layers.{}.post_attention_layernorm.weight": "decoder/layers/mlp_norm/scale",
  "model.layers.{}.mlp.gate_proj.weight": "decoder/layers/mlp/gate",
  "model.layers.{}.mlp.up_proj.weight": "decoder/layers/mlp/up",
  "model.layers.{}.mlp.down_proj.weight": "decoder/layers/mlp/down",
  "model.norm.weight": "decoder/norm/scale",
  "lm_head.weight": "head/projection",
}
QWEN2_NAMES = LLAMA_NAMES | {
  "model.layers.{}.self_attn.q_proj.bias": "decoder/layers/self_attention/query_bias",
  "model.layers.{}.self_attn.k_proj.bias": "decoder/layers/self_attention/key_bias",
  "model.layers.{}.self_attn.v_proj.bias": "decoder/layers/self_attention/value_bias",
}
QWEN3_NAMES = LLAMA_NAMES | {
  "model.layers.{}.self_attn.q_norm.weight": "decoder/layers/self_attention/query_norm/scale",
  "model.layers.{}.self_attn.k_norm.weight": "decoder/layers/self_attention/key_norm/scale",
}


_ROPE, _OLD_ROPE, _ORIGINAL = "rope_parameters", "rope_scaling", "original_max_position_embeddings"
ROPE_KEYS = ("rope_theta", _ROPE, _OLD_ROPE, "partial_rotary_factor", _ORIGINAL)  # keys that `read_rotary` uses
# rope_type -> key -> field of `TransformerConfig`
_SCALINGS: dict[str, dict[str, str]] = {
  "default": {},
  "linear": {"factor": "rotary_scaling_factor"},
  "llama3": {
    "factor": "rotary_scaling_factor",
    "low_freq_factor": "rotary_scaling_low_turns",
    "high_freq_factor": "rotary_scaling_high_turns",
    _ORIGINAL: "rotary_scaling_original_length",
  },
  "yarn": {
    "factor": "rotary_scaling_factor",
    "beta_fast": "rotary_scaling_beta_fast",
    "beta_slow": "rotary_scaling_beta_slow",
    "attention_factor": "rotary_scaling_attention_factor",
    "truncate": "rotary_scaling_truncate",
    _ORIGINAL: "rotary_scaling_original_length",
  },
}
_REQUIRED = ("factor", "low_freq_factor", "high_freq_factor")  # without a default in transformers
# Keys that do not scale: of other purposes, or read besides.
_BESIDE = ("rope_theta", "rope_type", "type", "partial_rotary_factor", "mscale", "mscale_all_dim", "finetuned")


def read_rotary(settings: hf_mappings.Settings) -> dict[str, Any]:
  """Returns the fields of rotary positions that are the same in all layers.

  Raises:
    hf_mappings.Unknown: the scaling is unknown or incomplete, positions are partial, or two keys differ.
  """
  # transformers 5 has everything in "rope_parameters"; earlier versions have the base at the top level, and the other
  # keys in "rope_scaling".
  dicts = {key: settings.get(key) or {} for key in (_OLD_ROPE, _ROPE)}
  partial = [x.get("partial_rotary_factor") for x in (settings, *dicts.values())]
  if set(partial) - {None, 1.0}:
    shown = next(x for x in partial if x not in (None, 1.0))
    raise hf_mappings.Unknown(f"partial_rotary_factor={shown}: t2t does not support partial rotary positions")
  inside = {f"{key}.rope_theta": value.get("rope_theta") for key, value in dicts.items()}
  fields: dict[str, Any] = {"rotary_base": one_base(inside | {"rope_theta": settings.get("rope_theta")}, 10_000.0)}
  scalings = [found for key, value in dicts.items() if (found := _read_scaling(key, value, settings))]
  if len(scalings) == 2 and scalings[0] != scalings[1]:
    raise hf_mappings.Unknown(
      f"{_OLD_ROPE} and {_ROPE}: the values differ, and transformers 4 and 5 read different keys. Remove the wrong key."
    )
  return fields | (scalings[0] if scalings else {})


def _read_scaling(key: str, value: Mapping[str, Any], settings: hf_mappings.Settings) -> dict[str, Any]:
  """Returns the fields of the scaling in `settings[key]`; {} without a scaling."""
  kind = value.get("rope_type", value.get("type", "default"))
  if kind not in _SCALINGS:
    raise hf_mappings.Unknown(f"{key}.rope_type={kind!r}: t2t supports only {', '.join(_SCALINGS)}")
  if kind == "default":
    return {}
  unknown = sorted(set(value) - set(_SCALINGS[kind]) - set(_BESIDE))
  if unknown:
    raise hf_mappings.Unknown(f"{key}.{unknown[0]}={value[unknown[0]]!r}: t2t does not support this key of {kind}")
  if _ORIGINAL in _SCALINGS[kind]:
    # The key at the top level takes precedence in transformers.
    lengths = (settings.get(_ORIGINAL), value.get(_ORIGINAL), settings.get("max_position_embeddings"))
    value = dict(value) | {_ORIGINAL: next((length for length in lengths if length is not None), None)}
  fields: dict[str, Any] = {"rotary_scaling": kind}
  for theirs, ours in _SCALINGS[kind].items():
    number = value.get(theirs)
    if number is None and theirs in (*_REQUIRED, _ORIGINAL):
      raise hf_mappings.Unknown(f"{key}={dict(value)}: rope_type={kind!r} needs {theirs}")
    if number is not None:
      if theirs != "truncate" and (isinstance(number, bool) or not isinstance(number, (int, float))):
        raise hf_mappings.Unknown(f"{key}.{theirs}={str(number)[:40]!r} is not a number")
      fields[ours] = number if theirs in (_ORIGINAL, "truncate") else float(number)
  if kind == "yarn" and not fields.get("rotary_scaling_attention_factor"):
    logits = [value.get(name) for name in ("mscale", "mscale_all_dim")]
    if all(logits):
      scales = [0.1 * scale * math.log(fields["rotary_scaling_factor"]) + 1.0 for scale in logits]
      fields["rotary_scaling_attention_factor"] = scales[0] / scales[1]
  return fields


def write_rotary(fields: hf_mappings.Settings) -> dict[str, Any]:
  """Returns the keys that `read_rotary` reads, in the form that transformers 4 and 5 read."""
  base, kind = {"rope_theta": fields["rotary_base"]}, fields["rotary_scaling"]
  if not kind:
    return base
  values = {theirs: fields[ours] for theirs, ours in _SCALINGS[kind].items()}
  if not values.get("attention_factor"):
    values.pop("attention_factor", None)
  if values.get("truncate"):
    del values["truncate"]  # the default, which earlier versions do not know
  original = values.get(_ORIGINAL)
  if original and not fields["max_length"]:
    base["max_position_embeddings"] = round(original * values["factor"])
  return base | {_OLD_ROPE: {"rope_type": kind} | values}


def one_base(bases: Mapping[str, Any], default: float) -> float:
  """Returns the base of rotary positions.

  Args:
    bases: key of config.json -> base, or None if absent.
    default: base if all are absent.

  Raises:
    hf_mappings.Unknown: two bases differ, and versions of transformers read different ones.
  """
  there = {key: float(value) for key, value in bases.items() if value}
  if len(set(there.values())) > 1:
    shown = " and ".join(f"{key}={value:g}" for key, value in there.items())
    raise hf_mappings.Unknown(
      f"{shown}: the values differ, and transformers 4 and 5 read different keys. Remove the keys with the wrong value."
    )
  return next(iter(there.values()), default)


def read_llama(settings: hf_mappings.Settings) -> dict[str, Any]:
  """Returns the fields of a Llama that are no plain keys.

  Raises:
    hf_mappings.Unknown: t2t does not support a value.
  """
  num_heads = settings.get("num_attention_heads", 32)
  num_kv_heads = settings.get("num_key_value_heads") or num_heads
  return {
    "num_kv_heads": num_kv_heads if num_kv_heads != num_heads else 0,
    "head_dim": settings.get("head_dim") or settings.get("hidden_size", 4096) // num_heads,
    "mlp_activation": hf_mappings.look_up(hf_mappings.GATED, "hidden_act", settings.get("hidden_act", "silu")),
    "tied_logits": settings.get("tie_word_embeddings", False),
    **read_rotary(settings),
  }


def _write_llama(fields: hf_mappings.Settings) -> dict[str, Any]:
  if fields["embed_dim"] % fields["num_heads"]:
    raise hf_mappings.Unknown(
      f"config.model.embed_dim={fields['embed_dim']}: transformers requires a multiple of "
      f"config.model.num_heads={fields['num_heads']}"
    )
  return {
    "num_key_value_heads": fields["num_kv_heads"] or fields["num_heads"],
    "head_dim": fields["head_dim"],
    "hidden_act": hf_mappings.name_of(hf_mappings.GATED, "mlp_activation", fields["mlp_activation"]),
    "tie_word_embeddings": fields["tied_logits"],
    "attention_dropout": fields["dropout_rate"],
    **write_rotary(fields),
  }


# In this class the body has another name.
_NAMED_SPAN = dataclasses.replace(encoders.SPAN, prefix="transformer.")

LLAMA = hf_mappings.Family(
  model_type="llama",
  model_class="LlamaForCausalLM",
  tasks={
    "LlamaForSequenceClassification": SCORE,
    "LlamaForTokenClassification": TAG,
    "LlamaForQuestionAnswering": _NAMED_SPAN,
  },
  keys={
    "vocab_size": ("vocab_size", 32_000),
    "hidden_size": ("embed_dim", 4096),
    "intermediate_size": ("mlp_dim", 11_008),
    "num_hidden_layers": ("num_decoder_layers", 32),
    "num_attention_heads": ("num_heads", 32),
    "max_position_embeddings": ("max_length", 2048),
    "rms_norm_eps": ("norm_epsilon", 1e-6),
    "initializer_range": ("init_scale", 0.02),
  },
  must={"attention_bias": (False,), "mlp_bias": (False,), "pretraining_tp": (1, None)},
  fields={
    "architecture": "decoder_only",
    "positions": "rotary",
    "scale_attention": True,
    "norm": "rms",
    "broadcast_dropout": False,
  },
  names=LLAMA_NAMES,
  reads=(
    *("num_key_value_heads", "head_dim", "hidden_act", "tie_word_embeddings", "attention_dropout"),
    *ROPE_KEYS,
  ),
  prefix="model.",
  copies={"lm_head.weight": "model.embed_tokens.weight"},
  buffers=(".rotary_emb.inv_freq",),
  read=read_llama,
  write=_write_llama,
)


def _read_mistral(settings: hf_mappings.Settings) -> dict[str, Any]:
  window = settings.get("sliding_window", 4096)
  if window == 1:
    raise hf_mappings.Unknown("sliding_window=1: t2t supports only windows of at least 2 positions")
  # Hugging Face's window includes the position itself.
  return read_llama({"num_key_value_heads": 8} | dict(settings)) | {"attention_window": window - 1 if window else 0}


def _write_mistral(fields: hf_mappings.Settings) -> dict[str, Any]:
  window = fields["attention_window"]
  return _write_llama(fields) | {"sliding_window": window + 1 if window else None}


MISTRAL = dataclasses.replace(
  LLAMA,
  model_type="mistral",
  model_class="MistralForCausalLM",
  tasks={
    "MistralForSequenceClassification": SCORE,
    "MistralForTokenClassification": TAG,
    "MistralForQuestionAnswering": encoders.SPAN,
  },
  keys=LLAMA.keys | {"intermediate_size": ("mlp_dim", 14_336), "max_position_embeddings": ("max_length", 4096 * 32)},
  must={},
  reads=(*LLAMA.reads, "sliding_window"),
  read=_read_mistral,
  write=_write_mistral,
)

QWEN2 = dataclasses.replace(
  LLAMA,
  model_type="qwen2",
  model_class="Qwen2ForCausalLM",
  tasks={
    "Qwen2ForSequenceClassification": SCORE,
    "Qwen2ForTokenClassification": TAG,
    "Qwen2ForQuestionAnswering": _NAMED_SPAN,
  },
  keys={
    **LLAMA.keys,
    "vocab_size": ("vocab_size", 151_936),
    "intermediate_size": ("mlp_dim", 22_016),
    "max_position_embeddings": ("max_length", 32_768),
  },
  must={"use_sliding_window": (False,)},
  fields=LLAMA.fields | {"qkv_biases": True},
  names=QWEN2_NAMES,
  read=lambda settings: read_llama({"num_key_value_heads": 32} | dict(settings)),
)

QWEN3 = dataclasses.replace(
  LLAMA,
  model_type="qwen3",
  model_class="Qwen3ForCausalLM",
  tasks={
    "Qwen3ForSequenceClassification": SCORE,
    "Qwen3ForTokenClassification": TAG,
    "Qwen3ForQuestionAnswering": _NAMED_SPAN,
  },
  keys={
    **LLAMA.keys,
    "vocab_size": ("vocab_size", 151_936),
    "intermediate_size": ("mlp_dim", 22_016),
    "max_position_embeddings": ("max_length", 32_768),
  },
  must={"attention_bias": (False,), "use_sliding_window": (False,)},
  fields=LLAMA.fields | {"qk_norm": True},
  names=QWEN3_NAMES,
  read=lambda settings: read_llama({"head_dim": 128} | dict(settings)),
)
