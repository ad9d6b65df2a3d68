"""Watchdog: reports a step that takes much longer than the previous steps, and ends runs that hang."""

from collections.abc import Iterator
import contextlib
import faulthandler
import socket
import statistics
import sys
import threading
import time

import jax

from t2t.runtime import peer_monitor, waiting

# Minimum duration of a step to be reported, in seconds.
_SHORTEST_STALL = 60.0


class Watchdog:
  """Writes the stacks of all threads to stderr when a step takes many times as long as the previous steps.

  The log of every host then shows its position and the file that it waits for. After `longest` all hosts exit, because
  a hanging run costs as much as a running one.

  Args:
    factor: reports steps above this multiple of the usual time; 0 for never.
    longest: seconds after which several hosts exit, if a step or the start has not ended; 0 for never.
    shortest: minimum seconds of a step to be reported.
  """

  def __init__(self, factor: float, *, longest: float = 0.0, shortest: float = _SHORTEST_STALL):
    self._factor, self._longest, self._shortest = factor, longest if peer_monitor.current() else 0.0, shortest
    self._seconds: list[float] = []
    self._began: float | None = None
    self._told = self._started = self._paused = False
    self._changed = threading.Condition()
    self._closed = False

  @contextlib.contextmanager
  def running(self) -> Iterator["Watchdog"]:
    """Watches until the block ends; the time before the first `step` counts as the start, which is watched, too."""
    self._closed, self._began = False, time.monotonic()
    thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
    if self._factor or self._longest:
      thread.start()
    try:
      yield self
    finally:
      with self._changed:
        self._closed = True
        self._changed.notify()

  def step(self) -> None:
    """Ends a step and begins the next one."""
    now = time.monotonic()
    with self._changed:
      if self._began is not None and self._started and not self._paused:
        self._seconds = [*self._seconds[-49:], now - self._began]
      self._began, self._told, self._started, self._paused = now, False, True, False
      self._changed.notify()

  def pause(self) -> None:
    """Begins a pause until `resume`, for an evaluation or a checkpoint, which may take four times `longest`."""
    with self._changed:
      self._began, self._paused, self._told = time.monotonic(), True, False
      self._changed.notify()

  def resume(self) -> None:
    """Begins a step."""
    with self._changed:
      self._began, self._told, self._paused = time.monotonic(), False, False
      self._changed.notify()

  def _limit(self) -> float | None:
    """Returns the time limit of the running step; None if there is no limit."""
    if self._began is None:
      return None
    if self._paused:
      return 4 * self._longest or None
    usual = max(self._factor * statistics.median(self._seconds), self._shortest) if len(self._seconds) > 2 else 0.0
    if self._factor and usual and not self._told:
      return usual
    return max(self._longest, usual) or None if self._longest else None

  def _watch(self) -> None:
    with self._changed:
      while not self._closed:
        limit = self._limit()
        left = None if limit is None else self._began + limit - time.monotonic()
        if left is not None and left <= 0:
          self._tell(limit)
          continue
        self._changed.wait(left)

  def _tell(self, limit: float) -> None:
    if not self._told:
      usual = f" (usual: {statistics.median(self._seconds):.2g} s)" if self._seconds else ""
      print(
        f"\nhost {jax.process_index()} ({socket.gethostname()}): this {'step' if self._started else 'start'} "
        f"takes longer than {limit:.0f} s{usual}; stacks of all threads:",
        file=sys.stderr,
        flush=True,
      )
      for wait in waiting.pending(limit / 2):
        print(f"waiting for {wait}", file=sys.stderr, flush=True)
      faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
      self._told = True
    if self._longest and limit >= self._longest:
      self._longest = 0.0
      peer_monitor.current().stalled(limit)
