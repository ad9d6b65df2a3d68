"""Tables with values that are imported on first use, so that a run imports only the optional modules that it names."""

from collections.abc import Iterator, Mapping
import functools
import importlib
import operator
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


def load(path: str) -> Any:
  """Imports an attribute.

  Args:
    path: "package.module:attribute", or "package.module:attribute.attribute".
  """
  module, _, attribute = path.partition(":")
  return operator.attrgetter(attribute)(importlib.import_module(module))


class LazyTable(Mapping[str, Value], Generic[Value]):
  """Maps names to attributes of modules; `in`, `len` and iteration import nothing.

  Args:
    rows: name -> "package.module:attribute".
  """

  def __init__(self, rows: Mapping[str, str]):
    self.rows = dict(rows)

  def __getitem__(self, name: str) -> Value:
    return load(self.rows[name])

  def __contains__(self, name: object) -> bool:
    return name in self.rows

  def __iter__(self) -> Iterator[str]:
    return iter(self.rows)

  def __len__(self) -> int:
    return len(self.rows)


class JoinedTable(LazyTable[Value]):
  """Joins tables of several packages, each imported on first use.

  Args:
    tables: "package.module:attribute" of each table, name -> "package.module:attribute".
  """

  def __init__(self, *tables: str):
    self._tables = tables

  @functools.cached_property
  def rows(self) -> dict[str, str]:  # type: ignore[override]
    return {name: path for table in self._tables for name, path in load(table).items()}
