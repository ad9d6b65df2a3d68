"""Reports step times to the watchdog, which warns of steps that take much longer than others."""

from t2t.training.run import Callback, Run


class Stalls(Callback):
  """Notifies the watchdog of each step that directly follows another, without an evaluation or a save between them."""

  def __init__(self):
    self._follows = False

  def on_step(self, run: Run) -> None:
    if self._follows:
      run.watchdog.step()
    self._follows = not (run.evaluates or run.saves)

  def on_rollback(self, run: Run) -> None:
    self._follows = False
