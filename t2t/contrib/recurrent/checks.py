"""Checks of configs with recurrent blocks."""

from collections.abc import Mapping, Sequence
from typing import Any

from t2t import UserError
from t2t.contrib.recurrent import layer
from t2t.models.config import TransformerConfig
from t2t.models.head_config import as_head

LAYERS = ("lstm", "qrnn", "gru")  # values of config.model.feed_forward; rows of a stack's places are not given

# Fields of parts that a recurrent block does not have -> their only value.
_UNSET: Mapping[str, Any] = {
  "positions": "none",
  "attention": "full",
  "attention_kernel": "",
  "attention_window": 0,
  "bidirectional_prefix": False,
  "memory_length": 0,
  "two_streams": False,
  "branch_norm": False,
  "share_layers": False,
  "share_stacks": False,
  "recurrence": "",
  "beside_first": "",
  "future_tokens": 0,
  "exits": False,
  "layer_drop": 0.0,
  "quantization": "",
  "fake_quantization": "",
}
_WHY = {
  "positions": "the order of the tokens is in the states",
  "attention_kernel": "kernels compute attention",
  "bidirectional_prefix": "a state reads in one direction",
  "memory_length": "config.model.recurrent_carry carries the states",
  "future_tokens": "decoding keeps states instead of keys and values",
  "layer_drop": "layers have different widths",
  "share_layers": "layers have different widths",
  "share_stacks": "the layers of the decoder also read the encoder's output",
}
# Fields that layers of an encoder-decoder do not have, because they are alike, and read texts of their own.
_UNSET_IN_TWO_STACKS: Mapping[str, Any] = {
  "recurrent_carry": False,
  "recurrent_residual": False,
  "recurrent_size_loss": 0.0,
  "recurrent_change_loss": 0.0,
}


def check(config: TransformerConfig, changed: Sequence[str]) -> None:
  """Checks a config with a recurrent block, or with settings of one.

  Args:
    config: shape of the model.
    changed: fields that differ from their default.

  Raises:
    UserError: with the key and a value that works.
  """
  is_recurrent = "recurrent" in config.block
  known = ("lstm",) if config.block == "recurrent_attention" else LAYERS
  if is_recurrent != (config.feed_forward in known):
    names = " or ".join(known) if is_recurrent else "dense or moe"
    also = "" if is_recurrent else ", or config.model.block=recurrent"
    raise UserError(
      f"config.model.feed_forward={config.feed_forward}: config.model.block={config.block} needs {names}. Set one of "
      f"these{also}."
    )
  for name in changed:
    if not name.startswith("recurrent_"):
      continue
    value, default = getattr(config, name), type(config).__dataclass_fields__[name].default
    if not is_recurrent:
      raise UserError(
        f"config.model.{name}={value} needs config.model.block=recurrent, not {config.block}. Set "
        f"config.model.{name}={default}."
      )
    if value < 0:
      raise UserError(f"config.model.{name}={value}: must be at least 0")
  if config.embedding_dropout and not config.kind.is_decoder_only:
    raise UserError(
      f"config.model.embedding_dropout={config.embedding_dropout} needs config.model.architecture=decoder_only, not "
      f"{config.architecture}. Set config.model.embedding_dropout=0.0."
    )
  if is_recurrent:
    _check_parts(config)
    _check_sizes(config)


def _check_parts(config: TransformerConfig) -> None:
  for field, value in _UNSET.items():
    if getattr(config, field) != value:
      why = _WHY.get(field, "the block has no attention and no norms")
      raise UserError(
        f"config.model.{field}={getattr(config, field)}: config.model.block={config.block} needs {value!r}, because "
        f"{why}. Set config.model.{field}={value!r}, or config.model.block=transformer."
      )
  if config.block == "recurrent_attention" and not config.kind.has_encoder_and_decoder:
    raise UserError(
      f"config.model.block=recurrent_attention attends to an encoder's output, but config.model.architecture="
      f"{config.architecture}. Set config.model.architecture=encoder_decoder, or config.model.block=recurrent."
    )
  for field, value in _UNSET_IN_TWO_STACKS.items() if config.kind.has_encoder_and_decoder else ():
    if getattr(config, field) != value:
      raise UserError(
        f"config.model.{field}={getattr(config, field)} needs config.model.architecture=decoder_only or encoder_only, "
        f"not encoder_decoder. Set config.model.{field}={value}."
      )
  if config.decoder not in ("", "autoregressive"):
    raise UserError(
      f"config.model.decoder={config.decoder} needs a cache of keys and values, but config.model.block=recurrent keeps "
      "states. Set config.model.decoder=autoregressive."
    )


def _check_sizes(config: TransformerConfig) -> None:
  directions, hidden = layer.num_directions(config), config.recurrent_hidden
  if config.block == "recurrent_attention":
    directions = 2
    if config.recurrent_hidden or config.recurrent_projection:
      raise UserError(
        f"config.model.recurrent_hidden={hidden}, recurrent_projection={config.recurrent_projection}: layers of "
        "config.model.block=recurrent_attention have as many units as features. Set config.model.recurrent_hidden=0 "
        "and config.model.recurrent_projection=False."
      )
  if config.embed_dim % directions:
    raise UserError(
      f"config.model.embed_dim={config.embed_dim}: an encoder with config.model.block={config.block} has a half of the "
      f"features for each direction. Give an even number, such as {config.embed_dim + 1}."
    )
  width, number = config.embed_dim // directions, max(config.num_encoder_layers, config.num_decoder_layers)
  is_uniform = number == 1 or config.kind.has_encoder_and_decoder
  if hidden not in (0, width) and is_uniform and not config.recurrent_projection:
    layers = "the layers of an encoder-decoder" if config.kind.has_encoder_and_decoder else "a single layer"
    raise UserError(
      f"config.model.recurrent_hidden={hidden} has no effect on {layers}, whose units are the {width} features. "
      "Set config.model.recurrent_projection=True, more layers, or config.model.recurrent_hidden=0."
    )
  if config.recurrent_projection and (not hidden or config.feed_forward != "lstm"):
    raise UserError(
      f"config.model.recurrent_projection=True needs config.model.feed_forward=lstm and config.model.recurrent_hidden, "
      f"not {config.feed_forward} and {hidden}. Set both, or config.model.recurrent_projection=False."
    )
  if config.recurrent_clip and config.feed_forward != "lstm":
    raise UserError(
      f"config.model.recurrent_clip={config.recurrent_clip} needs config.model.feed_forward=lstm, not "
      f"{config.feed_forward}. Set config.model.recurrent_clip=0.0."
    )
  different = hidden not in (0, width) and not config.recurrent_projection
  if config.recurrent_residual and different:
    raise UserError(
      f"config.model.recurrent_residual=True needs layers of one width, but config.model.recurrent_hidden={hidden} and "
      f"{width} differ. Set config.model.recurrent_projection=True, or config.model.recurrent_hidden=0."
    )
  if config.recurrent_carry and directions == 2:
    raise UserError(
      "config.model.recurrent_carry=True needs config.model.architecture=decoder_only, because the other direction "
      "begins at the end of a row. Set config.model.recurrent_carry=False."
    )
  mixes = [head.name for head in map(as_head, config.heads) if head.layers == "mix"]
  if mixes and different:
    raise UserError(
      f"config.model.heads: {mixes[0]} has layers='mix', which needs layers of one width, but "
      f"config.model.recurrent_hidden={hidden} differs from {width}. Remove layers from the head."
    )
