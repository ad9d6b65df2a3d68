"""Gin files of T5X on the command line: its own flags, in place of a config."""

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

_BINDING = "--gin."  # which argparse takes for no option
_Main = Callable[[list[str]], None]
# Flags of T5X's that go by another name here.
_ELSEWHERE = {
  "tfds_data_dir": "set TFDS_DATA_DIR in the environment, or give --config.data.benchmark_dirs.NAME=FOLDER",
  "seqio_additional_cache_dirs": "give --config.data.cache_dir, a folder that `t2t cache` wrote",
  "run_mode": "give the file to the command that it is for: `t2t train`, `t2t eval`, `t2t infer`",
  "dry_run": "`t2t convert` prints the config of a file, and runs nothing",
  "coordinator_address": "give --coordinator",
  "process_count": "give --num_processes",
  "process_index": "give --process_id",
  "multiprocess_gpu": "give --coordinator, --num_processes and --process_id",
}


def add_options(parser: argparse.ArgumentParser, kind: str) -> None:
  """T5X's flags.

  Args:
    parser: of the command.
    kind: of the runs that it makes, "train", "eval" or "infer"; "": any.
  """
  group = parser.add_argument_group(
    "gin files of T5X (docs/gin.md)",
    "--gin.NAME=VALUE comes after the files: --gin.TRAIN_STEPS=100, and a text in\n"
    "two kinds of quotes, --gin.MODEL_DIR='\"runs/t5\"'.  What has no counterpart is\n"
    "said before anything begins.",
  )
  add = group.add_argument
  add("--gin_file", action="append", default=[], metavar="FILE", help="that T5X runs; of several the later ones count")
  add("--gin_search_paths", default="", metavar="DIR,DIR", help="where files and what they include are looked for")
  add("--gin_bindings", action="append", default=[], metavar="NAME=VALUE", help="the same as --gin.NAME=VALUE")
  parser.set_defaults(gin_kind=kind)
  parser.usage += f"\n       {parser.prog} --gin_file FILE [--gin.NAME=VALUE ...]"


def is_binding(argument: str) -> bool:
  """Whether an argument is --gin.NAME=VALUE."""
  return argument.startswith(_BINDING)


def take(
  options: argparse.Namespace, arguments: Sequence[str], argv: Sequence[str]
) -> "tuple[gin.ConvertedGin | None, list[str]]":
  """Returns what the gin files of a command line say, None without gin files, and what else argparse did not know.

  Args:
    options: as argparse found them.
    arguments: what it did not know.
    argv: all that was typed.

  Raises:
    UserError: the files cannot be read, or say what cannot be run.
  """
  typed = [argument for argument in arguments if is_binding(argument)]
  other_arguments = [argument for argument in arguments if not is_binding(argument)]
  if not options.gin_file:
    for argument in [*typed, *options.gin_bindings]:
      raise UserError(f"{argument}: binds a name of a gin file; give --gin_file FILE with it")
    return None, other_arguments
  if any(argument.partition("=")[0] == "--config" for argument in argv):
    raise UserError(
      f"--config, --gin_file {options.gin_file[0]}: give one; keys of either are changed by --config.SECTION.KEY=VALUE"
    )
  for argument in other_arguments:
    name = argument.lstrip("-").partition("=")[0]
    if name in _ELSEWHERE:
      raise UserError(f"{argument}: a flag of T5X that t2t has under another name: {_ELSEWHERE[name]}")
  from t2t.convert import gin

  converted = gin.to_config(read(options, typed), options.gin_kind)
  typed_keys = [re.sub(r"^--(?:no)?config\.", "", argument.partition("=")[0]) for argument in argv]
  if refused := converted.refused(typed_keys):
    raise UserError(
      f"--gin_file {converted.name}: nothing is run, for"
      f" {'this' if len(refused) == 1 else f'{len(refused)} things'} would be guessed, or left out and missed:\n"
      + "\n".join(f"  {finding}" for finding in refused)
      + (_by_hand(options, typed, converted.kind) if converted.kind != "infer" else "")
    )
  return dataclasses.replace(
    converted, findings=tuple(finding for finding in converted.findings if not finding.refused)
  ), other_arguments


def read(options: argparse.Namespace, typed: Sequence[str]) -> "gin.Gin":
  """Returns the gin files that options name, with what is bound on the command line.

  Args:
    options: as argparse found them.
    typed: arguments of the form --gin.NAME=VALUE.

  Raises:
    UserError: see `gin.read`.
  """
  from t2t.convert import gin

  bindings = [*options.gin_bindings, *(argument.removeprefix(_BINDING) for argument in typed)]
  folders = [folder for folder in options.gin_search_paths.split(",") if folder]
  return gin.read(options.gin_file, bindings, search_paths=folders)


def _by_hand(options: argparse.Namespace, typed: Sequence[str], kind: str) -> str:
  flags = [f"--gin_file={path}" for path in options.gin_file]
  flags += [f"--gin_search_paths={options.gin_search_paths}"] if options.gin_search_paths else []
  flags += [f"--gin_bindings={binding}" for binding in options.gin_bindings]
  return (
    "\nIt can be settled by hand, in the config that says the rest:\n"
    f"  t2t convert {shlex.join([*flags, *typed])} > mine.py\n"
    f"  t2t {kind} --config mine.py ..."
  )


# ---- T5X's names in messages -----------------------------------------------------------------------------------------


def in_words_of_t5x(kind: str) -> Callable[[_Main], _Main]:
  """Of a command's `main`: what it says of keys and options that gin files set has T5X's names as well.

  Args:
    kind: of the runs that it makes, "train", "eval" or "infer".
  """

  def decorate(main: _Main) -> _Main:
    @functools.wraps(main)
    def wrapped(argv: list[str]) -> None:
      try:
        main(argv)
      except UserError as error:
        is_gin = any(argument.partition("=")[0] == "--gin_file" for argument in argv)
        if is_gin and not str(error).startswith("--gin_file"):  # what is said of the files has their names
          error.args = (str(error) + _also_called(str(error), kind),)
        raise

    return wrapped

  return decorate


def _also_called(message: str, kind: str) -> str:
  """A line with T5X's names of what a message names, but for those that it has."""
  from t2t.convert.gin import param_map as gin_names

  named = dict.fromkeys(re.findall(r"(?<![\w.])(?:config\.\w+\.\w+|--\w+)(?![\w.])", message))
  theirs = gin_names.in_t5x(kind)
  pairs = [(name, theirs[key]) for name in named if (key := name.removeprefix("config.")) in theirs]
  aliases = [f"{name} is T5X's {alias}" for name, alias in pairs if alias not in message]
  return f"\n  ({', '.join(aliases)})" if aliases else ""


def or_bound(converted: "gin.ConvertedGin | None", option: str) -> str:
  """How gin files say what an option that is missing says: " or --gin.CHECKPOINT_PATH='\"PATH\"'", "" without files."""
  if converted is None:
    return ""
  from t2t.convert.gin import param_map as gin_names

  return f" or {_BINDING}{gin_names.in_t5x(converted.kind)[option]}='\"PATH\"'"


def tell(converted: "gin.ConvertedGin | None") -> None:
  """Says what is left out of gin files or done in another way, before anything begins; the hosts have joined."""
  if converted is not None and converted.findings:
    listing = "\n".join(f"  {finding}" for finding in converted.findings)
    hosts.log_once(f"of {converted.name} this is left out, or done in another way:\n{listing}")


def check(converted: "gin.ConvertedGin", source: "pretrained.Source") -> "pretrained.Source":
  """Returns the checkpoint with the vocabulary of the gin files, if it has none.

  Raises:
    UserError: its model is not theirs.
  """
  for key, value in converted.model.items():
    there = getattr(source.model, key.partition(".")[2])
    if there != value:
      hint = "; a T5X checkpoint does not say its own, see docs/gin.md" if key == "model.mlp_activation" else ""
      raise UserError(f"{converted.name}: config.{key} would be {value!r}, and is {there!r} in {source.path}{hint}")
  data = converted.config().data
  if source.vocabulary or not data.vocabulary:
    return source
  completed_data = source.run["data"] | {"vocabulary": data.vocabulary, "extra_ids": data.extra_ids}
  return dataclasses.replace(source, run=source.run | {"data": completed_data})
