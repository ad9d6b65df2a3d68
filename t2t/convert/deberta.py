"""DeBERTa, versions 1 to 3 (3 is a deberta-v2), of Hugging Face; hf_mappings.py explains the tables."""

import dataclasses
from typing import Any

from t2t.convert import encoders, hf_mappings
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig

_LAYER, _OURS = "deberta.encoder.layer.{}", "encoder/layers"
_QKV = tuple(f"{_OURS}/self_attention/{name}" for name in ("query", "key", "value"))

# Both versions have the names of BERT, except inside the self-attention.
_SHARED_NAMES = {
  name.replace("bert.", "deberta.", 1): ours
  for name, ours in encoders.BERT_NAMES.items()
  if ".attention.self." not in name and ours != "head/projection"
} | {
  "deberta.encoder.rel_embeddings.weight": "encoder/position_bias/table",
}
DEBERTA_NAMES = _SHARED_NAMES | {
  f"{_LAYER}.attention.self.in_proj.weight": _QKV,
  f"{_LAYER}.attention.self.q_bias": f"{_OURS}/self_attention/query_bias",
  f"{_LAYER}.attention.self.v_bias": f"{_OURS}/self_attention/value_bias",
  f"{_LAYER}.attention.self.pos_proj.weight": f"{_OURS}/self_attention/position/key",
  f"{_LAYER}.attention.self.pos_q_proj.weight": f"{_OURS}/self_attention/position/query",
  f"{_LAYER}.attention.self.pos_q_proj.bias": f"{_OURS}/self_attention/position/query_bias",
}
DEBERTA_V2_NAMES = _SHARED_NAMES | {
  **{
    f"{_LAYER}.attention.self.{theirs}_proj.{kind}": f"{_OURS}/self_attention/{ours}{ending}"
    for theirs, ours in (
      *((name, name) for name in ("query", "key", "value")),
      *(("pos_key", "position/key"), ("pos_query", "position/query")),
    )
    for kind, ending in (("weight", ""), ("bias", "_bias"))
  },
  "deberta.encoder.LayerNorm.weight": "encoder/position_bias/norm/scale",
  "deberta.encoder.LayerNorm.bias": "encoder/position_bias/norm/bias",
  "deberta.encoder.conv.conv.weight": "encoder/beside_first/kernel",
  "deberta.encoder.conv.conv.bias": "encoder/beside_first/bias",
  "deberta.encoder.conv.LayerNorm.weight": "encoder/beside_first/norm/scale",
  "deberta.encoder.conv.LayerNorm.bias": "encoder/beside_first/norm/bias",
}


def _of_heads(model: TransformerConfig) -> tuple[int, ...]:
  return 3, model.num_heads, model.head_dim, model.embed_dim


# Query, key and value of a head follow each other.
_IN_PROJ = hf_mappings.Layout(_of_heads, (1, 0, 2, 3))
# torch's convolutions are [out, in, width].
_CONVOLUTION = hf_mappings.Layout(lambda model: (model.embed_dim, 3, model.embed_dim), (0, 2, 1), keeps_axes=True)

_TERMS = {("c2p",): "content_to_position", ("p2c",): "position_to_content", ("c2p", "p2c"): "both"}
_ACTIVATIONS = {"gelu": "gelu", "tanh": "tanh", "relu": "relu"}
_CONVOLUTION_ACTIVATIONS = {"tanh": "tanh", "gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh"}


def _read_both(settings: hf_mappings.Settings) -> dict[str, Any]:
  """Returns the fields of both versions."""
  if not settings.get("relative_attention", False):
    raise hf_mappings.Unknown("relative_attention=False: t2t supports only True")
  width, terms = settings.get("hidden_size", 768), settings.get("pos_att_type") or []
  if settings.get("embedding_size", width) != width:
    raise hf_mappings.Unknown(f"embedding_size={settings['embedding_size']}: t2t supports only hidden_size={width}")
  terms = tuple(sorted(term.strip() for term in (terms.lower().split("|") if isinstance(terms, str) else terms)))
  if terms not in _TERMS:
    raise hf_mappings.Unknown(f"pos_att_type={settings.get('pos_att_type')!r}: t2t supports only c2p, p2c or both")
  distance = settings.get("max_relative_positions", -1)
  distance = distance if distance > 0 else settings.get("max_position_embeddings", 512)
  if distance % 2 and settings.get("position_buckets", -1) < 1:
    raise hf_mappings.Unknown(f"max_relative_positions={distance}: t2t supports only even numbers without buckets")
  return {
    "mlp_activation": hf_mappings.look_up(hf_mappings.PLAIN, "hidden_act", settings.get("hidden_act", "gelu")),
    "disentangled_terms": _TERMS[terms],
    "absolute_positions": "input" if settings.get("position_biased_input", True) else "",
    "relative_position_max_distance": distance,
    "tied_logits": True,
  }


def _write_both(fields: hf_mappings.Settings) -> dict[str, Any]:
  terms = next(theirs for theirs, ours in _TERMS.items() if ours == fields["disentangled_terms"])
  return {
    "hidden_act": hf_mappings.name_of(hf_mappings.PLAIN, "mlp_activation", fields["mlp_activation"]),
    "relative_attention": True,
    "pos_att_type": list(terms),
    "position_biased_input": fields["absolute_positions"] == "input",
    "max_relative_positions": fields["relative_position_max_distance"],
    "attention_probs_dropout_prob": fields["dropout_rate"],
    "pooler_hidden_size": fields["embed_dim"],
  }


def _read_deberta(settings: hf_mappings.Settings) -> dict[str, Any]:
  fields = _read_both(settings)
  return fields | {"relative_position_buckets": 2 * fields["relative_position_max_distance"]}


def _read_pooler(settings: hf_mappings.Settings) -> dict[str, Any]:
  if settings.get("pooler_dropout", 0.0):
    raise hf_mappings.Unknown(f"pooler_dropout={settings['pooler_dropout']}: t2t supports only 0")
  activation = settings.get("pooler_hidden_act", "gelu")
  return {"pooler": hf_mappings.look_up(_ACTIVATIONS, "pooler_hidden_act", activation)}


def _write_pooler(head: HeadConfig) -> dict[str, Any]:
  return {"pooler_hidden_act": hf_mappings.name_of(_ACTIVATIONS, "heads.pooler", head.pooler), "pooler_dropout": 0.0}


_POOLER = {"pooler.dense.weight": "pooler", "pooler.dense.bias": "pooler_bias"}
_POOLED: dict[str, Any] = dict(dropout_key="cls_dropout", dropout_rate=None, read=_read_pooler, write=_write_pooler)
# The unused head of version 3's discriminator, and the unused positions of models without absolute ones.
_UNREAD = tuple(
  f"mask_predictions.{module}.{kind}" for module in ("dense", "LayerNorm", "classifier") for kind in ("weight", "bias")
)
_HEAD = {"dense": "transform.dense", "LayerNorm": "transform.LayerNorm"}

DEBERTA = hf_mappings.Family(
  model_type="deberta",
  model_class="DebertaForMaskedLM",
  bare_class="DebertaModel",
  tasks={
    "DebertaForSequenceClassification": hf_mappings.HeadTask(
      ("class", "score"), _POOLER | encoders.CLASSIFIER, **_POOLED
    ),
    "DebertaForTokenClassification": hf_mappings.HeadTask(("tag",), encoders.CLASSIFIER),
    "DebertaForQuestionAnswering": encoders.SPAN,
  },
  keys=encoders.BERT.keys
  | {
    "vocab_size": ("vocab_size", 50_265),
    "type_vocab_size": ("segment_types", 0),
    "layer_norm_eps": ("norm_epsilon", 1e-7),
    "max_position_embeddings": ("max_length", 512),
  },
  must={"tie_word_embeddings": (True,), "talking_head": (False,)},
  fields=encoders.BERT_FIELDS | {"positions": "disentangled", "key_bias": False},
  names=DEBERTA_NAMES,
  reads=(
    *("hidden_act", "relative_attention", "pos_att_type", "position_biased_input", "max_relative_positions"),
    *("attention_probs_dropout_prob", "embedding_size", "pooler_dropout", "pooler_hidden_act", "pooler_hidden_size"),
    *("cls_dropout", "legacy", "padding_idx"),
  ),
  prefix="deberta.",
  layouts={f"{_LAYER}.attention.self.in_proj.weight": _IN_PROJ},
  # The released models have the head of legacy=False, with the same function.
  copies={
    "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
    **{
      f"lm_predictions.lm_head.{theirs}.{kind}": f"cls.predictions.{ours}.{kind}"
      for theirs, ours in _HEAD.items()
      for kind in ("weight", "bias")
    },
  },
  buffers=("embeddings.position_ids",),
  unread=_UNREAD,
  square=True,
  read=_read_deberta,
  write=_write_both,
)


def _read_deberta_v2(settings: hf_mappings.Settings) -> dict[str, Any]:
  fields = _read_both({"hidden_size": 1536} | dict(settings))
  heads, width = settings.get("num_attention_heads", 24), settings.get("hidden_size", 1536)
  if settings.get("attention_head_size", width // heads) != width // heads:
    raise hf_mappings.Unknown(
      f"attention_head_size={settings['attention_head_size']}: t2t supports only hidden_size / num_attention_heads"
    )
  distance, buckets = fields["relative_position_max_distance"], settings.get("position_buckets", -1)
  if buckets >= distance:
    raise hf_mappings.Unknown(f"position_buckets={buckets}: t2t supports only less than {distance} distances, or -1")
  norms = {part.strip() for part in str(settings.get("norm_rel_ebd", "none")).lower().split("|")}
  width = settings.get("conv_kernel_size", 0)
  if width not in (0, 3) or settings.get("conv_groups", 1) != 1:
    raise hf_mappings.Unknown(
      f"conv_kernel_size={width} and conv_groups={settings.get('conv_groups', 1)}: t2t supports only 3 and 1, or 0"
    )
  activation = settings.get("conv_act", "tanh")
  convolution = {
    "beside_first": "convolution",
    "beside_first_activation": hf_mappings.look_up(_CONVOLUTION_ACTIVATIONS, "conv_act", activation),
  }
  return fields | {
    "relative_position_buckets": 2 * (buckets if buckets > 0 else distance),
    "share_position_projections": settings.get("share_att_key", False),
    "relative_position_norm": "layer_norm" in norms,
    **(convolution if width else {}),
  }


def _write_deberta_v2(fields: hf_mappings.Settings) -> dict[str, Any]:
  buckets = fields["relative_position_buckets"] // 2
  settings = {
    "position_buckets": buckets if buckets < fields["relative_position_max_distance"] else -1,
    "share_att_key": fields["share_position_projections"],
    "norm_rel_ebd": "layer_norm" if fields["relative_position_norm"] else "none",
  }
  if fields["beside_first"]:
    name = hf_mappings.name_of(_CONVOLUTION_ACTIVATIONS, "beside_first_activation", fields["beside_first_activation"])
    settings |= {"conv_kernel_size": 3, "conv_act": name}
  return _write_both(fields) | settings


DEBERTA_V2 = dataclasses.replace(
  DEBERTA,
  model_type="deberta-v2",
  model_class="DebertaV2ForMaskedLM",
  bare_class="DebertaV2Model",
  tasks={name.replace("Deberta", "DebertaV2"): task for name, task in DEBERTA.tasks.items()}
  | {
    "DebertaV2ForMultipleChoice": hf_mappings.HeadTask(
      ("choice",), _POOLER | encoders.CLASSIFIER, num_classes=1, **_POOLED
    )
  },
  keys=DEBERTA.keys
  | {
    "vocab_size": ("vocab_size", 128_100),
    "hidden_size": ("embed_dim", 1536),
    "num_hidden_layers": ("num_encoder_layers", 24),
    "num_attention_heads": ("num_heads", 24),
    "intermediate_size": ("mlp_dim", 6144),
  },
  must={"tie_word_embeddings": (True,)},
  fields=DEBERTA.fields | {"key_bias": True},
  names=DEBERTA_V2_NAMES,
  reads=(
    *DEBERTA.reads,
    *("position_buckets", "share_att_key", "norm_rel_ebd", "conv_kernel_size", "conv_act", "conv_groups"),
    "attention_head_size",
  ),
  layouts={"deberta.encoder.conv.conv.weight": _CONVOLUTION},
  read=_read_deberta_v2,
  write=_write_deberta_v2,
)
