"""Initial state of training: the workdir's own checkpoint, parameters of another checkpoint, or fresh parameters."""

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

_SHOWN = 5  # changed config keys in a message


def check(config: Config, workdir: epath.Path) -> None:
  """Raises an error early if a run has nothing to start from; a resumed run has its own checkpoints.

  Raises:
    UserError: an adapter or an EWC run has no initial checkpoint.
  """
  needs = config.adapters or config.optimizer.fisher
  if not needs or (config.init.checkpoint and config.init.parameters) or verify.steps(workdir / manager.CHECKPOINTS):
    return
  for section in config.adapters:
    raise UserError(
      f"config.{section} adapts a trained model, but no checkpoint initializes the run's parameters. Give "
      f"--config.init.checkpoint=PATH{_unless(config)}."
    )
  if config.optimizer.fisher:
    raise UserError(
      f"config.optimizer.fisher={config.optimizer.fisher} anchors a run at a checkpoint, but no checkpoint initializes "
      "the run's parameters. Give the checkpoint of the Fisher information with "
      f"--config.init.checkpoint=PATH{_unless(config)}."
    )


def next_stage(run: Sequence[Stage], workdir: epath.Path) -> int:
  """Returns the probable stage number of a workdir's next step, from the names of its checkpoints."""
  step = max(verify.steps(workdir / manager.CHECKPOINTS), default=0)
  return stages.at(run, step + 1)


def _unless(config: Config) -> str:
  return "" if config.init.parameters else " and --config.init.parameters=True"


def start(
  program: Program,
  stage: Stage,
  checkpoints: manager.Checkpoints,
  batches: "StagedBatches",
  key: jax.Array,
  *,
  vocabulary: Vocabulary | None,
) -> tuple[TrainState, int, dict[str, bytes]]:
  """Returns the initial state of training.

  The first that exists is taken: 1. the workdir's own checkpoint (the same command again resumes); 2.
  `config.init.checkpoint` (only parameters, all or a selection, step 0); 3. fresh parameters.

  Args:
    program: of the run.
    stage: of the last completed step, with the current config; changed settings of a resumed run are logged.
    checkpoints: of the workdir.
    batches: the training data (`stage_iterator.StagedBatches`); a resumed run continues at its saved position.
    key: random key of fresh parameters.
    vocabulary: of the run (`seqio.Vocabulary`), to compare with that of another checkpoint; None: unknown.

  Returns:
    The state, the number of completed steps, and the files that were saved beside it.

  Raises:
    UserError: the checkpoint belongs to another model, to a step beyond the last one, or to a stage with another first
      step; or an initial checkpoint has another vocabulary and its embedding would be taken.
  """
  step, config = checkpoints.latest_step(), stage.config
  if step is not None:
    before: Any = checkpoints.config(step)
    base = config.init.checkpoint
    if step > config.train.steps:
      width = before["model"]["embed_dim"]
      model_note = "" if width == config.model.embed_dim else f" (of another model: embed_dim={width})"
      train, more = config.train, "steps"
      end = f"config.train.steps={train.steps}"
      if train.epochs:
        end, more = f"the {train.steps} steps of config.train.epochs={train.epochs:g}", "epochs"
        end += f" at config.train.batch_size={train.batch_size}"
      raise UserError(
        f"--workdir {checkpoints.directory.parent} is at step {step}{model_note}, beyond {end}. Give"
        f" {'' if model_note else f'more {more} to resume, or '}another workdir."
      )
    _check_stage(before, stage, step)
    # If the base path is unchanged, use exactly the saved step, which may no longer be the newest of the base.
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
    # All errors about changed settings have been raised by now.
    changes = _changes(before, json.loads(json.dumps(config.to_dict())))
    unread = []
    if moved_to and not config.adapters:
      changes = [change for change in changes if not change.startswith("config.init.")]
      unread = [f"ignoring config.init.checkpoint={base}: a resumed run has its own parameters"]
    notes = [f"changed {change}" for change in changes[:_SHOWN]]
    notes += [f"and {len(changes) - _SHOWN} more changed keys"] if len(changes) > _SHOWN else []
    hosts.log_once("\n  ".join([f"resuming from step {step}", *notes, *unread]))
    return state, step, saved
  # A new run forgets the rollbacks of an earlier run without checkpoints.
  rollback.since(checkpoints.directory.parent, 0)
  if config.init.source_list:
    from t2t.checkpoints import from_checkpoint

    return from_checkpoint.start(program, config, checkpoints, key, vocabulary=vocabulary), 0, {}
  hosts.log_once("starting from fresh parameters")
  return program.init()(key), 0, {}


def _check_stage(before: Mapping[str, Any], stage: Stage, step: int) -> None:
  """Raises an error if a stage has another first step than in the checkpoint, from which its data position counts."""
  bounds = stages.saved_bounds(before)
  name, begin = next(((x.name, begin) for x, begin, end in bounds if step <= end)) if bounds else ("", 0)
  if begin != stage.begin:
    raise UserError(
      f"config.stages: step {step} belongs to {stage.described or 'a run without stages'}, but was saved in"
      f" {f'stage {name}, which began at step {begin + 1}' if name else 'a run without stages'}. Give"
      " each stage up to this step its former number of steps, or give another --workdir. A 'fraction' of a stage"
      " counts from config.train.steps."
    )


def _restore_data(batches: Any, saved: Mapping[str, bytes], step: int, *, had_none: bool) -> None:
  """Restores the data position; `had_none`: the run has stages now, and was saved without."""
  try:
    batches.restore(saved, step=step)
  except UserError as error:
    if not had_none:
      raise
    text = str(error).removesuffix(".")
    raise UserError(f"{text}. The run was saved without stages. Resume the run with --config.stages='()'.") from error


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
  """Returns the config changes of a resumed run."""
  changes = [
    f"config.{section}.{key}: {value!r}, saved with {old[section][key]!r}"
    for section, values in new.items()
    if section != "stages"
    for key, value in values.items()
    if key in old.get(section, {}) and old[section][key] != value
  ]
  if new.get("stages") != old.get("stages"):
    changes.append(f"config.stages: {new.get('stages', [])!r}, saved with {old.get('stages', [])!r}")
  return changes
