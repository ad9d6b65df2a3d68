"""Reports or refuses bindings of gin files that were never read, according to the tables of param_map.py."""

from collections.abc import Iterator, Sequence
import difflib
import importlib.util
import os
import re
from typing import Any

from t2t.convert.gin import param_map as gin_names
from t2t.convert.gin.bindings import TYPED, UNSET, BindingReader, GinFinding, macros_in, references_in
from t2t.convert.gin.model import ADD_MODEL
from t2t.convert.gin.parser import Binding, Location, Macro, Reference, show
from t2t.runtime import imports

# Parameter of an open macro -> alternatives.
_SETTLED_BY = {
  "train.total_steps": ("train.steps", "train.epochs"),
  "RestoreCheckpointConfig.path": ("init.checkpoint", "--checkpoint"),
  "DatasetConfig.mixture_or_task_name": ("data.mixture", "data.files", "data.sources", "--input"),
  "DatasetConfig.task_feature_lengths": ("data.inputs_length", "--inputs_length"),
}
# Shell syntax of values that are not numbers.
_VALUES = {
  "RestoreCheckpointConfig.path": "'\"PATH\"'",
  "DatasetConfig.mixture_or_task_name": "'\"NAME\"'",
  "DatasetConfig.task_feature_lengths": "\"{'inputs': NUMBER, 'targets': NUMBER}\"",
}
_SCOPES = ("", "train", "train_eval", "infer_eval")
# Functions of T5X's training, which evaluation and inference do not use.
_OF_TRAINING = ("train", "Trainer", "CheckpointConfig", "SaveCheckpointConfig", "create_learning_rate_scheduler")
_OF_TRAINING = (*_OF_TRAINING, *gin_names.OPTIMIZERS, "HParamMap", "T5Config", "Transformer", "TerminateOnNanAction")
_NOT_READ = ("EncoderDecoderModel.z_loss", "EncoderDecoderModel.label_smoothing", "EncoderDecoderModel.optimizer_def")
_NOT_READ = (*_NOT_READ, "EncoderDecoderModel.loss_normalizing_factor", "dropout_factory/Dropout.rate")


def nearest(name: str, known: Sequence[str]) -> str:
  """Returns the end of a message about an unknown name: "; nearest: batch_size"."""
  near = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=3, cutoff=0.6)
  return f"; nearest: {', '.join(near)}" if near else ""


# ---- Open values -----------------------------------------------------------------------------------------------------


def not_given(reader: BindingReader, kind: str) -> Iterator[GinFinding]:
  """Yields each value that was read but is left open, and each file that was not found.

  Args:
    reader: after the conversion.
    kind: of the run, a key of `param_map.KINDS`.
  """
  for name, (location, of) in reader.not_given.items():
    plain = of.rpartition("/")[2]
    same = gin_names.SAME.get(of, gin_names.SAME.get(plain, ""))
    settled_by = _SETTLED_BY.get(plain, (same,) if same else ())
    # `t2t infer` has options, but no config keys.
    taken = [key for key in settled_by if kind != "infer" or key.startswith("--")]
    alternative = ADD_MODEL if name == "MODEL" else "".join(f" or {_option(key)}" for key in taken[:1])
    value = _VALUES.get(plain, "VALUE")
    yield GinFinding(
      f"{location}: {name} is required by T5X. Give {TYPED}{name}={value}{alternative}", True, settled_by
    )
  for include, folders in reader.gin.unknown:
    yield GinFinding(
      f"{include.location}: include {include.path!r}: no such file in {', '.join(folders)}, nor among T5X's "
      "files. Give the folder of this file with --gin_search_paths DIR.",
      True,
    )


def _option(key: str) -> str:
  return f"{key} VALUE" if key.startswith("--") else f"--config.{key}=VALUE"


# ---- Modules ---------------------------------------------------------------------------------------------------------


def own_modules(reader: BindingReader) -> tuple[str, ...]:
  """Returns the imported modules that are not libraries: T5X's users register their tasks in them."""
  module_names = [statement.module for statement in reader.gin.imports]
  return tuple(dict.fromkeys(module_name for module_name in module_names if not _is_library(module_name)))


def _is_library(module: str) -> bool:
  return module.partition(".")[0] in gin_names.LIBRARIES or module.startswith("__")


def modules(reader: BindingReader, *, needed: bool) -> Iterator[GinFinding]:
  """Yields imports of modules that are missing, or not needed."""
  for statement in reader.gin.imports:
    root, _, submodule = statement.module.partition(".")
    module = submodule.partition(".")[0]
    if root == "t5x" and module not in gin_names.MODULES:
      near = nearest(module, gin_names.MODULES)
      yield GinFinding(f"{statement.location}: import {statement.module}: T5X has no module {module}{near}", True)
    elif not _is_library(statement.module) and not needed:
      yield GinFinding(
        f"{statement.location}: import {statement.module}: not needed, because t2t registers the mixture itself"
      )
    elif not _is_library(statement.module) and not _is_there(root):
      yield GinFinding(
        f"{statement.location}: import {statement.module}: there is no module {root}, in which T5X's users register"
        f" their tasks, neither installed nor in {os.getcwd()}. Put its folder on PYTHONPATH, or give"
        " --config.data.task_modules=FILE.py",
        True,
        ("data.task_modules", "data.mixture", "data.files", "data.sources", "--input"),
      )


def _is_there(root: str) -> bool:
  try:
    with imports.also_from_here():
      return importlib.util.find_spec(root) is not None
  except (ImportError, ValueError):
    return False


# ---- Unread bindings -------------------------------------------------------------------------------------------------


def left(reader: BindingReader, kind: str) -> Iterator[GinFinding]:
  """Yields each binding and macro in the user's own files that was never read.

  Args:
    reader: after the conversion.
    kind: of the run, a key of `param_map.KINDS`.
  """
  gin, reported = reader.gin, set()
  macros = set(reader.macros)
  for key, binding in gin.bindings.items():
    macros |= {part.name for part in macros_in(binding.value)}
    if key in reader.bindings:
      continue
    location, shown = binding.location, str(binding)
    if isinstance(binding.value, Macro) and binding.value.name in gin.macros:
      # If T5X's own file takes a value from a macro, report the line of the macro.
      macro = gin.macros[binding.value.name]
      if macro.location.file in gin.own_files:
        location, shown = macro.location, str(macro)
    judgement = _judged(reader, key, kind) if location.file in gin.own_files else None
    if judgement and (location, judgement) not in reported:
      reported.add((location, judgement))
      refused, why = judgement
      yield GinFinding(f"{location}: {shown}: {why}", refused)
  for name, binding in gin.macros.items():
    if name not in macros and binding.location.file in gin.own_files and not _is_read(name, reader):
      yield _unread(name, binding, reader)


def _judged(reader: BindingReader, key: tuple[str, str, str], kind: str) -> tuple[bool, str] | None:
  """Returns whether a binding is refused, and the reason; None: it needs no report."""
  scope, function, parameter = key
  name, value = f"{function}.{parameter}", _peek(reader, reader.gin.bindings[key].value)
  if kind != "train" and (function in _OF_TRAINING or name in _NOT_READ):
    return None
  if function in gin_names.OPTIMIZERS and function not in reader.optimizers:
    return False, "unused in this run"
  if function == "DatasetConfig" and scope not in _SCOPES and not _is_referred_to(reader, scope, function):
    return True, f"nothing refers to {scope}/DatasetConfig{nearest(scope, _SCOPES)}"
  if name == "DatasetConfig.shuffle" and value == (scope == "train"):
    return None  # t2t's behavior
  if scope == "infer_eval" and not asks_while_training(reader):
    return False, "unused in this run"
  references = list(references_in(value))
  strangers = [reference for reference in references if _is_strange(reader, reference)]
  if name in gin_names.WIRING and references and not strangers:
    return None
  for table in (name, function):
    if table in gin_names.HARMLESS and (gin_names.HARMLESS[table] is None or value in gin_names.HARMLESS[table]):
      return None
  if name in gin_names.REFUSED:
    return True, gin_names.REFUSED[name]
  if strangers and name != "Evaluator.logger_cls":
    stranger = strangers[0]
    last = stranger.name.rpartition("/")[2].rpartition(".")[2]
    return True, f"t2t does not support {stranger}{nearest(last, gin_names.functions())}"
  if name in gin_names.TOLD or function in gin_names.TOLD:
    return False, gin_names.TOLD.get(name, gin_names.TOLD.get(function))
  return True, _unknown(reader, scope, function, parameter)


def asks_while_training(reader: BindingReader) -> bool:
  """Returns whether T5X generates text during training."""
  key = ("", "train", "infer_eval_dataset_cfg")
  return key in reader.gin.bindings and _peek(reader, reader.gin.bindings[key].value) is not None


def _is_strange(reader: BindingReader, reference: Reference) -> bool:
  """Returns whether a function is unknown, or belongs to a module of the user."""
  module, _, function = reference.name.rpartition("/")[2].rpartition(".")
  user_parts = {
    part
    for module_name in own_modules(reader)
    for part in (module_name.partition(".")[0], module_name.rpartition(".")[2])
  }
  return function not in gin_names.functions() or module.partition(".")[0] in user_parts


def _unknown(reader: BindingReader, scope: str, function: str, parameter: str) -> str:
  """Returns the reason to refuse a binding that is in no table."""
  known = [name.partition(".")[2] for name in gin_names.known() if name.partition(".")[0] == function]
  scopes = [
    other_scope
    for other_scope, *target in reader.bindings
    if target == [function, parameter] and other_scope and not scope
  ]
  if scopes:
    return (
      "each scope has its own binding, "
      f"{', '.join(f'{other_scope}/{function}.{parameter}' for other_scope in sorted(scopes))}"
    )
  if parameter in known:
    return "t2t has no counterpart"
  if known:
    return f"unknown parameter {parameter} of {function}; t2t has no counterpart{nearest(parameter, known)}"
  functions = gin_names.functions()
  return f"unknown function {function}; t2t has no counterpart{nearest(function, functions)}"


def _unread(name: str, binding: Binding, reader: BindingReader) -> GinFinding:
  """Returns the report on a macro that nothing refers to, which T5X ignores."""
  read = {macro.name for other_binding in reader.gin.bindings.values() for macro in macros_in(other_binding.value)}
  near = nearest(name, sorted(read))
  text = f"unused in this run{near}"
  where = f"{binding.location}: {binding}"
  if name in reader.gin.typed:
    return GinFinding(f"{where}: {text}", True)
  return GinFinding(f"{where}: {text}")


def _peek(reader: BindingReader, value: Any, seen: tuple[str, ...] = ()) -> Any:
  """Returns a value with its macros replaced, without recording it as read."""
  if isinstance(value, Macro):
    macro = reader.gin.macros.get(value.name)
    return UNSET if macro is None or value.name in seen else _peek(reader, macro.value, (*seen, value.name))
  if isinstance(value, list | tuple):
    return type(value)(_peek(reader, x, seen) for x in value)
  if isinstance(value, dict):
    return {key: _peek(reader, x, seen) for key, x in value.items()}
  return value


def _is_read(name: str, reader: BindingReader) -> bool:
  """Returns whether another macro refers to this one."""
  return any(Macro(name) in macros_in(binding.value) for binding in reader.gin.macros.values())


def _is_referred_to(reader: BindingReader, scope: str, function: str) -> bool:
  values = [*reader.gin.bindings.values(), *reader.gin.macros.values()]
  names = [reference.name for binding in values for reference in references_in(binding.value)]
  return any(re.fullmatch(rf"{re.escape(scope)}/(?:[\w.]+\.)?{function}", name) for name in names)


# ---- Kinds of runs ---------------------------------------------------------------------------------------------------


def kinds(reader: BindingReader) -> dict[str, Location]:
  """Returns the kinds of runs in the files, keys of `param_map.KINDS` and `param_map.OTHERS`, with their lines."""
  locations: dict[str, Location] = {}
  for _, function, _ in reader.gin.bindings:
    kind = gin_names.FUNCTIONS.get(function, function if function in gin_names.OTHERS else "")
    if kind and kind not in locations:
      bound = (binding for key, binding in reader.gin.bindings.items() if key[1] == function)
      locations[kind] = next(bound).location
  return locations


def shown(value: Any) -> str:
  """Formats a value as gin source, or as "nothing" if it is left open."""
  return "nothing" if value is UNSET else show(value)
