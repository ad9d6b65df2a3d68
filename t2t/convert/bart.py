"""BART and Marian of Hugging Face; hf_mappings.py explains the tables."""

import dataclasses
from typing import Any

from t2t.convert import hf_mappings

_ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}


LOGITS_BIAS = "final_logits_bias"


def layer_names(stack: str) -> dict[str, str]:
  """Returns names of the layers of the encoder or the decoder."""
  dense, norms = {"fc1": "mlp/up", "fc2": "mlp/down"}, {"final_layer_norm": "mlp_norm"}
  for theirs, ours in (("self_attn", "self_attention"), ("encoder_attn", "cross_attention")):
    dense |= {f"{theirs}.{name}": f"{ours}/{our_name}" for name, our_name in _ATTENTION.items()}
    norms[f"{theirs}_layer_norm"] = f"{ours}_norm"
  table = {}
  for name, path in dense.items():
    table[f"layers.{{}}.{name}.weight"] = f"{stack}/layers/{path}"
    table[f"layers.{{}}.{name}.bias"] = f"{stack}/layers/{path}_bias"
  for name, path in norms.items():
    table[f"layers.{{}}.{name}.weight"] = f"{stack}/layers/{path}/scale"
    table[f"layers.{{}}.{name}.bias"] = f"{stack}/layers/{path}/bias"
  return {f"model.{stack}.{name}": path for name, path in table.items()}


def _embedding_names(stack: str, embed: str) -> dict[str, str]:
  """Returns names of the positions and the norm before the layers; `embed` is t2t's path of them."""
  names = {"embed_positions.weight": "positions", "layernorm_embedding.weight": "norm/scale"}
  names |= {"layernorm_embedding.bias": "norm/bias"}
  return {f"model.{stack}.{name}": f"{embed}/{path}" for name, path in names.items()}


NAMES = {
  "model.shared.weight": "embed/table",
  **_embedding_names("encoder", "embed"),
  **_embedding_names("decoder", "decoder/embed"),
  **layer_names("encoder"),
  **layer_names("decoder"),
  "lm_head.weight": "head/projection",
}


def read_bart(settings: hf_mappings.Settings) -> dict[str, Any]:
  """Returns the fields that both stacks must share, and the activation."""
  for key, default in (("attention_heads", 16), ("ffn_dim", 4096)):
    encoder, decoder = (settings.get(f"{stack}_{key}", default) for stack in ("encoder", "decoder"))
    if encoder != decoder:
      raise hf_mappings.Unknown(
        f"encoder_{key}={encoder} and decoder_{key}={decoder}: t2t supports only equal values of these keys"
      )
  activation = settings.get("activation_function", "gelu")
  return {
    "mlp_activation": hf_mappings.look_up(hf_mappings.PLAIN, "activation_function", activation),
  }


def write_bart(fields: hf_mappings.Settings) -> dict[str, Any]:
  """Returns the decoder's keys and the activation."""
  return {
    "decoder_attention_heads": fields["num_heads"],
    "decoder_ffn_dim": fields["mlp_dim"],
    "activation_function": hf_mappings.name_of(hf_mappings.PLAIN, "mlp_activation", fields["mlp_activation"]),
    "attention_dropout": fields["dropout_rate"],
    # The defaults would force the first and last token of BART's own vocabulary.
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
  }


BART = hf_mappings.Family(
  model_type="bart",
  model_class="BartForConditionalGeneration",
  keys={
    "vocab_size": ("vocab_size", 50_265),
    "d_model": ("embed_dim", 1024),
    "encoder_layers": ("num_encoder_layers", 12),
    "decoder_layers": ("num_decoder_layers", 12),
    "encoder_attention_heads": ("num_heads", 16),
    "encoder_ffn_dim": ("mlp_dim", 4096),
    "max_position_embeddings": ("max_length", 1024),
    "scale_embedding": ("scale_embedding", False),
    "init_std": ("init_scale", 0.02),
    "dropout": ("dropout_rate", 0.1),
  },
  must={
    "is_encoder_decoder": (True,),
    "tie_encoder_decoder": (False, None),
    # Untied, encoder and decoder would have separate tables.
    "tie_word_embeddings": (True,),
    "normalize_before": (False,),
    "normalize_embedding": (True,),
    "add_final_layer_norm": (False,),
    "static_position_embeddings": (False,),
  },
  fields={
    "architecture": "encoder_decoder",
    "positions": "learned",
    # The first two rows are never used.
    "position_offset": 2,
    "own_decoder_positions": True,
    "scale_attention": True,
    "norm": "layer",
    "norm_epsilon": 1e-5,
    "post_norm": True,
    "biases": True,
    "embedding_norm": True,
    "tied_logits": True,
    "broadcast_dropout": False,
  },
  names=NAMES,
  reads=("decoder_attention_heads", "decoder_ffn_dim", "activation_function"),
  prefix="model.",
  copies={
    "model.encoder.embed_tokens.weight": "model.shared.weight",
    "model.decoder.embed_tokens.weight": "model.shared.weight",
    "lm_head.weight": "model.shared.weight",
  },
  buffers=("encoder.version", "decoder.version"),
  logits_bias=LOGITS_BIAS,
  square=True,
  read=read_bart,
  write=write_bart,
)

# ---- Marian: the original Transformer --------------------------------------------------------------------------------


def _read_marian(settings: hf_mappings.Settings) -> dict[str, Any]:
  rows = settings.get("vocab_size", 58_101)
  if settings.get("decoder_vocab_size") not in (None, rows):
    raise hf_mappings.Unknown(
      f"decoder_vocab_size={settings['decoder_vocab_size']} and vocab_size={rows}: t2t's model has only one embedding"
    )
  return read_bart(settings)


def _write_marian(fields: hf_mappings.Settings) -> dict[str, Any]:
  # The default of the start token is an id of OPUS-MT's vocabulary.
  return write_bart(fields) | {"decoder_vocab_size": fields["vocab_size"], "decoder_start_token_id": 0}


MARIAN = dataclasses.replace(
  BART,
  model_type="marian",
  model_class="MarianMTModel",
  keys={**BART.keys, "vocab_size": ("vocab_size", 58_101)},
  must={
    "is_encoder_decoder": (True,),
    "share_encoder_decoder_embeddings": (True,),
    "tie_word_embeddings": (True,),
    "normalize_before": (False,),
    "normalize_embedding": (False,),
    "add_final_layer_norm": (False,),
    "static_position_embeddings": (True,),
  },
  fields={
    "architecture": "encoder_decoder",
    "positions": "sinusoidal",
    "scale_attention": True,
    "norm": "layer",
    "norm_epsilon": 1e-5,
    "post_norm": True,
    "biases": True,
    "tied_logits": True,
    "broadcast_dropout": False,
  },
  names={
    "model.shared.weight": "embed/table",
    **layer_names("encoder"),
    **layer_names("decoder"),
    "lm_head.weight": "head/projection",
  },
  reads=(*BART.reads, "decoder_vocab_size"),
  # The table of the sines and cosines.
  buffers=(*BART.buffers, "embed_positions.weight"),
  read=_read_marian,
  write=_write_marian,
)
