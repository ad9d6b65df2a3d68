"""The page of config keys, from what `t2t train --help all` prints."""

from ml_collections import ConfigDict

from t2t.commands import options
from t2t.configuration.schema import FIRST, comments, is_adapter

# In config_keys.md: where the tables stand.
MARK = "<!-- the tables of keys -->"

_ABOUT = {
  "data": "Text, and what is made of it.",
  "train": "The run: steps, batches, the loss.",
  "optimizer": "How parameters move.",
  "eval": "What is measured, and when.",
  "checkpoint": "What is saved.",
  "nan_policy": "Losses and gradients that are not finite, or jump.",
  "init": "Where training starts.",
  "mesh": "Devices along each axis.",
  "logging": "What is told beside metrics.jsonl: a tracker, texts and histograms.",
  "model": "The shape of the model.",
}


def markdown() -> str:
  """A table for each section: key, default, what it says."""
  helps, parts = comments(), []
  for section, values in options.keys_by_section().items():
    parts.append(f"## {section}\n\n{_about(section)}\n\n| key | default | what it is |\n|---|---|---|")
    for key, value in values.items():
      name = f"config.{section}.{key}" + (".NAME" if isinstance(value, ConfigDict) else "")
      shown = "" if isinstance(value, ConfigDict) else options.shown(value)
      parts.append(f"| `{name}` | {_code(shown)} | {_escaped(helps.get(f'{section}.{key}', ''))} |")
    parts.append("")
  parts.append(f"## stages\n\n| key | what it is |\n|---|---|\n| `config.stages` | {_escaped(helps['stages'])} |")
  return "\n".join(parts)


def _about(section: str) -> str:
  if section in FIRST:
    return _ABOUT[section]
  return "Off, unless " + (
    "the config or one of these keys turns it on." if is_adapter(section) else f"`config.train.loss={section}`."
  )


def _code(text: str) -> str:
  return f"`{text}`".replace("|", "\\|") if text else "empty"


def _escaped(text: str) -> str:
  """Text of a comment in a cell of a table: nothing in it is a mark but what stands in `backquotes`."""
  parts = text.split("`") if text.count("`") % 2 == 0 else [text]
  return "`".join(part.replace("|", "\\|") if i % 2 else _plain(part) for i, part in enumerate(parts))


def _plain(text: str) -> str:
  for mark in "\\|*_<>[]`{}#$":
    text = text.replace(mark, f"\\{mark}")
  return text
