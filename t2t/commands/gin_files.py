"""Command-line flags of T5X for gin files, which replace a config."""

import argparse
from collections.abc import Callable, Sequence
import dataclasses
import functools
import re
import shlex
from typing import TYPE_CHECKING

from t2t import UserError
from t2t.runtime import hosts

if TYPE_CHECKING:
  from t2t.checkpoints import pretrained
  from t2t.convert import gin

_BINDING = "--gin."  # argparse does not take it for an option
_Main = Callable[[list[str]], None]
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


def add_options(parser: argparse.ArgumentParser, kind: str) -> None:
  """Adds the flags of T5X.

  Args:
    parser: of the command.
    kind: of the command's runs, "train", "eval" or "infer"; "": any.
  """
  group = parser.add_argument_group(
    "gin files of T5X (docs/gin.md)",
    "--gin.NAME=VALUE overrides the files: --gin.TRAIN_STEPS=100; strings need two\n"
    "kinds of quotes, --gin.MODEL_DIR='\"runs/t5\"'.  Settings without a counterpart\n"
    "are printed before anything starts.",
  )
  add = group.add_argument
  add("--gin_file", action="append", default=[], metavar="FILE", help="gin file for T5X; later files take precedence")
  add("--gin_search_paths", default="", metavar="DIR,DIR", help="folders to search for files and their includes")
  add("--gin_bindings", action="append", default=[], metavar="NAME=VALUE", help="same as --gin.NAME=VALUE")
  parser.set_defaults(gin_kind=kind)
  parser.usage += f"\n       {parser.prog} --gin_file FILE [--gin.NAME=VALUE ...]"


def is_binding(argument: str) -> bool:
  """Returns whether an argument is --gin.NAME=VALUE."""
  return argument.startswith(_BINDING)


def take(
  options: argparse.Namespace, arguments: Sequence[str], argv: Sequence[str]
) -> "tuple[gin.ConvertedGin | None, list[str]]":
  """Returns the converted gin files of a command line, None without gin files, and the other unknown arguments.

  Args:
    options: parsed by argparse.
    arguments: unknown to argparse.
    argv: the whole command line.

  Raises:
    UserError: the files cannot be read, or contain settings that t2t cannot run.
  """
  typed = [argument for argument in arguments if is_binding(argument)]
  other_arguments = [argument for argument in arguments if not is_binding(argument)]
  if not options.gin_file:
    for argument in [*typed, *options.gin_bindings]:
      raise UserError(f"{argument} sets a name of a gin file, but --gin_file is missing. Add --gin_file FILE.")
    return None, other_arguments
  if any(argument.partition("=")[0] == "--config" for argument in argv):
    raise UserError(
      f"--config and --gin_file {options.gin_file[0]} exclude each other. Give only one of these options; "
      "--config.SECTION.KEY=VALUE changes keys in either case."
    )
  for argument in other_arguments:
    name = argument.lstrip("-").partition("=")[0]
    if name in _ELSEWHERE:
      raise UserError(f"{argument}: t2t does not have this flag of T5X. {_ELSEWHERE[name]}")
  from t2t.convert import gin

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
  ), other_arguments


def read(options: argparse.Namespace, typed: Sequence[str]) -> "gin.Gin":
  """Returns the gin files of the options, with the bindings of the command line.

  Args:
    options: parsed by argparse.
    typed: arguments of the form --gin.NAME=VALUE.

  Raises:
    UserError: see `gin.read`.
  """
  from t2t.convert import gin

  bindings = [*options.gin_bindings, *(argument.removeprefix(_BINDING) for argument in typed)]
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


# ---- T5X's names in messages -----------------------------------------------------------------------------------------


def in_words_of_t5x(kind: str) -> Callable[[_Main], _Main]:
  """Decorates a command's `main`: its errors add the T5X names of keys and options that gin files set.

  Args:
    kind: of the command's runs, "train", "eval" or "infer".
  """

  def decorate(main: _Main) -> _Main:
    @functools.wraps(main)
    def wrapped(argv: list[str]) -> None:
      try:
        main(argv)
      except UserError as error:
        is_gin = any(argument.partition("=")[0] == "--gin_file" for argument in argv)
        if is_gin and not str(error).startswith("--gin_file"):  # errors about the files use T5X names already
          error.args = (str(error) + _also_called(str(error), kind),)
        raise

    return wrapped

  return decorate


def _also_called(message: str, kind: str) -> str:
  """Returns a line with the T5X names of keys and options in a message; "" if there are none."""
  from t2t.convert.gin import param_map as gin_names

  named = dict.fromkeys(re.findall(r"(?<![\w.])(?:config\.\w+\.\w+|--\w+)(?!\w|\.\w)", message))
  theirs = gin_names.in_t5x(kind)
  pairs = [(name, theirs[key]) for name in named if (key := name.removeprefix("config.")) in theirs]
  aliases = [f"{name} is T5X's {alias}" for name, alias in pairs if alias not in message]
  return f"\n  ({', '.join(aliases)})" if aliases else ""


def or_bound(converted: "gin.ConvertedGin | None", option: str) -> str:
  """Returns the gin alternative to a missing option: " or --gin.CHECKPOINT_PATH='\"PATH\"'"; "" without gin files."""
  if converted is None:
    return ""
  from t2t.convert.gin import param_map as gin_names

  return f" or {_BINDING}{gin_names.in_t5x(converted.kind)[option]}='\"PATH\"'"


def tell(converted: "gin.ConvertedGin | None") -> None:
  """Prints which settings of gin files are left out or replaced; call it after the hosts have joined."""
  if converted is not None and converted.findings:
    listing = "\n".join(f"  {finding}" for finding in converted.findings)
    hosts.log_once(f"{converted.name}: these settings are left out or replaced:\n{listing}")


def check(converted: "gin.ConvertedGin", source: "pretrained.Source") -> "pretrained.Source":
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
        f"{converted.name} sets config.{key}={value!r}, but {source.path} has {there!r}{hint}. Use the gin file "
        "of this checkpoint."
      )
  data = converted.config().data
  if source.vocabulary or not data.vocabulary:
    return source
  completed_data = source.run["data"] | {"vocabulary": data.vocabulary, "extra_ids": data.extra_ids}
  return dataclasses.replace(source, run=source.run | {"data": completed_data})
