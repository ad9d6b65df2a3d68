"""Hugging Face's model families: mappings of config.json to `TransformerConfig`, and of parameter names.

A family has two tables, used in both directions:

- keys of config.json -> fields of `TransformerConfig`, each with transformers' default; and keys that must have one
  value, because t2t's model supports no other;
- name of a parameter in transformers -> path in t2t, or several paths if they are concatenated there.  `{}` stands for
  the number of a layer.  Parameters that a model lacks are ignored.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig

Names = Mapping[str, str | tuple[str, ...]]
Settings = Mapping[str, Any]  # a config.json


@dataclasses.dataclass(frozen=True)
class HeadTask:
  """A model class of transformers with a named head.

  kinds: of the head in t2t; two if config.json distinguishes a class from a number.
  names: name of a parameter in transformers -> path under heads/NAME.
  head: its name; "": its kind, unless config.json gives another.
  pretrains: whether the class also has the head over the vocabulary.
  num_classes: fixed number of logits; 0: the number of labels in config.json.
  labels: fixed labels.
  dropout_key: key of config.json for the rate before the logits; "": there is none.
  dropout_rate: default of dropout_key; None or below 0: the model's rate.
  prefix: of the body's names in this class; "": the family's.
  fields: other fields of `HeadConfig`.
  read: converts config.json to fields of `HeadConfig`.
  write: converts a head with explicit fields to keys of config.json.
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
class Layout:
  """Layout of a tensor in transformers that is not a matrix [out, in] with one part after another.

  axes: sizes of the axes of the matrix [out, in], split; for in_proj of DeBERTa [query to value, heads, kv, in].
  order: these axes in the order of the tensor.
  keeps_axes: whether the tensor has these axes; otherwise it is a matrix [out, in] again.
  """

  axes: Callable[[TransformerConfig], tuple[int, ...]]
  order: tuple[int, ...]
  keeps_axes: bool = False


@dataclasses.dataclass(frozen=True)
class Family:
  """A model_type of transformers.

  model_type: in config.json.
  model_class: class of an exported model with only a head over the vocabulary.
  bare_class: class of an exported model without a head; "": there is none.
  tasks: other classes by name.
  keys: key of config.json -> (field of `TransformerConfig`, default).
  must: key -> supported values, the default first.
  fields: fields of `TransformerConfig` that are the same in all models of the family.
  names: see above.
  reads: keys that `read` uses besides `keys` and `must`.
  prefix: of names in a model with a head; a checkpoint of the bare model has no prefix.
  layouts: name -> layout of a tensor that is not a plain matrix.
  copies: name -> name of the same tensor, which some checkpoints contain twice.
  writes_copies: whether transformers does not tie the embeddings of the two sides if the logits are not tied, so that
    files of such models contain every copy.
  reads_bias_copy: whether transformers 4 reads the copy of two differing biases, as 5 does.
  buffers: name endings of buffers, which are not parameters.
  logits_bias: name of a buffer [1, vocab] that is added to the logits; t2t's model has a bias if it is not zero.
  pooler: name -> path of the same parameter in a class head (`models.heads`); models without a head lack it.
  unread: parameters that affect neither hidden states nor logits; they are left out.
  constants: parameters that the transformers model lacks -> equivalent constant in t2t.
  ungated: replacement in names for feed-forward layers without a gate.
  shares_head: whether an absent untied head is the unscaled embedding (transformers 5 saves T5 like this).
  transposed: whether matrices are [out, in], as in torch; t2t's are [in, out].
  shapes: name -> shape in transformers, if it splits or adds axes, and whether it is [out, in].
  sections: keys of config.json with the settings of one stack, each with the special ids.
  ids: special ids of an export without a vocabulary, where transformers accepts no null or has another default.
  square: whether heads * head_dim is the width, so that config.json has no key for head_dim.
  read: converts keys besides `keys` to fields.
  write: converts fields to these keys.
  notes: returns warnings on a config.json that transformers computes differently.
  """

  model_type: str
  model_class: str
  keys: Mapping[str, tuple[str, Any]]
  must: Mapping[str, tuple[Any, ...]]
  fields: Mapping[str, Any]
  names: Names
  reads: tuple[str, ...] = ()
  prefix: str = ""
  layouts: Mapping[str, Layout] = dataclasses.field(default_factory=dict)
  copies: Mapping[str, str] = dataclasses.field(default_factory=dict)
  writes_copies: bool = False
  reads_bias_copy: bool = True
  buffers: tuple[str, ...] = ()
  logits_bias: str = ""
  bare_class: str = ""
  tasks: Mapping[str, HeadTask] = dataclasses.field(default_factory=dict)
  pooler: Mapping[str, str] = dataclasses.field(default_factory=dict)
  unread: tuple[str, ...] = ()
  constants: Mapping[str, float] = dataclasses.field(default_factory=dict)
  ungated: tuple[str, str] = ("", "")
  shares_head: bool = False
  transposed: bool = True
  shapes: Mapping[str, tuple[Callable[[TransformerConfig], tuple[int, ...]], bool]] = dataclasses.field(
    default_factory=dict
  )
  sections: tuple[str, ...] = ()
  ids: Mapping[str, int] = dataclasses.field(default_factory=dict)
  square: bool = False
  read: Callable[[Settings], dict[str, Any]] = lambda settings: {}
  write: Callable[[Settings], dict[str, Any]] = lambda fields: {}
  notes: Callable[[Settings], tuple[str, ...]] = lambda settings: ()


# Activations by transformers' names, of plain and gated feed-forward layers.
PLAIN = {
  "relu": "relu",
  "gelu": "gelu",
  "gelu_new": "gelu_tanh",
  "gelu_pytorch_tanh": "gelu_tanh",
  "silu": "silu",
  "swish": "silu",
}
GATED = {
  "silu": "gated_silu",
  "swish": "gated_silu",
  "gelu": "gated_gelu_exact",
  "gelu_new": "gated_gelu",
  "gelu_pytorch_tanh": "gated_gelu",
}


class Unknown(Exception):
  """A value of config.json, or a field of a model, without a counterpart."""


def look_up(table: Mapping[str, str], key: str, value: str) -> str:
  """Returns t2t's name of the transformers `value` for `key`."""
  if value not in table:
    raise Unknown(f"{key}={value!r}: t2t supports only {', '.join(table)}")
  return table[value]


def name_of(table: Mapping[str, str], field: str, value: str) -> str:
  """Returns transformers' name of the t2t `value` for `field`."""
  for theirs, ours in table.items():
    if ours == value:
      return theirs
  raise Unknown(f"config.model.{field}={value!r}: transformers supports only {', '.join(sorted(set(table.values())))}")


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
  # In transformers "gated-gelu" is the tanh approximation, and "gelu" the exact one.
  "gated-gelu": "gated_gelu",
  "gated-gelu_new": "gated_gelu",
  "gated-silu": "gated_silu",
}


def _t5_activation(settings: Settings) -> str:
  """Returns the activation; dense_act_fn and is_gated_act take precedence over feed_forward_proj."""
  projection = settings.get("feed_forward_proj", "relu")
  kind, _, name = str(projection).rpartition("-")
  name, is_gated = settings.get("dense_act_fn"), settings.get("is_gated_act", kind == "gated")
  if name is None and bool(is_gated) == (kind == "gated"):
    return look_up(_T5_ACTIVATIONS, "feed_forward_proj", projection)
  plain = "gelu_new" if projection == "gated-gelu" else str(projection).rpartition("-")[2]
  return look_up(GATED if is_gated else PLAIN, "dense_act_fn", plain if name is None else name)


def _t5_scales(settings: Settings) -> bool:
  """Returns whether tied logits are scaled by 1 / sqrt(embed), as in T5 1.0.

  transformers 5 has a key for it; before, "tie_word_embeddings" implied it.  Its mT5 never scales.
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
    raise Unknown(
      f"config.model.init_scale={fields['init_scale']}: transformers scales tied logits of T5, but this model does not"
    )
  if fields["mlp_activation"] == "gated_gelu_exact":  # feed_forward_proj cannot express it
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
  # Some old checkpoints contain an unused table.
  unread=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
  ungated=(".DenseReluDense.wi_1.", ".DenseReluDense.wi."),
  shares_head=True,
  read=_read_t5,
  write=_write_t5,
)

# transformers' defaults differ.
_MT5_DEFAULTS = {"vocab_size": 250_112, "num_heads": 6, "d_ff": 1024, "num_layers": 8}
MT5 = dataclasses.replace(
  T5,
  model_type="mt5",
  model_class="MT5ForConditionalGeneration",
  keys=T5.keys | {key: (T5.keys[key][0], value) for key, value in _MT5_DEFAULTS.items()},
  read=lambda settings: _read_t5({"feed_forward_proj": "gated-gelu", "num_layers": 8} | dict(settings)),
)
