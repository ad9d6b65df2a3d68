"""Finds the text of a record by the name of a field, or by a path of names such as meta.text or messages.content."""

from collections.abc import Iterator, Mapping, Sequence
import re
from typing import Any

from t2t.storage import encoding

_INDEX = re.compile(r"-?\d+")
_DEPTH = 4  # names of a path that a message suggests


class UnreadableField(ValueError):
  """A field that is not there, or holds no text; the message has neither file nor line."""


class Missing(UnreadableField):
  """A field that is not there."""


def text(record: Mapping[str, Any], field: str, *, key: str) -> str:
  """The text of a field.

  In:  {"meta": {"text": "a"}}, "meta.text"
  Out: "a"
  In:  {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "messages.content"
  Out: "a\\nb"

  A name that the record has is taken as it stands.  Otherwise dots separate names of objects within each other.  A
  number takes one element of a list, -1 the last; another name is taken of each.  Strings of a list are joined by line
  breaks, without those that are null.

  Args:
    record: a JSON object, or a row of a table.
    field: its name, or the path to it.
    key: what a message tells the user to set, for example "set config.data.field to the text's name".

  Raises:
    Missing: the record does not have it.
    Unreadable: it holds no text.
  """
  value = find(record, field, key=key)
  if isinstance(value, list):
    value = "\n".join(_strings(value, field, key))
  if value is None:
    raise UnreadableField(is_null(field, key))
  if not isinstance(value, str):
    raise UnreadableField(f"field {field!r} is a {json_type(value)}, not a string; {key}{_suggestion(record)}")
  if reason := encoding.unpaired_surrogate(value):
    raise UnreadableField(f"field {field!r} {reason}")
  return value


def is_null(field: str, key: str) -> str:
  """The message on a field that is null."""
  left_out = (
    ", or skip a fraction of the records: --config.data.max_bad_record_fraction=0.001" if "config." in key else ""
  )
  return f"{field!r} is null; remove the record{left_out}"


def find(record: Mapping[str, Any], field: str, *, key: str = "") -> Any:
  """The value of a field, see `text`; nulls on the way make it None.

  Raises:
    Missing: the record does not have it.
  """
  if field in record:
    return record[field]
  try:
    return _walk(record, field.split("."))
  except (KeyError, IndexError, TypeError):
    item_fields = listed(record)
    raise Missing(f"has no field {field!r}; it has {item_fields}; {key}{_suggestion(record)}".rstrip("; ")) from None


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
        f"field {field!r} is a list of objects with {listed(item)}, not a string; "
        + (
          f"{likeliest(paths)!r} in place of {field!r} reads the text of each object, joined by line breaks, and"
          f" {field + '.0' + likeliest(paths).removeprefix(field)!r} that of the first"
          if paths
          else key
        )
      )
    elif item is not None:
      raise UnreadableField(f"field {field!r} is a list with a {json_type(item)}, not of strings; {key}")


def _paths(value: Mapping[str, Any], depth: int = _DEPTH) -> Iterator[str]:
  """The paths to texts in an object."""
  for name, child in value.items():
    if isinstance(child, list):
      child = next((element for element in child if element is not None), None)
    if isinstance(child, str):
      yield name
    elif isinstance(child, Mapping) and depth:
      yield from (f"{name}.{path}" for path in _paths(child, depth - 1))


_LIKELY = ("text", "content", "value", "body")


def likeliest(paths: Sequence[str]) -> str:
  """The path that most likely has the text: that of a field which is named so, or the first."""
  return min(paths, key=lambda path: path.rpartition(".")[2] not in _LIKELY)


def _suggestion(record: Mapping[str, Any]) -> str:
  nested = [path for path in _paths(record) if "." in path]
  return f", for example {likeliest(nested)!r}" if nested else ""


def json_type(value: Any) -> str:
  """The name that JSON has for the type of a value."""
  names = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "list"}
  return names.get(type(value), "object")


def listed(names: Mapping | Sequence[str]) -> str:
  """The first names, quoted."""
  quoted = [repr(name) for name in names]
  return (", ".join(quoted[:10]) + (", ..." if len(quoted) > 10 else "")) or "no fields at all"
