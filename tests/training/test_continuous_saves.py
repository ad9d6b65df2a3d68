"""`config.checkpoint.continuous`: when saves begin, and what a kill leaves."""

import concurrent.futures
import shutil
import threading

from etils import epath
import pytest
import test_callbacks

from t2t.checkpoints import manager, manifest, verify
from t2t.training.run import Callback

pytestmark = pytest.mark.slow

_DURATION = 4  # steps of a save


class SlowSaves(Callback):
  """Lets each save end `_DURATION` steps after its begin, and copies the folder of checkpoints after every step."""

  def __init__(self, folder, patch):
    self.folder, self.begun, self.overlaps = folder, [], []
    self.gates = {}
    self.write, self.save = manifest.write, manager.Checkpoints.save
    patch.setattr(manifest, "write", self.wait_and_write)
    patch.setattr(
      manager.Checkpoints, "save", lambda checkpoints, *given, **how: self.begin(checkpoints, *given, **how)
    )

  def wait_and_write(self, path, step):
    assert self.gates[step].wait(60)
    self.write(path, step)

  def begin(self, checkpoints, step, *arguments, **how):
    if checkpoints._saving is not None:
      self.overlaps.append(step)
    self.begun.append(step)
    self.gates[step] = threading.Event()
    if step == 24:
      self.gates[step].set()
    self.save(checkpoints, step, *arguments, **how)

  def on_step(self, run):
    self.copy(run)
    if (gate := self.gates.get(run.step - _DURATION)) is not None:
      gate.set()
      concurrent.futures.wait([run.checkpoints._saving[1]])
      self.copy(run)

  def copy(self, run):
    """Copies the folder as a kill would leave it: again, if files were renamed or removed meanwhile."""
    copied = self.folder / f"{run.step}_{len(self.begun)}"
    while True:
      shutil.rmtree(copied, ignore_errors=True)
      try:
        shutil.copytree(run.workdir / "checkpoints", copied)
        return
      except (shutil.Error, FileNotFoundError):
        continue


def test_a_save_follows_the_last_one(tmp_path, monkeypatch):
  """Saves do not overlap, none delays the steps of the interval and the last step, and a kill leaves whole steps."""
  callback = SlowSaves(tmp_path / "killed", monkeypatch)
  changes = {"train.steps": 24, "checkpoint.save_interval_steps": 16, "eval.every": 16, "checkpoint.max_to_keep": 2}
  config = test_callbacks.config(**changes, **{"checkpoint.continuous": True})
  assert test_callbacks.train(config, tmp_path / "run", callback)["step"] == 24
  # A save that would last until after step 16 or 24 does not begin.
  assert callback.begun == [2, 8, 16, 24] and callback.overlaps == []
  checkpoints = manager.Checkpoints(epath.Path(tmp_path / "run"), keep=2, read_only=True)
  found = {step: bool(metrics) for step, metrics in checkpoints.metrics().items()}
  assert found == {16: True, 24: True}
  whole = {}
  for copy in sorted((tmp_path / "killed").iterdir(), key=lambda path: int(path.name.partition("_")[0])):
    steps = verify.steps(epath.Path(copy))
    assert [verify.of_step(epath.Path(copy / str(step)), step=step) for step in steps] == [[]] * len(steps)
    whole[int(copy.name.partition("_")[0])] = max(steps, default=0)
  assert whole == {step: max(x for x in (0, 2, 8, 16) if not x or x + _DURATION <= step) for step in whole}
  assert len(whole) == 24


def test_saves_keep_their_distance(tmp_path):
  """With a minimum interval longer than the run, only the last step is saved."""
  changes = {"train.steps": 4, "checkpoint.save_interval_steps": 4, "eval.every": 4, "checkpoint.max_to_keep": 9}
  continuous = {"checkpoint.continuous": True, "checkpoint.continuous_min_seconds": 1e6}
  test_callbacks.train(test_callbacks.config(**changes, **continuous), tmp_path)
  assert verify.steps(epath.Path(tmp_path / "checkpoints")) == [4]
