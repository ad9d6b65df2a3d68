"""Saves checkpoints every `config.checkpoint.save_interval_steps` steps and when a run ends."""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError, sharding
from t2t.param_tree import path_name
from t2t.training import session_clock
from t2t.training.run import Callback, Diverged, Run
from t2t.training.train_state import TrainState


class Checkpointing(Callback):
  """Saves the train state, the data position and the files that callbacks return from `on_save`."""

  def on_step(self, run: Run) -> None:
    """Starts a save if a checkpoint is due.

    Raises:
      UserError: the state is not finite, another process holds the workdir, or saves keep failing.
    """
    if not (run.saves or run.stop.stops or run.end_reason):
      return
    run.call("on_before_save")
    with run.paused(session_clock.SAVE):
      run.lock.check()
      run.stop.saving()
      check_finite(run.state, step=run.step)
      # Metrics up to this step are flushed or saved with the checkpoint, so that a resumed run has each of them.
      beside = dict(run.batches.state(run.step))
      names = set(beside)
      for callback in run.callbacks:
        files = callback.on_save(run)
        if reserved := [name for name in files if name in names or not run.checkpoints.may_contain(name)]:
          raise UserError(
            f"{type(callback).__name__}.on_save: {reserved[0]!r} is reserved, or is not a valid file name in a "
            "checkpoint. Return another name, of letters and digits."
          )
        names |= files.keys()
        # All processes return the same file names, but only the first process writes the files.
        beside |= files if jax.process_index() == 0 else {}
      metrics = run.measured if run.measured_step == run.step else None
      run.checkpoints.save(run.step, run.state, beside, run.resolved[run.batches.stage], metrics=metrics)
      run.saved_step = run.step


def check_finite(state: TrainState, *, step: int) -> None:
  """Raises an error if a state contains NaN or Inf; costs one reduction on the devices and one bit per array.

  The loss of a step belongs to the parameters before its update, so a finite loss does not prove that the new
  parameters are finite. Moments in host memory are not checked: if they are not finite, the next update makes the
  parameters so.

  Args:
    state: the same on all hosts.
    step: number of the step, for the message.

  Raises:
    Diverged: with the name of the first affected parameter or moment.
  """
  leaves = [
    (path_name(path), x)
    for path, x in jax.tree_util.tree_leaves_with_path(state)
    if jnp.issubdtype(x.dtype, jnp.inexact) and x.sharding.memory_kind != "pinned_host"
  ]
  # Parameters first, because moments follow from them.
  leaves.sort(key=lambda leaf: leaf[0].startswith("opt_state"))
  finite = np.asarray(_are_finite(sharding.mesh_of(state.step))([x for _, x in leaves]))
  affected = [name for (name, _), good in zip(leaves, finite, strict=True) if not good]
  if affected:
    more = f" and {len(affected) - 1} more arrays are" if len(affected) > 1 else " is"
    raise Diverged(
      f"step {step}: {affected[0]}{more} not finite after this update. The step was not saved. Lower "
      "config.optimizer.learning_rate or set config.optimizer.clip_norm=1.0, then run the same command again to "
      "resume from the last checkpoint."
    )


@functools.cache
def _are_finite(mesh: jax.sharding.Mesh) -> Callable[[list[jax.Array]], jax.Array]:
  """Maps arrays to one bool each, True if all values are finite; the result is replicated to every host."""
  return jax.jit(
    lambda arrays: jnp.stack([jnp.isfinite(x).all() for x in arrays]), out_shardings=sharding.replicated(mesh)
  )
