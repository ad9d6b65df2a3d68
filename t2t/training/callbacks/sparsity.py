"""Logs the fraction of zeros of pruned parameters."""

from typing import Any

import jax

from t2t.runtime import hosts
from t2t.training import sparsity
from t2t.training.run import Callback, DispatchedStep, Run


class Sparsity(Callback):
  """Adds `sparsity` to the metrics of logged steps, and prints it at the end."""

  def __init__(self):
    self._counted: dict[int, Any] = {}

  def on_step(self, run: Run) -> None:
    if run.step % run.config.train.log_every == 0 or run.step == run.config.train.steps:
      self._counted[run.step] = sparsity.share(sparsity.pruned(run.state.params, run.config.optimizer))

  def on_metrics(self, run: Run, step: DispatchedStep, metrics: dict[str, float]) -> None:
    if counted := self._counted.pop(step.step, None):
      metrics["sparsity"] = sparsity.joined(jax.device_get(counted[0]), counted[1])

  def on_rollback(self, run: Run) -> None:
    self._counted.clear()

  def on_end(self, run: Run) -> None:
    fractions, sizes = sparsity.share(sparsity.pruned(run.state.params, run.config.optimizer))
    value = sparsity.joined(jax.device_get(fractions), sizes)
    run.logger.end()
    hosts.log_once(f"pruned: {sparsity.text(value, sum(sizes))}")
