"""Whole commands with pipelines: checkpoints, generated text and converted models do not depend on stages."""

import pathlib
import shutil

import pytest
import test_hosts
import test_train

from t2t import __main__ as command

pytestmark = pytest.mark.exhaustive

text = test_train.text  # fixture
_GPT = (
  "--config=tiny_gpt",
  *test_train.SMALL,
  "--config.model.num_decoder_layers=4",
  "--config.model.dropout_rate=0.0",
  "--config.optimizer.schedule=constant",
  "--config.optimizer.warmup_steps=0",
  "--config.eval.every=2",
  "--config.eval.num_logged_samples=0",
  "--config.checkpoint.save_interval_steps=2",
)
ONE, STAGES = test_hosts.mesh(data=8), test_hosts.mesh(stage=2, data=4)


def train(text, workdir: pathlib.Path, steps: int, *overrides: str) -> pathlib.Path:
  steps_key = f"--config.train.steps={steps}"
  assert command.main(test_train.arguments(text, workdir, steps_key, *overrides, model=_GPT)) == 0
  return workdir


@pytest.fixture(scope="module")
def runs(text, tmp_path_factory) -> dict[str, pathlib.Path]:
  """A run of four steps without stages, and one with stages; each is resumed on the mesh of the other after two."""
  folder = tmp_path_factory.mktemp("runs")
  one, stages = train(text, folder / "one", 4, *ONE), train(text, folder / "stages", 2, *STAGES)
  to_stages, to_one = folder / "to_stages", shutil.copytree(stages, folder / "to_one")
  shutil.copytree(one, to_stages, ignore=lambda path, _: ["4"] if path.endswith("checkpoints") else [])
  train(text, to_stages, 4, *test_hosts.mesh(stage=4, data=2), "--config.model.pipeline_microbatches=4")
  train(text, to_one, 4, *ONE)
  return {"one": one, "stages": stages, "to_stages": to_stages, "to_one": to_one}


def test_a_run_resumes_with_and_without_stages(runs):
  """Losses of training and evaluation equal those of one run without stages."""
  for name, steps in (("stages", 2), ("to_stages", 4), ("to_one", 4)):
    test_hosts.assert_same_losses(runs[name], runs["one"], steps=steps)


def test_a_run_starts_from_a_checkpoint_of_another_mesh(runs, text, tmp_path):
  found = {
    (source, mesh): train(
      text, tmp_path / f"{source}_{len(mesh)}", 2, f"--config.init.checkpoint={runs[source]}", *mesh
    )
    for source in ("one", "to_stages")
    for mesh in (ONE, STAGES)
  }
  for workdir in found.values():
    test_hosts.assert_same_losses(workdir, found["one", ONE], steps=2)


def test_a_model_trained_in_stages_is_read_like_any_other(runs, tmp_path):
  """Generated text, and a folder of Hugging Face, are those of the run without stages."""
  (tmp_path / "lines.txt").write_text("the quick\nbrown fox\n")
  outputs = {}
  for name in ("one", "to_stages"):
    out, folder = tmp_path / f"{name}.jsonl", tmp_path / name
    infer = ["infer", f"--checkpoint={runs[name]}", f"--input={tmp_path / 'lines.txt'}", f"--output={out}"]
    assert command.main([*infer, "--max_length=8"]) == 0
    assert command.main(["convert", str(runs[name]), str(folder), "--to=hf"]) == 0
    outputs[name] = out.read_text(), (folder / "config.json").read_text()
    assert (folder / "model.safetensors").stat().st_size > 100_000
  assert outputs["to_stages"] == outputs["one"]
