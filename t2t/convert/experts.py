"""Mixtral and Switch Transformers of Hugging Face, with experts; hf_mappings.py explains the tables."""

import dataclasses
from typing import Any

from t2t.convert import decoders, hf_mappings

# Of experts, `{}` is the number of the layer, and then of the expert.
_SPARSE = "model.layers.{}.block_sparse_moe"
MIXTRAL_NAMES = {name: path for name, path in decoders.LLAMA_NAMES.items() if ".mlp." not in name} | {
  f"{_SPARSE}.gate.weight": "decoder/layers/mlp/router",
  f"{_SPARSE}.experts.{{}}.w1.weight": "decoder/layers/mlp/gate",
  f"{_SPARSE}.experts.{{}}.w3.weight": "decoder/layers/mlp/up",
  f"{_SPARSE}.experts.{{}}.w2.weight": "decoder/layers/mlp/down",
}


def _read_mixtral(settings: hf_mappings.Settings) -> dict[str, Any]:
  """Returns the fields that config.json has in another form.

  transformers counts the balance of each selected expert, so that it is the number of selected experts if uniform.
  """
  base = {} if "rope_theta" in (settings.get("rope_parameters") or {}) else {"rope_theta": 1e6}
  balance = settings.get("router_aux_loss_coef", 0.001) * settings.get("num_experts_per_tok", 2)
  return {
    **decoders.MISTRAL.read({"sliding_window": None} | base | dict(settings)),
    "moe_balance_loss": balance,
  }


def _write_mixtral(fields: hf_mappings.Settings) -> dict[str, Any]:
  coefficient = fields["moe_balance_loss"] / fields["moe_experts_per_token"]
  return {**decoders.MISTRAL.write(fields), "router_aux_loss_coef": coefficient}


MIXTRAL = dataclasses.replace(
  decoders.MISTRAL,
  model_type="mixtral",
  model_class="MixtralForCausalLM",
  tasks={
    "MixtralForSequenceClassification": decoders.SCORE,
    "MixtralForTokenClassification": decoders.TAG,
    "MixtralForQuestionAnswering": decoders.MISTRAL.tasks["MistralForQuestionAnswering"],
  },
  keys=decoders.MISTRAL.keys
  | {
    "rms_norm_eps": ("norm_epsilon", 1e-5),
    "num_local_experts": ("moe_experts", 8),
    "num_experts_per_tok": ("moe_experts_per_token", 2),
    "router_jitter_noise": ("moe_jitter", 0.0),
  },
  reads=(*decoders.MISTRAL.reads, "router_aux_loss_coef"),
  must={"output_router_logits": (False, True)},
  fields=decoders.MISTRAL.fields | {"feed_forward": "moe", "moe_normalize_gates": True},
  names=MIXTRAL_NAMES,
  read=_read_mixtral,
  write=_write_mixtral,
)


_ROUTER_LOSSES = {"router_z_loss_coef": "moe_z_loss", "router_aux_loss_coef": "moe_balance_loss"}


def _switch_names() -> dict[str, str | tuple[str, ...]]:
  names = {name: path for name, path in hf_mappings.T5_NAMES.items() if "DenseReluDense" not in name}
  for side, branch in (("encoder", 1), ("decoder", 2)):
    theirs, ours = f"{side}.block.{{}}.layer.{branch}.mlp", f"{side}/layers/mlp"
    names[f"{theirs}.router.classifier.weight"] = f"{ours}/moe/layers/router"
    for name, path in (("wi", "up"), ("wo", "down")):
      names[f"{theirs}.{name}.weight"] = f"{ours}/dense/layers/{path}"
      names[f"{theirs}.experts.expert_{{}}.{name}.weight"] = f"{ours}/moe/layers/{path}"
  return names


def _read_switch(settings: hf_mappings.Settings) -> dict[str, Any]:
  """Returns the fields that config.json has in another form.

  transformers makes layer i sparse if i modulo (layers // sparse layers) is 1. It adds the router losses of encoder and
  decoder, which are means over layers here.
  """
  encoder = settings.get("num_layers", 12)
  layers = {"encoder": encoder, "decoder": settings.get("num_decoder_layers", 12) or encoder}
  sparse = {side: settings.get(f"num_sparse_{side}_layers", 3) for side in layers}
  for side, number in sparse.items():
    if not 0 < number <= layers[side]:
      raise hf_mappings.Unknown(f"num_sparse_{side}_layers={number}: t2t needs 1 to {layers[side]}")
  steps = {side: layers[side] // sparse[side] for side in layers}
  if steps["encoder"] != steps["decoder"]:
    raise hf_mappings.Unknown(
      f"num_sparse_encoder_layers={sparse['encoder']} and num_sparse_decoder_layers={sparse['decoder']}: one of "
      f"{steps['encoder']} layers of the encoder and one of {steps['decoder']} of the decoder would have experts, but "
      "t2t supports only one distance"
    )
  if settings.get("expert_capacity", 64) < 1:
    raise hf_mappings.Unknown(f"expert_capacity={settings['expert_capacity']}: t2t needs at least 1")
  activation = settings.get("dense_act_fn", "relu")
  return {
    "num_decoder_layers": layers["decoder"],
    "moe_every": steps["encoder"],
    "moe_first": int(steps["encoder"] > 1),
    "mlp_activation": hf_mappings.look_up(hf_mappings.PLAIN, "dense_act_fn", activation),
    "tied_logits": settings.get("tie_word_embeddings", True),
    **{field: 2.0 * settings.get(key, 0.001) for key, field in _ROUTER_LOSSES.items()},
  }


def _write_switch(fields: hf_mappings.Settings) -> dict[str, Any]:
  if fields["tied_logits"] and fields["init_scale"]:
    raise hf_mappings.Unknown(
      f"config.model.init_scale={fields['init_scale']}: transformers scales tied logits of Switch, but this model does "
      "not"
    )
  if fields["feed_forward"] != "moe":
    raise hf_mappings.Unknown(f"config.model.feed_forward={fields['feed_forward']!r} (transformers 'moe')")
  if not fields["moe_capacity"]:
    raise hf_mappings.Unknown(
      f"config.model.moe_capacity_factor={fields['moe_capacity_factor']}: transformers' capacity is a number of tokens "
      "per sequence, config.model.moe_capacity"
    )
  return {
    "num_decoder_layers": fields["num_decoder_layers"],
    "num_sparse_encoder_layers": fields["num_encoder_layers"] // fields["moe_every"],
    "num_sparse_decoder_layers": fields["num_decoder_layers"] // fields["moe_every"],
    "dense_act_fn": hf_mappings.name_of(hf_mappings.PLAIN, "mlp_activation", fields["mlp_activation"]),
    "tie_word_embeddings": fields["tied_logits"],
    **{key: fields[field] / 2.0 for key, field in _ROUTER_LOSSES.items()},
  }


SWITCH = dataclasses.replace(
  hf_mappings.T5,
  model_type="switch_transformers",
  model_class="SwitchTransformersForConditionalGeneration",
  keys=hf_mappings.T5.keys
  | {
    "d_model": ("embed_dim", 768),
    "num_heads": ("num_heads", 12),
    "num_layers": ("num_encoder_layers", 12),
    "num_experts": ("moe_experts", 8),
    "expert_capacity": ("moe_capacity", 64),
    "router_jitter_noise": ("moe_jitter", 0.01),
  },
  must={
    "is_encoder_decoder": (True,),
    "router_bias": (False,),
    "router_dtype": ("float32",),
    # transformers reads neither key.
    "router_ignore_padding_tokens": (False, True),
    "add_router_probs": (False, True),
  },
  fields={"architecture": "encoder_decoder", "feed_forward": "moe"},
  names=_switch_names(),
  reads=(
    *("num_decoder_layers", "num_sparse_encoder_layers", "num_sparse_decoder_layers", "dense_act_fn"),
    *("encoder_sparse_step", "decoder_sparse_step", "tie_word_embeddings", "add_cross_attention"),
  ),
  writes_copies=True,
  ungated=("", ""),
  read=_read_switch,
  write=_write_switch,
)
