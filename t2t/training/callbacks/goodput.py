"""Assigns the time of steps to the phases of the run's clock (`training.session_clock`)."""

from collections.abc import Mapping
import time
from typing import Any

import jax

from t2t.models.architecture import Batch
from t2t.training import session_clock
from t2t.training.run import Callback, Run

_SAMPLE_SECONDS = 10.0  # between measurements of the devices' time of a step


class Goodput(Callback):
  """Tells the clock when a step begins, and how long the devices were idle because they waited for a batch.

  A wait counts as far as the devices had finished the step before it. The time that they need for a step is measured
  by waiting for a step, but only where they were idle before it, so that they never wait for the host.
  """

  def __init__(self):
    self._compiles, self._is_idle = True, False
    self._began, self._sampled, self._device_seconds = 0.0, -_SAMPLE_SECONDS, 0.0

  def on_start(self, run: Run) -> None:
    run.clock.step = run.step
    run.clock.saved(run.step)
    run.clock.record(session_clock.STARTED)

  def on_stage(self, run: Run) -> None:
    self._compiles, self._device_seconds, self._sampled = True, 0.0, -_SAMPLE_SECONDS

  def on_batch(self, run: Run, batch: Batch) -> None:
    now = time.monotonic()
    if self._compiles:
      run.clock.enter(session_clock.COMPILE)
      return
    run.clock.enter(session_clock.STEP)
    loss: Any = run.dispatched.metrics["loss"].total
    self._is_idle = loss.is_ready()
    if self._is_idle:
      idle = now - (self._began + self._device_seconds)
      run.clock.move(session_clock.STEP, session_clock.INPUT, min(run.batches.wait_seconds, idle))
    self._began = now

  def on_step(self, run: Run) -> None:
    run.clock.step = run.step
    if self._compiles:
      self._compiles, self._began = False, time.monotonic()
      run.clock.enter(session_clock.STEP)
    elif self._is_idle and self._began - self._sampled > _SAMPLE_SECONDS:
      jax.block_until_ready(run.dispatched.metrics["loss"].total)
      self._device_seconds, self._sampled = time.monotonic() - self._began, self._began

  def on_save(self, run: Run) -> Mapping[str, bytes]:
    run.clock.saved(run.step)
    return {}

  def on_rollback(self, run: Run) -> None:
    run.clock.rolled_back(run.step)

  def on_stop(self, run: Run) -> None:
    run.clock.record(session_clock.STOPPED)

  def on_end(self, run: Run) -> None:
    run.clock.record(session_clock.FINISHED)
