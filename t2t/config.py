"""Configs: found by name or path, their keys overridden, their sections as the records that the library takes."""

import dataclasses
import difflib
import importlib
import importlib.util
import pathlib
import re
import traceback
from typing import TypeVar

from absl import flags
from ml_collections import ConfigDict, config_flags

from t2t import UserError

T = TypeVar("T")


def _nearest(name: str, known: list[str]) -> str:
  near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
  return f"; nearest: {', '.join(near)}" if near else ""


def _shipped() -> dict[str, tuple[str, str | None]]:
  """Name -> (module, size) of the configs that come with t2t; a family's module says its SIZES."""
  names: dict[str, tuple[str, str | None]] = {}
  package = importlib.import_module("t2t.configs")
  for path in sorted(pathlib.Path(package.__file__).parent.glob("*.py")):
    if path.stem in ("__init__", "default"):
      continue
    module = f"t2t.configs.{path.stem}"
    for size in getattr(importlib.import_module(module), "SIZES", (None,)):
      names[path.stem if size is None else f"{path.stem}_{size}"] = (module, size)
  return names


def config_names() -> list[str]:
  """The configs that come with t2t."""
  return list(_shipped())


def load_config(spec: str) -> ConfigDict:
  """The config that `spec` names: a shipped one (`tiny`, `t5_1_1_small`) or a file with `get_config()`.

  Args:
    spec: a name, or the path of a .py file; `FILE.py:ARGUMENT` calls `get_config(ARGUMENT)`.

  Raises:
    UserError: no such config (lists the nearest), or the file fails (says where).
  """
  path, _, argument = spec.partition(":")
  if not path.endswith(".py"):
    shipped = _shipped()
    if spec not in shipped:
      raise UserError(
        f"--config {spec}: no such config{_nearest(spec, list(shipped))};"
        " give one of those that `t2t train --help` lists, or the path of a .py file"
      )
    module, size = shipped[spec]
    get_config = importlib.import_module(module).get_config
    return get_config() if size is None else get_config(size)
  if not pathlib.Path(path).is_file():
    raise UserError(f"--config {path}: no such file; configs that come with t2t: {', '.join(_shipped())}")
  module_spec = importlib.util.spec_from_file_location("t2t_user_config", path)
  module = importlib.util.module_from_spec(module_spec)
  try:
    module_spec.loader.exec_module(module)
    config = module.get_config(argument) if argument else module.get_config()
  except UserError:
    raise
  except Exception as error:
    # Whatever the user's file raises is told with the line of that file that raised it.
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    where = f"{path}, line {lines[-1]}" if lines else path
    raise UserError(f"--config {where}: {type(error).__name__}: {error}") from error
  if not isinstance(config, ConfigDict):
    raise UserError(f"--config {path}: get_config() returned {type(config).__name__}; it must return a ConfigDict")
  return config


def override(config: ConfigDict, arguments: list[str]) -> ConfigDict:
  """`config` with `--config.SECTION.KEY=VALUE` applied, locked; several values are separated by commas.

  Raises:
    UserError: an unknown key (names the nearest), a value of another type, or anything else on the command line.
  """
  config.lock()
  keys = [f"{section}.{key}" for section, values in config.items() for key in values]
  for argument in arguments:
    match = re.match(r"--(?:no)?config\.([\w.]+)", argument)
    if argument.startswith("-") and match is None:
      key = argument.lstrip("-").partition("=")[0]
      meant = f"; did you mean --config.{key}?" if key in keys else "; `--help` lists those there are"
      raise UserError(f"unknown option {argument}{meant}")
    if match and match[1] not in keys:
      raise UserError(f"--config.{match[1]}: no such key{_nearest(match[1], keys)}; `--help` lists all keys")
  values = flags.FlagValues()
  config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=["t2t", *arguments])
  try:
    rest = values(["t2t", *arguments])
  except flags.Error as error:
    text = re.sub(r"invalid literal for int\(\).*", "must be an integer", str(error).removeprefix("flag "))
    raise UserError(re.sub(r"could not convert string to float.*", "must be a number", text)) from error
  if len(rest) > 1:
    raise UserError(f"unexpected argument {rest[1]!r}; options have the form --config.SECTION.KEY=VALUE")
  for argument in arguments:
    key, _, value = argument.removeprefix("--config.").partition("=")
    if key in keys and isinstance(_value(values.config, key), tuple) and not value.startswith(("(", "[")):
      # a,b is ("a", "b"), as people write it.
      name, _, field = key.partition(".")
      values.config[name][field] = tuple(part for part in value.split(",") if part)
  return values.config


def _value(config: ConfigDict, key: str):
  name, _, field = key.partition(".")
  return config[name][field]


def section(config: ConfigDict, name: str, cls: type[T]) -> T:
  """One section of the config as the frozen dataclass that the library takes.

  Raises:
    UserError: a key that the dataclass does not know, or one that is missing.
  """
  known = [field.name for field in dataclasses.fields(cls)]
  unknown = [key for key in config[name] if key not in known]
  if unknown:
    raise UserError(f"config.{name}.{unknown[0]}: no such key{_nearest(unknown[0], known)}")
  missing = [
    field.name
    for field in dataclasses.fields(cls)
    if field.default is dataclasses.MISSING and field.name not in config[name]
  ]
  if missing:
    raise UserError(f"config.{name}.{missing[0]} is missing; start from `t2t.configs.default.get_config()`")
  return cls(**config[name])
