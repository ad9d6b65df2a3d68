"""Stages: consecutive parts of a run, each with its data, lengths, batch sizes or learning rates (`config.stages`).

All stages share one model and one optimizer, whose state and step count continue. This module separates keys that a
stage can change from keys of the whole run.
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
  """A stage of a run.

  name: "" if the run has no stages.
  begin, end: numbers of finished steps at its begin and end.
  config: config of the run with the changes of the stage.
  """

  name: str
  begin: int
  end: int
  config: Config

  @property
  def described(self) -> str:
    """Describes the stage for messages: 'stage short, steps 1 to 900'; "" if the run has no stages."""
    return f"stage {self.name}, steps {self.begin + 1} to {self.end}" if self.name else ""

  @property
  def own(self) -> Mapping[str, object]:
    """Returns keys that differ between stages -> values in this stage: {"data.inputs_length": 128}."""
    return next((stage.changes for stage in self.config.stages if stage.name == self.name), {})

  @property
  def changes(self) -> str:
    """Describes `own` for messages: "data.inputs_length=128"."""
    return ", ".join(f"{key}={value}" for key, value in self.own.items() if not isinstance(value, Mapping))

  def with_(self, **sections: Mapping[str, object]) -> "Stage":
    """Returns the stage with some keys of its config changed, see `Config.with_`."""
    return dataclasses.replace(self, config=self.config.with_(**sections))

  @contextlib.contextmanager
  def error_context(self) -> Generator[None]:
    """Prefixes errors of the block with the stage's name.

    Raises:
      UserError: an error of the block.
    """
    try:
      yield
    except UserError as error:
      if not self.name or str(error).startswith("config.stages, "):  # the error already names the stage
        raise
      raise UserError(f"config.stages, {self.name}: {error}") from error


_RATE = ("learning_rate", "schedule", "warmup_steps", "warmup_ratio", "warmup_fraction", "init_lr_divisor")
_RATE += ("end_lr_fraction", "decay_fraction", "decay_shape")
# Keys that a stage may change, for sections with further keys; of config.model all keys that change no parameter.
_MAY = {
  "train": ("batch_size", "microbatches", "loss", "z_loss", "label_smoothing", "logits_chunk_tokens"),
  "optimizer": _RATE,
}
# Reasons why a stage may not change other keys.
_WHY = {
  "data.vocabulary": "The model has one embedding, for one vocabulary.",
  "data.extra_ids": "The model has one embedding, for one vocabulary.",
  "data.task_modules": "Tasks of all stages are registered at the start.",
  "data.num_streams": "All stages read the data in the same streams.",
  "train.steps": "Give steps or fraction of the stage instead.",
  "train.epochs": "Give steps or fraction of the stage instead.",
  "train.seed": "The run has one seed.",
  "optimizer": f"The optimizer's state continues from stage to stage. A stage may change {', '.join(_RATE)}.",
  "train": f"The key applies to the whole run. A stage may change {', '.join(_MAY['train'])}.",
  "mesh": "Parameters are sharded over devices once.",
  "init": "Parameters are initialized once, before the first stage.",
  "distillation.teacher": "Teachers are read once, before the first stage.",
  "distillation.logits": "Logits of all stages are opened at the start.",
  "distillation.dtype": "Teachers are read once, before the first stage.",
  "distillation.models": "Teachers are read once, before the first stage.",
  "distillation.written": "Logits of all stages are opened at the start.",
}
_CHANGED = ("data", "train", "optimizer", "model", "distillation")  # sections that a stage may change


def of(config: Config) -> tuple[Stage, ...]:
  """Returns the stages of a run in order; one stage with all steps if config.stages is empty.

  Raises:
    UserError: stages have too few or too many steps, a key that no stage can change (gives the reason), or an invalid
      value.
  """
  if not config.stages:
    return (Stage("", 0, config.train.steps, config),)
  names = [stage.name for stage in config.stages]
  if twice := next((name for name in names if names.count(name) > 1), None):
    raise UserError(f"config.stages: two stages have the name {twice!r}; give each stage a different name")
  for name in names:
    if not re.fullmatch(r"\w+", name):  # the name is typed, and part of messages and plots
      raise UserError(f"config.stages: {name!r} is not a valid name of a stage; use only letters, digits and _")
  if config.train.epochs:
    raise UserError(
      f"config.train.epochs={config.train.epochs} has no effect with config.stages; give config.train.steps instead"
    )
  stages = [
    Stage(x.name, begin, end, _changed(config, x)) for x, begin, end in bounds(config.stages, config.train.steps)
  ]
  complete = _each_says_all(config, stages)
  with_all = (dataclasses.replace(stage, config=dataclasses.replace(stage.config, stages=complete)) for stage in stages)
  return tuple(stage for stage in with_all if stage.end > stage.begin)


def at(stages: Sequence[Stage], step: int) -> int:
  """Returns the index of the stage that made `step`; 0 for step 0."""
  return next((number for number, stage in enumerate(stages) if step <= stage.end), len(stages) - 1)


def own_rate(stage: StageConfig) -> dict[str, object]:
  """Returns a stage's learning-rate settings: key of config.optimizer -> value; {}: the run's schedule continues."""
  return {key.partition(".")[2]: value for key, value in stage.changes.items() if key.startswith("optimizer.")}


def bounds(stages: Sequence[StageConfig], total: int) -> list[tuple[StageConfig, int, int]]:
  """Returns each stage with the numbers of finished steps at its begin and end.

  Args:
    stages, total: see `_steps`.

  Raises:
    UserError: see `_steps`.
  """
  ends = list(itertools.accumulate(_steps(stages, total)))
  return list(zip(stages, [0, *ends], ends, strict=False))


def saved_bounds(saved: Mapping[str, object]) -> list[tuple[StageConfig, int, int]]:
  """Returns `bounds` of the stages of a saved config; [] without stages.

  Raises:
    UserError: see `bounds`.
  """
  sections: Mapping[str, Any] = saved
  stages = read_stages(sections.get("stages", ()))
  return bounds(stages, sections["train"]["steps"]) if stages else []


def _steps(stages: Sequence[StageConfig], total: int) -> list[int]:
  """Returns the number of steps of each stage; a fraction of less than one step gives 0.

  Args:
    stages: a nonempty list of stages.
    total: steps of the run.

  Raises:
    UserError: the sum is not `total`.
  """
  step_counts = [stage.steps or int(stage.fraction * total + 1e-6) for stage in stages]
  unspecified = [number for number, stage in enumerate(stages) if not stage.steps and not stage.fraction]
  if len(unspecified) > 1:
    named = ", ".join(stages[number].name for number in unspecified)
    raise UserError(
      f"config.stages: the stages {named} have neither steps nor fraction, but only one stage may omit both keys. "
      "Give steps or fraction for the other stages."
    )
  if unspecified:
    step_counts[unspecified[0]] = total - sum(step_counts)
    if step_counts[unspecified[0]] < 1:
      raise UserError(
        f"config.stages: {stages[unspecified[0]].name} needs at least one step, but the other stages leave "
        f"{step_counts[unspecified[0]]} of config.train.steps={total}. Raise config.train.steps, or shorten the other "
        "stages."
      )
  elif math.isclose(sum(stage.fraction for stage in stages), 1.0) and all(stage.fraction for stage in stages):
    step_counts[-1] += total - sum(step_counts)  # remainder of rounding fractions down
  if sum(step_counts) != total:
    raise UserError(
      f"config.stages: {' + '.join(map(str, step_counts))} = {sum(step_counts)} steps, but "
      f"config.train.steps={total}. Leave out steps and fraction of one stage, which then has the remaining steps."
    )
  return step_counts


def _changed(config: Config, stage: StageConfig) -> Config:
  """Returns the config of a stage, except the optimizer section: see `own_rate`."""
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
    # A stage that sets one of these keys replaces the others.
    read = ("files", "mixture", "sources")
    if chosen := [key for key in read if data.get(key)]:
      sections["data"] = {key: type(getattr(config.data, key))() for key in read if key not in chosen} | data
  try:
    return config.with_(**sections)
  except UserError as error:
    raise UserError(f"{where}: {error}") from error


def _check_key(config: Config, key: str, where: str) -> None:
  """Refuses a key that does not exist or that no stage can change."""
  section, _, name = key.partition(".")
  there = {**{field.name: getattr(config, field.name) for field in dataclasses.fields(config)}, **config.sections}
  known = [
    f"{changed_section}.{field.name}"
    for changed_section in _CHANGED
    if changed_section in there
    for field in dataclasses.fields(there[changed_section])
    if field.name in _MAY.get(changed_section, (field.name,)) and f"{changed_section}.{field.name}" not in _WHY
  ]
  field = ".".join(key.split(".")[:2])
  if field in known and (key == field or field in ("data.sources", "data.benchmark_dirs")):
    return
  exists = dataclasses.is_dataclass(there.get(section)) and hasattr(there[section], field.partition(".")[2])
  if not exists:
    near = did_you_mean(key, [*known, "name", "steps", "fraction"])
    near = near or f"; a stage can change keys of {', '.join(_CHANGED)}"
    raise UserError(f"{where}: no such key {key!r}{near}")
  if key != field and field in known:
    raise UserError(f"{where}: no such key {key!r}{did_you_mean(key, known) or f'; give {field!r}'}")
  why = (
    _WHY.get(field)
    or _WHY.get(section)
    or f"The key applies to the whole run. A stage can change keys of {', '.join(_CHANGED)}."
  )
  remedy = "" if field in ("train.steps", "train.epochs") else f" Set config.{key} for the whole run."
  raise UserError(f"{where}: {key} cannot change from stage to stage. {why}{remedy}")


def _with_entry(mapping: Mapping[str, Any], key: str, value: Any, where: str) -> dict[str, Any]:
  """Adds or changes one entry of a mapping of config.data: sources.NAME.rate, benchmark_dirs.NAME."""
  name, _, field = key.partition(".")
  if not field:
    return {**mapping, name: value}
  source = mapping.get(name, SourceConfig())
  source = source if isinstance(source, SourceConfig) else SourceConfig(**source)
  if not hasattr(source, field):
    fields = [candidate.name for candidate in dataclasses.fields(SourceConfig)]
    near = did_you_mean(field, fields) or f"; keys of a source: {', '.join(fields)}"
    raise UserError(f"{where}: no such key 'data.sources.{key}'{near}")
  typed = _typed(f"{where}: data.sources.{key}", value, getattr(source, field))
  return {**mapping, name: dataclasses.replace(source, **{field: typed})}


def _typed(where: str, value: Any, like: Any) -> Any:
  """Converts a value to the key's type if that is lossless: 1 to 1.0 for a float."""
  if isinstance(like, float) and type(value) is int:
    return float(value)
  if isinstance(like, tuple) and isinstance(value, list):
    return tuple(value)
  if isinstance(like, Mapping) and isinstance(value, Mapping):
    return dict(value)
  if type(value) is not type(like):
    raise UserError(f"{where}={value!r} must be of type {type(like).__name__}, for example {like!r}")
  return value


def _each_says_all(config: Config, stages: Sequence[Stage]) -> tuple[StageConfig, ...]:
  """Returns the stages with every value that differs between them or from the config's sections."""
  everywhere = [config, *(stage.config for stage in stages)]
  completed = []
  for stage_config, stage in zip(config.stages, stages, strict=True):
    changes = {
      f"{section}.{field.name}": _plain(_value(stage.config, section, field))
      for section in ("data", "train", "model", *(("distillation",) if "distillation" in config.sections else ()))
      for field in dataclasses.fields(getattr(config, section))
      if any(_value(x, section, field) != _value(config, section, field) for x in everywhere)
    }
    rate = {f"optimizer.{key}": value for key, value in own_rate(stage_config).items()}
    completed.append(dataclasses.replace(stage_config, changes=changes | rate))
  return tuple(completed)


def _value(config: Config, section: str, field: dataclasses.Field) -> Any:
  return getattr(getattr(config, section), field.name)


def _plain(value: Any) -> Any:
  """Converts records to mappings, as in config files."""
  if isinstance(value, Mapping):
    return {key: _plain(x) for key, x in value.items()}
  if isinstance(value, tuple):
    return tuple(map(_plain, value))
  return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value


def check_typed(value: str) -> None:
  """Refuses `--config.stages` in invalid Python syntax, because absl's message would be about a tuple."""
  try:
    ast.literal_eval(value.replace("\n", " ").strip() or "()")  # newlines between stages are allowed
  except (SyntaxError, ValueError) as error:
    raise UserError(
      f"--config.stages={value} is not a valid value ({getattr(error, 'msg', 'not a list of mappings')}). Give a"
      f""" mapping for each stage: --config.stages='{{"name": "short", "fraction": 0.9}}, {{"name": "long"}}'"""
    ) from error


def check_overrides(config: ConfigDict, arguments: Sequence[str]) -> None:
  """Refuses an override that has no effect because every stage sets the key."""
  stages = [stage for stage in config.stages if isinstance(stage, Mapping)]
  if any(argument.startswith("--config.stages") for argument in arguments):
    return
  for argument in arguments if stages else ():
    key = argument.partition("=")[0].removeprefix("--config.")
    if all(key in stage for stage in stages):
      values = ", ".join(f"{stage.get('name', number)}: {stage[key]!r}" for number, stage in enumerate(stages, start=1))
      raise UserError(
        f"{argument} has no effect, because every stage of this config sets {key} ({values}). Give new stages "
        "(docs/stages.md), or add --config.stages='()' for a run without stages."
      )
