"""Checkpoints, every `config.checkpoint.save_interval_steps` steps and wherever a run ends."""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError, sharding
from t2t.param_tree import path_name
from t2t.training.run import Callback, Run
from t2t.training.train_state import TrainState


class Checkpointing(Callback):
  """Saves the state, the position in the data and the files of `on_save` of all callbacks."""

  def on_step(self, run: Run) -> None:
    """Starts to save if a checkpoint is due.

    Raises:
      UserError: the state is not finite, the workdir is no longer held, or saves have failed for too long.
    """
    if not (run.saves or run.stop.stops or run.end_reason):
      return
    run.call("on_before_save")
    with run.paused():
      run.lock.check()
      run.stop.saving()
      check_finite(run.state, step=run.step)
      # A run that resumes here finds each metric up to this step, in the files or in the checkpoint.
      beside = dict(run.batches.state(run.step))
      names = set(beside)
      for callback in run.callbacks:
        files = callback.on_save(run)
        if reserved := [name for name in files if name in names or not run.checkpoints.may_contain(name)]:
          raise UserError(
            f"{type(callback).__name__}.on_save: {reserved[0]!r} is the name of another file beside a checkpoint, or"
            " cannot be one; give another name, of letters and digits"
          )
        names |= files.keys()
        # All processes return a file under the same name: one writes it.
        beside |= files if jax.process_index() == 0 else {}
      metrics = run.measured if run.measured_step == run.step else None
      run.checkpoints.save(run.step, run.state, beside, run.resolved[run.batches.stage], metrics=metrics)
      run.saved_step = run.step


def check_finite(state: TrainState, *, step: int) -> None:
  """Refuses a state with a NaN or an infinity in it; one reduction on the devices, and a bit of each array comes back.

  The loss of a step is that of the parameters before its update, and says nothing of those behind it.  Moments that
  wait in the host's memory are not looked at: what they spoil shows in the parameters one update later.

  Args:
    state: on all hosts alike.
    step: of it, for the message.

  Raises:
    UserError: names the first parameter, or moment, that is affected.
  """
  leaves = [
    (path_name(path), x)
    for path, x in jax.tree_util.tree_leaves_with_path(state)
    if jnp.issubdtype(x.dtype, jnp.inexact) and x.sharding.memory_kind != "pinned_host"
  ]
  # Parameters before the moments that follow from them.
  leaves.sort(key=lambda leaf: leaf[0].startswith("opt_state"))
  finite = np.asarray(_are_finite(sharding.mesh_of(state.step))([x for _, x in leaves]))
  affected = [name for (name, _), good in zip(leaves, finite, strict=True) if not good]
  if affected:
    more = f" and {len(affected) - 1} more arrays" if len(affected) > 1 else ""
    raise UserError(
      f"step {step}: {affected[0]}{more} not finite after this update; it was not saved. Lower"
      " config.optimizer.learning_rate, or set config.optimizer.clip_norm=1.0; the same command again goes on from the"
      " last checkpoint"
    )


@functools.cache
def _are_finite(mesh: jax.sharding.Mesh) -> Callable[[list[jax.Array]], jax.Array]:
  """Arrays -> whether all of each is finite; every host has the whole answer."""
  return jax.jit(
    lambda arrays: jnp.stack([jnp.isfinite(x).all() for x in arrays]), out_shardings=sharding.replicated(mesh)
  )
