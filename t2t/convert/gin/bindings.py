"""What gin files bind with all that they include, and which of their bindings somebody asked for."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import os
from typing import Any

from t2t import UserError
from t2t.convert.gin import t5x_defaults as gin_files
from t2t.convert.gin.parser import Binding, Import, Include, Location, Macro, Reference, parse, show

UNSET = object()  # the value of what is not bound
TYPED = "--gin."  # what a binding of the command line begins with


@dataclasses.dataclass(frozen=True)
class Gin:
  """Gin files with all that they include, and bindings of the command line.

  paths: the files.
  bindings: the last of each parameter, by (scope, function, parameter); the function without its module.
  macros: the last of each.
  imports: modules that they name.
  unknown: what they include that was not found, and where it was looked for.
  own_files: files that were read, as opposed to those that are known by heart, and bindings of the command line.
  typed: names that the command line binds.
  """

  paths: tuple[str, ...]
  bindings: Mapping[tuple[str, str, str], Binding]
  macros: Mapping[str, Binding]
  imports: tuple[Import, ...]
  unknown: tuple[tuple[Include, tuple[str, ...]], ...]
  own_files: frozenset[str]
  typed: tuple[str, ...] = ()

  @property
  def name(self) -> str:
    """What the files are called, for messages."""
    return ", ".join(self.paths)


# ---- Reading ---------------------------------------------------------------------------------------------------------


def read(paths: str | Sequence[str], typed: Sequence[str] = (), *, search_paths: Sequence[str] = ()) -> Gin:
  """Gin files, one after another, and what they include, as T5X reads them: what comes later counts.

  A file is looked for as it is named, on the search paths, in the folders above the file that includes it, and among
  those that come with T5X.

  Args:
    paths: the files.
    typed: bindings of the command line, NAME=VALUE, which come last.
    search_paths: folders.

  Raises:
    UserError: no such file, not gin, or files that include each other.
  """
  paths = (paths,) if isinstance(paths, str) else tuple(paths)
  statements, imports, unknown, read_files = [], [], [], []

  def add(file: str, chain: tuple[str, ...]) -> None:
    if file in chain:
      raise UserError(f"{paths[0]}: {' includes '.join([*chain[chain.index(file) :], file])}")
    read_files.append(file)
    for statement in parse(_text(file), file):
      if isinstance(statement, Import):
        imports.append(statement)
      elif isinstance(statement, Include):
        include(statement, (*chain, file))
      else:
        statements.append(statement)

  def include(statement: Include, chain: tuple[str, ...]) -> None:
    folders = _folders(search_paths, chain[-1])
    if file := _found(statement.path, folders):
      add(file, chain)
      return
    known = gin_files.standard(statement.path)
    statements.extend(known or ())
    if known is None:
      unknown.append((statement, folders))

  for path in paths:
    folders = _folders(search_paths)
    file = _found(path, folders)
    known = None if file else gin_files.standard(path)
    if file is None and known is None:
      raise UserError(f"--gin_file {path}: no such file; looked in {', '.join(folders)}, and among those of T5X")
    if known is None:
      add(file, ())
    else:
      statements.extend(known)
  names = []
  for text in typed:
    name, equals, value = text.partition("=")
    statements.append(_typed(name.strip(), value.strip(), text if not equals else ""))
    names.append(name.strip())
    read_files.append(f"{TYPED}{name.strip()}")
  bindings, macros = {}, {}
  for statement in statements:
    if statement.function:
      bindings[(statement.scope, statement.function.rpartition(".")[2], statement.parameter)] = statement
    else:
      macros[statement.parameter] = statement
  return Gin(paths, bindings, macros, tuple(imports), tuple(unknown), frozenset(read_files), tuple(names))


def _typed(name: str, value: str, without: str) -> Binding:
  if without:
    raise UserError(f"{TYPED}{without}: give {TYPED}NAME=VALUE")
  try:
    statements = parse(f"{name} = {value}\n", f"{TYPED}{name}")
    (binding,) = statements
    assert isinstance(binding, Binding)
  except (UserError, ValueError, AssertionError):
    quoted = f"'\"{value}\"'"
    raise UserError(
      f"{TYPED}{name}={value}: not gin: give a number, True, False, None, a list, a @reference, a %macro, or a text in"
      f" quotes that the shell leaves: {TYPED}{name}={quoted}"
    ) from None
  return dataclasses.replace(binding, location=Location(f"{TYPED}{name}", 0))


def _text(file: str) -> str:
  try:
    with open(file, encoding="utf-8") as stream:
      return stream.read()
  except OSError as error:
    raise UserError(f"--gin_file {file}: {(error.strerror or 'cannot be read').lower()}") from error
  except UnicodeDecodeError as error:
    raise UserError(f"--gin_file {file}: not a text file") from error


def _folders(search_paths: Sequence[str], file: str = "") -> tuple[str, ...]:
  """Where a file is looked for: where the command was called, on the search paths, and in all folders above a file."""
  folders = [os.getcwd(), *(os.path.abspath(path) for path in search_paths)]
  folder = os.path.dirname(os.path.abspath(file)) if file else ""
  while folder:
    folders.append(folder)
    folder = os.path.dirname(folder) if os.path.dirname(folder) != folder else ""
  return tuple(dict.fromkeys(folders))


def _found(path: str, folders: Sequence[str]) -> str | None:
  """The first of the files that are called so, as short as the user may have written it."""
  if os.path.isfile(path):
    return os.path.normpath(path)
  files = (os.path.join(folder, path) for folder in folders)
  return next((os.path.normpath(file) for file in files if os.path.isfile(file)), None)


# ---- Asking ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class GinFinding:
  """Something that a gin file says and no config does, as it is told.

  text: file, line, binding, and why there is no counterpart.
  refused: whether it changes what comes out, so that nothing is run without it.
  settled_by: keys of the config, or options, any of which says what is to be done instead.
  """

  text: str
  refused: bool = False
  settled_by: tuple[str, ...] = ()

  def __str__(self) -> str:
    return self.text


class BindingReader:
  """What a gin file says, and which of its bindings and macros somebody asked for."""

  def __init__(self, gin: Gin):
    self.gin = gin
    self.bindings: set[tuple[str, str, str]] = set()
    self.macros: set[str] = set()
    self.not_given: dict[str, tuple[Location, str]] = {}
    self.findings: list[GinFinding] = []
    self.optimizers: set[str] = set()  # parts of the optimizer that OPTIMIZER refers to

  def key(self, name: str) -> tuple[str, str, str] | None:
    """Where "scope/function.parameter" is bound: in the scope, or for all scopes."""
    scope, _, selector = name.rpartition("/")
    function, _, parameter = selector.rpartition(".")
    bound_keys = [key for key in ((scope, function, parameter), ("", function, parameter)) if key in self.gin.bindings]
    return bound_keys[0] if bound_keys else None

  def value(self, name: str) -> Any:
    """The value of a parameter, macros replaced; `UNSET` where it is not bound or left open."""
    key = self.key(name)
    if key is None:
      return UNSET
    self.bindings.add(key)
    binding = self.gin.bindings[key]
    return self.resolve(binding.value, binding, of=name)

  def resolve(self, value: Any, binding: Binding, seen: tuple[str, ...] = (), *, of: str = "") -> Any:
    """A value with its macros replaced."""
    if isinstance(value, Macro):
      self.macros.add(value.name)
      if value.name in seen:
        raise UserError(f"{binding.location}: {show(value)} stands for itself: {' -> '.join([*seen, value.name])}")
      if value == gin_files.REQUIRED or value.name not in self.gin.macros:
        name = seen[-1] if seen and value == gin_files.REQUIRED else value.name
        self.not_given[name if name != gin_files.REQUIRED.name else of] = (binding.location, of)
        return UNSET
      macro = self.gin.macros[value.name]
      return self.resolve(macro.value, macro, (*seen, value.name), of=of)
    if isinstance(value, dict):
      return {key: self.resolve(x, binding, seen, of=of) for key, x in value.items()}
    if isinstance(value, list | tuple):
      return type(value)(self.resolve(x, binding, seen, of=of) for x in value)
    return value

  def location(self, name: str) -> Location:
    """Where the value of a bound parameter was written: the line of its macro, if it is one's."""
    binding = self.gin.bindings[self.key(name)]
    while isinstance(binding.value, Macro) and binding.value.name in self.gin.macros:
      binding = self.gin.macros[binding.value.name]
    return binding.location

  def tell(self, name: str, value: Any, why: str) -> None:
    """Notes a value that was asked for and has no counterpart, where that changes nothing that is learned."""
    self.findings.append(GinFinding(f"{self.location(name)}: {name} = {show(value)}: {why}"))

  def refuse(self, name: str, value: Any, why: str, *settled_by: str) -> None:
    """Notes a value that was asked for and without which something else would come out."""
    self.findings.append(GinFinding(f"{self.location(name)}: {name} = {show(value)}: {why}", True, settled_by))

  def missing(self, text: str, *settled_by: str) -> None:
    """Notes what no binding says and must be said."""
    self.findings.append(GinFinding(f"{self.gin.name}: {text}", True, settled_by))


def macros_in(value: Any) -> Iterator[Macro]:
  """The macros that a value has, however deep."""
  yield from (part for part in _parts(value) if isinstance(part, Macro))


def references_in(value: Any) -> Iterator[Reference]:
  """The functions that a value refers to, however deep."""
  yield from (part for part in _parts(value) if isinstance(part, Reference))


def _parts(value: Any) -> Iterator[Any]:
  if isinstance(value, dict):
    for x in value.values():
      yield from _parts(x)
  elif isinstance(value, list | tuple):
    for x in value:
      yield from _parts(x)
  else:
    yield value
