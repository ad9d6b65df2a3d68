"""Wall time of a training process by phase, in a log that survives a kill; `reports.goodput` adds up the log."""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import secrets
import sys
import threading
import time

from etils import epath
import jax

from t2t.runtime import console
from t2t.storage import gcs, logs

NAME = "goodput/sessions.jsonl"
STEP, LOST, INPUT, EVALUATION, SAVE = "step", "lost", "input", "evaluation", "save"
COMPILE, RESTORE, STARTUP, OTHER = "compile", "restore", "startup", "other"
PHASES = (STEP, LOST, INPUT, EVALUATION, SAVE, COMPILE, RESTORE, STARTUP, OTHER)
BEAT, STARTED, FINISHED, STOPPED, CLOSED = "beat", "started", "finished", "stopped", "closed"  # events of records

_COMPILED = "/jax/core/compile/backend_compile_duration"
# Seconds between records: a two-hundredth of the session within these bounds, so that the log of a month has 10 MB.
_MOST, _LEAST, _LEAST_REMOTE = 60.0, 1.0, 30.0
_sessions = 0


class SessionClock:
  """Assigns each instant of this process to one phase, so the sums of the phases add up to the elapsed time.

  Args:
    path: of the log, local or gs://; None: no log.
    before: seconds of start-up before this clock.
  """

  def __init__(self, path: epath.Path | None = None, *, before: float = 0.0):
    self._lock, self._writing = threading.Lock(), threading.Lock()
    self._began = self._mark = time.monotonic()
    self._before, self._phase, self.step = before, STARTUP, 0
    self._seconds = dict.fromkeys(PHASES, 0.0) | {STARTUP: before}
    self._at: dict[int, float] = {}  # saved step -> seconds in steps up to it
    self._id, self._event, self._failed = secrets.token_hex(4), BEAT, False
    self._log: logs.Log | None = None
    try:
      if path is not None:
        self._log = logs.Log(path, keep=lambda content: content)
        self._log.add(b"\n")  # ends a line that a crash tore
    except Exception as error:
      console.tell(f"{path} cannot be read ({error}); goodput is not recorded")

  def enter(self, phase: str) -> str:
    """Begins a phase; returns the phase before."""
    with self._lock:
      now, before = time.monotonic(), self._phase
      self._seconds[before] += now - self._mark
      self._mark, self._phase = now, phase
      return before

  @contextlib.contextmanager
  def phase(self, phase: str) -> Iterator[None]:
    """Assigns the block to a phase."""
    before = self.enter(phase)
    try:
      yield
    finally:
      self.enter(before)

  def move(self, source: str, target: str, seconds: float) -> None:
    """Assigns up to `seconds` of one phase to another."""
    with self._lock:
      moved = max(0.0, min(seconds, self._seconds[source]))
      self._seconds[source] -= moved
      self._seconds[target] += moved

  def saved(self, step: int) -> None:
    """Notes that a rollback may return to the state after `step`."""
    self._at[step] = self._seconds[STEP]

  def rolled_back(self, step: int) -> None:
    """Counts the steps after `step`, which are discarded, as lost."""
    self.enter(self._phase)
    self.move(STEP, LOST, self._seconds[STEP] - self._at.get(step, 0.0))
    self.step = step

  def record(self, event: str = BEAT) -> None:
    """Appends a record; an error of writing is logged once, and the next record contains the same sums."""
    if self._log is None:
      return
    with self._writing:
      with self._lock:
        now = time.monotonic()
        seconds = dict(self._seconds)
        seconds[self._phase] += now - self._mark
      row = {"session": self._id, "event": event, "time": time.time(), "step": self.step}
      row |= {"elapsed": round(self._before + now - self._began, 4)}
      row |= {"seconds": {phase: round(value, 4) for phase, value in seconds.items() if value}}
      self._log.add(json.dumps(row).encode() + b"\n")
      try:
        self._log.bring()
        self._failed = False
      except Exception as error:  # any error: a missing record must not end the run
        if not self._failed:
          console.tell(f"{self._log.path} could not be written ({error}); goodput is written later")
        self._failed = True

  @contextlib.contextmanager
  def recorded(self) -> Iterator[None]:
    """Appends records until the end of the block, and counts compilations of this thread."""
    owner, closing = threading.get_ident(), threading.Event()
    least = _LEAST_REMOTE if self._log is not None and gcs.is_remote(self._log.path) else _LEAST

    def beat() -> None:
      while not closing.wait(min(_MOST, max(least, (time.monotonic() - self._began) / 200))):
        self.record()

    def compiled(event: str, duration_secs: float, **_: str | int) -> None:
      if event == _COMPILED and threading.get_ident() == owner:
        self.move(self.enter(self._phase), COMPILE, duration_secs)

    thread = threading.Thread(target=beat, name="goodput", daemon=True)
    jax.monitoring.register_event_duration_secs_listener(compiled)
    thread.start()
    try:
      yield
    finally:
      closing.set()
      thread.join()
      jax.monitoring.unregister_event_duration_listener(compiled)
      self.record(CLOSED)
      if self._log is not None and not self._failed:
        with contextlib.suppress(OSError):  # only an object of a bucket that appends need would stay
          self._log.close()


@contextlib.contextmanager
def running(workdir: epath.Path) -> Iterator[SessionClock]:
  """Yields the clock of a run; the first process writes its log."""
  global _sessions
  _sessions += 1
  # The first run of a `t2t train` process begins with the process: imports take seconds.
  before = _process_seconds() if _sessions == 1 and sys.argv[1:2] == ["train"] else 0.0
  clock = SessionClock(workdir / NAME if jax.process_index() == 0 else None, before=before)
  with clock.recorded():
    yield clock


def _process_seconds() -> float:
  """Returns the age of this process; 0.0 where the system does not tell."""
  try:
    start = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(start) / os.sysconf("SC_CLK_TCK"))
  except (OSError, ValueError, AttributeError):
    return 0.0
