"""BERT, RoBERTa, ALBERT, RemBERT, ELECTRA and DistilBERT of Hugging Face; hf_mappings.py explains the tables."""

import dataclasses
from typing import Any

from t2t.convert import hf_mappings
from t2t.models.head_config import HeadConfig

BERT_NAMES = {
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
  "cls.predictions.transform.dense.weight": "head/transform",
  "cls.predictions.transform.dense.bias": "head/transform_bias",
  "cls.predictions.transform.LayerNorm.weight": "head/norm/scale",
  "cls.predictions.transform.LayerNorm.bias": "head/norm/bias",
  "cls.predictions.decoder.weight": "head/projection",
  "cls.predictions.bias": "head/bias",
}

# The same stack with another prefix, and other names in the head.
ROBERTA_NAMES = {
  name.replace("bert.", "roberta.", 1): ours for name, ours in BERT_NAMES.items() if not name.startswith("cls.")
} | {
  "lm_head.dense.weight": "head/transform",
  "lm_head.dense.bias": "head/transform_bias",
  "lm_head.layer_norm.weight": "head/norm/scale",
  "lm_head.layer_norm.bias": "head/norm/bias",
  "lm_head.decoder.weight": "head/projection",
  "lm_head.bias": "head/bias",
}

_ALBERT_LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"
ALBERT_NAMES = {
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
  "predictions.dense.weight": "head/transform",
  "predictions.dense.bias": "head/transform_bias",
  "predictions.LayerNorm.weight": "head/norm/scale",
  "predictions.LayerNorm.bias": "head/norm/bias",
  "predictions.decoder.weight": "head/projection",
  "predictions.bias": "head/bias",
}

BERT_FIELDS = {
  "architecture": "encoder_only",
  "positions": "learned",
  "scale_attention": True,
  "norm": "layer",
  "post_norm": True,
  "biases": True,
  "embedding_norm": True,
  "logits_transform": True,
  "broadcast_dropout": False,
}


# Heads on a text or a candidate use the body's pooler.
_POOLED = {"bert.pooler.dense.weight": "pooler", "bert.pooler.dense.bias": "pooler_bias"}
CLASSIFIER = {"classifier.weight": "projection", "classifier.bias": "projection_bias"}
_DROPOUT: dict[str, Any] = dict(dropout_key="classifier_dropout", dropout_rate=None)
SPAN = hf_mappings.HeadTask(
  ("span",), {"qa_outputs.weight": "projection", "qa_outputs.bias": "projection_bias"}, num_classes=2
)
BERT_TASKS = {
  # Next-sentence prediction.
  "BertForPreTraining": hf_mappings.HeadTask(
    ("class",),
    _POOLED | {"cls.seq_relationship.weight": "projection", "cls.seq_relationship.bias": "projection_bias"},
    head="nsp",
    pretrains=True,
    num_classes=2,
    labels=("next", "random"),
    dropout_rate=0.0,
  ),
  "BertForSequenceClassification": hf_mappings.HeadTask(("class", "score"), _POOLED | CLASSIFIER, **_DROPOUT),
  "BertForMultipleChoice": hf_mappings.HeadTask(("choice",), _POOLED | CLASSIFIER, num_classes=1, **_DROPOUT),
  "BertForTokenClassification": hf_mappings.HeadTask(("tag",), CLASSIFIER, **_DROPOUT),
  "BertForQuestionAnswering": SPAN,
}


def _read_bert(settings: hf_mappings.Settings) -> dict[str, Any]:
  return {
    "mlp_activation": hf_mappings.look_up(hf_mappings.PLAIN, "hidden_act", settings.get("hidden_act", "gelu")),
    "tied_logits": settings.get("tie_word_embeddings", True),
    "max_length": settings.get("max_position_embeddings", 512),
  }


def _write_bert(fields: hf_mappings.Settings) -> dict[str, Any]:
  if not fields["segment_types"]:
    raise hf_mappings.Unknown(
      "config.model.segment_types=0: transformers needs at least 1. Set config.model.segment_types=1."
    )
  return {
    "hidden_act": hf_mappings.name_of(hf_mappings.PLAIN, "mlp_activation", fields["mlp_activation"]),
    "attention_probs_dropout_prob": fields["dropout_rate"],
    "tie_word_embeddings": fields["tied_logits"],
    "max_position_embeddings": fields["max_length"],
  }


BERT = hf_mappings.Family(
  model_type="bert",
  model_class="BertForMaskedLM",
  bare_class="BertModel",
  tasks=BERT_TASKS,
  keys={
    "vocab_size": ("vocab_size", 30_522),
    "hidden_size": ("embed_dim", 768),
    "num_hidden_layers": ("num_encoder_layers", 12),
    "num_attention_heads": ("num_heads", 12),
    "intermediate_size": ("mlp_dim", 3072),
    "type_vocab_size": ("segment_types", 2),
    "layer_norm_eps": ("norm_epsilon", 1e-12),
    "initializer_range": ("init_scale", 0.02),
    "hidden_dropout_prob": ("dropout_rate", 0.1),
  },
  must={
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
  },
  fields=BERT_FIELDS,
  names=BERT_NAMES,
  reads=("hidden_act", "tie_word_embeddings", "max_position_embeddings", "attention_probs_dropout_prob"),
  prefix="bert.",
  copies={
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
  },
  reads_bias_copy=False,
  buffers=("embeddings.position_ids", "embeddings.token_type_ids"),
  pooler=_POOLED,
  unread=("cls.seq_relationship.weight", "cls.seq_relationship.bias"),
  square=True,
  read=_read_bert,
  write=_write_bert,
)


def _read_roberta(settings: hf_mappings.Settings) -> dict[str, Any]:
  # Positions start after the padding id; the rows before are never used.
  offset = settings.get("pad_token_id", 1) + 1
  rows = settings.get("max_position_embeddings", 512)
  return _read_bert(settings) | {"position_offset": offset, "max_length": rows - offset}


def _write_roberta(fields: hf_mappings.Settings) -> dict[str, Any]:
  if not fields["position_offset"]:
    raise hf_mappings.Unknown(
      "config.model.position_offset=0: RoBERTa's positions start after the padding id, so transformers needs at least 1"
    )
  rows = fields["max_length"] + fields["position_offset"]
  return _write_bert(fields) | {"max_position_embeddings": rows, "pad_token_id": fields["position_offset"] - 1}


_ROBERTA_POOLED = {"roberta.pooler.dense.weight": "pooler", "roberta.pooler.dense.bias": "pooler_bias"}
# The class has its own pooler, with dropout before and after.
_ROBERTA_CLASS = {
  "classifier.dense.weight": "pooler",
  "classifier.dense.bias": "pooler_bias",
  "classifier.out_proj.weight": "projection",
  "classifier.out_proj.bias": "projection_bias",
}

ROBERTA = dataclasses.replace(
  BERT,
  model_type="roberta",
  model_class="RobertaForMaskedLM",
  bare_class="RobertaModel",
  tasks={
    "RobertaForSequenceClassification": hf_mappings.HeadTask(
      ("class", "score"), _ROBERTA_CLASS, fields={"drops_inputs": True}, **_DROPOUT
    ),
    "RobertaForMultipleChoice": hf_mappings.HeadTask(("choice",), _ROBERTA_POOLED | CLASSIFIER, num_classes=1),
    "RobertaForTokenClassification": hf_mappings.HeadTask(("tag",), CLASSIFIER, **_DROPOUT),
    "RobertaForQuestionAnswering": SPAN,
  },
  keys=BERT.keys | {"vocab_size": ("vocab_size", 50_265)},
  names=ROBERTA_NAMES,
  reads=(*BERT.reads, "pad_token_id"),
  prefix="roberta.",
  copies={
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
  },
  reads_bias_copy=True,
  pooler=_ROBERTA_POOLED,
  read=_read_roberta,
  write=_write_roberta,
)


# Its tokenizer.json has the ids of its vocabulary; the ids of its SentencePiece model are shifted.
XLM_ROBERTA = dataclasses.replace(
  ROBERTA,
  model_type="xlm-roberta",
  model_class="XLMRobertaForMaskedLM",
  bare_class="XLMRobertaModel",
  tasks={f"XLM{name}": task for name, task in ROBERTA.tasks.items()},
  keys=BERT.keys,
)


def _write_albert(fields: hf_mappings.Settings) -> dict[str, Any]:
  if not fields["embedding_dim"]:
    raise hf_mappings.Unknown("config.model.embedding_dim=0: ALBERT needs an embedding width of at least 1")
  return _write_bert(fields)


_ALBERT_POOLED = {"albert.pooler.weight": "pooler", "albert.pooler.bias": "pooler_bias"}
_ALBERT_DROPOUT: dict[str, Any] = dict(dropout_key="classifier_dropout_prob", dropout_rate=0.1)

ALBERT = dataclasses.replace(
  BERT,
  model_type="albert",
  model_class="AlbertForMaskedLM",
  bare_class="AlbertModel",
  tasks={
    # Sentence-order prediction.
    "AlbertForPreTraining": hf_mappings.HeadTask(
      ("class",),
      _ALBERT_POOLED
      | {"sop_classifier.classifier.weight": "projection", "sop_classifier.classifier.bias": "projection_bias"},
      head="sop",
      pretrains=True,
      num_classes=2,
      labels=("in order", "swapped"),
      **_ALBERT_DROPOUT,
    ),
    "AlbertForSequenceClassification": hf_mappings.HeadTask(
      ("class", "score"), _ALBERT_POOLED | CLASSIFIER, **_ALBERT_DROPOUT
    ),
    "AlbertForMultipleChoice": hf_mappings.HeadTask(
      ("choice",), _ALBERT_POOLED | CLASSIFIER, num_classes=1, **_ALBERT_DROPOUT
    ),
    "AlbertForTokenClassification": hf_mappings.HeadTask(("tag",), CLASSIFIER, **_ALBERT_DROPOUT),
    "AlbertForQuestionAnswering": SPAN,
  },
  keys={
    **BERT.keys,
    "vocab_size": ("vocab_size", 30_000),
    "embedding_size": ("embedding_dim", 128),
    "hidden_size": ("embed_dim", 4096),
    "num_attention_heads": ("num_heads", 64),
    "intermediate_size": ("mlp_dim", 16_384),
    "hidden_dropout_prob": ("dropout_rate", 0.0),
  },
  must=BERT.must | {"num_hidden_groups": (1,), "inner_group_num": (1,)},
  fields=BERT_FIELDS | {"share_layers": True},
  names=ALBERT_NAMES,
  prefix="albert.",
  copies={
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
  },
  reads_bias_copy=True,
  pooler=_ALBERT_POOLED,
  unread=("sop_classifier.classifier.weight", "sop_classifier.classifier.bias"),
  read=lambda settings: _read_bert({"hidden_act": "gelu_new"} | dict(settings)),
  write=_write_albert,
)


REMBERT_NAMES = {
  name.replace("bert.", "rembert.", 1): ours for name, ours in BERT_NAMES.items() if not name.startswith("cls.")
} | {
  "rembert.encoder.embedding_hidden_mapping_in.weight": "embed/projection",
  "rembert.encoder.embedding_hidden_mapping_in.bias": "embed/projection_bias",
  "cls.predictions.dense.weight": "head/transform",
  "cls.predictions.dense.bias": "head/transform_bias",
  "cls.predictions.LayerNorm.weight": "head/norm/scale",
  "cls.predictions.LayerNorm.bias": "head/norm/bias",
  "cls.predictions.decoder.weight": "head/projection",
  "cls.predictions.decoder.bias": "head/bias",
}
_REMBERT_POOLED = {"rembert.pooler.dense.weight": "pooler", "rembert.pooler.dense.bias": "pooler_bias"}


def _write_rembert(fields: hf_mappings.Settings) -> dict[str, Any]:
  for field in ("embedding_dim", "output_embedding_dim"):
    if not fields[field]:
      raise hf_mappings.Unknown(f"config.model.{field}=0: RemBERT needs a width of at least 1")
  return _write_bert(fields) | {"tie_word_embeddings": False}


REMBERT = dataclasses.replace(
  BERT,
  model_type="rembert",
  model_class="RemBertForMaskedLM",
  bare_class="RemBertModel",
  tasks={
    "RemBertForSequenceClassification": hf_mappings.HeadTask(
      ("class", "score"), _REMBERT_POOLED | CLASSIFIER, **_ALBERT_DROPOUT
    ),
    "RemBertForMultipleChoice": hf_mappings.HeadTask(
      ("choice",), _REMBERT_POOLED | CLASSIFIER, num_classes=1, **_ALBERT_DROPOUT
    ),
    "RemBertForTokenClassification": hf_mappings.HeadTask(("tag",), CLASSIFIER, **_ALBERT_DROPOUT),
    "RemBertForQuestionAnswering": SPAN,
  },
  keys={
    **BERT.keys,
    "vocab_size": ("vocab_size", 250_300),
    "input_embedding_size": ("embedding_dim", 256),
    "output_embedding_size": ("output_embedding_dim", 1664),
    "hidden_size": ("embed_dim", 1152),
    "num_hidden_layers": ("num_encoder_layers", 32),
    "num_attention_heads": ("num_heads", 18),
    "intermediate_size": ("mlp_dim", 4608),
    "hidden_dropout_prob": ("dropout_rate", 0.0),
  },
  must={"is_decoder": (False,), "add_cross_attention": (False,), "tie_word_embeddings": (False,)},
  names=REMBERT_NAMES,
  prefix="rembert.",
  copies={},
  reads_bias_copy=True,
  pooler=_REMBERT_POOLED,
  unread=(),
  read=lambda settings: _read_bert(settings) | {"tied_logits": False},
  write=_write_rembert,
)


# The discriminator; the generator is dropped.
ELECTRA_NAMES = {
  name.replace("bert.", "electra.", 1): ours for name, ours in BERT_NAMES.items() if not name.startswith("cls.")
} | {
  "electra.embeddings_project.weight": "embed/projection",
  "electra.embeddings_project.bias": "embed/projection_bias",
}
_DETECTOR = {
  "discriminator_predictions.dense.weight": "dense",
  "discriminator_predictions.dense.bias": "dense_bias",
  "discriminator_predictions.dense_prediction.weight": "projection",
  "discriminator_predictions.dense_prediction.bias": "projection_bias",
}


def _read_electra(settings: hf_mappings.Settings) -> dict[str, Any]:
  width, embedding = settings.get("hidden_size", 256), settings.get("embedding_size", 128)
  return _read_bert(settings) | {"embedding_dim": 0 if embedding == width else embedding, "tied_logits": True}


def _write_electra(fields: hf_mappings.Settings) -> dict[str, Any]:
  return _write_bert(fields) | {"embedding_size": fields["embedding_dim"] or fields["embed_dim"]}


_SUMMARY_ACTIVATIONS = {name: name for name in ("gelu", "tanh", "relu")}


def _read_summary(settings: hf_mappings.Settings) -> dict[str, Any]:
  for key, value in (("summary_type", "first"), ("summary_use_proj", True)):
    if settings.get(key, value) != value:
      raise hf_mappings.Unknown(f"{key}={settings[key]!r}: t2t supports only {value!r}")
  activation = settings.get("summary_activation", "gelu")
  return {"pooler": hf_mappings.look_up(_SUMMARY_ACTIVATIONS, "summary_activation", activation)}


def _write_summary(head: HeadConfig) -> dict[str, Any]:
  activation = hf_mappings.name_of(_SUMMARY_ACTIVATIONS, "heads.pooler", head.pooler)
  return {"summary_type": "first", "summary_use_proj": True, "summary_activation": activation}


ELECTRA = dataclasses.replace(
  BERT,
  model_type="electra",
  # It was not trained to predict tokens: token logits use the embedding and have no parameters.
  model_class="ElectraModel",
  bare_class="ElectraModel",
  tasks={
    "ElectraForPreTraining": hf_mappings.HeadTask(
      ("detector",), _DETECTOR, head="replaced", pretrains=True, num_classes=1
    ),
    "ElectraForSequenceClassification": hf_mappings.HeadTask(
      ("class", "score"), _ROBERTA_CLASS, fields={"drops_inputs": True, "pooler": "gelu"}, **_DROPOUT
    ),
    "ElectraForMultipleChoice": hf_mappings.HeadTask(
      ("choice",),
      {"sequence_summary.summary.weight": "pooler", "sequence_summary.summary.bias": "pooler_bias"} | CLASSIFIER,
      num_classes=1,
      dropout_key="summary_last_dropout",
      dropout_rate=0.1,
      read=_read_summary,
      write=_write_summary,
    ),
    "ElectraForTokenClassification": hf_mappings.HeadTask(("tag",), CLASSIFIER, **_DROPOUT),
    "ElectraForQuestionAnswering": SPAN,
  },
  keys=BERT.keys
  | {
    "embedding_size": ("embedding_dim", 128),
    "hidden_size": ("embed_dim", 256),
    "num_attention_heads": ("num_heads", 4),
    "intermediate_size": ("mlp_dim", 1024),
  },
  fields=BERT_FIELDS | {"logits_transform": False},
  names=ELECTRA_NAMES,
  prefix="electra.",
  copies={},
  pooler={},
  unread=(),
  read=_read_electra,
  write=_write_electra,
)


# ---- DistilBERT ------------------------------------------------------------------------------------------------------

_DISTILLED = {
  "attention.self.query": "attention.q_lin",
  "attention.self.key": "attention.k_lin",
  "attention.self.value": "attention.v_lin",
  "attention.output.dense": "attention.out_lin",
  "attention.output.LayerNorm": "sa_layer_norm",
  "intermediate.dense": "ffn.lin1",
  "output.dense": "ffn.lin2",
  "output.LayerNorm": "output_layer_norm",
}


def _distilled(name: str) -> str:
  """Returns DistilBERT's name of a parameter of BERT's body."""
  name = name.replace("bert.encoder.", "bert.transformer.", 1).replace("bert.", "distilbert.", 1)
  layer, number, part = name.partition("{}.")
  module, dot, kind = part.rpartition(".")
  return layer + number + _DISTILLED.get(module, module) + dot + kind


DISTILBERT_NAMES = {
  _distilled(name): ours
  for name, ours in BERT_NAMES.items()
  if not name.startswith("cls.") and ours != "embed/segments"
} | {
  "vocab_transform.weight": "head/transform",
  "vocab_transform.bias": "head/transform_bias",
  "vocab_layer_norm.weight": "head/norm/scale",
  "vocab_layer_norm.bias": "head/norm/bias",
  "vocab_projector.weight": "head/projection",
  "vocab_projector.bias": "head/bias",
}


def _read_distilbert(settings: hf_mappings.Settings) -> dict[str, Any]:
  return {
    "mlp_activation": hf_mappings.look_up(hf_mappings.PLAIN, "activation", settings.get("activation", "gelu")),
    "tied_logits": settings.get("tie_word_embeddings", True),
  }


def _write_distilbert(fields: hf_mappings.Settings) -> dict[str, Any]:
  return {
    "activation": hf_mappings.name_of(hf_mappings.PLAIN, "mlp_activation", fields["mlp_activation"]),
    "tie_word_embeddings": fields["tied_logits"],
    "attention_dropout": fields["dropout_rate"],
  }


_PRE_CLASSIFIER = {"pre_classifier.weight": "pooler", "pre_classifier.bias": "pooler_bias"} | CLASSIFIER
_DISTILBERT_CLASS: dict[str, Any] = dict(dropout_key="seq_classif_dropout", dropout_rate=0.2, fields={"pooler": "relu"})

DISTILBERT = hf_mappings.Family(
  model_type="distilbert",
  model_class="DistilBertForMaskedLM",
  bare_class="DistilBertModel",
  tasks={
    "DistilBertForSequenceClassification": hf_mappings.HeadTask(
      ("class", "score"), _PRE_CLASSIFIER, **_DISTILBERT_CLASS
    ),
    "DistilBertForMultipleChoice": hf_mappings.HeadTask(
      ("choice",), _PRE_CLASSIFIER, num_classes=1, **_DISTILBERT_CLASS
    ),
    "DistilBertForTokenClassification": hf_mappings.HeadTask(("tag",), CLASSIFIER),
    "DistilBertForQuestionAnswering": dataclasses.replace(SPAN, dropout_key="qa_dropout", dropout_rate=0.1),
  },
  keys={
    "vocab_size": ("vocab_size", 30_522),
    "dim": ("embed_dim", 768),
    "n_layers": ("num_encoder_layers", 6),
    "n_heads": ("num_heads", 12),
    "hidden_dim": ("mlp_dim", 3072),
    "max_position_embeddings": ("max_length", 512),
    "initializer_range": ("init_scale", 0.02),
    "dropout": ("dropout_rate", 0.1),
  },
  must={},
  fields=BERT_FIELDS | {"norm_epsilon": 1e-12},
  names=DISTILBERT_NAMES,
  reads=("activation", "tie_word_embeddings", "attention_dropout"),
  prefix="distilbert.",
  copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
  buffers=("embeddings.position_ids",),
  square=True,
  read=_read_distilbert,
  write=_write_distilbert,
)
