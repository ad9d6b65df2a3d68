"""Saves again as soon as the last save has ended: `config.checkpoint.continuous`.

The first process alone looks whether its save has ended, and requests the next one as a signal does
(`runtime.sync_point`): all processes save after the same step, without a collective in each step. Orbax's
`ContinuousCheckpointingPolicy` broadcasts its decision at every step.
"""

import time

import jax

from t2t.runtime import sync_point
from t2t.training.run import Callback, Run


class ContinuousSaves(Callback):
  """Requests a save when none is running and another one would end before the next step that is saved anyway."""

  def __init__(self):
    self._step: int | None = None  # of the last save
    self._began = time.monotonic()
    self._steps = 0  # that the last save took
    self._was_idle = self._requested = False

  def on_step_end(self, run: Run) -> None:
    """Requests a save of all processes after the next step."""
    if jax.process_index() != sync_point.FIRST:
      return
    if run.saved_step == run.step:
      self._step, self._began = run.step, time.monotonic()
      self._was_idle = self._requested = False
      return
    if not run.checkpoints.is_idle:
      return
    if not self._was_idle:
      self._steps = run.step - self._step if self._step is not None else 0
      self._was_idle = True
    seconds = time.monotonic() - self._began
    settings = run.program.stage.config.checkpoint
    if self._requested or seconds < settings.continuous_min_seconds:
      return
    # Otherwise training would wait for this save when the next one begins.
    if _steps_to_save(run, settings.save_interval_steps) > max(1, self._steps):
      self._requested = True
      run.stop.ask(sync_point.SyncRequest(sync_point.SAVE, 0, "the last save has ended"))

  def on_rollback(self, run: Run) -> None:
    """Forgets the last save, which may be later than the restored one."""
    self._step, self._requested = None, False


def _steps_to_save(run: Run, every: int) -> int:
  """Returns the number of steps until the next one that is saved in any case."""
  return min(every - run.step % every, run.program.stage.end - run.step)
