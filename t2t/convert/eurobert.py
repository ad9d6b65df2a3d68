"""EuroBERT of Hugging Face: Llama's names in an encoder; hf_mappings.py explains the tables."""

import dataclasses

from t2t.convert import decoders, encoders, hf_mappings

_NAMES = {theirs: ours.replace("decoder/", "encoder/") for theirs, ours in decoders.LLAMA_NAMES.items()}

EUROBERT = dataclasses.replace(
  decoders.LLAMA,
  model_type="eurobert",
  model_class="EuroBertForMaskedLM",
  bare_class="EuroBertModel",
  # Its classifier of texts has a bias in the pooler, which t2t's body without biases lacks.
  tasks={"EuroBertForTokenClassification": hf_mappings.HeadTask(("tag",), encoders.CLASSIFIER, dropout_rate=0.0)},
  keys={
    "vocab_size": ("vocab_size", 128_256),
    "hidden_size": ("embed_dim", 768),
    "intermediate_size": ("mlp_dim", 3072),
    "num_hidden_layers": ("num_encoder_layers", 12),
    "num_attention_heads": ("num_heads", 12),
    "max_position_embeddings": ("max_length", 8192),
    "rms_norm_eps": ("norm_epsilon", 1e-5),
    "initializer_range": ("init_scale", 0.02),
  },
  fields=decoders.LLAMA.fields | {"architecture": "encoder_only"},
  names=_NAMES,
  ids={"mask_token_id": 0},
  read=lambda settings: decoders.read_llama({"hidden_size": 768, "num_attention_heads": 12} | dict(settings)),
)
