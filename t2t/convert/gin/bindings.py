"""What a gin file binds with all that it includes, and which of its bindings somebody asked for."""

from collections.abc import Iterator, Mapping
import dataclasses
import os
from typing import Any

from t2t import UserError
from t2t.convert.gin import files as gin_files
from t2t.convert.gin import names as gin_names
from t2t.convert.gin.parser import Binding, Import, Include, Location, Macro, Reference, parse, show

UNSET = object()  # the value of what is not bound


@dataclasses.dataclass(frozen=True)
class Gin:
  """A gin file with all that it includes.

  path: the file.
  bindings: the last of each parameter, by (scope, function, parameter); the function without its module.
  macros: the last of each.
  imports: modules that it names.
  unknown: what it includes that was not found, and where it was looked for.
  own: files that were read, as opposed to those that are known by heart.
  """

  path: str
  bindings: Mapping[tuple[str, str, str], Binding]
  macros: Mapping[str, Binding]
  imports: tuple[Import, ...]
  unknown: tuple[tuple[Include, tuple[str, ...]], ...]
  own: frozenset[str]


# ---- Reading ---------------------------------------------------------------------------------------------------------


def read(path: str) -> Gin:
  """A gin file and what it includes: from the folders above it, or as T5X has it.

  Args:
    path: the file.

  Raises:
    UserError: no such file, not gin, or files that include each other.
  """
  statements, imports, unknown, own = [], [], [], []

  def add(file: str, chain: tuple[str, ...]) -> None:
    if file in chain:
      raise UserError(f"{path}: {' includes '.join([*chain[chain.index(file) :], file])}")
    own.append(file)
    for statement in parse(_text(file), file):
      if isinstance(statement, Import):
        imports.append(statement)
      elif isinstance(statement, Include):
        include(statement, (*chain, file))
      else:
        statements.append(statement)

  def include(statement: Include, chain: tuple[str, ...]) -> None:
    folders = _folders(chain[-1])
    for folder in folders:
      file = os.path.join(folder, statement.path)
      if os.path.isfile(file):
        add(os.path.normpath(file), chain)
        return
    known = gin_files.standard(statement.path)
    statements.extend(known or ())
    if known is None:
      unknown.append((statement, folders))

  add(path, ())
  bindings, macros = {}, {}
  for statement in statements:
    if statement.function:
      bindings[(statement.scope, statement.function.rpartition(".")[2], statement.parameter)] = statement
    else:
      macros[statement.parameter] = statement
  return Gin(path, bindings, macros, tuple(imports), tuple(unknown), frozenset(own))


def _text(file: str) -> str:
  try:
    with open(file, encoding="utf-8") as stream:
      return stream.read()
  except OSError as error:
    raise UserError(f"--gin {file}: {(error.strerror or 'cannot be read').lower()}") from error
  except UnicodeDecodeError as error:
    raise UserError(f"--gin {file}: not a text file") from error


def _folders(file: str) -> tuple[str, ...]:
  """Where what a file includes is looked for: its folder and all above it, and where the command was called."""
  folder = os.path.dirname(os.path.abspath(file))
  found = [folder]
  while os.path.dirname(folder) != folder:
    folder = os.path.dirname(folder)
    found.append(folder)
  return tuple(dict.fromkeys([*found, os.getcwd()]))


# ---- Asking ----------------------------------------------------------------------------------------------------------


class Asked:
  """What a gin file says, and which of its bindings and macros somebody asked for."""

  def __init__(self, gin: Gin):
    self.gin = gin
    self.bindings: set[tuple[str, str, str]] = set()
    self.macros: set[str] = set()
    self.not_given: dict[str, Location] = {}
    self.notes: list[str] = []

  def key(self, name: str) -> tuple[str, str, str] | None:
    """Where "scope/function.parameter" is bound: in the scope, or for all scopes."""
    scope, _, selector = name.rpartition("/")
    function, _, parameter = selector.rpartition(".")
    found = [key for key in ((scope, function, parameter), ("", function, parameter)) if key in self.gin.bindings]
    return found[0] if found else None

  def value(self, name: str) -> Any:
    """The value of a parameter, macros replaced; `UNSET` where it is not bound or left open."""
    key = self.key(name)
    if key is None:
      return UNSET
    self.bindings.add(key)
    binding = self.gin.bindings[key]
    return self.resolve(binding.value, binding)

  def resolve(self, value: Any, binding: Binding, seen: tuple[str, ...] = ()) -> Any:
    """A value with its macros replaced."""
    if isinstance(value, Macro):
      self.macros.add(value.name)
      if value.name in seen:
        raise UserError(f"{binding.location}: {show(value)} stands for itself: {' -> '.join([*seen, value.name])}")
      if value == gin_files.REQUIRED or value.name not in self.gin.macros:
        name = seen[-1] if seen and value == gin_files.REQUIRED else value.name
        self.not_given[name] = binding.location
        return UNSET
      macro = self.gin.macros[value.name]
      return self.resolve(macro.value, macro, (*seen, value.name))
    if isinstance(value, dict):
      return {key: self.resolve(x, binding, seen) for key, x in value.items()}
    if isinstance(value, list | tuple):
      return type(value)(self.resolve(x, binding, seen) for x in value)
    return value

  def location(self, name: str) -> Location:
    """Where the value of a bound parameter was written: the line of its macro, if it is one's."""
    binding = self.gin.bindings[self.key(name)]
    while isinstance(binding.value, Macro) and binding.value.name in self.gin.macros:
      binding = self.gin.macros[binding.value.name]
    return binding.location

  def cannot(self, name: str, value: Any, why: str) -> None:
    """Notes a value that was asked for and is of no use."""
    self.notes.append(f"{self.location(name)}: {name} = {show(value)}: {why}")


# ---- What is left ----------------------------------------------------------------------------------------------------


def not_given(asked: Asked) -> Iterator[str]:
  """A sentence for each value that was asked for and is left open, and for each file that was not found."""
  for name, location in asked.not_given.items():
    yield f"{location}: {name} must be given, as T5X asks for it on its command line; the config has t2t's default"
  for include, folders in asked.gin.unknown:
    yield (
      f"{include.location}: include {include.path!r}: no such file in {', '.join(folders)}, and none that comes with"
      " T5X and is known; what it sets is not in the config"
    )


def left(asked: Asked) -> Iterator[str]:
  """A sentence for each binding and macro that nobody asked for, and that the user's own files set."""
  gin, told = asked.gin, set()
  macros = set(asked.macros)
  for key, binding in gin.bindings.items():
    if key in asked.bindings:
      continue
    _, function, parameter = key
    why = gin_names.REASONS.get(f"{function}.{parameter}", gin_names.REASONS.get(function, "t2t has nothing like it"))
    location, value = binding.location, binding.value
    macros |= {each.name for each in _macros_in(value)}
    shown = str(binding)
    if isinstance(value, Macro) and value.name in gin.macros:
      # A value that T5X's own files take from a macro was written where the macro was.
      macro = gin.macros[value.name]
      value = macro.value
      if macro.location.file in gin.own:
        location, shown = macro.location, str(macro)
    is_wiring = isinstance(value, Reference) and function in gin_names.REASONS
    if location.file in gin.own and why and not is_wiring and (location, why) not in told:
      told.add((location, why))
      yield f"{location}: {shown}: {why}"
  for name, binding in gin.macros.items():
    if name not in macros and binding.location.file in gin.own and not _is_read(name, gin):
      yield f"{binding.location}: {binding}: nothing that was read refers to it"


def _macros_in(value: Any) -> Iterator[Macro]:
  if isinstance(value, Macro):
    yield value
  elif isinstance(value, dict):
    for x in value.values():
      yield from _macros_in(x)
  elif isinstance(value, list | tuple):
    for x in value:
      yield from _macros_in(x)


def _is_read(name: str, gin: Gin) -> bool:
  """Whether another macro has this one."""
  return any(Macro(name) in _macros_in(binding.value) for binding in gin.macros.values())
