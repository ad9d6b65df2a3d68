"""Reads single values of a table: labels, numbers, words, answers."""

from collections.abc import Mapping, Sequence
import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from t2t.data.tables.reading import Row


def plain(value: Any) -> Any:
  """A value without NumPy: an array as a list, a scalar as Python's."""
  return value.tolist() if hasattr(value, "tolist") and not isinstance(value, str | bytes) else value


def is_missing(value: Any) -> bool:
  """Returns whether a value is null, NaN, or nothing but white space."""
  if value is None or isinstance(value, float) and math.isnan(value):
    return True
  return isinstance(value, str) and not value.strip()


def number(value: Any) -> float | None:
  """A finite number; None: it is none."""
  if isinstance(value, bool) or not isinstance(value, int | float | str):
    return None
  try:
    found = float(value)
  except ValueError:
    return None
  return found if math.isfinite(found) else None


def label(value: Any) -> str:
  """The name of a class, without white space around it; a whole number has no decimals.

  In:  " positive ", 3, 1.0, True
  Out: "positive", "3", "1", "true"
  """
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, float) and value.is_integer():
    return str(int(value))
  return " ".join(str(value).split())


def text(value: Any) -> str | None:
  """A text without white space around it; None: it is not there, or neither text nor number."""
  if is_missing(value):
    return ""
  if isinstance(value, str):
    return value.strip()
  return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def words(value: Any) -> list[str] | None:
  """Words or tags of a text: a list, a list as JSON or Python writes it, or words with white space between them.

  In:  ["Ann", "won"], '["Ann", "won"]', "Ann won"
  Out: ["Ann", "won"]

  None: it is none of these.
  """
  if isinstance(value, list | tuple):
    return [label(x) for x in value]
  if not isinstance(value, str):
    return None
  found = parsed(value)
  return [label(x) for x in found] if isinstance(found, list) else value.split()


def parsed(value: str) -> Any:
  """A cell that holds a list or an object as JSON writes it; any other text as it is."""
  if value.lstrip()[:1] in ("[", "{"):
    try:
      return json.loads(value)
    except ValueError:
      return value
  return value


def answers(value: Any, start: Any) -> tuple[list[str], list[int | None]] | None:
  """Texts and first characters of the answers to a question; None: they cannot be read.

  In:  {"text": ["Ann"], "answer_start": [4]};  "Ann";  ["Ann", "Ann Lee"];  [{"text": "Ann", "answer_start": 4}]
  Out: (["Ann"], [4]);  (["Ann"], [None]);  (["Ann", "Ann Lee"], [None, None]);  (["Ann"], [4])
  """
  if is_missing(value):
    return [], []
  value = parsed(value) if isinstance(value, str) else value
  if isinstance(value, Mapping):
    texts, starts = plain(value.get("text", value.get("texts"))), plain(value.get("answer_start", value.get("start")))
    texts = [texts] if isinstance(texts, str) else texts
    starts = [starts] if isinstance(starts, int) else starts
  elif isinstance(value, list | tuple) and all(isinstance(x, Mapping) for x in value):
    texts, starts = [x.get("text") for x in value], [x.get("answer_start", x.get("start")) for x in value]
  else:
    texts = list(value) if isinstance(value, list | tuple) else [str(value)]
    first = number(plain(start))
    starts = [int(first)] if first is not None and len(texts) == 1 else None
  if not isinstance(texts, list | tuple) or not all(isinstance(x, str) for x in texts):
    return None
  starts = [None] * len(texts) if starts is None else [int(x) for x in starts]
  return (list(texts), starts) if len(texts) == len(starts) else None


def looks_headerless(names: Sequence[str], rows: Sequence["Row"]) -> bool:
  """Returns whether the names of a table's columns are values of them: its first line is an example."""
  for name in names:
    own = [row.fields.get(name) for row in rows[:1000]]
    is_value = number(name) is not None or any(isinstance(x, str) and x == name for x in own)
    if is_value or len(name.split()) > 4:
      return True
  return False
