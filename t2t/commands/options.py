"""What the parsers of the subcommands share: a config by name or path, its keys overridden, and all shown in --help."""

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
  """A key's value as one would type it."""
  if isinstance(value, tuple):
    return ",".join(map(str, value))
  return f"{value:_}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def keys_by_section() -> dict[str, dict[str, Any]]:
  """Section -> key -> its default; those last that a config has only where they are used."""
  config = default.get_config()
  names = lambda section: [x.name for x in dataclasses.fields(SECTIONS[section]) if x.name in config[section]]
  sections = {section: {name: config[section][name] for name in names(section)} for section in FIRST}
  return sections | {section: dataclasses.asdict(cls()) for section, cls in OPTIONAL.items()}


def _described_keys(selected: str) -> Iterator[str]:
  """Lines on the keys of a section, on all, or on those that come first (""), with their defaults."""
  help_texts = comments()
  for section, values in keys_by_section().items():
    first = FIRST.get(section, ())
    if section in OPTIONAL and selected in ("all", section):
      when = "the config or one of these keys turns it on" if is_adapter(section) else f"config.train.loss={section}"
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
  """Prints the parser's own help, then the shipped configs and the keys that are asked for."""

  def __call__(self, parser, namespace, values, option_string=None):
    del namespace, option_string
    selected = values or ""
    sections = keys_by_section()
    known = [*sections, "stages"]
    if selected not in ("", "all", *known):
      raise UserError(f"--help {selected}: give all, or a section: {', '.join(known)}{did_you_mean(selected, known)}")
    print(parser.format_help())
    if not selected:
      names = ", ".join(config_names())
      print("configs that come with t2t:")
      print(textwrap.fill(names, 80, initial_indent="  ", subsequent_indent="  "))
    print("\nkeys and their defaults (a config may set others):")
    print("\n".join(_described_keys(selected)))
    if not selected:
      number = sum(map(len, sections.values())) - sum(map(len, FIRST.values()))
      print("\n" + textwrap.fill(f"and {number} more: --help all, or --help with a section: {', '.join(known)}", 80))
    parser.exit()


def _wrapped(paragraph: str) -> str:
  """At most 80 columns; what is indented is left as it is."""
  return paragraph if paragraph.startswith(" ") else textwrap.fill(paragraph, 80)


def config_parser(prog: str, description: str, *, epilog: str = "") -> argparse.ArgumentParser:
  """A parser with `--config` and a `--help` that lists the keys; `parse` reads the command line with it."""
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
    help="show this, configs, and keys: the first, or all",
  )
  parser.add_argument("--config", help="name of a config that comes with t2t, or a .py file with get_config()")
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def parse_known(parser: argparse.ArgumentParser, argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
  """The parser's options, and what it does not know, keys of the config among it, in the order of the command line.

  argparse takes what has a space in it for a positional, even if it begins with two dashes: a key's value is hidden
  from it.  No argument of a process has a NUL of its own.

  Raises:
    UserError: an option that is nearly one of the parser's.
  """
  is_key = re.compile(r"--(?:(?:no)?config|gin)\.").match
  options, unknown = parser.parse_known_args([x.replace(" ", "\0") if is_key(x) else x for x in argv])
  for name in (x.partition("=")[0] for x in unknown if x.startswith("--") and not is_key(x)):
    # What is but alike may be a key, which `override` knows.
    if near := difflib.get_close_matches(name, parser._option_string_actions, n=1, cutoff=0.85):
      raise UserError(f"unknown option {name}; did you mean {near[0]}?")
  return options, renamed_keys.current_arguments([x.replace("\0", " ") for x in unknown])


def parse(
  parser: argparse.ArgumentParser, argv: list[str], *, prepare: Callable[[ConfigDict], None] | None = None
) -> tuple[argparse.Namespace, ConfigDict]:
  """The parser's options, and the config with its overrides.

  Args:
    parser: see `config_parser`.
    argv: what the user typed.
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
    raise UserError(f"--config is missing; a .py file, or one of these (see --help):\n{families()}")
  else:
    config = overridden(options.config, arguments, prepare=prepare)
  check_of_files(config, arguments)
  return options, config


def inherited(config: ConfigDict, parser: argparse.ArgumentParser, argv: list[str]) -> ConfigDict:
  """The config with the model of its config.init.checkpoint, if it has one; what is typed still has the last word.

  Args:
    config: what `parse` made of `argv`.
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
  """The options of a command with --checkpoint and --workdir, its config with the checkpoint's model, the checkpoint.

  The hosts have joined when it returns: to read a checkpoint starts JAX.

  Args:
    parser: see `config_parser`.
    argv: what the user typed.

  Raises:
    UserError: an option is missing; or see `hosts.start`, `pretrained.read_source` and `parse`.
  """
  hosts.add_options(parser)
  options, config = parse(parser, argv)
  for name in ("checkpoint", "workdir"):
    if not getattr(options, name):
      or_bound = gin_files.or_bound(options.gin, f"--{name}")
      raise UserError(f"--{name} is missing: give --{name} PATH{or_bound}; see {parser.prog} --help")
    gcs.check(getattr(options, name), where=f"--{name} ")
  gcs.check_folder(options.workdir, where="--workdir ")
  hosts.start(options, config.train)
  from t2t.checkpoints import inspect, pretrained

  source = pretrained.read_source(options.checkpoint)
  if note := inspect.better(options.checkpoint, source.path, source.run):
    hosts.log_once(note)
  return *parse(parser, argv, prepare=lambda config: pretrained.adopt(config, source)), source
