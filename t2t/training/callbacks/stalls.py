"""Times of steps for the watchdog, which reports a step that takes much longer than others."""

from t2t.training.run import Callback, Run


class Stalls(Callback):
  """Tells the watchdog that a step has ended, if its metrics have been read while the next one runs."""

  def __init__(self):
    self._follows = False

  def on_step(self, run: Run) -> None:
    if self._follows:
      run.watchdog.step()
    self._follows = not (run.evaluates or run.saves)

  def on_rollback(self, run: Run) -> None:
    self._follows = False
