"""docs/gin.md lists exactly the converted, reported and refused bindings of T5X's gin files."""

import re

import folders

from t2t.configuration.loading import load_config
from t2t.convert.gin import param_map as gin_names
from t2t.convert.gin import t5x_defaults as standard

ROOT = folders.ROOT
PAGE = (ROOT / "docs" / "gin.md").read_text()


def plain(name: str) -> str:
  return name.rpartition("/")[2]


def taken() -> list[str]:
  """Returns a row for each function: its parameters, and their config keys."""
  found: dict[str, dict[str, str]] = {}
  keys = {**gin_names.SAME, **gin_names.ADAFACTOR, **gin_names.ADAMW, **gin_names.SAME_OF_EVAL}
  words = {plain(name): f"`{key}`" for name, key in keys.items()} | gin_names.TAKEN
  for name, meaning in words.items():
    function, _, parameter = name.partition(".")
    found.setdefault(function, {})[parameter] = meaning
  return [
    f"| `{function}` | " + "; ".join(f"`{name}`: {meaning}" for name, meaning in parameters.items()) + " |"
    for function, parameters in sorted(found.items())
  ]


def told() -> list[str]:
  """Returns a row for each reason."""
  found: dict[str, list[str]] = {}
  for name, why in gin_names.TOLD.items():
    found.setdefault(why, []).append(f"`{name}`")
  return [f"| {', '.join(names)} | {why} |" for why, names in found.items()]


def refused() -> list[str]:
  """Returns a row for each parameter, with the values that match t2t's behavior."""
  found = []
  for name, why in gin_names.REFUSED.items():
    harmless = gin_names.HARMLESS.get(name) or ()
    unless = f", unless {' or '.join(f'`{value!r}`' for value in harmless)}" if harmless else ""
    found.append(f"| `{name}`{unless} | {why} |")
  return found


def mixtures() -> list[str]:
  return [f"| `{theirs}` | `{ours}` of `{module}` |" for theirs, (ours, module) in gin_names.MIXTURES.items()]


def rows(heading: str) -> list[str]:
  """Returns the rows of the table under a heading, without its first two lines."""
  section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
  return [line for line in section.splitlines() if line.startswith("|")][2:]


def test_what_is_taken():
  assert rows("Converted bindings") == taken()


def test_what_is_told():
  assert rows("Bindings without effect") == told()


def test_what_is_refused():
  assert rows("Refused bindings") == refused()


def test_the_mixtures():
  assert rows("Mixtures") == mixtures()


def test_every_key_that_is_named_is_there():
  """Each `model.embed_dim` in a row is a config key."""
  config = load_config("t5_1_1_small")
  named = re.findall(r"`((?:model|data|train|optimizer|eval|checkpoint|init|mesh)\.\w+)`", "\n".join(taken()))
  assert len(named) > 50
  for key in named:
    section, field = key.split(".")
    assert field in config[section], key


def test_files_that_are_known_are_named():
  """Each file in the page is built in, and each family has one."""
  named = re.findall(r"`((?:t5x|flaxformer)/[\w/]+\.gin)`", PAGE)
  assert len(named) > 8
  for path in named:
    assert standard.standard(path), path


def test_no_parameter_has_two_answers():
  """Reported bindings are neither converted nor refused."""
  told_of, taken_of = set(gin_names.TOLD), set(gin_names.TAKEN) | set(map(plain, gin_names.SAME))
  assert not told_of & taken_of - set(gin_names.WIRING) - {"DatasetConfig.seed"}
  assert not told_of & set(gin_names.REFUSED)
