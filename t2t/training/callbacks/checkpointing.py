"""Checkpoints, every `config.checkpoint.every` steps and wherever a run ends."""

from t2t import UserError
from t2t.training import nan_check
from t2t.training.run import Callback, Run


class Checkpointing(Callback):
  """Saves the state, the position in the data and the files of `on_save` of all callbacks."""

  def on_step(self, run: Run) -> None:
    """Starts to save if a checkpoint is due.

    Raises:
      UserError: the state is not finite, the workdir is no longer held, or saves have failed for too long.
    """
    if not (run.saves or run.stop.stops or run.end_reason):
      return
    with run.paused():
      run.lock.check()
      run.stop.saving()
      nan_check.check(run.state, step=run.step)
      # A run that resumes here finds each metric up to this step, in the files or in the checkpoint.
      beside = dict(run.batches.state(run.step))
      for callback in run.callbacks:
        files = callback.on_save(run)
        if taken := [name for name in files if name in beside or name.startswith("stream-") or "/" in name]:
          raise UserError(
            f"{type(callback).__name__}.on_save: a checkpoint has a file {taken[0]!r} of its own; give another name,"
            " without a slash"
          )
        beside |= files
      metrics = run.measured if run.measured_step == run.step else None
      run.checkpoints.save(run.step, run.state, beside, run.resolved[run.batches.stage], metrics=metrics)
      run.saved_step = run.step
