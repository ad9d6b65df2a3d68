"""Forgetting benchmark: two questions for one model, and arms that differ in one setting."""

import collections
import json

import pytest
import toy

from t2t import UserError
from t2t.data import registry, task_resolution

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def forgetting():
  return toy.benchmark("forgetting")


def examples(forgetting, name, split):
  """Returns pairs of things and answer."""
  task = task_resolution.named(name, modules=(str(forgetting._TASKS),))
  return [
    (each["inputs_pretokenized"].decode(), each["targets_pretokenized"].decode())
    for each in task.get_dataset({"inputs": 64, "targets": 16}, split, shuffle=False).as_numpy_iterator()
  ]


@pytest.mark.exhaustive
def test_the_questions_are_of_the_same_things(forgetting):
  """Answers of the questions agree by chance only; held-out examples are disjoint from training examples."""
  old, new = (examples(forgetting, name, "validation") for name in (forgetting.OLD, forgetting.NEW))
  assert len(old) == len(new) == 256
  assert examples(forgetting, f"{forgetting.OLD}_held_out", "validation") == old
  trained = {things for things, _ in examples(forgetting, forgetting.OLD, "train")}
  assert len(trained & {things for things, _ in old}) < 5
  answers = collections.Counter(answer for _, answer in old)
  assert len(answers) == 4 and max(answers.values()) < 0.4 * len(old)
  assert "train" not in task_resolution.named(f"{forgetting.OLD}_held_out", modules=()).splits
  for things, answer in old[:20]:
    assert answer in ("first", "second", "third", "fourth") and things.startswith(f"{forgetting.OLD} things: ")
  registry.load(str(forgetting._TASKS))  # again, like a second command in the same process


def test_arms_differ_in_one_thing(forgetting, tmp_path):
  """Arms share checkpoint, seed and steps; they differ in the mixture, the penalty or the adapter."""
  make = lambda arm: forgetting.new_arguments(tmp_path / "new", arm, tmp_path / "old", tmp_path / "f", seed=2)
  plain = set(make("nothing"))
  assert f"--config.init.checkpoint={tmp_path / 'old'}" in plain and "--config.train.seed=102" in plain
  told = {arm: sorted(set(make(arm)) - plain) for arm in forgetting.ARMS}
  assert told["nothing"] == [] and told["replay"] == ["--config.data.mixture=shape_with_colour"]
  assert [option.partition("=")[0] for option in told["L2-SP"]] == ["--config.optimizer.param_groups"]
  assert f"--config.optimizer.fisher={tmp_path / 'f'}" in told["EWC"]


def test_page_and_picture(forgetting, tmp_path):
  """The page has means and spreads of the final values, and the command."""
  run = lambda old, new: {"colour": {0: 90.0, 10: old}, "shape": {0: 25.0, 10: new}}
  results = {"nothing": [run(20.0, 90.0), run(40.0, 94.0)], "EWC": [run(80.0, 70.0), run(80.0, 70.0)]}
  told = forgetting.page(results, [{"old task": 10.0, "EWC": 20.0}] * 2, ["--seeds", "2"], commit="abc")
  assert "| nothing | 30.0 ± 14.1 | 92.0 ± 2.8 | 61.0 ± 8.5 |" in told
  assert "| EWC | 80.0 ± 0.0 | 70.0 ± 0.0 | 75.0 ± 0.0 |" in told
  assert "`python benchmarks/forgetting.py --seeds 2` at commit abc, seeds 1 to 2" in told and "60 s on" in told
  assert "old task 10, EWC 20" in told and "--config.optimizer.fisher=FISHER" in told
  forgetting.draw(results, tmp_path / "a.png")
  assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive
def test_runs_and_goes_on(forgetting, tmp_path, monkeypatch, capsys):
  """Runs all commands of a seed with few steps; a second run skips them."""
  for name, value in {"_STEPS": 2, "_OLD_STEPS": 2, "_EVERY": 1, "_EXAMPLES": 8}.items():
    monkeypatch.setattr(forgetting, name, value)
  monkeypatch.setattr(forgetting, "_MODEL", [*forgetting._MODEL, "--config.eval.max_examples=8"])
  forgetting.main(["--seeds=1", f"--workdir={tmp_path}"])
  assert "| EWC | " in capsys.readouterr().out
  curves = json.loads((tmp_path / "forgetting.json").read_text())["curves"]
  assert set(curves) == set(forgetting.ARMS)
  assert all(list(curve) == ["0", "1", "2"] for curve in curves["replay"][0].values())
  assert "![" in (tmp_path / "forgetting.md").read_text() and (tmp_path / "forgetting.png").exists()
  written = lambda: (tmp_path / "lora_1" / "config.json").stat().st_mtime_ns
  first = written()
  forgetting.main(["--seeds=1", f"--workdir={tmp_path}"])
  assert written() == first


def test_what_cannot_be_run(forgetting, tmp_path):
  """The error comes before any training."""
  with pytest.raises(UserError, match="--seeds 0: must be 1 or more"):
    forgetting.main(["--seeds=0", f"--workdir={tmp_path}/out"])
  assert not (tmp_path / "out").exists()
