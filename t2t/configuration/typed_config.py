"""A ConfigDict that checks values on assignment; errors name the accepted values."""

from collections.abc import Mapping
import os
from typing import Any

from ml_collections import ConfigDict
import numpy as np

from t2t import UserError
from t2t.configuration import loading


class _NoSuchKey(UserError, AttributeError):
  """Raised for assignment to an unknown key."""


class _OtherType(UserError, TypeError):
  """Raised for a value of the wrong type."""


class TypedConfig(ConfigDict):
  """A ConfigDict that accepts paths and NumPy numbers, and refuses unknown keys and values of another type."""

  def __setattr__(self, attribute: str, value: Any) -> None:
    """Sets a key as `ConfigDict` does.

    Raises:
      UserError: the key does not exist, or the value has another type.
    """
    try:
      super().__setattr__(attribute, value)
    except UserError:
      raise
    except AttributeError as error:
      key = f"{self._section}.{attribute}" if self._section else attribute
      nearest = loading.instead_of(key, loading.all_keys())
      raise _NoSuchKey(
        f"config.{key}={value!r}: no such key{nearest or '; `t2t train --help all` lists all keys'}"
      ) from error

  def __setitem__(self, key, value):
    """Sets a key as `ConfigDict` does.

    Raises:
      UserError: the value has another type.
    """
    value = plain(value)
    before = self._fields.get(key)
    name = f"config.{self._section}.{key}" if self._section else f"config.{key}"
    if value is None and isinstance(before, bool | int | float | str | tuple):
      raise _OtherType(f"{name}=None {_wanted(before)}; the current value is {before!r}")
    try:
      super().__setitem__(key, value)
    except TypeError as error:
      raise _OtherType(f"{name}={value!r} {_wanted(before)}{_remedy(before, value)}") from error

  def __setstate__(self, state):
    super().__setstate__(state)
    object.__setattr__(self, "_section", state.get("_section", ""))

  _section = ""  # default for a new config


def typed(config: ConfigDict, section: str = "") -> TypedConfig:
  """Turns on checks of assignments, in place, in all sections of a config."""
  # ConfigDict converts nested mappings to plain ConfigDicts, so their class is changed afterwards.
  object.__setattr__(config, "__class__", TypedConfig)
  object.__setattr__(config, "_section", section)
  for name, value in config.items():
    if isinstance(value, ConfigDict):
      typed(value, f"{section}.{name}" if section else str(name))
  assert isinstance(config, TypedConfig)
  return config


def plain(value: object) -> object:
  """Converts NumPy numbers to Python numbers and paths to strings, at any depth."""
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
    return f"must be a section; set keys of this section: {', '.join(list(before)[:3])}, ..."
  kinds = {bool: "True or False", int: "an integer", float: "a number", str: "a string", tuple: "a tuple"}
  return f"must be {kinds.get(type(before), type(before).__name__)}"


def _remedy(before: Any, value: Any) -> str:
  """Returns the end of an error with the value that was probably meant."""
  if isinstance(before, str) and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
    return f"; separate several values by commas: {','.join(value)!r}"
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
