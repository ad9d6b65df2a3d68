"""Converts parameters with the same values under other names."""

from collections.abc import Mapping
from typing import Any

from t2t.configs import default
from t2t.convert.gin.bindings import UNSET, BindingReader


def same(reader: BindingReader, table: Mapping[str, str]) -> dict[str, Any]:
  """Returns the config keys and values of the bound parameters.

  Args:
    reader: the files.
    table: parameter -> config key, for example "model.embed_dim".
  """
  values, defaults = {}, default.get_config()
  for name, key in table.items():
    value = reader.value(name)
    section, _, field = key.partition(".")
    kind = type(defaults[section][field])
    if value is UNSET or value is None:
      # None means no limit or the default in T5X.
      continue
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, (kind, int) if kind is float else kind):
      reader.refuse(name, value, f"config.{key} has type {kind.__name__}; give --config.{key}=VALUE", key)
      continue
    values[key] = kind(value)
  return values


def of_sections(table: Mapping[str, str], *sections: str) -> dict[str, str]:
  """Returns the rows of such a table for some config sections."""
  return {name: key for name, key in table.items() if key.split(".")[0] in sections}
