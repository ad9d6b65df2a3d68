"""The clock of a run: phases of real runs, compilations, and rollbacks."""

import math
from unittest import mock

from etils import epath
import jax
import jax.numpy as jnp
import pytest
import test_callbacks

from t2t.reports import goodput
from t2t.training import session_clock
from t2t.training.callbacks import goodput as callback
from t2t.training.run import Callback, Rollback


def test_compilations_of_the_training_thread_have_their_own_phase(tmp_path):
  """In whatever phase they happen; the sums stay equal to the elapsed time."""
  clock = session_clock.SessionClock(epath.Path(tmp_path) / session_clock.NAME)
  clock.enter(session_clock.EVALUATION)
  with clock.recorded():
    clock.record(session_clock.STARTED)
    jax.jit(lambda x: jnp.sin(x) @ x * 3.25)(jnp.ones((7, 7))).block_until_ready()
  measured = goodput.read(epath.Path(tmp_path))
  (session,) = measured.sessions
  assert session.seconds[session_clock.COMPILE] > 0 and session.seconds[session_clock.EVALUATION] > 0
  assert session.seconds[session_clock.STEP] == 0


@pytest.mark.parametrize(("rows", "step"), [([(1, 0.0), (2, 4.0)], 2), ([(1, 0.0), (2, 4.0), (3, 6.0)], 2)])
def test_a_rollback_moves_discarded_steps_to_lost(rows, step, tmp_path):
  clock = session_clock.SessionClock()
  clock.saved(0)
  for saved, seconds in rows:
    clock._seconds[session_clock.STEP] = seconds
    clock.saved(saved)
  clock._seconds[session_clock.STEP] = 9.0
  clock.rolled_back(step)
  assert clock._seconds[session_clock.STEP] == 4.0 and clock._seconds[session_clock.LOST] == 5.0


class Metric:
  """The metric of a step that the devices finish at `ready`."""

  def __init__(self, machine, ready):
    self._machine, self._ready, self.total = machine, ready, self

  def is_ready(self):
    return self._machine.now >= self._ready

  def block_until_ready(self):
    self._machine.now = max(self._machine.now, self._ready)
    return self


@pytest.mark.parametrize(
  ("batch_seconds", "step_seconds", "share"),
  [(0.0, 1.0, 0.0), (0.5, 1.0, 0.0), (1.25, 1.0, 0.2), (4.0, 1.0, 0.75)],
)
def test_a_wait_counts_as_far_as_the_devices_are_idle(batch_seconds, step_seconds, share):
  """On a machine whose devices take `step_seconds`, and whose input makes a batch in `batch_seconds`."""
  from test_goodput import Machine

  machine = Machine()
  clocks = (mock.patch.object(session_clock, "time", machine), mock.patch.object(callback, "time", machine))
  wait = mock.patch.object(callback.jax, "block_until_ready", lambda x: x.block_until_ready())
  with clocks[0], clocks[1], wait:
    run, goodputs = mock.Mock(clock=session_clock.SessionClock(), step=0), callback.Goodput()
    goodputs.on_start(run)
    ready = last = machine.now  # of the devices, and of the step before
    for number in range(200):
      batch_ready = last + batch_seconds
      run.batches.wait_seconds = max(0.0, batch_ready - machine.now)
      machine.now += run.batches.wait_seconds
      last = machine.now
      goodputs.on_batch(run, {})
      before, ready = ready, max(ready, machine.now) + step_seconds
      run.step, run.dispatched.metrics = number + 1, {"loss": Metric(machine, ready)}
      goodputs.on_step(run)
      machine.now = max(machine.now, before)  # metrics are read one step late
    seconds = run.clock._seconds
  assert abs(seconds[session_clock.INPUT] / (machine.now - 100.0) - share) < 0.02


class Once(Callback):
  """Rolls back once."""

  def __init__(self, step):
    self._step = step

  def on_metrics(self, run, step, metrics):
    if step.step == self._step:
      self._step = None
      raise Rollback(step.step, "once")


@pytest.mark.slow
def test_a_run_assigns_all_of_its_time(tmp_path):
  """With a rollback from step 3 to the checkpoint of step 2."""
  test_callbacks.train(test_callbacks.config(), tmp_path, Once(3))
  measured = goodput.read(epath.Path(tmp_path))
  (session,) = measured.sessions
  assert (session.first_step, session.last_step, session.event) == (0, 4, "finished")
  for phase in ("step", "lost", "evaluation", "save", "compile", "restore", "startup"):
    assert measured.seconds[phase] > 0, phase
  assert math.isclose(sum(map(measured.share, goodput.NAMES)), 1.0)
