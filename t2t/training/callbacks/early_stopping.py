"""Early stopping: ends a run when a metric has not improved for `config.eval.patience` evaluations."""

from collections.abc import Mapping
import json
import math

import jax

from t2t.configuration.schema import EvalConfig
from t2t.runtime import hosts
from t2t.training import config_checks
from t2t.training.run import Callback, Run

SAVED = "early.json"  # file name in a checkpoint


class EarlyStop:
  """Decides when a run ends, by the number of evaluations without improvement (Prechelt 1998).

  Args:
    config: of the run.
    saved: files of the checkpoint that training resumes from.
  """

  def __init__(self, config: EvalConfig, saved: Mapping[str, bytes]):
    self._config = config
    self.restore(saved)

  def restore(self, saved: Mapping[str, bytes]) -> None:
    """Restores the result of `state` from a checkpoint."""
    state = json.loads(saved.get(SAVED, b"{}"))
    self._best, self._step, self._since = state.get("best"), state.get("step", 0), state.get("since", 0)

  def state(self) -> dict[str, bytes]:
    """Returns the file to save with a checkpoint, by name; {} on other hosts and before the first evaluation."""
    if jax.process_index() != 0 or self._best is None:
      return {}
    return {SAVED: json.dumps({"best": self._best, "step": self._step, "since": self._since}).encode()}

  def begin_stage(self) -> None:
    """Resets the state, because metrics of different stages are not comparable."""
    self.restore({})

  def note(self, step: int, measured: Mapping[str, float]) -> None:
    """Adds an evaluation; the metrics are the same on all hosts.

    Raises:
      UserError: the metrics lack `config.eval.early_stopping_metric`.
    """
    name = self._config.early_stopping_metric
    if not self._config.patience:
      return
    config_checks.check_measured(self._config, measured)
    value = hosts.share(measured[name])
    sign = -1 if name == "loss" else 1
    worth = lambda x: -math.inf if math.isnan(x) else sign * x  # any number is better than NaN
    if self._best is None or worth(value) > worth(self._best):
      self._best, self._step, self._since = value, step, 0
    else:
      self._since += 1

  @property
  def why(self) -> str:
    """Reason for ending the run; "" if it continues."""
    if not 0 < self._config.patience <= self._since:
      return ""
    return (
      f"{self._config.early_stopping_metric} {self._best:.4f} of step {self._step} did not improve in "
      f"{self._since} evaluation{'s' * (self._since != 1)} (config.eval.patience={self._config.patience}): the "
      "run ends here"
    )


class EarlyStopping(Callback):
  """Ends a run by `config.eval.patience` and `config.eval.early_stopping_metric`."""

  def on_start(self, run: Run) -> None:
    self._early = EarlyStop(run.config.eval, run.saved)
    self.end_reason = self._early.why

  def on_stage(self, run: Run) -> None:
    self._early.begin_stage()
    self.end_reason = self._early.why

  def on_evaluation(self, run: Run, step: int, metrics: Mapping[str, float]) -> None:
    if not run.finished:
      self._early.note(step, metrics)
      self.end_reason = self._early.why

  def on_save(self, run: Run) -> Mapping[str, bytes]:
    return self._early.state()

  def on_rollback(self, run: Run) -> None:
    self._early.restore(run.saved)
    self.end_reason = self._early.why
