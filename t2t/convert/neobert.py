"""NeoBERT as its authors released it, with code of its own for transformers; hf_mappings.py explains the tables."""

from typing import Any

from t2t.convert import hf_mappings
from t2t.models.config import TransformerConfig

_LAYER, _OURS = "model.transformer_encoder.{}", "encoder/layers"
_NAMES = {
  "model.encoder.weight": "embed/table",
  f"{_LAYER}.attention_norm.weight": f"{_OURS}/self_attention_norm/scale",
  f"{_LAYER}.qkv.weight": tuple(f"{_OURS}/self_attention/{name}" for name in ("query", "key", "value")),
  f"{_LAYER}.wo.weight": f"{_OURS}/self_attention/out",
  f"{_LAYER}.ffn_norm.weight": f"{_OURS}/mlp_norm/scale",
  f"{_LAYER}.ffn.w12.weight": (f"{_OURS}/mlp/gate", f"{_OURS}/mlp/up"),
  f"{_LAYER}.ffn.w3.weight": f"{_OURS}/mlp/down",
  "model.layer_norm.weight": "encoder/norm/scale",
  "decoder.weight": "head/projection",
  "decoder.bias": "head/bias",
}


# Rotations pair neighbouring dimensions of a head, as Llama's own code does; t2t pairs its halves. Values need not
# move, but the layout of query, key and value is one, so that the output matrix moves with them.
def _qkv(model: TransformerConfig) -> tuple[int, ...]:
  return 3, model.num_heads, 2, model.head_dim // 2, model.embed_dim


def _out(model: TransformerConfig) -> tuple[int, ...]:
  return model.embed_dim, model.num_heads, 2, model.head_dim // 2


_SWIGLU_MULTIPLE = 8  # of the features of a feed-forward layer


def _mlp_dim(intermediate_size: int) -> int:
  """Returns two thirds, rounded up to a multiple of 8. In: 3072. Out: 2048."""
  return -(-int(2 * intermediate_size / 3) // _SWIGLU_MULTIPLE) * _SWIGLU_MULTIPLE


def _read(settings: hf_mappings.Settings) -> dict[str, Any]:
  width, num_heads = settings.get("hidden_size", 768), settings.get("num_attention_heads", 12)
  if width % num_heads or width // num_heads % 2:
    raise hf_mappings.Unknown(
      f"hidden_size={width}, num_attention_heads={num_heads}: the width of a head must be an even number"
    )
  return {"head_dim": width // num_heads, "mlp_dim": _mlp_dim(settings.get("intermediate_size", 3072))}


def _write(fields: hf_mappings.Settings) -> dict[str, Any]:
  width, num_heads, mlp_dim = fields["embed_dim"], fields["num_heads"], fields["mlp_dim"]
  if fields["head_dim"] * num_heads != width:
    raise hf_mappings.Unknown(
      f"config.model.head_dim={fields['head_dim']}: NeoBERT requires config.model.embed_dim / num_heads, "
      f"{width / num_heads:g}"
    )
  if mlp_dim % _SWIGLU_MULTIPLE:
    raise hf_mappings.Unknown(f"config.model.mlp_dim={mlp_dim}: NeoBERT requires a multiple of {_SWIGLU_MULTIPLE}")
  code = {"AutoConfig": "NeoBERTConfig", "AutoModel": "NeoBERT", "AutoModelForMaskedLM": "NeoBERTLMHead"}
  return {
    "intermediate_size": 3 * mlp_dim // 2,
    "embedding_init_range": fields["init_scale"],
    "dim_head": fields["head_dim"],
    "auto_map": {name: f"chandar-lab/NeoBERT--model.{theirs}" for name, theirs in code.items()},
  }


NEOBERT = hf_mappings.Family(
  model_type="neobert",
  model_class="NeoBERTLMHead",
  bare_class="NeoBERT",
  keys={
    "vocab_size": ("vocab_size", 30_522),
    "hidden_size": ("embed_dim", 768),
    "num_hidden_layers": ("num_encoder_layers", 28),
    "num_attention_heads": ("num_heads", 12),
    "max_length": ("max_length", 1024),
    "norm_eps": ("norm_epsilon", 1e-6),
    "decoder_init_range": ("init_scale", 0.02),
  },
  must={"rms_norm": (True,), "rope": (True,), "hidden_act": ("swiglu", "SwiGLU"), "tie_word_embeddings": (False,)},
  fields={
    "architecture": "encoder_only",
    "positions": "rotary",
    "rotary_base": 10_000.0,
    "scale_attention": True,
    "norm": "rms",
    "num_kv_heads": 0,
    "mlp_activation": "gated_silu",
    "tied_logits": False,
    "logits_bias": True,
    "dropout_rate": 0.0,
    "broadcast_dropout": False,
  },
  names=_NAMES,
  layouts={
    f"{_LAYER}.qkv.weight": hf_mappings.Layout(_qkv, (1, 0, 3, 2, 4)),
    f"{_LAYER}.wo.weight": hf_mappings.Layout(_out, (0, 1, 3, 2)),
  },
  reads=("intermediate_size", "embedding_init_range", "dim_head", "classifier_init_range", "auto_map", "kwargs"),
  prefix="model.",
  buffers=("freqs_cis",),
  ids={"pad_token_id": 0},
  read=_read,
  write=_write,
)
