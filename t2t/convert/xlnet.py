"""XLNet of Hugging Face; hf_mappings.py explains the tables."""

from typing import Any

from t2t.convert import encoders, hf_mappings
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig

_ATTENTION = "encoder/layers/self_attention"
XLNET_NAMES = {
  "transformer.word_embedding.weight": "embed/table",
  "transformer.mask_emb": "embed/query_stream",
  "transformer.layer.{}.rel_attn.q": f"{_ATTENTION}/query",
  "transformer.layer.{}.rel_attn.k": f"{_ATTENTION}/key",
  "transformer.layer.{}.rel_attn.v": f"{_ATTENTION}/value",
  "transformer.layer.{}.rel_attn.o": f"{_ATTENTION}/out",
  "transformer.layer.{}.rel_attn.r": f"{_ATTENTION}/position/projection",
  "transformer.layer.{}.rel_attn.r_w_bias": f"{_ATTENTION}/position/biases/content",
  "transformer.layer.{}.rel_attn.r_r_bias": f"{_ATTENTION}/position/biases/position",
  "transformer.layer.{}.rel_attn.r_s_bias": f"{_ATTENTION}/position/biases/segment",
  "transformer.layer.{}.rel_attn.seg_embed": f"{_ATTENTION}/position/segments",
  "transformer.layer.{}.rel_attn.layer_norm.weight": "encoder/layers/self_attention_norm/scale",
  "transformer.layer.{}.rel_attn.layer_norm.bias": "encoder/layers/self_attention_norm/bias",
  "transformer.layer.{}.ff.layer_1.weight": "encoder/layers/mlp/up",
  "transformer.layer.{}.ff.layer_1.bias": "encoder/layers/mlp/up_bias",
  "transformer.layer.{}.ff.layer_2.weight": "encoder/layers/mlp/down",
  "transformer.layer.{}.ff.layer_2.bias": "encoder/layers/mlp/down_bias",
  "transformer.layer.{}.ff.layer_norm.weight": "encoder/layers/mlp_norm/scale",
  "transformer.layer.{}.ff.layer_norm.bias": "encoder/layers/mlp_norm/bias",
  "lm_loss.weight": "head/projection",
  "lm_loss.bias": "head/bias",
}


def _by_head(model: TransformerConfig) -> tuple[int, ...]:
  return model.embed_dim, model.num_heads, model.head_dim


def _vectors(model: TransformerConfig) -> tuple[int, ...]:
  return model.num_heads, model.head_dim


_PROJECTIONS = {f"transformer.layer.{{}}.rel_attn.{name}": (_by_head, name == "o") for name in "qkvor"}
_BIASES = {f"transformer.layer.{{}}.rel_attn.r_{name}_bias": (_vectors, False) for name in "wrs"}


def _read_xlnet(settings: hf_mappings.Settings) -> dict[str, Any]:
  return {
    "mlp_activation": hf_mappings.look_up(hf_mappings.PLAIN, "ff_activation", settings.get("ff_activation", "gelu")),
    "tied_logits": settings.get("tie_word_embeddings", True),
    "relative_clamp": max(settings.get("clamp_len", -1), 0),
  }


def _write_xlnet(fields: hf_mappings.Settings) -> dict[str, Any]:
  return {
    "ff_activation": hf_mappings.name_of(hf_mappings.PLAIN, "mlp_activation", fields["mlp_activation"]),
    "tie_word_embeddings": fields["tied_logits"],
    "clamp_len": fields["relative_clamp"] or -1,
    "mem_len": fields["memory_length"] or None,
    "reuse_len": fields["memory_reuse"] or None,
    "d_head": fields["head_dim"],
  }


def _read_summary(settings: hf_mappings.Settings) -> dict[str, Any]:
  for key, value in (("summary_type", "last"), ("summary_use_proj", True), ("summary_activation", "tanh")):
    if settings.get(key, value) != value:
      raise hf_mappings.Unknown(f"{key}={settings[key]!r}: t2t supports only {value!r}")
  return {"reads": "last", "pooler": "tanh"}


def _write_summary(head: HeadConfig) -> dict[str, Any]:
  del head
  return {"summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh"}


# The summary is of the last token, because XLNet's [CLS] ends a text.
_SUMMARY: dict[str, Any] = dict(
  names={
    "sequence_summary.summary.weight": "pooler",
    "sequence_summary.summary.bias": "pooler_bias",
    "logits_proj.weight": "projection",
    "logits_proj.bias": "projection_bias",
  },
  dropout_key="summary_last_dropout",
  dropout_rate=0.1,
  read=_read_summary,
  write=_write_summary,
)

XLNET = hf_mappings.Family(
  model_type="xlnet",
  model_class="XLNetLMHeadModel",
  bare_class="XLNetModel",
  tasks={
    "XLNetForSequenceClassification": hf_mappings.HeadTask(("class", "score"), **_SUMMARY),
    "XLNetForMultipleChoice": hf_mappings.HeadTask(("choice",), num_classes=1, **_SUMMARY),
    "XLNetForTokenClassification": hf_mappings.HeadTask(("tag",), encoders.CLASSIFIER, dropout_rate=0.0),
    "XLNetForQuestionAnsweringSimple": encoders.SPAN,
  },
  keys={
    "vocab_size": ("vocab_size", 32_000),
    "d_model": ("embed_dim", 1024),
    "n_layer": ("num_encoder_layers", 24),
    "n_head": ("num_heads", 16),
    "d_inner": ("mlp_dim", 4096),
    "layer_norm_eps": ("norm_epsilon", 1e-12),
    "initializer_range": ("init_scale", 0.02),
    "dropout": ("dropout_rate", 0.1),
  },
  must={"attn_type": ("bi",), "bi_data": (False,), "same_length": (False,), "untie_r": (True,)},
  fields={
    "architecture": "encoder_only",
    "positions": "relative_xl",
    "relative_segments": True,
    "two_streams": True,
    "scale_attention": True,
    "norm": "layer",
    "post_norm": True,
    "biases": True,
    "attention_biases": False,
    "logits_bias": True,
    "broadcast_dropout": False,
  },
  names=XLNET_NAMES,
  reads=(
    *("ff_activation", "tie_word_embeddings", "clamp_len", "mem_len", "reuse_len", "d_head", "use_mems_eval"),
    *("use_mems_train", "start_n_top", "end_n_top"),
  ),
  prefix="transformer.",
  copies={"lm_loss.weight": "transformer.word_embedding.weight"},
  shapes={
    **_PROJECTIONS,
    **_BIASES,
    "transformer.mask_emb": (lambda model: (1, 1, model.embed_dim), False),
  },
  square=True,
  read=_read_xlnet,
  write=_write_xlnet,
)
