"""Files written by earlier versions of t2t can be read.

tests/saved/runs.tar.gz has two runs of four steps from commit 6c73112, with the checkpoint of step 2: T5 1.1, and BERT
with an unused pooler. Their metrics.jsonl go to step 4. The third, a small GPT-2, is from commit fbd0cb7, the last
before config keys were renamed.
"""

import json
import pathlib
import tarfile

import folders
import numpy as np
import pytest

from t2t import __main__ as command
from t2t import sharding
from t2t.checkpoints import pretrained
from t2t.configuration import renamed_keys
from t2t.configuration.loading import load_config, records

SAVED = folders.TESTS / "saved"
_CONFIGS = {"t5": "t5_1_1_small", "bert": "bert_base"}


# Options of the third run, with their former keys.
_EARLIER_KEYS = (
  "--config.data.files=text.txt",
  "--config.data.vocabulary=bytes",
  "--config.data.inputs_length=32",
  "--config.data.targets_length=32",
  "--config.data.malformed=0.1",
  "--config.data.most_epochs=50",
  "--config.data.files_may_change=True",
  "--config.model.vocab_size=384",
  "--config.model.embed_dim=8",
  "--config.model.num_heads=2",
  "--config.model.head_dim=4",
  "--config.model.mlp_dim=8",
  "--config.model.num_decoder_layers=1",
  "--config.model.dtype=float32",
  "--config.train.batch_size=8",
  "--config.train.steps=4",
  "--config.train.log_every=1",
  "--config.train.chunk_tokens=64",
  "--config.train.stall_factor=30",
  "--config.checkpoint.every=2",
  "--config.checkpoint.keep=4",
  "--config.eval.batches=1",
  "--config.eval.every=2",
  "--config.eval.examples=1",
  "--config.optimizer.schedule=wsd",
  "--config.optimizer.warmup_steps=0",
  "--config.optimizer.decay_share=0.5",
  "--config.optimizer.final_ratio=0.1",
  "--config.optimizer.paths=embed: rate=0.5",
  "--config.numbers.not_finite=back",
  "--config.numbers.most_backs=2",
  "--config.numbers.spike_deviations=9",
  "--config.numbers.spike_window=2",
  "--config.numbers.spike=back",
  '--config.stages={"name": "a", "share": 0.5}, {"name": "b", "optimizer.final_ratio": 0.2}',
)


@pytest.fixture
def runs(tmp_path, monkeypatch) -> pathlib.Path:
  """Extracts the runs; returns the folder that they were started from."""
  with tarfile.open(SAVED / "runs.tar.gz") as archive:
    archive.extractall(tmp_path, filter="data")
  monkeypatch.chdir(tmp_path)
  return tmp_path


def options(config: dict, prefix: str = "--config") -> list[str]:
  """Returns the options of a config.json that a user chose."""
  chosen = {
    "data": ("files", "objective", "vocabulary", "inputs_length", "targets_length"),
    "model": (
      *("vocab_size", "embed_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers", "num_decoder_layers"),
      *("max_length", "dtype"),
    ),
    "train": ("batch_size", "steps"),
    "checkpoint": ("every",),
    "eval": ("batches", "every", "examples"),
    "optimizer": ("warmup_steps",),
  }
  return [f"{prefix}.{section}.{key}={config[section][key]}" for section, keys in chosen.items() for key in keys]


def losses(path: pathlib.Path) -> dict[tuple[int, str], float]:
  """Returns (step, name) -> loss."""
  rows = map(json.loads, path.read_text().splitlines())
  return {(row["step"], name): value for row in rows for name, value in row.items() if name.endswith("/loss")}


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("name", _CONFIGS)
def test_a_run_goes_on(name, runs):
  """The same command repeats the original steps on the same data."""
  metrics = runs / name / "metrics.jsonl"
  expected = losses(metrics)
  rows = metrics.read_text().splitlines(keepends=True)
  metrics.write_text("".join(row for row in rows if json.loads(row)["step"] <= 2))
  config = json.loads((runs / name / "config.json").read_text())
  argv = ["train", "--config", _CONFIGS[name], *options(config), "--workdir", str(runs / name)]
  assert command.main([*argv, "--config.stages=()"]) == 0  # BERT's config has gained stages since
  found = losses(metrics)
  assert {step for step, _ in found} == {1, 2, 3, 4}
  assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_a_run_with_earlier_keys_goes_on(runs, capfd):
  """The steps are equal, no key counts as changed, and each former key is printed with its new name."""
  renamed_keys._tell.cache_clear()
  metrics = runs / "renamed" / "metrics.jsonl"
  expected = losses(metrics)
  rows = metrics.read_text().splitlines(keepends=True)
  metrics.write_text("".join(row for row in rows if json.loads(row)["step"] <= 2))
  assert command.main(["train", "--config", "gpt2_small", *_EARLIER_KEYS, "--workdir", str(runs / "renamed")]) == 0
  assert losses(metrics) == pytest.approx(expected, rel=1e-4)
  messages = capfd.readouterr().err
  assert "resuming from step 2" in messages and "instead of" not in messages
  assert messages.count("the earlier name still works") == 20
  saved = json.loads((runs / "renamed" / "config.json").read_text())
  assert saved["checkpoint"]["save_interval_steps"] == 2 and "numbers" not in saved


@pytest.mark.slow
@pytest.mark.parametrize("name", _CONFIGS)
def test_a_checkpoint_is_read(name, runs):
  """The model matches its config, with all parameters and its vocabulary."""
  source = pretrained.read_source(str(runs / name))
  params = pretrained.load(source, sharding.make_mesh({"data": -1})).params
  assert source.model.embed_dim == 8 and not source.model.heads
  assert np.asarray(params["embed"]["table"]).std() > 0.01
  assert pretrained.vocabulary(source).encode("a") == [100]


def test_a_recipe_is_read():
  """Reads a user's file on top of a shipped config."""
  config = records(load_config(str(SAVED / "config.py")))
  assert (config.model.num_encoder_layers, config.optimizer.schedule) == (2, "inverse_sqrt")
