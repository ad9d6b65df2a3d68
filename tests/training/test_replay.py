"""`t2t replay` repeats a step of a run bit for bit, and finds the origin of a NaN."""

import json
import shutil

import pytest
import test_nan_policy
import test_train

from t2t import __main__ as command

pytestmark = pytest.mark.slow

text = test_train.text  # fixture


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
  """A run that ended at step 5 because of a NaN batch, with checkpoints 2 and 4."""
  workdir = tmp_path_factory.mktemp("replay") / "run"
  options = ("--config.train.steps=5", "--config.checkpoint.save_interval_steps=2")
  with pytest.MonkeyPatch.context() as patch:
    test_nan_policy.poison(patch, 5)
    assert command.main(test_nan_policy.arguments(text, workdir, *options)) == 2
  return workdir


def content(folder):
  return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in sorted(folder.rglob("*"))}


@pytest.mark.exhaustive
def test_a_step_is_what_it_was_and_the_run_is_left_alone(run, capsys):
  """From an earlier checkpoint, two steps before the step."""
  unfinished = run / "checkpoints" / "3.orbax-checkpoint-tmp"  # the same command again would remove it
  unfinished.mkdir()
  before = content(run)
  assert command.main(["replay", str(run), "--step", "4", "--rows", "2"]) == 0
  out = capsys.readouterr().out
  loss = test_train.losses(run)[4]
  assert "step 4, replayed from step 2" in out and f"{loss!r}, bit-identical to the recorded loss" in out
  assert out.count("of stream") == 2 and "row 1 of 8, of stream 0 of 2" in out
  assert any(word in out for word in ("jumps", "wizards", "quick")) and "first place" not in out
  assert content(run) == before


@pytest.mark.exhaustive
def test_another_loss_than_the_one_recorded_is_told(run, tmp_path, capsys):
  other = tmp_path / "run"
  shutil.copytree(run, other)
  rows = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
  changed = [row | {"train/loss": row["train/loss"] + 1} if "train/loss" in row else row for row in rows]
  (other / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
  assert command.main(["replay", str(other), "--step", "4", "--rows", "0"]) == 1
  assert "differs by -1" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_the_first_place_of_a_nan_is_named(run, capsys, monkeypatch):
  """The origin is in the weights of the batch: parameters were finite, gradients are not."""
  test_nan_policy.poison(monkeypatch, 1)  # the only batch after step 4
  assert command.main(["replay", str(run), "--step", "5", "--rows", "1"]) == 0
  out = capsys.readouterr().out
  assert "loss now       nan; none is recorded" in out and "parameters     were finite" in out
  assert "first place    NaN in decoder_loss_weights, before the step" in out
  assert "gradients      not finite: embed/table (" in out and "decoder_loss_weights: not finite" in out


@pytest.mark.parametrize(
  "step, wanted",
  [
    ("6", "--step 6: no such step in {run}. Give 1 to 5"),
    ("0", "--step 0: no such step"),
    ("2", "--step 2: no valid checkpoint before this step ({run}/checkpoints has 2, 4). Give a later step"),
  ],
)
def test_what_cannot_be_replayed_is_one_clear_error(step, wanted, run, capsys):
  assert command.main(["replay", str(run), "--step", step]) == 2
  assert wanted.format(run=run) in capsys.readouterr().err


@pytest.mark.exhaustive
def test_no_run_and_other_data_are_refused(run, text, tmp_path, capsys):
  assert command.main(["replay", str(tmp_path), "--step", "4"]) == 2
  assert f"{tmp_path} has no config.json, so it is not a run" in capsys.readouterr().err
  other = tmp_path / "run"
  shutil.copytree(run, other)
  fewer = tmp_path / "fewer.jsonl"
  fewer.write_text("".join((text / "validation.jsonl").read_text().splitlines(keepends=True)[:20]))
  for path in (other / "config.json", *other.glob("checkpoints/*/config/metadata")):
    path.write_text(path.read_text().replace("train.jsonl.gz", "validation.jsonl"))
  shutil.rmtree(other / "checkpoints" / "2")
  for manifest in other.glob("checkpoints/*/manifest*.json"):
    manifest.unlink()
  assert command.main(["replay", str(other), "--step", "5"]) == 2
  assert "differ from the files of the checkpoint's data position" in capsys.readouterr().err
