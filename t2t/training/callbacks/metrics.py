"""Reads the metrics of training steps one step late, so that devices never wait for the host."""

import collections
from collections.abc import Mapping
import math

import jax

from t2t import metrics as metrics_lib
from t2t.runtime import memory
from t2t.training.run import Callback, DispatchedStep, Run


def means(metrics: metrics_lib.Metrics) -> dict[str, float]:
  """Returns the mean of each metric; metrics of weight 0 are left out, except the loss and the accuracy."""
  always = ("loss", "accuracy")
  counted = {name: metric for name, metric in metrics.items() if metric.weight > 0 or name in always}
  return {name: float(metric.total / max(metric.weight, 1e-8)) for name, metric in counted.items()}


class Metrics(Callback):
  """Reads the metrics of each step, calls `on_metrics`, and writes a row every `config.train.log_every` steps."""

  def __init__(self):
    self._unread: collections.deque[DispatchedStep] = collections.deque()

  def on_step(self, run: Run) -> None:
    self._unread.append(run.dispatched)
    # Reads without delay before an evaluation or a save, so that the loss is known to be finite.
    self._read_steps(run, delay=0 if run.evaluates or run.saves else 1)

  def on_before_save(self, run: Run) -> None:
    self._read_steps(run, delay=0)  # a later callback may have ended the run

  def _read_steps(self, run: Run, *, delay: int) -> None:
    while len(self._unread) > delay:
      _read(run, self._unread.popleft())

  def on_rollback(self, run: Run) -> None:
    self._unread.clear()

  def on_save(self, run: Run) -> Mapping[str, bytes]:
    return run.logger.flush()


def _read(run: Run, step: DispatchedStep) -> None:
  host, number = jax.device_get(step.metrics), step.step
  for name in ("grad_squares", "skipped"):
    host.pop(name, None)
  values = means(host)
  values |= run.throughput.step(tokens=float(host["tokens"].total), wait_seconds=step.wait_seconds)
  run.call("on_metrics", step, values)
  if not run.logger.is_first:
    return
  speeds = {name: values.get(name) for name in ("tokens_per_second", "steps_per_second")}
  run.logger.progress(number, loss=values["loss"], **speeds)
  if number % run.config.train.log_every == 0 or number == run.config.train.steps:
    values["learning_rate"] = float(run.program.made.schedule(number - 1))
    values |= {f"epoch/{name}": float(epoch) for name, epoch in step.epochs.items()}
    values |= memory.used(jax.local_devices())
    # JSON has no NaN; a skipped update has metrics that are not finite.
    run.logger.write(number, {f"train/{name}": value for name, value in values.items() if math.isfinite(value)})
