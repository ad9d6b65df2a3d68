"""Shared parsers of the subcommands: a config by name or path, overrides of its keys, and a --help with the keys."""

import argparse
from collections.abc import Callable, Iterator
import dataclasses
import difflib
import re
import textwrap
from typing import Any

from ml_collections import ConfigDict

from t2t import UserError, did_you_mean
from t2t.commands import gin_files
from t2t.configs import default
from t2t.configuration import renamed_keys
from t2t.configuration.loading import check_of_files, config_names, families, overridden, override
from t2t.configuration.schema import FIRST, OPTIONAL, SECTIONS, comments, is_adapter
from t2t.runtime import hosts
from t2t.storage import gcs


def shown(value: Any) -> str:
  """Formats the value of a key as it is typed."""
  if isinstance(value, tuple):
    return ",".join(map(str, value))
  return f"{value:_}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def keys_by_section() -> dict[str, dict[str, Any]]:
  """Returns section -> key -> default; optional sections come last."""
  config = default.get_config()
  names = lambda section: [x.name for x in dataclasses.fields(SECTIONS[section]) if x.name in config[section]]
  sections = {section: {name: config[section][name] for name in names(section)} for section in FIRST}
  return sections | {section: dataclasses.asdict(cls()) for section, cls in OPTIONAL.items()}


def _described_keys(selected: str) -> Iterator[str]:
  """Yields help lines for the keys of a section, of all sections, or for the first keys (""), with defaults."""
  help_texts = comments()
  for section, values in keys_by_section().items():
    first = FIRST.get(section, ())
    if section in OPTIONAL and selected in ("all", section):
      when = "enabled by the config or by one of these keys" if is_adapter(section) else f"config.train.loss={section}"
      yield f"  {section}: off, unless {when}:"
    for key in values if selected in ("all", section) else () if selected else first:
      mapping = isinstance(values[key], ConfigDict)
      yield f"  --config.{section}.{key}" + (".NAME=" if mapping else f"={shown(values[key])}")
      yield from _indented(help_texts.get(f"{section}.{key}", ""))
  if selected in ("all", "stages"):
    yield "  --config.stages="
    yield from _indented(help_texts["stages"])


def _indented(comment: str) -> list[str]:
  return textwrap.wrap(comment, 80, initial_indent=" " * 8, subsequent_indent=" " * 8)


class _Help(argparse.Action):
  """Prints the parser's help, then the shipped configs and the selected keys."""

  def __call__(self, parser, namespace, values, option_string=None):
    del namespace, option_string
    selected = values or ""
    sections = keys_by_section()
    known = [*sections, "stages"]
    if selected not in ("", "all", *known):
      raise UserError(
        f"--help {selected}: unknown section. Give --help all, or one of: {', '.join(known)}"
        f"{did_you_mean(selected, known)}"
      )
    print(parser.format_help())
    if not selected:
      names = ", ".join(config_names())
      print("configs shipped with t2t:")
      print(textwrap.fill(names, 80, initial_indent="  ", subsequent_indent="  "))
    print("\nkeys and their defaults (a config may set others):")
    print("\n".join(_described_keys(selected)))
    if not selected:
      number = sum(map(len, sections.values())) - sum(map(len, FIRST.values()))
      print("\n" + textwrap.fill(f"and {number} more: --help all, or --help with a section: {', '.join(known)}", 80))
    parser.exit()


def _wrapped(paragraph: str) -> str:
  """Wraps a paragraph at 80 columns, unless it is indented."""
  return paragraph if paragraph.startswith(" ") else textwrap.fill(paragraph, 80)


def config_parser(prog: str, description: str, *, epilog: str = "") -> argparse.ArgumentParser:
  """Returns a parser with `--config` and a `--help` that lists the keys; use it with `parse`."""
  parser = argparse.ArgumentParser(
    prog=prog,
    description="\n\n".join(_wrapped(paragraph) for paragraph in description.split("\n\n")),
    epilog=epilog,
    usage=f"{prog} --config NAME [options] [--config.SECTION.KEY=VALUE ...]",
    add_help=False,
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "-h",
    "--help",
    action=_Help,
    nargs="?",
    metavar="all|SECTION",
    help="show this help, the configs, and the main keys, or all keys or a section",
  )
  parser.add_argument("--config", help="name of a config shipped with t2t, or a .py file with get_config()")
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def parse_known(parser: argparse.ArgumentParser, argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
  """Returns the parser's options, and the unknown arguments, including config keys, in command-line order.

  argparse takes an argument with a space for a positional, even after two dashes. Spaces in values of keys are
  therefore replaced by NUL, which process arguments cannot contain.

  Raises:
    UserError: an unknown option is close to one of the parser's.
  """
  is_key = re.compile(r"--(?:(?:no)?config|gin)\.").match
  options, unknown = parser.parse_known_args([x.replace(" ", "\0") if is_key(x) else x for x in argv])
  for name in (x.partition("=")[0] for x in unknown if x.startswith("--") and not is_key(x)):
    # A less similar option may be a key, which `override` checks.
    if near := difflib.get_close_matches(name, parser._option_string_actions, n=1, cutoff=0.85):
      raise UserError(f"unknown option {name}; did you mean {near[0]}?")
  return options, renamed_keys.current_arguments([x.replace("\0", " ") for x in unknown])


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

  source = pretrained.read_source(config.init.checkpoint, where="config.init.checkpoint=")
  return parse(parser, argv, prepare=lambda config: pretrained.adopt(config, source))[1]


def parse_with_checkpoint(
  parser: argparse.ArgumentParser, argv: list[str]
) -> tuple[argparse.Namespace, ConfigDict, Any]:
  """Parses a command with --checkpoint and --workdir; returns the options, the config with the checkpoint's model, and
  the checkpoint.

  Joins the hosts first, because reading a checkpoint starts JAX.

  Args:
    parser: see `config_parser`.
    argv: the command line.

  Raises:
    UserError: an option is missing; or see `hosts.start`, `pretrained.read_source` and `parse`.
  """
  hosts.add_options(parser)
  options, config = parse(parser, argv)
  for name in ("checkpoint", "workdir"):
    if not getattr(options, name):
      or_bound = gin_files.or_bound(options.gin, f"--{name}")
      raise UserError(f"--{name} is missing. Give --{name} PATH{or_bound}; see {parser.prog} --help.")
    gcs.check(getattr(options, name), where=f"--{name} ")
  gcs.check_folder(options.workdir, where="--workdir ")
  hosts.start(options, config.train)
  from t2t.checkpoints import inspect, pretrained

  source = pretrained.read_source(options.checkpoint)
  if note := inspect.better(options.checkpoint, source.path, source.run):
    hosts.log_once(note)
  return *parse(parser, argv, prepare=lambda config: pretrained.adopt(config, source)), source
