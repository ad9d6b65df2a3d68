"""MobileBERT of Hugging Face; hf_mappings.py explains the tables."""

import dataclasses
from typing import Any

from t2t.convert import encoders, hf_mappings
from t2t.models.head_config import HeadConfig

_MOST_FEED_FORWARDS = 16  # of a block
_LAYER, _OURS = "mobilebert.encoder.layer.{}", "encoder/layers"


def _dense(theirs: str, ours: str) -> dict[str, str]:
  return {f"{_LAYER}.{theirs}.weight": f"{_OURS}/{ours}", f"{_LAYER}.{theirs}.bias": f"{_OURS}/{ours}_bias"}


def _norm(theirs: str, ours: str) -> dict[str, str]:
  return {f"{_LAYER}.{theirs}.weight": f"{_OURS}/{ours}/scale", f"{_LAYER}.{theirs}.bias": f"{_OURS}/{ours}/bias"}


def _feed_forward(theirs: str, ours: str, norm: str) -> dict[str, str]:
  prefix = f"{theirs}." if theirs else ""
  return {
    **_dense(f"{prefix}intermediate.dense", f"{ours}/up"),
    **_dense(f"{prefix}output.dense", f"{ours}/down"),
    **_norm(f"{prefix}output.LayerNorm", norm),
  }


_NAMES = {
  **{
    name.replace("bert.", "mobilebert.", 1): ours
    for name, ours in encoders.BERT_NAMES.items()
    if name.startswith("bert.embeddings.")
  },
  "mobilebert.embeddings.embedding_transformation.weight": "embed/projection",
  "mobilebert.embeddings.embedding_transformation.bias": "embed/projection_bias",
  **_dense("bottleneck.input.dense", "input/kernel"),
  **_norm("bottleneck.input.LayerNorm", "input/norm"),
  **_dense("bottleneck.attention.dense", "shared/kernel"),
  **_norm("bottleneck.attention.LayerNorm", "shared/norm"),
  **_dense("attention.self.query", "inner/self_attention/query"),
  **_dense("attention.self.key", "inner/self_attention/key"),
  **_dense("attention.self.value", "inner/self_attention/value"),
  **_dense("attention.output.dense", "inner/self_attention/out"),
  **_norm("attention.output.LayerNorm", "inner/self_attention_norm"),
  **{
    name: ours
    for index in range(_MOST_FEED_FORWARDS - 1)
    for name, ours in _feed_forward(
      f"ffn.{index}", f"inner/feed_forwards/before_{index}/mlp", f"inner/feed_forwards/before_{index}/norm"
    ).items()
  },
  **_feed_forward("", "inner/mlp", "inner/mlp_norm"),
  **_dense("output.bottleneck.dense", "widening"),
  **_norm("output.bottleneck.LayerNorm", "norm"),
  **{name: ours for name, ours in encoders.BERT_NAMES.items() if name.startswith("cls.predictions.transform.")},
  # The rest of the output embedding: the tied embedding has the first features of each token.
  "cls.predictions.dense.weight": "head/table",
  "cls.predictions.bias": "head/bias",
}
_POOLED = {"mobilebert.pooler.dense.weight": "pooler", "mobilebert.pooler.dense.bias": "pooler_bias"}


def _read_pooler(settings: hf_mappings.Settings) -> dict[str, Any]:
  return {} if settings.get("classifier_activation", True) else {"pooler": ""}


def _write_pooler(head: HeadConfig) -> dict[str, Any]:
  return {"classifier_activation": head.pooler == "tanh"}


_OF_BERT = dict(zip(encoders.BERT.pooler, _POOLED, strict=True))


def _task(task: hf_mappings.HeadTask) -> hf_mappings.HeadTask:
  """Returns a task of BERT for MobileBERT, whose pooler is optional."""
  names = {_OF_BERT.get(theirs, theirs): ours for theirs, ours in task.names.items()}
  if names.keys() == task.names.keys():
    return task
  return dataclasses.replace(task, names=names, read=_read_pooler, write=_write_pooler)


_TASKS = {name.replace("Bert", "MobileBert", 1): _task(task) for name, task in encoders.BERT_TASKS.items()}


def _read(settings: hf_mappings.Settings) -> dict[str, Any]:
  width, embedding = settings.get("hidden_size", 512), settings.get("embedding_size", 128)
  narrow, num_heads = settings.get("intra_bottleneck_size", 128), settings.get("num_attention_heads", 4)
  reads_narrow = settings.get("use_bottleneck_attention", False)
  if embedding >= width:
    raise hf_mappings.Unknown(f"embedding_size={embedding}: t2t supports only sizes below hidden_size={width}")
  if narrow % num_heads:
    raise hf_mappings.Unknown(f"intra_bottleneck_size={narrow} is not a multiple of the {num_heads} heads")
  if settings.get("key_query_shared_bottleneck", True) == reads_narrow:
    raise hf_mappings.Unknown(
      f"key_query_shared_bottleneck={reads_narrow} and use_bottleneck_attention={reads_narrow}: t2t supports only "
      "different values"
    )
  if settings.get("num_feedforward_networks", 4) > _MOST_FEED_FORWARDS:
    raise hf_mappings.Unknown(
      f"num_feedforward_networks={settings['num_feedforward_networks']}: t2t supports at most {_MOST_FEED_FORWARDS}"
    )
  fields = encoders.BERT.read({"hidden_act": "relu"} | dict(settings))
  return fields | {"head_dim": narrow // num_heads, "output_embedding_dim": width}


def _write(fields: hf_mappings.Settings) -> dict[str, Any]:
  if not fields["bottleneck_dim"] or not fields["embedding_dim"]:
    raise hf_mappings.Unknown(
      "config.model.bottleneck_dim and config.model.embedding_dim must be at least 1 for MobileBERT"
    )
  return encoders.BERT.write(fields) | {"key_query_shared_bottleneck": not fields["bottleneck_attention"]}


MOBILEBERT = dataclasses.replace(
  encoders.BERT,
  model_type="mobilebert",
  model_class="MobileBertForMaskedLM",
  bare_class="MobileBertModel",
  tasks=_TASKS,
  keys={
    **encoders.BERT.keys,
    "hidden_size": ("embed_dim", 512),
    "num_hidden_layers": ("num_encoder_layers", 24),
    "num_attention_heads": ("num_heads", 4),
    "intermediate_size": ("mlp_dim", 512),
    "embedding_size": ("embedding_dim", 128),
    "intra_bottleneck_size": ("bottleneck_dim", 128),
    "use_bottleneck_attention": ("bottleneck_attention", False),
    "num_feedforward_networks": ("num_feed_forwards", 4),
    "hidden_dropout_prob": ("dropout_rate", 0.0),
  },
  # With layer norms transformers mixes two epsilons.
  must={
    "trigram_input": (True,),
    "use_bottleneck": (True,),
    "normalization_type": ("no_norm",),
    "tie_word_embeddings": (True,),
  },
  fields=encoders.BERT.fields
  | {"block": "bottleneck", "embedding": "trigram", "norm": "affine", "logits_norm": "layer"},
  names=_NAMES,
  reads=(*encoders.BERT.reads, "key_query_shared_bottleneck", "classifier_activation"),
  prefix="mobilebert.",
  copies={
    "cls.predictions.decoder.weight": "mobilebert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
  },
  reads_bias_copy=True,
  pooler=_POOLED,
  square=False,
  read=_read,
  write=_write,
)
