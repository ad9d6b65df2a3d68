"""Loads configs by name or path, applies overrides, and converts them to typed records."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import difflib
import functools
import importlib
import math
import pathlib
import re
import sys
import textwrap
import traceback
from typing import Any, TypeVar

from absl import flags
from ml_collections import ConfigDict, config_flags

from t2t import UserError
from t2t.configs import default
from t2t.configuration import renamed_keys, stages
from t2t.configuration.schema import (
  OF_FILES,
  OPTIONAL,
  PRUNING,
  SECTIONS,
  Config,
  DataConfig,
  InitSource,
  SourceConfig,
  is_adapter,
)
from t2t.configuration.section_keys import DataclassRecord, keys
from t2t.models.architecture import ARCHITECTURES
from t2t.runtime import imports, lazy_table

T = TypeVar("T", bound=DataclassRecord)

_STAGES = "stages"  # a list of mappings, not a section
_LIST_OF_KEYS = "`t2t train --help all` lists all keys"

# Keys that a user's complete config may lack, in addition to all of config.data.
_LATER = (
  "init.reinit",
  "init.rename",
  "init.resize",
  "init.tile",
  "init.transfer_vocab",
  "init.layers",
  "init.others",
  "train.term_weights",
  "mesh.physical_layout",
  "eval.normalize",
  "eval.neutral_context",
  "eval.pseudo_likelihood",
)

# Mappings whose entries have keys, and the record of one entry.
_RECORDS = {"data.sources": SourceConfig, "init.others": InitSource}


def flat(saved: Mapping[str, object]) -> dict[str, object]:
  """Flattens a config of config.json to one mapping.

  In:  {"train": {"steps": 5}, "stages": []}
  Out: {"train.steps": 5, "stages": []}
  """
  sections = {name: values for name, values in saved.items() if isinstance(values, Mapping)}
  flat_values = {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}
  return flat_values | {name: values for name, values in saved.items() if name not in sections}  # `stages` is a list


def saved_config(saved: Mapping[str, object]) -> ConfigDict:
  """Returns a saved config as an editable ConfigDict; keys of later versions get their defaults."""
  config = default.get_config().copy_and_resolve_references()
  as_tuples = lambda values: {key: tuple(x) if isinstance(x, list) else x for key, x in values.items()}
  sections: dict[str, Any] = renamed_keys.with_current_keys(saved)
  with config.unlocked():
    config[_STAGES] = tuple(map(as_tuples, sections.pop(_STAGES, ())))
    for name, values in ((name, as_tuples(values)) for name, values in sections.items()):
      if name in OPTIONAL:
        config[name] = values
      else:
        for key, value in values.items():
          config[name][key] = value
  return config


def _nearest(name: str, known: list[str]) -> str:
  near = difflib.get_close_matches(name, dict.fromkeys(known), n=3, cutoff=0.5)
  return f"; nearest: {', '.join(near)}" if near else ""


def _shipped() -> dict[str, tuple[str, str | None]]:
  """Returns name -> (module, size) of the shipped configs; a module with SIZES has one config per size."""
  names: dict[str, tuple[str, str | None]] = {}
  package = importlib.import_module("t2t.configs")
  assert package.__file__ is not None
  for path in sorted(pathlib.Path(package.__file__).parent.glob("*.py")):
    if path.stem in ("__init__", "default"):
      continue
    module = f"t2t.configs.{path.stem}"
    for size in getattr(importlib.import_module(module), "SIZES", (None,)):
      names[path.stem if size is None else f"{path.stem}_{size}"] = (module, size)
  return names


def config_names() -> list[str]:
  """Lists the shipped configs."""
  return list(_shipped())


def families() -> str:
  """Returns the shipped configs as indented lines for messages; several sizes become "bert_*"."""
  begins = [name.removesuffix(size or "") for name, (_, size) in _shipped().items()]
  both = zip(begins, _shipped(), strict=True)
  names = dict.fromkeys(f"{begin}*" if begins.count(begin) > 1 else name for begin, name in both)
  return textwrap.indent(textwrap.fill(", ".join(names), 78), "  ")


def load_config(spec: str) -> ConfigDict:
  """Loads a shipped config (`tiny`, `t5_1_1_small`) or a file that defines `get_config()`.

  Args:
    spec: a name, or the path of a .py file; `FILE.py:ARGUMENT` calls `get_config(ARGUMENT)`.

  Raises:
    UserError: the config does not exist (lists the nearest), or the file fails (gives the line).
  """
  path, _, argument = spec.partition(":")
  if not path.endswith(".py"):
    shipped = _shipped()
    if spec not in shipped:
      raise UserError(
        f"--config {spec}: no such config{_nearest(spec, list(shipped))}. Give a name that `t2t train --help` "
        "lists, or the path of a .py file."
      )
    module, size = shipped[spec]
    return importlib.import_module(module).get_config(*([size] if size else []))
  if not pathlib.Path(path).is_file():
    raise UserError(
      f"--config {path}: no such file. Check the path, or give a config that comes with t2t (see --help):\n{families()}"
    )
  try:
    module = imports.file_module(path, "t2t_user_config")
    if not callable(getattr(module, "get_config", None)):
      raise UserError(
        f"--config {path}: the file does not define get_config(); add a function get_config() that returns the config"
      )
    config = module.get_config(argument) if argument else module.get_config()
  except UserError:
    raise
  except Exception as error:
    # Errors in the user's file are reported with the line of that file.
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    where = f"{path}, line {lines[-1]}" if lines else path
    raise UserError(
      f"--config {where}: the file fails with {type(error).__name__} ({error}). Correct the file."
    ) from error
  if not isinstance(config, ConfigDict):
    raise UserError(
      f"--config {path}: get_config() returned {type(config).__name__}, not a ConfigDict; start the config from "
      "`t2t.configs.default.get_config()`"
    )
  return config


# Overridden key -> mutually exclusive key, which is reset to 0.
_INSTEAD = {"train.steps": "train.epochs", "optimizer.warmup_steps": "optimizer.warmup_ratio"}


def _check_one_of(key: str, instead: str, arguments: Sequence[str]) -> None:
  """Refuses two mutually exclusive overrides; a value of 0 selects the other key."""
  typed = {}
  for argument in arguments:
    name, _, value = argument.removeprefix("--config.").partition("=")
    if name in (key, instead) and value.strip("0.") != "":
      typed[name] = argument
  if len(typed) == 2:
    raise UserError(f"{typed[key]} and {typed[instead]} are mutually exclusive; give only one of these keys")


def for_architecture(spec: str, config: ConfigDict) -> None:
  """Adapts a config to its checkpoint's architecture, by the function `for_architecture(config)` of the config's file.

  A config file with recipes for several architectures defines this function, which reads config.model.architecture.
  """
  name = "t2t_user_config" if spec.partition(":")[0].endswith(".py") else _shipped()[spec][0]
  adapt = getattr(sys.modules[name], "for_architecture", None)
  if adapt is not None:
    adapt(config)


def all_keys() -> list[str]:
  """Returns all keys that a config may have, "SECTION.KEY"."""
  key_names = [f"{name}.{key}" for name, values in default.get_config().items() if name != _STAGES for key in values]
  return key_names + _optional_keys()


def _optional_keys() -> list[str]:
  return [f"{name}.{field.name}" for name, cls in OPTIONAL.items() for field in dataclasses.fields(cls)]


def override(config: ConfigDict, arguments: list[str]) -> ConfigDict:
  """Applies `--config.SECTION.KEY=VALUE` to a config and locks it; several values are separated by commas.

  Raises:
    UserError: an unknown key (names the nearest), a value of another type, or an unexpected argument.
  """
  arguments = renamed_keys.current_arguments(arguments)
  config.lock()
  for key, instead in _INSTEAD.items():
    if any(re.match(rf"--config\.{re.escape(key)}\b", argument) for argument in arguments):
      _check_one_of(key, instead, arguments)
      section, name = instead.split(".")
      config[section][name] = 0.0
  for name in OPTIONAL:
    if name in config or any(re.match(rf"--config\.{name}\.", argument) for argument in arguments):
      previous = config[name].to_dict() if name in config else {}
      with config.unlocked():
        config[name] = ConfigDict(dataclasses.asdict(OPTIONAL[name]()) | previous).lock()
  keys = [f"{section}.{key}" for section, values in config.items() if section != _STAGES for key in values]
  mappings = [key for key in keys if isinstance(_value(config, key), ConfigDict)]
  keys = [key for key in keys if key not in mappings] + [_STAGES]
  named = _add_names(config, mappings, arguments)
  for argument in arguments:
    match = re.match(r"--(?:no)?config\.([\w.]+)", argument)
    if argument.startswith("-") and match is None:
      key = argument.lstrip("-").partition("=")[0].replace("-", "_")
      if known := _translated(key):
        raise UserError(f"unknown option {argument}{known}. Options have the form --config.SECTION.KEY=VALUE.")
      near = difflib.get_close_matches(key, [known_key.partition(".")[2] for known_key in keys], n=1)
      meant = " or ".join(
        f"--config.{known_key}" for known_key in keys if known_key == key or known_key.partition(".")[2] in near
      )
      raise UserError(
        f"unknown option {argument}; {f'did you mean {meant}?' if meant else '`--help` lists all options'}"
      )
    if match:
      _check_key(argument, match[1], there=[*keys, *named], mappings=mappings, known=[*keys, *mappings])
      if not re.fullmatch(r"[\w.-]+", name := argument.partition("=")[0]):
        raise UserError(f"{name}: no such key; keys have only letters, digits and _")
  for argument in arguments:
    if argument.startswith(f"--config.{_STAGES}="):
      stages.check_typed(argument.partition("=")[2])
  arguments = [_listed(config, [*keys, *named], argument) for argument in arguments]
  values = flags.FlagValues()
  config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=["t2t", *arguments])
  try:
    unparsed = values(["t2t", *arguments])
  except flags.Error as error:
    text = re.sub(r": invalid literal for int\(\).*", " must be an integer", str(error).removeprefix("flag "))
    text = re.sub(r": \('Non-boolean argument.*", " must be True or False", text)
    raise UserError(re.sub(r": could not convert string to float.*", " must be a number", text)) from error
  if len(unparsed) > 1:
    raise UserError(f"unexpected argument {unparsed[1]!r}; options have the form --config.SECTION.KEY=VALUE")
  stages.check_overrides(values.config, arguments)
  for name in OPTIONAL:
    mine = next((argument for argument in arguments if argument.startswith(f"--config.{name}.")), None)
    if mine and not _is_used(values.config, name):
      if name in PRUNING:
        raise UserError(f"{mine}: no rule prunes. Add --config.optimizer.param_groups='/layers/: magnitude=0.8'")
      loss = values.config.train.loss or "cross_entropy"
      or_teacher = ", or --config.distillation.teacher=PATH" if name == "distillation" else ""
      raise UserError(f"{mine} has no effect with config.train.loss={loss}; add --config.train.loss={name}{or_teacher}")
  return values.config


def overridden(spec: str, arguments: list[str], *, prepare: Callable[[ConfigDict], None] | None = None) -> ConfigDict:
  """Loads a config and applies overrides.

  Args:
    spec: see `load_config`.
    arguments: see `override`.
    prepare: changes the loaded config first, possibly its architecture.

  Raises:
    UserError: see `load_config` and `override`.
  """
  config = load_config(spec)
  if prepare is not None:
    prepare(config)
    for_architecture(spec, config)
  return override(config, arguments)


def check_of_files(config: ConfigDict, arguments: Sequence[str]) -> None:
  """Refuses overrides for converting files to examples if only registered tasks are read.

  Args:
    config: a complete config; sources of files cannot be added later.
    arguments: overrides of it, see `override`.

  Raises:
    UserError: names the key and the alternatives.
  """
  data = config.data
  in_stages = {key for stage in config[_STAGES] if isinstance(stage, Mapping) for key in stage}
  if data.files or any(source.get("files") for source in data.sources.values()):
    return
  if any(key.startswith(("data.files", "data.sources")) for key in in_stages) or not (data.mixture or data.sources):
    return
  # For registered tasks of masked language models, noise_density determines the FLOPs.
  kind = ARCHITECTURES.get(config.model.architecture)
  allowed = {"noise_density"} if kind is not None and not kind.is_generative else set()
  named = f"config.data.mixture={data.mixture}" if data.mixture else f"config.data.sources ({', '.join(data.sources)})"
  for argument in arguments:
    section, _, key = argument.partition("=")[0].rpartition(".")
    if section not in ("--config.data", "--noconfig.data") or key not in OF_FILES or key in allowed:
      continue
    if data[key] != getattr(DataConfig, key):
      raise UserError(
        f"{argument} applies only to config.data.files, but the tasks of {named} determine this key. Leave out the "
        "key, name another task (`t2t tasks` lists all tasks), or give --config.data.mixture= with files and a "
        "vocabulary."
      )


def _is_used(config: ConfigDict, section: str) -> bool:
  """Returns True if a run reads an optional section: for an adapter, a selected loss, teachers, or pruning rules."""
  if section in PRUNING:
    return lazy_table.load("t2t.configuration.pruning_config:is_used")(config.optimizer.param_groups)
  has_teacher = section in config and any(config[section].get(key) for key in ("teacher", "logits"))
  return config.train.loss == section or is_adapter(section) or has_teacher


def _value(config: ConfigDict, key: str) -> Any:
  return functools.reduce(lambda values, name: values[name], key.split("."), config)


def _add_names(config: ConfigDict, mappings: Sequence[str], arguments: Sequence[str]) -> list[str]:
  """Adds entries for overrides --config.MAPPING.NAME; returns the keys of all entries."""
  for argument in arguments:
    match = re.match(r"--config\.(\w+\.\w+)\.(\w+)(?:=|$)", argument)
    if match and match[1] in mappings and match[1] not in _RECORDS and match[2] not in _value(config, match[1]):
      with config.unlocked():
        _value(config, match[1])[match[2]] = ""
  entry_keys = [f"{key}.{name}" for key in mappings if key not in _RECORDS for name in _value(config, key)]
  for key, cls in _RECORDS.items():
    named, typed = _value(config, key), re.compile(rf"--config\.{re.escape(key)}\.(\w+)\.\w")
    for name in dict.fromkeys([*named, *(match[1] for match in map(typed.match, arguments) if match)]):
      previous = dict(named[name]) if name in named else {}
      with config.unlocked():
        named[name] = ConfigDict(dataclasses.asdict(cls()) | previous).lock()
      entry_keys += [f"{key}.{name}.{field}" for field in named[name]]
  return entry_keys


def _check_key(argument: str, key: str, *, there: Sequence[str], mappings: Sequence[str], known: Sequence[str]) -> None:
  """Refuses a key that is not in `there`; the error suggests keys of `known` or optional keys."""
  if key in there:
    return
  keys = [path.removeprefix(f"{key}.") for path in there if path.startswith(f"{key}.")]
  if keys and "." not in key:
    raise UserError(
      f"{argument}: {key!r} is a section, not a key. Give --config.{key}.KEY=VALUE with one of these keys: "
      f"{', '.join(keys)}"
    )
  for mapping in mappings:
    if f"{key}.".startswith(f"{mapping}.") and mapping in _RECORDS:
      fields = [field.name for field in dataclasses.fields(_RECORDS[mapping])]
      near = _nearest(key.rpartition(".")[2], fields) if key.count(".") > mapping.count(".") + 1 else ""
      raise UserError(
        f"{argument}: invalid key. Give --config.{mapping}.NAME.KEY=VALUE, with letters, digits and _ in NAME. Known "
        f"keys: {', '.join(fields)}{near}"
      )
    if f"{key}.".startswith(f"{mapping}."):
      raise UserError(
        f"{argument}: invalid key. Give --config.{mapping}.NAME=VALUE, with letters, digits and _ in NAME."
      )
  near = instead_of(key, [*known, *_optional_keys()])
  raise UserError(f"--config.{key}: no such key{near}{'' if near.endswith('?') else '.'} {_LIST_OF_KEYS}.")


def instead_of(key: str, known: Sequence[str]) -> str:
  """Returns the end of an error about an unknown key: the key in another section, a translation, or the nearest.

  Args:
    key: "train.learning_rate", or without a section.
    known: all keys.
  """
  section, _, field = key.rpartition(".")
  near = difflib.get_close_matches(key, dict.fromkeys(known), n=3, cutoff=0.5)
  same = [candidate for candidate in known if candidate.rpartition(".")[2] == field]
  # A misspelt section, or a similar key of the right section, is nearer than an equal key of another section.
  sections = {candidate.rpartition(".")[0] for candidate in known}
  is_near = section and near and (section not in sections or near[0].startswith(f"{section}."))
  if len(same) == 1 and not is_near:
    return f"; did you mean config.{same[0]}?"
  return _translated(key) or _nearest(key, list(known))


def _listed(config: ConfigDict, keys: list[str], argument: str) -> str:
  """Converts comma-separated values of an option to the tuple syntax of config_flags.

  In:  --config.init.rename=.,a=b
  Out: --config.init.rename=('.', 'a=b')

  In:  --config.model.heads={"name": "nli", "num_classes": 3}
  Out: --config.model.heads=({"name": "nli", "num_classes": 3},)
  """
  option, _, value = argument.partition("=")
  key = option.removeprefix("--config.")
  is_list = key in keys and isinstance(_value(config, key), tuple)
  if not is_list or "=" not in argument or value.startswith(("(", "[")):
    return argument
  if value.startswith("{"):
    return f"{option}=({value.rstrip(',')},)"
  return f"{option}={tuple(part for part in value.split(',') if part)}"


def records(config: ConfigDict) -> Config:
  """Converts a config to typed records.

  config.data.files and config.data.sources override the mixture of a config.

  Raises:
    UserError: an unknown or missing section or key, or a value that the model does not accept.
  """
  config = renamed_keys.current_config(config)
  known = [*SECTIONS, *OPTIONAL, _STAGES]
  if unknown := [name for name in config if name not in known]:
    near = _nearest(unknown[0], known) or f"; known sections: {', '.join(known)}"
    raise UserError(f"config.{unknown[0]}: no such section{near}")
  if missing := [name for name in (*SECTIONS, _STAGES) if name not in config]:
    raise UserError(f"config.{missing[0]} is missing; start from `t2t.configs.default.get_config()`")
  optional = {name: OPTIONAL[name] for name in OPTIONAL if name in config}
  for name in config:
    _check_numbers(config[name], f"config.{name}", (SECTIONS | optional).get(name))
  read: dict[str, Any] = {name: _record(config, name, cls) for name, cls in SECTIONS.items()}
  used = {name: _record(config, name, cls) for name, cls in optional.items() if _is_used(config, name)}
  settings: Any = used.get("distillation")
  if read["train"].loss == "distillation" and settings is not None and (settings.teacher or settings.logits):
    # With a teacher the data select the loss of hard targets.
    read["train"] = dataclasses.replace(read["train"], loss="")
  parsed = Config(**read, stages=config[_STAGES], sections=used)
  return parsed.with_(data={"mixture": ""}) if parsed.data.files or parsed.data.sources else parsed


def _check_numbers(value: Any, key: str, cls: type | None = None) -> None:
  """Refuses NaN and infinities at any depth, and bools in numeric fields of the record `cls`."""
  if isinstance(value, Mapping | ConfigDict):
    kinds = {field.name: field.type for field in dataclasses.fields(cls)} if cls is not None else {}
    for name, item in value.items():
      if isinstance(item, bool) and kinds.get(name) in (int, float):
        raise UserError(f"{key}.{name}={item} must be a number, not True or False")
      _check_numbers(item, f"{key}.{name}")
  elif isinstance(value, tuple | list):
    for number, item in enumerate(value):
      _check_numbers(item, f"{key}[{number}]")
  elif isinstance(value, float) and not math.isfinite(value):
    raise UserError(f"{key}={value} must be a finite number")


def _t5x_pairs(values: Sequence[Any]) -> list[str]:
  """Returns the options for T5X's (pattern, pattern) pairs; [] if `values` are patterns."""
  if all(isinstance(value, str) and not value.endswith("=None") for value in values):
    return []
  from t2t.configuration import foreign_names

  return foreign_names.t5x_pairs(values)


def _record(config: ConfigDict, name: str, cls: type[T]) -> T:
  fields = dataclasses.fields(cls)
  known = [field.name for field in fields]
  unknown = [key for key in config[name] if key not in known]
  if unknown:
    key = f"{name}.{unknown[0]}"
    meant = _translated(key) or _nearest(unknown[0], known) or f"; {_LIST_OF_KEYS}"
    raise UserError(f"config.{key}: no such key{meant}")
  needed = [field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING]
  needed += [field.name for field in keys(cls) if name != "data" and f"{name}.{field.name}" not in _LATER]
  if missing := [key for key in needed if key not in config[name]]:
    raise UserError(f"config.{name}.{missing[0]} is missing; start from `t2t.configs.default.get_config()`")
  for key in (field.name for field in fields if field.type == tuple[str, ...] and field.name in config[name]):
    if name == "init" and (pairs := _t5x_pairs(config[name][key])):
      raise UserError(f"config.init.{key}={config[name][key]} has the syntax of T5X; give {' '.join(pairs)}")
    if not all(isinstance(text, str) for text in config[name][key]):
      raise UserError(f"config.{name}.{key}={config[name][key]} must contain only strings, separated by commas")
  return cls(**config[name])


def _translated(key: str) -> str:
  """Returns the end of an error with t2t's key for a key of another library; "" for an unknown key."""
  from t2t.configuration import foreign_names

  return foreign_names.translated(key)
