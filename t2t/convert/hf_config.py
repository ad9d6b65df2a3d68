"""Conversion between config.json of Hugging Face and `TransformerConfig`; hf_mappings.py has the tables."""

from collections.abc import Mapping
import dataclasses
from typing import Any, NamedTuple

from t2t import UserError, did_you_mean
from t2t.configuration.schema import DataConfig
from t2t.convert import hf_heads, hf_mappings
from t2t.convert.hf_mappings import Family, Settings
from t2t.models.config import ENCODER_FIELDS, TransformerConfig
from t2t.runtime.lazy_table import LazyTable

# model_type in config.json -> its family
FAMILIES: LazyTable[Family] = LazyTable(
  {
    "t5": "t2t.convert.hf_mappings:T5",
    "mt5": "t2t.convert.hf_mappings:MT5",
    "bart": "t2t.convert.bart:BART",
    "marian": "t2t.convert.bart:MARIAN",
    "bert": "t2t.convert.encoders:BERT",
    "roberta": "t2t.convert.encoders:ROBERTA",
    "xlm-roberta": "t2t.convert.encoders:XLM_ROBERTA",
    "albert": "t2t.convert.encoders:ALBERT",
    "electra": "t2t.convert.encoders:ELECTRA",
    "distilbert": "t2t.convert.encoders:DISTILBERT",
    "rembert": "t2t.convert.encoders:REMBERT",
    "mobilebert": "t2t.convert.mobilebert:MOBILEBERT",
    "deberta": "t2t.convert.deberta:DEBERTA",
    "deberta-v2": "t2t.convert.deberta:DEBERTA_V2",
    "longformer": "t2t.convert.longformer:LONGFORMER",
    "modernbert": "t2t.convert.modern_bert:MODERN_BERT",
    "modernbert-decoder": "t2t.convert.modern_bert:DECODER",
    "eurobert": "t2t.convert.eurobert:EUROBERT",
    "neobert": "t2t.convert.neobert:NEOBERT",
    "xlnet": "t2t.convert.xlnet:XLNET",
    "gpt2": "t2t.convert.decoders:GPT2",
    "mpt": "t2t.convert.decoders:MPT",
    "llama": "t2t.convert.decoders:LLAMA",
    "mistral": "t2t.convert.decoders:MISTRAL",
    "qwen2": "t2t.convert.decoders:QWEN2",
    "qwen3": "t2t.convert.decoders:QWEN3",
    "mixtral": "t2t.convert.experts:MIXTRAL",
    "switch_transformers": "t2t.convert.experts:SWITCH",
    "gemma": "t2t.convert.gemma:GEMMA",
    "gemma2": "t2t.convert.gemma:GEMMA2",
    "gemma3_text": "t2t.convert.gemma:GEMMA3",
    "t5gemma": "t2t.convert.t5gemma:T5GEMMA",
  }
)

_TYPES = {field.name: field.type for field in dataclasses.fields(TransformerConfig)}
_OF_POSITIONS = ("relative_position_buckets", "relative_position_max_distance", "max_length", "position_offset")
_OF_POSITIONS += ("local_rotary_base", *(name for name in _TYPES if name.startswith("rotary_")), "absolute_positions")
_OF_POSITIONS += ("disentangled_terms", "share_position_projections", "relative_position_norm")
_OF_POSITIONS += ("relative_clamp", "share_relative_biases", "relative_segments")
_LARGEST, _MOST_LAYERS = 2**31 - 1, 10_000
_SHOWN = 4  # differences in a message

# Families that t2t's model cannot represent.
_NOT_READ = {
  "gemma3": (
    "the model includes an image model, but t2t reads only text models. Give a Gemma3ForCausalLM with "
    "model_type=gemma3_text."
  ),
  "t5gemma2": (
    "t2t does not support T5Gemma 2. It has an image model (vision_tower) and a vector for the end of images "
    "(eoi_embedding). One softmax of the decoder covers the keys of both stacks (T5Gemma2MergedAttention). With an "
    "even sliding_window the encoder's window is one position wider to the right. Give a T5Gemma 1, with "
    "model_type=t5gemma."
  ),
  "mbart": "t2t does not support mBART, which combines norms before the branches with a norm of the embeddings",
}

# Keys of any family that affect neither shapes nor values.
# fmt: off
HARMLESS = frozenset(
  {
    "_name_or_path", "architectures", "attention_dropout", "attention_probs_dropout_prob", "attn_implementation",
    "bos_token_id", "chunk_size_feed_forward", "classifier_dropout", "classifier_dropout_prob", "classifier_pooling",
    "cls_token_id", "decoder_start_token_id", "dense_act_fn", "deterministic_flash_attn", "down_scale_factor",
    "dtype", "embedding_dropout", "eos_token_id", "gap_size", "gradient_checkpointing", "id2label",
    "initializer_cutoff_factor", "initializer_factor", "initializer_range", "is_decoder", "is_encoder_decoder",
    "is_gated_act", "label2id", "layer_types", "mask_token_id", "max_window_layers", "model_type", "n_ctx",
    "n_positions", "net_structure_type", "num_memory_blocks", "output_attentions", "output_hidden_states",
    "output_past", "pad_token_id", "position_embedding_type", "problem_type", "pruned_heads", "reference_compile",
    "reorder_and_upcast_attn", "repad_logits_with_grad", "return_dict", "sep_token_id", "sliding_window",
    "sparse_pred_ignore_index", "sparse_prediction", "summary_activation", "summary_first_dropout",
    "summary_last_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params",
    "tokenizer_class", "torch_dtype", "transformers_version", "use_cache", "num_labels", "_num_labels",
    "finetuning_task", hf_heads.KEY, hf_heads.NO_ANSWER, hf_heads.DROPOUT, "qa_dropout", "seq_classif_dropout",
    "sinusoidal_pos_embds", "tie_weights_", "cache_implementation",
    # Longformer.
    "attention_mode", "ignore_attention_mask", "onnx_export",
    # MPT: its positions are ALiBi regardless.
    "init_device", "learned_pos_emb", "norm_type", "verbose",
    # BART, and text generation.
    "activation_dropout", "add_bias_logits", "classif_dropout", "decoder_layerdrop", "encoder_layerdrop",
    "early_stopping", "extra_pos_embeddings", "force_bos_token_to_be_generated", "forced_bos_token_id",
    "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beams",
    "num_hidden_layers", DataConfig.EXPORTED_TABLE,
  }
)
# fmt: on


def family(settings: Settings, where: str) -> Family:
  """Returns the family of a config.json.

  Raises:
    UserError: t2t does not support it.
  """
  name = settings.get("model_type")
  if name in _NOT_READ:
    raise UserError(f"{where}: model_type={name!r}: {_NOT_READ[name]}")
  if name not in FAMILIES:
    raise UserError(
      f"{where}: model_type={name!r}: unsupported. t2t reads {', '.join(FAMILIES)} (mT5, ByT5, Flan-T5 and UL2 are "
      "t5 or mt5)"
      f"{did_you_mean(str(name), FAMILIES)}"
    )
  return FAMILIES[name]


def read_fields(family: Family, settings: Settings) -> dict[str, Any]:
  """Returns the fields of `TransformerConfig` for a config.json.

  Raises:
    hf_mappings.Unknown: t2t's model does not support a value.
  """
  for key, values in family.must.items():
    if settings.get(key, values[0]) not in values:
      raise hf_mappings.Unknown(f"{key}={settings[key]!r}: t2t supports only {values[0]!r}")
  for theirs, (ours, _) in family.keys.items():
    _check_number(theirs, settings.get(theirs), ours)
  fields = dict(family.fields)
  fields |= {ours: settings.get(theirs, default) for theirs, (ours, default) in family.keys.items()}
  fields |= family.read(settings)
  if family.square:
    if fields["embed_dim"] % fields["num_heads"]:
      raise hf_mappings.Unknown(f"the width {fields['embed_dim']} is not a multiple of the {fields['num_heads']} heads")
    fields["head_dim"] = fields["embed_dim"] // fields["num_heads"]
  if fields["tied_logits"] and "init_scale" in fields:
    # Without init_scale a model gets T5's, which scales tied logits, too.
    fields["init_scale"] = fields["init_scale"] or 0.02
  dtype = settings.get("dtype") or settings.get("torch_dtype")
  return fields | {"dtype": "bfloat16" if dtype == "bfloat16" else "float32"}


def _check_number(key: str, value: Any, ours: str) -> None:
  """Checks type and size of a value before it is used; the model checks its own limits."""
  if value is None or _TYPES[ours] not in (int, float):
    return
  if isinstance(value, bool) or not isinstance(value, (int, float)) or (_TYPES[ours] is int and type(value) is not int):
    kind = "whole number" if _TYPES[ours] is int else "number"
    raise hf_mappings.Unknown(f"{key}={str(value)[:40]!r} is not a {kind}")
  most = _MOST_LAYERS if ours.endswith("_layers") else _LARGEST
  if not -_LARGEST <= value <= most:
    raise hf_mappings.Unknown(f"{key}={str(value)[:40]} is out of range; the largest supported value is {most:,}")


def write_settings(family: Family, model: TransformerConfig) -> dict[str, Any]:
  """Returns the config.json of a model.

  Raises:
    hf_mappings.Unknown: this family cannot represent the model.
  """
  fields = dataclasses.asdict(model)
  settings = {key: values[0] for key, values in family.must.items()}
  settings |= {theirs: fields[ours] for theirs, (ours, _) in family.keys.items()}
  for theirs, (ours, default) in family.keys.items():
    if ours == "max_length":  # only learned positions have one
      settings[theirs] = model.max_length or default
  try:
    settings |= family.write(fields)
    again = TransformerConfig(**read_fields(family, settings))
  except UserError as error:  # the settings describe no model, for example for lack of a length
    raise hf_mappings.Unknown(str(error)) from None
  if family.logits_bias:  # a tensor has it, not config.json
    again = dataclasses.replace(again, logits_bias=model.logits_bias)
  mine, theirs = _that_matter(model), _that_matter(again)
  different = [field for field in mine if mine[field] != theirs[field]]
  if "positions" in different:
    # Settings of different kinds of positions are not comparable.
    different = [field for field in different if field not in _OF_POSITIONS]
  if different:
    shown = [f"config.model.{field}={mine[field]!r} (transformers {theirs[field]!r})" for field in different[:_SHOWN]]
    left = len(different) - _SHOWN
    raise hf_mappings.Unknown(", ".join(shown) + (f" and {left} more" if left > 0 else ""))
  return settings


def _that_matter(model: TransformerConfig) -> dict[str, Any]:
  """Returns the fields that determine shapes and logits, in canonical form."""
  fields = dataclasses.asdict(model)
  # convert/hf_heads.py handles heads.
  for name in (
    "attention_init_bias",
    *("memory_length", "memory_reuse"),  # a row without a memory has the same logits
    "dropout_rate",
    "layer_drop",
    "broadcast_dropout",
    "dtype",
    "gradient_dtype",
    "quantization",
    "remat",
    "attention_kernel",
    "attention_block",
    "unroll",
    "pipeline_microbatches",
    "pipeline_rounds",
    "heads",
    "vocabulary_head",
    "most_global_tokens",
    "moe_balance_loss",
    "moe_z_loss",
    "moe_jitter",
    "feed_forward_chunk",
    *("lsh_chunk", "lsh_rounds", "lsh_buckets", "lsh_every"),  # families have no attention that reads these
  ):
    del fields[name]
  fields["num_kv_heads"] = model.kv_heads
  encoder = model.of_stack("encoder")
  fields |= {name: getattr(encoder, name.removeprefix("encoder_")) for name in ENCODER_FIELDS}
  fields["encoder_num_kv_heads"] = encoder.kv_heads
  fields["init_scale"] = 0.0 if model.tied_logits and not model.init_scale else 1.0  # whether tied logits are scaled
  if model.positions not in ("relative", "disentangled"):
    fields["relative_position_buckets"] = 0
    if model.positions != "functional_relative":
      fields["relative_position_max_distance"] = 0
  if model.positions != "disentangled":
    for name in ("disentangled_terms", "share_position_projections", "relative_position_norm", "absolute_positions"):
      fields[name] = ""
  elif model.absolute_positions == "mask_decoder" and not model.vocabulary_head:
    fields["absolute_positions"] = ""  # only vocabulary logits read it
  if not model.beside_first:
    fields["beside_first_activation"] = ""
  if not model.position_scheme.embedded:
    fields["max_length"] = fields["position_offset"] = 0
  fields["key_bias"] = model.biases and model.key_bias
  if model.positions != "rotary":
    fields |= {name: None for name in fields if name.startswith("rotary_")}
  # Two fields describe the global layers in several equivalent ways.
  every, first = model.global_attention_every, model.global_attention_first
  layers = range(max(model.num_encoder_layers, model.num_decoder_layers))
  sees_all = [i for i in layers if every and i % every == first]
  fields["global_attention_every"] = sees_all if model.attention_window else []
  del fields["global_attention_first"]
  has_local = model.attention_window and model.global_attention_every != 1 and model.positions == "rotary"
  fields["local_rotary_base"] = (model.local_rotary_base or model.rotary_base) if has_local else 0.0
  return fields


def family_of(model: TransformerConfig, where: str) -> Family:
  """Returns the family of a t2t model, regardless of its heads.

  Raises:
    UserError: there is none; the message contains the reason for each family.
  """
  reasons: dict[str, str] = {}
  for family in FAMILIES.values():
    if family.fields["architecture"] == model.architecture:
      try:
        write_settings(family, model)
        return family
      except hf_mappings.Unknown as error:
        reasons.setdefault(str(error), family.model_type)
  raise _none_of_theirs(where, reasons)


def _none_of_theirs(where: str, reasons: Mapping[str, str]) -> UserError:
  lines = [f"  {model_type}: {reason}" for reason, model_type in reasons.items()]
  return UserError("\n".join([f"{where}: no model of transformers that t2t writes matches this model:", *lines]))


class Written(NamedTuple):
  """A t2t model in terms of transformers.

  family: its tables.
  model: with the heads of its class; other heads are left out.
  model_class: of transformers.
  settings: config.json, except keys that depend on the vocabulary.
  """

  family: Family
  model: TransformerConfig
  model_class: str
  settings: dict[str, Any]


def written_as(model: TransformerConfig, where: str, *, head: str = "") -> Written:
  """Returns family, class and config.json of a t2t model.

  Args:
    model: the model.
    where: the checkpoint, for messages.
    head: head to export, see `hf_heads.reduced`.

  Raises:
    UserError: there is none; the message contains the differing fields for each family.
  """
  reasons, of_heads = {}, {}
  for family in FAMILIES.values():
    if family.fields["architecture"] == model.architecture:
      try:
        settings = write_settings(family, model)
      except hf_mappings.Unknown as error:
        # The same reason may apply to several families.
        reasons.setdefault(str(error), family.model_type)
        continue
      try:
        part = hf_heads.reduced(family, model, head)
        return Written(
          family,
          part,
          hf_heads.class_of(family, part)[0],
          settings | hf_heads.write(family, part, hint=hf_heads.leaves_out(model)),
        )
      except hf_mappings.Unknown as error:
        of_heads.setdefault(str(error), family.model_type)
  # If only heads differ from a family, report only that.
  raise _none_of_theirs(where, of_heads or reasons)
