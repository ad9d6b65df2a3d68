"""Steps that take too long are reported."""

import faulthandler
import os
import threading
import time
import types

from t2t.data.sources import text_files
from t2t.runtime import waiting, watchdog


def test_a_long_step_is_told_once(capfd, monkeypatch):
  """With the stacks of all threads; usual steps, and pauses between them, are not reported."""
  # The output is read when it is complete, because reading during a write may lose a part.
  dump, told = faulthandler.dump_traceback, threading.Event()
  monkeypatch.setattr(faulthandler, "dump_traceback", lambda **options: (dump(**options), told.set()))
  with watchdog.Watchdog(5.0, shortest=0.05).running() as dog:
    for _ in range(5):
      dog.step()
    assert told.wait(30)
    time.sleep(0.2)
    said = capfd.readouterr().err
    assert said.count("longer than 0 s") == 1 and "test_a_long_step_is_told_once" in said
    dog.pause()
    dog.step()
  assert capfd.readouterr().err.count("longer than") == 0


def test_a_source_that_hangs_is_named(tmp_path, capfd, monkeypatch):
  """The message names the file, here a pipe without a writer."""
  path, told, ended = tmp_path / "a.txt", threading.Event(), threading.Event()
  os.mkfifo(path)
  monkeypatch.setattr(faulthandler, "dump_traceback", lambda **options: told.set())

  def read():
    list(text_files.read_texts(str(path), field="text"))
    ended.set()

  with watchdog.Watchdog(5.0, shortest=0.05).running() as dog:
    threading.Thread(target=read, daemon=True).start()
    for _ in range(5):
      dog.step()
    assert told.wait(30)
  assert f"waiting for {path}: 0 s" in capfd.readouterr().err
  path.open("w").close()
  assert ended.wait(30)
  assert waiting.pending() == []


def test_an_evaluation_may_take_longer_than_a_step_but_not_for_ever(monkeypatch):
  """If several hosts hang in an evaluation, the watchdog ends them, too."""
  ended = threading.Event()
  held_up = types.SimpleNamespace(stalled=lambda seconds: ended.set())
  monkeypatch.setattr(watchdog.peer_monitor, "current", lambda: held_up)
  monkeypatch.setattr(faulthandler, "dump_traceback", lambda **options: None)
  with watchdog.Watchdog(0.0, longest=0.1).running() as dog:
    dog.step()
    dog.pause()
    assert ended.wait(30)


def test_what_is_no_step_has_four_times_as_long(monkeypatch):
  """Pauses do not enter the usual time of steps."""
  monkeypatch.setattr(watchdog.peer_monitor, "current", lambda: types.SimpleNamespace())
  clock = iter([0.0, 100.0, 101.0])
  monkeypatch.setattr(watchdog, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
  dog = watchdog.Watchdog(0.0, longest=10.0)
  dog.step()
  assert dog._limit() == 10.0
  dog.pause()
  assert dog._limit() == 40.0
  dog.step()  # the first step after an evaluation
  assert dog._limit() == 10.0 and dog._seconds == []


def test_a_watchdog_that_is_off_watches_nothing():
  """It starts no thread."""
  before = threading.active_count()
  with watchdog.Watchdog(0.0).running() as dog:
    dog.step()
    assert threading.active_count() == before
