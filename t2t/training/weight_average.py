"""Weight averages: a second copy of the trained parameters for evaluation and later use."""

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax

from t2t import UserError, did_you_mean
from t2t.configuration import section_keys
from t2t.configuration.schema import Config, OptimizerConfig
from t2t.param_tree import Params
from t2t.runtime.lazy_table import LazyTable
from t2t.training.state_collections import Flat

NAME = "average"  # in the train state
MORE = "_more"  # key of other state of an averaging method; no path of a parameter


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


@runtime_checkable
class Stateful(Protocol):
  """An averaging method with more state than the average.

  `update` receives and returns the average with this state under `MORE`.
  """

  def init(self, params: Flat) -> Params:
    """Returns the state at step 0; an array with a parameter's path as last key is sharded as the parameter."""


class LatestWeightAverage:
  """Mean of the parameters after each of the last `average_last` multiples of `average_every` steps (LAWA).

  Before the first multiple the average is the parameters. The state has a copy of the parameters for each multiple, so
  a resumed run continues exactly.

  Source: Kaddour 2022, "Stop Wasting My Time! Saving Days of ImageNet and BERT Training with Latest Weight Averaging".
  Sanyal et al. 2023 average five checkpoints, as Vaswani et al. 2017 did at the end.
  """

  def __init__(self, config: OptimizerConfig):
    self.last, self.every = config.average_last, config.average_every

  def init(self, params: Flat) -> Params:
    # Zeros are masked by the count.
    snapshots: Params = {str(i): {path: jnp.zeros_like(x) for path, x in params.items()} for i in range(self.last)}
    return {"count": jnp.zeros((), jnp.int32), "snapshots": snapshots}

  def update(self, average: Params, params: Flat, step: jax.Array) -> Params:
    old: Any = average
    more = old[MORE]

    def push() -> dict[str, Any]:
      latest = [dict(params), *(more["snapshots"][str(i)] for i in range(self.last - 1))]
      count = jnp.minimum(more["count"] + 1, self.last)
      mean = lambda path: sum(jnp.where(i < count, x[path], 0) for i, x in enumerate(latest)) / count
      snapshots = {str(i): x for i, x in enumerate(latest)}
      return {path: mean(path) for path in params} | {MORE: {"count": count, "snapshots": snapshots}}

    def keep() -> dict[str, Any]:
      kept: Params = {path: jnp.where(more["count"] > 0, old[path], x) for path, x in params.items()}
      return kept | {MORE: more}

    return jax.lax.cond((step + 1) % self.every == 0, push, keep)


# config.optimizer.average -> an `Averaging`
AVERAGES: LazyTable[type[Averaging]] = LazyTable(
  {
    "ema": "t2t.training.weight_average:ExponentialMovingAverage",
    "lawa": "t2t.training.weight_average:LatestWeightAverage",
    "nt_asgd": "t2t.contrib.recurrent.nt_asgd:TriggeredAverage",
  }
)


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
    section_keys.check_ranges("optimizer", settings, only=("average_decay", "average_last", "average_every"))
    if not settings.average_every:
      settings = dataclasses.replace(settings, average_every=config.checkpoint.save_interval_steps)
    return cls(AVERAGES[settings.average](settings), config.eval.average)

  def init(self, params: Flat) -> tuple[Params, Flat]:
    copied = {path: jnp.copy(x) for path, x in params.items()}  # a copy, because the step donates the parameters
    more = {MORE: self.averaging.init(params)} if isinstance(self.averaging, Stateful) else {}
    return copied | more, params

  def forward(self, value: Flat, params: Flat) -> Flat:
    return params

  def update(self, value: Flat, params: Flat, step: jax.Array) -> tuple[Flat, Flat]:
    return self.averaging.update(value, params, step), params

  def evaluated(self, value: Flat, params: Flat) -> Flat:
    return {path: value[path] for path in params} if self.is_evaluated else params
