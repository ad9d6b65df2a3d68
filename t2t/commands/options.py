"""Shared parsers of the subcommands: a config by name or path, overrides of its keys, and a --help with the keys."""

import argparse
from collections.abc import Callable
import difflib
import functools
import itertools
import re
import textwrap
from typing import Any

from ml_collections import ConfigDict

from t2t import UserError
from t2t.commands import gin_files
from t2t.configuration import renamed_keys
from t2t.configuration.loading import check_of_files, config_names, families, overridden, override
from t2t.runtime import hosts, lazy_table
from t2t.storage import gcs


class _Help(argparse.Action):
  """Prints the parser's help, then the shipped configs and the selected keys; briefly, only where to find them."""

  def __init__(self, *arguments: Any, brief: bool = False, **options: Any):
    super().__init__(*arguments, **options)
    self._brief = brief

  def __call__(self, parser, namespace, values, option_string=None):
    del namespace, option_string
    from t2t.commands import keys_help

    keys_help.show(parser, values or "", brief=self._brief)


def _wrapped(paragraph: str) -> str:
  """Wraps a paragraph at 80 columns, unless it is indented."""
  return paragraph if paragraph.startswith(" ") else textwrap.fill(paragraph, 80)


def config_parser(
  prog: str, description: str, *, epilog: str = "", required: str = "--config NAME", brief: bool = False
) -> argparse.ArgumentParser:
  """Returns a parser with `--config` and a `--help` that lists the keys; use it with `parse`.

  The usage has the `required` options. A `brief` help refers to `t2t train --help` for configs and keys.
  """
  parser = argparse.ArgumentParser(
    prog=prog,
    description="\n\n".join(_wrapped(paragraph) for paragraph in description.split("\n\n")),
    epilog=epilog,
    usage=f"{prog} {required} [options]" + ("" if brief else " [--config.SECTION.KEY=VALUE ...]"),
    add_help=False,
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "-h",
    "--help",
    action=functools.partial(_Help, brief=brief),
    nargs="?",
    metavar="all|SECTION",
    help=f"show this help{'' if brief else ', the configs, and the main keys'}, or all keys or a section",
  )
  parser.add_argument("--config", help="name of a config shipped with t2t, or a .py file with get_config()")
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def parse_known(parser: argparse.ArgumentParser, argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
  """Returns the parser's options, and the unknown arguments, including config keys, in command-line order.

  argparse takes an argument with a space for a positional, even after two dashes. Spaces in values of keys are
  therefore replaced by NUL, which process arguments cannot contain.

  Raises:
    UserError: an unknown option is close to one of the parser's, or spaces separate the values of an option.
  """
  _check_commas(parser, argv)
  is_key = re.compile(r"--(?:(?:no)?config|gin)\.").match
  options, unknown = parser.parse_known_args([x.replace(" ", "\0") if is_key(x) else x for x in argv])
  for name in (x.partition("=")[0] for x in unknown if x.startswith("--") and not is_key(x)):
    # A less similar option may be a key, which `override` checks.
    if near := difflib.get_close_matches(name, parser._option_string_actions, n=1, cutoff=0.85):
      raise UserError(f"unknown option {name}; did you mean {near[0]}?")
  return options, renamed_keys.current_arguments([x.replace("\0", " ") for x in unknown])


def _check_commas(parser: argparse.ArgumentParser, argv: list[str]) -> None:
  """Refuses values with spaces between them after an option whose metavar is a list with commas."""
  for number, argument in enumerate(argv):
    name, equals, value = argument.partition("=")
    action = parser._option_string_actions.get(name)
    if action is None or "," not in str(action.metavar) or (not equals and number + 1 == len(argv)):
      continue
    first, rest = (value, argv[number + 1 :]) if equals else (argv[number + 1], argv[number + 2 :])
    words = [first, *itertools.takewhile(lambda word: not word.startswith("--"), rest)]
    if len(words) > 1:
      values = ",".join(word.strip(",") for word in words)
      raise UserError(f"{name} {' '.join(words)}: commas separate values, without spaces. Give {name} {values}.")


def parse(
  parser: argparse.ArgumentParser, argv: list[str], *, prepare: Callable[[ConfigDict], None] | None = None
) -> tuple[argparse.Namespace, ConfigDict]:
  """Returns the parser's options, and the config with its overrides.

  Args:
    parser: see `config_parser`.
    argv: the command line.
    prepare: changes the config before its keys are overridden.

  Raises:
    UserError: see `gin_files.take`, `overridden` and `check_of_files`.
  """
  options, arguments = parse_known(parser, argv)
  options.gin = None
  if "gin_file" in options:
    options.gin, arguments = gin_files.take(options, arguments, argv)
  if options.gin is not None:
    options.config, config = options.gin.name, options.gin.config()
    for name in {"workdir", "checkpoint"} & set(vars(options)):
      setattr(options, name, getattr(options, name) or getattr(options.gin, name))
    if prepare is not None:
      prepare(config)
    config = override(config, arguments)
  elif options.config is None:
    if named := set(arguments) & set(config_names()):
      raise UserError(f"--config is missing; did you mean --config {min(named)}?")
    raise UserError(f"--config is missing. Give a .py file or a name (see --help):\n{families()}")
  else:
    config = overridden(options.config, arguments, prepare=prepare)
  check_of_files(config, arguments)
  if "distillation" in config:
    lazy_table.load("t2t.losses.distillation:check_teacher")(config)
  return options, config


def inherited(config: ConfigDict, parser: argparse.ArgumentParser, argv: list[str]) -> ConfigDict:
  """Returns the config with the model of config.init.checkpoint, if set; typed keys take precedence.

  Args:
    config: the result of `parse` for `argv`.
    parser, argv: see `parse`.

  Raises:
    UserError: the checkpoint cannot be read.
  """
  if not (config.init.use_model_config and config.init.checkpoint):
    return config
  from t2t.checkpoints import pretrained

  if config.init.checkpoint.startswith("hf://"):
    from t2t.training import hub_pins

    workdir = getattr(parse_known(parser, argv)[0], "workdir", None)
    hub_pins.adopt(config.to_dict(), gcs.absolute(workdir) if workdir else None)
  source = pretrained.read_source(config.init.checkpoint, where="config.init.checkpoint=")
  return parse(parser, argv, prepare=lambda config: pretrained.adopt(config, source))[1]


def parse_with_checkpoint(
  parser: argparse.ArgumentParser, argv: list[str], *, several: bool = False
) -> tuple[argparse.Namespace, ConfigDict, Any]:
  """Parses a command with --checkpoint and --workdir; returns options, config with the checkpoint's model, checkpoint.

  Joins the hosts first, because reading a checkpoint starts JAX.

  Args:
    parser: see `config_parser`.
    argv: the command line.
    several: whether --checkpoint takes a list with commas; `options.others` has a pair of config and checkpoint for
      each but the first.

  Raises:
    UserError: an option is missing; or see `hosts.start`, `pretrained.read_source` and `parse`.
  """
  hosts.add_options(parser)
  options, config = parse(parser, argv)
  for name in ("checkpoint", "workdir"):
    if not getattr(options, name):
      or_bound = gin_files.or_bound(options.gin, f"--{name}")
      raise UserError(f"--{name} is missing. Give --{name} PATH{or_bound}; see {parser.prog} --help.")
  paths = options.checkpoint.split(",") if several else [options.checkpoint]
  if not all(paths):
    raise UserError(f"--checkpoint {options.checkpoint}: a path is empty. Give --checkpoint A or --checkpoint A,B.")
  for name, path in [*(("checkpoint", path) for path in paths), ("workdir", options.workdir)]:
    gcs.check(path, where=f"--{name} ")
  gcs.check_folder(options.workdir, where="--workdir ")
  hosts.start(options, config.train)
  from t2t.checkpoints import inspect, pretrained

  weights = options.weights if "weights" in options else ""
  of_sources = []
  for path in paths:
    source = pretrained.read_source(path, weights=weights)
    if note := inspect.better(path, source.path, source.run):
      hosts.log_once(note)
    adopt = functools.partial(pretrained.adopt, source=source)
    of_sources.append((*parse(parser, argv, prepare=adopt), source))
  options, config, source = of_sources[0]
  options.others = [(other_config, other) for _, other_config, other in of_sources[1:]]
  return options, config, source
