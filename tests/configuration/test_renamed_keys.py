"""Earlier names of config keys: on the command line, in config files, in saved configs and in workdirs."""

import copy
import json
import pickle

import pytest

from t2t import UserError
from t2t.configs import default
from t2t.configuration import renamed_keys
from t2t.configuration.loading import load_config, override, records, saved_config
from t2t.configuration.schema import SECTIONS

# Earlier key -> an argument that differs from the default.
_VALUES = {
  "checkpoint.every": "7",
  "checkpoint.keep": "8",
  "data.files_may_change": "True",
  "data.glue_dir": "GLUE",
  "data.malformed": "0.25",
  "data.most_epochs": "2.0",
  "data.size": "tokens",
  "data.squad_dir": "SQuAD",
  "data.superglue_dir": "SuperGLUE",
  "eval.examples": "9",
  "eval.shots": "2",
  "eval.stop_by": "rte/accuracy",
  "init.by_piece": "True",
  "init.fresh": "head,encoder",
  "init.inherit": "True",
  "init.parts": "encoder,.=decoder",
  "init.rows": "embed/table",
  "mesh.order": "tensor:2x4",
  "model.initial_focus": "0.5",
  "model.t5_dropout": "False",
  "numbers.most_backs": "5",
  "numbers.most_in_a_row": "6",
  "numbers.most_skipped": "0.5",
  "numbers.not_finite": "back",
  "numbers.spike": "back",
  "numbers.spike_deviations": "4.0",
  "numbers.spike_window": "64",
  "optimizer.decay_share": "0.5",
  "optimizer.final_ratio": "0.5",
  "optimizer.paths": "embed: frozen",
  "optimizer.rise": "0.25",
  "optimizer.rise_ratio": "16.0",
  "train.chunk_tokens": "64",
  "train.hosts": "4",
  "train.stall_factor": "9.0",
}


@pytest.fixture(autouse=True)
def tell_again():
  """Resets the cache that prints each renamed key once per process."""
  renamed_keys._tell.cache_clear()


def typed(*arguments):
  return override(load_config("tiny"), list(arguments))


def current(key: str, value: str) -> tuple[str, str]:
  new = renamed_keys.current_key(key)
  return new, {"back": "rollback"}.get(value, value) if new.startswith("nan_policy.on_") else value


def value_of(config, key: str):
  for part in key.split("."):
    config = config[part]
  return config


def test_every_renamed_key_has_a_value_here():
  assert set(_VALUES) == set(renamed_keys.RENAMED) - {"data.folders"}
  declared = {f"{section}.{key}" for section, cls in SECTIONS.items() for key in cls.__dataclass_fields__}
  assert {".".join(new.split(".")[:2]) for new in renamed_keys.RENAMED.values()} <= declared
  assert not declared & renamed_keys.RENAMED.keys()


@pytest.mark.parametrize(("old", "value"), _VALUES.items())
def test_an_earlier_key_that_is_typed(old, value, capfd):
  """An earlier key sets the current key, which the message names."""
  new, present = current(old, value)
  before = records(typed())
  config = typed(f"--config.{old}={value}")
  assert config == typed(f"--config.{new}={present}")
  assert f"config.{old} is now config.{new}" in capfd.readouterr().err
  assert config != load_config("tiny") and records(load_config("tiny")) == before


# Config files of these versions already had the mapping.
_IN_FILES = {old: value for old, value in _VALUES.items() if not old.endswith("_dir")}


@pytest.mark.parametrize(("old", "value"), _IN_FILES.items())
def test_an_earlier_key_in_a_config_file(old, value, tmp_path, capfd):
  """An earlier key can be read and set as an attribute of `default.get_config()`."""
  new, present = current(old, value)
  expected = typed(f"--config.{new}={present}")
  (tmp_path / "mine.py").write_text(
    f"""
from t2t.configs import tiny
def get_config():
  config = tiny.get_config()
  config.{old} = {value_of(expected, new) if present == value else value!r}
  assert config.{old} == config.{new}
  return config
""".replace(f"= {value_of(expected, new)}\n", f"= {value_of(expected, new)!r}\n")
  )
  assert load_config(str(tmp_path / "mine.py")) == expected
  told = capfd.readouterr().err
  assert f"config.{old.partition('.')[0]} is now" in told or f"config.{new.rpartition('.')[0]}." in told, told


def test_a_config_file_updates_a_section_by_its_earlier_name():
  config = default.get_config()
  config.update({"numbers": {"not_finite": "skip"}, "checkpoint": {"every": 5}})
  config.update_from_flattened_dict({"numbers.spike_window": 9})
  assert (config.nan_policy.on_nonfinite, config.nan_policy.spike_window) == ("skip", 9)
  assert config.checkpoint.save_interval_steps == 5 and "numbers" not in config


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config))])
def test_a_copy_reads_earlier_names(copied):
  """`t2t.train` copies a config; Beam's processes receive a pickled one."""
  config = copied(default.get_config())
  config.checkpoint.every = 5
  assert config.checkpoint.save_interval_steps == 5 and config.is_locked


@pytest.mark.parametrize(("old", "value"), _VALUES.items())
def test_an_earlier_key_in_a_saved_config(old, value):
  """Configs of checkpoints and config.json, with JSON values."""
  new, present = current(old, value)
  expected = records(typed(f"--config.{new}={present}"))
  saved = json.loads(json.dumps(expected.to_dict()))
  section, key = old.split(".")
  entry = new.split(".")
  values = saved[entry[0]]
  if len(entry) == 3:
    assert values.pop("benchmark_dirs") == {entry[2]: value}
    moved = value
  else:
    moved = values.pop(entry[1])
  saved.setdefault(section, {})[key] = value if present != value else moved
  assert records(saved_config(saved)) == expected


def test_stages_and_further_checkpoints_have_earlier_keys(capfd):
  config = default.get_config()
  config.stages = ({"name": "short", "share": 0.75, "optimizer.final_ratio": 0.5}, {"name": "long"})
  config.init.others = {"teacher": {"checkpoint": "teacher", "parts": (".=teacher",), "frozen": True}}
  parsed = records(config)
  assert parsed.stages[0].fraction == 0.75 and parsed.stages[0].changes == {"optimizer.end_lr_fraction": 0.5}
  assert parsed.init.others["teacher"].rename == (".=teacher",)
  told = capfd.readouterr().err
  assert "config.stages[0].share is now config.stages[0].fraction" in told
  assert "config.init.others.teacher.parts is now config.init.others.teacher.rename" in told
  assert config.stages[0]["share"] == 0.75, "the user's own config stays as it is"
  stages = override(default.get_config(), ["--config.stages={'share': 0.75}, {}"])
  assert records(stages).stages[0].fraction == 0.75
  one = override(default.get_config(), ["--config.init.others.a.checkpoint=x", "--config.init.others.a.parts=encoder"])
  assert records(one).init.others["a"].rename == ("encoder",)


def test_a_key_that_never_was_names_the_present_ones():
  with pytest.raises(UserError, match="checkpoint.intervals: no such key"):
    typed("--config.checkpoint.intervals=3")


def test_a_value_that_follows_its_key(capfd):
  """config_flags also accepts --config.KEY VALUE."""
  arguments = ["--config.numbers.not_finite", "back", "--config.eval.method=write", "--workdir", "back"]
  assert renamed_keys.current_arguments(arguments) == [
    *("--config.nan_policy.on_nonfinite", "rollback", "--config.eval.method=generate", "--workdir", "back")
  ]
  assert "config.eval.method=write is now config.eval.method=generate" in capfd.readouterr().err


def test_a_section_that_a_config_file_replaces_reads_earlier_keys():
  config = default.get_config()
  with config.unlocked():
    config.checkpoint = {"every": 5, "keep": 2, "retry_seconds": 1.0}
  assert (config.checkpoint.save_interval_steps, config.checkpoint.max_to_keep) == (5, 2)
