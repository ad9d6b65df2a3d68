"""Scaling of rotary frequencies for longer sequences: linear, Llama 3's and YaRN; registered in `config`."""

import math
from typing import ClassVar

import numpy as np

from t2t import UserError
from t2t.models.config import TransformerConfig

_TURN = 2.0 * math.pi


class RotaryScaling:
  """Base class of scalings, and linear interpolation (Chen et al. 2023): all frequencies are divided by the factor.

  reads: fields `rotary_scaling_...` of the config that the scaling uses.
  attention_factor: factor of the rotated queries and keys.

  Raises:
    UserError: a field that the scaling needs is absent or out of range.
  """

  reads: ClassVar[tuple[str, ...]] = ("rotary_scaling_factor",)

  def __init__(self, config: TransformerConfig):
    self.config = config
    self.attention_factor = 1.0
    if config.rotary_scaling_factor < 1.0:
      raise UserError(
        f"config.model.rotary_scaling_factor={config.rotary_scaling_factor}: must be at least 1, the ratio of the "
        "longest sequence to the longest one before scaling"
      )
    if "rotary_scaling_original_length" in self.reads and not config.rotary_scaling_original_length:
      raise UserError(
        f"config.model.rotary_scaling={config.rotary_scaling} needs the longest sequence before scaling. Set "
        "config.model.rotary_scaling_original_length, for example 8192 for Llama 3.1."
      )

  def _check_order(self, low: str, high: str) -> None:
    """Checks that two fields are above 0 and in order."""
    smaller, larger = getattr(self.config, low), getattr(self.config, high)
    if not 0.0 < smaller < larger:
      raise UserError(
        f"config.model.{low}={smaller} and config.model.{high}={larger}: must be above 0, and {low} below {high}"
      )

  def frequencies(self, plain: np.ndarray) -> np.ndarray:
    """Maps the frequencies of all feature pairs, float32 [head_dim / 2], to the scaled ones."""
    return self._mixed(plain, np.zeros(plain.shape))

  def _mixed(self, plain: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Returns frequencies of which the fraction `kept` is not divided by the factor."""
    return (plain * kept + plain / self.config.rotary_scaling_factor * (1.0 - kept)).astype(np.float32)


class Llama3(RotaryScaling):
  """Divides the frequencies with few turns in the original length (Llama 3.1; Llama team 2024).

  Frequencies with more turns than `high_turns` stay, frequencies with fewer than `low_turns` are divided, and the
  others are interpolated.
  """

  reads = (
    *("rotary_scaling_factor", "rotary_scaling_original_length"),
    *("rotary_scaling_low_turns", "rotary_scaling_high_turns"),
  )

  def __init__(self, config: TransformerConfig):
    super().__init__(config)
    self._check_order("rotary_scaling_low_turns", "rotary_scaling_high_turns")

  def frequencies(self, plain: np.ndarray) -> np.ndarray:
    config = self.config
    low, high = config.rotary_scaling_low_turns, config.rotary_scaling_high_turns
    turns = config.rotary_scaling_original_length * plain.astype(np.float64) / _TURN
    return self._mixed(plain, np.clip((turns - low) / (high - low), 0.0, 1.0))


class Yarn(RotaryScaling):
  """Divides the frequencies with few turns by a ramp over feature pairs, and scales the logits (Peng et al. 2024).

  The ramp begins at the pair with `beta_fast` turns in the original length, and ends at the pair with `beta_slow`. Both
  ends are rounded outwards, unless `truncate` is off.
  """

  reads = (
    *("rotary_scaling_factor", "rotary_scaling_original_length", "rotary_scaling_beta_fast"),
    *("rotary_scaling_beta_slow", "rotary_scaling_attention_factor", "rotary_scaling_truncate"),
  )

  def __init__(self, config: TransformerConfig):
    super().__init__(config)
    self._check_order("rotary_scaling_beta_slow", "rotary_scaling_beta_fast")
    if config.rotary_scaling_attention_factor < 0.0:
      raise UserError(
        f"config.model.rotary_scaling_attention_factor={config.rotary_scaling_attention_factor}: must be at least 0 "
        "(0: the published function of the scaling factor)"
      )
    published = 0.1 * math.log(config.rotary_scaling_factor) + 1.0
    self.attention_factor = config.rotary_scaling_attention_factor or published

  def _pair(self, turns: float) -> float:
    """Returns the index of the feature pair with this number of turns in the original length, not rounded."""
    config = self.config
    period = config.rotary_scaling_original_length / (turns * _TURN)
    return config.head_dim * math.log(period) / (2.0 * math.log(config.rotary_base))

  def frequencies(self, plain: np.ndarray) -> np.ndarray:
    first, last = self._pair(self.config.rotary_scaling_beta_fast), self._pair(self.config.rotary_scaling_beta_slow)
    if self.config.rotary_scaling_truncate:
      first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, self.config.head_dim - 1)
    width = last - first or 0.001  # as published, against a division by zero
    return self._mixed(plain, 1.0 - np.clip((np.arange(len(plain)) - first) / width, 0.0, 1.0))
