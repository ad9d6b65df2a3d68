"""Parses cells of a table: labels, numbers, words, answers."""

import ast
from collections.abc import Mapping, Sequence
import decimal
import json
import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from t2t.data.tables.reading import TableRow


class UnreadableCell(ValueError):
  """Cell that cannot be read; the message says why, and what to give."""


def plain(value: Any) -> Any:
  """Converts a value to JSON types, also in lists and dicts: NumPy and decimal numbers, UTF-8 bytes."""
  if isinstance(value, str):
    return value
  if hasattr(value, "tolist") and not isinstance(value, bytes):
    value = value.tolist()
  if isinstance(value, decimal.Decimal):
    return float(value)
  if isinstance(value, bytes):
    try:
      return value.decode()
    except UnicodeDecodeError:
      return value
  if isinstance(value, list | tuple):
    return [plain(x) for x in value]
  return {name: plain(x) for name, x in value.items()} if isinstance(value, dict) else value


def is_missing(value: Any) -> bool:
  """Returns whether a value is null, NaN, or only white space."""
  if value is None or isinstance(value, float) and math.isnan(value):
    return True
  return isinstance(value, str) and not value.strip()


def number(value: Any) -> float | None:
  """Parses a finite number; returns None for anything else."""
  if isinstance(value, bool) or not isinstance(value, int | float | str | decimal.Decimal) or "_" in str(value):
    return None
  try:
    as_float = float(value)
  except (ValueError, OverflowError):
    return None
  return as_float if math.isfinite(as_float) else None


def is_digits(name: str) -> bool:
  """Returns whether a name is 0, 1, ...; `str.isdigit` also takes digits that `int` does not."""
  return name.isascii() and name.isdecimal()


def is_no_number(value: Any) -> bool:
  """Returns whether a value marks a missing number: NaN, an infinity, or text that stands for one.

  In:  "N/A", "nan", float("inf"), "0.5"
  Out: True, True, True, False
  """
  if isinstance(value, float):
    return not math.isfinite(value)
  return isinstance(value, str) and value.strip().lower().lstrip("+-") in _NO_NUMBERS


_NO_NUMBERS = ("nan", "n/a", "na", "<na>", "null", "none", "inf", "infinity", "?")


def label(value: Any) -> str:
  """Returns a class name without white space around it; whole numbers have no decimals.

  In:  " positive ", 3, 1.0, True
  Out: "positive", "3", "1", "true"
  """
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, float) and value.is_integer():
    return str(int(value))
  return " ".join(str(value).split())


def text(value: Any) -> str | None:
  """Returns a text without white space around it, "" if it is missing, None if it is neither text nor number."""
  if is_missing(value):
    return ""
  if isinstance(value, str):
    return value.strip()
  return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def words(value: Any) -> list[str] | None:
  """Parses the words or tags of a text: a list, a list as `parsed` reads it, or words separated by white space.

  In:  ["Ann", "won"], '["Ann", "won"]', "['Ann' 'won']", "Ann won"
  Out: ["Ann", "won"]

  Returns None for other values, and for lists with elements other than texts and numbers, such as null.
  """
  items = parsed(value) if isinstance(value, str) else value
  if isinstance(items, list | tuple):
    good = all(isinstance(x, str | int | float) and not (isinstance(x, float) and math.isnan(x)) for x in items)
    return [label(x) for x in items] if good else None
  return items.split() if isinstance(items, str) and not is_broken_list(items) else None


def tags(value: Any) -> list[str] | None:
  """Parses tags as `words` does, with -1 for null and NaN.

  In:  ["B-PER", None], "B-PER O"
  Out: ["B-PER", "-1"], ["B-PER", "O"]
  """
  items = parsed(value) if isinstance(value, str) else value
  if isinstance(items, list | tuple):
    return words(["-1" if x is None or isinstance(x, float) and math.isnan(x) else x for x in items])
  return words(value)


def parsed(value: str) -> Any:
  """Parses a cell with a list or an object in JSON, Python or NumPy syntax; returns other text unchanged.

  In:  '["It", "is"]', "['It', 'is']", "['It' 'is']", "[3 0]", "It is"
  Out: ["It", "is"], ["It", "is"], ["It", "is"], [3, 0], "It is"
  """
  first = value.lstrip()[:1]
  if first not in ("[", "{"):
    return value
  try:
    return json.loads(value)
  except (ValueError, RecursionError):
    pass
  try:
    literal = _python_list(value.strip()) if first == "[" else ast.literal_eval(value.strip())
  except (ValueError, SyntaxError, MemoryError, RecursionError):
    return value
  return value if literal is None or isinstance(literal, set) else literal


def is_broken_list(value: Any) -> bool:
  """Returns whether a cell begins like a list but is not one: cut off, or abridged as NumPy prints it."""
  return isinstance(value, str) and value.lstrip().startswith("[") and isinstance(parsed(value), str)


_ITEM = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,'"\[\]]+""", re.DOTALL)
_BETWEEN = re.compile(r"\s*,\s*|\s+")


def _python_list(text: str) -> list[Any] | None:
  """Parses a list of texts or numbers as Python or NumPy prints it; returns None for anything else.

  `ast.literal_eval` alone reads NumPy's ['It' 'is'] as ['Itis'].
  """
  if not text.endswith("]"):
    return None
  items: list[Any] = []
  separators, inner, offset = set(), text[1:-1].strip(), 0
  while offset < len(inner):
    item = _ITEM.match(inner, offset)
    if not item:
      return None
    items.append(ast.literal_eval(item[0]))
    offset = item.end()
    if offset < len(inner):
      between = _BETWEEN.match(inner, offset)
      if not between:
        return None
      separators.add(between[0].strip())
      offset = between.end()
  good = all(isinstance(x, str | int | float) for x in items) and len(separators) <= 1
  return items if good else None


def answers(value: Any, start: Any) -> tuple[list[str], list[int | None]]:
  """Returns the texts and start characters of the answers to a question.

  In:  {"text": ["Ann"], "answer_start": [4]};  "Ann";  ["Ann", "Ann Lee"];  [{"text": "Ann", "answer_start": 4}]
  Out: (["Ann"], [4]);  (["Ann"], [None]);  (["Ann", "Ann Lee"], [None, None]);  (["Ann"], [4])

  Args:
    value: cell of the answer column.
    start: cell of the column of start characters; None: there is no such column.

  Raises:
    UnreadableCell: the answers are not texts, or a start character is not a whole number.
  """
  if is_missing(value):
    return [], []
  if is_broken_list(value):
    raise UnreadableCell(f'{value[:40]!r} begins like a list but is not one; give a JSON list, ["a", "b"]')
  shown, value = value, parsed(value) if isinstance(value, str) else value
  if isinstance(value, Mapping):
    texts = plain(value.get("text", value.get("texts")))
    starts = plain(value.get("answer_start", value.get("start")))
    texts = [] if texts is None else [texts] if isinstance(texts, str) else texts
  elif isinstance(value, list | tuple) and value and all(isinstance(x, Mapping) for x in value):
    texts, starts = [x.get("text") for x in value], [x.get("answer_start", x.get("start")) for x in value]
    starts = None if all(x is None for x in starts) else starts
  else:
    texts, starts = list(value) if isinstance(value, list | tuple) else [str(value)], None
  if not isinstance(texts, list | tuple) or not all(isinstance(x, str) for x in texts):
    raise UnreadableCell(
      f'{str(shown)[:40]!r} has no texts; give the answer, or {{"text": [...], "answer_start": [...]}}'
    )
  return list(texts), _starts(plain(start) if starts is None else starts, len(texts))


def _starts(raw_starts: Any, number: int) -> list[int | None]:
  """Returns the start character of each of `number` answers, None if it is not given."""
  if is_missing(raw_starts) or not number:
    return [None] * number
  raw_starts = parsed(raw_starts) if isinstance(raw_starts, str) else raw_starts
  starts = raw_starts if isinstance(raw_starts, list | tuple) else [raw_starts]
  if len(starts) != number:
    raise UnreadableCell(
      f"{number} answer(s) have {len(starts)} start(s), {str(raw_starts)[:40]}; give one start for each answer"
    )
  return [_whole_number(x) for x in starts]


def _whole_number(start: Any) -> int:
  start_number = number(start)
  if start_number is None or not start_number.is_integer():
    shown = "null" if start is None else repr(str(start)[:40])
    raise UnreadableCell(
      f"the start of an answer is {shown}; give the number of its first character in the context, from 0"
    )
  return int(start_number)


def looks_headerless(names: Sequence[str], rows: Sequence["TableRow"]) -> bool:
  """Returns whether column names are values of the table, so that its first line is an example."""
  for name in names:
    cells = [row.fields.get(name) for row in rows[:1000]]
    is_value = number(name) is not None or any(isinstance(x, str) and x == name for x in cells)
    if is_value or len(name.split()) > 4:
      return True
  return False
