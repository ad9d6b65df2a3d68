"""Rollback of a run to its last checkpoint, skipping the batches after it.

Each rollback is recorded in the workdir before it happens.  A later run from its checkpoint (resumed or `t2t replay`)
skips the same batches; later saved steps have skipped them already.
"""

from collections.abc import Sequence
import json
from typing import TYPE_CHECKING, NamedTuple

from etils import epath
import jax

from t2t import UserError
from t2t.checkpoints import manager, restore, verify
from t2t.configuration.schema import Config
from t2t.runtime import hosts
from t2t.storage import logs
from t2t.training.run import Diverged
from t2t.training.train_state import TrainState

if TYPE_CHECKING:
  from t2t.data.stage_iterator import StagedBatches

NAME = "went_back.jsonl"  # file in a workdir with a line for each rollback


class Turn(NamedTuple):
  """A rollback from a step to a checkpoint, which skips the step - checkpoint batches in between."""

  checkpoint: int
  step: int


def turns(workdir: epath.Path) -> list[Turn]:
  """Returns the rollbacks of a run, in order.

  Raises:
    UserError: the file is damaged.
  """
  path, past_turns = workdir / NAME, []
  for number, line in enumerate(logs.read(path).splitlines() if path.exists() else (), start=1):
    try:
      turn = Turn(**json.loads(line))
      if not all(type(value) is int for value in turn) or not 0 < turn.checkpoint < turn.step:
        raise ValueError(f"{line!r} must have two whole numbers with 0 < checkpoint < step")
      past_turns.append(turn)
    except (ValueError, TypeError) as error:
      raise UserError(
        f"{path}, line {number} is not a valid rollback ({error}). Restore the file; a valid line is "
        '{"checkpoint": 100, "step": 117}.'
      ) from error
  return past_turns


def on_all_hosts(workdir: epath.Path) -> list[Turn]:
  """Returns the rollbacks on all hosts; the first host reads them."""
  return [Turn(*fields) for fields in hosts.share(turns(workdir) if jax.process_index() == 0 else [])]


def since(workdir: epath.Path, step: int) -> list[Turn]:
  """Returns, on all hosts, the rollbacks of a run resumed from `step`; removes later ones from the file.

  Raises:
    UserError: see `turns`.
  """
  all_turns = on_all_hosts(workdir)
  kept_turns = [turn for turn in all_turns if turn.checkpoint <= step]
  if kept_turns != all_turns and jax.process_index() == 0:
    _write(workdir, kept_turns)
  return kept_turns


def _write(workdir: epath.Path, kept_turns: Sequence[Turn]) -> None:
  content = b"".join(json.dumps(turn._asdict()).encode() + b"\n" for turn in kept_turns)
  logs.Log(workdir / NAME, keep=lambda _: content).close()


def pass_over(batches: "StagedBatches", taken: Sequence[Turn], step: int) -> None:
  """Skips the batches of rollbacks to `step`, at which the data is positioned (`stage_iterator.StagedBatches`)."""
  for turn in taken:
    if turn.checkpoint == step:
      batches.leave_out(turn.checkpoint, turn.step)


def left_out(workdir: epath.Path, begin: int, end: int) -> int:
  """Returns the number of batches skipped at the beginning of a stage.

  These belong to rollbacks to a checkpoint of an earlier stage.

  Args:
    workdir: of the run.
    begin, end: completed steps at the beginning and the end of the stage.
  """
  return sum(min(turn.step, end) - begin for turn in on_all_hosts(workdir) if turn.checkpoint <= begin < turn.step)


def restore_step(
  checkpoints: manager.Checkpoints,
  step: int,
  abstract: TrainState,
  stream_names: tuple[str, ...],
  *,
  config: Config,
  moved_to: str = "",
) -> tuple[TrainState, dict[str, bytes]]:
  """Restores a step of a run, including parameters that adapter steps leave out (`adapter_restore`)."""
  if config.adapters or config.optimizer.fisher or restore.has_base(checkpoints.directory / str(step)):
    from t2t.checkpoints import adapter_restore

    return adapter_restore.restore_step(checkpoints, step, abstract, stream_names, config=config, moved_to=moved_to)
  return checkpoints.restore(step, abstract, stream_names)


def go_back(
  step: int, why: str, config: Config, checkpoints: manager.Checkpoints, abstract: TrainState, batches: "StagedBatches"
) -> tuple[TrainState, int, dict[str, bytes]]:
  """Rolls back to the last checkpoint, and positions the data after the batch of `step`.

  Args:
    step: failed step.
    why: reason, for messages.
    config: of the run.
    checkpoints: of the workdir; a running save is awaited.
    abstract: see `Checkpoints.restore`.
    batches: the training data.

  Returns:
    The state, its step, and the files saved beside it.

  Raises:
    UserError: there is no checkpoint, or it was made after `step`.
    Diverged: the limit of rollbacks is reached.
  """
  checkpoints.wait()
  saved_step, workdir = checkpoints.latest_step(), checkpoints.directory.parent
  if saved_step is None:
    raise UserError(
      f"{why}; there is no checkpoint for a rollback. Lower config.checkpoint.save_interval_steps, and check "
      "that saving works."
    )
  if step <= saved_step:
    raise UserError(
      f"{why}; no rollback before the batch of step {step} is possible, because the last checkpoint is of step "
      f"{saved_step}. Raise Rollback earlier, in Callback.on_metrics, or delete the checkpoint "
      f"{checkpoints.directory / str(saved_step)}."
    )
  taken, most = since(workdir, saved_step), config.nan_policy.max_rollbacks
  if len(taken) >= most:
    raise Diverged(
      f"{why}; the run has rolled back {len(taken)} times, the limit of config.nan_policy.max_rollbacks={most}. Lower"
      " --config.optimizer.learning_rate, or raise the limit; the same command resumes from the last checkpoint."
    )
  # Verify again: hours may have passed since the last rollback to it.
  verify.check(checkpoints.directory / str(saved_step), where="--workdir ", again=True)
  taken.append(Turn(saved_step, step))
  if jax.process_index() == 0:
    _write(workdir, taken)
  hosts.log_once(
    f"{why}; rolling back to step {saved_step}, and skipping the {step - saved_step} batches after it; metrics "
    "after it are deleted"
  )
  state, saved = restore_step(checkpoints, saved_step, abstract, batches.stream_names, config=config)
  batches.restore(saved, step=saved_step)
  pass_over(batches, taken, saved_step)
  return state, saved_step, saved
