"""ModernBERT of Hugging Face, as an encoder and as a decoder (Ettin); hf_mappings.py explains the tables."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from t2t.convert import decoders, encoders, hf_mappings

_ATTENTION = tuple(f"encoder/layers/self_attention/{name}" for name in ("query", "key", "value"))
_NAMES = {
  "model.embeddings.tok_embeddings.weight": "embed/table",
  "model.embeddings.norm.weight": "embed/norm/scale",
  "model.layers.{}.attn_norm.weight": "encoder/layers/self_attention_norm/scale",
  "model.layers.{}.attn.Wqkv.weight": _ATTENTION,
  "model.layers.{}.attn.Wo.weight": "encoder/layers/self_attention/out",
  "model.layers.{}.mlp_norm.weight": "encoder/layers/mlp_norm/scale",
  "model.layers.{}.mlp.Wi.weight": ("encoder/layers/mlp/gate", "encoder/layers/mlp/up"),
  "model.layers.{}.mlp.Wo.weight": "encoder/layers/mlp/down",
  "model.final_norm.weight": "encoder/norm/scale",
  "head.dense.weight": "head/transform",
  "head.norm.weight": "head/norm/scale",
  "decoder.weight": "head/projection",
  "decoder.bias": "head/bias",
}


_PREDICTION = {"head.dense.weight": "pooler", "head.norm.weight": "norm/scale"} | encoders.CLASSIFIER
_HEAD: dict[str, Any] = dict(dropout_key="classifier_dropout", dropout_rate=0.0, fields={"pooler": "norm"})
_POOLING, _POOLINGS = "classifier_pooling", {"cls": "first", "mean": "mean"}
_WHOLE = _HEAD | dict(
  read=lambda settings: {"reads": hf_mappings.look_up(_POOLINGS, _POOLING, settings.get(_POOLING, "cls"))},
  write=lambda head: {_POOLING: hf_mappings.name_of(_POOLINGS, "heads.reads", head.reads)},
)

_TASKS = {
  "ModernBertForSequenceClassification": hf_mappings.HeadTask(("class", "score"), _PREDICTION, **_WHOLE),
  "ModernBertForMultipleChoice": hf_mappings.HeadTask(("choice",), _PREDICTION, num_classes=1, **_WHOLE),
  "ModernBertForTokenClassification": hf_mappings.HeadTask(("tag",), _PREDICTION, **_HEAD),
  "ModernBertForQuestionAnswering": hf_mappings.HeadTask(("span",), _PREDICTION, num_classes=2, **_HEAD),
}


def _global_every(settings: hf_mappings.Settings) -> int:
  """Returns the interval of layers with global attention, beginning with the first; 1: all layers."""
  types, interval = settings.get("layer_types"), settings.get("global_attn_every_n_layers")
  if types is None:
    return 3 if interval is None else interval
  sees_all = [kind == "full_attention" for kind in types]
  every = next((i for i, is_full in enumerate(sees_all) if is_full and i), len(types))
  if sees_all != [i % every == 0 for i in range(len(types))]:
    raise hf_mappings.Unknown(f"layer_types={types}: t2t supports full attention only in layers 0, n, 2n, ...")
  if interval is not None and sees_all != [i % interval == 0 for i in range(len(types))]:
    raise hf_mappings.Unknown(
      f"layer_types={types} and global_attn_every_n_layers={interval}: the values differ. transformers 5 reads"
      " layer_types, and transformers 4 reads global_attn_every_n_layers. Remove the wrong key."
    )
  return every


def rotary_base(settings: hf_mappings.Settings, kind: str, key: str, default: float) -> float:
  """Returns the rotary base of layers of one kind; before transformers 5 its key was `key`.

  Raises:
    hf_mappings.Unknown: positions are rescaled or partial, all kinds of layers have one entry, or two bases differ.
  """
  rope_parameters = settings.get("rope_parameters") or {}
  if any(not isinstance(value, Mapping) for value in rope_parameters.values()):
    raise hf_mappings.Unknown(
      f"rope_parameters={rope_parameters} must have an entry for each kind of layer. Add these entries, as "
      f"transformers 5 writes them, or replace rope_parameters by {key}."
    )
  parameters = rope_parameters.get(kind) or {}
  if settings.get("rope_scaling") or parameters.get("rope_type", "default") != "default":
    raise hf_mappings.Unknown(f"rope_parameters={parameters}: t2t does not support rescaled rotary positions")
  if {settings.get("partial_rotary_factor"), parameters.get("partial_rotary_factor")} - {None, 1.0}:
    raise hf_mappings.Unknown("partial_rotary_factor: t2t does not support partial rotary positions")
  bases = {f"rope_parameters.{kind}.rope_theta": parameters.get("rope_theta"), key: settings.get(key)}
  return decoders.one_base(bases, default)


def _read_modern_bert(settings: hf_mappings.Settings) -> dict[str, Any]:
  activation, every = settings.get("hidden_activation", "gelu"), _global_every(settings)
  if settings.get("classifier_activation", "gelu") != activation:
    raise hf_mappings.Unknown(
      f"classifier_activation={settings['classifier_activation']!r}: t2t supports only the value of "
      f"hidden_activation, {activation!r}"
    )
  global_base = rotary_base(settings, "full_attention", "global_rope_theta", 160_000.0)
  local = rotary_base(settings, "sliding_attention", "local_rope_theta", 10_000.0)
  return {
    "mlp_activation": hf_mappings.look_up(hf_mappings.GATED, "hidden_activation", activation),
    "tied_logits": settings.get("tie_word_embeddings", True),
    "rotary_base": global_base,
    "local_rotary_base": local if every > 1 else 0.0,
    "attention_window": settings.get("local_attention", 128) // 2 if every > 1 else 0,
    "global_attention_every": every if every > 1 else 0,
  }


def _write_modern_bert(fields: hf_mappings.Settings) -> dict[str, Any]:
  if fields["attention_window"] and not fields["global_attention_every"]:
    raise hf_mappings.Unknown(
      "config.model.global_attention_every=0: ModernBERT needs at least 1, because the first layer has global attention"
    )
  activation = hf_mappings.name_of(hf_mappings.GATED, "mlp_activation", fields["mlp_activation"])
  return {
    "hidden_activation": activation,
    "classifier_activation": activation,
    "tie_word_embeddings": fields["tied_logits"],
    "global_rope_theta": fields["rotary_base"],
    "local_rope_theta": fields["local_rotary_base"] or fields["rotary_base"],
    "local_attention": 2 * fields["attention_window"] or 128,
    "global_attn_every_n_layers": fields["global_attention_every"] or 1,
  }


MODERN_BERT = hf_mappings.Family(
  model_type="modernbert",
  model_class="ModernBertForMaskedLM",
  bare_class="ModernBertModel",
  tasks=_TASKS,
  keys={
    "vocab_size": ("vocab_size", 50_368),
    "hidden_size": ("embed_dim", 768),
    "num_hidden_layers": ("num_encoder_layers", 22),
    "num_attention_heads": ("num_heads", 12),
    "intermediate_size": ("mlp_dim", 1152),
    "max_position_embeddings": ("max_length", 8192),
    "norm_eps": ("norm_epsilon", 1e-5),
    "initializer_range": ("init_scale", 0.02),
    "mlp_dropout": ("dropout_rate", 0.0),
  },
  must={
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "norm_bias": (False,),
    "classifier_bias": (False,),
    "decoder_bias": (True,),
  },
  fields={
    "architecture": "encoder_only",
    "positions": "rotary",
    "scale_attention": True,
    "norm": "layer",
    "embedding_norm": True,
    "logits_transform": True,
    "broadcast_dropout": False,
  },
  names=_NAMES,
  reads=(
    *("hidden_activation", "classifier_activation", "tie_word_embeddings", "layer_types", "local_attention"),
    *("global_attn_every_n_layers", "rope_parameters", "rope_scaling", "global_rope_theta", "local_rope_theta"),
    "partial_rotary_factor",
  ),
  prefix="model.",
  copies={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
  # The input of the first layer is normalized already: ModernBERT has no second norm there, and t2t's is an identity.
  constants={"model.layers.0.attn_norm.weight": 1.0},
  square=True,
  read=_read_modern_bert,
  write=_write_modern_bert,
)


# ---- The decoder -----------------------------------------------------------------------------------------------------

_DECODER_ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
_DECODER_NAMES = {
  theirs.replace("head.", "lm_head.", 1): (
    tuple(path.replace("encoder/", "decoder/") for path in ours)
    if isinstance(ours, tuple)
    else ours.replace("encoder/", "decoder/")
  )
  for theirs, ours in _NAMES.items()
  if "Wqkv" not in theirs
} | {
  f"model.layers.{{}}.attn.{theirs}.weight": f"decoder/layers/self_attention/{ours}"
  for theirs, ours in _DECODER_ATTENTION.items()
}


def _read_decoder(settings: hf_mappings.Settings) -> dict[str, Any]:
  fields = _read_modern_bert(settings)
  # transformers counts the position itself in the half window.
  window = fields["attention_window"]
  if window == 1:
    raise hf_mappings.Unknown(
      f"local_attention={settings['local_attention']}: t2t supports only windows of at least 2 positions"
    )
  return fields | {"attention_window": window - 1 if window else 0}


def _write_decoder(fields: hf_mappings.Settings) -> dict[str, Any]:
  window = fields["attention_window"]
  return _write_modern_bert({**fields, "attention_window": window + 1 if window else 0})


DECODER = dataclasses.replace(
  MODERN_BERT,
  model_type="modernbert-decoder",
  model_class="ModernBertDecoderForCausalLM",
  bare_class="",
  tasks={
    # Applied to the last token.
    "ModernBertDecoderForSequenceClassification": hf_mappings.HeadTask(
      ("class", "score"),
      {"head.dense.weight": "pooler", "head.norm.weight": "norm/scale", "classifier.weight": "projection"},
      dropout_key="classifier_dropout",
      dropout_rate=0.0,
      fields={"pooler": "norm", "bias": False},
    )
  },
  keys={key: row for key, row in MODERN_BERT.keys.items() if key != "num_hidden_layers"}
  | {"num_hidden_layers": ("num_decoder_layers", 22)},
  fields=MODERN_BERT.fields | {"architecture": "decoder_only"},
  names=_DECODER_NAMES,
  ids={"pad_token_id": 0, "bos_token_id": 0},
  read=_read_decoder,
  write=_write_decoder,
)
