"""Detects training in which no position counts in the loss, so that nothing is learned."""

import jax

from t2t import UserError
from t2t.training.run import Callback, DispatchedStep, Run

# Batches without a counted position before a warning, and rows of such batches before the run ends.
_UNCOUNTED, _UNCOUNTED_ROWS = 10, 1_000


class Uncounted(Callback):
  """Ends a run if no position has counted in the loss since training or the stage began.

  Few examples of a task may have an answer, so a few empty batches cause a warning and many empty rows an error.
  """

  def __init__(self):
    self._uncounted: int | None = 0  # steps without a counted position; None after the first with one

  def on_stage(self, run: Run) -> None:
    self._uncounted = 0

  def on_metrics(self, run: Run, step: DispatchedStep, metrics: dict[str, float]) -> None:
    """Counts batches in which all loss weights are 0.

    Raises:
      UserError: too many rows, or all steps of the run, have no counted position.
    """
    if self._uncounted is None:
      return
    weights = [x.weight for name, x in step.metrics.items() if name == "loss" or name.endswith("_loss")]
    if any(float(weight) > 0 for weight in jax.device_get(weights)):
      self._uncounted = None
      return
    self._uncounted += 1
    text = (
      f"step {step.step}: no position counts in the loss in the {self._uncounted} batch(es) since training or "
      f"its stage began (config.train.loss={run.config.train.loss or 'cross_entropy'}: all weights are 0), so "
      "nothing is learned. Check targets, loss weights and head labels in the batches or with `t2t tasks show`, "
      "and choose a task or a loss that fits them"
    )
    rows = len(next(iter(step.batch.values())))
    is_last = step.step == run.config.train.steps
    is_enough = self._uncounted >= _UNCOUNTED and self._uncounted * rows >= _UNCOUNTED_ROWS
    if is_enough or (is_last and self._uncounted == step.step):
      raise UserError(text)
    if is_last or self._uncounted == _UNCOUNTED:
      run.logger.say(text)
