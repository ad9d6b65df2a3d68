"""Ends a run after a given step, with a checkpoint and an evaluation."""

from t2t.training.run import Callback, Run


class StopAt(Callback):
  """Ends a run after a step; a later call without this callback resumes it bit for bit.

  Unlike a smaller config.train.steps, it keeps the learning-rate schedule, which has the length of config.train.steps.

  Args:
    step: the last step of this call; a run that has reached it already is only evaluated.
    why: sentence for the log and the history.
  """

  def __init__(self, step: int, why: str):
    self._step, self._why = step, why

  def on_start(self, run: Run) -> None:
    self._decide(run)

  def on_step(self, run: Run) -> None:
    self._decide(run)

  def on_rollback(self, run: Run) -> None:
    self._decide(run)

  def _decide(self, run: Run) -> None:
    self.end_reason = self._why if run.step >= self._step else ""
