"""Imports that leave out what they can do without, and those of a user's files."""

from collections.abc import Iterator
import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
import warnings

from t2t import UserError


class UnknownName(UserError, ImportError):
  """A name that a stand-in for a package does not have; the message has the lines that replace it.

  An ImportError as well, so that code which can do without the package catches it.
  """


class _AsItStands(importlib.machinery.SourceFileLoader):
  """Compiles the file, and keeps nothing.

  What Python keeps it takes for new if the file has the size and the second that it had: a config that a script writes
  twice would be read as it was at first.
  """

  def get_code(self, fullname: str) -> types.CodeType:
    path = self.get_filename(fullname)
    return self.source_to_code(self.get_data(path), path)


def renamed_module(name: str, new_name: str) -> types.ModuleType:
  """Imports a module by the present name, with a warning for code of users that imports it by an earlier one.

  For the `__getattr__` of the package that had it: the warning names the line of the import.
  """
  warnings.warn(f"{name} is now {new_name}: change the import", FutureWarning, stacklevel=3)
  return importlib.import_module(new_name)


def file_module(path: str | os.PathLike, name: str) -> types.ModuleType:
  """Imports a Python file of the user's under a name.

  Raises whatever the file does, and is then not among the modules.
  """
  spec = importlib.util.spec_from_file_location(name, path, loader=_AsItStands(name, str(path)))
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  try:
    spec.loader.exec_module(module)
  except BaseException:
    del sys.modules[name]
    raise
  return module


@contextlib.contextmanager
def also_from_here() -> Iterator[None]:
  """Modules in the folder that the command was called in are found meanwhile, behind all others.

  As for `python -m`: the `t2t` script has the folder that it lies in itself in its place.  Meanwhile only, for
  libraries ask for packages that they can do without, and a folder of that name is one to Python.
  """
  here = os.getcwd()
  is_there = here in sys.path
  sys.path += [] if is_there else [here]
  importlib.invalidate_caches()  # what was written since Python started is there, too
  try:
    yield
  finally:
    if not is_there and here in sys.path:
      sys.path.remove(here)


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
  """As if these packages were not installed, for what is imported meanwhile; one that is loaded already stays.

  Libraries that load others only to offer something with them do so behind `except ImportError`.
  """
  hidden = [name for name in names if name not in sys.modules]
  sys.modules.update(dict.fromkeys(hidden))  # None: the import system's own sign that there is no such module
  try:
    yield
  finally:
    for name in hidden:
      del sys.modules[name]
