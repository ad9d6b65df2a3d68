"""`t2t checkpoint`: list, verify, prune and diff."""

import json
import shutil

from absl import logging
from etils import epath
import pytest
import test_manager
import test_verify

from t2t import __main__ as command
from t2t.checkpoints import inspect, manager, manifest, retention, verify, workdir_lock


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """Four steps; the second has the lowest loss and the first the best score."""
  workdir = tmp_path_factory.mktemp("saved")
  checkpoints = manager.Checkpoints(epath.Path(workdir), keep=9)
  measured = {10: {"loss": 3.0, "cb/f1": 70.0}, 20: {"loss": 1.25, "cb/f1": 60.0}, 30: None, 40: {"loss": 2.0}}
  for step, metrics in measured.items():
    config = {"train": {"steps": step, "seed": 0}, "model": {}}
    streams = test_verify.positions(step)
    checkpoints.save(step, test_manager.make_state(value=float(step)), streams, config, metrics=metrics)
  checkpoints.close()
  return workdir


@pytest.fixture
def workdir(saved, tmp_path):
  return shutil.copytree(saved, tmp_path / "run")


def run(capsys, *argv) -> tuple[int, str, str]:
  """Returns exit code and output."""
  code = command.main(["checkpoint", *map(str, argv)])
  return code, *capsys.readouterr()


def largest(workdir, step):
  return max((workdir / "checkpoints" / str(step) / "state").rglob("d/*"), key=lambda path: path.stat().st_size)


def test_list_tells_of_each_step(workdir, capsys):
  """In 80 columns: loss, best metrics, damaged steps, and steps set aside."""
  (workdir / "checkpoints" / "damaged_35").mkdir()
  (workdir / "checkpoints" / "30" / "config" / "metadata").write_bytes(b"{")
  code, out, _ = run(capsys, "list", workdir)
  rows = {words[0]: words for line in out.splitlines() if (words := line.split()) and words[0].isdigit()}
  assert code == 0 and list(rows) == ["10", "20", "30", "40"]
  assert rows["10"][-3:] == ["3.0000", "cb/f1", "whole"] and rows["20"][-3:] == ["1.2500", "loss", "whole"]
  assert rows["30"][-1] == "DAMAGED" and rows["40"][-2:] == ["2.0000", "whole"]
  assert "30: config/metadata has 1 bytes" in out and "damaged_35: set aside because it was damaged" in out
  assert all(len(line) <= 80 for line in out.splitlines() if "/" not in line)


def test_verify_reads_every_file(workdir, capsys):
  """0 if all steps are intact; 1, with the file, after a flipped bit; steps without checksums are reported."""
  (workdir / "checkpoints" / "10" / "manifest.json").unlink()
  code, out, _ = run(capsys, "verify", workdir / "checkpoints")
  assert code == 0 and out.count("whole (") == 3 and "10: no checksums, saved by an older t2t" in out
  test_verify.flip(largest(workdir, 20))
  code, out, error = run(capsys, "verify", workdir)
  assert code == 1 and out.count("whole (") == 2 and "20: damaged" in out and "does not match its checksum" in out
  assert "1 of 4 steps are damaged" in error
  assert run(capsys, "verify", workdir, "--step", 40)[0] == 0
  code, _, error = run(capsys, "verify", workdir, "--step", 50)
  assert code == 2 and "Give one of: 10, 20, 30, 40" in error
  assert verify.steps(epath.Path(workdir / "checkpoints")) == [10, 20, 30, 40]  # read-only


def test_verify_passes_over_what_a_run_deletes_meanwhile(workdir, capsys, monkeypatch):
  """A step deleted meanwhile does not count; with only damaged steps the exit code is 1."""
  of_step, folder = verify.of_step, epath.Path(workdir / "checkpoints")

  def deleted_before(path, **options):
    if path.name == "20":
      retention.delete(path)
    return of_step(path, **options)

  monkeypatch.setattr(verify, "of_step", deleted_before)
  code, out, error = run(capsys, "verify", workdir)
  assert (
    code == 0 and out.count("whole (") == 3 and "20: deleted during the check" in out and "damaged" not in out + error
  )
  for step in verify.steps(folder):
    (folder / str(step)).rename(folder / f"damaged_{step}")
  code, _, error = run(capsys, "verify", workdir)
  assert code == 1 and "every step is damaged and set aside: damaged_10, damaged_30, damaged_40" in error
  code, _, error = run(capsys, "verify", workdir, "--step", "7")
  assert code == 2 and "Every step there was damaged and set aside" in error
  shutil.rmtree(folder)
  folder.mkdir()
  (folder / "007").mkdir()
  code, _, error = run(capsys, "verify", workdir, "--step", "7")
  assert code == 2 and "complete step" in error and "damaged" not in error


@pytest.mark.parametrize("noted", [10**40, 1e300, -(10**25), "yesterday", True])
def test_a_time_of_no_calendar_is_none(workdir, noted, capsys):
  path = workdir / "checkpoints" / "30" / manifest.ORBAX
  path.write_text(json.dumps({"commit_timestamp_nsecs": noted}))
  assert run(capsys, "list", workdir)[0] == 0


def test_prune_keeps_what_is_needed(workdir, capsys):
  """The last, the best by each metric, and the newest intact step; needs --yes without a terminal."""
  directory = epath.Path(workdir / "checkpoints")
  code, _, error = run(capsys, "prune", workdir, "--keep", 1)
  assert code == 2 and "cannot ask before deleting steps 30 (" in error and "Give --yes" in error
  assert verify.steps(directory) == [10, 20, 30, 40]
  test_verify.flip(largest(workdir, 40))
  assert run(capsys, "prune", workdir, "--keep", 1, "--yes")[1].startswith("nothing to delete")
  test_verify.flip(largest(workdir, 40))
  with workdir_lock.held(epath.Path(workdir)):
    code, _, error = run(capsys, "prune", workdir, "--keep", 1, "--yes")
    assert code == 2 and "another run" in error
  assert run(capsys, "prune", workdir, "--keep", 1, "--yes")[1].startswith("deleted 30 (")
  assert verify.steps(directory) == [10, 20, 40]
  for step in (10, 20, 40):
    test_verify.flip(largest(workdir, step))
  code, _, error = run(capsys, "prune", workdir, "--keep", 1, "--yes")
  assert code == 2 and "no step is intact, so nothing is deleted" in error


@pytest.mark.slow
def test_diff_names_what_differs(workdir, tmp_path, capsys, caplog):
  """The most different parameters come first, with their largest difference; then config keys; Orbax logs nothing."""
  checkpoints = workdir / "checkpoints"
  logging.set_verbosity(logging.WARNING)
  code, out, _ = run(capsys, "diff", checkpoints / "10", workdir)
  assert not caplog.records
  rows = [line.split() for line in out.splitlines() if line.startswith((" encoder", " decoder", "encoder", "decoder"))]
  assert code == 0
  assert [(row[0], float(row[-1])) for row in rows] == [
    ("encoder/kernel", 30.0 * 63),
    ("decoder/kernel", 30.0),
    ("encoder/scale", 30.0),
  ]
  assert "0 of 3 parameters are bit-identical" in out and "config.train.steps: 10, B has 40" in out
  code, out, _ = run(capsys, "diff", workdir, checkpoints / "40")
  assert "3 of 3 parameters are bit-identical" in out and "the configs are identical" in out
  test_manager.save(tmp_path / "wide", (1, None), width=16)
  code, out, _ = run(capsys, "diff", workdir, tmp_path / "wide")
  assert "8 x 8, 8 x 16" in out
  test_verify.flip(largest(workdir, 20))  # not verified by this process yet
  code, _, error = run(capsys, "diff", checkpoints / "20", workdir)
  assert code == 2 and "this checkpoint is damaged" in error


def test_what_is_no_checkpoint_is_said(tmp_path, capsys):
  code, _, error = run(capsys, "list", tmp_path)
  assert code == 2 and "contains no saved steps (searched" in error


@pytest.mark.parametrize(
  ("settings", "scores", "said"),
  [
    (
      {"early_stopping_metric": "table/score"},
      {2: 50.0, 4: 90.0, 6: 70.0},
      "reading the last step, 6: table/score 70.00; step 4 is better,\n  90.00: ",
    ),
    ({"early_stopping_metric": "table/score"}, {2: 50.0, 4: 70.0, 6: 90.0}, ""),
    ({"early_stopping_metric": "table/score"}, {2: 50.0, 4: 90.0, 6: 90.0}, ""),
    ({"early_stopping_metric": "table/score"}, {2: float("nan"), 6: 90.0}, ""),
    ({"early_stopping_metric": "loss"}, {2: 50.0, 4: 90.0}, ""),
    # The table of `t2t superglue` has the best step of each task.
    ({}, {2: 90.0, 4: 50.0}, "reading the last step, 4: table/score 50.00; step 2 is better,\n  90.00: "),
    (
      {"early_stopping_metric": "loss", "patience": 2},
      {2: 50.0, 4: 90.0},
      "reading the last step, 4: loss 5.1000; step 2 is better,\n  5.0000: ",
    ),
  ],
)
def test_a_step_that_is_better_than_the_last_is_named(settings, scores, said, tmp_path, monkeypatch):
  """With early stopping or a task metric; not if a step is given."""
  for index, (step, score) in enumerate(scores.items()):
    path = tmp_path / "checkpoints" / str(step) / "metrics" / "metrics"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"loss": 5.0 + index / 10, "table/score": score}))
  monkeypatch.setattr(verify, "steps", lambda folder: sorted(scores))
  last = epath.Path(tmp_path) / "checkpoints" / str(max(scores))
  note = inspect.better(str(tmp_path), last, {"eval": settings})
  assert said in note and bool(said) == bool(note)
  assert not said or note.endswith(f"{tmp_path}/checkpoints/{4 if 6 in scores else 2}")
  assert inspect.better(str(last), last, {"eval": settings}) == ""
