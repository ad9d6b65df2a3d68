import json
import re

from etils import epath
from flax import nnx
import jax
import numpy as np
import pytest
import toy
import trained

from t2t import __main__ as command
from t2t import sharding
from t2t.checkpoints import adapter_restore, manager, pretrained
from t2t.param_tree import join_frozen
from t2t.training import recipe, replay_step

pytestmark = pytest.mark.slow

LORA = ("--config.lora.rank=2", "--config.lora.targets=attention/,mlp/")


def unmerged_logits(run, batch):
  """Returns the logits of the model as trained, with a separate adapter."""
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  checkpoints = manager.Checkpoints(epath.Path(run), keep=1, read_only=True)
  with jax.set_mesh(mesh):
    config = replay_step.config_of(epath.Path(run))
    graphdef, abstract, _ = recipe.make(config).state(mesh)
    state, _ = adapter_restore.restore_step(checkpoints, checkpoints.latest_step(), abstract, (), config=config)
  checkpoints.close()
  assert any("lora_up" in path for path in toy.flat(join_frozen(state.params, state.frozen_params)))
  return toy.logits(state.model(graphdef), batch)


def logits(path, batch):
  """Returns the logits of a checkpoint as commands read it."""
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  model = pretrained.load(pretrained.read_source(str(path)), mesh)
  return toy.logits(nnx.merge(model.graphdef, model.params), batch)


def merge(run, out, *options):
  return command.main(["adapt", "merge", str(run), "--output", str(out), *options])


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only", "encoder_only"])
def test_merged_gives_what_the_adapter_gave(architecture, tmp_path, capsys):
  """Logits equal the adapter's, differ from the base's; the merged checkpoint needs no base."""
  run = trained.adapter(architecture, *LORA)
  assert merge(run, tmp_path / "merged") == 0
  assert "merged: a model without an adapter" in capsys.readouterr().out
  batch = toy.batch(architecture=architecture)
  found = logits(tmp_path / "merged", batch)
  np.testing.assert_allclose(found, unmerged_logits(run, batch), atol=1e-5)
  assert np.max(np.abs(found - logits(trained.workdir(architecture), batch))) > 1e-2
  source = pretrained.read_source(str(tmp_path / "merged"))
  assert source.base is None and not source.adapters and source.vocabulary == str(tmp_path / "merged/vocabulary")


@pytest.mark.exhaustive
def test_the_config_is_that_of_the_run_without_its_adapter(tmp_path):
  """Settings of inference stay; rules for adapter parameters are removed."""
  run = trained.adapter("encoder_decoder", *LORA, "--config.optimizer.param_groups=('lora_up: rate=2.0',)")
  assert merge(run, tmp_path / "merged") == 0
  found, before = (json.loads((path / "config.json").read_text()) for path in (tmp_path / "merged", run))
  assert "lora" in before and "lora" not in found
  assert found["init"]["checkpoint"] == "" and before["init"]["checkpoint"]
  assert found["data"].pop("vocabulary") == str(tmp_path / "merged/vocabulary")
  before["data"].pop("vocabulary")
  assert before["optimizer"]["param_groups"] == ["lora_up: rate=2.0"] and found["optimizer"]["param_groups"] == []
  assert {name: found[name] for name in ("model", "data", "train")} == {
    name: before[name] for name in ("model", "data", "train")
  }


@pytest.mark.exhaustive
def test_every_command_takes_it(tmp_path, capsys):
  """Training, inference, conversion and verification."""
  out = tmp_path / "merged"
  assert merge(trained.adapter("encoder_decoder", *LORA), out, "--step", "2") == 0
  text = trained.workdir("encoder_decoder")
  options = (f"--config.init.checkpoint={out}", f"--config.data.files={text}.jsonl", *trained.SMALL)
  run = [
    "train",
    "--config=t5_1_1_small",
    "--config.init.use_model_config=True",
    *options,
    "--workdir",
    str(tmp_path / "run"),
  ]
  assert command.main([*run, "--config.train.steps=1"]) == 0
  (tmp_path / "in.txt").write_text("the quick brown fox\n")
  lines = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.jsonl"), "--max_length", "4"]
  assert command.main(["infer", "--checkpoint", str(out), *lines]) == 0
  assert command.main(["convert", "--from", "t2t", str(out), "--to", "hf", str(tmp_path / "hf")]) == 0
  assert command.main(["checkpoint", "verify", str(out)]) == 0


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize(
  ("run", "out", "options", "message"),
  [
    ("adapter", "there", (), "exists and is not an empty folder"),
    ("base", "merged", (), "the model has no adapter"),
    ("houlsby", "merged", (), "has the adapter config.houlsby, which cannot be merged"),
    ("adapter", "merged", ("--step", "1"), "--step 1: .* has no such checkpoint. Give one of: 2"),
  ],
)
def test_what_cannot_be_merged_is_refused(run, out, options, message, tmp_path, capsys):
  """The error has one line, and nothing is written."""
  options_of = {"adapter": LORA, "houlsby": ("--config.houlsby.bottleneck=2",)}
  base = trained.workdir("encoder_decoder")
  folder = base if run == "base" else trained.adapter("encoder_decoder", *options_of[run])
  (tmp_path / "there").mkdir()
  (tmp_path / "there/file").touch()
  assert merge(folder, tmp_path / out, *options) == 2
  assert re.search(message, " ".join(capsys.readouterr().err.split()))
  assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "there"]
