"""A config whose values are checked where they are assigned, with a sentence that says what would be right."""

from collections.abc import Mapping
import os
from typing import Any

from ml_collections import ConfigDict
import numpy as np

from t2t import UserError
from t2t.configuration import loading


class _NoSuchKey(UserError, AttributeError):
  """A key that does not exist was set."""


class _OtherType(UserError, TypeError):
  """A key was set to a value of another type."""


class TypedConfig(ConfigDict):
  """A ConfigDict that takes paths and NumPy's numbers, and refuses unknown keys and values of another type by key."""

  def __setattr__(self, attribute: str, value: Any) -> None:
    """Sets a key as `ConfigDict` does.

    Raises:
      UserError: the key does not exist, or the value is not of its type.
    """
    try:
      super().__setattr__(attribute, value)
    except UserError:
      raise
    except AttributeError as error:
      key = f"{self._section}.{attribute}" if self._section else attribute
      nearest = loading.instead_of(key, loading.all_keys())
      raise _NoSuchKey(f"config.{key}={value!r}: no such key{nearest}") from error

  def __setitem__(self, key, value):
    """Sets a key as `ConfigDict` does.

    Raises:
      UserError: the value is not of the key's type.
    """
    value = plain(value)
    before = self._fields.get(key)
    name = f"config.{self._section}.{key}" if self._section else f"config.{key}"
    if value is None and isinstance(before, bool | int | float | str | tuple):
      raise _OtherType(f"{name}=None: {_wanted(before)}; the value now is {before!r}")
    try:
      super().__setitem__(key, value)
    except TypeError as error:
      raise _OtherType(f"{name}={value!r}: {_wanted(before)}{_remedy(before, value)}") from error

  def __setstate__(self, state):
    super().__setstate__(state)
    object.__setattr__(self, "_section", state.get("_section", ""))

  _section = ""  # of a config that is made anew


def typed(config: ConfigDict, section: str = "") -> TypedConfig:
  """The same config with its assignments checked, from now on and in all sections."""
  # ConfigDict makes every mapping within it a ConfigDict, and not one of its own class.
  object.__setattr__(config, "__class__", TypedConfig)
  object.__setattr__(config, "_section", section)
  for name, value in config.items():
    if isinstance(value, ConfigDict):
      typed(value, f"{section}.{name}" if section else str(name))
  assert isinstance(config, TypedConfig)
  return config


def plain(value: object) -> object:
  """A value as the command line knows it: NumPy's numbers are Python's, and paths are texts."""
  if isinstance(value, ConfigDict):
    return value
  if isinstance(value, np.generic | np.ndarray):
    return value.tolist()
  if isinstance(value, os.PathLike):
    return os.fspath(value)
  if isinstance(value, Mapping):
    return {key: plain(item) for key, item in value.items()}
  if type(value) is tuple:
    return tuple(map(plain, value))
  return list(map(plain, value)) if type(value) is list else value


def _wanted(before: Any) -> str:
  if isinstance(before, ConfigDict):
    return f"is a section; set its keys, {', '.join(list(before)[:3])}, ..."
  kinds = {bool: "True or False", int: "an integer", float: "a number", str: "a text", tuple: "a tuple"}
  return f"must be {kinds.get(type(before), type(before).__name__)}"


def _remedy(before: Any, value: Any) -> str:
  """The value that was probably meant."""
  if isinstance(before, str) and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
    return f"; several are separated by commas: {','.join(value)!r}"
  if isinstance(before, tuple) and isinstance(value, str):
    return f"; give {tuple(value.split(','))!r}"
  if isinstance(before, bool):
    truth = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(str(value).lower())
    return "" if truth is None else f"; give {truth}"
  if isinstance(before, int | float):
    try:
      number = float(value)
    except (TypeError, ValueError):
      return ""
    if isinstance(before, float):
      return f"; give {number!r}"
    return f"; give {int(number)}" if number.is_integer() else ""
  return ""
