"""Translates earlier names of config keys in command lines, config files, checkpoints and workdirs."""

from collections.abc import Mapping, Sequence
import functools
import re
from typing import Any

from ml_collections import ConfigDict

from t2t.runtime import console

# Earlier key -> current key.
RENAMED = {
  "checkpoint.every": "checkpoint.save_interval_steps",
  "checkpoint.keep": "checkpoint.max_to_keep",
  "data.files_may_change": "data.allow_changed_files",
  "data.folders": "data.benchmark_dirs",
  "data.glue_dir": "data.benchmark_dirs.glue",
  "data.malformed": "data.max_bad_record_fraction",
  "data.most_epochs": "data.repeat_warning_epochs",
  "data.size": "data.mixing_unit",
  "data.squad_dir": "data.benchmark_dirs.squad",
  "data.superglue_dir": "data.benchmark_dirs.superglue",
  "eval.examples": "eval.num_logged_samples",
  "eval.shots": "eval.num_shots",
  "eval.stop_by": "eval.early_stopping_metric",
  "init.by_piece": "init.transfer_vocab",
  "init.fresh": "init.reinit",
  "init.inherit": "init.use_model_config",
  "init.parts": "init.rename",
  "init.rows": "init.resize",
  "mesh.order": "mesh.physical_layout",
  "model.initial_focus": "model.attention_init_bias",
  "model.t5_dropout": "model.broadcast_dropout",
  "numbers.most_backs": "nan_policy.max_rollbacks",
  "numbers.most_in_a_row": "nan_policy.max_consecutive_skips",
  "numbers.most_skipped": "nan_policy.max_skipped_fraction",
  "numbers.not_finite": "nan_policy.on_nonfinite",
  "numbers.spike": "nan_policy.on_spike",
  "numbers.spike_deviations": "nan_policy.spike_deviations",
  "numbers.spike_window": "nan_policy.spike_window",
  "optimizer.decay_share": "optimizer.decay_fraction",
  "optimizer.final_ratio": "optimizer.end_lr_fraction",
  "optimizer.paths": "optimizer.param_groups",
  "optimizer.rise": "optimizer.warmup_fraction",
  "optimizer.rise_ratio": "optimizer.init_lr_divisor",
  "train.chunk_tokens": "train.logits_chunk_tokens",
  "train.hosts": "train.num_processes",
  "train.stall_factor": "train.hang_timeout_factor",
}
# Current key -> earlier value -> current value.
_VALUES = {
  "eval.method": {"write": "generate"},
  "nan_policy.on_nonfinite": {"back": "rollback"},
  "nan_policy.on_spike": {"back": "rollback"},
}
_SECTIONS = {
  old: new
  for old, new in ((old.partition(".")[0], new.partition(".")[0]) for old, new in RENAMED.items())
  if old != new
}
_STAGE = {"share": "fraction"}  # earlier -> current key of an entry of config.stages
# Mapping whose entries have keys -> section of these keys.
_ENTRIES = {"init.others": "init"}


def current_key(key: str) -> str:
  """Returns the current name of a key.

  In:  data.superglue_dir
  Out: data.benchmark_dirs.superglue

  In:  init.others.teacher.parts
  Out: init.others.teacher.rename
  """
  for entries, section in _ENTRIES.items():
    if match := re.fullmatch(rf"({re.escape(entries)}\.\w+)\.(\w+)", key):
      return f"{match[1]}.{current_key(f'{section}.{match[2]}').partition('.')[2]}"
  if key in RENAMED:
    return RENAMED[key]
  parent, _, name = key.rpartition(".")
  return f"{RENAMED[parent]}.{name}" if parent in RENAMED else key


def current_value(key: str, value: object) -> object:
  """Returns the current spelling of a value; `key` has its current name."""
  return _VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value


def with_current_keys(saved: Mapping[str, object]) -> dict[str, object]:
  """Returns a saved config, of config.json or a checkpoint, with current names of its keys.

  In:  {"data": {"mixture": "super_glue", "superglue_dir": "SuperGLUE", "glue_dir": ""}}
  Out: {"data": {"mixture": "super_glue", "benchmark_dirs": {"superglue": "SuperGLUE"}}}
  """
  config: dict[str, Any] = {}
  sections: Mapping[str, Any] = saved
  for section, values in sections.items():
    if section == "stages":
      config[section] = type(values)(map(current_stage, values))
    elif not isinstance(values, Mapping):
      config[section] = values
    else:
      config.setdefault(_SECTIONS.get(section, section), {})
      for key, value in values.items():
        _put(config, current_key(f"{section}.{key}"), value)
  return config


def current_stage(stage: object) -> object:
  """Returns an entry of config.stages with current names of its keys."""
  if not isinstance(stage, Mapping | ConfigDict):
    return stage
  current = {key: _STAGE.get(key, current_key(key)) if isinstance(key, str) else key for key in stage}
  return {current[key]: current_value(current[key], value) for key, value in stage.items()}


def current_config(config: ConfigDict) -> ConfigDict:
  """Returns a config with current names in stages and entries of mappings; prints each renamed key once.

  Other keys are renamed on assignment: see `accept_earlier_names`.
  """
  config = config.copy_and_resolve_references()
  with config.unlocked():
    if "stages" in config and isinstance(config["stages"], tuple | list):
      config["stages"] = tuple(
        _reported(f"stages[{number}]", stage, current_stage(stage)) for number, stage in enumerate(config["stages"])
      )
    for entries, section in _ENTRIES.items():
      parent, _, name = entries.partition(".")
      if parent in config and name in config[parent]:
        config[parent][name] = {
          source: _reported(f"{entries}.{source}", keys, _current_entry(section, keys))
          for source, keys in config[parent][name].items()
        }
  return config


def _reported(where: str, entry: Any, current: Any) -> Any:
  """Returns the current form of an entry, and prints each renamed key once."""
  if isinstance(entry, Mapping | ConfigDict):
    for old, new in zip(entry, current, strict=True):
      if old != new:
        _tell(f"{where}.{old}", f"{where}.{new}")
  return current


def _put(config: dict[str, Any], key: str, value: Any) -> None:
  """Sets a key, or an entry of the mapping that replaced an earlier key."""
  section, name, *entry = key.split(".")
  present = config.setdefault(section, {})
  if entry:
    value = {entry[0]: value} if value else None
  elif key in _ENTRIES and isinstance(value, Mapping):
    value = {source: _current_entry(_ENTRIES[key], keys) for source, keys in value.items()}
  if isinstance(value, Mapping):
    present[name] = {**present.get(name, {}), **value}
  elif not entry:
    present[name] = current_value(key, value)


def _current_entry(section: str, entry: Any) -> Any:
  if not isinstance(entry, Mapping | ConfigDict):
    return entry
  return {current_key(f"{section}.{key}").partition(".")[2]: value for key, value in entry.items()}


@functools.cache
def _tell(old: str, new: str) -> None:
  console.tell(f"config.{old} is now config.{new}; the earlier name still works. Change the name to config.{new}.")


def current_arguments(arguments: Sequence[str]) -> list[str]:
  """Returns options `--config.KEY=VALUE` or `--config.KEY VALUE` with current names; prints each renamed key once."""
  current: list[str] = []
  key = ""  # key of the previous option, if its value is the next argument
  for argument in arguments:
    match = re.fullmatch(r"(--(?:no)?config\.)([\w.]+)(=?)(.*)", argument, re.DOTALL)
    if match is None:
      current.append(_reported_value(key, argument))
      key = ""
      continue
    prefix, old, equals, value = match.groups()
    key = current_key(old)
    if key != old:
      _tell(old, key)
    current.append(f"{prefix}{key}{equals}{_reported_value(key, value)}")
    key = "" if equals else key
  return current


def _reported_value(key: str, value: str) -> str:
  current: Any = current_value(key, value)
  if current != value:
    _tell(f"{key}={value}", f"{key}={current}")
  return current


class _EarlierNames(ConfigDict):
  """A mapping whose keys can be read and set by earlier names."""

  _section = ""
  _earlier: Mapping[str, str] = {}  # earlier key -> current key

  def _current(self, key: str) -> str:
    if key not in self._earlier or key in self._fields:
      return key
    prefix = f"{self._section}." if self._section else ""
    _tell(f"{prefix}{key}", f"{prefix}{self._earlier[key]}")
    return self._earlier[key]

  def __getitem__(self, key: str) -> Any:
    return super().__getitem__(self._current(key))

  def __setitem__(self, key: str, value: Any) -> None:
    current = self._current(key)
    if not self._section and current in _CLASSES and isinstance(value, Mapping):
      value = ConfigDict(value)
    if not self._section and current in _CLASSES and isinstance(value, ConfigDict):
      value = _CLASSES[current]({name: value[name] for name in value})
    if current != key and isinstance(value, Mapping | ConfigDict) and isinstance(self._fields.get(current), ConfigDict):
      self[current].update(value)  # merges a section set by its earlier name, as ConfigDict.update does
    else:
      super().__setitem__(current, current_value(f"{self._section}.{current}", value))

  def update_from_flattened_dict(self, flattened_dict: Mapping[str, Any], strip_prefix: str = "") -> None:
    start = f"{self._section}." if self._section else ""
    update = {}
    for path, value in flattened_dict.items():
      if path.startswith(strip_prefix):
        key = f"{start}{path.removeprefix(strip_prefix)}"
        new = current_key(key)
        if new != key:
          _tell(key, new)
        update[new.removeprefix(start)] = current_value(new, value)
    super().update_from_flattened_dict(update)


def _earlier_in(section: str) -> dict[str, str]:
  pairs = {old: new.split(".") for old, new in RENAMED.items() if new.startswith(f"{section}.") and new.count(".") == 1}
  return {old.partition(".")[2]: new[1] for old, new in pairs.items() if old.partition(".")[2] != new[1]}


def _class(name: str, section: str, earlier: Mapping[str, str]) -> type[ConfigDict]:
  """Returns a module-level class, because `copy` and `pickle` find classes by name."""
  names = {"_section": section, "_earlier": earlier, "__module__": __name__}
  return globals().setdefault(name, type(name, (_EarlierNames,), names))


_CLASSES = {
  section: _class(f"_{section.title()}Section", section, _earlier_in(section))
  for section in dict.fromkeys(new.partition(".")[0] for new in RENAMED.values())
}
_Root = _class("_Root", "", _SECTIONS)


def accept_earlier_names(config: ConfigDict) -> ConfigDict:
  """Returns a config whose sections and keys can be read and set by earlier names, as in old config files."""
  return _Root({name: _CLASSES[name](x) if name in _CLASSES else x for name, x in config.items()})
