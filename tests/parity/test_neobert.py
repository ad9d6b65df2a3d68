"""NeoBERT's tensors against transformers' EuroBERT, which has the same layers with other names and layouts.

Needs torch and transformers (tests/parity-requirements.txt). NeoBERT's own class is code beside its checkpoint.
"""

import json

import numpy as np
import parity
from parity import torch
import pytest
from safetensors.torch import load_file
import toy
import transformers

from t2t.convert import huggingface
from t2t.models import llama_encoders
from t2t.models.config import TransformerConfig

CONFIG = TransformerConfig(
  **llama_encoders.neobert("base")
  | dict(vocab_size=53, embed_dim=24, num_heads=3, head_dim=8, mlp_dim=40, num_encoder_layers=3)
  | dict(dtype="float32", dropout_rate=0.0, norm_epsilon=1e-3, max_length=50)
)


def halves(matrix):
  """Converts the rows of a head from neighbouring pairs to halves, as transformers converts Llama's matrices."""
  heads, width = CONFIG.num_heads, CONFIG.head_dim
  pairs = matrix.reshape(heads, width // 2, 2, CONFIG.embed_dim)
  return pairs.transpose(1, 2).reshape(heads * width, CONFIG.embed_dim)


def as_eurobert(tensors):
  """Returns NeoBERT's tensors with EuroBERT's names and layouts, and the bias of the logits."""
  made = {
    "model.embed_tokens.weight": tensors["model.encoder.weight"],
    "model.norm.weight": tensors["model.layer_norm.weight"],
    "lm_head.weight": tensors["decoder.weight"],
  }
  for layer in range(CONFIG.num_encoder_layers):
    theirs = lambda name, layer=layer: tensors[f"model.transformer_encoder.{layer}.{name}.weight"]
    ours = f"model.layers.{layer}."
    # A head's rows are its query, key and value: view(heads, 3 * width) and three chunks.
    of_heads = theirs("qkv").reshape(CONFIG.num_heads, 3 * CONFIG.head_dim, CONFIG.embed_dim)
    query, key, value = (x.reshape(-1, CONFIG.embed_dim) for x in of_heads.chunk(3, dim=1))
    gate, up = theirs("ffn.w12").chunk(2, dim=0)
    made |= {
      f"{ours}self_attn.q_proj.weight": halves(query),
      f"{ours}self_attn.k_proj.weight": halves(key),
      f"{ours}self_attn.v_proj.weight": value,
      f"{ours}self_attn.o_proj.weight": theirs("wo"),
      f"{ours}mlp.gate_proj.weight": gate,
      f"{ours}mlp.up_proj.weight": up,
      f"{ours}mlp.down_proj.weight": theirs("ffn.w3"),
      f"{ours}input_layernorm.weight": theirs("attention_norm"),
      f"{ours}post_attention_layernorm.weight": theirs("ffn_norm"),
    }
  return made, tensors["decoder.bias"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return parity.exported(CONFIG, tmp_path_factory.mktemp("neobert"))


def test_logits_are_those_of_the_same_layers(folder):
  """The exported tensors, in EuroBERT's layout, give t2t's logits."""
  settings = json.loads((folder / "config.json").read_text())
  assert settings["model_type"] == "neobert" and settings["intermediate_size"] == 60
  made, bias = as_eurobert(load_file(folder / "model.safetensors"))
  theirs = transformers.EuroBertForMaskedLM(
    transformers.EuroBertConfig(
      vocab_size=53,
      hidden_size=24,
      intermediate_size=40,
      num_hidden_layers=3,
      num_attention_heads=3,
      num_key_value_heads=3,
      head_dim=8,
      rms_norm_eps=1e-3,
      rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
      pad_token_id=None,
      bos_token_id=None,
      eos_token_id=None,
      mask_token_id=0,
      attn_implementation="eager",
    )
  ).eval()
  theirs.load_state_dict(made)
  batch = toy.batch((37, 23, 40), (1, 1, 1), padded_to=(40, 1), architecture="encoder_only")
  tokens = np.asarray(batch["encoder_input_tokens"])
  with torch.no_grad():
    mask = torch.tensor(tokens > 0).long()
    expected = theirs(input_ids=torch.tensor(tokens).long(), attention_mask=mask).logits + bias
  model = parity.foreign.nested(parity.foreign.random_params(CONFIG))
  from flax import nnx

  ours = nnx.merge(parity.foreign.graphdef(CONFIG), model)
  found = np.asarray(ours.logits(ours(batch)))
  np.testing.assert_allclose(found[tokens > 0], expected.numpy()[tokens > 0], rtol=2e-4, atol=2e-4)


def test_a_checkpoint_is_read_back(folder):
  """Every parameter of the folder is that of the exported model."""
  again = huggingface.open_foreign(str(folder))
  assert again.model == CONFIG
  params = parity.foreign.random_params(CONFIG)
  found = parity.foreign.read(again)
  assert found.keys() == params.keys()
  for path, value in found.items():
    np.testing.assert_array_equal(value, params[path], err_msg=path)
