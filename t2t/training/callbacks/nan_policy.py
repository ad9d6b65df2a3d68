"""NaN policy: stop, skip the update or roll back when a loss or gradient is not finite, or a loss spikes.

All processes read the same metrics of a step, so that all decide the same without communication.
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

from t2t import UserError
from t2t.configuration.schema import Config
from t2t.models.architecture import Batch
from t2t.param_tree import Params
from t2t.storage import logs
from t2t.training import grad_stats
from t2t.training.run import Callback, DispatchedStep, Rollback, Run

SAVED = "numbers.json"  # what a checkpoint calls the watch's memory
BAD_BATCHES = "bad_batches"  # folder of a workdir


@dataclasses.dataclass(frozen=True)
class Judgement:
  """What is to be done about a step.

  back: whether to go back to the last checkpoint.
  why: what is wrong, for people; "": nothing.
  skipped: how many updates have been left out so far; None: none may be.
  """

  back: bool = False
  why: str = ""
  skipped: int | None = None


class Watch:
  """Judges each step by its numbers, and remembers what it needs of those before it.

  Args:
    config: of the run.
    workdir: where a batch is saved that went wrong.
    params: the parameters that are trained, or their shapes.
    saved: what stands beside the checkpoint that training goes on from.
  """

  def __init__(self, config: Config, workdir: epath.Path, params: Params, saved: Mapping[str, bytes]):
    self._config, self._workdir, self._params = config, workdir, params
    self.restore(saved)

  def restore(self, saved: Mapping[str, bytes]) -> None:
    """Remembers what `state` returned before a checkpoint was saved."""
    state = json.loads(saved.get(SAVED, b"{}"))
    self._skipped, self._in_a_row = state.get("skipped", 0), state.get("in_a_row", 0)
    self._losses = collections.deque(state.get("losses", ()), maxlen=self._config.nan_policy.spike_window)

  def begin_stage(self) -> None:
    """Losses are of other data from here on, which those before say nothing of."""
    self._losses.clear()

  def state(self) -> dict[str, bytes]:
    """What a checkpoint is to hold, by name: on the first host, where there is something to remember."""
    if jax.process_index() != 0 or not (self._skipped or self._losses):
      return {}
    state = {"skipped": self._skipped, "in_a_row": self._in_a_row, "losses": list(self._losses)}
    return {SAVED: json.dumps(state).encode()}

  def judge(self, step: int, values: Mapping[str, float], squares: np.ndarray, batch: Batch) -> Judgement:
    """What is to be done about a step.

    Args:
      step: its number.
      values: loss, grad_norm, and skipped if updates may be left out.
      squares: see `grad_stats.squares`, of the gradient.
      batch: of the step, on the devices.

    Raises:
      UserError: the run is to end; the batch has been saved.
    """
    nan_policy, loss = self._config.nan_policy, values["loss"]
    if not math.isfinite(loss) or not math.isfinite(values["grad_norm"]):
      why = f"step {step}: loss {loss}, gradient norm {values['grad_norm']}: not finite"
      where = grad_stats.first_not_finite(self._params, squares)
      why += f"; the first gradient that is not: {where}" if where else ""
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
      # What is warned of is remembered as any other: where the loss stays high, it is a spike no more.
      self._losses.append(loss)
    return Judgement(why=why, skipped=self._skipped if nan_policy.on_nonfinite == "skip" else None)

  def _deviations(self, loss: float) -> float:
    """How far a loss is above the mean of those before it, in standard deviations; 0 until there are enough."""
    if len(self._losses) < self._config.nan_policy.spike_window:
      return 0.0
    deviation = float(np.std(self._losses))
    return (loss - float(np.mean(self._losses))) / max(deviation, 1e-12)

  def _skip(self, step: int, why: str, batch: Batch) -> Judgement:
    """Counts an update that the step itself has left out."""
    nan_policy, steps = self._config.nan_policy, self._config.train.steps
    self._skipped, self._in_a_row = self._skipped + 1, self._in_a_row + 1
    most = (
      max(1, nan_policy.max_skipped_fraction * steps) if nan_policy.max_skipped_fraction else 0
    )  # of a short run's few steps one may
    if self._in_a_row > nan_policy.max_consecutive_skips:
      most = nan_policy.max_consecutive_skips
      why += f"; more than config.nan_policy.max_consecutive_skips={most} updates one after another"
    elif self._skipped > most:
      fraction = nan_policy.max_skipped_fraction
      why += f"; {self._skipped} updates of {steps} steps, more than config.nan_policy.max_skipped_fraction={fraction}"
    else:
      return Judgement(why=f"{why}; its update is left out, {self._skipped} so far", skipped=self._skipped)
    return self._act("stop", step, f"{why} would be left out", batch)

  def _act(self, action: str, step: int, why: str, batch: Batch) -> Judgement:
    """Saves the batch; then goes back, or ends the run."""
    path = self._workdir / BAD_BATCHES / f"step_{step}.npz"
    try:
      save_batch(path, batch)
      why += f"; its batch is in {path}"
    except OSError as error:
      why += f"; its batch could not be saved ({error})"
    if action == "rollback":
      return Judgement(back=True, why=why)
    raise UserError(
      f"{why}; nothing was saved since. `t2t replay {self._workdir} --step {step}` looks for where it began. Lower"
      " config.optimizer.learning_rate, set config.optimizer.clip_norm=1.0, or see `t2t train --help numbers` for runs"
      " that leave such an update out, or go back; the same command again goes on from the last checkpoint"
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
      Rollback: the run is to restore its last checkpoint.
      UserError: the run is to end; the batch has been saved.
    """
    squares = jax.device_get(step.metrics["grad_squares"]).total
    verdict = self._watch.judge(step.step, metrics, squares, step.batch)
    if verdict.back:
      raise Rollback(step.step, verdict.why)
    if verdict.why:
      run.logger.say(verdict.why)
    if verdict.skipped is not None:
      metrics["skipped"] = verdict.skipped

  def on_save(self, run: Run) -> Mapping[str, bytes]:
    return self._watch.state()

  def on_rollback(self, run: Run) -> None:
    self._watch.restore(run.saved)


def save_batch(path: epath.Path, batch: Batch) -> None:
  """Writes all rows of a batch, feature by feature; called by all hosts, and the first writes.

  Args:
    path: of an .npz, local or gs://.
    batch: global arrays.

  Raises:
    OSError: it cannot be written.
  """
  rows: dict[str, Any] = {
    name: np.asarray(multihost_utils.process_allgather(x, tiled=True)) for name, x in batch.items()
  }
  if jax.process_index() == 0:
    content = io.BytesIO()
    np.savez_compressed(content, **rows)
    log = logs.Log(path, keep=lambda _: content.getvalue(), content_type="application/octet-stream")
    log.close()
