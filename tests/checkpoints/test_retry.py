"""Failed saves: they are retried, earlier steps stay intact, and a permanent failure is one error."""

import concurrent.futures
import contextlib
import pathlib
import resource
import signal
import subprocess
import sys

from etils import epath
import jax
import pytest
import test_hosts
import test_manager

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import manager, retry, verify
from t2t.runtime import exit_codes

_LIMIT = 100_000  # bytes: smaller than a shard of an array, larger than the output of a test


@contextlib.contextmanager
def full_disk():
  """Limits the file size, which causes the errors of a full disk or quota."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  try:
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LIMIT, before[1]))
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture(scope="module")
def state():
  """Arrays are random, so that they do not compress."""
  state = test_manager.make_state(width=40_000)
  noisy = lambda x: jax.device_put(jax.random.normal(jax.random.key(0), x.shape), x.sharding) if x.ndim == 2 else x
  return jax.tree.map(noisy, state)


@pytest.fixture
def clock(monkeypatch):
  """A clock that advances only in sleeps."""
  now = [0.0]
  monkeypatch.setattr(retry.time, "monotonic", lambda: now[0])
  monkeypatch.setattr(manager.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
  return now


def saved(workdir, retry_seconds=100.0, keep=2):
  return manager.Checkpoints(epath.Path(workdir), keep=keep, retry_seconds=retry_seconds)


def at(state, step):
  return state.__class__(jax.numpy.array(step, jax.numpy.int32), state.params, state.frozen_params, state.opt_state)


def save(checkpoints, state, step):
  checkpoints.save(step, at(state, step), {"a": b"x"}, {}, metrics=None)


def sound(workdir) -> list[int]:
  """Returns the existing steps, and checks that all are intact."""
  folder = epath.Path(workdir) / "checkpoints"
  assert [verify.of_step(folder / str(step), step=step) for step in verify.steps(folder)] == [
    [] for _ in verify.steps(folder)
  ]
  return verify.steps(folder)


def noticed(checkpoints) -> None:
  """Steps until the background save has ended."""
  concurrent.futures.wait([checkpoints._saving[1]])
  assert not checkpoints.overdue()


def test_a_save_that_failed_is_made_up_for(state, tmp_path, clock, capsys, caplog):
  """Noticed at the next step, retried later with a newer state; the last two steps are kept."""
  checkpoints = saved(tmp_path, keep=1)
  for step in (1, 2):
    save(checkpoints, state, step)
  checkpoints.wait()
  with full_disk():
    save(checkpoints, state, 3)
    noticed(checkpoints)
    clock[0] += 4
    assert not checkpoints.overdue()
    clock[0] += 2
    assert checkpoints.overdue()
    save(checkpoints, state, 4)
    noticed(checkpoints)
  said = capsys.readouterr().err
  assert "checkpoints: step 3 could not be saved (" in said and "retrying in 5 s" in said
  assert "step 4 could not be saved" in said and "retrying in 10 s" in said
  assert "(File too large)" in said and len(said.splitlines()) < 10 and "Traceback" not in said + caplog.text
  assert sound(tmp_path) == [1, 2]
  clock[0] += 11
  assert checkpoints.overdue()
  save(checkpoints, state, 5)
  checkpoints.wait()
  assert not checkpoints.overdue() and "saving works again" in capsys.readouterr().err
  checkpoints.close()
  assert sound(tmp_path) == [2, 5]
  assert [path.name for path in (tmp_path / "checkpoints").iterdir() if "tmp" in path.name] == []


def test_saves_that_fail_for_too_long_are_one_error(state, tmp_path, clock, capsys):
  """During training and at the end, where the same state is retried until the limit; no thread remains."""
  checkpoints = saved(tmp_path, retry_seconds=20.0)
  save(checkpoints, state, 1)
  checkpoints.wait()
  message = r"checkpoints: step {} could not be saved \(.*\)\. Earlier checkpoints are unchanged.*retry_seconds"
  with full_disk():
    save(checkpoints, state, 2)
    with pytest.raises(UserError, match=message.format(2)):
      checkpoints.wait()
    assert 5 + 10 <= clock[0] <= 20
    checkpoints.close()
  assert sound(tmp_path) == [1]
  impatient = saved(tmp_path, retry_seconds=0.0)
  with full_disk():
    save(impatient, state, 3)
    with pytest.raises(UserError, match=message.format(3)):
      noticed(impatient)
    impatient.close()
  assert sound(tmp_path) == [1]
  assert "Traceback" not in capsys.readouterr().err


def test_the_last_state_is_tried_again_at_the_end(state, tmp_path, clock, monkeypatch):
  """No step follows; there is space after a wait."""
  checkpoints, room = saved(tmp_path), contextlib.ExitStack()
  room.enter_context(full_disk())
  sleep = manager.time.sleep
  monkeypatch.setattr(manager.time, "sleep", lambda seconds: (sleep(seconds), room.close()))
  with room:
    save(checkpoints, state, 7)
    checkpoints.wait()
  checkpoints.close()
  assert sound(tmp_path) == [7] and clock[0] >= 5


def test_a_folder_that_cannot_be_made_is_noticed_at_once(state, tmp_path, clock, capsys):
  """Also if the folder of checkpoints was deleted."""
  checkpoints = saved(tmp_path)
  folder = pathlib.Path(tmp_path / "checkpoints")
  folder.rmdir()
  folder.write_text("in its place")
  save(checkpoints, state, 1)
  assert "step 1 could not be saved" in capsys.readouterr().err
  folder.unlink()
  clock[0] += 6
  assert checkpoints.overdue()
  save(checkpoints, state, 2)
  checkpoints.wait()
  checkpoints.close()
  assert sound(tmp_path) == [2]


def test_of_several_processes_none_tries_again(tmp_path, monkeypatch):
  """Processes cannot coordinate: all end with the exit code that makes a launcher restart them."""

  def train(argv):
    retry.Patience(epath.Path(tmp_path), 1e9).failed(5, OSError("disk is full [source locations='a'"), alone=False)

  with pytest.raises(UserError, match="step 5 could not be saved .disk is full.*the same command resumes"):
    train([])
  monkeypatch.setattr("t2t.commands.train.main", train)
  assert command.main(["train"]) == exit_codes.LOST and exit_codes.goes_on(exit_codes.LOST)


_ONE_OF_TWO = """
import argparse, resource, signal, sys, time
import jax
import numpy as np
jax.config.update("jax_platforms", "cpu")
from etils import epath
from t2t import __main__ as command
from t2t.checkpoints import manager
from t2t.runtime import hosts
from t2t.training import train_state
index, address, workdir = int(sys.argv[1]), sys.argv[2], epath.Path(sys.argv[3])
options = dict(coordinator=address, num_processes=2, process_id=index, join_seconds=300, lost_seconds=300)

def train(argv):
  hosts.join(argparse.Namespace(**options))
  place = lambda *axes: jax.NamedSharding(jax.make_mesh((2,), ("fsdp",)), jax.P(*axes))
  noise = np.random.default_rng(0).normal(size=(2, 100_000)).astype(np.float32)
  array = lambda x, *axes: jax.make_array_from_callback(x.shape, place(*axes), lambda index: x[index])
  checkpoints = manager.Checkpoints(workdir, keep=2, retry_seconds=1e9)
  def save(step):
    state = train_state.TrainState(array(np.array(step, np.int32)), {"w": array(noise, "fsdp")}, {}, {})
    checkpoints.save(step, state, {f"s{index}": b"x"}, {}, metrics=None)
  save(1)
  checkpoints.wait()
  if index == 1:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
  save(2)
  try:
    while True:
      checkpoints.overdue()
      time.sleep(0.01)
  finally:
    checkpoints.close()

import t2t.commands.train
t2t.commands.train.main = train
sys.exit(command.main(["train"]))
"""


@pytest.mark.slow
def test_two_processes_end_when_one_cannot_save(tmp_path):
  """They end at once, without waiting for each other; a launcher restarts them, and earlier steps are intact."""
  address = f"localhost:{test_hosts.free_port()}"
  start = lambda index: subprocess.Popen(
    [sys.executable, "-c", _ONE_OF_TWO, str(index), address, str(tmp_path)], stderr=subprocess.PIPE, text=True
  )
  processes = [start(index) for index in range(2)]
  said = [process.communicate()[1] for process in processes]
  assert [process.returncode for process in processes] == [exit_codes.LOST] * 2, said
  assert "step 2 could not be saved (File too large)" in said[1] and "process 1 on " in said[0]
  assert sound(tmp_path) == [1]


@pytest.mark.slow
def test_an_old_step_that_stays_is_no_save_that_failed(tmp_path, capsys):
  """A link, or an undeletable step: each is logged once, and later saves work."""
  state, elsewhere = test_manager.make_state(), tmp_path / "elsewhere"
  checkpoints, folder = saved(tmp_path), tmp_path / "checkpoints"
  for step in range(1, 7):
    save(checkpoints, state, step)
    checkpoints.wait()
    if step == 1:
      (folder / "1").rename(elsewhere)
      (folder / "1").symlink_to(elsewhere)
    if step == 2:
      (folder / "2.orbax-checkpoint-tmp" / "in the way").mkdir(parents=True)
  assert not checkpoints.overdue()
  checkpoints.close()
  said = capsys.readouterr().err
  assert said.count("/1 is no longer kept, but cannot be deleted (the step is a link)") == 1
  assert said.count("/2 is no longer kept, but cannot be deleted (") == 1
  assert len(list(elsewhere.rglob("*"))) > 10
  assert "could not be saved" not in said and sound(tmp_path) == [1, 2, 5, 6]
