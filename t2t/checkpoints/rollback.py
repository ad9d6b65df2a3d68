"""How a run goes back to its last checkpoint, and passes over the batches that went wrong behind it.

Each turn is noted in the workdir before it is taken.  Whoever comes to its checkpoint later, the same command again or
`t2t replay`, passes over the same batches; steps that were saved behind it have passed over them already.
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
from t2t.training.train_state import TrainState

if TYPE_CHECKING:
  from t2t.data.stage_iterator import StagedBatches

NAME = "went_back.jsonl"  # in a workdir: a line for each turn


class Turn(NamedTuple):
  """A run went back from a step to a checkpoint, so that step - checkpoint batches behind it are passed over."""

  checkpoint: int
  step: int


def turns(workdir: epath.Path) -> list[Turn]:
  """Those that a run has taken, in order.

  Raises:
    UserError: the file is damaged.
  """
  path, past_turns = workdir / NAME, []
  for number, line in enumerate(logs.read(path).splitlines() if path.exists() else (), start=1):
    try:
      turn = Turn(**json.loads(line))
      if not all(type(value) is int for value in turn) or not 0 < turn.checkpoint < turn.step:
        raise ValueError("whole numbers, of which the second is larger")
      past_turns.append(turn)
    except (ValueError, TypeError) as error:
      raise UserError(
        f'{path}, line {number}: not a turn ({error}); one is {{"checkpoint": 100, "step": 117}}: restore the file'
      ) from error
  return past_turns


def on_all_hosts(workdir: epath.Path) -> list[Turn]:
  """`turns`, which the first host reads."""
  return [Turn(*fields) for fields in hosts.share(turns(workdir) if jax.process_index() == 0 else [])]


def since(workdir: epath.Path, step: int) -> list[Turn]:
  """The turns of a run that goes on from `step`, on all hosts; those to later checkpoints are forgotten, as these are.

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
  """Takes the batches from the data that are passed over at `step`, where it stands (`staged.StagedBatches`)."""
  for turn in taken:
    if turn.checkpoint == step:
      batches.leave_out(turn.checkpoint, turn.step)


def left_out(workdir: epath.Path, begin: int, end: int) -> int:
  """How many batches are passed over where a stage of the run begins.

  Those from which the run has gone back to a checkpoint of an earlier stage.

  Args:
    workdir: of the run.
    begin, end: steps made when the stage begins and when it ends.
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
  """Restores a step of a run, including parameters that steps of an adapter leave out (`adapter_restore`)."""
  if config.adapters or config.optimizer.fisher or restore.has_base(checkpoints.directory / str(step)):
    from t2t.checkpoints import adapter_restore

    return adapter_restore.restore_step(checkpoints, step, abstract, stream_names, config=config, moved_to=moved_to)
  return checkpoints.restore(step, abstract, stream_names)


def go_back(
  step: int, why: str, config: Config, checkpoints: manager.Checkpoints, abstract: TrainState, batches: "StagedBatches"
) -> tuple[TrainState, int, dict[str, bytes]]:
  """The state of the last checkpoint; the data stands behind the batch of `step`, however far it had come.

  Args:
    step: that went wrong.
    why: what is wrong, for messages.
    config: of the run.
    checkpoints: of the workdir; what is being saved is waited for.
    abstract: see `Checkpoints.restore`.
    batches: the training data.

  Returns:
    The state, its step, and what was saved beside it.

  Raises:
    UserError: there is no checkpoint, it was made after `step`, or the run has gone back too often.
  """
  checkpoints.wait()
  saved_step, workdir = checkpoints.latest_step(), checkpoints.directory.parent
  if saved_step is None:
    raise UserError(
      f"{why}; there is no checkpoint to go back to: lower config.checkpoint.save_interval_steps, if one could be"
      " saved at all"
    )
  if step <= saved_step:
    raise UserError(
      f"{why}; the run cannot go back before the batch of step {step}: the last checkpoint, of step {saved_step}, has"
      " learned from it. Raise Rollback before that step is saved (in Callback.on_metrics), or delete the checkpoint,"
      f" {checkpoints.directory / str(saved_step)}"
    )
  taken, most = since(workdir, saved_step), config.nan_policy.max_rollbacks
  if len(taken) >= most:
    raise UserError(
      f"{why}; the run has gone back {len(taken)} times, and config.nan_policy.max_rollbacks={most}: lower"
      " config.optimizer.learning_rate, or raise the limit; the same command again goes on from the last checkpoint"
    )
  # Hours may have passed since the run has gone back to it before.
  verify.check(checkpoints.directory / str(saved_step), where="--workdir ", again=True)
  taken.append(Turn(saved_step, step))
  if jax.process_index() == 0:
    _write(workdir, taken)
  hosts.log_once(
    f"{why}; going back to step {saved_step}, and passing over the {step - saved_step} batches behind it; what was"
    " measured since is taken away"
  )
  state, saved = restore_step(checkpoints, saved_step, abstract, batches.stream_names, config=config)
  batches.restore(saved, step=saved_step)
  pass_over(batches, taken, saved_step)
  return state, saved_step, saved
