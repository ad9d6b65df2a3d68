"""Warns of slow input pipelines and of tasks that are repeated too often."""

from t2t.training.run import Callback, DispatchedStep, Run

_MOST_WAITING = 0.05  # fraction of the step time
_FIRST_STEPS = 20  # ignored, because the pipeline is still filling


class DataWarnings(Callback):
  """Warns once if steps wait for data, and once per task after `config.data.repeat_warning_epochs` epochs."""

  def __init__(self):
    self._warned_of_waiting = False
    self._repeated_tasks: set[str] = set()
    self._start = 0

  def on_start(self, run: Run) -> None:
    self._start = run.step

  def on_rollback(self, run: Run) -> None:
    self._warned_of_waiting, self._start = False, run.step

  def on_metrics(self, run: Run, step: DispatchedStep, metrics: dict[str, float]) -> None:
    number, waiting = step.step, metrics.get("input_wait_average", 0.0)
    if waiting > _MOST_WAITING and not self._warned_of_waiting and number >= self._start + _FIRST_STEPS:
      self._warned_of_waiting = True  # metrics.jsonl has the time of each step
      run.logger.say(f"step {number}: {waiting:.0%} of the time is spent waiting for data (config.data)")
    most = run.config.data.repeat_warning_epochs
    for name, epoch in step.epochs.items():
      if most and epoch >= most and name not in self._repeated_tasks:
        self._repeated_tasks.add(name)
        run.logger.say(
          f"step {number}: {name} is in epoch {epoch} (config.data.repeat_warning_epochs={most:g}). Add text to "
          "it or lower its rate"
        )
