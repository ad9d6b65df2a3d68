"""What the parsers of the subcommands share: a config by name or path, its keys overridden, and all shown in --help."""

import argparse
from collections.abc import Callable
import pathlib
import re
import textwrap

from ml_collections import ConfigDict

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.config import config_names, load_config, override
from t2t.runtime import hosts
from t2t.storage import bucket


def _described_keys() -> str:
  """Every key with its default and its comment, read from the files that define them."""
  from t2t.configs import default
  from t2t.models import config as model_config

  lines = []
  # TransformerConfig comes first in its file, before the tables of sizes.
  fields = pathlib.Path(model_config.__file__).read_text().split("def __post_init__")[0]
  for match in re.finditer(r"^  (\w+): \w+(?: = (.+?))?(?:  # (.*))?$", fields, re.MULTILINE):
    lines.append((f"config.model.{match[1]}", match[2] or "...", match[3] or ""))
  text = pathlib.Path(default.__file__).read_text()
  for match in re.finditer(r"^  (config\.\w+\.\w+) = (.+?)(?:  # (.*))?$", text, re.MULTILINE):
    lines.append((match[1], match[2], match[3] or ""))
  indent = " " * 8
  return "\n".join(
    f"  --{key}={value}"
    + (f"\n{textwrap.fill(comment, 80, initial_indent=indent, subsequent_indent=indent)}" if comment else "")
    for key, value, comment in lines
  )


class _Help(argparse.Action):
  """Prints the parser's own help, then the shipped configs and every key."""

  def __call__(self, parser, namespace, values, option_string=None):
    del namespace, values, option_string
    print(parser.format_help())
    names = ", ".join(config_names())
    print("configs that come with t2t:")
    print(textwrap.fill(names, 80, initial_indent="  ", subsequent_indent="  "))
    print("\nkeys and their defaults (a config may set others):")
    print(_described_keys())
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
  parser.add_argument("-h", "--help", action=_Help, nargs=0, help="show this, the configs and every key")
  parser.add_argument("--config", help="name of a config that comes with t2t, or a .py file with get_config()")
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def parse(
  parser: argparse.ArgumentParser, argv: list[str], *, prepare: Callable[[ConfigDict], None] | None = None
) -> tuple[argparse.Namespace, ConfigDict]:
  """The parser's options, and the config with its overrides.

  Args:
    parser: see `config_parser`.
    argv: what the user typed.
    prepare: changes the config before its keys are overridden.

  Raises:
    UserError: see `load_config` and `override`.
  """
  options, rest = parser.parse_known_args(argv)
  if options.config is None:
    raise UserError(f"--config is missing; give a .py file or one of {', '.join(config_names())}")
  config = load_config(options.config)
  if prepare is not None:
    prepare(config)
  return options, override(config, rest)


def parse_with_checkpoint(
  parser: argparse.ArgumentParser, argv: list[str]
) -> tuple[argparse.Namespace, ConfigDict, pretrained.Source]:
  """The options of a command with --checkpoint and --workdir, its config with the checkpoint's model, the checkpoint.

  The hosts have joined when it returns: to read a checkpoint starts JAX.

  Args:
    parser: see `config_parser`.
    argv: what the user typed.

  Raises:
    UserError: an option is missing; or see `hosts.start`, `pretrained.find` and `parse`.
  """
  hosts.add_options(parser)
  options, config = parse(parser, argv)
  for name in ("checkpoint", "workdir"):
    if not getattr(options, name):
      raise UserError(f"--{name} is missing; see {parser.prog} --help")
    bucket.check(getattr(options, name), where=f"--{name} ")
  hosts.start(options, compiler_flags=config.train.xla_flags, programs=config.train.compilation_cache)
  source = pretrained.find(options.checkpoint)
  return *parse(parser, argv, prepare=lambda config: pretrained.adopt(config, source)), source
