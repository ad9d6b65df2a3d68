"""Examples from a Python program (dicts, a `datasets.Dataset` or a DataFrame) as rows of a table."""

from collections.abc import Iterable, Mapping
from typing import Any

from t2t import UserError
from t2t.data.tables import reading, values


def keep(examples: Any, *, where: str) -> str:
  """Keeps examples in memory; returns their name, which replaces config.data.files.

  Args:
    examples: an iterable of dicts; a `datasets.Dataset`, whose class indices become names; a pandas or polars
      DataFrame; or a pyarrow table.
    where: name of the argument, for messages.

  Raises:
    UserError: the examples have another type, or there are none.
  """
  names = _class_names(examples)
  rows = []
  for number, row in enumerate(_rows(examples, where)):
    if not isinstance(row, Mapping):
      raise UserError(
        f"{where}[{number}] has type {type(row).__name__}, not dict; give a dict for each example, such as"
        ' {"text": "...", "label": "..."}'
      )
    rows.append({str(name): _named(values.plain(x), names.get(name)) for name, x in row.items()})
  if not rows:
    raise UserError(f"{where} is empty; give at least two examples")
  return reading.keep(rows, where=where, names=names)


def _rows(examples: Any, where: str) -> Iterable[Any]:
  if hasattr(examples, "columns") and hasattr(examples, "iter_rows"):  # polars
    return examples.iter_rows(named=True)
  if hasattr(examples, "columns") and hasattr(examples, "to_pylist"):  # pyarrow
    return examples.to_pylist()
  if hasattr(examples, "to_dict") and hasattr(examples, "columns"):  # pandas
    return examples.to_dict("records")
  if isinstance(examples, Mapping | str) or not isinstance(examples, Iterable):
    kind = type(examples).__name__
    remedy = "a list of dicts, a datasets.Dataset or a DataFrame"
    if kind == "DatasetDict":
      remedy = f"one split of the DatasetDict, such as {where}[{next(iter(examples))!r}]"
    raise UserError(f"{where} has the unsupported type {kind}; give {remedy}")
  return examples


def _class_names(examples: Any) -> dict[str, tuple[str, ...]]:
  """Returns column -> class names from the features of a `datasets.Dataset`, also for columns of lists."""
  names_by_column = {}
  features = getattr(examples, "features", None)
  for column, feature in features.items() if isinstance(features, Mapping) else ():
    names = getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)
    if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
      names_by_column[column] = tuple(values.label(name) for name in names)
  return names_by_column


def _named(value: Any, names: tuple[str, ...] | None) -> Any:
  """Replaces class indices by names, also in a list; -1, which marks a missing class, becomes None."""
  if names is None:
    return value
  if isinstance(value, list):
    return [_named(x, names) for x in value]
  if isinstance(value, int) and not isinstance(value, bool):
    return names[value] if 0 <= value < len(names) else None
  return value
