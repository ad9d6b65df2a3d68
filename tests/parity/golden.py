"""Writes the small models in tests/golden: folders in transformers' format, and transformers' outputs for them.

  PYTHONPATH=tests python tests/parity/golden.py        rewrites them; needs torch and transformers

tests/test_convert_huggingface.py compares with these files, so it needs neither library.
"""

import pathlib
import shutil
import tempfile

import numpy as np
import parity
from parity import torch
import toy

from t2t.models import presets, transformer
from t2t.models.config import TransformerConfig

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "golden"

# Sizes differ from each other, and are minimal, because the files are in the repository.
_T5 = dict(vocab_size=41, embed_dim=6, num_heads=3, head_dim=4, mlp_dim=10, num_encoder_layers=2, num_decoder_layers=1)
_T5 |= dict(relative_position_buckets=8, relative_position_max_distance=7, norm_epsilon=1e-3)
_DECODER = dict(vocab_size=41, embed_dim=6, num_heads=3, head_dim=4, mlp_dim=10, num_decoder_layers=2)
_DECODER |= dict(max_length=30, norm_epsilon=1e-3, dropout_rate=0.0)
_ENCODER = dict(vocab_size=41, embed_dim=6, num_heads=3, head_dim=2, mlp_dim=10, num_encoder_layers=2)
_ENCODER |= dict(max_length=15, norm_epsilon=1e-3, dropout_rate=0.0)
_GEMMA = dict(norm_offset=True, branch_norm=True, scale_embedding=True, tied_logits=True, mlp_activation="gated_gelu")
_GEMMA |= dict(num_kv_heads=1, attention_scale_dim=7, attention_window=3, num_decoder_layers=4)
_GEMMA |= dict(global_attention_every=2, global_attention_first=1)
_T5GEMMA = _DECODER | dict(num_kv_heads=1, num_encoder_layers=2, max_length=30, attention_window=2)
_T5GEMMA |= dict(encoder_embed_dim=9, encoder_num_kv_heads=3, encoder_mlp_dim=7, encoder_attention_window=1)
_T5GEMMA |= dict(encoder_num_heads=0, attention_softcap=2.0, logits_softcap=3.0)
NSP = {"name": "nsp", "num_classes": 2, "labels": ("next", "random")}
SOP = {"name": "sop", "num_classes": 2, "labels": ("in order", "swapped")}
CONFIGS = {
  "t5": presets.t5_1_0("small") | _T5,
  "t5_1_1": presets.t5_1_1("small") | _T5,
  "mt5": presets.mt5("small") | _T5,
  "bart": presets.bart("base") | _ENCODER | dict(num_decoder_layers=1, norm_epsilon=1e-5),
  "gpt2": presets.gpt2("small") | _DECODER | dict(head_dim=2),
  "llama2": presets.llama2("7b") | _DECODER,
  "llama3": presets.llama3("8b") | _DECODER | dict(num_kv_heads=1, tied_logits=True),
  "mistral": presets.llama2("7b") | _DECODER | dict(num_kv_heads=1, attention_window=3),
  "gemma2": presets.llama2("7b") | _DECODER | _GEMMA | dict(attention_softcap=2.0, logits_softcap=3.0),
  "gemma3": presets.llama2("7b") | _DECODER | _GEMMA | dict(qk_norm=True, rotary_base=9_000.0, local_rotary_base=700.0),
  "t5gemma": presets.t5gemma("2b_2b") | _T5GEMMA,
  "qwen3": presets.llama3("8b") | _DECODER | dict(num_kv_heads=1, qk_norm=True),
  "bert": presets.bert("base") | _ENCODER | dict(heads=(NSP,)),
  "distilbert": presets.bert("base") | _ENCODER | dict(segment_types=0, norm_epsilon=1e-12),
  "roberta": presets.roberta("base") | _ENCODER,
  "albert": presets.albert("base") | _ENCODER | dict(embedding_dim=5, heads=(SOP,)),
  "modern_bert": presets.modern_bert("base")
  | _ENCODER
  | dict(num_encoder_layers=4, attention_window=2, rotary_base=9_000.0, local_rotary_base=700.0),
}
CLASSES = {"mt5": "MT5ForConditionalGeneration"}
HALF = ("llama3",)  # stored as bfloat16, in several files


def batch(name: str) -> dict[str, np.ndarray]:
  """Returns rows of several lengths."""
  architecture = CONFIGS[name]["architecture"]
  inputs = (4, 9, 1) if architecture == "encoder_only" else (3, 5, 1)
  made = toy.batch(inputs, (3, 1, 4), padded_to=(max(inputs) + 1, 5), architecture=architecture)
  if name == "roberta":
    made = parity.with_roberta_ids(made, 1)
  if name in ("modern_bert", "distilbert"):
    del made["encoder_token_types"]
  return {key: np.asarray(x) for key, x in made.items()}


def inputs(features: transformer.Batch) -> dict[str, torch.Tensor]:
  """Returns the arguments of the transformers model."""
  if "decoder_input_tokens" not in features or "encoder_input_tokens" not in features:
    return parity.inputs(features)
  return dict(
    input_ids=parity.as_torch(features["encoder_input_tokens"]),
    attention_mask=parity.as_torch(features["encoder_input_tokens"] > 0),
    decoder_input_ids=parity.as_torch(features["decoder_input_tokens"]),
    # T5Gemma hides padding by default, also the first token.
    decoder_attention_mask=torch.ones_like(parity.as_torch(features["decoder_input_tokens"])),
  )


def expected(theirs: torch.nn.Module, features: dict[str, np.ndarray], eos_id: int) -> dict[str, np.ndarray]:
  """Computes the transformers model's logits and, for generative models, greedy and four-beam output."""
  with torch.no_grad():
    found = {"logits": theirs(**inputs(features))[0].numpy()}
  if "decoder_input_tokens" in features:
    found |= {f"written_{beams}": parity.writes(theirs, features, num_beams=beams, eos_id=eos_id) for beams in (1, 4)}
  return found


def write(name: str) -> None:
  """Writes one folder."""
  folder = FOLDER / name
  config = TransformerConfig(**(CONFIGS[name] | dict(dtype="float32")))
  features = batch(name)
  with tempfile.TemporaryDirectory() as temporary:
    pair = parity.pair(config, pathlib.Path(temporary), model_class=CLASSES.get(name, ""))
    eos_id = parity.ending(pair, features) if "decoder_input_tokens" in features else 0
    shutil.rmtree(folder, ignore_errors=True)
    half = dict(max_shard_size=1_500) if name in HALF else {}
    (pair.theirs.to(torch.bfloat16) if half else pair.theirs).save_pretrained(folder, **half)
  # Reload, because readers load the saved precision.
  numbers = expected(parity.load(folder, CLASSES.get(name, "")), features, eos_id)
  np.savez_compressed(folder / "expected.npz", eos_id=eos_id, **numbers, **features)


if __name__ == "__main__":
  for each in CONFIGS:
    write(each)
