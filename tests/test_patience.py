"""A save that fails: it is tried again, what was saved stays sound, and in the end there is one error."""

import concurrent.futures
import contextlib
import pathlib
import resource
import signal

from etils import epath
import jax
import pytest
import test_checkpoint

from t2t import UserError
from t2t.checkpoints import damage, patience, store

_LIMIT = 100_000  # bytes; a shard of an array is larger, and what a test prints is not


@contextlib.contextmanager
def full_disk():
  """Files cannot grow beyond a size: the same errors, at the same places, as of a disk or quota that is used up."""
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
  """With arrays that do not compress to nothing."""
  state = test_checkpoint.make_state(width=40_000)
  noisy = lambda x: jax.device_put(jax.random.normal(jax.random.key(0), x.shape), x.sharding) if x.ndim == 2 else x
  return jax.tree.map(noisy, state)


@pytest.fixture
def clock(monkeypatch):
  """Seconds that pass only where somebody waits."""
  now = [0.0]
  monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
  monkeypatch.setattr(store.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
  return now


def saved(workdir, retry_seconds=100.0, keep=2):
  return store.Checkpoints(epath.Path(workdir), keep=keep, retry_seconds=retry_seconds)


def at(state, step):
  return state.__class__(jax.numpy.array(step, jax.numpy.int32), state.params, state.frozen_params, state.opt_state)


def save(checkpoints, state, step):
  checkpoints.save(step, at(state, step), {"a": b"x"}, {}, metrics=None)


def sound(workdir) -> list[int]:
  """The steps that are there, all of them whole."""
  folder = epath.Path(workdir) / "checkpoints"
  assert [damage.of_step(folder / str(step), step=step) for step in damage.steps(folder)] == [
    [] for _ in damage.steps(folder)
  ]
  return damage.steps(folder)


def noticed(checkpoints) -> None:
  """Steps go by until the save in the background has come to its end."""
  concurrent.futures.wait([checkpoints._saving[1]])
  assert not checkpoints.overdue()


def test_a_save_that_failed_is_made_up_for(state, tmp_path, clock, capsys, caplog):
  """Noticed at the next step, tried again when its time has come with a later state, and the last two always stay."""
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
  assert "checkpoints: step 3 could not be saved (" in said and "tried again in 5 s" in said
  assert "step 4 could not be saved" in said and "tried again in 10 s" in said
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
  """At a step, and at the end, where the same state is tried until the time is up; nothing waits when it is over."""
  checkpoints = saved(tmp_path, retry_seconds=20.0)
  save(checkpoints, state, 1)
  checkpoints.wait()
  message = r"checkpoints: step {} could not be saved \(.*\); what was saved before is as it was.*retry_seconds"
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
  """For no step follows; there is room when it has waited."""
  checkpoints, room = saved(tmp_path), contextlib.ExitStack()
  room.enter_context(full_disk())
  sleep = store.time.sleep
  monkeypatch.setattr(store.time, "sleep", lambda seconds: (sleep(seconds), room.close()))
  with room:
    save(checkpoints, state, 7)
    checkpoints.wait()
  checkpoints.close()
  assert sound(tmp_path) == [7] and clock[0] >= 5


def test_a_folder_that_cannot_be_made_is_noticed_at_once(state, tmp_path, clock, capsys):
  """And so is a folder of checkpoints that has gone."""
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


def test_of_several_processes_none_tries_again(tmp_path):
  """The others cannot know; all of them end, and the same command goes on."""
  with pytest.raises(UserError, match="step 5 could not be saved .disk is full"):
    patience.Patience(epath.Path(tmp_path), 1e9).failed(5, OSError("disk is full [source locations='a'"), alone=False)
