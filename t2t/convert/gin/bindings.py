"""Bindings of gin files and their includes, with a record of which were read."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import os
from typing import Any

from t2t import UserError
from t2t.convert.gin import t5x_defaults as gin_files
from t2t.convert.gin.parser import Binding, Import, Include, Location, Macro, Reference, parse, show

UNSET = object()  # value of an unbound parameter
TYPED = "--gin."  # prefix of a binding on the command line


@dataclasses.dataclass(frozen=True)
class Gin:
  """Gin files with their includes, and bindings of the command line.

  paths: the files.
  bindings: the last of each parameter, by (scope, function, parameter); the function without its module.
  macros: the last of each.
  imports: imported modules.
  unknown: includes that were not found, with the searched folders.
  own_files: files that were read, without the built-in copies of T5X's; and bindings of the command line.
  typed: names bound on the command line.
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
    """Names of the files, for messages."""
    return ", ".join(self.paths)


# ---- Reading ---------------------------------------------------------------------------------------------------------


def read(paths: str | Sequence[str], typed: Sequence[str] = (), *, search_paths: Sequence[str] = ()) -> Gin:
  """Reads gin files and their includes in order, as T5X does: later bindings take precedence.

  A file is searched by its own path, on the search paths, in the parent folders of the including file, and among T5X's
  files.

  Args:
    paths: the files.
    typed: bindings of the command line, NAME=VALUE, which come last.
    search_paths: folders.

  Raises:
    UserError: a file does not exist or is not gin, or files include each other.
  """
  paths = (paths,) if isinstance(paths, str) else tuple(paths)
  statements, imports, unknown, read_files = [], [], [], []

  def add(file: str, chain: tuple[str, ...]) -> None:
    if file in chain:
      raise UserError(
        f"{paths[0]}: circular include ({' includes '.join([*chain[chain.index(file) :], file])}). "
        "Remove one of these includes."
      )
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
      raise UserError(
        f"--gin_file {path}: no such file in {', '.join(folders)}, nor among T5X's files. Check the path, or give "
        "the folder of the file with --gin_search_paths DIR."
      )
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
    raise UserError(f"{TYPED}{without} has no value. Give {TYPED}{without}=VALUE.")
  try:
    statements = parse(f"{name} = {value}\n", f"{TYPED}{name}")
    (binding,) = statements
    assert isinstance(binding, Binding)
  except (UserError, ValueError, AssertionError):
    quoted = f"'\"{value}\"'"
    raise UserError(
      f"{TYPED}{name}={value} is not valid gin. Give a number, True, False, None, a list, a @reference or a %macro. "
      f"Give a string in quotes that the shell keeps: {TYPED}{name}={quoted}"
    ) from None
  return dataclasses.replace(binding, location=Location(f"{TYPED}{name}", 0))


def _text(file: str) -> str:
  try:
    with open(file, encoding="utf-8") as stream:
      return stream.read()
  except OSError as error:
    raise UserError(f"--gin_file {file}: {(error.strerror or 'cannot be read').lower()}. Give another file.") from error
  except UnicodeDecodeError as error:
    raise UserError(f"--gin_file {file} is not a text file. Give a gin file.") from error


def _folders(search_paths: Sequence[str], file: str = "") -> tuple[str, ...]:
  """Returns the folders to search: the working folder, the search paths, and all parent folders of a file."""
  folders = [os.getcwd(), *(os.path.abspath(path) for path in search_paths)]
  folder = os.path.dirname(os.path.abspath(file)) if file else ""
  while folder:
    folders.append(folder)
    folder = os.path.dirname(folder) if os.path.dirname(folder) != folder else ""
  return tuple(dict.fromkeys(folders))


def _found(path: str, folders: Sequence[str]) -> str | None:
  """Returns the first file that matches a possibly relative path; None without one."""
  if os.path.isfile(path):
    return os.path.normpath(path)
  files = (os.path.join(folder, path) for folder in folders)
  return next((os.path.normpath(file) for file in files if os.path.isfile(file)), None)


# ---- Lookup ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class GinFinding:
  """A binding of a gin file without an exact counterpart in a config.

  text: file, line, binding, and the reason.
  refused: whether it changes the result, so that nothing runs without it.
  settled_by: config keys or options that replace it.
  """

  text: str
  refused: bool = False
  settled_by: tuple[str, ...] = ()

  def __str__(self) -> str:
    return self.text


class BindingReader:
  """Looks up values of gin files, and records which bindings and macros were read."""

  def __init__(self, gin: Gin):
    self.gin = gin
    self.bindings: set[tuple[str, str, str]] = set()
    self.macros: set[str] = set()
    self.not_given: dict[str, tuple[Location, str]] = {}
    self.findings: list[GinFinding] = []
    self.optimizers: set[str] = set()  # parts of the optimizer that OPTIMIZER refers to

  def key(self, name: str) -> tuple[str, str, str] | None:
    """Returns the key of "scope/function.parameter", in the scope or for all scopes; None if unbound."""
    scope, _, selector = name.rpartition("/")
    function, _, parameter = selector.rpartition(".")
    bound_keys = [key for key in ((scope, function, parameter), ("", function, parameter)) if key in self.gin.bindings]
    return bound_keys[0] if bound_keys else None

  def value(self, name: str) -> Any:
    """Returns the value of a parameter with macros replaced; `UNSET` if it is unbound or left open."""
    key = self.key(name)
    if key is None:
      return UNSET
    self.bindings.add(key)
    binding = self.gin.bindings[key]
    return self.resolve(binding.value, binding, of=name)

  def resolve(self, value: Any, binding: Binding, seen: tuple[str, ...] = (), *, of: str = "") -> Any:
    """Returns a value with its macros replaced."""
    if isinstance(value, Macro):
      self.macros.add(value.name)
      if value.name in seen:
        raise UserError(
          f"{binding.location}: {show(value)} refers to itself ({' -> '.join([*seen, value.name])}). Remove the cycle."
        )
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
    """Returns the line where the value of a bound parameter was written: its macro's, if it is one."""
    binding = self.gin.bindings[self.key(name)]
    while isinstance(binding.value, Macro) and binding.value.name in self.gin.macros:
      binding = self.gin.macros[binding.value.name]
    return binding.location

  def tell(self, name: str, value: Any, why: str) -> None:
    """Records a value without a counterpart that does not affect what is learned."""
    self.findings.append(GinFinding(f"{self.location(name)}: {name} = {show(value)}: {why}"))

  def refuse(self, name: str, value: Any, why: str, *settled_by: str) -> None:
    """Records a value without a counterpart that changes the result."""
    self.findings.append(GinFinding(f"{self.location(name)}: {name} = {show(value)}: {why}", True, settled_by))

  def missing(self, text: str, *settled_by: str) -> None:
    """Records a required setting without a binding."""
    self.findings.append(GinFinding(f"{self.gin.name}: {text}", True, settled_by))


def macros_in(value: Any) -> Iterator[Macro]:
  """Yields the macros in a value, at any depth."""
  yield from (part for part in _parts(value) if isinstance(part, Macro))


def references_in(value: Any) -> Iterator[Reference]:
  """Yields the functions that a value refers to, at any depth."""
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
