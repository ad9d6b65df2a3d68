"""Weight averages: a second copy of the trained parameters for evaluation and later use."""

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import optax

from t2t import UserError, did_you_mean
from t2t.configuration import section_keys
from t2t.configuration.schema import Config, OptimizerConfig
from t2t.runtime.lazy_table import LazyTable
from t2t.training.state_collections import Flat

NAME = "average"  # in the train state


class Averaging(Protocol):
  """An averaging method, built from the optimizer config; a row of `AVERAGES`."""

  def __init__(self, config: OptimizerConfig): ...

  def update(self, average: Flat, params: Flat, step: jax.Array) -> Mapping[str, jax.Array]:
    """Returns the next average.

    Args:
      average: path -> float32, initially the parameters.
      params: path -> float32, after an update.
      step: int32 [], number of updates before it.
    """


class ExponentialMovingAverage:
  """average <- d * average + (1 - d) * params, with d = min(decay, (1 + step) / (10 + step)).

  Source: TensorFlow's tf.train.ExponentialMovingAverage with num_updates, which shortens early averages.
  """

  def __init__(self, config: OptimizerConfig):
    self.decay = config.average_decay

  def update(self, average: Flat, params: Flat, step: jax.Array) -> Flat:
    decay = jnp.minimum(self.decay, (1.0 + step) / (10.0 + step))
    new_average: Any = optax.incremental_update(params, average, 1.0 - decay)
    return new_average


# config.optimizer.average -> an `Averaging`
AVERAGES: LazyTable[type[Averaging]] = LazyTable({"ema": "t2t.training.weight_average:ExponentialMovingAverage"})


@dataclasses.dataclass(frozen=True)
class Average:
  """State collection of `config.optimizer.average`: path -> float32, sharded as the parameters."""

  averaging: Averaging
  is_evaluated: bool

  by_row: ClassVar[bool] = False

  @classmethod
  def from_config(cls, config: Config) -> "Average | None":
    settings = config.optimizer
    if settings.average not in AVERAGES:
      near = did_you_mean(settings.average, AVERAGES)
      raise UserError(
        f"config.optimizer.average={settings.average!r}: unknown. Give one of {', '.join(AVERAGES)}{near or '.'}"
      )
    section_keys.check_ranges("optimizer", settings, only=("average_decay",))
    return cls(AVERAGES[settings.average](settings), config.eval.average)

  def init(self, params: Flat) -> tuple[dict[str, jax.Array], Flat]:
    return {path: jnp.copy(x) for path, x in params.items()}, params  # a copy, because the step donates the parameters

  def forward(self, value: Flat, params: Flat) -> Flat:
    return params

  def update(self, value: Flat, params: Flat, step: jax.Array) -> tuple[Flat, Flat]:
    return self.averaging.update(value, params, step), params

  def evaluated(self, value: Flat, params: Flat) -> Flat:
    return value if self.is_evaluated else params
