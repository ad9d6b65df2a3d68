"""Finds the text of a record by the name of a field, or by a path of names such as meta.text or messages.content."""

from collections.abc import Iterator, Mapping, Sequence
import re
from typing import Any

from t2t.storage import encoding

_INDEX = re.compile(r"-?\d+")
_DEPTH = 4  # maximum number of names in a suggested path


class UnreadableField(ValueError):
  """Field that is missing or not a text; the message has neither file nor line."""


class Missing(UnreadableField):
  """Missing field."""


def text(record: Mapping[str, Any], field: str, *, key: str) -> str:
  """Returns the text of a field.

  In:  {"meta": {"text": "a"}}, "meta.text"
  Out: "a"
  In:  {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "messages.content"
  Out: "a\\nb"

  A name of a field in the record is used literally. Otherwise dots separate names of nested objects. A number selects
  one element of a list, -1 the last; another name is looked up in each element. Strings of a list are joined by line
  breaks, without nulls.

  Args:
    record: a JSON object, or a row of a table.
    field: its name, or the path to it.
    key: advice for messages, for example "set config.data.field to the text's name".

  Raises:
    Missing: the record has no such field.
    UnreadableField: the field is not a text.
  """
  value = find(record, field, key=key)
  if isinstance(value, list):
    value = "\n".join(_strings(value, field, key))
  if value is None:
    raise UnreadableField(is_null(field, key))
  if not isinstance(value, str):
    raise UnreadableField(f"field {field!r} has type {json_type(value)}, not string; {key}{_suggestion(record)}")
  if reason := encoding.unpaired_surrogate(value):
    raise UnreadableField(f"field {field!r} {reason}")
  return value


def is_null(field: str, key: str) -> str:
  """Returns the message for a field that is null."""
  left_out = ", or skip malformed records with --config.data.max_bad_record_fraction=0.001" if "config." in key else ""
  return f"field {field!r} is null; remove the record{left_out}"


def find(record: Mapping[str, Any], field: str, *, key: str = "") -> Any:
  """Returns the value of a field, see `text`; a null on the path gives None.

  Raises:
    Missing: the record has no such field.
  """
  if field in record:
    return record[field]
  try:
    return _walk(record, field.split("."))
  except (KeyError, IndexError, TypeError):
    names = listed(record)
    raise Missing(f"no field {field!r} (fields: {names}); {key}{_suggestion(record)}".rstrip("; ")) from None


def _walk(value: Any, names: Sequence[str]) -> Any:
  for i, name in enumerate(names):
    if value is None:
      return None
    if isinstance(value, list):
      if not _INDEX.fullmatch(name):
        return [_walk(item, names[i:]) for item in value]
      value = value[int(name)]
    else:
      value = value[name]
  return value


def _strings(value: Any, field: str, key: str) -> Iterator[str]:
  for item in value:
    if isinstance(item, list):
      yield from _strings(item, field, key)
    elif isinstance(item, str):
      yield item
    elif isinstance(item, Mapping):
      paths = [f"{field}.{path}" for path in _paths(item)]
      raise UnreadableField(
        f"field {field!r} is a list of objects (fields: {listed(item)}), not a string; {key}"
        + (
          f": {likeliest(paths)!r} reads all objects, joined by line breaks, and "
          f"{field + '.0' + likeliest(paths).removeprefix(field)!r} reads the first"
          if paths
          else ""
        )
      )
    elif item is not None:
      raise UnreadableField(f"field {field!r} is a list with an element of type {json_type(item)}, not string; {key}")


def _paths(value: Mapping[str, Any], depth: int = _DEPTH) -> Iterator[str]:
  """Yields the paths to texts in an object."""
  for name, child in value.items():
    if isinstance(child, list):
      child = next((element for element in child if element is not None), None)
    if isinstance(child, str):
      yield name
    elif isinstance(child, Mapping) and depth:
      yield from (f"{name}.{path}" for path in _paths(child, depth - 1))


_LIKELY = ("text", "content", "value", "body")


def likeliest(paths: Sequence[str]) -> str:
  """Returns the path that most likely leads to the text: the first with a typical name, or the first."""
  return min(paths, key=lambda path: path.rpartition(".")[2] not in _LIKELY)


def _suggestion(record: Mapping[str, Any]) -> str:
  nested = [path for path in _paths(record) if "." in path]
  return f", for example {likeliest(nested)!r}" if nested else ""


def json_type(value: Any) -> str:
  """Returns the JSON name of a value's type."""
  names = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "list"}
  return names.get(type(value), "object")


def listed(names: Mapping | Sequence[str]) -> str:
  """Returns the first names, quoted."""
  quoted = [repr(name) for name in names]
  return (", ".join(quoted[:10]) + (", ..." if len(quoted) > 10 else "")) or "none"
