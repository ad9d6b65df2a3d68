"""Ranges of quantized activations: moving averages that a training step updates without the optimizer."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.configuration import section_keys
from t2t.configuration.schema import Config
from t2t.models import fake_quantization
from t2t.training.state_collections import Flat


@dataclasses.dataclass(frozen=True)
class ActivationRanges:
  """State collection of `config.model.fake_quantization`: path -> range, see `fake_quantization.ranges`.

  Ranges are parameters of the model, so that every reader of a checkpoint has them; this copy carries them past the
  optimizer. The first step sets them, later steps average.
  """

  decay: float

  by_row: ClassVar[bool] = False

  @classmethod
  def from_config(cls, config: Config) -> "ActivationRanges | None":
    if not config.model.fake_quantization:
      return None
    fake_quantization.check(config.model)
    section_keys.check_ranges("optimizer", config.optimizer, only=("range_decay",))
    if config.adapters:
      raise UserError(
        f"config.model.fake_quantization={config.model.fake_quantization} trains all matrices, but config."
        f"{next(iter(config.adapters))} freezes them. Leave one of the two out."
      )
    return cls(config.optimizer.range_decay)

  def init(self, params: Flat) -> tuple[dict[str, jax.Array], Flat]:
    return {path: jnp.copy(x) for path, x in params.items() if f"/{fake_quantization.RANGES}/" in path}, params

  def forward(self, value: Flat, params: Flat) -> Flat:
    return params

  def gradients(self, value: Flat, params: Flat, grads: Flat, step: jax.Array) -> tuple[dict[str, jax.Array], Flat]:
    averaged, grads = {}, dict(grads)
    for path, average in value.items():
      statistic, grads[path] = grads[path], jnp.zeros_like(grads[path])
      # A statistic with NaN must not enter the average. Both entries decay, so that their quotient is unbiased.
      finite = jnp.all(jnp.isfinite(statistic), axis=-1, keepdims=True)
      new: Any = self.decay * average + (1.0 - self.decay) * statistic
      averaged[path] = jnp.where(finite, new, average)
    return averaged, grads

  def update(self, value: Flat, params: Flat, step: jax.Array) -> tuple[Flat, Flat]:
    return value, {**params, **value}

  def evaluated(self, value: Flat, params: Flat) -> Flat:
    return params
