"""t2t's GPT-2, MPT (for ALiBi), Llama, Mistral, Gemma, Qwen 3 (for QK-norm) and Ettin against Hugging Face's, with the
same random weights.

Needs torch and transformers (tests/parity-requirements.txt).
"""

import parity
import pytest
import toy

from t2t.models import presets
from t2t.models.config import TransformerConfig

# Sizes differ from each other, from powers of two, and from transformers' defaults.
SHAPE = dict(vocab_size=53, embed_dim=18, num_heads=6, head_dim=4, mlp_dim=28, num_decoder_layers=3, dtype="float32")
SHAPE |= dict(norm_epsilon=1e-3, max_length=60)
GEMMA = dict(norm_offset=True, scale_embedding=True, tied_logits=True, mlp_activation="gated_gelu")
GEMMA2 = GEMMA | dict(branch_norm=True, attention_window=4, global_attention_every=2, global_attention_first=1)
GEMMA2 |= dict(num_decoder_layers=4, attention_scale_dim=7)
YARN = dict(rotary_base=50.0, rotary_scaling="yarn", rotary_scaling_factor=4.0, rotary_scaling_original_length=16)
YARN |= dict(rotary_scaling_beta_fast=2.0, rotary_scaling_beta_slow=0.2)
FAMILIES = {
  # Its heads fill its width.
  "gpt2": presets.gpt2("small") | SHAPE | dict(head_dim=3),
  "gpt2-untied": presets.gpt2("small") | SHAPE | dict(head_dim=3, tied_logits=False),
  # Half of its heads' slopes are between the others'.
  "mpt": presets.mpt("7b") | SHAPE | dict(head_dim=3, mlp_dim=72),
  "llama": presets.llama2("7b") | SHAPE,
  "llama-grouped-tied": presets.llama2("7b") | SHAPE | dict(num_kv_heads=2, tied_logits=True),
  "llama-grouped-far": presets.llama3("8b") | SHAPE | dict(num_kv_heads=3),
  # Prompts and continuations are longer than the window.
  "mistral": presets.llama2("7b") | SHAPE | dict(num_kv_heads=2, attention_window=4),
  "gemma": presets.llama2("7b") | SHAPE | GEMMA | dict(num_kv_heads=1),
  # Local, global, local, global; soft-caps that change the values.
  "gemma2": presets.llama2("7b") | SHAPE | GEMMA2 | dict(attention_softcap=2.0, logits_softcap=3.0, num_kv_heads=3),
  # Local, local, global, twice; two bases.
  "gemma3": presets.llama2("7b")
  | SHAPE
  | GEMMA2
  | dict(qk_norm=True, num_decoder_layers=6, global_attention_every=3, global_attention_first=2)
  | dict(rotary_base=1e6, local_rotary_base=700.0),
  # Twelve and more of the positions are beyond the original length.
  "llama3-scaled": presets.llama3("1_8b")
  | SHAPE
  | dict(head_dim=8, num_kv_heads=3, rotary_scaling_original_length=16, rotary_base=200.0),
  "llama-linear": presets.llama2("7b") | SHAPE | dict(rotary_scaling="linear", rotary_scaling_factor=3.5),
  "qwen2": presets.qwen2("7b") | SHAPE | dict(head_dim=8, num_kv_heads=3) | YARN,
  "mistral-yarn": presets.llama2("7b")
  | SHAPE
  | dict(num_kv_heads=2, head_dim=6, attention_window=4)
  | YARN
  | dict(rotary_scaling_attention_factor=1.4, rotary_scaling_truncate=False),
  "qwen3": presets.llama3("8b") | SHAPE | dict(num_kv_heads=3, qk_norm=True, rotary_base=1e6),
  # Global, local, local, global, local; two bases.
  "modern_bert-decoder": presets.ettin("decoder_150m")
  | SHAPE
  | dict(num_heads=3, head_dim=6, num_decoder_layers=5, attention_window=4, rotary_base=900.0, local_rotary_base=70.0),
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def pair(request, tmp_path_factory):
  return parity.pair(TransformerConfig(**FAMILIES[request.param]), tmp_path_factory.mktemp(request.param))


BATCHES = {"long": ((30, 7), (25, 31), (31, 28)), "short": ((5, 9, 1), (3, 1, 6), (9, 7))}


@pytest.fixture(scope="module", params=list(BATCHES))
def batch(request):
  inputs, targets, padded_to = BATCHES[request.param]
  return toy.batch(inputs, targets, padded_to=padded_to, architecture="decoder_only")


def test_hidden_states_and_logits_are_theirs(pair, batch):
  parity.assert_same_hidden_states(pair, batch)
  parity.assert_same_logits(pair, batch)


@parity.GRADIENT_BATCHES
def test_loss_and_gradients_are_theirs(pair, batch):
  """The mean loss over targets after a prompt, and the gradient of every parameter."""
  parity.assert_same_loss_and_gradients(pair, batch)


def test_what_is_written_is_theirs(pair):
  """After prompts of several lengths with four beams; T5 and BART cover greedy decoding."""
  batch = toy.batch((5, 9, 1, 7, 8, 3), (1,) * 6, padded_to=(9, 1), architecture="decoder_only")
  parity.assert_writes_the_same(pair, batch, num_beams=4)
