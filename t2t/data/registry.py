"""Finds registered seqio tasks and mixtures, having imported the modules that register them."""

from collections.abc import Sequence
import difflib
import hashlib
import importlib
import importlib.util
import pathlib
import sys
import traceback

import seqio

from t2t import UserError


def find(name: str, *, modules: Sequence[str]) -> seqio.Task | seqio.Mixture:
  """The task or mixture of this name.

  Args:
    name: as registered.
    modules: modules or .py files, imported first.

  Raises:
    UserError: a module that cannot be imported, or no such name; lists the nearest, and what was imported.
  """
  for module in modules:
    _import(module)
  known = sorted({*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()})
  if name in known:
    return seqio.get_mixture_or_task(name)
  near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:10]
  raise UserError(
    f"config.data.mixture={name}: no task or mixture of that name;"
    f" {'the nearest are ' + ', '.join(near) if near else 'none is registered'}."
    f" Imported from config.data.task_modules: {', '.join(modules) or 'nothing'}"
  )


def _import(module: str) -> None:
  where = f"config.data.task_modules: {module}"
  try:
    if module.endswith(".py"):
      _import_file(pathlib.Path(module).expanduser(), where=where)
    else:
      importlib.import_module(module)
  except UserError:
    raise
  except ModuleNotFoundError as error:
    # The module itself, or a package that it lies in; anything else is a failing import inside it.
    if error.name and (module == error.name or module.startswith(f"{error.name}.")):
      raise UserError(f"{where}: no such module; give an importable name or the path of a .py file") from error
    raise UserError(_failure(error, where=where)) from error
  except Exception as error:  # whatever the user's module raises
    raise UserError(_failure(error, where=where)) from error


def _import_file(path: pathlib.Path, *, where: str) -> None:
  if not path.is_file():
    raise UserError(f"{where}: no such file")
  # Named for its whole path: two files called tasks.py are two modules, and the same file is imported once.
  name = f"t2t_task_module_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
  if name in sys.modules:
    return
  spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  try:
    spec.loader.exec_module(module)
  except BaseException:
    del sys.modules[name]
    raise


def _failure(error: Exception, *, where: str) -> str:
  message = f"{type(error).__name__}: {error}"
  if isinstance(error, SyntaxError):
    return f"{where}: cannot be imported, {error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
  # The last line of the user's own code, not of a library that it called or of the import system.
  frames = [
    frame
    for frame in traceback.extract_tb(error.__traceback__)
    if "importlib" not in frame.filename and frame.filename != __file__
  ]
  own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
  place = f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""
  return f"{where}: cannot be imported, {place}{message}"
