"""Lookup of registered seqio tasks and mixtures, after importing the modules that register them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import contextlib
import difflib
import functools
import hashlib
import importlib
import os
import pathlib
import pkgutil
import sys
import traceback
from typing import Any

from t2t import UserError
from t2t.runtime import data_packages, imports

seqio = data_packages.lazy_module("seqio")

_TASK_MODULES = "config.data.task_modules"


def shipped() -> tuple[str, ...]:
  """Returns the task modules of t2t, without importing them."""
  package = importlib.import_module("t2t.tasks")
  return tuple(f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__))


def load_shipped() -> tuple[str, ...]:
  """Imports the task modules of t2t and returns the importable ones; `t2t tasks` shows why others fail."""
  loaded = []
  for module in shipped():
    with contextlib.suppress(UserError):
      load(module)
      loaded.append(module)
  return tuple(loaded)


def names() -> list[str]:
  """Returns all registered tasks and mixtures, sorted."""
  return sorted({*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()})


def load(module: str, *, where: str = _TASK_MODULES) -> tuple[str, ...]:
  """Imports a module or .py file and returns the names that it registered when first loaded, sorted.

  Args:
    module: path of a .py file, or module name, found among installed packages, on PYTHONPATH or in the current folder.
    where: the user's option, for messages.

  Raises:
    UserError: the module cannot be imported; says why and in which line.
  """
  key = _module_name(module)
  if key not in _loaded:
    before = set(names())
    _import(module, where=f"{where}: {module}")
    _loaded[key] = tuple(name for name in names() if name not in before)
  return _loaded[key]


_loaded: dict[str, tuple[str, ...]] = {}


def is_trusted(module: str) -> bool:
  """Returns whether a module that a checkpoint names may be imported: it belongs to t2t, or the user named it before.

  A checkpoint may come from anyone, so its code is executed only on the user's request.
  """
  return module in shipped() or _module_name(module) in _loaded


def why_untrusted(modules: Iterable[str]) -> str:
  """Returns why untrusted modules of a checkpoint are not imported, and what to give; "" if all are trusted."""
  untrusted = [module for module in modules if not is_trusted(module)]
  if not untrusted:
    return ""
  return (
    f"its config names {', '.join(untrusted)}, and t2t does not execute code on behalf of a checkpoint. If you "
    f"trust the code, give --task_modules {','.join(untrusted)}"
  )


def description(module: str) -> str:
  """Returns the first line of a loaded module's docstring; "" without one."""
  return (sys.modules[_module_name(module)].__doc__ or "").strip().partition("\n")[0]


def _module_name(module: str) -> str:
  if not module.endswith(".py"):
    return module
  # The name depends on the whole path: two files called tasks.py are two modules, and one file is imported once.
  path = pathlib.Path(module).expanduser()
  return f"t2t_task_module_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"


def task_or_mixture(
  name: str, *, modules: Sequence[str], where: str = "config.data.mixture=", modules_where: str = _TASK_MODULES
) -> seqio.Task | seqio.Mixture:
  """Returns the task or mixture with a name.

  Args:
    name: registered name.
    modules: modules or .py files to import first.
    where: text before the name in messages.
    modules_where: the user's option for modules.

  Raises:
    UserError: a module cannot be imported, or the name is unknown; lists the nearest names and the imported modules.
  """
  for module in modules:
    load(module, where=modules_where)
  known_names = names()
  if name in known_names:
    return seqio.get_mixture_or_task(name)
  load_shipped()
  for module, registered in _loaded.items():
    if name in registered:
      raise UserError(
        f"{where}{name}: this task is in {module}, but {module} is not imported. Add {module} to {modules_where}."
      )
  near = difflib.get_close_matches(name, known_names, n=3, cutoff=0.4)
  listing = (
    f"Choose from {', '.join(known_names[:10])}{', ... (`t2t tasks` lists all)' if len(known_names) > 10 else ''}"
  )
  raise UserError(
    f"{where}{name}: no task or mixture has this name."
    f" {'Similar names: ' + ', '.join(near) if near else listing if known_names else 'No task is registered'}."
    f" Imported modules: {', '.join(modules) or 'none'}. Give {modules_where} to import other modules."
  )


def _import(module: str, *, where: str) -> None:
  try:
    if module.endswith(".py"):
      with _stand_ins(module):
        _import_file(pathlib.Path(module).expanduser(), where=where)
    else:
      with imports.also_from_here(), _stand_ins(module):
        importlib.import_module(module)
  except imports.UnknownName as error:
    raise UserError(f"{where} cannot be imported: {_code_location(error)}{error}") from error
  except UserError:
    raise
  except ModuleNotFoundError as error:
    # The module itself or its package is missing; other names are failed imports inside the module.
    if error.name and (module == error.name or module.startswith(f"{error.name}.")):
      raise UserError(
        f"{where}: no such module is installed or in {os.getcwd()}. Give the path of a .py file, or put the "
        "module's folder on PYTHONPATH."
      ) from error
    raise UserError(_failure(error, where=where)) from error
  except Exception as error:  # any error of the user's module
    raise UserError(_failure(error, where=where)) from error


def _stand_ins(module: str) -> contextlib.AbstractContextManager[Any]:
  """Returns a context in which users' modules can import names of the t5 package without its installation."""
  if module.startswith("t2t.tasks."):
    return contextlib.nullcontext()
  from t2t.data import t5_package

  return t5_package.importable()


def _import_file(path: pathlib.Path, *, where: str) -> None:
  if not path.is_file():
    raise UserError(f"{where}: no such file. Give the path of a .py file, or the name of a module.")
  name = _module_name(str(path))
  if name in sys.modules:
    return
  imports.file_module(path, name)


def _failure(error: Exception, *, where: str) -> str:
  message = f"{type(error).__name__}: {error}"
  if isinstance(error, SyntaxError):
    return f"{where} cannot be imported: {error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
  return f"{where} cannot be imported: {_code_location(error)}{message}"


def _code_location(error: Exception) -> str:
  """Returns "FILE, line N: " for the last line of the user's code, rather than of a library or the import system."""
  frames = [
    frame
    for frame in traceback.extract_tb(error.__traceback__)
    if "importlib" not in frame.filename and frame.filename not in _OWN_FILES
  ]
  user_frames = [frame for frame in frames if "site-packages" not in frame.filename] or frames
  return f"{user_frames[-1].filename}, line {user_frames[-1].lineno}: " if user_frames else ""


_OWN_FILES = (__file__, imports.__file__, str(pathlib.Path(__file__).with_name("t5_package.py")))


def function_of(step: Callable) -> Callable:
  """Returns the function of a preprocessor without its bound arguments."""
  return function_of(step.func) if isinstance(step, functools.partial) else step
