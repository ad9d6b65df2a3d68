"""Goodput: sessions on a simulated machine with known times, and runs that are killed."""

import json
import math
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

from etils import epath
from hypothesis import example, given, settings, strategies
import pytest
import test_train

from t2t import __main__ as command
from t2t.reports import goodput
from t2t.training import session_clock

SAVES = 20  # steps between two saves
text = test_train.text


class Machine:
  """A machine whose time advances by hand, with a wall clock that can be set."""

  def __init__(self):
    self.now, self.offset = 100.0, 1e9

  def monotonic(self):
    return self.now

  def time(self):
    return self.offset + self.now


def session(machine, path, start, number, step_seconds, every, event):
  """Runs a session that ends without a record after `number` steps, unless `event` is one; returns the saved step."""
  clock, saved = session_clock.SessionClock(path), start
  machine.now += 7.0
  clock.step = start
  clock.saved(start)
  clock.record(session_clock.STARTED)
  clock.enter(session_clock.COMPILE)
  machine.now += 11.0
  clock.record()
  recorded = machine.now
  for step in range(start + 1, start + number + 1):
    clock.enter(session_clock.STEP)
    machine.now += step_seconds
    clock.step = step
    if step % SAVES == 0:
      with clock.phase(session_clock.SAVE):
        machine.now += 0.25
      clock.saved(step)
      saved = step
    if machine.now - recorded >= every:
      clock.record()
      recorded = machine.now
  if event:
    clock.record(event)
  return saved


SESSIONS = strategies.lists(
  strategies.tuples(
    strategies.integers(0, 59),  # steps
    strategies.floats(0.01, 3.0),  # seconds of a step
    strategies.floats(0.0, 50.0),  # seconds until the next session
    strategies.sampled_from(["", "", session_clock.STOPPED, session_clock.FINISHED]),
  ),
  min_size=1,
  max_size=5,
)


def simulate(sessions, *, every, jumps=()):
  """Returns the goodput of sessions, and their true seconds: in all, in useful steps, and in lost steps."""
  machine, runs, step = Machine(), [], 0
  quick = mock.patch("os.fsync")  # hundreds of records in a moment
  with tempfile.TemporaryDirectory() as folder, mock.patch.object(session_clock, "time", machine), quick:
    began, not_counted = machine.now, 0.0
    for number, (steps, seconds, pause, event) in enumerate(sessions):
      runs.append((step, steps, seconds))
      step = session(machine, epath.Path(folder) / session_clock.NAME, step, steps, seconds, every, event)
      end = machine.now
      if number + 1 < len(sessions):
        machine.now += pause
        machine.offset += jumps[number] if jumps else 0.0
        not_counted += pause if event == session_clock.FINISHED else 0.0
    total, measured = end - began - not_counted, goodput.read(epath.Path(folder))
  useful = 0.0
  for number, (start, steps, seconds) in enumerate(runs):
    kept = min([start + steps, *(later for later, *_ in runs[number + 1 :])])
    useful += seconds * (kept - start)
  lost = sum(steps * seconds for _, steps, seconds in runs) - useful
  return measured, total, useful, lost


@settings(max_examples=40)
@given(SESSIONS, strategies.floats(0.1, 2.0))
@example([(19, 1.0, 5.0, ""), (39, 1.0, 5.0, ""), (10, 0.5, 0.0, session_clock.FINISHED)], 0.5)
def test_repeated_steps_are_lost_and_shares_add_to_one(sessions, every):
  """However rarely records are written: only the time after the last record of a killed session is unknown."""
  measured, total, useful, lost = simulate(sessions, every=every)
  shares = [measured.share(phase) for phase in goodput.NAMES]
  assert math.isclose(sum(shares), 1.0) and min(shares) >= 0
  # Nothing is known behind the last record: up to an interval, a step and a save of each session.
  unknown = sum(every + seconds + 0.25 for _, seconds, *_ in sessions)
  assert abs(measured.total - total) <= unknown
  assert abs(measured.seconds[session_clock.STEP] - useful) <= unknown
  assert measured.seconds[session_clock.LOST] <= lost + 0.01
  assert lost - measured.seconds[session_clock.LOST] <= unknown
  if all(event for *_, event in sessions):
    assert math.isclose(measured.total, total, abs_tol=0.01)
    assert math.isclose(measured.seconds[session_clock.STEP], useful, abs_tol=0.01 + unknown * bool(lost))


@settings(max_examples=30)
@given(SESSIONS, strategies.lists(strategies.floats(-1e5, 1e5), min_size=5, max_size=5))
def test_a_clock_that_is_set_back_changes_no_phase(sessions, jumps):
  """Only the time between two sessions depends on the wall clock, and it is never negative."""
  measured, *_ = simulate(sessions, every=1.0, jumps=jumps)
  plain, *_ = simulate(sessions, every=1.0)
  phases = [phase for phase in goodput.NAMES if phase != goodput.DOWN]
  assert [measured.seconds[phase] for phase in phases] == pytest.approx([plain.seconds[phase] for phase in phases])
  assert measured.seconds[goodput.DOWN] >= 0
  assert math.isclose(sum(measured.share(phase) for phase in goodput.NAMES), 1.0)


@settings(max_examples=20)
@given(SESSIONS)
def test_the_interval_of_records_hardly_matters(sessions):
  rare, *_ = simulate(sessions, every=8.0)
  often, *_ = simulate(sessions, every=0.1)
  for phase in goodput.NAMES:
    assert abs(rare.seconds[phase] - often.seconds[phase]) <= len(sessions) * (8.0 + 3.25), phase


def test_a_refused_start_leaves_no_trace(tmp_path):
  """Neither a session nor time without one; a start that still runs counts."""
  path = epath.Path(tmp_path) / session_clock.NAME
  rows = []
  for number, events in enumerate(("beat closed", "started beat finished", "beat")):
    for event in events.split():
      rows.append({"session": f"s{number}", "event": event, "time": 100.0 * number + 9, "step": 0, "elapsed": 3.0})
      rows[-1]["seconds"] = {session_clock.STARTUP: 3.0}
  path.parent.mkdir()
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  wall_time = goodput.read(path.parent.parent)
  assert [session.first_step for session in wall_time.sessions] == [0, None]
  assert wall_time.total == 6.0 and "of 2 starts" in goodput.summary(path.parent.parent)


def test_two_processes_write_one_log(tmp_path):
  """Their records alternate, and a crash of one tears a line: each session has its own sums."""
  machine, path = Machine(), epath.Path(tmp_path) / session_clock.NAME
  with mock.patch.object(session_clock, "time", machine):
    first, second = session_clock.SessionClock(path), session_clock.SessionClock(path)
    for clock in (first, second):
      clock.record(session_clock.STARTED)
      clock.enter(session_clock.STEP)
    for step in range(1, 6):
      machine.now += 2.0
      for clock in (first, second):
        clock.step = step
        clock.record()
    path.write_bytes(path.read_bytes() + b'{"session": "torn", "ti')
    third = session_clock.SessionClock(path)
    third.step = 5
    third.record(session_clock.STARTED)
  measured = goodput.read(epath.Path(tmp_path))
  assert [session.last_step for session in measured.sessions] == [5, 5, 5]
  # The second began at step 0, so the steps of the first are lost; the third began after the steps of the second.
  assert measured.seconds[session_clock.LOST] == measured.seconds[session_clock.STEP] == 10.0


@pytest.mark.parametrize(
  "line",
  [
    b"[]",
    b"7",
    b'{"session": 1}',
    b'{"session": "a", "event": "", "time": 1, "step": 1, "elapsed": -1, "seconds": {}}',
  ],
)
def test_other_lines_are_skipped(line, tmp_path):
  path = tmp_path / session_clock.NAME
  path.parent.mkdir()
  path.write_bytes(line + b"\n")
  assert goodput.read(epath.Path(tmp_path)).sessions == []
  assert goodput.summary(epath.Path(tmp_path)) == ""


KILLED = """
import os, signal, sys
from t2t.commands.options import config_parser, parse
from t2t.configuration.loading import records
from t2t.training.run import Callback
from t2t.training.train import train

class Kill(Callback):
  def on_step_end(self, run):
    if run.step == 8:
      run.checkpoints.wait()
      run.clock.record()
      os.kill(os.getpid(), signal.SIGKILL)

parser = config_parser("t2t train", "")
parser.add_argument("--workdir")
options, config = parse(parser, sys.argv[1:])
train(records(config), options.workdir, callbacks=[Kill()])
"""


@pytest.mark.exhaustive
def test_a_killed_run_counts_its_repeated_steps_as_lost(text, tmp_path, capfd):
  """SIGKILL after step 8, three steps after a save; the resumed run repeats them."""
  options = ("--config.train.steps=10", "--config.checkpoint.save_interval_steps=5", "--config.train.log_every=1")
  arguments = test_train.arguments(text, tmp_path, *options)
  process = subprocess.run([sys.executable, "-c", KILLED, *arguments[1:]], capture_output=True)
  assert process.returncode == -9, process.stderr.decode()
  killed = goodput.read(epath.Path(tmp_path))
  assert [session.event for session in killed.sessions] == [""] and killed.seconds[session_clock.LOST] == 0
  assert command.main(arguments) == 0
  assert " of 2 starts in useful steps; " in capfd.readouterr().out
  measured = goodput.read(epath.Path(tmp_path))
  assert [(x.first_step, x.last_step, x.event) for x in measured.sessions] == [(0, 8, ""), (5, 10, "finished")]
  first = killed.sessions[0].seconds[session_clock.STEP]
  assert 0 < measured.seconds[session_clock.LOST] < first
  assert math.isclose(
    measured.sessions[0].seconds[session_clock.STEP] + measured.sessions[0].seconds[session_clock.LOST], first
  )
  seconds = measured.seconds
  for phase in ("step", "evaluation", "save", "compile", "restore", "startup"):
    assert seconds[phase] > 0, phase
  page = (tmp_path / "report.html").read_text()
  assert "Wall time by phase" in page and "killed, or ended by an error" in page and "lost steps" in page
  lines = pathlib.Path(tmp_path / session_clock.NAME).read_text().split("\n")
  sums = [json.loads(line) for line in lines if line]
  assert all(math.isclose(sum(row["seconds"].values()), row["elapsed"], abs_tol=0.01) for row in sums)
