"""Which kernel each kind of attention of a model runs on in training."""

from collections.abc import Mapping
import dataclasses
import functools

from t2t.models import kernel_choice, kernels, transformer
from t2t.models.architecture import Batch, is_padded, sides
from t2t.models.config import TransformerConfig
from t2t.models.masks import AttentionMask


def attention_kernels(
  config: TransformerConfig, batch: Batch, *, prompt: int = 0, prefix: Mapping[str, int] | None = None
) -> dict[str, kernels.Choice]:
  """What each kind of attention runs on in training, under the mesh that is set.

  They are "encoder", "decoder" and "cross"; and "encoder window" and "decoder window" where layers with a window take
  turns with others, which "encoder" and "decoder" are then, and run on another kernel.

  Args:
    config: of the model.
    batch: model features, or their shapes.
    prompt: vectors in front of the text of the side that reads first.
    prefix: side -> learned keys in front of its own; None: there are none.
  """
  tokens = {side: batch[f"{side}_input_tokens"] for side in sides(batch)}
  added = {config.kind.answers: prompt}
  length = lambda side: tokens[side].shape[1] + added.get(side, 0)

  def choose(queries: str, keys: str, mask: AttentionMask, window: int = 0) -> kernels.Choice:
    front = (prefix or {}).get(keys, 0) if queries == keys else 0
    mask = dataclasses.replace(mask, window=window, front=front)
    biased, rows = config.biased and queries == keys, tokens[queries].shape[0]
    return kernel_choice.choose_in(config, rows, length(queries), length(keys), mask, biased=biased)

  def choose_for_layers(side: str, mask: AttentionMask) -> dict[str, kernels.Choice]:
    windows = config.windows(length(side))
    first, *others = (choose(side, side, mask, window) for window in windows)
    # Where layers with a window take turns with others, and run on something else.
    return {side: first} | {f"{side} window": other for other in others if str(other) != str(first)}

  found = {}
  # That an encoder's positions have segments matters, not which.
  reading = functools.partial(AttentionMask, key_segments=tokens.get("encoder"), padded=is_padded(batch))
  if "encoder" in tokens:
    found |= choose_for_layers("encoder", reading(tokens["encoder"]))
  if "decoder" in tokens:
    found |= choose_for_layers("decoder", transformer.decoder_mask(config, batch))
  if len(tokens) == 2:
    found["cross"] = choose("decoder", "encoder", reading(tokens["decoder"]))
  return found
