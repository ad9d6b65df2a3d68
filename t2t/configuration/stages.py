"""Stages: a run in parts, one after another, each with data, lengths, batches or rates of its own (`config.stages`).

One optimizer, whose state and count of steps go on from stage to stage, and one model: what a stage changes is told
apart here from what it cannot.
"""

import ast
from collections.abc import Generator, Mapping, Sequence
import contextlib
import dataclasses
import itertools
import math
import re
from typing import Any

from ml_collections import ConfigDict

from t2t import UserError, did_you_mean
from t2t.configuration.schema import Config, SourceConfig, StageConfig, read_stages


@dataclasses.dataclass(frozen=True)
class Stage:
  """A part of a run.

  name: "" of a run that has no stages.
  begin, end: steps made when it begins and when it ends.
  config: that of the run, changed as the stage has it.
  """

  name: str
  begin: int
  end: int
  config: Config

  @property
  def described(self) -> str:
    """'stage short, steps 1 to 900', for messages; "" of a run that has no stages."""
    return f"stage {self.name}, steps {self.begin + 1} to {self.end}" if self.name else ""

  @property
  def own(self) -> Mapping[str, object]:
    """What differs between the stages, as this one has it, by key: {"data.inputs_length": 128}."""
    return next((stage.changes for stage in self.config.stages if stage.name == self.name), {})

  @property
  def changes(self) -> str:
    """What differs between the stages, as this one has it: "data.inputs_length=128", for messages."""
    return ", ".join(f"{key}={value}" for key, value in self.own.items() if not isinstance(value, Mapping))

  def with_(self, **sections: Mapping[str, object]) -> "Stage":
    """The same stage with some keys of its config changed, see `Config.with_`."""
    return dataclasses.replace(self, config=self.config.with_(**sections))

  @contextlib.contextmanager
  def error_context(self) -> Generator[None]:
    """Adds the name of the stage to errors of its config.

    Raises:
      UserError: whatever the block raises.
    """
    try:
      yield
    except UserError as error:
      if not self.name or str(error).startswith("config.stages, "):  # of a stage whose name is told already
        raise
      raise UserError(f"config.stages, {self.name}: {error}") from error


_RATE = ("learning_rate", "schedule", "warmup_steps", "warmup_ratio", "warmup_fraction", "init_lr_divisor")
_RATE += ("end_lr_fraction", "decay_fraction", "decay_shape")
# What a stage may change of the sections that have more keys; of config.model all that changes no parameter.
_MAY = {
  "train": ("batch_size", "microbatches", "loss", "z_loss", "label_smoothing", "logits_chunk_tokens"),
  "optimizer": _RATE,
}
# Why it may not change others.
_WHY = {
  "data.vocabulary": "the model has one embedding, of one vocabulary",
  "data.extra_ids": "the model has one embedding, of one vocabulary",
  "data.task_modules": "all stages' tasks are registered at the start; name all modules in config.data.task_modules",
  "data.num_streams": "every stage's data is read in the same parts",
  "train.steps": "a stage has steps or fraction",
  "train.epochs": "a stage has steps or fraction",
  "train.seed": "it is of the run",
  "optimizer": f"its state goes on from stage to stage; a stage may have a rate of its own: {', '.join(_RATE)}",
  "train": f"it is of the run; a stage may change {', '.join(_MAY['train'])}",
  "mesh": "parameters are laid out over the devices once",
  "init": "parameters come from there once, before the first stage",
}
_CHANGED = ("data", "train", "optimizer", "model")  # sections


def of(config: Config) -> tuple[Stage, ...]:
  """The stages of a run in order; of one that says none, one, which is all of it.

  Raises:
    UserError: stages that leave no steps or ask for too many, a key that no stage can change (says why), or a value
      that it cannot have.
  """
  if not config.stages:
    return (Stage("", 0, config.train.steps, config),)
  names = [stage.name for stage in config.stages]
  if twice := next((name for name in names if names.count(name) > 1), None):
    raise UserError(f"config.stages: two of them have the name {twice!r}")
  for name in names:
    if not re.fullmatch(r"\w+", name):  # as of sources; it is typed, and stands in messages and pictures
      raise UserError(f"config.stages: {name!r}: a stage's name is of letters, digits and _")
  if config.train.epochs:
    raise UserError(f"config.train.epochs={config.train.epochs}: with config.stages give config.train.steps")
  stages = [
    Stage(x.name, begin, end, _changed(config, x)) for x, begin, end in bounds(config.stages, config.train.steps)
  ]
  complete = _each_says_all(config, stages)
  with_all = (dataclasses.replace(stage, config=dataclasses.replace(stage.config, stages=complete)) for stage in stages)
  return tuple(stage for stage in with_all if stage.end > stage.begin)


def at(stages: Sequence[Stage], step: int) -> int:
  """Number of the stage that made `step`, from 0; of step 0 the first."""
  return next((number for number, stage in enumerate(stages) if step <= stage.end), len(stages) - 1)


def own_rate(stage: StageConfig) -> dict[str, object]:
  """What a stage says of its learning rate: key of config.optimizer -> value; {}: the run's schedule goes on."""
  return {key.partition(".")[2]: value for key, value in stage.changes.items() if key.startswith("optimizer.")}


def bounds(stages: Sequence[StageConfig], total: int) -> list[tuple[StageConfig, int, int]]:
  """Each stage with the steps that are made when it begins and when it ends.

  Args:
    stages, total: see `_steps`.

  Raises:
    UserError: see there.
  """
  ends = list(itertools.accumulate(_steps(stages, total)))
  return list(zip(stages, [0, *ends], ends, strict=False))


def saved_bounds(saved: Mapping[str, object]) -> list[tuple[StageConfig, int, int]]:
  """`bounds` of the stages that a config has as it was saved; none where it has none.

  Raises:
    UserError: see there.
  """
  sections: Mapping[str, Any] = saved
  stages = read_stages(sections.get("stages", ()))
  return bounds(stages, sections["train"]["steps"]) if stages else []


def _steps(stages: Sequence[StageConfig], total: int) -> list[int]:
  """How many steps each stage has; a share that is less than a step is none.

  Args:
    stages: the stages of a run that has some.
    total: steps of the run.

  Raises:
    UserError: they are not those of the run.
  """
  step_counts = [stage.steps or int(stage.fraction * total + 1e-6) for stage in stages]
  unspecified = [number for number, stage in enumerate(stages) if not stage.steps and not stage.fraction]
  if len(unspecified) > 1:
    named = ", ".join(stages[number].name for number in unspecified)
    raise UserError(f"config.stages: {named} say neither steps nor fraction; one of them may, and has what is left")
  if unspecified:
    step_counts[unspecified[0]] = total - sum(step_counts)
    if step_counts[unspecified[0]] < 1:
      raise UserError(
        f"config.stages: {stages[unspecified[0]].name} has {step_counts[unspecified[0]]} steps, what the"
        f" others leave of the {total} of config.train.steps; it must have at least one"
      )
  elif math.isclose(sum(stage.fraction for stage in stages), 1.0) and all(stage.fraction for stage in stages):
    step_counts[-1] += total - sum(step_counts)  # what is left of steps that do not divide
  if sum(step_counts) != total:
    raise UserError(
      f"config.stages: {' + '.join(map(str, step_counts))} = {sum(step_counts)} steps, and config.train.steps={total};"
      " leave steps and fraction of one stage out, and it has what the others leave"
    )
  return step_counts


def _changed(config: Config, stage: StageConfig) -> Config:
  """The run as it is in a stage; its optimizer's section is the run's, see `own_rate`."""
  where = f"config.stages, {stage.name}"
  sections: dict[str, dict[str, Any]] = {}
  for key, value in stage.changes.items():
    section, _, name = key.partition(".")
    _check_key(config, key, where)
    if section == "data" and "." in name:
      mapping, _, entry = name.partition(".")
      values = sections.setdefault("data", {})
      values[mapping] = _with_entry(values.get(mapping, getattr(config.data, mapping)), entry, value, where)
      continue
    sections.setdefault(section, {})[name] = _typed(f"{where}: {key}", value, getattr(getattr(config, section), name))
  sections.pop("optimizer", None)
  if data := sections.get("data"):
    # Who names one of these means it in place of the others.
    read = ("files", "mixture", "sources")
    if chosen := [key for key in read if data.get(key)]:
      sections["data"] = {key: type(getattr(config.data, key))() for key in read if key not in chosen} | data
  try:
    return config.with_(**sections)
  except UserError as error:
    raise UserError(f"{where}: {error}") from error


def _check_key(config: Config, key: str, where: str) -> None:
  """Refuses a key that there is not, or that no stage can change."""
  section, _, name = key.partition(".")
  there = {**{field.name: getattr(config, field.name) for field in dataclasses.fields(config)}, **config.sections}
  known = [
    f"{changed_section}.{field.name}"
    for changed_section in _CHANGED
    for field in dataclasses.fields(there[changed_section])
    if field.name in _MAY.get(changed_section, (field.name,)) and f"{changed_section}.{field.name}" not in _WHY
  ]
  field = ".".join(key.split(".")[:2])
  if field in known and (key == field or field in ("data.sources", "data.benchmark_dirs")):
    return
  exists = dataclasses.is_dataclass(there.get(section)) and hasattr(there[section], field.partition(".")[2])
  if not exists:
    raise UserError(f"{where}: {key}: no such key{did_you_mean(key, [*known, 'name', 'steps', 'fraction'])}")
  if key != field and field in known:
    raise UserError(f"{where}: {key}: no such key{did_you_mean(key, known)}")
  why = _WHY.get(field) or _WHY.get(section) or "it is of the run; a stage changes keys of " + ", ".join(_CHANGED)
  raise UserError(f"{where}: {key} cannot change from stage to stage: {why}")


def _with_entry(mapping: Mapping[str, Any], key: str, value: Any, where: str) -> dict[str, Any]:
  """A mapping of config.data with one more entry, or with one that is changed: sources.NAME.rate, folders.NAME."""
  name, _, field = key.partition(".")
  if not field:
    return {**mapping, name: value}
  source = mapping.get(name, SourceConfig())
  source = source if isinstance(source, SourceConfig) else SourceConfig(**source)
  if not hasattr(source, field):
    near = did_you_mean(field, [candidate.name for candidate in dataclasses.fields(SourceConfig)])
    raise UserError(f"{where}: data.sources.{key}: no such key{near}")
  typed = _typed(f"{where}: data.sources.{key}", value, getattr(source, field))
  return {**mapping, name: dataclasses.replace(source, **{field: typed})}


def _typed(where: str, value: Any, like: Any) -> Any:
  """The value as the key has it, where that is the same: 1 of a rate is 1.0."""
  if isinstance(like, float) and type(value) is int:
    return float(value)
  if isinstance(like, tuple) and isinstance(value, list):
    return tuple(value)
  if isinstance(like, Mapping) and isinstance(value, Mapping):
    return dict(value)
  if type(value) is not type(like):
    raise UserError(f"{where}={value!r}: must be {type(like).__name__}, as {like!r} is")
  return value


def _each_says_all(config: Config, stages: Sequence[Stage]) -> tuple[StageConfig, ...]:
  """The stages, each of which says whatever differs between them and from the run's sections."""
  everywhere = [config, *(stage.config for stage in stages)]
  completed = []
  for stage_config, stage in zip(config.stages, stages, strict=True):
    changes = {
      f"{section}.{field.name}": _plain(_value(stage.config, section, field))
      for section in ("data", "train", "model")
      for field in dataclasses.fields(getattr(config, section))
      if any(_value(x, section, field) != _value(config, section, field) for x in everywhere)
    }
    rate = {f"optimizer.{key}": value for key, value in own_rate(stage_config).items()}
    completed.append(dataclasses.replace(stage_config, changes=changes | rate))
  return tuple(completed)


def _value(config: Config, section: str, field: dataclasses.Field) -> Any:
  return getattr(getattr(config, section), field.name)


def _plain(value: Any) -> Any:
  """Records as mappings, as they are typed and saved."""
  if isinstance(value, Mapping):
    return {key: _plain(x) for key, x in value.items()}
  if isinstance(value, tuple):
    return tuple(map(_plain, value))
  return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value


def check_typed(value: str) -> None:
  """Refuses stages that are no mappings as Python writes them, of which absl would tell what is wrong with a tuple."""
  try:
    ast.literal_eval(value.replace("\n", " ").strip() or "()")  # a stage a line, as one may type them
  except (SyntaxError, ValueError) as error:
    raise UserError(
      f"--config.stages={value}: cannot be read ({getattr(error, 'msg', 'it is no list of mappings')}); give a"
      f""" mapping for each stage, --config.stages='{{"name": "short", "fraction": 0.9}}, {{"name": "long"}}'"""
    ) from error


def check_overrides(config: ConfigDict, arguments: Sequence[str]) -> None:
  """Refuses a key that is typed for the run, and that every stage says itself, so that it would change nothing."""
  stages = [stage for stage in config.stages if isinstance(stage, Mapping)]
  if any(argument.startswith("--config.stages") for argument in arguments):
    return
  for argument in arguments if stages else ():
    key = argument.partition("=")[0].removeprefix("--config.")
    if all(key in stage for stage in stages):
      values = ", ".join(f"{stage.get('name', number)}: {stage[key]!r}" for number, stage in enumerate(stages, start=1))
      raise UserError(
        f"{argument}: every stage of this config says it itself ({values}); give the stages anew (docs/stages.md), or"
        f" add --config.stages='()' for a run in one"
      )
