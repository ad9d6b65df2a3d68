"""The grammar of gin files: bindings, macros, includes and imports, as T5X's configs have them. Nothing is executed.

include 't5x/examples/t5/t5_1_1/base.gin'
from t5x import utils
TRAIN_STEPS = 50_000
train/utils.DatasetConfig:
  batch_size = 128
  task_feature_lengths = {"inputs": 512, "targets": %TARGETS}
trainer.Trainer.learning_rate_fn = @utils.create_learning_rate_scheduler()
"""

import ast
from collections.abc import Iterator
import dataclasses
import io
import tokenize
from typing import Any

from t2t import UserError

_CONSTANTS = {"True": True, "False": False, "None": None}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_LAYOUT = (tokenize.COMMENT, tokenize.NL)


@dataclasses.dataclass(frozen=True)
class Location:
  """A line of a file."""

  file: str
  line: int

  def __str__(self) -> str:
    return f"{self.file}:{self.line}" if self.line else self.file


@dataclasses.dataclass(frozen=True)
class Reference:
  """@scope/module.function, or with () what calling it gives."""

  name: str
  called: bool = False

  def __str__(self) -> str:
    return f"@{self.name}{'()' if self.called else ''}"


@dataclasses.dataclass(frozen=True)
class Macro:
  """%NAME: what NAME is bound to, wherever that is."""

  name: str

  def __str__(self) -> str:
    return f"%{self.name}"


@dataclasses.dataclass(frozen=True)
class Binding:
  """scope/module.function.parameter = value; of a macro, function is "" and parameter its name."""

  scope: str
  function: str
  parameter: str
  value: Any
  location: Location

  def __str__(self) -> str:
    name = f"{self.function}.{self.parameter}" if self.function else self.parameter
    return f"{f'{self.scope}/' if self.scope else ''}{name} = {show(self.value)}"


@dataclasses.dataclass(frozen=True)
class Include:
  """include 'file'."""

  path: str
  location: Location


@dataclasses.dataclass(frozen=True)
class Import:
  """import module, from module import name."""

  module: str
  location: Location


Statement = Binding | Include | Import


def show(value: Any) -> str:
  """A value as gin writes it."""
  if isinstance(value, Reference | Macro):
    return str(value)
  if isinstance(value, dict):
    return "{" + ", ".join(f"{show(key)}: {show(x)}" for key, x in value.items()) + "}"
  if isinstance(value, list):
    return "[" + ", ".join(show(x) for x in value) + "]"
  if isinstance(value, tuple):
    return "(" + ", ".join(show(x) for x in value) + (",)" if len(value) == 1 else ")")
  return repr(value)


def parse(text: str, file: str) -> list[Statement]:
  """The statements of a gin file, in its order.

  Args:
    text: of the file.
    file: its name, for messages.

  Raises:
    UserError: it is not gin; says where.
  """
  tokens: list[tokenize.TokenInfo] = []
  try:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
      tokens += [] if token.type in _LAYOUT else [token]
    _check_brackets(tokens, file)
  except (tokenize.TokenError, SyntaxError) as error:
    _check_brackets(tokens, file)  # Python says where the file ends, and not what is open
    line = error.args[1][0] if isinstance(error, tokenize.TokenError) else error.lineno
    raise UserError(f"{Location(file, line)}: not gin: {error.args[0]}") from error
  return list(_Parser(tokens, file).statements())


def _check_brackets(tokens: list[tokenize.TokenInfo], file: str) -> None:
  """Each is closed by its own."""
  opened: list[tokenize.TokenInfo] = []
  for token in tokens:
    if token.type != tokenize.OP:
      continue
    where = f"{Location(file, token.start[0])}: not gin: {token.string!r}"
    if token.string in _CLOSING:
      opened.append(token)
    elif token.string in _CLOSING.values():
      if not opened:
        raise UserError(f"{where} closes nothing")
      if _CLOSING[(last := opened.pop()).string] != token.string:
        raise UserError(f"{where} closes {last.string!r} of line {last.start[0]}")
  if opened:
    raise UserError(f"{Location(file, opened[0].start[0])}: not gin: {opened[0].string!r} is not closed")


class _Parser:
  """Reads tokens from the first to the last."""

  def __init__(self, tokens: list[tokenize.TokenInfo], file: str):
    self.tokens = tokens
    self.file = file
    self.at = 0

  @property
  def token(self) -> tokenize.TokenInfo:
    return self.tokens[self.at]

  @property
  def location(self) -> Location:
    return Location(self.file, self.token.start[0])

  def _next(self) -> str:
    self.at += 1
    return self.tokens[self.at - 1].string

  def _wrong(self, wanted: str) -> UserError:
    found = self.token.string.strip() or "the end of the line"
    return UserError(f"{self.location}: not gin: expected {wanted}, found {found!r}")

  def _expect(self, text: str) -> None:
    if self.token.string != text:
      raise self._wrong(repr(text))
    self._next()

  def _end_of_line(self) -> None:
    if self.token.type not in (tokenize.NEWLINE, tokenize.ENDMARKER):
      raise self._wrong("the end of the line")
    self._next()

  def _name(self) -> str:
    """scope/scope/module.function, as one."""
    parts = []
    while True:
      if self.token.type != tokenize.NAME:
        raise self._wrong("a name")
      parts.append(self._next())
      if self.token.string not in (".", "/"):
        return "".join(parts)
      parts.append(self._next())

  def statements(self) -> Iterator[Statement]:
    """All of them."""
    while self.token.type != tokenize.ENDMARKER:
      if self.token.string in ("include", "import", "from"):
        yield self._directive()
      else:
        yield from self._bindings()

  def _directive(self) -> Include | Import:
    location, word = self.location, self._next()
    if word == "include":
      path = self._value()
      if not isinstance(path, str):
        raise UserError(f"{location}: not gin: expected the name of a file after include")
      self._end_of_line()
      return Include(path, location)
    module = self._name()
    if word == "from":
      self._expect("import")
      module = f"{module}.{self._name()}"
    if self.token.string == "as":
      self._next()
      self._name()
    self._end_of_line()
    return Import(module, location)

  def _bindings(self) -> Iterator[Binding]:
    location, name = self.location, self._name()
    scope, _, selector = name.rpartition("/")
    if self.token.string != ":":
      function, _, parameter = selector.rpartition(".")
      yield self._binding(scope, function, parameter, location)
      return
    self._next()
    self._end_of_line()
    if self.token.type != tokenize.INDENT:
      raise self._wrong(f"indented parameters of {name}")
    self._next()
    while self.token.type != tokenize.DEDENT:
      location = self.location
      yield self._binding(scope, selector, self._name(), location)
    self._next()

  def _binding(self, scope: str, function: str, parameter: str, location: Location) -> Binding:
    self._expect("=")
    value = self._value()
    self._end_of_line()
    return Binding(scope, function, parameter, value, location)

  def _value(self) -> Any:
    text, kind = self.token.string, self.token.type
    if text in ("@", "%"):
      self._next()
      name = self._name()
      if text == "%":
        return Macro(name)
      called = self.token.string == "("
      if called:
        self._next()
        self._expect(")")
      return Reference(name, called)
    if text in _CLOSING:
      return self._container(text)
    if text in _CONSTANTS:
      return _CONSTANTS[self._next()]
    literal = "-" if text == "-" and self._next() else ""
    if literal or kind == tokenize.NUMBER:
      if self.token.type != tokenize.NUMBER:
        raise self._wrong("a number")
      return ast.literal_eval(literal + self._next())
    if kind != tokenize.STRING:
      raise self._wrong("a value")
    words = []
    while self.token.type == tokenize.STRING:
      # As in Python, strings in a row are one; f-strings, which would be code, are no STRING or no literal.
      words.append(self._string())
    return "".join(words)

  def _string(self) -> str:
    try:
      found = ast.literal_eval(self.token.string)
    except (ValueError, SyntaxError):
      found = None
    if not isinstance(found, str):
      raise self._wrong("a string")
    self._next()
    return found

  def _container(self, opening: str) -> list | tuple | dict | Any:
    self._next()
    items, commas = [], 0
    while self.token.string != _CLOSING[opening]:
      item = self._value()
      if opening == "{":
        if not isinstance(item, str | int | float):
          raise self._wrong("a key that is a word or a number")
        self._expect(":")
        item = (item, self._value())
      items.append(item)
      if self.token.string != _CLOSING[opening]:
        self._expect(",")
        commas += 1
    self._next()
    if opening == "{":
      return dict(items)
    if opening == "[":
      return items
    # (x) is x.
    return items[0] if len(items) == 1 and not commas else tuple(items)
