"""NaN policy: stop, skip the update or roll back when a loss or gradient is not finite, or a loss spikes.

All processes read the same metrics of a step, so they decide alike without communication.
"""

import collections
from collections.abc import Mapping
import dataclasses
import io
import json
import math
from typing import Any

from etils import epath
import jax
from jax.experimental import multihost_utils
import numpy as np

from t2t.configuration.schema import Config
from t2t.models.architecture import Batch
from t2t.param_tree import Params
from t2t.storage import logs
from t2t.training import grad_stats, train_step
from t2t.training.run import Callback, DispatchedStep, Diverged, Rollback, Run

SAVED = "numbers.json"  # file name in a checkpoint
BAD_BATCHES = "bad_batches"  # folder of a workdir


@dataclasses.dataclass(frozen=True)
class Judgement:
  """Decision about one step.

  Attributes:
    back: whether to roll back to the last checkpoint.
    why: the problem, in words; "" if there is none.
    skipped: number of updates skipped so far; None if the policy does not skip updates.
  """

  back: bool = False
  why: str = ""
  skipped: int | None = None


class Watch:
  """Judges each step by its loss and gradient norm, and keeps the window of recent losses.

  Args:
    config: of the run.
    workdir: receives the batches of bad steps.
    params: the trained parameters, or their shapes.
    saved: files of the checkpoint that training resumes from.
  """

  def __init__(self, config: Config, workdir: epath.Path, params: Params, saved: Mapping[str, bytes]):
    self._config, self._workdir, self._params = config, workdir, params
    self.restore(saved)

  def restore(self, saved: Mapping[str, bytes]) -> None:
    """Restores the result of `state` from a checkpoint."""
    state = json.loads(saved.get(SAVED, b"{}"))
    self._skipped, self._in_a_row = state.get("skipped", 0), state.get("in_a_row", 0)
    self._losses = collections.deque(state.get("losses", ()), maxlen=self._config.nan_policy.spike_window)

  def begin_stage(self) -> None:
    """Clears the window, because losses of another stage are not comparable."""
    self._losses.clear()

  def state(self) -> dict[str, bytes]:
    """Returns the file to save with a checkpoint, by name; {} on other hosts and if there is nothing to save."""
    if jax.process_index() != 0 or not (self._skipped or self._losses):
      return {}
    state = {"skipped": self._skipped, "in_a_row": self._in_a_row, "losses": list(self._losses)}
    return {SAVED: json.dumps(state).encode()}

  def judge(self, step: int, values: Mapping[str, float], squares: np.ndarray, batch: Batch) -> Judgement:
    """Decides about a step.

    Args:
      step: its number.
      values: loss, grad_norm, and skipped if the policy may skip updates.
      squares: `grad_stats.squares` of the gradient.
      batch: of the step, on the devices.

    Raises:
      Diverged: the policy ends the run; the batch has been saved.
    """
    nan_policy, loss = self._config.nan_policy, values["loss"]
    if not math.isfinite(loss) or not math.isfinite(values["grad_norm"]):
      why = f"step {step}: loss {loss} or gradient norm {values['grad_norm']} is not finite"
      where = grad_stats.first_not_finite(self._params, squares)
      why += f"; first gradient that is not finite: {where}" if where else ""
      if nan_policy.on_nonfinite == "skip":
        return self._skip(step, why, batch)
      return self._act(nan_policy.on_nonfinite, step, why, batch)
    self._in_a_row, why = 0, ""
    if nan_policy.spike_deviations:
      above = self._deviations(loss)
      if above > nan_policy.spike_deviations:
        why = f"step {step}: loss {loss:.4f} is {above:.1f} standard deviations above the mean of the last"
        why += f" {nan_policy.spike_window} steps"
        if nan_policy.on_spike != "warn":
          return self._act(nan_policy.on_spike, step, why, batch)
      # Losses that triggered a warning still enter the window, so a persistently high loss stops counting as a spike.
      self._losses.append(loss)
    return Judgement(why=why, skipped=self._skipped if nan_policy.on_nonfinite == "skip" else None)

  def _deviations(self, loss: float) -> float:
    """Returns standard deviations above the mean of the window; 0 until the window is full."""
    if len(self._losses) < self._config.nan_policy.spike_window:
      return 0.0
    deviation = float(np.std(self._losses))
    return (loss - float(np.mean(self._losses))) / max(deviation, 1e-12)

  def _skip(self, step: int, why: str, batch: Batch) -> Judgement:
    """Counts an update that the compiled step skipped."""
    nan_policy, steps = self._config.nan_policy, self._config.train.steps
    self._skipped, self._in_a_row = self._skipped + 1, self._in_a_row + 1
    most = (
      max(1, nan_policy.max_skipped_fraction * steps) if nan_policy.max_skipped_fraction else 0
    )  # a short run may skip one
    if self._in_a_row > nan_policy.max_consecutive_skips:
      most = nan_policy.max_consecutive_skips
      why += f"; more than config.nan_policy.max_consecutive_skips={most} consecutive updates"
    elif self._skipped > most:
      fraction = nan_policy.max_skipped_fraction
      why += f"; {self._skipped} updates of {steps} steps, more than config.nan_policy.max_skipped_fraction={fraction}"
    else:
      return Judgement(why=f"{why}; the update is skipped ({self._skipped} so far)", skipped=self._skipped)
    return self._act("stop", step, f"{why} would be skipped", batch)

  def _act(self, action: str, step: int, why: str, batch: Batch) -> Judgement:
    """Saves the batch, then rolls back or ends the run."""
    path = self._workdir / BAD_BATCHES / f"step_{step}.npz"
    try:
      save_batch(path, batch)
      why += f"; the batch is in {path}"
    except OSError as error:
      why += f"; the batch could not be saved ({error})"
    if action == "rollback":
      return Judgement(back=True, why=why)
    raise Diverged(
      f"{why}. This step was not saved. Run `t2t replay {self._workdir} --step {step}` to find the origin. Then "
      "lower config.optimizer.learning_rate, set config.optimizer.clip_norm=1.0, or set "
      "config.nan_policy.on_nonfinite=skip or rollback (see `t2t train --help nan_policy`). Run the same command "
      "again to resume from the last checkpoint."
    )


class NanPolicy(Callback):
  """Applies `config.nan_policy` to each step."""

  def on_start(self, run: Run) -> None:
    self._watch = Watch(run.config, run.workdir, run.program.program.state.params, run.saved)

  def on_stage(self, run: Run) -> None:
    self._watch.begin_stage()

  def on_metrics(self, run: Run, step: DispatchedStep, metrics: dict[str, float]) -> None:
    """Judges a step.

    Raises:
      Rollback: the run must restore its last checkpoint.
      Diverged: the policy ends the run; the batch has been saved.
    """
    squares = jax.device_get(step.metrics["grad_squares"]).total
    verdict = self._watch.judge(step.step, metrics, squares, step.batch)
    if verdict.back:
      raise Rollback(step.step, verdict.why)
    if verdict.why:
      run.logger.say(verdict.why)
    if rows := metrics.get(train_step.RESET_ROWS):
      run.logger.say(f"step {step.step}: carried states of {rows:.0f} rows are not finite and begin with zeros again")
    if verdict.skipped is not None:
      metrics["skipped"] = verdict.skipped

  def on_save(self, run: Run) -> Mapping[str, bytes]:
    return self._watch.state()

  def on_rollback(self, run: Run) -> None:
    self._watch.restore(run.saved)


def save_batch(path: epath.Path, batch: Batch) -> None:
  """Writes all rows of a batch, feature by feature; all hosts call it, and the first host writes.

  Args:
    path: of an .npz, local or gs://.
    batch: global arrays.

  Raises:
    OSError: the file cannot be written.
  """
  rows: dict[str, Any] = {
    name: np.asarray(multihost_utils.process_allgather(x, tiled=True)) for name, x in batch.items()
  }
  if jax.process_index() == 0:
    content = io.BytesIO()
    np.savez_compressed(content, **rows)
    log = logs.Log(path, keep=lambda _: content.getvalue(), content_type="application/octet-stream")
    log.close()
