"""Hugging Face's families: what their config.json says as a `TransformerConfig`, and what they call each parameter.

A family is two tables, and both directions of a conversion read both:

- keys of config.json -> fields of `TransformerConfig`, each with the value that transformers takes where the key is
  left out, and the keys that must have one value, because t2t's model is made so;
- their name of a parameter -> ours, or several of ours where they are one matrix there.  `{}` stands for the number of
  a layer.  Names of parameters that a model does not have are passed over.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from t2t.models.config import HeadConfig

Names = Mapping[str, str | tuple[str, ...]]
Settings = Mapping[str, Any]  # a config.json


@dataclasses.dataclass(frozen=True)
class HeadTask:
  """A model class of transformers with a head by name.

  kinds: of that head in t2t; where their config.json tells a class from a number, both.
  names: their name of a parameter -> ours under heads/NAME.
  head: its name; "": that of its kind, if config.json does not say another.
  pretrains: whether the class has the head over the vocabulary as well.
  num_classes: how many logits, where it is always the same; 0: as many as config.json has labels.
  labels: what they stand for, where that is always the same.
  dropout_key: of config.json, the rate in front of the logits; "": there is none.
  dropout_rate: if the key is left out or null, or there is none; None or below 0: the model's.
  prefix: of the body's names in this class; "": the family's.
  fields: other fields of `HeadConfig`.
  read: what config.json says of those.
  write: the keys for that, of a head in which everything is spelled out.
  """

  kinds: tuple[str, ...]
  names: Mapping[str, str]
  head: str = ""
  pretrains: bool = False
  num_classes: int = 0
  labels: tuple[str, ...] = ()
  dropout_key: str = ""
  dropout_rate: float | None = -1.0
  prefix: str = ""
  fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  read: Callable[[Settings], dict[str, Any]] = lambda settings: {}
  write: Callable[[HeadConfig], dict[str, Any]] = lambda head: {}


@dataclasses.dataclass(frozen=True)
class Family:
  """One model_type of transformers.

  model_type: in config.json.
  model_class: what the exported folder names as its architecture where tokens have logits, and nothing else has.
  bare_class: likewise of a model without any head; "": there is none.
  tasks: their other classes by name.
  keys: key of config.json -> (field of `TransformerConfig`, value if it is left out).
  must: key -> values that it may have, the first if it is left out; the model of t2t is that alone.
  fields: fields of `TransformerConfig` that all models of the family have.
  names: see above.
  reads: keys besides `keys` and `must` that `read` looks at.
  prefix: of the names in a model with a head; a checkpoint of the bare model leaves it out.
  copies: name -> that of the same tensor, which some checkpoints hold twice.
  reads_bias_copy: whether transformers 4 reads the copy of two biases that differ, as 5 does.
  buffers: endings of names of what is no parameter.
  zeros: names of what is added to their logits, [1, vocab], and ours has not: nothing, then.
  pooler: name -> that of the same parameter in a class head (`models.heads`); a model without one has none.
  unread: parameters that neither hidden states nor logits depend on; they are left out.
  constants: our parameters' entries that their model has not -> the value that makes ours the same.
  ungated: what of a name is another in models whose feed-forward layers have no gate.
  shares_head: whether an untied head that is left out is the embedding, unscaled (transformers 5 saves T5s so).
  transposed: whether their matrices are [out, in], as torch's are; ours are [in, out].
  square: whether heads * head_dim is the width, so that config.json has no key for head_dim.
  read: what config.json says beyond `keys`, as fields.
  write: the keys for that, of fields.
  notes: what is to be told of a config.json whose model transformers computes otherwise.
  """

  model_type: str
  model_class: str
  keys: Mapping[str, tuple[str, Any]]
  must: Mapping[str, tuple[Any, ...]]
  fields: Mapping[str, Any]
  names: Names
  reads: tuple[str, ...] = ()
  prefix: str = ""
  copies: Mapping[str, str] = dataclasses.field(default_factory=dict)
  reads_bias_copy: bool = True
  buffers: tuple[str, ...] = ()
  zeros: tuple[str, ...] = ()
  bare_class: str = ""
  tasks: Mapping[str, HeadTask] = dataclasses.field(default_factory=dict)
  pooler: Mapping[str, str] = dataclasses.field(default_factory=dict)
  unread: tuple[str, ...] = ()
  constants: Mapping[str, float] = dataclasses.field(default_factory=dict)
  ungated: tuple[str, str] = ("", "")
  shares_head: bool = False
  transposed: bool = True
  square: bool = False
  read: Callable[[Settings], dict[str, Any]] = lambda settings: {}
  write: Callable[[Settings], dict[str, Any]] = lambda fields: {}
  notes: Callable[[Settings], tuple[str, ...]] = lambda settings: ()


# Activations by transformers' names: of a plain and of a gated feed-forward layer.
PLAIN = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
GATED = {
  "silu": "gated_silu",
  "swish": "gated_silu",
  "gelu": "gated_gelu_exact",
  "gelu_new": "gated_gelu",
  "gelu_pytorch_tanh": "gated_gelu",
}


class Unknown(Exception):
  """A value of config.json, or a field of a model, that has no counterpart; the text says which."""


def look_up(table: Mapping[str, str], key: str, value: str) -> str:
  """Our name of their `value` for `key`."""
  if value not in table:
    raise Unknown(f"{key}={value!r}: t2t knows {', '.join(table)}")
  return table[value]


def name_of(table: Mapping[str, str], field: str, value: str) -> str:
  """Their name of our `value` for `field`."""
  for theirs, ours in table.items():
    if ours == value:
      return theirs
  raise Unknown(f"config.model.{field}={value!r}: they have {', '.join(sorted(set(table.values())))}")


# ---- T5, mT5, ByT5, Flan-T5, UL2 -------------------------------------------------------------------------------------

T5_NAMES = {
  "shared.weight": "embed/table",
  "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": "encoder/position_bias/table",
  "encoder.block.{}.layer.0.layer_norm.weight": "encoder/layers/self_attention_norm/scale",
  "encoder.block.{}.layer.0.SelfAttention.q.weight": "encoder/layers/self_attention/query",
  "encoder.block.{}.layer.0.SelfAttention.k.weight": "encoder/layers/self_attention/key",
  "encoder.block.{}.layer.0.SelfAttention.v.weight": "encoder/layers/self_attention/value",
  "encoder.block.{}.layer.0.SelfAttention.o.weight": "encoder/layers/self_attention/out",
  "encoder.block.{}.layer.1.layer_norm.weight": "encoder/layers/mlp_norm/scale",
  "encoder.block.{}.layer.1.DenseReluDense.wi_0.weight": "encoder/layers/mlp/gate",
  "encoder.block.{}.layer.1.DenseReluDense.wi_1.weight": "encoder/layers/mlp/up",
  "encoder.block.{}.layer.1.DenseReluDense.wo.weight": "encoder/layers/mlp/down",
  "encoder.final_layer_norm.weight": "encoder/norm/scale",
  "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": "decoder/position_bias/table",
  "decoder.block.{}.layer.0.layer_norm.weight": "decoder/layers/self_attention_norm/scale",
  "decoder.block.{}.layer.0.SelfAttention.q.weight": "decoder/layers/self_attention/query",
  "decoder.block.{}.layer.0.SelfAttention.k.weight": "decoder/layers/self_attention/key",
  "decoder.block.{}.layer.0.SelfAttention.v.weight": "decoder/layers/self_attention/value",
  "decoder.block.{}.layer.0.SelfAttention.o.weight": "decoder/layers/self_attention/out",
  "decoder.block.{}.layer.1.layer_norm.weight": "decoder/layers/cross_attention_norm/scale",
  "decoder.block.{}.layer.1.EncDecAttention.q.weight": "decoder/layers/cross_attention/query",
  "decoder.block.{}.layer.1.EncDecAttention.k.weight": "decoder/layers/cross_attention/key",
  "decoder.block.{}.layer.1.EncDecAttention.v.weight": "decoder/layers/cross_attention/value",
  "decoder.block.{}.layer.1.EncDecAttention.o.weight": "decoder/layers/cross_attention/out",
  "decoder.block.{}.layer.2.layer_norm.weight": "decoder/layers/mlp_norm/scale",
  "decoder.block.{}.layer.2.DenseReluDense.wi_0.weight": "decoder/layers/mlp/gate",
  "decoder.block.{}.layer.2.DenseReluDense.wi_1.weight": "decoder/layers/mlp/up",
  "decoder.block.{}.layer.2.DenseReluDense.wo.weight": "decoder/layers/mlp/down",
  "decoder.final_layer_norm.weight": "decoder/norm/scale",
  "lm_head.weight": "head/projection",
}
_T5_ACTIVATIONS = {
  "relu": "relu",
  "gelu": "gelu",
  "gelu_new": "gelu_tanh",
  # transformers takes "gated-gelu" for the tanh approximation, "gelu" for the exact one.
  "gated-gelu": "gated_gelu",
  "gated-gelu_new": "gated_gelu",
  "gated-silu": "gated_silu",
}


def _t5_activation(settings: Settings) -> str:
  """The activation, which dense_act_fn and is_gated_act say where they are there, in front of feed_forward_proj."""
  projection = settings.get("feed_forward_proj", "relu")
  kind, _, name = str(projection).rpartition("-")
  name, is_gated = settings.get("dense_act_fn"), settings.get("is_gated_act", kind == "gated")
  if name is None and bool(is_gated) == (kind == "gated"):
    return look_up(_T5_ACTIVATIONS, "feed_forward_proj", projection)
  plain = "gelu_new" if projection == "gated-gelu" else str(projection).rpartition("-")[2]
  return look_up(GATED if is_gated else PLAIN, "dense_act_fn", plain if name is None else name)


def _t5_scales(settings: Settings) -> bool:
  """Whether the logits of the embedding are scaled by 1 / sqrt(embed): T5 1.0 does, and ties them.

  transformers 5 writes it down; before that "tie_word_embeddings" meant both.  Its mT5 never scales.
  """
  if settings.get("model_type") == "mt5":
    return False
  return settings.get("scale_decoder_outputs", settings.get("tie_word_embeddings", True))


def _read_t5(settings: Settings) -> dict[str, Any]:
  layers = settings.get("num_layers", 6)
  return {
    "num_decoder_layers": settings.get("num_decoder_layers") or layers,
    "mlp_activation": _t5_activation(settings),
    "tied_logits": _t5_scales(settings),
  }


def _write_t5(fields: Settings) -> dict[str, Any]:
  if fields["tied_logits"] and fields["init_scale"]:
    raise Unknown(f"config.model.init_scale={fields['init_scale']}: T5 scales logits of the embedding, this model not")
  if fields["mlp_activation"] == "gated_gelu_exact":  # which feed_forward_proj alone does not say
    activation = {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu", "is_gated_act": True}
  else:
    activation = {"feed_forward_proj": name_of(_T5_ACTIVATIONS, "mlp_activation", fields["mlp_activation"])}
  return activation | {
    "num_decoder_layers": fields["num_decoder_layers"],
    "tie_word_embeddings": fields["tied_logits"],
  }


T5 = Family(
  model_type="t5",
  model_class="T5ForConditionalGeneration",
  keys={
    "vocab_size": ("vocab_size", 32_128),
    "d_model": ("embed_dim", 512),
    "num_heads": ("num_heads", 8),
    "d_kv": ("head_dim", 64),
    "d_ff": ("mlp_dim", 2048),
    "num_layers": ("num_encoder_layers", 6),
    "relative_attention_num_buckets": ("relative_position_buckets", 32),
    "relative_attention_max_distance": ("relative_position_max_distance", 128),
    "layer_norm_epsilon": ("norm_epsilon", 1e-6),
    "dropout_rate": ("dropout_rate", 0.1),
  },
  must={"is_encoder_decoder": (True,), "tie_encoder_decoder": (False, None)},
  fields={"architecture": "encoder_decoder"},
  names=T5_NAMES,
  reads=(
    *("num_decoder_layers", "feed_forward_proj", "dense_act_fn", "is_gated_act"),
    *("tie_word_embeddings", "scale_decoder_outputs"),
  ),
  copies={
    "encoder.embed_tokens.weight": "shared.weight",
    "decoder.embed_tokens.weight": "shared.weight",
    "lm_head.weight": "shared.weight",
  },
  # Some old checkpoints hold a table that no layer reads.
  unread=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
  ungated=(".DenseReluDense.wi_1.", ".DenseReluDense.wi."),
  shares_head=True,
  read=_read_t5,
  write=_write_t5,
)

# transformers' own defaults differ.
_MT5_DEFAULTS = {"vocab_size": 250_112, "num_heads": 6, "d_ff": 1024, "num_layers": 8}
MT5 = dataclasses.replace(
  T5,
  model_type="mt5",
  model_class="MT5ForConditionalGeneration",
  keys=T5.keys | {key: (T5.keys[key][0], value) for key, value in _MT5_DEFAULTS.items()},
  read=lambda settings: _read_t5({"feed_forward_proj": "gated-gelu", "num_layers": 8} | dict(settings)),
)
