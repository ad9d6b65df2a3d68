"""Generates the page of config keys from the data of `t2t train --help all`."""

from ml_collections import ConfigDict

from t2t.commands import keys_help
from t2t.configuration.schema import FIRST, comments, is_adapter

# Placeholder of the tables in config_keys.md.
MARK = "<!-- the tables of keys -->"

_ABOUT = {
  "data": "Text and its preprocessing.",
  "train": "The run: steps, batches, the loss.",
  "optimizer": "Parameter updates.",
  "eval": "Evaluation: metrics and their frequency.",
  "checkpoint": "Checkpoints and their frequency.",
  "nan_policy": "Handling of NaN, Inf and spikes in losses and gradients.",
  "init": "Initial parameters.",
  "mesh": "Devices along each axis.",
  "logging": "Logging beside metrics.jsonl: a tracker, texts and histograms.",
  "model": "The architecture and size of the model.",
}


def markdown() -> str:
  """Returns a table for each section: key, default, description."""
  helps, parts = comments(), []
  for section, values in keys_help.keys_by_section().items():
    parts.append(f"## {section}\n\n{_about(section)}\n\n| key | default | description |\n|---|---|---|")
    for key, value in values.items():
      name = f"config.{section}.{key}" + (".NAME" if isinstance(value, ConfigDict) else "")
      shown = "" if isinstance(value, ConfigDict) else keys_help.shown(value)
      parts.append(f"| `{name}` | {_code(shown)} | {_escaped(helps.get(f'{section}.{key}', ''))} |")
    parts.append("")
  parts.append(f"## stages\n\n| key | description |\n|---|---|\n| `config.stages` | {_escaped(helps['stages'])} |")
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
  """Escapes the text of a comment for a table cell; only `backquotes` keep their meaning."""
  parts = text.split("`") if text.count("`") % 2 == 0 else [text]
  return "`".join(part.replace("|", "\\|") if i % 2 else _plain(part) for i, part in enumerate(parts))


def _plain(text: str) -> str:
  for mark in "\\|*_<>[]`{}#$":
    text = text.replace(mark, f"\\{mark}")
  return text
