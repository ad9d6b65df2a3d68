"""Imports without optional packages, and imports of a user's files."""

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
  """A missing name in a stand-in for a package; the message has the lines that replace it.

  It is also an ImportError, so that code with an optional import of the package catches it.
  """


class _AsItStands(importlib.machinery.SourceFileLoader):
  """Compiles the file without a bytecode cache.

  Python reuses cached bytecode if size and second of modification are equal, so a config that a script writes twice
  within a second would be read in its first version.
  """

  def get_code(self, fullname: str) -> types.CodeType:
    path = self.get_filename(fullname)
    return self.source_to_code(self.get_data(path), path)


def renamed_module(name: str, new_name: str) -> types.ModuleType:
  """Imports a module by its present name, with a warning that names the importing line of the user's code.

  Call it from the `__getattr__` of the package with the earlier name.
  """
  warnings.warn(f"{name} is now {new_name}: change the import", FutureWarning, stacklevel=3)
  return importlib.import_module(new_name)


def file_module(path: str | os.PathLike, name: str) -> types.ModuleType:
  """Imports a user's Python file under a name.

  Errors of the file propagate, and the module is then removed from `sys.modules`.
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
  """Adds the current folder to the end of sys.path within the block, as `python -m` does.

  The `t2t` script has its own folder in that place. The change is limited to the block, because libraries try to import
  optional packages, and Python takes a folder of that name for one.
  """
  here = os.getcwd()
  is_there = here in sys.path
  sys.path += [] if is_there else [here]
  importlib.invalidate_caches()  # finds files written since Python started
  try:
    yield
  finally:
    if not is_there and here in sys.path:
      sys.path.remove(here)


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
  """Hides packages from imports within the block; a package that is loaded already stays.

  Libraries with optional imports behind `except ImportError` then load without them.
  """
  hidden = [name for name in names if name not in sys.modules]
  sys.modules.update(dict.fromkeys(hidden))  # None marks a module as missing
  try:
    yield
  finally:
    for name in hidden:
      del sys.modules[name]
