"""Reads single values of a table: labels, numbers, words, answers."""

import ast
from collections.abc import Mapping, Sequence
import decimal
import json
import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from t2t.data.tables.reading import Row


class Unreadable(ValueError):
  """A value that cannot be read; its message says why, and what to give."""


def plain(value: Any) -> Any:
  """A value as JSON has it, also in lists and dicts: NumPy's and decimal numbers as Python's, UTF-8 as text."""
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
  """Returns whether a value is null, NaN, or nothing but white space."""
  if value is None or isinstance(value, float) and math.isnan(value):
    return True
  return isinstance(value, str) and not value.strip()


def number(value: Any) -> float | None:
  """A finite number; None: it is none."""
  if isinstance(value, bool) or not isinstance(value, int | float | str | decimal.Decimal) or "_" in str(value):
    return None
  try:
    found = float(value)
  except (ValueError, OverflowError):
    return None
  return found if math.isfinite(found) else None


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
  """Words or tags of a text: a list, a list as `parsed` reads it, or words with white space between them.

  In:  ["Ann", "won"], '["Ann", "won"]', "['Ann' 'won']", "Ann won"
  Out: ["Ann", "won"]

  None: it is none of these, or the list has something else than texts and numbers, such as null.
  """
  found = parsed(value) if isinstance(value, str) else value
  if isinstance(found, list | tuple):
    good = all(isinstance(x, str | int | float) and not (isinstance(x, float) and math.isnan(x)) for x in found)
    return [label(x) for x in found] if good else None
  return found.split() if isinstance(found, str) and not is_broken_list(found) else None


def tags(value: Any) -> list[str] | None:
  """Tags as `words` reads them, with -1 for null and NaN.

  In:  ["B-PER", None], "B-PER O"
  Out: ["B-PER", "-1"], ["B-PER", "O"]
  """
  found = parsed(value) if isinstance(value, str) else value
  if isinstance(found, list | tuple):
    return words(["-1" if x is None or isinstance(x, float) and math.isnan(x) else x for x in found])
  return words(value)


def parsed(value: str) -> Any:
  """A cell that holds a list or an object as JSON, Python or NumPy writes it; any other text as it is.

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
    found = _python_list(value.strip()) if first == "[" else ast.literal_eval(value.strip())
  except (ValueError, SyntaxError, MemoryError, RecursionError):
    return value
  return value if found is None or isinstance(found, set) else found


def is_broken_list(value: Any) -> bool:
  """Returns whether a cell begins as a list does and is none: one that is cut off, or abridged as NumPy prints it."""
  return isinstance(value, str) and value.lstrip().startswith("[") and isinstance(parsed(value), str)


_ITEM = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,'"\[\]]+""", re.DOTALL)
_BETWEEN = re.compile(r"\s*,\s*|\s+")


def _python_list(text: str) -> list[Any] | None:
  """A list of texts or numbers as Python or NumPy prints it; None: it is none.

  `ast.literal_eval` alone reads NumPy's ['It' 'is'] as ['Itis'].
  """
  if not text.endswith("]"):
    return None
  found: list[Any] = []
  separators, inner, place = set(), text[1:-1].strip(), 0
  while place < len(inner):
    item = _ITEM.match(inner, place)
    if not item:
      return None
    found.append(ast.literal_eval(item[0]))
    place = item.end()
    if place < len(inner):
      between = _BETWEEN.match(inner, place)
      if not between:
        return None
      separators.add(between[0].strip())
      place = between.end()
  good = all(isinstance(x, str | int | float) for x in found) and len(separators) <= 1
  return found if good else None


def answers(value: Any, start: Any) -> tuple[list[str], list[int | None]]:
  """Texts and first characters of the answers to a question.

  In:  {"text": ["Ann"], "answer_start": [4]};  "Ann";  ["Ann", "Ann Lee"];  [{"text": "Ann", "answer_start": 4}]
  Out: (["Ann"], [4]);  (["Ann"], [None]);  (["Ann", "Ann Lee"], [None, None]);  (["Ann"], [4])

  Args:
    value: of the column of answers.
    start: of the column of first characters; None: there is none.

  Raises:
    Unreadable: the answers are no texts, or a first character is no whole number.
  """
  if is_missing(value):
    return [], []
  if is_broken_list(value):
    raise Unreadable(f'{value[:40]!r} begins as a list and is none; give a list as JSON has it, ["a", "b"]')
  shown, value = value, parsed(value) if isinstance(value, str) else value
  if isinstance(value, Mapping):
    texts = plain(value.get("text", value.get("texts")))
    own = plain(value.get("answer_start", value.get("start")))
    texts = [] if texts is None else [texts] if isinstance(texts, str) else texts
  elif isinstance(value, list | tuple) and value and all(isinstance(x, Mapping) for x in value):
    texts, own = [x.get("text") for x in value], [x.get("answer_start", x.get("start")) for x in value]
    own = None if all(x is None for x in own) else own
  else:
    texts, own = list(value) if isinstance(value, list | tuple) else [str(value)], None
  if not isinstance(texts, list | tuple) or not all(isinstance(x, str) for x in texts):
    raise Unreadable(f'{str(shown)[:40]!r} has no texts; give the answer, or {{"text": [...], "answer_start": [...]}}')
  return list(texts), _starts(plain(start) if own is None else own, len(texts))


def _starts(given: Any, number: int) -> list[int | None]:
  """The first character of each of `number` answers, None where it is not given."""
  if is_missing(given) or not number:
    return [None] * number
  given = parsed(given) if isinstance(given, str) else given
  starts = given if isinstance(given, list | tuple) else [given]
  if len(starts) != number:
    raise Unreadable(f"{number} answer(s) have {len(starts)} start(s), {str(given)[:40]}; give one for each")
  return [_whole(x) for x in starts]


def _whole(start: Any) -> int:
  found = number(start)
  if found is None or not found.is_integer():
    shown = "null" if start is None else repr(str(start)[:40])
    raise Unreadable(
      f"the start of an answer is {shown}; give the number of its first character in the context, from 0"
    )
  return int(found)


def looks_headerless(names: Sequence[str], rows: Sequence["Row"]) -> bool:
  """Returns whether the names of a table's columns are values of them: its first line is an example."""
  for name in names:
    own = [row.fields.get(name) for row in rows[:1000]]
    is_value = number(name) is not None or any(isinstance(x, str) and x == name for x in own)
    if is_value or len(name.split()) > 4:
      return True
  return False
