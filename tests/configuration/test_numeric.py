"""NaN, infinite and meaningless numbers are refused by the name of their option or key."""

import dataclasses
import pathlib
import re

import pytest

import t2t
from t2t import UserError
from t2t import __main__ as command
from t2t.commands import keys_help
from t2t.configs import default
from t2t.configuration.loading import override, records
from t2t.configuration.schema import OPTIONAL, SECTIONS
from t2t.inference import decoding, text_generation
from t2t.models.config import TransformerConfig

NO_NUMBERS = ("nan", "inf", "-inf", "1e400")

# Option -> its command, with the arguments that the parser needs first.
OPTIONS = {
  "length_penalty": ["infer", "--checkpoint", "c", "--beam", "2"],
  "temperature": ["infer", "--checkpoint", "c"],
  "top_p": ["infer", "--checkpoint", "c"],
  "alpha": ["vocab", "train", "en=a.txt", "--output", "o", "--type", "sentencepiece"],
  "character_coverage": ["vocab", "train", "--input", "a.txt", "--output", "o", "--type", "sentencepiece"],
  "budget": ["plan", "--config", "tiny"],
  "tokens": ["plan", "--config", "tiny"],
  "price": ["plan", "--config", "tiny", "--tokens", "1e9"],
  "poll": ["launch", "tpu-vm", "--name", "a"],
}

# Finite but meaningless values.
MEANINGLESS = {
  ("--seed", "-1"): ["infer", "--checkpoint", "c"],
  ("--seed", "4294967296"): ["infer", "--checkpoint", "c"],
  ("--character_coverage", "0"): OPTIONS["character_coverage"],
  ("--size", "0"): OPTIONS["character_coverage"],
  ("--max_sentences", "-5"): OPTIONS["character_coverage"],
  ("--budget", "0"): OPTIONS["budget"],
  ("--tokens", "-1e9"): OPTIONS["budget"],
  ("--slices", "0"): OPTIONS["budget"],
  ("--max_compiles", "true"): OPTIONS["budget"],
  ("--join_seconds", "0"): ["train", "--config", "tiny", "--workdir", "w"],
  ("--lost_seconds", "-1"): ["train", "--config", "tiny", "--workdir", "w"],
  ("--examples", "-1"): ["tasks", "show", "docs_match"],
  ("--poll", "-1"): OPTIONS["poll"],
  ("--worker", "-1"): OPTIONS["poll"],
  ("--seed", "2.5"): ["fisher", "r", "--output", "o"],
}


def refused(capsys, argv) -> str:
  with pytest.raises(SystemExit) as ended:
    command.main(argv)
  assert ended.value.code == 2
  return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("value", NO_NUMBERS)
def test_an_option_that_is_no_number(name, value, capsys):
  error = refused(capsys, [*OPTIONS[name], f"--{name}={value}"])
  assert f"argument --{name}: {value} is not valid. Give a finite number" in error


@pytest.mark.parametrize(("option", "value"), MEANINGLESS)
def test_an_option_that_means_nothing(option, value, capsys):
  error = refused(capsys, [*MEANINGLESS[option, value], f"{option}={value}"])
  pattern = rf"argument {option}: '?{re.escape(value)}'? is not valid. Give a (whole|finite) number"
  assert re.search(pattern, error), error


def test_every_option_with_a_fraction_is_checked():
  """No command, launcher or benchmark has an option with type=float."""
  root = pathlib.Path(t2t.__file__).parents[1]
  files = [*root.glob("t2t/commands/*.py"), *root.glob("t2t/runtime/*.py"), *root.glob("launch/*.py")]
  files += root.glob("benchmarks/*.py")
  assert len(files) > 40
  assert not [str(path) for path in files if re.search(r"\btype=float\b", path.read_text())]


def _number_keys():
  """Yields numeric keys with their types."""
  sections = SECTIONS | dict(OPTIONAL)
  for section, values in keys_help.keys_by_section().items():
    kinds = {field.name: field.type for field in dataclasses.fields(sections[section])}
    for key, value in values.items():
      if kinds.get(key) in (int, float) and isinstance(value, int | float) and not isinstance(value, bool):
        yield f"{section}.{key}", kinds[key]


def test_every_key_that_is_no_number():
  """NaN and infinities in floats, also in stages, and bools in integers."""
  keys = dict(_number_keys())
  assert len(keys) > 80 and sum(kind is float for kind in keys.values()) > 25
  for key, kind in keys.items():
    section, name = key.split(".")
    # a ConfigDict converts True in a float to 1.0
    for value in (float("nan"), float("inf")) if kind is float else (True,):
      config = default.get_config()
      with config.unlocked(), config.ignore_type():
        config[section] = config.get(section) or {}
        config[section][name] = value
      with pytest.raises(UserError, match=rf"config\.{re.escape(key)}={value}"):
        records(config)
  config = override(default.get_config(), ["--config.stages={'name': 'a', 'share': 1.0, 'train.z_loss': 1e400}"])
  with pytest.raises(UserError, match=r"config\.stages\[0\]\.train\.z_loss=inf must be a finite number"):
    records(config)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "4", None], ids=str)
def test_how_text_is_written(value):
  """Decoding arguments are checked independently of each other."""
  for field in dataclasses.fields(decoding.DecodeConfig):
    if field.type in (int, float):
      with pytest.raises(UserError, match=f"^{field.name}={value} must be a (whole|finite) number"):
        decoding.DecodeConfig(**({"max_length": 8} | {field.name: value}))
  for name in ("max_length", "min_length", "beam", "length_penalty", "temperature", "top_p", "top_k"):
    if value is not None:
      with pytest.raises(UserError, match=f"{name}={value} must be a (whole|finite) number"):
        text_generation.decode_config(**({"max_length": 8} | {name: value}))
  with pytest.raises(UserError, match="length_penalty=11 must be a finite number, -10 to 10"):
    text_generation.decode_config(max_length=8, beam=2, length_penalty=11)


def test_a_models_numbers_are_checked_already():
  with pytest.raises(UserError, match=r"config\.model\.dropout_rate='nan'"):
    TransformerConfig(**(dataclasses.asdict(records(default.get_config()).model) | {"dropout_rate": float("nan")}))
