"""Hugging Face folders compute the same as in transformers; tests/golden has folders with the outputs of transformers.

tests/parity/golden.py writes them; tests/parity compares larger models, gradients and tokenizers where torch is
installed.
"""

import dataclasses
import errno
import json
import math
import shutil
import subprocess
import sys
import tracemalloc

from etils import epath
import folders
import foreign
import ml_dtypes
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.checkpoints import tensor_writer
from t2t.convert import atomic_output, hf_mappings, huggingface, lazy_tensors, safetensors
from t2t.convert import hf_config as settings_lib
from t2t.models import bert_variants, llama_encoders, presets
from t2t.models.architecture import real_positions
from t2t.models.config import TransformerConfig

GOLDEN = folders.TESTS / "golden"
NAMES = sorted(path.name for path in GOLDEN.iterdir())
CONFIG = toy.config(relative_position_buckets=8)


def golden(name):
  """Returns a folder as a t2t model, a batch, and the outputs of transformers."""
  numbers = dict(np.load(GOLDEN / name / "expected.npz"))
  batch = {key: x for key, x in numbers.items() if key.startswith(("encoder_", "decoder_"))}
  return huggingface.open_foreign(str(GOLDEN / name)), batch, numbers


@pytest.fixture
def folder(tmp_path):
  """An exported T5, to be damaged by a test."""
  path = tmp_path / "t5"
  huggingface.save(foreign.in_memory(CONFIG, foreign.random_params(CONFIG)), epath.Path(path))
  return path


def edit(path, **changes):
  """Changes keys of a JSON file; None removes one."""
  content = json.loads(path.read_text()) | changes
  path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


# ---- Equal outputs ---------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_theirs(name):
  """At every position without padding, for rows of several lengths."""
  found, batch, numbers = golden(name)
  at = np.asarray(real_positions(batch, "decoder" if "decoder_input_tokens" in batch else "encoder"))
  logits = np.asarray(toy.logits(foreign.model(found, dtype="float32"), batch))
  np.testing.assert_allclose(logits[at], numbers["logits"][at], atol=1e-4)
  assert np.std(logits[at]) > 0.1


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("name", ["t5", "gpt2", "llama3"])
def test_what_is_written_is_theirs(name, num_beams):
  """Greedy and with four beams, token by token."""
  found, batch, numbers = golden(name)
  # Rounding to bfloat16 can make two tokens equal.
  graphdef = foreign.graphdef(dataclasses.replace(found.model, dtype="float32"))
  params = foreign.nested(foreign.read(found))
  written = foreign.writes(graphdef, params, batch, num_beams=num_beams, eos_id=int(numbers["eos_id"]))
  np.testing.assert_array_equal(written, numbers[f"written_{num_beams}"])


# ---- Round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive_from(9)
@pytest.mark.parametrize("name", NAMES)
def test_their_folder_comes_back_bit_for_bit(name, tmp_path):
  """Through a workdir: every tensor has its name and dtype."""
  opened = huggingface.open_foreign(str(GOLDEN / name))
  tensor_writer.save(opened, epath.Path(tmp_path / "run"))
  expected = foreign.safetensors(GOLDEN / name)
  dtype = next(iter(expected.values())).dtype.name
  huggingface.save(tensor_writer.open_foreign(str(tmp_path / "run")), epath.Path(tmp_path / "hf"), dtype=dtype)
  found = foreign.safetensors(tmp_path / "hf")
  assert found.keys() == expected.keys()
  for tensor, value in found.items():
    expected_value = expected[tensor]
    assert value.dtype == expected_value.dtype
    np.testing.assert_array_equal(value, expected_value, err_msg=tensor)


@pytest.mark.parametrize("name", NAMES)
def test_our_model_comes_back_bit_for_bit(name, tmp_path):
  """Every parameter and config field, through a Hugging Face folder of several files."""
  config = huggingface.open_foreign(str(GOLDEN / name)).model
  params = foreign.random_params(config)
  huggingface.save(foreign.in_memory(config, params), epath.Path(tmp_path / "hf"), max_shard_bytes=2_000)
  assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 1
  again = huggingface.open_foreign(str(tmp_path / "hf"))
  assert again.model == TransformerConfig(**(vars(config) | {"dtype": "float32"}))
  for path, value in foreign.read(again).items():
    np.testing.assert_array_equal(value, params[path], err_msg=path)


def test_how_attention_began_is_not_written(tmp_path):
  """attention_init_bias does not prevent the export of a T5."""
  config = dataclasses.replace(CONFIG, attention_init_bias=6.0)
  huggingface.save(foreign.in_memory(config, foreign.random_params(config)), epath.Path(tmp_path / "hf"))
  assert huggingface.open_foreign(str(tmp_path / "hf")).model == dataclasses.replace(CONFIG, dtype="float32")


def test_untied_logits_of_a_bert_have_their_bias_twice(tmp_path):
  """transformers reads the copy, which is the same tensor only with tied logits."""
  config = TransformerConfig(**(vars(huggingface.open_foreign(str(GOLDEN / "bert")).model) | {"tied_logits": False}))
  params = foreign.random_params(config)
  huggingface.save(foreign.in_memory(config, params), epath.Path(tmp_path / "bert"))
  found = foreign.safetensors(tmp_path / "bert")
  for name in ("cls.predictions.bias", "cls.predictions.decoder.bias"):
    np.testing.assert_array_equal(found[name], params["head/bias"])
  # As transformers saves it: unread parameters are not trained.
  rewrite(tmp_path / "bert", lambda found: found | {"cls.predictions.bias": np.zeros(41, np.float32)})
  found = huggingface.open_foreign(str(tmp_path / "bert"))
  np.testing.assert_array_equal(found.tensors["head/bias"].read(), params["head/bias"])
  assert any("cls.predictions.decoder.bias and cls.predictions.bias differ" in note for note in found.notes)


def test_half_precision_is_what_is_asked_for(tmp_path):
  """Values are rounded to bfloat16; values beyond float16 are an error with the name."""
  params = foreign.random_params(CONFIG)
  huggingface.save(foreign.in_memory(CONFIG, params), epath.Path(tmp_path / "bfloat16"), dtype="bfloat16")
  found = foreign.safetensors(tmp_path / "bfloat16")["shared.weight"]
  np.testing.assert_array_equal(found, params["embed/table"].astype(found.dtype))
  params["encoder/layers/mlp/down"][1, 2, 3] = 70_000.0
  with pytest.raises(UserError, match=r"encoder.block.1.layer.1.DenseReluDense.wo.weight has values beyond 65,504"):
    huggingface.save(foreign.in_memory(CONFIG, params), epath.Path(tmp_path / "float16"), dtype="float16")
  params["encoder/layers/mlp/down"][1, 2, 3] = -70_000.0
  with pytest.raises(UserError, match=r"has values beyond 65,504"):
    huggingface.save(foreign.in_memory(CONFIG, params), epath.Path(tmp_path / "negative"), dtype="float16")
  with pytest.raises(UserError, match="--dtype int8: unknown dtype. Known values: float32, bfloat16, float16"):
    huggingface.save(foreign.in_memory(CONFIG, params), epath.Path(tmp_path / "int8"), dtype="int8")
  assert [path.name for path in tmp_path.iterdir()] == ["bfloat16"]


@pytest.mark.parametrize("save", [huggingface.save, tensor_writer.save])
def test_no_more_than_one_tensor_is_in_memory(save, tmp_path):
  """For a model whose largest tensor is a small part."""
  config = toy.config(embed_dim=128, mlp_dim=1024, num_encoder_layers=8, num_decoder_layers=8)
  shapes = lazy_tensors.expected(config)
  layer = lambda x: lazy_tensors.Tensor(
    x.shape, np.dtype(np.float32), (lambda: np.ones(x.shape[1:]),) * x.shape[0], True
  )
  whole = lambda x: lazy_tensors.Tensor(x.shape, np.dtype(np.float32), (lambda: np.ones(x.shape),))
  lazy = {path: (layer if "/layers/" in path else whole)(x) for path, x in shapes.items()}
  largest = max(x.size // (x.shape[0] if "/layers/" in path else 1) for path, x in shapes.items()) * 4
  made = foreign.in_memory(config, {})
  made.tensors.update(lazy)
  tracemalloc.start()
  try:
    save(made, epath.Path(tmp_path / "out"))
    peak = tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()
  total = sum(x.size for x in shapes.values()) * 4
  assert peak < total / 3
  # The float64 and float32 arrays of one tensor, and its source.
  assert peak < 5 * largest + 2_000_000


# ---- Published models ------------------------------------------------------------------------------------------------

# config.json of published models, without keys that do not affect the model.
_T5 = dict(model_type="t5", decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, is_encoder_decoder=True)
_T5 |= dict(layer_norm_epsilon=1e-6, relative_attention_num_buckets=32, dropout_rate=0.1, initializer_factor=1.0)
_LLAMA = dict(model_type="llama", hidden_act="silu", rms_norm_eps=1e-5, initializer_range=0.02, rope_scaling=None)
_LLAMA |= dict(pretraining_tp=1, tie_word_embeddings=False, use_cache=True, torch_dtype="bfloat16")
_BERT = dict(hidden_act="gelu", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, initializer_range=0.02)
_BERT |= dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
_LLAMA3_ROPE = dict(
  high_freq_factor=4.0, low_freq_factor=1.0, original_max_position_embeddings=8192, rope_type="llama3"
)
_DEBERTA = dict(relative_attention=True, pos_att_type="c2p|p2c")
# transformers lacks the mask decoder.
_NO_DECODER = dict(absolute_positions="")
PUBLISHED = {
  "t5-small": (
    _T5 | dict(vocab_size=32128, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, n_positions=512),
    presets.t5_1_0("small"),
  ),
  "google/flan-t5-base": (
    _T5
    | dict(vocab_size=32128, d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_decoder_layers=12, num_heads=12)
    | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    presets.t5_1_1("base"),
  ),
  "google/mt5-small": (
    _T5
    | dict(model_type="mt5", vocab_size=250112, d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_decoder_layers=8)
    | dict(num_heads=6, feed_forward_proj="gated-gelu", tie_word_embeddings=False, tokenizer_class="T5Tokenizer"),
    presets.mt5("small"),
  ),
  "google/byt5-small": (
    _T5
    | dict(vocab_size=384, d_model=1472, d_kv=64, d_ff=3584, num_layers=12, num_decoder_layers=4, num_heads=6)
    | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False, tokenizer_class="ByT5Tokenizer"),
    presets.byt5("small"),
  ),
  "google/ul2": (
    _T5
    | dict(vocab_size=32128, d_model=4096, d_kv=256, d_ff=16384, num_layers=32, num_decoder_layers=32, num_heads=16)
    | dict(feed_forward_proj="gated-silu", dense_act_fn="silu", is_gated_act=True, tie_word_embeddings=False),
    presets.ul2("20b"),
  ),
  "bert-base-uncased": (
    _BERT
    | dict(model_type="bert", vocab_size=30522, max_position_embeddings=512, type_vocab_size=2, layer_norm_eps=1e-12),
    presets.bert("base"),
  ),
  "roberta-base": (
    _BERT
    | dict(model_type="roberta", vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, pad_token_id=1)
    | dict(layer_norm_eps=1e-5),
    presets.roberta("base"),
  ),
  "allenai/longformer-base-4096": (
    _BERT
    | dict(model_type="longformer", vocab_size=50265, max_position_embeddings=4098, type_vocab_size=1, pad_token_id=1)
    | dict(layer_norm_eps=1e-5, attention_window=[512] * 12, attention_mode="longformer", ignore_attention_mask=False)
    | dict(sep_token_id=2, gradient_checkpointing=False),
    presets.longformer("base"),
  ),
  "facebook/bart-base": (
    dict(model_type="bart", vocab_size=50265, d_model=768, max_position_embeddings=1024, activation_function="gelu")
    | dict(encoder_layers=6, encoder_attention_heads=12, encoder_ffn_dim=3072, encoder_layerdrop=0.0, dropout=0.1)
    | dict(decoder_layers=6, decoder_attention_heads=12, decoder_ffn_dim=3072, decoder_layerdrop=0.0, init_std=0.02)
    | dict(activation_dropout=0.1, attention_dropout=0.1, add_bias_logits=False, add_final_layer_norm=False)
    | dict(normalize_before=False, normalize_embedding=True, scale_embedding=False, is_encoder_decoder=True)
    | dict(classif_dropout=0.1, early_stopping=True, num_beams=4, no_repeat_ngram_size=3, num_hidden_layers=6)
    | dict(decoder_start_token_id=2, forced_bos_token_id=0, forced_eos_token_id=2, pad_token_id=1),
    presets.bart("base"),
  ),
  "Helsinki-NLP/opus-mt-en-de": (
    dict(model_type="marian", vocab_size=58101, d_model=512, max_position_embeddings=512, activation_function="swish")
    | dict(encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048, encoder_layerdrop=0.0, dropout=0.1)
    | dict(decoder_layers=6, decoder_attention_heads=8, decoder_ffn_dim=2048, decoder_layerdrop=0.0, init_std=0.02)
    | dict(activation_dropout=0.0, attention_dropout=0.0, add_bias_logits=False, add_final_layer_norm=False)
    | dict(normalize_before=False, normalize_embedding=False, scale_embedding=True, static_position_embeddings=True)
    | dict(is_encoder_decoder=True, num_beams=6, num_hidden_layers=6, pad_token_id=58100, eos_token_id=0),
    presets.transformer("base") | dict(vocab_size=58_101, mlp_activation="silu", init_scale=0.02),
  ),
  "albert-base-v2": (
    _BERT
    | dict(model_type="albert", vocab_size=30000, max_position_embeddings=512, type_vocab_size=2, layer_norm_eps=1e-12)
    | dict(embedding_size=128, hidden_act="gelu_new", hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    | dict(num_hidden_groups=1, inner_group_num=1, num_memory_blocks=0, gap_size=0, net_structure_type=0),
    presets.albert("base"),
  ),
  "microsoft/deberta-base": (
    _BERT
    | dict(model_type="deberta", vocab_size=50265, type_vocab_size=0, layer_norm_eps=1e-7, relative_attention=True)
    | dict(
      pos_att_type="c2p|p2c", position_biased_input=False, max_relative_positions=-1, padding_idx=0, pad_token_id=0
    )
    | dict(pooler_dropout=0, pooler_hidden_act="gelu", pooler_hidden_size=768, max_position_embeddings=512),
    bert_variants.deberta("base") | _NO_DECODER,
  ),
  "microsoft/deberta-v2-xlarge": (
    _BERT
    | dict(model_type="deberta-v2", vocab_size=128100, type_vocab_size=0, layer_norm_eps=1e-7, relative_attention=True)
    | dict(hidden_size=1536, num_attention_heads=24, num_hidden_layers=24, intermediate_size=6144)
    | dict(norm_rel_ebd="layer_norm")
    | dict(pos_att_type="p2c|c2p", position_biased_input=False, max_relative_positions=-1, position_buckets=256)
    | dict(
      share_att_key=True, conv_kernel_size=3, conv_act="gelu", attention_head_size=64, max_position_embeddings=512
    ),
    bert_variants.deberta_v2("xlarge") | _NO_DECODER,
  ),
  "microsoft/deberta-v3-base": (
    _BERT
    | dict(model_type="deberta-v2", vocab_size=128100, type_vocab_size=0, layer_norm_eps=1e-7, relative_attention=True)
    | dict(pos_att_type="p2c|c2p", position_biased_input=False, max_relative_positions=-1, position_buckets=256)
    | dict(share_att_key=True, norm_rel_ebd="layer_norm", max_position_embeddings=512),
    bert_variants.deberta_v3("base") | _NO_DECODER,
  ),
  "answerdotai/ModernBERT-base": (
    dict(model_type="modernbert", vocab_size=50368, hidden_size=768, num_hidden_layers=22, num_attention_heads=12)
    | dict(intermediate_size=1152, global_attn_every_n_layers=3, global_rope_theta=160000.0, local_attention=128)
    | dict(local_rope_theta=10000.0, norm_eps=1e-5, hidden_activation="gelu", max_position_embeddings=8192),
    presets.modern_bert("base"),
  ),
  "jhu-clsp/ettin-decoder-150m": (
    dict(model_type="modernbert-decoder", vocab_size=50368, hidden_size=768, num_hidden_layers=22)
    | dict(num_attention_heads=12, intermediate_size=1152, global_attn_every_n_layers=3, global_rope_theta=160000.0)
    | dict(local_attention=128, local_rope_theta=160000.0, norm_eps=1e-5, hidden_activation="gelu"),
    presets.ettin("decoder_150m") | {"local_rotary_base": 160_000.0},
  ),
  "EuroBERT/EuroBERT-610m": (
    _LLAMA
    | dict(model_type="eurobert", vocab_size=128256, hidden_size=1152, intermediate_size=4096, num_hidden_layers=26)
    | dict(num_attention_heads=18, num_key_value_heads=6, head_dim=64, max_position_embeddings=8192)
    | dict(rope_theta=250000.0, mask_token_id=128002),
    llama_encoders.eurobert("610m"),
  ),
  "chandar-lab/NeoBERT": (
    dict(model_type="neobert", vocab_size=30522, hidden_size=768, intermediate_size=3072, num_hidden_layers=28)
    | dict(num_attention_heads=12, dim_head=64, max_length=4096, norm_eps=1e-6, decoder_init_range=0.02)
    | dict(embedding_init_range=0.02, classifier_init_range=0.02, pad_token_id=0, architectures=["NeoBERTLMHead"])
    | dict(auto_map={"AutoModelForMaskedLM": "model.NeoBERTLMHead"}, kwargs={"architectures": ["NeoBERTLMHead"]}),
    llama_encoders.neobert("base"),
  ),
  "gpt2": (
    dict(model_type="gpt2", vocab_size=50257, n_embd=768, n_layer=12, n_head=12, n_positions=1024, n_ctx=1024)
    | dict(activation_function="gelu_new", layer_norm_epsilon=1e-5, resid_pdrop=0.1, initializer_range=0.02),
    presets.gpt2("small"),
  ),
  "meta-llama/Llama-2-7b-hf": (
    _LLAMA
    | dict(vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32)
    | dict(num_key_value_heads=32, max_position_embeddings=4096),
    presets.llama2("7b"),
  ),
  "meta-llama/Meta-Llama-3-8B": (
    _LLAMA
    | dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32)
    | dict(num_key_value_heads=8, max_position_embeddings=8192, rope_theta=500000.0),
    presets.llama3("8b"),
  ),
  "meta-llama/Llama-3.1-8B": (
    _LLAMA
    | dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32)
    | dict(num_key_value_heads=8, max_position_embeddings=131072, rope_theta=500000.0)
    | dict(rope_scaling=_LLAMA3_ROPE | dict(factor=8.0)),
    presets.llama3("1_8b"),
  ),
  "meta-llama/Llama-3.2-1B": (
    _LLAMA
    | dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32)
    | dict(num_key_value_heads=8, max_position_embeddings=131072, rope_theta=500000.0, head_dim=64)
    | dict(rope_scaling=_LLAMA3_ROPE | dict(factor=32.0), tie_word_embeddings=True),
    presets.llama3("2_1b"),
  ),
  "Qwen/Qwen2-0.5B": (
    dict(model_type="qwen2", hidden_act="silu", hidden_size=896, initializer_range=0.02, intermediate_size=4864)
    | dict(max_position_embeddings=131072, max_window_layers=24, num_attention_heads=14, num_hidden_layers=24)
    | dict(num_key_value_heads=2, rms_norm_eps=1e-6, rope_theta=1000000.0, sliding_window=131072, vocab_size=151936)
    | dict(tie_word_embeddings=True, use_sliding_window=False, attention_dropout=0.0, torch_dtype="bfloat16"),
    presets.qwen2("0_5b"),
  ),
}


# config.json of families without presets in t2t, and the number of parameters of the published model.
_GEMMA = dict(hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, initializer_range=0.02, head_dim=256)
_GEMMA |= dict(attention_bias=False, attention_dropout=0.0, use_cache=True, pad_token_id=0, bos_token_id=2)
_GEMMA |= dict(eos_token_id=1, torch_dtype="bfloat16", num_attention_heads=8, cache_implementation="hybrid")
_T5GEMMA_2B = dict(hidden_size=2304, intermediate_size=9216, num_hidden_layers=26, num_key_value_heads=4)
_T5GEMMA_2B |= dict(max_position_embeddings=8192, rope_theta=10000.0, sliding_window=4096, vocab_size=256000)
_T5GEMMA_2B |= dict(attn_logit_softcapping=50.0, final_logit_softcapping=30.0, query_pre_attn_scalar=256) | _GEMMA
_T5GEMMA_9B = _T5GEMMA_2B | dict(hidden_size=3584, intermediate_size=14336, num_hidden_layers=42)
_T5GEMMA_9B |= dict(num_attention_heads=16, num_key_value_heads=8)
RELEASED = {
  "distilbert-base-uncased": (
    dict(model_type="distilbert", activation="gelu", attention_dropout=0.1, dim=768, dropout=0.1, hidden_dim=3072)
    | dict(
      initializer_range=0.02, max_position_embeddings=512, n_heads=12, n_layers=6, pad_token_id=0, vocab_size=30522
    )
    | dict(qa_dropout=0.1, seq_classif_dropout=0.2, sinusoidal_pos_embds=False, tie_weights_=True),
    66_985_530,
  ),
  "xlm-roberta-base": (
    _BERT
    | dict(model_type="xlm-roberta", vocab_size=250002, max_position_embeddings=514, type_vocab_size=1, pad_token_id=1)
    | dict(layer_norm_eps=1e-5, output_past=True),
    278_295_186,
  ),
  "mosaicml/mpt-7b": (
    dict(model_type="mpt", d_model=4096, emb_pdrop=0, embedding_fraction=1.0, expansion_ratio=4, init_device="cpu")
    | dict(learned_pos_emb=True, logit_scale=None, max_seq_len=2048, n_heads=32, n_layers=32, no_bias=True)
    | dict(norm_type="low_precision_layernorm", resid_pdrop=0, vocab_size=50432, verbose=0)
    | dict(
      attn_config=dict(alibi=True, alibi_bias_max=8, attn_impl="torch", attn_pdrop=0, attn_type="multihead_attention")
    )
    | dict(layer_norm_epsilon=1e-5),
    6_649_286_656,
  ),
  "mistralai/Mistral-7B-v0.1": (
    dict(model_type="mistral", hidden_act="silu", hidden_size=4096, initializer_range=0.02, intermediate_size=14336)
    | dict(max_position_embeddings=32768, num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=8)
    | dict(rms_norm_eps=1e-5, rope_theta=10000.0, sliding_window=4096, tie_word_embeddings=False, vocab_size=32000),
    7_241_732_096,
  ),
  "google/gemma-2b": (
    _GEMMA
    | dict(model_type="gemma", hidden_act="gelu", hidden_activation=None, hidden_size=2048, intermediate_size=16384)
    | dict(max_position_embeddings=8192, num_hidden_layers=18, num_key_value_heads=1, rope_theta=10000.0)
    | dict(rope_scaling=None, vocab_size=256000),
    2_506_172_416,
  ),
  "google/gemma-2-2b": (
    _GEMMA
    | dict(model_type="gemma2", hidden_act="gelu_pytorch_tanh", hidden_size=2304, intermediate_size=9216)
    | dict(max_position_embeddings=8192, num_hidden_layers=26, num_key_value_heads=4, rope_theta=10000.0)
    | dict(attn_logit_softcapping=50.0, final_logit_softcapping=30.0, query_pre_attn_scalar=256, sliding_window=4096)
    | dict(vocab_size=256000),
    2_614_341_888,
  ),
  "google/gemma-3-1b-pt": (
    _GEMMA
    | dict(model_type="gemma3_text", hidden_size=1152, intermediate_size=6912, max_position_embeddings=32768)
    | dict(num_attention_heads=4, num_hidden_layers=26, num_key_value_heads=1, rope_theta=1000000)
    | dict(rope_local_base_freq=10000, rope_scaling=None, sliding_window=512, sliding_window_pattern=6)
    | dict(attn_logit_softcapping=None, final_logit_softcapping=None, query_pre_attn_scalar=256, vocab_size=262144),
    999_885_952,
  ),
  # The sizes of google-deepmind/gemma; the folder also has transformers' defaults.
  "google/t5gemma-9b-2b-ul2": (
    dict(model_type="t5gemma", encoder=_T5GEMMA_9B, decoder=_T5GEMMA_2B, is_encoder_decoder=True, vocab_size=256000)
    | dict(attention_dropout=0.0, dropout_rate=0.0, classifier_dropout_rate=0.0, torch_dtype="bfloat16"),
    12_292_375_296,
  ),
}


@pytest.mark.parametrize("name", list(RELEASED))
def test_a_released_config_has_as_many_parameters_as_the_model(name):
  """The exported config equals the imported one, up to keys that do not affect the model."""
  settings, number = RELEASED[name]
  family = settings_lib.family(settings, name)
  model = TransformerConfig(**settings_lib.read_fields(family, settings))
  assert sum(x.size for x in lazy_tensors.expected(model).values()) == number
  assert not set(settings) - {*family.keys, *family.must, *family.reads, *settings_lib.HARMLESS}
  written = settings_lib.write_settings(family, model)
  assert TransformerConfig(**settings_lib.read_fields(family, written)) == dataclasses.replace(model, dtype="float32")


def test_which_layers_of_a_gemma_see_all():
  """Listed in config.json, or at an interval; unsupported patterns are an error."""
  settings = dict(RELEASED["google/gemma-3-1b-pt"][0], num_hidden_layers=12)
  family = settings_lib.family(settings, "gemma")
  local, every = "sliding_attention", "full_attention"

  def read(**changes):
    fields = settings_lib.read_fields(family, settings | changes)
    names = ("attention_window", "global_attention_every", "global_attention_first")
    return tuple(fields.get(name, 0) for name in names)

  assert read() == (511, 6, 5)
  assert read(layer_types=[every, local, local] * 4) == (511, 3, 0)
  assert read(layer_types=[local] * 12) == (511, 0, 0)
  assert read(layer_types=[every] * 12) == read(sliding_window=None) == (0, 0, 0)
  for changes, reason in (
    (
      dict(layer_types=[local, local, local, every, every, local] * 2),
      "t2t supports global attention only in every n-th layer",
    ),
    (dict(sliding_window=1), "t2t supports only windows of at least 2 positions"),
    (dict(rope_scaling={"rope_type": "linear", "factor": 8.0}), "t2t does not support rescaled rotary positions"),
    (dict(query_pre_attn_scalar=168.5), "query_pre_attn_scalar=168.5"),
  ):
    with pytest.raises(hf_mappings.Unknown, match=reason):
      read(**changes)


LOCAL, GLOBAL = "sliding_attention", "full_attention"


def test_a_t5gemma_without_sizes_has_those_of_transformers():
  """Defaults are a 2B-2B; the window of the encoder includes one more position on each side."""
  fields = read_fields("t5gemma", encoder={}, decoder={})
  config = TransformerConfig(**(fields | dict(dtype="bfloat16", max_length=0)))
  expected = TransformerConfig(**(presets.t5gemma("2b_2b") | dict(encoder_attention_window=4_096)))
  assert config == expected


@pytest.mark.parametrize(
  ("encoder", "decoder", "pattern"),
  [
    ([LOCAL, GLOBAL], [LOCAL, GLOBAL, LOCAL], (2, 1)),
    ([LOCAL, GLOBAL, LOCAL, GLOBAL, LOCAL], [LOCAL], (2, 1)),
    ([GLOBAL, LOCAL], [GLOBAL, LOCAL, LOCAL], (3, 0)),
    ([LOCAL, LOCAL], [LOCAL], (0, 0)),
  ],
)
def test_layers_of_both_stacks_have_one_pattern(encoder, decoder, pattern):
  """The shortest interval that describes both stacks; the export has the same layers."""
  stack = lambda types: dict(layer_types=types, num_hidden_layers=len(types))
  fields = read_fields("t5gemma", encoder=stack(encoder), decoder=stack(decoder))
  assert (fields["global_attention_every"], fields["global_attention_first"]) == pattern
  settings = settings_lib.write_settings(settings_lib.FAMILIES["t5gemma"], TransformerConfig(**fields))
  assert settings["encoder"]["layer_types"] == encoder and settings["decoder"]["layer_types"] == decoder
  assert settings["encoder"]["sliding_window"] == settings["decoder"]["sliding_window"] == 4096


@pytest.mark.parametrize(
  ("changes", "reason"),
  [
    (dict(encoder=dict(rms_norm_eps=1e-5)), "config.model.norm_epsilon would be 1e-05 in the encoder and 1e-06 in the"),
    (dict(encoder=dict(attn_logit_softcapping=None)), "config.model.attention_softcap would be 0.0 in the encoder"),
    (dict(encoder=dict(hidden_activation="silu")), "config.model.mlp_activation would be 'gated_silu'"),
    (dict(decoder=dict(rope_theta=5e5)), "config.model.rotary_base would be 10000.0 in the encoder"),
    (dict(decoder=dict(vocab_size=9)), "config.model.vocab_size would be 256000 in the encoder and 9"),
    (dict(decoder=dict(attention_bias=True)), "decoder: attention_bias=True"),
    (dict(encoder=dict(layer_types=[GLOBAL] * 26)), "sliding_attention only in both stacks, or in none"),
    (dict(encoder=dict(layer_types=[GLOBAL, LOCAL] * 13)), r"full_attention in the layers \[0, 2, .* one pattern"),
    (dict(encoder=dict(query_pre_attn_scalar=144)), "query_pre_attn_scalar is 144 in the encoder and 256 in the"),
    (dict(is_encoder_decoder=False), "is_encoder_decoder=False"),
  ],
)
def test_stacks_of_a_t5gemma_differ_in_sizes_only(changes, reason):
  with pytest.raises(hf_mappings.Unknown, match=reason):
    read_fields("t5gemma", **changes)


def test_what_a_t5gemma_reads_otherwise_is_said():
  """Windows in versions of transformers, and unknown keys of a stack."""
  notes = settings_lib.FAMILIES["t5gemma"].notes({"encoder": {"sliding_window": 9, "mystery": 1}})
  assert any("read 9 positions on each side in the encoder" in note and "read 8" in note for note in notes)
  assert any("unknown keys in encoder: mystery" in note for note in notes)


def test_stacks_of_a_t5gemma_have_the_special_ids(tmp_path):
  """transformers reads padding and start of each stack there. The round trip changes no bit, in bfloat16 either."""
  fields = dict(init_scale=0.02, vocab_size=384, encoder_attention_window=0, max_length=8192)
  fields |= dict(relative_position_buckets=32, relative_position_max_distance=128)
  config = dataclasses.replace(toy.KINDS["t5gemma"], logits_softcap=2.0, broadcast_dropout=False, **fields)
  params = foreign.random_params(config)
  huggingface.save(foreign.in_memory(config, params, vocabulary="bytes"), epath.Path(tmp_path), dtype="bfloat16")
  settings = json.loads((tmp_path / "config.json").read_text())
  for stack in ("encoder", "decoder"):
    assert [settings[stack][f"{name}_token_id"] for name in ("pad", "eos", "bos")] == [0, 1, 0]
  assert "model.decoder.layers.2.cross_attn.k_proj.weight" in foreign.safetensors(tmp_path)
  again = huggingface.open_foreign(str(tmp_path))
  assert again.model == dataclasses.replace(config, dtype="bfloat16")
  for path, value in foreign.read(again).items():
    np.testing.assert_array_equal(value, params[path].astype(ml_dtypes.bfloat16).astype(np.float32), err_msg=path)


def read_fields(model_type, **settings):
  settings = {"model_type": model_type} | settings
  return settings_lib.read_fields(settings_lib.family(settings, "there"), settings)


@pytest.mark.parametrize(
  ("settings", "activation"),
  [
    ({}, "relu"),
    ({"feed_forward_proj": "gated-gelu"}, "gated_gelu"),
    ({"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True}, "gated_gelu"),
    ({"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu", "is_gated_act": True}, "gated_gelu_exact"),
    ({"feed_forward_proj": "gated-gelu", "dense_act_fn": "silu"}, "gated_silu"),
    ({"feed_forward_proj": "gated-gelu", "is_gated_act": False}, "gelu_tanh"),
    ({"dense_act_fn": "gelu", "is_gated_act": False}, "gelu"),
  ],
)
def test_what_a_t5_says_of_its_activation_twice(settings, activation):
  """dense_act_fn and is_gated_act take precedence over feed_forward_proj in transformers 4 and 5."""
  assert read_fields("t5", **settings)["mlp_activation"] == activation
  family = settings_lib.FAMILIES["t5"]
  model = TransformerConfig(**(vars(toy.config()) | {"mlp_activation": activation}))
  assert settings_lib.read_fields(family, settings_lib.write_settings(family, model))["mlp_activation"] == activation


_BASES = {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}
_GEMMA3 = {"full_attention": {"rope_theta": 9.0}, "sliding_attention": {"rope_theta": 7.0}}


@pytest.mark.parametrize(
  ("model_type", "settings", "said"),
  [
    ("t5", {"tie_encoder_decoder": True}, "tie_encoder_decoder=True"),
    ("t5", {"feed_forward_proj": "gated-relu"}, "feed_forward_proj='gated-relu'"),
    ("t5", {"dense_act_fn": "mish"}, "dense_act_fn='mish'"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ("llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling={'type': 'linear'}: rope_type='linear' needs factor"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": "8"}}, "rope_scaling.factor='8' is not a number"),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 2.0, "extra": 1}}, "rope_scaling.extra=1: t2t does not"),
    (
      "llama",
      {"rope_scaling": {"type": "yarn", "factor": 2.0}},
      "rope_type='yarn' needs original_max_position_embeddings",
    ),
    (
      "llama",
      {"rope_scaling": {"type": "linear", "factor": 8.0}, "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
      "rope_scaling and rope_parameters: the values differ",
    ),
    (
      "llama",
      _BASES,
      r"rope_parameters.rope_theta=10000 and rope_theta=500000: the values differ, "
      r"and transformers 4 and 5 read different",
    ),
    (
      "mistral",
      {"rope_scaling": {"rope_theta": 7e3}, "rope_theta": 1e4},
      "rope_scaling.rope_theta=7000 and rope_theta",
    ),
    ("qwen3", {"rope_scaling": {"type": "longrope", "factor": 4.0}}, "rope_scaling.rope_type='longrope'"),
    ("qwen3", {"use_sliding_window": True}, "use_sliding_window=True"),
    ("llama", {"hidden_act": "relu2"}, "hidden_act='relu2'"),
    ("llama", {"mlp_bias": True}, "mlp_bias=True"),
    ("gemma", {"hidden_act": "silu", "hidden_activation": "gelu"}, "transformers reads only hidden_act"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
    (
      "gemma3_text",
      {"rope_parameters": {"rope_theta": 1e4}},
      "must have an entry for each kind of layer. Add these entries",
    ),
    ("gemma3_text", {"rope_parameters": _GEMMA3, "rope_theta": 8.0}, "full_attention.rope_theta=9 and rope_theta=8"),
    ("modernbert", {"rope_parameters": _GEMMA3, "local_rope_theta": 8.0}, "sliding_attention.rope_theta=7 and local"),
    ("modernbert", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    (
      "modernbert",
      {"layer_types": ["full_attention", "sliding_attention"] * 2, "global_attn_every_n_layers": 3},
      "transformers 5 reads layer_types, and transformers 4 reads global_attn_every_n_layers",
    ),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
    ("albert", {"num_hidden_groups": 2}, "num_hidden_groups=2"),
    ("deberta", {}, "relative_attention=False"),
    ("deberta", _DEBERTA | {"pos_att_type": "c2p|p2p"}, "pos_att_type='c2p|p2p'"),
    ("deberta", _DEBERTA | {"embedding_size": 128}, "embedding_size=128"),
    ("deberta", _DEBERTA | {"talking_head": True}, "talking_head=True"),
    ("deberta", _DEBERTA | {"max_relative_positions": 9}, "max_relative_positions=9: t2t supports only even"),
    ("deberta-v2", _DEBERTA | {"position_buckets": 512}, "position_buckets=512: t2t supports only less than 512"),
    ("deberta-v2", _DEBERTA | {"conv_kernel_size": 5}, "conv_kernel_size=5 and conv_groups=1"),
    ("deberta-v2", _DEBERTA | {"attention_head_size": 32}, "attention_head_size=32"),
    ("rembert", {"tie_word_embeddings": True}, "tie_word_embeddings=True"),
    ("mobilebert", {"normalization_type": "layer_norm"}, "normalization_type='layer_norm'"),
    ("mobilebert", {"use_bottleneck_attention": True}, "key_query_shared_bottleneck=True and use_bottleneck_att"),
    ("mobilebert", {"num_attention_heads": 3}, "intra_bottleneck_size=128 is not a multiple of the 3 heads"),
    ("mobilebert", {"embedding_size": 512}, "embedding_size=512: t2t supports only sizes below hidden_size=512"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
  ],
)
def test_what_a_config_says_that_t2t_cannot_compute_is_refused_by_name(model_type, settings, said):
  """Also values given twice, if versions of transformers read different ones."""
  with pytest.raises(hf_mappings.Unknown, match=said):
    read_fields(model_type, **settings)


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
  ("rope", "fields"),
  [
    ({"type": "linear", "factor": 8}, {"rotary_scaling": "linear", "rotary_scaling_factor": 8.0}),
    (
      _LLAMA3_ROPE | {"factor": 32.0, "low_freq_factor": 2},
      {"rotary_scaling": "llama3", "rotary_scaling_low_turns": 2.0, "rotary_scaling_original_length": 8192},
    ),
    (
      _YARN | {"beta_fast": 64, "truncate": False},
      {"rotary_scaling_beta_fast": 64.0, "rotary_scaling_truncate": False},
    ),
    # DeepSeek's factors of the logits.
    (
      _YARN | {"factor": math.e, "mscale": 2.0, "mscale_all_dim": 1.0},
      {"rotary_scaling_attention_factor": pytest.approx(1.2 / 1.1)},
    ),
  ],
)
def test_scaled_rotary_positions_are_read_and_written(rope, fields):
  """In either dict, and what is written is read again."""
  settings = {"rope_parameters": rope | {"rope_theta": 7e3}}
  found = read_fields("llama", **settings)
  assert found == read_fields("llama", rope_scaling=rope, rope_theta=7e3)
  assert found.items() >= fields.items() and found["rotary_base"] == 7e3
  family = settings_lib.FAMILIES["llama"]
  model = TransformerConfig(**found)
  written = settings_lib.write_settings(family, model)
  assert "rope_parameters" not in written  # version 4 reads rope_scaling only
  assert TransformerConfig(**settings_lib.read_fields(family, written)) == model


def test_bases_of_rotary_positions_wherever_they_stand():
  """At the top level, or in either dict of transformers 5; twice if equal."""
  inside = {"rope_theta": 5e5, "rope_type": "default"}
  for settings in (
    {"rope_theta": 5e5},
    {"rope_parameters": inside},
    {"rope_scaling": inside},
    {"rope_theta": 5e5, "rope_parameters": inside},
  ):
    assert read_fields("llama", **settings)["rotary_base"] == 5e5
  assert read_fields("llama")["rotary_base"] == 1e4
  assert settings_lib.FAMILIES["gemma"].notes({"hidden_act": "gelu"})
  assert not settings_lib.FAMILIES["gemma"].notes({"hidden_act": "gelu_pytorch_tanh"})


@pytest.mark.parametrize("name", ["gemma3", "t5gemma2", "mbart"])
def test_a_model_that_t2t_could_not_be_says_which_part(name):
  """The message is specific, not only about an unknown name."""
  words = "(the model includes .* t2t reads|t2t does not support (T5|mB))"
  with pytest.raises(UserError, match=f"model_type='{name}': {words}"):
    settings_lib.family({"model_type": name}, "there")


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_a_published_config_is_the_size_of_that_name(name):
  """Equal to t2t's preset, up to dropout, dtype and text lengths."""
  settings, size = PUBLISHED[name]
  family = settings_lib.family(settings, name)
  fields = settings_lib.read_fields(family, settings)
  others = dict(dropout_rate=0.0, dtype="float32")
  if size["positions"] != "learned":
    others |= dict(max_length=0)
  found, expected = (vars(TransformerConfig(**(each | others))) for each in (fields, size))
  # Models without these weights.
  if not size["local_rotary_base"]:
    found["local_rotary_base"] = 0.0
  assert found == expected
  # No key is ignored silently.
  assert not set(settings) - {*family.keys, *family.must, *family.reads, *settings_lib.HARMLESS}


def test_positions_of_a_roberta_count_from_its_padding_id():
  """For any padding id of the vocabulary; the rows before are not positions."""
  settings = PUBLISHED["roberta-base"][0] | {"pad_token_id": 4}
  family = settings_lib.family(settings, "roberta")
  model = TransformerConfig(**settings_lib.read_fields(family, settings))
  assert (model.position_offset, model.max_length) == (5, 509)
  written = settings_lib.write_settings(family, model)
  assert (written["pad_token_id"], written["max_position_embeddings"]) == (4, 514)


@pytest.mark.parametrize("pad", [0, 3])
def test_positions_are_written_behind_the_padding_id_of_the_vocabulary(pad, tmp_path):
  """The rows are moved, and no position is lost."""
  pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"abcdefgh"]
  pieces.remove("<pad>")
  pieces.insert(pad, "<pad>")
  vocabulary = {"added_tokens": [], "model": {"type": "WordLevel", "vocab": {p: i for i, p in enumerate(pieces)}}}
  vocabulary["model"]["unk_token"] = "<unk>"
  (tmp_path / "tokenizer.json").write_text(json.dumps(vocabulary))
  config = huggingface.open_foreign(str(GOLDEN / "roberta")).model
  assert config.position_offset == 2
  params = foreign.random_params(config)
  made = foreign.in_memory(config, params, vocabulary=tmp_path / "tokenizer.json")
  notes = huggingface.save(made, epath.Path(tmp_path / "hf"))
  assert any("positions start after the padding id, which is" in note for note in notes)
  settings = json.loads((tmp_path / "hf" / "config.json").read_text())
  assert (settings["pad_token_id"], settings["max_position_embeddings"]) == (pad, config.max_length + pad + 1)
  again = huggingface.open_foreign(str(tmp_path / "hf"))
  assert again.model == dataclasses.replace(config, position_offset=pad + 1, dtype="float32")
  for path, value in foreign.read(again).items():
    expected = params[path]
    if path == "embed/positions":
      value, expected = value[pad + 1 :], expected[2:]
    np.testing.assert_array_equal(value, expected, err_msg=path)


# ---- Import errors ---------------------------------------------------------------------------------------------------


def refused(folder, *matches):
  with pytest.raises(UserError) as error:
    huggingface.open_foreign(str(folder), where="--from ")
  for text in matches:
    assert text in str(error.value), str(error.value)


def rewrite(folder, change):
  """Replaces the tensors of a folder, written according to the format's description."""
  foreign.write_safetensors(folder / "model.safetensors", change(foreign.safetensors(folder)))


NORM = "decoder.final_layer_norm.weight"


def test_a_tensor_that_is_missing(folder):
  """The message contains its name, its shape, and the supported classes."""
  rewrite(folder, lambda found: {name: x for name, x in found.items() if name != NORM})
  refused(folder, f"--from {folder}: the tensors do not match", f"{NORM}: missing; expected [16]")
  edit(folder / "config.json", architectures=["T5EncoderModel"])
  refused(folder, "t2t reads a T5ForConditionalGeneration", "this is a T5EncoderModel")


def test_a_tensor_too_many(folder):
  """The message contains its name and shape."""
  rewrite(folder, lambda found: found | {"classifier.weight": np.ones((3, 2), np.float32)})
  refused(folder, "classifier.weight: unknown; found [3, 2]")


def test_a_tensor_of_another_shape(folder):
  """The message contains name, expected and found shape; of many differences the first few."""
  rewrite(folder, lambda found: found | {NORM: np.ones(15, np.float32)})
  refused(folder, f"{NORM}: expected [16], found [15]")
  edit(folder / "config.json", d_ff=33)
  refused(folder, "block.0.layer.2.DenseReluDense.wi_0.weight: expected [33, 16], found [32, 16]", "and 11 more")


def test_a_model_that_t2t_does_not_know(folder):
  """The message lists the supported models, and the nearest."""
  edit(folder / "config.json", model_type="lama")
  refused(folder, "model_type='lama': unsupported. t2t reads t5, mt5, bart, marian, bert,", "did you mean llama?")
  edit(folder / "config.json", model_type="t5", feed_forward_proj="gated-mish")
  refused(folder, "config.json: feed_forward_proj='gated-mish': t2t supports only relu, gelu")


def test_a_value_that_t2t_cannot_compute(tmp_path):
  """Dynamically scaled positions are an error, because they would give other outputs."""
  shutil.copytree(GOLDEN / "llama3", tmp_path / "llama")
  rope = {"rope_type": "dynamic", "factor": 8.0, "rope_theta": 500_000.0}
  edit(tmp_path / "llama" / "config.json", rope_parameters=rope)
  refused(tmp_path / "llama", "rope_parameters.rope_type='dynamic': t2t supports only default, linear, llama3, yarn")
  edit(tmp_path / "llama" / "config.json", rope_parameters=None, attention_bias=True)
  refused(tmp_path / "llama", "attention_bias=True: t2t supports only False")


@pytest.mark.parametrize("length", [0, 5, 8, 100, -1])
def test_a_file_that_was_cut_off(folder, length):
  """A truncation at any byte, including the last."""
  path = folder / "model.safetensors"
  path.write_bytes(path.read_bytes()[:length])
  refused(folder, "model.safetensors ", "again")


def test_a_file_that_shrinks_while_it_is_read(folder):
  """The header was read before the truncation."""
  found = huggingface.open_foreign(str(folder))
  path = folder / "model.safetensors"
  path.write_bytes(path.read_bytes()[:-1000])
  with pytest.raises(UserError, match=r"model.safetensors ends within lm_head.weight: the file was truncated"):
    foreign.read(found)


def test_weights_that_were_quantised(folder):
  """They are not floats."""
  path = folder / "model.safetensors"
  content = path.read_bytes()
  path.write_bytes(content.replace(b'"F32"', b'"I32"'))
  with pytest.raises(
    UserError, match=r"shared.weight has the dtype I32, but parameters must have one of F64, F32, F16, BF16. If"
  ):
    huggingface.open_foreign(str(folder)).tensors["embed/table"].read()


def test_a_folder_without_a_config(folder, tmp_path):
  """Weights without config.json, and a config.json that is not JSON."""
  (folder / "config.json").unlink()
  assert huggingface.is_huggingface(str(folder))
  refused(folder, f"--from {folder} contains no config.json. Give a folder that `save_pretrained` wrote")
  (folder / "config.json").write_text('{"model_type": ')
  refused(folder, "config.json cannot be read as JSON")
  assert not huggingface.is_huggingface(str(tmp_path / "nothing"))


def test_weights_that_are_pickled(folder):
  """The message contains a command that converts them to safetensors."""
  (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
  assert huggingface.is_huggingface(str(folder))
  refused(folder, "pickled (pytorch_model.bin)", 'python -c "import pathlib, torch', f"pathlib.Path('{folder}')")
  (folder / "pytorch_model.bin").rename(folder / "other.pt")
  refused(folder, "pickled (other.pt)", 'python -c "import transformers', f"save_pretrained('{folder}'")
  (folder / "other.pt").unlink()
  refused(folder, "contains neither model.safetensors nor model.safetensors.index.json")


def test_an_index_that_does_not_hold(tmp_path):
  """It refers to a missing file, or to a tensor that its file lacks."""
  path = tmp_path / "llama"
  shutil.copytree(GOLDEN / "llama3", path)
  index = json.loads((path / "model.safetensors.index.json").read_text())
  index["weight_map"]["lost"] = "model-00001-of-00002.safetensors"
  edit(path / "model.safetensors.index.json", weight_map=index["weight_map"])
  refused(path, "refers to lost, but model-00001-of-00002.safetensors does not contain this tensor")
  edit(path / "model.safetensors.index.json", weight_map=index["weight_map"] | {"lost": "../theirs.safetensors"})
  refused(path, "model.safetensors.index.json refers to '../theirs.safetensors', which is not a file of this folder")
  edit(path / "model.safetensors.index.json", weight_map=index["weight_map"])
  (path / "model-00002-of-00002.safetensors").unlink()
  refused(
    path, "model.safetensors.index.json refers to 2 files, but 1 of them are missing: model-00002-of-00002.safetensors"
  )
  edit(path / "model.safetensors.index.json", weight_map=None)
  refused(path, "model.safetensors.index.json has no 'weight_map'")


def test_what_a_bart_may_have_besides(tmp_path):
  """A bias of the logits is kept if it is not zero; a bare model uses the embedding for its logits."""
  path, bias = tmp_path / "bart", "final_logits_bias"
  shutil.copytree(GOLDEN / "bart", path)
  expected = foreign.read(huggingface.open_foreign(str(path)))
  assert not np.any(foreign.safetensors(path)[bias])
  half = np.float32([[0.5] + [0.0] * 40])
  rewrite(path, lambda found: found | {bias: half})
  biased = huggingface.open_foreign(str(path))
  assert biased.model.logits_bias
  np.testing.assert_array_equal(biased.tensors["head/bias"].read(), half[0])
  huggingface.save(biased, epath.Path(tmp_path / "again"))
  np.testing.assert_array_equal(foreign.safetensors(tmp_path / "again")[bias], half)
  bare = lambda found: {name.removeprefix("model."): x for name, x in found.items() if name.startswith("model.")}
  rewrite(path, bare)
  edit(path / "config.json", architectures=["BartModel"], decoder_start_token_id=2)
  found = huggingface.open_foreign(str(path))
  assert found.model.vocabulary_head
  for name, value in foreign.read(found).items():
    np.testing.assert_array_equal(value, expected[name], err_msg=name)
  assert any("decoder_start_token_id=2: t2t starts with the vocabulary's BOS" in note for note in found.notes)
  edit(path / "config.json", decoder_ffn_dim=12)
  refused(path, "encoder_ffn_dim=10 and decoder_ffn_dim=12: t2t supports only equal values of these keys")


def test_two_matrices_where_the_config_has_one(tmp_path):
  """Tied in config.json, but not in the weights: an error with T5's scale; other families keep both."""
  path = tmp_path / "t5"
  shutil.copytree(GOLDEN / "t5", path)
  other = {"lm_head.weight": np.ones((41, 6), np.float32)}
  rewrite(path, lambda found: found | other)
  refused(path, "lm_head.weight differs from shared.weight")
  rewrite(path, lambda found: found | {"lm_head.weight": found["shared.weight"]})
  assert huggingface.open_foreign(str(path)).model.tied_logits
  path = tmp_path / "gpt2"
  shutil.copytree(GOLDEN / "gpt2", path)
  rewrite(path, lambda found: found | other)
  found = huggingface.open_foreign(str(path))
  assert not found.model.tied_logits
  assert any("lm_head.weight is another matrix: lm_head.weight is kept" in note for note in found.notes)


@pytest.mark.parametrize("name", ["t5", "t5_1_1", "mt5", "bart"])
def test_a_stack_with_an_embedding_of_its_own(name, tmp_path):
  """t2t has one embedding for both stacks: equal copies are merged, different ones are an error."""
  path = tmp_path / name
  shutil.copytree(GOLDEN / name, path)
  shared = "model.shared.weight" if name == "bart" else "shared.weight"
  stacks = [shared.replace("shared", f"{stack}.embed_tokens") for stack in ("encoder", "decoder")]
  expected = foreign.read(huggingface.open_foreign(str(path)))
  weights = foreign.safetensors(path)
  for copy in stacks:
    rewrite(path, lambda found, copy=copy: weights | {copy: weights[shared] + 1})
    refused(path, f"{copy} differs from {shared}", "t2t's model has only one embedding")
    rewrite(path, lambda found, copy=copy: weights | {copy: weights[shared]})
    np.testing.assert_array_equal(huggingface.open_foreign(str(path)).tensors["embed/table"].read(), weights[shared])
  alone = {key: x for key, x in weights.items() if key != shared}
  rewrite(path, lambda found: alone | {stacks[0]: weights[shared], stacks[1]: weights[shared] + 1})
  refused(path, f"{stacks[1]} differs from {stacks[0]}")
  rewrite(path, lambda found: alone | dict.fromkeys(stacks, weights[shared]))
  for each, value in foreign.read(huggingface.open_foreign(str(path))).items():
    np.testing.assert_array_equal(value, expected[each], err_msg=each)


def test_two_tensors_that_come_under_one_name(tmp_path):
  """Under an old and a new name, or in two files: compared in any dtype, and an error if they differ."""
  path, old, new = tmp_path / "bert", "bert.embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.weight"
  shutil.copytree(GOLDEN / "bert", path)
  weights = foreign.safetensors(path)
  rewrite(path, lambda found: weights | {old: weights[new]})
  huggingface.open_foreign(str(path))
  rewrite(path, lambda found: weights | {old: weights[new] * 2})
  refused(path, f"two different tensors have the name {new}: {new} of model.safetensors and {old} of model.safetensors")
  # In the files of an index.
  path, name = tmp_path / "gpt2", "transformer.ln_f.bias"
  shutil.copytree(GOLDEN / "gpt2", path)
  weights = foreign.safetensors(path)
  (path / "model.safetensors").unlink()
  others = {key: x for key, x in weights.items() if key != name}
  index = {"weight_map": dict.fromkeys(others, "1.safetensors") | {name: "2.safetensors"}}
  (path / "model.safetensors.index.json").write_text(json.dumps(index))
  foreign.write_safetensors(path / "1.safetensors", weights)
  foreign.write_safetensors(path / "2.safetensors", {name: weights[name]})
  huggingface.open_foreign(str(path))
  foreign.write_safetensors(path / "2.safetensors", {name: weights[name] + 1})
  refused(path, f"two different tensors have the name {name}: {name} of 1.safetensors and {name} of 2.safetensors")
  # An index, and a whole file, which transformers prefers.
  foreign.write_safetensors(path / "2.safetensors", {name: weights[name]})
  foreign.write_safetensors(path / "model.safetensors", weights)
  huggingface.open_foreign(str(path))
  foreign.write_safetensors(path / "model.safetensors", weights | {name: weights[name] + 1})
  refused(path, f"model.safetensors and the files of model.safetensors.index.json differ in {name}")
  foreign.write_safetensors(path / "model.safetensors", others)
  refused(path, f"model.safetensors and the files of model.safetensors.index.json differ in {name}")


def test_copies_in_two_dtypes_are_compared_by_their_numbers(tmp_path):
  """A float32 head with a bfloat16 embedding is tied if the values are equal."""
  path, table, copy = tmp_path / "gpt2", "transformer.wte.weight", "lm_head.weight"
  shutil.copytree(GOLDEN / "gpt2", path)
  weights = foreign.safetensors(path)
  rounded = weights[table].astype(safetensors.DTYPES["BF16"])
  for number, tied in ((0.0, True), (1.0, False)):
    with safetensors.SafetensorsWriter(
      epath.Path(path / "1.safetensors"), {table: rounded.shape}, dtype="BF16"
    ) as writer:
      writer.write(table, rounded)
    others = {key: x for key, x in weights.items() if key != table} | {copy: rounded.astype(np.float32) + number}
    foreign.write_safetensors(path / "2.safetensors", others)
    index = dict.fromkeys(others, "2.safetensors") | {table: "1.safetensors"}
    (path / "model.safetensors").unlink(missing_ok=True)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert huggingface.open_foreign(str(path)).model.tied_logits == tied


def test_a_vocabulary_and_its_rows(tmp_path):
  """Rows after the last id are reported as padding; ids without a row are an error; sentinels count."""
  path = tmp_path / "bert"
  shutil.copytree(GOLDEN / "bert", path)
  assert any("there is no vocabulary beside the model" in note for note in huggingface.open_foreign(str(path)).notes)
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
  (path / "vocab.txt").write_text("\n".join(pieces))
  padded = "vocabulary: 31 ids (0 sentinels included), 41 rows: the last 10 rows are padding, and are kept"
  found = huggingface.open_foreign(str(path))
  assert padded in found.notes
  assert (found.vocabulary, found.extra_ids, found.model.vocab_size) == (str(path / "vocab.txt"), 0, 41)
  for number in (10, 11):
    listed = {"additional_special_tokens": [f"<extra_id_{i}>" for i in range(number)]}
    (path / "tokenizer_config.json").write_text(json.dumps(listed))
    if number == 10:
      found = huggingface.open_foreign(str(path))
      assert "vocabulary: 41 ids (10 sentinels included), 41 rows" in found.notes
      assert found.extra_ids == 10
  refused(path, "the tokenizer", "has 42 ids (11 sentinels included), but the embedding has only 41 rows")
  (path / "tokenizer_config.json").write_text("{")
  refused(path, "tokenizer_config.json cannot be read as JSON")
  (path / "tokenizer_config.json").unlink()
  (path / "spiece.model").write_bytes(b"no model")
  refused(path, "spiece.model is not a SentencePiece model")


@pytest.mark.parametrize("extra_ids", [0, 5])
def test_a_vocabulary_goes_there_and_back(extra_ids, tmp_path):
  """Bytes, or pieces in a file, each with sentinels; config.json contains their ids."""
  (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"]))
  bert = huggingface.open_foreign(str(GOLDEN / "bert")).model
  for config, spec, size in ((toy.config(vocab_size=300), "bytes", 259), (bert, str(tmp_path / "vocab.txt"), 7)):
    out = epath.Path(tmp_path / config.architecture)
    params = foreign.random_params(config)
    huggingface.save(foreign.in_memory(config, params, vocabulary=spec, extra_ids=extra_ids), out)
    found = huggingface.open_foreign(str(out))
    expected = "bytes" if spec == "bytes" else "tokenizer.json"  # preferred to the vocab.txt beside it
    assert (epath.Path(found.vocabulary).name, found.extra_ids) == (expected, extra_ids)
    assert any(f"vocabulary: {size + extra_ids} ids" in note for note in found.notes)
  ids = json.loads((out / "config.json").read_text())
  assert [ids[f"{kind}_token_id"] for kind in ("pad", "cls", "sep", "eos", "bos")] == [0, 2, 3, 3, None]


def test_a_vocabulary_with_more_ids_than_rows_is_not_written(tmp_path):
  """The same error as for an import."""
  made = foreign.in_memory(CONFIG, foreign.random_params(CONFIG), vocabulary="bytes")
  with pytest.raises(UserError, match="config.model.vocab_size=40 is too small: the vocabulary's largest id is 258"):
    huggingface.save(made, epath.Path(tmp_path / "out"))
  assert not list(tmp_path.iterdir())


def test_names_that_older_versions_gave(tmp_path):
  """Bare models lack the prefix, TensorFlow's norms have gamma and beta, and buffers were saved."""
  path = tmp_path / "bert"
  shutil.copytree(GOLDEN / "bert", path)
  expected = foreign.read(huggingface.open_foreign(str(path)))
  tensorflow = lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
    "LayerNorm.bias", "LayerNorm.beta"
  )
  buffer = {"bert.embeddings.position_ids": np.arange(15, dtype=np.float32)}
  rewrite(path, lambda found: {tensorflow(name): x for name, x in found.items()} | buffer)
  found = huggingface.open_foreign(str(path))
  path = tmp_path / "gpt2"
  shutil.copytree(GOLDEN / "gpt2", path)
  for each, value in foreign.read(found).items():
    np.testing.assert_array_equal(value, expected[each])
  rewrite(path, lambda found: {name.removeprefix("transformer."): x for name, x in found.items()})
  assert (
    huggingface.open_foreign(str(path)).tensors.keys() == huggingface.open_foreign(str(GOLDEN / "gpt2")).tensors.keys()
  )


# ---- Export errors ---------------------------------------------------------------------------------------------------


def test_a_model_that_transformers_does_not_have(tmp_path):
  """The message contains the differing fields."""
  for config, reason in (
    (toy.KINDS["modern_t5"], r"config.model.positions='rotary' \(transformers 'relative'\)"),
    (
      toy.KINDS["prefix_lm"],
      r"gpt2: .*='gated_gelu': transformers supports only gelu, gelu_tanh, relu, silu"
      r"\n  mpt: .*\n  llama: config.*bidirectional_prefix=True",
    ),
    (toy.KINDS["shared_stacks"], r"config.model.share_stacks=True \(transformers False\)"),
    (
      toy.config(tied_logits=True, init_scale=0.1),
      "config.model.init_scale=0.1: transformers scales tied logits of T5",
    ),
  ):
    with pytest.raises(UserError, match=f"memory: no model of transformers that t2t writes(.|\n)*{reason}"):
      huggingface.save(foreign.in_memory(config, {}), epath.Path(tmp_path / "out"))


@pytest.mark.parametrize("save", [huggingface.save, tensor_writer.save])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_what_breaks_off_leaves_nothing(save, error, tmp_path):
  """Neither the folder nor temporary files are left; a full disk is reported."""
  written = []

  def advance(nbytes, count):
    written.append(nbytes)
    if len(written) == 5:
      raise error

  with pytest.raises((KeyboardInterrupt, UserError)) as found:
    save(foreign.in_memory(CONFIG, foreign.random_params(CONFIG)), epath.Path(tmp_path / "out"), advance=advance)
  assert not list(tmp_path.iterdir())
  if isinstance(error, OSError):
    assert str(found.value) == (
      f"{tmp_path}/out: the disk became full during the write, and nothing was kept. Free some space, or give a folder"
      " on another disk."
    )


def test_what_a_killed_conversion_left_is_removed_by_the_next(tmp_path, capfd):
  """For the same path; an output in progress, and one without a lock, are kept."""
  program = """
import os, signal, sys
from etils import epath
from t2t.convert import atomic_output
with atomic_output.whole(epath.Path(sys.argv[1]), 10) as folder:
  (folder / "model").write_text("half of it")
  os.kill(os.getpid(), signal.SIGKILL)
"""
  subprocess.run([sys.executable, "-c", program, str(tmp_path / "out")], check=False)
  left = sorted(path.name for path in tmp_path.iterdir())
  assert len(left) == 2 and left[1] == f"{left[0]}.lock"
  (tmp_path / "out.part-without").mkdir()
  with atomic_output.whole(epath.Path(tmp_path / "out"), 10) as folder:
    assert f"{left[0]}: removing the incomplete output of a killed conversion" in capfd.readouterr().err
    (folder / "model").write_text("all of it")
    with atomic_output.whole(epath.Path(tmp_path / "out"), 10):
      assert (folder / "model").exists()
  assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.part-without"]
  assert (tmp_path / "out" / "model").read_text() == "all of it"


@pytest.mark.parametrize("save", [huggingface.save, tensor_writer.save])
def test_what_has_no_room_is_not_begun(save, tmp_path, monkeypatch):
  """The disk is too small, or the folder is not empty."""
  made = foreign.in_memory(CONFIG, foreign.random_params(CONFIG))
  usage = shutil.disk_usage(tmp_path)
  monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000))
  with pytest.raises(UserError, match=r"out needs [\d.]+ kB, but the disk of .* has 1 kB free"):
    save(made, epath.Path(tmp_path / "out"))
  (tmp_path / "out").mkdir()
  (tmp_path / "out" / "mine.txt").write_text("precious")
  with pytest.raises(
    UserError, match="out exists and is not an empty folder. Give another folder, or delete .*out first"
  ):
    save(made, epath.Path(tmp_path / "out"))
  assert [path.name for path in tmp_path.rglob("*")] == ["out", "mine.txt"]


def test_every_table_is_read_both_ways():
  """Names in a family are unique, and each t2t path exists in some model."""
  for family in settings_lib.FAMILIES.values():
    ours = [path for value in family.names.values() for path in ([value] if isinstance(value, str) else value)]
    assert len(ours) == len(set(ours))
    assert set(family.copies.values()) <= set(family.names)
    assert isinstance(family, hf_mappings.Family)
