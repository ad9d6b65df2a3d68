"""Sends metrics to an experiment tracker; training never waits for it and never fails because of it."""

from collections.abc import Callable, Mapping
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from etils import epath

from t2t.runtime import versions
from t2t.storage import logs
from t2t.training import trackers

NAME = "tracker.json"  # in a workdir: tracker -> project -> the tracker's run
_WAITING = 1_000  # rows in the queue of a slow tracker
_LAST_SECONDS = 5.0  # maximum wait at the end of a run
_STOPPED_SECONDS = 2.0  # maximum wait after a signal; see `preemption.Steps.finish`


class Tracking:
  """A tracker's process, and a thread that feeds it from a queue.

  The workdir keeps the id of the tracker's run, so that a resumed run, on any machine, adds to the same run. Errors are
  logged once, with a remedy, and the run continues: metrics.jsonl has all metrics.

  Args:
    tracker: a key of `trackers.TRACKERS`.
    project: under which the tracker lists the run.
    config: of the run, as in config.json.
    workdir: of the run; its name is the run's name.
    say: logs a line.
  """

  def __init__(
    self, tracker: str, project: str, config: Mapping[str, object], workdir: epath.Path, say: Callable[[str], None]
  ):
    self._tracker, self._project, self._workdir, self._say = tracker, project, workdir, say
    self._queue: queue.Queue[Any] = queue.Queue(_WAITING)
    self._given_up = self._dropped = self._opened = self._resumes = False
    self._ended = threading.Event()  # set when the other process ends
    self._child: subprocess.Popen | None = None
    settings = {
      "tracker": tracker,
      "project": project,
      "name": workdir.name or "run",
      "workdir": str(workdir),
      "config": config,
      "process": os.getpid(),
    }
    threading.Thread(target=self._feed, args=(settings,), name="tracker", daemon=True).start()

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Queues a row of metrics for the other thread; drops it if the queue is full."""
    if self._given_up:
      return
    try:
      self._queue.put_nowait([step, values])
    except queue.Full:
      if not self._dropped:
        self._dropped = True
        self._tell(f"does not accept metrics fast enough; some are missing from step {step} on")

  def finish(self, outcome: str) -> None:
    """Sends the outcome, and waits a short time for the rest to be sent."""
    if self._given_up:
      with contextlib.suppress(queue.Full):  # the broken pipe then ends the thread
        self._queue.put_nowait(outcome)  # unblocks the thread, which would keep the pipe open
      return
    seconds = min(_LAST_SECONDS, _STOPPED_SECONDS) if outcome == trackers.STOPPED else _LAST_SECONDS
    deadline = time.monotonic() + seconds
    with contextlib.suppress(queue.Full):
      self._queue.put(outcome, timeout=seconds)
      if self._ended.wait(deadline - time.monotonic()):
        return
    problem = (
      "has not received everything" if self._opened else f"has not answered ({trackers.REMEDIES[self._tracker]})"
    )
    self._give_up(
      f"{problem} {seconds:.0f} s after the end; it has {trackers.BACKGROUND_SECONDS:.0f} s more in the background"
    )
    killer = threading.Timer(trackers.BACKGROUND_SECONDS, self._kill)  # for a process that outlives its run
    killer.daemon = True
    killer.start()

  def _tell(self, message: str) -> None:
    self._say(f"config.logging.tracker={self._tracker}: {message}; metrics.jsonl has all metrics")

  def _give_up(self, why: str) -> None:
    if not self._given_up:
      self._given_up = True
      self._tell(why)

  def _kill(self) -> None:
    if self._child is not None and self._child.poll() is None:
      with contextlib.suppress(OSError):
        os.killpg(self._child.pid, signal.SIGKILL) if hasattr(os, "killpg") else self._child.kill()

  def _feed(self, settings: Mapping[str, Any]) -> None:
    """Starts the other process and sends it the queued messages; runs in a thread."""
    try:
      run_record = self._places().get(self._tracker, {}).get(self._project, {})
      self._resumes = bool(run_record)
      errors = tempfile.TemporaryFile()  # noqa: SIM115 - `_hear` closes it
      self._child = subprocess.Popen(
        [sys.executable, "-P", "-m", trackers.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Ctrl-C in the terminal must not stop it
      )
      threading.Thread(target=self._hear, args=(errors,), name="tracker answers", daemon=True).start()
      assert self._child.stdin is not None
      with self._child.stdin as pipe:
        message: Any = {**settings, "place": run_record}
        while True:
          pipe.write(json.dumps(message).encode() + b"\n")
          pipe.flush()
          if isinstance(message, str):
            return
          message = self._queue.get()
    except BrokenPipeError:
      pass  # `_hear` reports the reason
    except Exception as error:  # any error: a tracker must not end the run
      self._give_up(f"could not be started ({error})")

  def _hear(self, errors: Any) -> None:
    """Reads the other process's messages until it ends; runs in a thread."""
    ended, child = False, self._child
    assert child is not None and child.stdout is not None
    with errors, child.stdout as pipe:
      for line in pipe:
        try:
          message = json.loads(line)
        except ValueError:  # the process was killed within a line
          break
        if "place" in message:
          self._opened = True
          self._say(f"{self._tracker}: {message['where']}")
          self._keep(message["place"])
        elif "error" in message:
          self._give_up(self._with_remedy(message["error"]))
        ended = ended or "ended" in message
      child.wait()
      if not ended:
        errors.seek(0)
        last = errors.read().decode(errors="replace").strip().splitlines()
        self._give_up(f"its process ended with exit status {child.returncode}{f' ({last[-1]})' if last else ''}")
    self._ended.set()

  def _with_remedy(self, error: str) -> str:
    if error.startswith(trackers.MISSING):
      return f"{error}; `{versions.install_command(self._tracker)}`"
    again = (
      f", or remove {self._workdir / NAME} to start another run there" if self._resumes and not self._opened else ""
    )
    return f"{error}; {trackers.REMEDIES[self._tracker]}{again}"

  def _places(self) -> dict[str, Any]:
    try:
      tracker_runs = json.loads(logs.read(self._workdir / NAME) or b"{}")
    except ValueError:
      return {}
    return tracker_runs if isinstance(tracker_runs, dict) else {}

  def _keep(self, run_record: Mapping[str, str]) -> None:
    places = self._places()
    places.setdefault(self._tracker, {})[self._project] = run_record
    content = json.dumps(places, indent=2).encode() + b"\n"
    try:
      logs.Log(self._workdir / NAME, keep=lambda _: content).close()
    except Exception as error:  # any error: a tracker must not end the run
      self._tell(
        f"{self._workdir / NAME} could not be written ({error}), so a resumed run will start another run there"
      )
