"""Batches in which no position counts: the loss is 0, and nothing is learned."""

import jax

from t2t import UserError
from t2t.training.run import Callback, DispatchedStep, Run

# Batches without a counted position after which it is reported, and rows of such batches after which a run ends.
_UNCOUNTED, _UNCOUNTED_ROWS = 10, 1_000


class Uncounted(Callback):
  """Ends a run in which no position has counted since training or its stage began.

  Few examples of a task may have an answer: a few batches without one are reported, many rows end the run.
  """

  def __init__(self):
    self._uncounted: int | None = 0  # steps in which nothing has counted; None: something has

  def on_stage(self, run: Run) -> None:
    self._uncounted = 0

  def on_metrics(self, run: Run, step: DispatchedStep, metrics: dict[str, float]) -> None:
    """Counts batches of which no term of the loss has a weight.

    Raises:
      UserError: too many rows, or all steps of the run, have none.
    """
    if self._uncounted is None:
      return
    weights = [x.weight for name, x in step.metrics.items() if name == "loss" or name.endswith("_loss")]
    if any(float(weight) > 0 for weight in jax.device_get(weights)):
      self._uncounted = None
      return
    self._uncounted += 1
    text = (
      f"step {step.step}: in the {self._uncounted} batch(es) since training or its stage began no position counts in"
      f" the loss (config.train.loss={run.config.train.loss or 'cross_entropy'}: all weights are 0), so that nothing is"
      " learned. Look at the targets, loss weights and questions of heads that the data makes, with `t2t tasks show`"
      " or in the batches themselves, and give a task or a loss that goes with them"
    )
    rows = len(next(iter(step.batch.values())))
    is_last = step.step == run.config.train.steps
    is_enough = self._uncounted >= _UNCOUNTED and self._uncounted * rows >= _UNCOUNTED_ROWS
    if is_enough or (is_last and self._uncounted == step.step):
      raise UserError(text)
    if is_last or self._uncounted == _UNCOUNTED:
      run.logger.say(text)
