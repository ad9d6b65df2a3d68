"""Command lines with gin files of T5X: conversion to a config, and the T5X names of keys in messages."""

import argparse
from collections.abc import Sequence
import dataclasses
import re
import shlex

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.commands.gin_files import BINDING
from t2t.convert import gin
from t2t.convert.gin import param_map as gin_names

# T5X flags with another name in t2t.
_ELSEWHERE = {
  "tfds_data_dir": "Set TFDS_DATA_DIR in the environment, or give --config.data.benchmark_dirs.NAME=FOLDER.",
  "seqio_additional_cache_dirs": "Give --config.data.cache_dir=FOLDER with a folder that `t2t cache` wrote.",
  "run_mode": "Give the file to the matching command: `t2t train`, `t2t eval` or `t2t infer`.",
  "dry_run": "Run `t2t convert --gin_file FILE`, which only prints the config.",
  "coordinator_address": "Give --coordinator.",
  "process_count": "Give --num_processes.",
  "process_index": "Give --process_id.",
  "multiprocess_gpu": "Give --coordinator, --num_processes and --process_id.",
}


def convert(
  options: argparse.Namespace, typed: Sequence[str], other_arguments: Sequence[str], argv: Sequence[str]
) -> gin.ConvertedGin:
  """Converts the gin files of a command line.

  Args:
    options: parsed by argparse.
    typed: arguments of the form --gin.NAME=VALUE.
    other_arguments: further arguments that are unknown to argparse.
    argv: the whole command line.

  Raises:
    UserError: the files cannot be read, or contain settings that t2t cannot run.
  """
  if any(argument.partition("=")[0] == "--config" for argument in argv):
    raise UserError(
      f"--config and --gin_file {options.gin_file[0]} exclude each other. Give only one of these options; "
      "--config.SECTION.KEY=VALUE changes keys in either case."
    )
  for argument in other_arguments:
    name = argument.lstrip("-").partition("=")[0]
    if name in _ELSEWHERE:
      raise UserError(f"{argument}: t2t does not have this flag of T5X. {_ELSEWHERE[name]}")
  converted = gin.to_config(read(options, typed), options.gin_kind)
  typed_keys = [re.sub(r"^--(?:no)?config\.", "", argument.partition("=")[0]) for argument in argv]
  if refused := converted.refused(typed_keys):
    raise UserError(
      f"--gin_file {converted.name}: the run was not started, because t2t cannot convert"
      f" {'this setting' if len(refused) == 1 else f'{len(refused)} settings'} exactly:\n"
      + "\n".join(f"  {finding}" for finding in refused)
      + _by_hand(options, typed, converted.kind)
    )
  return dataclasses.replace(
    converted, findings=tuple(finding for finding in converted.findings if not finding.refused)
  )


def read(options: argparse.Namespace, typed: Sequence[str]) -> gin.Gin:
  """Returns the gin files of the options, with the bindings of the command line.

  Args:
    options: parsed by argparse.
    typed: arguments of the form --gin.NAME=VALUE.

  Raises:
    UserError: see `gin.read`.
  """
  bindings = [*options.gin_bindings, *(argument.removeprefix(BINDING) for argument in typed)]
  folders = [folder for folder in options.gin_search_paths.split(",") if folder]
  return gin.read(options.gin_file, bindings, search_paths=folders)


def _by_hand(options: argparse.Namespace, typed: Sequence[str], kind: str) -> str:
  if kind == "infer":  # has no config file
    return "\nChange the gin file, or remove these lines."
  flags = [f"--gin_file={path}" for path in options.gin_file]
  flags += [f"--gin_search_paths={options.gin_search_paths}"] if options.gin_search_paths else []
  flags += [f"--gin_bindings={binding}" for binding in options.gin_bindings]
  return (
    "\nConvert the other settings to a config file, and complete the file by hand:\n"
    f"  t2t convert {shlex.join([*flags, *typed])} > mine.py\n"
    f"  t2t {kind} --config mine.py ..."
  )


def also_called(message: str, kind: str) -> str:
  """Returns a line with the T5X names of keys and options in a message; "" if there are none."""
  named = dict.fromkeys(re.findall(r"(?<![\w.])(?:config\.\w+\.\w+|--\w+)(?!\w|\.\w)", message))
  theirs = gin_names.in_t5x(kind)
  pairs = [(name, theirs[key]) for name in named if (key := name.removeprefix("config.")) in theirs]
  aliases = [f"{name} is T5X's {alias}" for name, alias in pairs if alias not in message]
  return f"\n  ({', '.join(aliases)})" if aliases else ""


def check(converted: gin.ConvertedGin, source: pretrained.Source) -> pretrained.Source:
  """Returns the checkpoint, with the vocabulary of the gin files if it has none.

  Raises:
    UserError: its model differs from the model of the gin files.
  """
  for key, value in converted.model.items():
    there = getattr(source.model, key.partition(".")[2])
    if there != value:
      is_unknown = key == "model.mlp_activation"
      hint = " (a T5X checkpoint does not store this value; see docs/from_t5x.md)" if is_unknown else ""
      raise UserError(
        f"{converted.name} sets config.{key}={value!r}, but {source.name} has {there!r}{hint}. Use the gin file "
        "of this checkpoint."
      )
  data = converted.config().data
  if source.vocabulary or not data.vocabulary:
    return source
  completed_data = source.run["data"] | {"vocabulary": data.vocabulary, "extra_ids": data.extra_ids}
  return dataclasses.replace(source, run=source.run | {"data": completed_data})
