"""Runs of a study: arms are planned as stages, equal stages share a workdir, and each finished arm gets a row."""

from collections.abc import Mapping, Sequence
import dataclasses
import datetime
import json
import re
import time
from typing import Any

from etils import epath
import jax

from t2t import UserError
from t2t.commands import options
from t2t.configs import default
from t2t.configuration.loading import flat, records
from t2t.configuration.schema import Config
from t2t.runtime import amounts, hosts, versions
from t2t.storage import gcs
from t2t.studies import definition, figures, picture, results
from t2t.studies.definition import ActionStage, Setting, Study, TrainStage
from t2t.studies.results import StudyRow
from t2t.training.callbacks.one_of_many import OneOfMany
from t2t.training.remembered_data import RememberedData
from t2t.training.run import Diverged
from t2t.training.train import train

ROWS, PICTURE = "study.jsonl", "study.png"
_ENDED = "ended.json"  # in the workdir of each finished stage


@dataclasses.dataclass(frozen=True)
class PlannedStage:
  """Stage of an arm with the user's overrides.

  stage: of the arm.
  digest: of its config, or action, and of the stages that it reads.
  arguments: overrides of its config, with "{STAGE}" for workdirs.
  """

  stage: TrainStage | ActionStage
  digest: str
  arguments: tuple[str, ...] = ()

  def folder(self, root: epath.Path, seed: int) -> epath.Path:
    """Returns the workdir for a seed of the study."""
    seed = seed if self.stage.seed is None else self.stage.seed
    return root / "runs" / f"{self.stage.name}-{self.digest}" / f"seed-{seed}"


@dataclasses.dataclass(frozen=True)
class StudyPlan:
  """Arms of a study in a setting.

  name: of the study.
  overrides: of all stages, and of single ones, as typed.
  arms: name -> stages in order.
  seeds: of the rows.
  """

  name: str
  study: Study
  setting: Setting
  overrides: tuple[str, ...]
  arms: Mapping[str, Sequence[PlannedStage]]
  seeds: Sequence[int]

  def digests(self, arm: str) -> list[str]:
    return [planned.digest for planned in self.arms[arm]]


def plan(
  name: str, study: Study, setting: Setting, *, arms: Sequence[str], seeds: Sequence[int], overrides: Sequence[str]
) -> StudyPlan:
  """Plans the arms, with the digest of each stage.

  Args:
    name: of the study.
    study: its definition.
    setting: scale, config and data.
    arms: names; (): all.
    seeds: of the rows.
    overrides: "--config.SECTION.KEY=VALUE" for all stages, "--stage.NAME.SECTION.KEY=VALUE" for one.

  Raises:
    UserError: an arm, stage, config or key is unknown.
  """
  chosen = definition.chosen_arms(study, setting, arms)
  known = {stage.name for arm in chosen for stage in arm.stages}
  for override in overrides:
    stage_name = _stage_of(override)
    if stage_name is not None and stage_name not in known:
      raise UserError(f"{override}: no stage is called {stage_name}. Stages: {', '.join(sorted(known))}.")
  planned = {}
  for arm in chosen:
    stages: dict[str, PlannedStage] = {}
    for stage in arm.stages:
      earlier = {name: stages[name].digest for name in stage.reads}
      stages[stage.name] = _planned(stage, earlier, overrides)
    planned[arm.name] = list(stages.values())
  return StudyPlan(name, study, setting, tuple(overrides), planned, seeds)


def _stage_of(override: str) -> str | None:
  match = re.match(r"--stage\.(\w+)\.\w", override)
  return match[1] if match else None


def _planned(stage: TrainStage | ActionStage, earlier: Mapping[str, str], overrides: Sequence[str]) -> PlannedStage:
  if isinstance(stage, ActionStage):
    named = f"{stage.function.__module__}.{stage.function.__qualname__}"
    return PlannedStage(stage, definition.digest([named, stage.version, stage.seed, dict(earlier)]))
  arguments = [f"--config.{key}={_typed(value)}" for key, value in stage.keys.items()]
  if stage.start:
    arguments.append(f"--config.init.checkpoint={{{stage.start}}}")
  for override in overrides:
    if _stage_of(override) is None:
      arguments.append(override)
    elif _stage_of(override) == stage.name:
      arguments.append(override.replace(f"--stage.{stage.name}.", "--config.", 1))
  arguments = _last_of_each(arguments)
  in_digest = [_filled(argument, {**earlier, definition.SEED: 0}) for argument in arguments]
  parser = _parser()
  config = flat(options.parse(parser, ["--config", stage.config, *in_digest])[1].to_dict())
  defaults = flat(default.get_config().to_dict())
  changed = {key: value for key, value in config.items() if key not in defaults or defaults[key] != value}
  return PlannedStage(stage, definition.digest([changed, stage.seed]), tuple(arguments))


def _parser() -> Any:
  return options.config_parser("t2t study", "")


def _typed(value: Any) -> str:
  """Returns a value as a command line has it; the elements of a list are separated by commas."""
  if isinstance(value, tuple | list) and not any(isinstance(x, Mapping) for x in value):
    return ",".join(map(str, value))
  return str(value)


def _last_of_each(arguments: Sequence[str]) -> list[str]:
  """Returns the last override of each key, so that the user's replaces the study's."""
  return list({argument.partition("=")[0]: argument for argument in arguments}.values())


def _filled(argument: str, workdirs: Mapping[str, Any]) -> str:
  """Replaces "{STAGE}" by the workdir of the stage, and "{seed}" by the seed."""
  for name, workdir in workdirs.items():
    argument = argument.replace(f"{{{name}}}", str(workdir))
  return argument


def stage_config(planned: PlannedStage, workdirs: definition.Folders, seed: int) -> Config:
  """Returns the config of a run, with the model of its checkpoint where the config takes it from there.

  Raises:
    UserError: a key or value is wrong, or the checkpoint cannot be read.
  """
  assert isinstance(planned.stage, TrainStage)
  seed = seed if planned.stage.seed is None else planned.stage.seed
  arguments = [_filled(argument, {**workdirs, definition.SEED: seed}) for argument in planned.arguments]
  argv = ["--config", planned.stage.config, *arguments, f"--config.train.seed={seed}"]
  parser = _parser()
  return records(options.inherited(options.parse(parser, argv)[1], parser, argv))


class StudyRuns:
  """Runs and rows of a plan in a folder.

  Args:
    plan: of the study.
    folder: has the workdirs of the stages in runs/STAGE-DIGEST/seed-K, study.jsonl and study.png.
    keep_checkpoints: whether stages that no other stage reads keep their checkpoints.
  """

  def __init__(self, plan: StudyPlan, folder: epath.Path, *, keep_checkpoints: bool = False):
    self._plan, self._folder, self._keep = plan, folder, keep_checkpoints
    saved = [results.as_json(row) for row in results.read(folder / ROWS)] if jax.process_index() == 0 else []
    self._rows = {(row.arm, row.seed): row for row in map(results.parsed, hosts.share(saved))}
    self._check_rows()
    self._seconds: dict[str, list[float]] = {}  # of the trainings of this call, by name of the stage
    self._data = RememberedData()
    self._ended: set[str] = set()  # workdirs of stages that have finished
    self._diverged: dict[str, str] = {}  # workdir -> reason; other arms may have the same stage

  def _check_rows(self) -> None:
    """Refuses rows that an earlier version of the study has made."""
    definition_digest = self._plan.study.digest(self._plan.setting)
    remedy = "Give another --workdir; or delete this file, so that finished runs get rows again."
    for (arm, seed), row in self._rows.items():
      if row.definition != definition_digest:
        raise UserError(
          f"{self._folder / ROWS}: claim, rule or columns of the study have changed since this row was written "
          f"(arm {arm}, seed {seed}). {remedy}"
        )
      digests = [stage["digest"] for stage in row.stages]
      if arm in self._plan.arms and row.status == results.FINISHED and digests != self._plan.digests(arm):
        raise UserError(
          f"{self._folder / ROWS}: the stages of arm {arm} have changed since its row of seed {seed} was written. "
          f"{remedy}"
        )

  def train(self) -> list[StudyRow]:
    """Trains the stages without a result, seed by seed; returns the rows of the plan.

    Raises:
      UserError: see `training.train`.
      Stopped: a signal stopped a run, which the same command resumes.
    """
    pending = self._pending()
    done, total = 0, len(pending)
    for seed in self._plan.seeds:
      for arm, stages in self._plan.arms.items():
        if (arm, seed) in self._rows:
          continue
        workdirs: dict[str, epath.Path] = {}
        error = ""
        for planned in stages:
          workdirs[planned.stage.name] = workdir = planned.folder(self._folder, seed)
          if self._has_ended(workdir):
            continue
          done += 1
          which = f"run {done} of {total}: {arm}, {planned.stage.name}, seed {seed}"
          left = self._left(self._pending())
          hosts.log_once(f"study: {which}" + (f"; about {amounts.duration(left)} left" if left else ""))
          if error := self._run(planned, workdirs, seed):
            hosts.log_once(f"study: {which}: {error}")
            break
        self._rows[arm, seed] = self._row(arm, seed, workdirs, error)
        self._publish()
        self._discard(stages, seed)
    return self.rows()

  def _pending(self) -> list[tuple[str, str]]:
    """Returns stage name and workdir of the runs to do, shared ones once."""
    runs: dict[str, str] = {}
    for seed in self._plan.seeds:
      for arm, stages in self._plan.arms.items():
        for planned in stages if (arm, seed) not in self._rows else ():
          workdir = planned.folder(self._folder, seed)
          if not self._has_ended(workdir):
            runs[str(workdir)] = planned.stage.name
    return [(name, workdir) for workdir, name in runs.items()]

  def _left(self, pending: Sequence[tuple[str, str]]) -> float:
    """Returns the expected seconds of the runs to do: the mean of trainings with the same name, or of all."""
    known = [x for seconds in self._seconds.values() for x in seconds]
    if not known:
      return 0.0
    mean = lambda values: sum(values) / len(values)
    return sum(mean(self._seconds.get(name, known)) for name, _ in pending)

  def _has_ended(self, workdir: epath.Path) -> bool:
    if str(workdir) not in self._ended and hosts.share((workdir / _ENDED).exists()):
      self._ended.add(str(workdir))
    return str(workdir) in self._ended

  def _run(self, planned: PlannedStage, workdirs: definition.Folders, seed: int) -> str:
    """Runs a stage; returns "", or the reason if the run diverged."""
    stage, workdir = planned.stage, workdirs[planned.stage.name]
    if str(workdir) in self._diverged:
      return self._diverged[str(workdir)]
    started = time.monotonic()
    note: dict[str, Any] = {}
    if isinstance(stage, ActionStage):
      workdir.mkdir(parents=True, exist_ok=True)
      stage.function(
        workdir, {name: workdirs[name] for name in stage.reads}, seed if stage.seed is None else stage.seed
      )
    else:
      config = stage_config(planned, workdirs, seed)
      try:
        train(config, str(workdir), callbacks=[OneOfMany()], data=self._data)
      except Diverged as error:
        reason = str(error).partition("\n")[0]
        self._diverged[str(workdir)] = f"diverged: {reason}"
        return self._diverged[str(workdir)]
      note = {"config": stage.config, "arguments": list(planned.arguments)}
    seconds = time.monotonic() - started
    if isinstance(stage, TrainStage):
      self._seconds.setdefault(stage.name, []).append(seconds)
    if jax.process_index() == 0:
      note = {"name": stage.name, "digest": planned.digest, **note, "seconds": round(seconds, 1)}
      if isinstance(stage, TrainStage):
        note |= figures.of_stage(workdir)
      gcs.write(workdir / _ENDED, json.dumps(note))
    return ""

  def _row(self, arm: str, seed: int, workdirs: definition.Folders, error: str) -> StudyRow:
    plan = self._plan
    values: dict[str, Any] = {"figures": {}, "curves": {}, "stages": []}
    if jax.process_index() == 0 and not error:
      for column in plan.study.columns(plan.setting):
        figure = column.value(workdirs)
        values["figures"][column.name] = None if figure is None else float(figure)
      for curve in plan.study.curves(plan.setting):
        values["curves"][curve.name] = {int(step): float(y) for step, y in curve.values(workdirs).items()}
      values["stages"] = [json.loads((workdir / _ENDED).read_text()) for workdir in workdirs.values()]
    values = hosts.share(values)
    devices = jax.devices()
    return results.parsed(
      {
        "study": plan.name,
        "scale": plan.setting.scale,
        "definition": plan.study.digest(plan.setting),
        "arm": arm,
        "seed": seed,
        "status": results.DIVERGED if error else results.FINISHED,
        **values,
        "setting": {**dataclasses.asdict(plan.setting), "overrides": list(plan.overrides)},
        "t2t": versions.line(),
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "ended": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "error": error,
      }
    )

  def _discard(self, stages: Sequence[PlannedStage], seed: int) -> None:
    """Removes the checkpoints of an arm's stages that no stage of the study reads."""
    read = {
      planned.folder(self._folder, seed)
      for of_arm in self._plan.arms.values()
      for planned in of_arm
      if any(planned.stage.name in other.stage.reads for other in of_arm)
    }
    for workdir in (planned.folder(self._folder, seed) for planned in stages):
      if not self._keep and workdir not in read and jax.process_index() == 0 and (workdir / "checkpoints").exists():
        (workdir / "checkpoints").rmtree()

  def rows(self) -> list[StudyRow]:
    """Returns the rows of the plan, by arm and seed."""
    wanted = [(arm, seed) for arm in self._plan.arms for seed in self._plan.seeds]
    return [self._rows[key] for key in wanted if key in self._rows]

  def _publish(self) -> None:
    """Writes all rows of the folder, also of other arms and seeds, and the picture of the plan's."""
    if jax.process_index() != 0:
      return
    known = [arm.name for arm in self._plan.study.arms(self._plan.setting)]
    place = lambda row: (known.index(row.arm) if row.arm in known else len(known), row.arm, row.seed)
    results.write(self._folder / ROWS, sorted(self._rows.values(), key=place))
    (self._folder / PICTURE).write_bytes(picture.of_study(self._plan.study, self._plan.setting, self.rows()))
