"""Sends metrics to the experiment tracker (`config.logging.tracker`) from the first process."""

from collections.abc import Mapping

import jax

from t2t.training import trackers, tracking
from t2t.training.run import Callback, Run


class Tracker(Callback):
  """Sends each row of metrics to a tracker."""

  def __init__(self):
    self._tracking: tracking.Tracking | None = None
    self._outcome = trackers.FAILED

  def on_start(self, run: Run) -> None:
    if jax.process_index() == 0:
      logging = run.config.logging
      self._tracking = tracking.Tracking(
        logging.tracker, logging.project, run.resolved[-1], run.workdir, run.logger.say
      )

  def on_log(self, run: Run, step: int, row: Mapping[str, float]) -> None:
    assert self._tracking is not None
    self._tracking.write(step, row)

  def on_end(self, run: Run) -> None:
    self._outcome = trackers.FINISHED

  def on_stop(self, run: Run) -> None:
    self._outcome = trackers.STOPPED

  def on_close(self, run: Run) -> None:
    if self._tracking is not None:
      self._tracking.finish(self._outcome)
