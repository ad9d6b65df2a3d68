"""Finds registered seqio tasks and mixtures, having imported the modules that register them."""

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

import seqio

from t2t import UserError
from t2t.runtime import imports

_TASK_MODULES = "config.data.task_modules"


def shipped() -> tuple[str, ...]:
  """The modules of tasks that come with t2t; nothing is imported of them."""
  package = importlib.import_module("t2t.tasks")
  return tuple(f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__))


def load_shipped() -> tuple[str, ...]:
  """Imports the modules of tasks that come with t2t; those that could be, for `t2t tasks` says what others lack."""
  loaded = []
  for module in shipped():
    with contextlib.suppress(UserError):
      load(module)
      loaded.append(module)
  return tuple(loaded)


def names() -> list[str]:
  """Every registered task and mixture, sorted."""
  return sorted({*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()})


def load(module: str, *, where: str = _TASK_MODULES) -> tuple[str, ...]:
  """Imports a module or .py file; the names that it registered when it was first loaded, sorted.

  Args:
    module: the path of a .py file, or a name, of what is installed, on PYTHONPATH or where the command was called.
    where: what the user set, for messages.

  Raises:
    UserError: it cannot be imported; says why, and in which line.
  """
  key = _module_name(module)
  if key not in _loaded:
    before = set(names())
    _import(module, where=f"{where}: {module}")
    _loaded[key] = tuple(name for name in names() if name not in before)
  return _loaded[key]


_loaded: dict[str, tuple[str, ...]] = {}


def is_trusted(module: str) -> bool:
  """Whether a module may be imported because a checkpoint names it: it comes with t2t, or the user asked for it before.

  A checkpoint may come from anybody; code that it names is run for nobody who has not asked for it.
  """
  return module in shipped() or _module_name(module) in _loaded


def why_untrusted(modules: Iterable[str]) -> str:
  """Why those of a checkpoint's modules that are not trusted are not imported, and what to give; "" where all are."""
  untrusted = [module for module in modules if not is_trusted(module)]
  if not untrusted:
    return ""
  return (
    f"its config names {', '.join(untrusted)}, and code is not run because a checkpoint names it; if you trust it, give"
    f" --task_modules {','.join(untrusted)}"
  )


def description(module: str) -> str:
  """The first line of a loaded module's docstring, "" where it has none."""
  return (sys.modules[_module_name(module)].__doc__ or "").strip().partition("\n")[0]


def _module_name(module: str) -> str:
  if not module.endswith(".py"):
    return module
  # Named for its whole path: two files called tasks.py are two modules, and the same file is imported once.
  path = pathlib.Path(module).expanduser()
  return f"t2t_task_module_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"


def task_or_mixture(
  name: str, *, modules: Sequence[str], where: str = "config.data.mixture=", modules_where: str = _TASK_MODULES
) -> seqio.Task | seqio.Mixture:
  """The task or mixture of this name.

  Args:
    name: as registered.
    modules: modules or .py files, imported first.
    where: what stands before the name in messages.
    modules_where: what the user names modules with.

  Raises:
    UserError: a module that cannot be imported, or no such name; lists the nearest, and what was imported.
  """
  for module in modules:
    load(module, where=modules_where)
  known_names = names()
  if name in known_names:
    return seqio.get_mixture_or_task(name)
  load_shipped()
  for module, registered in _loaded.items():
    if name in registered:
      raise UserError(f"{where}{name}: is a task of {module}, which is not imported; add it to {modules_where}")
  near = difflib.get_close_matches(name, known_names, n=3, cutoff=0.4)
  listing = f"there are {', '.join(known_names[:10])}{', ...: `t2t tasks` lists them' if len(known_names) > 10 else ''}"
  raise UserError(
    f"{where}{name}: no task or mixture of that name;"
    f" {'the nearest are ' + ', '.join(near) if near else listing if known_names else 'none is registered'}."
    f" Imported: {', '.join(modules) or 'nothing'}; {modules_where} names modules"
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
    raise UserError(f"{where}: cannot be imported, {_code_location(error)}{error}") from error
  except UserError:
    raise
  except ModuleNotFoundError as error:
    # The module itself, or a package that it lies in; anything else is a failing import inside it.
    if error.name and (module == error.name or module.startswith(f"{error.name}.")):
      raise UserError(
        f"{where}: no such module, neither installed nor in {os.getcwd()}; give the path of a .py file, or put the"
        " module's folder on PYTHONPATH"
      ) from error
    raise UserError(_failure(error, where=where)) from error
  except Exception as error:  # whatever the user's module raises
    raise UserError(_failure(error, where=where)) from error


def _stand_ins(module: str) -> contextlib.AbstractContextManager[Any]:
  """Has names of the t5 package be found, where it is not installed, by modules of a user's own."""
  if module.startswith("t2t.tasks."):
    return contextlib.nullcontext()
  from t2t.data import t5_package

  return t5_package.importable()


def _import_file(path: pathlib.Path, *, where: str) -> None:
  if not path.is_file():
    raise UserError(f"{where}: no such file")
  name = _module_name(str(path))
  if name in sys.modules:
    return
  imports.file_module(path, name)


def _failure(error: Exception, *, where: str) -> str:
  message = f"{type(error).__name__}: {error}"
  if isinstance(error, SyntaxError):
    return f"{where}: cannot be imported, {error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
  return f"{where}: cannot be imported, {_code_location(error)}{message}"


def _code_location(error: Exception) -> str:
  """Returns "FILE, line N: " of the last line of the user's own code, not of a library or of the import system."""
  frames = [
    frame
    for frame in traceback.extract_tb(error.__traceback__)
    if "importlib" not in frame.filename and frame.filename not in _OWN_FILES
  ]
  user_frames = [frame for frame in frames if "site-packages" not in frame.filename] or frames
  return f"{user_frames[-1].filename}, line {user_frames[-1].lineno}: " if user_frames else ""


_OWN_FILES = (__file__, imports.__file__, str(pathlib.Path(__file__).with_name("t5_package.py")))


def function_of(step: Callable) -> Callable:
  """Returns the function of a preprocessor, without the arguments that were bound to it."""
  return function_of(step.func) if isinstance(step, functools.partial) else step
