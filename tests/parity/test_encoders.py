"""t2t's BERT, RoBERTa, ALBERT and ModernBERT against Hugging Face's, with the same random weights.

Runs where torch and transformers are installed (tests/parity/requirements.txt).
"""

import jax.numpy as jnp
import numpy as np
import parity
from parity import transformers
import pytest
import toy

from t2t.models import sizes
from t2t.models.config import TransformerConfig

# Every size is another one, and none is a power of two; all other fields are those of the family.
SHAPE = dict(vocab_size=53, embed_dim=18, num_heads=3, head_dim=6, mlp_dim=28, num_encoder_layers=3)
SHAPE |= dict(dtype="float32", dropout_rate=0.0)

BERT = {
  "bert.embeddings.word_embeddings.weight": "embed/table",
  "bert.embeddings.position_embeddings.weight": "embed/positions",
  "bert.embeddings.token_type_embeddings.weight": "embed/segments",
  "bert.embeddings.LayerNorm.weight": "embed/norm/scale",
  "bert.embeddings.LayerNorm.bias": "embed/norm/bias",
  "bert.encoder.layer.{}.attention.self.query.weight": "encoder/layers/self_attention/query",
  "bert.encoder.layer.{}.attention.self.query.bias": "encoder/layers/self_attention/query_bias",
  "bert.encoder.layer.{}.attention.self.key.weight": "encoder/layers/self_attention/key",
  "bert.encoder.layer.{}.attention.self.key.bias": "encoder/layers/self_attention/key_bias",
  "bert.encoder.layer.{}.attention.self.value.weight": "encoder/layers/self_attention/value",
  "bert.encoder.layer.{}.attention.self.value.bias": "encoder/layers/self_attention/value_bias",
  "bert.encoder.layer.{}.attention.output.dense.weight": "encoder/layers/self_attention/out",
  "bert.encoder.layer.{}.attention.output.dense.bias": "encoder/layers/self_attention/out_bias",
  "bert.encoder.layer.{}.attention.output.LayerNorm.weight": "encoder/layers/self_attention_norm/scale",
  "bert.encoder.layer.{}.attention.output.LayerNorm.bias": "encoder/layers/self_attention_norm/bias",
  "bert.encoder.layer.{}.intermediate.dense.weight": "encoder/layers/mlp/up",
  "bert.encoder.layer.{}.intermediate.dense.bias": "encoder/layers/mlp/up_bias",
  "bert.encoder.layer.{}.output.dense.weight": "encoder/layers/mlp/down",
  "bert.encoder.layer.{}.output.dense.bias": "encoder/layers/mlp/down_bias",
  "bert.encoder.layer.{}.output.LayerNorm.weight": "encoder/layers/mlp_norm/scale",
  "bert.encoder.layer.{}.output.LayerNorm.bias": "encoder/layers/mlp_norm/bias",
  "bert.pooler.dense.weight": "pooler",
  "bert.pooler.dense.bias": "pooler_bias",
  "cls.predictions.transform.dense.weight": "head/transform",
  "cls.predictions.transform.dense.bias": "head/transform_bias",
  "cls.predictions.transform.LayerNorm.weight": "head/norm/scale",
  "cls.predictions.transform.LayerNorm.bias": "head/norm/bias",
  "cls.predictions.bias": "head/bias",
}

# The same stack under another name, without a pooler, and another name for each part of the head.
ROBERTA = {
  name.replace("bert.", "roberta.", 1): ours
  for name, ours in BERT.items()
  if not name.startswith(("cls.", "bert.pooler."))
} | {
  "lm_head.dense.weight": "head/transform",
  "lm_head.dense.bias": "head/transform_bias",
  "lm_head.layer_norm.weight": "head/norm/scale",
  "lm_head.layer_norm.bias": "head/norm/bias",
  "lm_head.bias": "head/bias",
}

_ALBERT_LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"
ALBERT = {
  "albert.embeddings.word_embeddings.weight": "embed/table",
  "albert.embeddings.position_embeddings.weight": "embed/positions",
  "albert.embeddings.token_type_embeddings.weight": "embed/segments",
  "albert.embeddings.LayerNorm.weight": "embed/norm/scale",
  "albert.embeddings.LayerNorm.bias": "embed/norm/bias",
  "albert.encoder.embedding_hidden_mapping_in.weight": "embed/projection",
  "albert.encoder.embedding_hidden_mapping_in.bias": "embed/projection_bias",
  f"{_ALBERT_LAYER}.attention.query.weight": "encoder/layer/self_attention/query",
  f"{_ALBERT_LAYER}.attention.query.bias": "encoder/layer/self_attention/query_bias",
  f"{_ALBERT_LAYER}.attention.key.weight": "encoder/layer/self_attention/key",
  f"{_ALBERT_LAYER}.attention.key.bias": "encoder/layer/self_attention/key_bias",
  f"{_ALBERT_LAYER}.attention.value.weight": "encoder/layer/self_attention/value",
  f"{_ALBERT_LAYER}.attention.value.bias": "encoder/layer/self_attention/value_bias",
  f"{_ALBERT_LAYER}.attention.dense.weight": "encoder/layer/self_attention/out",
  f"{_ALBERT_LAYER}.attention.dense.bias": "encoder/layer/self_attention/out_bias",
  f"{_ALBERT_LAYER}.attention.LayerNorm.weight": "encoder/layer/self_attention_norm/scale",
  f"{_ALBERT_LAYER}.attention.LayerNorm.bias": "encoder/layer/self_attention_norm/bias",
  f"{_ALBERT_LAYER}.ffn.weight": "encoder/layer/mlp/up",
  f"{_ALBERT_LAYER}.ffn.bias": "encoder/layer/mlp/up_bias",
  f"{_ALBERT_LAYER}.ffn_output.weight": "encoder/layer/mlp/down",
  f"{_ALBERT_LAYER}.ffn_output.bias": "encoder/layer/mlp/down_bias",
  f"{_ALBERT_LAYER}.full_layer_layer_norm.weight": "encoder/layer/mlp_norm/scale",
  f"{_ALBERT_LAYER}.full_layer_layer_norm.bias": "encoder/layer/mlp_norm/bias",
  "albert.pooler.weight": "pooler",
  "albert.pooler.bias": "pooler_bias",
  "predictions.dense.weight": "head/transform",
  "predictions.dense.bias": "head/transform_bias",
  "predictions.LayerNorm.weight": "head/norm/scale",
  "predictions.LayerNorm.bias": "head/norm/bias",
  "predictions.bias": "head/bias",
}

_ATTENTION = tuple(f"encoder/layers/self_attention/{name}" for name in ("query", "key", "value"))
MODERN_BERT = {
  "model.embeddings.tok_embeddings.weight": "embed/table",
  "model.embeddings.norm.weight": "embed/norm/scale",
  "model.layers.{}.attn_norm.weight": "encoder/layers/self_attention_norm/scale",
  "model.layers.{}.attn.Wqkv.weight": _ATTENTION,
  "model.layers.{}.attn.Wo.weight": "encoder/layers/self_attention/out",
  "model.layers.{}.mlp_norm.weight": "encoder/layers/mlp_norm/scale",
  "model.layers.{}.mlp.Wi.weight": ("encoder/layers/mlp/gate", "encoder/layers/mlp/up"),
  "model.layers.{}.mlp.Wo.weight": "encoder/layers/mlp/down",
  "model.final_norm.weight": "encoder/norm/scale",
  "head.dense.weight": "head/transform",
  "head.norm.weight": "head/norm/scale",
  "decoder.bias": "head/bias",
}


def shape(config: TransformerConfig) -> dict:
  """What all of their configs call alike."""
  return dict(
    vocab_size=config.vocab_size,
    hidden_size=config.embed_dim,
    num_hidden_layers=config.num_encoder_layers,
    num_attention_heads=config.num_heads,
    intermediate_size=config.mlp_dim,
    attn_implementation="eager",
  )


def learned(config: TransformerConfig) -> dict:
  """And those with learned positions."""
  rows = config.max_length + config.position_offset
  return shape(config) | dict(
    max_position_embeddings=rows,
    type_vocab_size=config.segment_types,
    layer_norm_eps=config.norm_epsilon,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
  )


def bert():
  config = TransformerConfig(**(sizes.bert("base") | SHAPE | dict(max_length=40)))
  theirs = transformers.BertForPreTraining(transformers.BertConfig(**learned(config)))
  unread = ("cls.seq_relationship.weight", "cls.seq_relationship.bias")
  return parity.pair(config, theirs, BERT, unread=unread)


def roberta():
  config = TransformerConfig(**(sizes.roberta("base") | SHAPE | dict(max_length=40)))
  theirs = transformers.RobertaForMaskedLM(transformers.RobertaConfig(**learned(config), pad_token_id=1))
  return parity.pair(config, theirs, ROBERTA)


def albert():
  config = TransformerConfig(**(sizes.albert("base") | SHAPE | dict(max_length=40, embedding_dim=11)))
  theirs = transformers.AlbertForPreTraining(
    transformers.AlbertConfig(**learned(config), embedding_size=11, hidden_act="gelu_new")
  )
  unread = ("sop_classifier.classifier.weight", "sop_classifier.classifier.bias")
  return parity.pair(config, theirs, ALBERT, unread=unread)


def modern_bert():
  # Global, local, local, global, local: sequences are longer than three windows.
  config = TransformerConfig(**(sizes.modern_bert("base") | SHAPE | dict(num_encoder_layers=5, attention_window=4)))
  theirs = transformers.ModernBertForMaskedLM(
    transformers.ModernBertConfig(
      **shape(config),
      local_attention=2 * config.attention_window,
      global_attn_every_n_layers=config.global_attention_every,
      norm_eps=config.norm_epsilon,
      pad_token_id=0,
    )
  )
  return parity.pair(config, theirs, MODERN_BERT, absent=("model.layers.0.attn_norm.weight",))


FAMILIES = {"bert": bert, "roberta": roberta, "albert": albert, "modern_bert": modern_bert}
# family -> the id of padding
PADDING = {"roberta": 1}


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request):
  return request.param


@pytest.fixture(scope="module")
def pair(family):
  return FAMILIES[family]()


@pytest.fixture(scope="module", params=[((37, 23, 40), 40), ((5, 9, 1), 11)], ids=["long", "short"])
def batch(request, family):
  lengths, length = request.param
  made = toy.batch(lengths, (1,) * len(lengths), padded_to=(length, 1), architecture="encoder_only")
  if family in PADDING:
    # Their positions count what is not padding by its id, so that id 1 ends no sequence; ours go by segment ids.
    tokens = made["encoder_input_tokens"]
    made["encoder_segment_ids"] = (tokens > 0).astype(jnp.int32)
    made["encoder_input_tokens"] = jnp.where(tokens > 0, jnp.where(tokens == toy.EOS, 2, tokens), PADDING[family])
  if family in ("roberta", "modern_bert"):
    del made["encoder_token_types"]
  assert np.any(np.asarray(made["encoder_loss_weights"]))
  return made


def test_hidden_states_and_logits_are_theirs(family, pair, batch):
  """At every position that is not padding; and the pooler's vector, where there is one."""
  parity.assert_same_hidden_states(pair, batch, pooled=family in ("bert", "albert"))
  parity.assert_same_logits(pair, batch)


def test_loss_and_gradients_are_theirs(pair, batch):
  """The mean loss over what was masked, and the gradient of every parameter."""
  parity.assert_same_loss_and_gradients(pair, batch)
