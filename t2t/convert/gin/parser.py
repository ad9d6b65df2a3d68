"""Parses gin files with gin-config's parser: bindings, macros, includes and imports. Nothing is executed.

include 't5x/examples/t5/t5_1_1/base.gin'
from t5x import utils
TRAIN_STEPS = 50_000
train/utils.DatasetConfig:
  batch_size = 128
  task_feature_lengths = {"inputs": 512, "targets": %TARGETS}
trainer.Trainer.learning_rate_fn = @utils.create_learning_rate_scheduler()
"""

from collections.abc import Sequence
import dataclasses
import io
import re
import tokenize
from typing import Any

from gin import config_parser

from t2t import UserError

_CLOSING = {"[": "]", "(": ")", "{": "}"}
_LAYOUT = (tokenize.COMMENT, tokenize.NL)
# The parser is recursive in nested brackets.
_MAX_DEPTH = 100
# Message of gin-config -> expected token.
_EXPECTED = {
  r"Unable to parse value|Failed to parse token": "a value",
  r"Expected ',' or": "','",
  r"Expected '(.)'": r"'\1'",
  r"Expected 'import'": "'import'",
  r"Expected newline": "the end of the line",
  r"Expected file path": "a file name after include",
  r"Couldn't parse statement": "'='",
  r"Unexpected token|Invalid identifier": "a name",
}


@dataclasses.dataclass(frozen=True)
class Location:
  """A line of a file."""

  file: str
  line: int

  def __str__(self) -> str:
    return f"{self.file}:{self.line}" if self.line else self.file


@dataclasses.dataclass(frozen=True)
class Reference:
  """The reference @scope/module.function, or with () the result of its call."""

  name: str
  called: bool = False

  def __str__(self) -> str:
    return f"@{self.name}{'()' if self.called else ''}"


@dataclasses.dataclass(frozen=True)
class Macro:
  """The macro %NAME, the value that NAME is bound to."""

  name: str

  def __str__(self) -> str:
    return f"%{self.name}"


@dataclasses.dataclass(frozen=True)
class Binding:
  """The binding scope/module.function.parameter = value; for a macro, function is "" and parameter its name."""

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
  """The statement include 'file'."""

  path: str
  location: Location


@dataclasses.dataclass(frozen=True)
class Import:
  """The statement import module, or from module import name."""

  module: str
  location: Location


Statement = Binding | Include | Import


def show(value: Any) -> str:
  """Formats a value as gin source."""
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
  """Returns the statements of a gin file, in the order of the file.

  gin-config returns statements as records, and `gin.parse_config` executes them; only the former is called here.

  Args:
    text: of the file.
    file: its name, for messages.

  Raises:
    UserError: it is not gin; the message contains the line.
  """
  _check_tokens(text, file)
  statements: list[Statement] = []
  parser = config_parser.ConfigParser(text, _Delegate())
  try:
    for statement in parser:
      location = Location(file, statement.location.line_num)
      if isinstance(statement, config_parser.BindingStatement):
        # A macro's name is a selector without a parameter.
        function, parameter = (
          (statement.selector, statement.arg_name) if statement.arg_name else ("", statement.selector)
        )
        statements.append(Binding(statement.scope, function, parameter, statement.value, location))
      elif isinstance(statement, config_parser.IncludeStatement):
        statements.append(Include(statement.filename, location))
      elif isinstance(statement, config_parser.ImportStatement):
        statements.append(Import(statement.module, location))
  except SyntaxError as error:
    for pattern, expected in _EXPECTED.items():
      if match := re.search(pattern, error.msg):
        raise _wrong(file, parser.current_token, match.expand(expected)) from error
    raise UserError(
      f"{Location(file, error.lineno)}: not valid gin: {error.msg.rstrip('.')}. Correct the line."
    ) from error
  return statements


class _Delegate(config_parser.ParserDelegate):
  """Records references and macros without resolving them."""

  def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
    return Reference(scoped_configurable_name, evaluate)

  def macro(self, macro_name: str) -> Macro:
    return Macro(macro_name)


def _wrong(file: str, token: tokenize.TokenInfo, expected: str) -> UserError:
  found = repr(text) if (text := token.string.strip()) else "the end of the line"
  return UserError(
    f"{Location(file, token.start[0])}: not valid gin: expected {expected}, but found {found}. Correct the line."
  )


def _check_tokens(text: str, file: str) -> None:
  """Rejects statements that gin-config does not locate, does not limit, or misreads.

  Raises:
    UserError: the message contains the line.
  """
  tokens: list[tokenize.TokenInfo] = []
  try:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
      tokens += [] if token.type in _LAYOUT else [token]
    _check(tokens, file)
  except (tokenize.TokenError, SyntaxError) as error:
    _check(tokens, file)  # Python reports the end of the file, not the open bracket
    line = error.args[1][0] if isinstance(error, tokenize.TokenError) else error.lineno
    raise UserError(f"{Location(file, line)}: not valid gin: {error.args[0].rstrip('.')}. Correct the line.") from error


def _check(tokens: Sequence[tokenize.TokenInfo], file: str) -> None:
  opened: list[tokenize.TokenInfo] = []
  for number, token in enumerate(tokens):
    where = f"{Location(file, token.start[0])}: not valid gin: {token.string!r}"
    if token.type == tokenize.OP and token.string in _CLOSING:
      opened.append(token)
      if len(opened) > _MAX_DEPTH:
        raise UserError(f"{where} is nested in more than {_MAX_DEPTH} brackets. Nest fewer brackets.")
    elif token.type == tokenize.OP and token.string in _CLOSING.values():
      if not opened:
        raise UserError(f"{where} has no opening bracket. Add the opening bracket, or remove {token.string!r}.")
      if _CLOSING[(last := opened.pop()).string] != token.string:
        raise UserError(
          f"{where} does not match {last.string!r} of line {last.start[0]}. Correct one of these brackets."
        )
    if number + 1 == len(tokens):
      continue
    following = tokens[number + 1]
    if token.string in ("{", ",") and opened and opened[-1].string == "{" and not _is_key(following):
      raise _wrong(file, following, "a key (a string or a number)")
    if token.type == tokenize.STRING and re.match(r"\w*[bBfF]", token.string):
      raise _wrong(file, token, "a string without prefix")
    if token.string == "-" and following.type != tokenize.NUMBER:  # gin-config drops the sign of -@name
      raise _wrong(file, following, "a number")
    begins_block = token.type == tokenize.NEWLINE and tokens[number - 1].string == ":"
    if begins_block and following.type != tokenize.INDENT:
      raise _wrong(file, following, f"indented parameters of {tokens[number - 1].line.partition(':')[0].strip()}")
    if token.type == tokenize.INDENT and (number < 2 or tokens[number - 2].string != ":"):
      # gin-config ignores the indentation.
      where = f"{Location(file, following.start[0])}: not valid gin"
      raise UserError(f"{where}: the line is indented, but belongs to no block. Remove the indentation.")
  if opened:
    raise UserError(
      f"{Location(file, opened[0].start[0])}: not valid gin: {opened[0].string!r} is not closed. Close the bracket."
    )


def _is_key(token: tokenize.TokenInfo) -> bool:
  return token.type in (tokenize.STRING, tokenize.NUMBER) or token.string in ("-", "True", "False", "}")
