"""Finds the settings of a resumed run that give its state other arrays than its checkpoint has."""

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any

import jax

from t2t import UserError
from t2t.checkpoints import restore
from t2t.configuration.loading import records, saved_config
from t2t.configuration.schema import OPTIONAL, Config
from t2t.training import recipe

_DECIDE = ("model", "optimizer", "train")  # sections that determine a state's arrays, besides OPTIONAL


def error(saved: Mapping[str, object], config: Config, mesh: jax.sharding.Mesh, *, workdir: object, step: int) -> str:
  """Returns the error on a checkpoint with other arrays than the run's; "" if no setting explains it.

  Args:
    saved: the config that the checkpoint was saved with.
    config: of the resumed run.
    mesh: of the run.
    workdir, step: of the checkpoint.
  """
  try:
    old = records(saved_config(saved))
  except UserError:  # a version with keys that no longer exist
    return ""
  decisive = [change for change in _changes(old, config) if _decides(change, config, mesh)]
  if not decisive:
    return ""
  begins = f"--workdir {workdir}: its step {step} has other arrays in model or optimizer than this run, because of"
  old_init: Any = saved.get("init", {})
  base, init = old_init.get("checkpoint", ""), config.init
  if (
    init.use_model_config and base and base != init.checkpoint and any(change.section == "model" for change in decisive)
  ):
    return (
      f"{begins}\n  config.init.checkpoint={init.checkpoint or repr('')}, saved with {base} and its model\n"
      f"To resume give --config.init.checkpoint={base}; or give another --workdir"
    )
  lines = "".join(f"\n  {change.described}" for change in decisive)
  again = " ".join(option for change in decisive for option in change.options)
  removed = "".join(
    f", without config.{change.section}" for change in decisive if not change.key and change.was is None
  )
  return (
    f"{begins}{lines}\n"
    f"To resume give the settings of the saved run{again and f', {again}'}{removed}; or give another --workdir"
  )


@dataclasses.dataclass(frozen=True)
class _Change:
  """A changed key of a section, or with key="" an added or removed section."""

  section: str
  key: str
  is_now: Any
  was: Any

  @property
  def described(self) -> str:
    if not self.key:
      return f"config.{self.section}, saved {'without it' if self.was is None else 'with it'}"
    is_now, was = (_typed(value) or repr(value) for value in (self.is_now, self.was))
    return f"config.{self.section}.{self.key}={is_now}, saved with {was}"

  @property
  def options(self) -> list[str]:
    """Options that restore the former value."""
    if self.key:
      return [f"--config.{self.section}.{self.key}={_quoted(_typed(self.was))}"]
    if self.was is None:
      return []
    plain, values = type(self.was)(), dataclasses.asdict(self.was)
    changed = [key for key in values if values[key] != getattr(plain, key)] or list(values)[:1]
    return [f"--config.{self.section}.{key}={_quoted(_typed(values[key]))}" for key in changed]

  def undone(self, config: Config) -> Config:
    if not self.key:
      return config.with_section(self.section, self.was)
    return config.with_(**{self.section: {self.key: self.was}})


def _typed(value: Any) -> str:
  if isinstance(value, tuple):
    return ",".join(map(str, value)) if not any(map(dataclasses.is_dataclass, value)) else _records(value)
  return str(value)


def _records(values: tuple) -> str:
  return ",".join(str(dataclasses.asdict(value)) for value in values)


def _quoted(value: str) -> str:
  return value if value and not set(value) & set(" '\"{}()|^$*") else "'" + value.replace("'", '"') + "'"


def _changes(old: Config, new: Config) -> Iterator[_Change]:
  for section in (*_DECIDE, *OPTIONAL):
    was, is_now = getattr(old, section), getattr(new, section)
    if was is None or is_now is None:
      if was is not is_now:
        yield _Change(section, "", is_now, was)
      continue
    for field in dataclasses.fields(is_now):
      change = _Change(section, field.name, getattr(is_now, field.name), getattr(was, field.name))
      if change.is_now != change.was:
        yield change


def _decides(change: _Change, config: Config, mesh: jax.sharding.Mesh) -> bool:
  """Returns whether undoing one setting changes the arrays."""
  try:
    undone = _shapes(change.undone(config), mesh)
  except UserError:  # the former value conflicts with other changed settings
    return True
  return undone != _shapes(config, mesh)


def _shapes(config: Config, mesh: jax.sharding.Mesh) -> dict[str, tuple[int, ...]]:
  return restore.shapes(recipe.make(config).state(mesh)[1])
