"""Averaging of weights that begins when the held-out loss stops to improve (NT-ASGD).

Source: Merity et al. 2017, section 3, algorithm 1.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2t.configuration.schema import OptimizerConfig
from t2t.param_tree import Params
from t2t.runtime import hosts
from t2t.training import weight_average
from t2t.training.run import Callback, Run
from t2t.training.state_collections import Flat

SAVED = "nt_asgd.json"  # file name in a checkpoint
_COUNT, _STARTED = "count", "started"


def triggers(losses: Sequence[float], loss: float, interval: int) -> bool:
  """Returns whether a held-out loss is above the best of all losses before, without the last `interval`.

  In:  [3.0, 2.0, 2.5], 2.1, interval 1
  Out: True

  Args:
    losses: of earlier evaluations.
    loss: of the present one.
    interval: n of the paper.
  """
  return len(losses) > interval and loss > min(losses[: len(losses) - interval])


class TriggeredAverage:
  """Mean of the parameters after each step since the trigger; before it, the parameters. A row of `AVERAGES`."""

  def __init__(self, config: OptimizerConfig):
    del config

  def init(self, params: Flat) -> Params:
    del params
    return {_COUNT: jnp.zeros((), jnp.int32), _STARTED: jnp.zeros((), jnp.int32)}

  def update(self, average: Params, params: Flat, step: jax.Array) -> Params:
    del step
    old: Any = average
    more = old[weight_average.MORE]
    count = more[_COUNT] + more[_STARTED]
    mean = lambda path, x: jnp.where(count > 1, old[path] + (x - old[path]) / jnp.maximum(count, 1), x)
    return {path: mean(path, x) for path, x in params.items()} | {weight_average.MORE: {**more, _COUNT: count}}


class NtAsgd(Callback):
  """Starts `TriggeredAverage` at the first evaluation that `triggers`; a resumed run continues exactly.

  The interval is `config.optimizer.average_last`. The start is a number in the train state, so checkpoints contain it.
  """

  def on_start(self, run: Run) -> None:
    self._restore(run.saved)

  def on_rollback(self, run: Run) -> None:
    self._restore(run.saved)

  def on_stage(self, run: Run) -> None:
    del run
    self._losses = []  # losses of different stages are not comparable

  def _restore(self, saved: Mapping[str, bytes]) -> None:
    self._losses: list[float] = json.loads(saved.get(SAVED, b"[]"))

  def on_evaluation(self, run: Run, step: int, metrics: Mapping[str, float]) -> None:
    if run.finished:
      return
    loss, interval = hosts.share(metrics["loss"]), run.config.optimizer.average_last
    loss = math.inf if math.isnan(loss) else loss
    average: Any = run.state.collections[weight_average.NAME]
    more = average[weight_average.MORE]
    if triggers(self._losses, loss, interval) and not int(more[_STARTED]):
      started = jax.device_put(np.ones((), np.int32), more[_STARTED].sharding)
      average = {**average, weight_average.MORE: {**more, _STARTED: started}}
      run.state = dataclasses.replace(run.state, collections={**run.state.collections, weight_average.NAME: average})
      run.remark(
        step,
        f"the average of the weights starts after step {step}: held-out loss {loss:.4f} is above "
        f"{min(self._losses[: len(self._losses) - interval]):.4f}, the best before the last {interval} evaluations "
        "(config.optimizer.average=nt_asgd)",
      )
    self._losses.append(loss)

  def on_save(self, run: Run) -> Mapping[str, bytes]:
    del run
    return {SAVED: json.dumps(self._losses).encode()} if jax.process_index() == 0 else {}
