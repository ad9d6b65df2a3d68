"""Packages of the extra `data`: imports on first use, and the error where they are not installed.

seqio and TensorFlow read text files, tables and tasks. Predictions and training on arrays need neither.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

from t2t import UserError

# Packages of the extra `data`, which tensorflow-text limits to these versions of Python.
_DATA_PACKAGES = ("seqio", "tensorflow", "tensorflow_datasets", "tensorflow_text")
_DATA_PYTHONS = "3.11 to 3.13"


class MissingPackage(UserError, ImportError):
  """A package of the extra `data` is not installed; the message says how to install it."""


@contextlib.contextmanager
def says_what_is_missing() -> Iterator[None]:
  """Turns a failed import of a package of the extra `data` within the block into an error with the remedy.

  Raises:
    MissingPackage: seqio, TensorFlow or a package beside them is not installed.
  """
  try:
    yield
  except ImportError as error:
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if "gcsfs" in str(error):  # the alternative that etils names
      package = "tensorflow"
    if package not in _DATA_PACKAGES:
      raise
    from t2t.runtime import versions

    raise MissingPackage(
      f"{package.replace('_', '-')} is not installed, but text files, tables, seqio tasks and gs:// need it. Run "
      f"`{versions.install_command('data')}`, on Python {_DATA_PYTHONS}. Without it, train on arrays with "
      "t2t.train(..., batches=...), and use checkpoints with t2t.load, t2t infer, t2t embed and t2t convert."
    ) from error


class _LazyModule(types.ModuleType):
  """Stands for a module that is imported on first access."""

  def __getattr__(self, name: str) -> Any:
    with says_what_is_missing():
      return getattr(importlib.import_module(self.__name__), name)


def lazy_module(name: str) -> Any:
  """Returns a stand-in for a module, which is imported when an attribute is first read.

  Reading raises `MissingPackage` for a package of the extra `data` that is not installed. Files whose functions need
  TensorFlow only for tensors use it, so that the rest of the file works without TensorFlow.
  """
  return _LazyModule(name)


def lazy_attributes(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
  """Returns the `__getattr__` of a package whose names are imported on first access.

  Args:
    package: its `__name__`.
    modules: name -> module of the package that defines it; the modules are attributes, too.

  Raises:
    MissingPackage: see `lazy_module`.
  """

  def attribute(name: str) -> Any:
    if name not in modules and name not in modules.values():
      raise AttributeError(f"module {package!r} has no attribute {name!r}")
    with says_what_is_missing():
      module = importlib.import_module(f"{package}.{modules.get(name, name)}")
    value = getattr(module, name) if name in modules else module
    setattr(sys.modules[package], name, value)
    return value

  return attribute


# ---- Actions at an import --------------------------------------------------------------------------------------------


class _Around(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Executes a module within a context manager when it is first imported."""

  def __init__(self, name: str, context: Callable[[], contextlib.AbstractContextManager[None]]):
    self._name, self._context = name, context
    self._loader: Any = None
    self._is_searching = False

  def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
    del path, target
    if fullname != self._name or self._is_searching:
      return None
    self._is_searching = True
    try:
      spec = importlib.util.find_spec(fullname)
    finally:
      self._is_searching = False
    if spec is not None and spec.loader is not None:
      self._loader, spec.loader = spec.loader, self
    return spec

  def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
    return self._loader.create_module(spec)

  def exec_module(self, module: types.ModuleType) -> None:
    module.__loader__ = module.__spec__.loader = self._loader  # resources of the package are read with it
    with self._context():
      self._loader.exec_module(module)


def around_import(name: str, context: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
  """Runs the import of a package within a context manager, whoever imports it; at once if it is imported already.

  Args:
    name: package without a dot.
    context: returns the context manager; what follows its `yield` may use the package.
  """
  if name in sys.modules:
    with context():
      return
  sys.meta_path.insert(0, _Around(name, context))
