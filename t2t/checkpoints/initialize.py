"""Where training starts: at this workdir's own checkpoint, from another's parameters, or from fresh ones."""

from collections.abc import Mapping, Sequence
import json
from typing import TYPE_CHECKING, Any

from etils import epath
import jax

from t2t import UserError, sharding
from t2t.checkpoints import manager, restore, rollback, verify
from t2t.configuration import stages
from t2t.configuration.schema import Config
from t2t.configuration.stages import Stage
from t2t.param_tree import Vocabulary
from t2t.runtime import hosts
from t2t.training.recipe import Program
from t2t.training.train_state import TrainState

if TYPE_CHECKING:
  from t2t.data.stage_iterator import StagedBatches

_SHOWN = 5  # keys of the config that are not as they were


def check(config: Config, workdir: epath.Path) -> None:
  """Refuses what has nothing to start from, before anything is read; a run that goes on has its own checkpoints.

  Raises:
    UserError: an adapter, or what holds a run near a checkpoint, without one.
  """
  needs = config.adapters or config.optimizer.fisher
  if not needs or (config.init.checkpoint and config.init.parameters) or verify.steps(workdir / manager.CHECKPOINTS):
    return
  for section in config.adapters:
    raise UserError(
      f"config.{section} changes a model that is trained already, and leaves its parameters as they are: give the"
      f" checkpoint, config.init.checkpoint{_unless(config)}"
    )
  if config.optimizer.fisher:
    raise UserError(
      f"config.optimizer.fisher={config.optimizer.fisher}: holds a run near the checkpoint that it is of: give that,"
      f" config.init.checkpoint{_unless(config)}"
    )


def next_stage(run: Sequence[Stage], workdir: epath.Path) -> int:
  """Number of the stage that the next step of a workdir is probably of, by the names of its checkpoints."""
  step = max(verify.steps(workdir / manager.CHECKPOINTS), default=0)
  return stages.at(run, step + 1)


def _unless(config: Config) -> str:
  return "" if config.init.parameters else ", and leave config.init.parameters=True"


def start(
  program: Program,
  stage: Stage,
  checkpoints: manager.Checkpoints,
  batches: "StagedBatches",
  key: jax.Array,
  *,
  vocabulary: Vocabulary | None,
) -> tuple[TrainState, int, dict[str, bytes]]:
  """The state that the first step is taken from.

  In this order: 1. this workdir's own checkpoint (the same command again resumes it); 2. `config.init.checkpoint`
  (parameters only, all or those that it says, step 0); 3. fresh parameters.

  Args:
    program: of the run.
    stage: that has made the last step, with the config as it is now; what a resumed run does otherwise is told.
    checkpoints: of the workdir.
    batches: the training data (`staged.StagedBatches`); of a resumed run it goes on where that run stopped.
    key: of fresh parameters.
    vocabulary: of the run (`seqio.Vocabulary`), against which that of another checkpoint is compared; None: not known.

  Returns:
    The state, how many steps have been made, and what was saved beside it.

  Raises:
    UserError: the checkpoint is of another model, or beyond the steps that are asked for, or of a stage that began at
      another step; or one to start from was trained in another vocabulary, and its embedding would be taken.
  """
  step, config = checkpoints.latest_step(), stage.config
  if step is not None:
    before: Any = checkpoints.config(step)
    base = config.init.checkpoint
    if step > config.train.steps:
      width = before["model"]["embed_dim"]
      model_note = (
        "" if width == config.model.embed_dim else f" (whose model has embed_dim={width}, and is another one)"
      )
      train, more = config.train, "steps"
      end = f"config.train.steps={train.steps}"
      if train.epochs:
        end, more = f"the {train.steps} steps of config.train.epochs={train.epochs:g}", "epochs"
        end += f" at config.train.batch_size={train.batch_size}"
      raise UserError(
        f"--workdir {checkpoints.directory.parent} is at step {step}{model_note}, beyond {end}; give"
        f" {'' if model_note else f'more {more} to go on, or '}another workdir"
      )
    _check_stage(before, stage, step)
    # Where it is the same, the very step that was taken from it, which may not be its last any more.
    moved_to = base if base != before.get("init", {}).get("checkpoint") else ""
    try:
      state, saved = rollback.restore_step(
        checkpoints, step, program.state, batches.stream_names, config=config, moved_to=moved_to
      )
    except restore.OtherArrays as error:
      from t2t.checkpoints import changed_settings

      mesh, workdir = sharding.mesh_of(program.state.step), checkpoints.directory.parent
      why = changed_settings.error(before, config, mesh, workdir=workdir, step=step)
      raise (UserError(why) if why else error) from error
    _restore_data(batches, saved, step, had_none=bool(stage.name and not before.get("stages")))
    rollback.pass_over(batches, rollback.since(checkpoints.directory.parent, step), step)
    # What is refused, for what was changed, is refused by now.
    changes = _changes(before, json.loads(json.dumps(config.to_dict())))
    unread = []
    if moved_to and not config.adapters:
      changes = [change for change in changes if not change.startswith("config.init.")]
      unread = [f"without config.init.checkpoint={base}: the run has parameters of its own by now"]
    notes = [f"with another {change}" for change in changes[:_SHOWN]]
    notes += [f"and {len(changes) - _SHOWN} more keys that are not as they were"] if len(changes) > _SHOWN else []
    hosts.log_once("\n  ".join([f"resuming from step {step}", *notes, *unread]))
    return state, step, saved
  # Of a run whose checkpoints are gone: this one has not gone back, when it comes to their steps.
  rollback.since(checkpoints.directory.parent, 0)
  if config.init.source_list:
    from t2t.checkpoints import from_checkpoint

    return from_checkpoint.start(program, config, checkpoints, key, vocabulary=vocabulary), 0, {}
  hosts.log_once("starting from fresh parameters")
  return program.init()(key), 0, {}


def _check_stage(before: Mapping[str, Any], stage: Stage, step: int) -> None:
  """Refuses a stage that began at another step: the position in its data counts from there."""
  bounds = stages.saved_bounds(before)
  name, begin = next(((x.name, begin) for x, begin, end in bounds if step <= end)) if bounds else ("", 0)
  if begin != stage.begin:
    raise UserError(
      f"config.stages: step {step} is of {stage.described or 'a run without stages'}, and was of"
      f" {f'stage {name}, which began at step {begin + 1}' if name else 'a run without stages'}, when it was made; give"
      " the stages up to there the steps that they had (share counts from config.train.steps), or another workdir"
    )


def _restore_data(batches: Any, saved: Mapping[str, bytes], step: int, *, had_none: bool) -> None:
  """Has the data go on; `had_none`: of a run that has stages now, and had none."""
  try:
    batches.restore(saved, step=step)
  except UserError as error:
    if not had_none:
      raise
    raise UserError(f"{error}; the run began without stages: --config.stages='()' goes on as it did") from error


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
  """What a resumed run does otherwise than the run that saved its checkpoint."""
  changes = [
    f"config.{section}.{key}: {value!r}, it was {old[section][key]!r}"
    for section, values in new.items()
    if section != "stages"
    for key, value in values.items()
    if key in old.get(section, {}) and old[section][key] != value
  ]
  if new.get("stages") != old.get("stages"):
    changes.append(f"config.stages: {new.get('stages', [])!r}, it was {old.get('stages', [])!r}")
  return changes
