"""Blocks of a text for block diffusion: each is denoised after the earlier ones (BD3-LM, Arriola et al. 2025).

A block is `block_length` tokens, counted from the first token of the text. In training the layers read two streams of a
row: its clean text, then its noisy text at the same positions.
"""

from collections.abc import Mapping
import dataclasses

import jax.numpy as jnp

from t2t import UserError
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig
from t2t.models.masks import AttentionMask

# Schemes whose positions may repeat within a row.
_POSITIONS = ("relative", "rotary", "sinusoidal", "learned", "alibi", "none")
# Field -> value without effect; other values read later blocks, or assume one stream.
_UNSET: Mapping[str, object] = {
  "attention": "full",
  "two_streams": False,
  "memory_length": 0,
  "recurrence": "",
  "beside_first": "",
  "embedding": "tokens",
  "absolute_positions": "",
}


def check(config: TransformerConfig) -> None:
  """Checks that a model can read its text in blocks.

  Raises:
    UserError: a field of the model excludes blocks.
  """
  key = f"config.model.block_length={config.block_length}"
  if config.kind.is_generative:
    raise UserError(
      f"{key} needs config.model.architecture=encoder_only, not {config.architecture}: block diffusion predicts each "
      "token at its place. Set config.model.architecture=encoder_only, or config.model.block_length=0."
    )
  if config.positions not in _POSITIONS:
    raise UserError(
      f"{key} does not support config.model.positions={config.positions}. Set config.model.positions to one of "
      f"{', '.join(_POSITIONS)}; or config.model.block_length=0."
    )
  for field, value in _UNSET.items():
    if getattr(config, field) != value:
      raise UserError(
        f"{key} does not support config.model.{field}={getattr(config, field)}. Set config.model.{field}={value!r}, or "
        "config.model.block_length=0."
      )
  if config.attention_kernel not in ("", "plain"):
    raise UserError(
      f"config.model.attention_kernel={config.attention_kernel} does not support the mask of {key}. Set "
      "--config.model.attention_kernel=''."
    )


def clean(batch: Batch) -> Batch:
  """Returns the features of the clean text: targets where tokens have a noise level, else the inputs.

  In:  input_tokens [7, 99, 4], target_tokens [0, 3, 4], noise_levels [0, 5, 5]
  Out: input_tokens [7, 3, 4]
  """
  inputs, levels = batch["encoder_input_tokens"], batch["encoder_noise_levels"]
  behind = [(0, 0), (inputs.shape[1] - levels.shape[1], 0)]  # after the tokens of a learned prompt
  levels, targets = jnp.pad(levels, behind), jnp.pad(batch["encoder_target_tokens"], behind)
  return {**batch, "encoder_input_tokens": jnp.where(levels > 0, targets, inputs)}


def masked(mask: AttentionMask, block_length: int, *, prompt: int, denoised: bool) -> AttentionMask:
  """Returns the mask of a text in blocks: each token attends to its own block, and to earlier ones.

  With `denoised` the queries and keys are the clean tokens of a row, then its noisy tokens. A noisy token attends to
  the noisy tokens of its own block and to the clean tokens of earlier blocks; a clean token to clean tokens only.

  Args:
    mask: of the encoder, with segments and positions of one stream.
    block_length: tokens.
    prompt: number of prompt vectors before the text, which all blocks attend to.
    denoised: whether there are two streams.

  Source: Arriola et al. 2025, section 3: both streams in one pass.
  """
  segments = mask.query_segments
  assert segments is not None
  positions = jnp.arange(segments.shape[1])[None] if mask.positions is None else mask.positions
  blocks = jnp.maximum((positions - prompt) // block_length, -1).astype(jnp.int32)
  blocks = jnp.broadcast_to(blocks, segments.shape)
  mask = dataclasses.replace(mask, ranks=blocks)
  if not denoised:
    return mask
  assert mask.key_segments is not None
  zeros = jnp.zeros_like(blocks)
  key_segments, ranks = (jnp.concatenate([x, x], axis=1) for x in (mask.key_segments, blocks))
  private = jnp.concatenate([zeros, zeros + 1], axis=1)
  return dataclasses.replace(mask.in_two_streams(), key_segments=key_segments, ranks=ranks, private=private)
