"""Parameters whose values a config has under another name."""

from collections.abc import Mapping
from typing import Any

from t2t.configs import default
from t2t.convert.gin.bindings import UNSET, BindingReader


def same(reader: BindingReader, table: Mapping[str, str]) -> dict[str, Any]:
  """The keys of those parameters that are bound, with their values.

  Args:
    reader: the files.
    table: parameter -> key, "model.embed_dim".
  """
  values, defaults = {}, default.get_config()
  for name, key in table.items():
    value = reader.value(name)
    section, _, field = key.partition(".")
    kind = type(defaults[section][field])
    if value is UNSET or value is None:
      # None is T5X's word for no limit and for its default.
      continue
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, (kind, int) if kind is float else kind):
      reader.refuse(name, value, f"config.{key} is of type {kind.__name__}; give --config.{key}=VALUE", key)
      continue
    values[key] = kind(value)
  return values


def of_sections(table: Mapping[str, str], *sections: str) -> dict[str, str]:
  """The rows of such a table whose keys are of some sections of a config."""
  return {name: key for name, key in table.items() if key.split(".")[0] in sections}
