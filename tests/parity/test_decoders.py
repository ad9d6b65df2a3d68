"""t2t's GPT-2, Llama and Qwen 3 (for QK-norm) against Hugging Face's, with the same random weights.

Runs where torch and transformers are installed (tests/parity/requirements.txt).
"""

import parity
from parity import transformers
import pytest
import toy

from t2t.models import sizes
from t2t.models.config import TransformerConfig

# Every size is another one, and none is a power of two; all other fields are those of the family.
SHAPE = dict(vocab_size=53, embed_dim=18, num_heads=6, head_dim=4, mlp_dim=28, num_decoder_layers=3, dtype="float32")

_ATTENTION = tuple(f"decoder/layers/self_attention/{name}" for name in ("query", "key", "value"))
GPT2 = {
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
}

LLAMA = {
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
}
UNTIED = {"lm_head.weight": "head/projection"}
QK_NORM = {
  "model.layers.{}.self_attn.q_norm.weight": "decoder/layers/self_attention/query_norm/scale",
  "model.layers.{}.self_attn.k_norm.weight": "decoder/layers/self_attention/key_norm/scale",
}


def gpt2():
  config = TransformerConfig(**(sizes.gpt2("small") | SHAPE | dict(head_dim=3, max_length=60)))
  theirs = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(
      vocab_size=config.vocab_size,
      n_embd=config.embed_dim,
      n_layer=config.num_decoder_layers,
      n_head=config.num_heads,
      n_inner=config.mlp_dim,
      n_positions=config.max_length,
      layer_norm_epsilon=config.norm_epsilon,
      **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
      attn_implementation="eager",
    )
  )
  # Their matrices lie as ours do.
  return parity.pair(config, theirs, GPT2, transposed=False)


def llama_like(fields: dict, theirs, theirs_config, names: parity.Names):
  config = TransformerConfig(**(fields | SHAPE))
  theirs = theirs(
    theirs_config(
      vocab_size=config.vocab_size,
      hidden_size=config.embed_dim,
      intermediate_size=config.mlp_dim,
      num_hidden_layers=config.num_decoder_layers,
      num_attention_heads=config.num_heads,
      num_key_value_heads=config.kv_heads,
      head_dim=config.head_dim,
      rms_norm_eps=config.norm_epsilon,
      rope_parameters=dict(rope_type="default", rope_theta=config.rotary_base),
      tie_word_embeddings=config.tied_logits,
      attn_implementation="eager",
    )
  )
  return parity.pair(config, theirs, names)


def llama(**fields):
  names = LLAMA if fields.get("tied_logits") else LLAMA | UNTIED
  shape = sizes.llama2("7b") | fields
  return llama_like(shape, transformers.LlamaForCausalLM, transformers.LlamaConfig, names)


def qwen3():
  fields = sizes.llama3("8b") | dict(num_kv_heads=3, qk_norm=True, norm_epsilon=1e-6, rotary_base=1e6)
  return llama_like(fields, transformers.Qwen3ForCausalLM, transformers.Qwen3Config, LLAMA | UNTIED | QK_NORM)


FAMILIES = {
  "gpt2": gpt2,
  "llama": llama,
  "llama-grouped-tied": lambda: llama(num_kv_heads=2, tied_logits=True),
  "llama-grouped-far": lambda: llama(num_kv_heads=3, rotary_base=500_000.0),
  "qwen3": qwen3,
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def pair(request):
  return FAMILIES[request.param]()


@pytest.fixture(
  scope="module", params=[((30, 7), (25, 31), (31, 28)), ((5, 9, 1), (3, 1, 6), (9, 7))], ids=["long", "short"]
)
def batch(request):
  inputs, targets, padded_to = request.param
  return toy.batch(inputs, targets, padded_to=padded_to, architecture="decoder_only")


def test_hidden_states_and_logits_are_theirs(pair, batch):
  """At every position that is not padding."""
  parity.assert_same_hidden_states(pair, batch)
  parity.assert_same_logits(pair, batch)


def test_loss_and_gradients_are_theirs(pair, batch):
  """The mean loss over the targets behind a prompt, and the gradient of every parameter."""
  parity.assert_same_loss_and_gradients(pair, batch)
