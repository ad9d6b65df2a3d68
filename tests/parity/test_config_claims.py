"""Claims of t2t about how transformers reads config.json, checked against the installed version, 4 or 5."""

import json

from etils import epath
import foreign
import golden
import numpy as np
from parity import torch, transformers
import pytest
import toy
from transformers.models.gemma import modeling_gemma

from t2t.convert import hf_config as settings_lib
from t2t.convert import huggingface

IS_5 = int(transformers.__version__.split(".")[0]) >= 5


@pytest.mark.parametrize(
  "settings",
  [
    {"feed_forward_proj": "gated-gelu", "dense_act_fn": "silu"},
    {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu", "is_gated_act": True},
    {"feed_forward_proj": "gated-gelu", "is_gated_act": False},
    {"feed_forward_proj": "gated-gelu"},
    {"feed_forward_proj": "gelu"},
  ],
)
def test_dense_act_fn_overrules_feed_forward_proj(settings):
  """In both versions; t2t reads the same activation."""
  theirs = transformers.T5Config.from_dict(dict(settings))
  ours = settings_lib.read_fields(settings_lib.FAMILIES["t5"], {"model_type": "t5", **settings})["mlp_activation"]
  names = {"gelu": ("gelu", "gated_gelu_exact"), "gelu_new": ("gelu_tanh", "gated_gelu"), "silu": ("", "gated_silu")}
  assert ours == names[theirs.dense_act_fn][theirs.is_gated_act]


def base(**settings):
  config = transformers.LlamaConfig.from_dict(dict(settings))
  return config.rope_parameters["rope_theta"] if IS_5 else config.rope_theta


def test_versions_read_different_bases_of_rotary_positions():
  """Version 5 reads a dict, 4 a single value; files with different values are refused."""
  inside = {"rope_theta": 1e4, "rope_type": "default"}
  assert base(rope_theta=5e5, rope_parameters=dict(inside)) == (1e4 if IS_5 else 5e5)
  assert base(rope_theta=5e5, rope_scaling=dict(inside)) == (1e4 if IS_5 else 5e5)
  assert base(rope_theta=5e5) == 5e5


def test_versions_read_different_kinds_of_layers_of_a_modern_bert():
  """Version 5 reads layer_types, 4 the interval."""
  settings = json.loads((golden.FOLDER / "modern_bert" / "config.json").read_text())
  types = ["full_attention", "sliding_attention"] * 2
  config = transformers.ModernBertConfig.from_dict(settings | {"layer_types": types, "global_attn_every_n_layers": 3})
  model = transformers.ModernBertModel(config)
  if IS_5:
    sees_all = [kind == "full_attention" for kind in config.layer_types]
  else:
    sees_all = [layer.attn.local_attention == (-1, -1) for layer in model.layers]
  assert sees_all == ([True, False, True, False] if IS_5 else [True, False, False, True])


def test_gemma_reads_hidden_act_alone_and_gelu_is_the_approximation_in_5():
  shape, x = dict(hidden_size=4, intermediate_size=4), torch.linspace(-3, 3, 50)
  act = lambda **names: modeling_gemma.GemmaMLP(transformers.GemmaConfig(**names, **shape)).act_fn(x)
  exact = torch.allclose(act(hidden_act="gelu"), torch.nn.functional.gelu(x), atol=1e-6)
  assert exact == (not IS_5)
  assert torch.equal(act(hidden_act="silu", hidden_activation="gelu_pytorch_tanh"), torch.nn.functional.silu(x))


def test_an_untied_head_that_is_the_embedding_is_left_out_by_transformers_5(tmp_path):
  """Version 5 ties a T5 regardless of its config; 4 creates and saves a separate head."""
  shape = dict(vocab_size=40, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, tie_word_embeddings=False)
  transformers.T5ForConditionalGeneration(transformers.T5Config(**shape)).save_pretrained(tmp_path)
  assert ("lm_head.weight" in foreign.safetensors(tmp_path)) != IS_5
  found = huggingface.open_foreign(str(tmp_path))
  assert not found.model.tied_logits
  assert any("lm_head.weight is missing" in note for note in found.notes) == IS_5


@pytest.mark.parametrize("pad", [0, 3])
def test_a_roberta_whose_vocabulary_pads_otherwise_has_the_same_logits(pad, tmp_path):
  """transformers counts positions from the padding id, for any padding id."""
  config = huggingface.open_foreign(str(golden.FOLDER / "roberta")).model
  pieces = ["<s>", "</s>", "<unk>", "<mask>", *"abcdefgh"]
  pieces.insert(pad, "<pad>")
  vocabulary = {"type": "WordLevel", "vocab": {piece: i for i, piece in enumerate(pieces)}, "unk_token": "<unk>"}
  (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": vocabulary}))
  params = foreign.random_params(config)
  made = foreign.in_memory(config, params, vocabulary=tmp_path / "tokenizer.json")
  huggingface.save(made, epath.Path(tmp_path / "hf"))
  model = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "hf", attn_implementation="eager").eval()
  ids = np.array([[5, 6, 7, 8, 9, pad, pad], [4, 9, 8, 7, 6, 5, 10]])
  with torch.no_grad():
    theirs = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(ids != pad)).logits.numpy()
  batch = {"encoder_input_tokens": ids, "encoder_segment_ids": (ids != pad).astype(np.int32)}
  batch["encoder_target_tokens"] = ids
  ours = np.asarray(toy.logits(foreign.model(made, dtype="float32"), batch))
  np.testing.assert_allclose(ours[ids != pad], theirs[ids != pad], atol=1e-4)
