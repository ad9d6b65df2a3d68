"""Command-line flags of T5X for gin files, which replace a config."""

import argparse
from collections.abc import Callable, Sequence
import functools
from typing import TYPE_CHECKING

from t2t import UserError
from t2t.runtime import hosts, lazy_table

if TYPE_CHECKING:
  from t2t.convert import gin

BINDING = "--gin."  # argparse does not take it for an option
_Main = Callable[[list[str]], None]


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
  return argument.startswith(BINDING)


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
  convert = lazy_table.load("t2t.commands.gin_conversion:convert")  # few runs have gin files
  return convert(options, typed, other_arguments, argv), other_arguments


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
          also_called = lazy_table.load("t2t.commands.gin_conversion:also_called")
          error.args = (str(error) + also_called(str(error), kind),)
        raise

    return wrapped

  return decorate


def or_bound(converted: "gin.ConvertedGin | None", option: str) -> str:
  """Returns the gin alternative to a missing option: " or --gin.CHECKPOINT_PATH='\"PATH\"'"; "" without gin files."""
  if converted is None:
    return ""
  from t2t.convert.gin import param_map as gin_names

  return f" or {BINDING}{gin_names.in_t5x(converted.kind)[option]}='\"PATH\"'"


def tell(converted: "gin.ConvertedGin | None") -> None:
  """Prints which settings of gin files are left out or replaced; call it after the hosts have joined."""
  if converted is not None and converted.findings:
    listing = "\n".join(f"  {finding}" for finding in converted.findings)
    hosts.log_once(f"{converted.name}: these settings are left out or replaced:\n{listing}")
