"""The `--help` of commands with a config: the configs, and the keys with their defaults."""

import argparse
from collections.abc import Iterator
import dataclasses
import textwrap
from typing import Any

from ml_collections import ConfigDict

from t2t import UserError, did_you_mean
from t2t.configs import default
from t2t.configuration.loading import config_names
from t2t.configuration.schema import FIRST, OPTIONAL, PRUNING, SECTIONS, comments, is_adapter

# Optional section -> what enables it, if that is not only the loss of its name.
_ENABLED_BY = {
  "distillation": "config.distillation.teacher or .logits is set, or config.train.loss=distillation",
  "early_exit": "config.train.loss=early_exit, which config.model.exits=True sets",
  **dict.fromkeys(PRUNING, "a rule of config.optimizer.param_groups prunes"),
}


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
      yield from textwrap.wrap(f"{section}: off, unless {_ENABLED_BY.get(section, when)}:", 80, **_margins(2))
    for key in values if selected in ("all", section) else () if selected else first:
      mapping = isinstance(values[key], ConfigDict)
      yield f"  --config.{section}.{key}" + (".NAME=" if mapping else f"={shown(values[key])}")
      yield from _indented(help_texts.get(f"{section}.{key}", ""))
  if selected in ("all", "stages"):
    yield "  --config.stages="
    yield from _indented(help_texts["stages"])


def _indented(comment: str) -> list[str]:
  return textwrap.wrap(comment, 80, **_margins(8))


def _margins(width: int) -> dict[str, Any]:
  return {"initial_indent": " " * width, "subsequent_indent": " " * width}


def show(parser: argparse.ArgumentParser, selected: str, *, brief: bool) -> None:
  """Prints the selected keys, or the parser's help with the shipped configs and the main keys, and exits.

  Args:
    selected: a section, "all", or "" for the main keys.
    brief: whether "" prints only where to find the keys.

  Raises:
    UserError: the section is unknown.
  """
  sections = keys_by_section()
  known = [*sections, "stages"]
  if selected not in ("", "all", *known):
    raise UserError(
      f"--help {selected}: unknown section. Give --help all, or one of: {', '.join(known)}"
      f"{did_you_mean(selected, known)}"
    )
  if not selected:
    print(parser.format_help())
  if not selected and brief:
    where = f"`t2t train --help` lists the configs and the main keys, `{parser.prog} --help SECTION` the keys of"
    print(textwrap.fill(f"{where} {', '.join(known)}.", 80))
    parser.exit()
  if not selected:
    names = ", ".join(config_names())
    print("configs shipped with t2t:")
    print(textwrap.fill(names, 80, **_margins(2)) + "\n")
  print("keys and their defaults (a config may set others):")
  print("\n".join(_described_keys(selected)))
  if not selected:
    number = sum(map(len, sections.values())) - sum(map(len, FIRST.values()))
    print("\n" + textwrap.fill(f"and {number} more: --help all, or --help with a section: {', '.join(known)}", 80))
  parser.exit()
