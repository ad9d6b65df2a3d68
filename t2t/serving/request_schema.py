"""Schema of requests: one record per field, used to check requests and to describe them.

`/schema.json` is generated from the records that check requests, so documentation and behaviour always agree.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import json
import math
from typing import Any

from t2t import UserError, did_you_mean
from t2t.storage import encoding, safe_read

# Limits of a request, because larger ones take memory of the device.
MAX_BODY = 1_000_000  # bytes
_MAX_CHARACTERS, _MAX_TEXTS = 100_000, 256
_MOST_DIGITS = 4_000

_TYPES: dict[str, tuple[Any, str]] = {
  "string": (str, "a string"),
  "boolean": (bool, "true or false"),
  "integer": ((int, float), "a whole number"),
  "number": ((int, float), "a number"),
}


class FieldError(UserError):
  """An invalid field of a request.

  Args:
    field: its name.
    message: the problem and its solution.
  """

  def __init__(self, field: str, message: str):
    super().__init__(message)
    self.field = field


class TooLarge(UserError):
  """A request that would occupy the model for too long."""


@dataclasses.dataclass(frozen=True)
class Field:
  """A field of a request.

  name: in JSON.
  kind: string, boolean, integer or number; strings: a string or a list; prompts: strings, or token ids of one
    text or several; object: with `fields`.
  says: description in the schema.
  least, most: bounds of a number, or of the length of a list of strings or prompts; None: unbounded.
  above: excludes `least` itself.
  or_least: values are 0, or at least this.
  choices: allowed values; empty: any.
  required: must be given.
  filled: a string must have more than whitespace.
  nullable: null means not given.
  default: value if not given; None: described in `says`.
  fields: of an object.
  ids: upper bound of token ids (exclusive); 0: unbounded.
  """

  name: str
  kind: str
  says: str
  least: float | None = None
  most: float | None = None
  above: bool = False
  or_least: float | None = None
  choices: tuple[Any, ...] = ()
  required: bool = False
  filled: bool = False
  nullable: bool = False
  default: Any = None
  fields: tuple["Field", ...] = ()
  ids: int = 0

  # ---- Checking ------------------------------------------------------------

  def check(self, value: Any) -> Any:
    """Returns the value in its type.

    Raises:
      FieldError: the value is invalid; says how to fix it.
    """
    if self.kind == "strings":
      return self._check_strings(value)
    if self.kind == "prompts":
      return self._check_prompts(value)
    if self.kind == "object":
      return self._check_object(value)
    accepted, called = _TYPES[self.kind]
    is_bool = isinstance(value, bool)
    if not isinstance(value, accepted) or is_bool != (self.kind == "boolean") or self._is_no_integer(value):
      raise self._error(f"is {shown(value)}; give {called}")
    if self.choices and value not in self.choices:
      if not any(self.choices):
        raise self._error(f"is {shown(value, 60)}; leave the field out. {self.says}")
      near = did_you_mean(str(value), [str(each) for each in self.choices])
      raise self._error(
        f"is {shown(value, 60)}, an unknown value. Known values: {', '.join(map(str, self.choices))}{near}"
      )
    if self.kind == "string":
      return self._check_text(value)
    return value if self.kind == "boolean" else self._check_range(value)

  def _is_no_integer(self, value: Any) -> bool:
    # As in JSON Schema, 4.0 is an integer.
    return self.kind == "integer" and isinstance(value, float) and not value.is_integer()

  def _check_range(self, value: float) -> float:
    if self.or_least is not None and 0 < value < self.or_least:
      raise self._error(f"is {value}; give {self.or_least} to {self.most}, or 0 for greedy decoding")
    # JSON has no such numbers, but Python's parser accepts NaN, Infinity and 1e400.
    if isinstance(value, float) and not math.isfinite(value) and self.least is self.most is None:
      raise self._error(f"is {value}; give a finite number")
    low = self.least is not None and not (value > self.least if self.above else value >= self.least)
    if low or (self.most is not None and not value <= self.most):
      raise self._error(f"is {str(value)[:40]}; give {self._range()}")
    return int(value) if self.kind == "integer" else value

  def _range(self) -> str:
    if self.least == self.most:
      return f"{self.least}, or leave the field out. {self.says}"
    if self.above:
      return f"more than {self.least}" + ("" if self.most is None else f" and at most {self.most}")
    return f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"

  def _check_text(self, text: str) -> str:
    if reason := encoding.unpaired_surrogate(text):
      raise self._error(reason)
    if self.filled and not text.strip():
      raise self._error(f"is {shown(text)}; give a text that is not empty")
    return text

  def _check_strings(self, value: Any) -> list[str]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
      raise self._error(f"is {shown(value)}; give a string or a list of strings")
    self._check_number(found, "strings")
    return [self._check_text(each) for each in found]

  def _check_number(self, found: list[Any], called: str) -> None:
    if not (self.least or 0) <= len(found) <= (self.most or len(found)):
      raise self._error(f"has {len(found)} {called}; give {self.least or 0} to {self.most}")

  def _check_prompts(self, value: Any) -> list[str] | list[list[int]]:
    is_ids = lambda ids: isinstance(ids, list) and all(isinstance(x, int) and not isinstance(x, bool) for x in ids)
    found = [value] if isinstance(value, str) or (value and is_ids(value)) else value
    if isinstance(found, list) and found and all(isinstance(each, str) for each in found):
      return self._check_strings(found)
    if not isinstance(found, list) or not all(map(is_ids, found)):
      raise self._error(f"is {shown(value)}; give a string, a list of strings, or lists of token ids")
    self._check_number(found, "prompts")
    if not all(found):
      raise self._error(f"is {shown(value)}, with an empty list; give at least one token id in each list")
    for token in (token for each in found for token in each):
      if token < 0 or (self.ids and token >= self.ids):
        raise self._error(f"has the unknown token id {str(token)[:40]}; give ids of this model, 0 to {self.ids - 1}")
    return found

  def _check_object(self, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
      named = f"an object of {', '.join(each.name for each in self.fields)}" if self.fields else "an empty object"
      raise self._error(f"is {shown(value)}; give {named}")
    if value and not self.fields:
      raise self._error(f"is {shown(value)}; leave the field out. {self.says}")
    try:
      return check(value, self.fields)
    except FieldError as error:
      # All messages begin with the quoted name.
      name = f"{self.name}.{error.field}"
      raise FieldError(name, f"{name[:60]!r}{str(error).removeprefix(repr(error.field[:60]))}") from None

  def _error(self, message: str) -> FieldError:
    return FieldError(self.name, f"{self.name!r} {message}")

  # ---- Schema --------------------------------------------------------------------------------------------------------

  def schema(self) -> dict[str, Any]:
    """Returns the JSON Schema of the field."""
    own: dict[str, Any] = {"type": self.kind}
    if self.choices:
      own = {"enum": list(self.choices)}
    if self.kind in ("string", "strings", "prompts"):
      text = {"type": "string"} | ({"pattern": r"\S"} if self.filled else {})
      own |= text if self.kind == "string" and not self.choices else {}
    bounds = {key: x for key, x in (("minItems", self.least), ("maxItems", self.most)) if x is not None}
    if self.kind == "strings":
      own = {"anyOf": [text, {"type": "array", "items": text} | bounds]}
    elif self.kind == "prompts":
      most = {"maximum": self.ids - 1} if self.ids else {}
      ids = {"type": "array", "items": {"type": "integer", "minimum": 0} | most, "minItems": 1}
      several = [{"type": "array", "items": each} | bounds for each in (text, ids)]
      own = {"anyOf": [text, several[0], ids, several[1]]}
    elif self.kind == "object":
      own = schema(self.fields)
    elif self.or_least is not None:
      own = {"anyOf": [{"const": 0}, {"type": self.kind, "minimum": self.or_least, "maximum": self.most}]}
    else:
      least = "exclusiveMinimum" if self.above else "minimum"
      own |= {key: x for key, x in ((least, self.least), ("maximum", self.most)) if x is not None}
    if self.nullable:
      own = {"anyOf": [own, {"type": "null"}]}
    return own | {"description": self.says} | ({} if self.default is None else {"default": self.default})


def schema(fields: Iterable[Field]) -> dict[str, Any]:
  """Returns the JSON Schema of an object with exactly these fields."""
  fields = tuple(fields)
  return {
    "type": "object",
    "properties": {field.name: field.schema() for field in fields},
    "required": [field.name for field in fields if field.required],
    "additionalProperties": False,
  }


def check(given: Mapping[str, Any], fields: Sequence[Field]) -> dict[str, Any]:
  """Checks the fields of a request; null fields that may be null are removed.

  Raises:
    FieldError: a field is unknown, invalid or missing.
  """
  known = {field.name: field for field in fields}
  for name in given:
    if name not in known:
      raise FieldError(
        name, f"{name[:60]!r} is an unknown field. Known fields: {', '.join(known)}{did_you_mean(name, known)}"
      )
  found = {
    name: known[name].check(value) for name, value in given.items() if value is not None or not known[name].nullable
  }
  for field in fields:
    if field.required and field.name not in found:
      raise FieldError(
        field.name,
        f"{field.name!r} is missing; {'give a text' if field.filled else 'add this field'}",
      )
  return found


# ---- JSON ------------------------------------------------------------------------------------------------------------


def read(body: bytes) -> dict[str, Any]:
  """Returns the fields of a JSON object.

  Raises:
    UserError: the body is not a JSON object.
    TooLarge: the object has too many texts or characters.
  """
  try:
    found = json.loads(body, object_pairs_hook=_object, parse_int=_integer)
  except RecursionError:
    raise UserError('the request is nested too deeply; send an object like {"inputs": "..."}') from None
  except FieldError:
    raise
  except ValueError as error:
    raise UserError(f"the request is not valid JSON ({error}); correct the JSON") from None
  if not isinstance(found, dict):
    raise UserError('the request is not a JSON object; send an object like {"inputs": "..."}')
  _check_size(found)
  return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """Returns a JSON object; refuses duplicate names, because parsers disagree on them."""
  if (name := safe_read.name_given_twice(pairs)) is not None:
    raise FieldError(name, f"{name[:60]!r} is given twice; give the field once")
  return dict(pairs)


def _integer(digits: str) -> float:
  """Parses an integer; with more digits than Python parses, as a float outside every range."""
  return int(digits) if len(digits) < _MOST_DIGITS else float(digits)


def shown(value: Any, most: int = 40) -> str:
  """Returns the beginning of a value as JSON."""
  try:
    return json.dumps(value)[:most]
  except RecursionError:
    return "nested too deeply"


def _check_size(value: Any) -> None:
  """Checks the size before tokenization, which precedes truncation: 900 kB took 11 s."""
  texts, waiting = [], [value]
  while waiting:
    each = waiting.pop()
    if isinstance(each, str):
      texts.append(len(each))
    else:
      waiting += each.values() if isinstance(each, dict) else each if isinstance(each, list) else []
  if len(texts) > _MAX_TEXTS or sum(texts) > _MAX_CHARACTERS:
    raise TooLarge(
      f"the request has {sum(texts):,} characters in {len(texts):,} texts, more than {_MAX_CHARACTERS:,} characters or "
      f"{_MAX_TEXTS} texts. Use `t2t infer --input FILE` for larger inputs."
    )
