"""Profiles a running process on demand: after SIGUSR2, or after a file `profile.request` appears in the workdir."""

import signal
import threading
import time
from typing import Any

import jax

from t2t.runtime import console, early_signals
from t2t.storage import gcs
from t2t.training.run import Callback, Run

NAME = "profile.request"  # its content is a number of steps, or nothing
_REMOTE_SECONDS = 30.0  # between two requests to a bucket


class ProfileRequests(Callback):
  """Looks for a signal to this process, and on the first process for a file, every `config.train.log_every` steps."""

  def __init__(self):
    self._signals, self._looked, self._traces = 0, 0.0, []
    self._before: Any = None

  def on_start(self, run: Run) -> None:
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not hasattr(signal, "SIGUSR2"):  # Windows has no such signal
      return
    if signal.getsignal(signal.SIGUSR2) in (signal.SIG_DFL, early_signals.note):
      self._before = signal.signal(signal.SIGUSR2, self._hear)
      if early := early_signals.take():
        self._signals += early
        console.tell(f"SIGUSR2 came before the first step: steps after step {self._first(run)} are traced")

  def _first(self, run: Run) -> int:
    """Returns the next step after which the run looks for requests."""
    every = run.config.train.log_every
    return run.step - run.step % every + every

  def _hear(self, number: int, frame: object) -> None:
    self._signals += 1

  def on_step_end(self, run: Run) -> None:
    if run.step % run.config.train.log_every or run.step >= run.config.train.steps:
      return
    self._signals += early_signals.take()  # in the main thread, while `t2t.train` trains in another
    text = "" if self._signals else self._file(run) if jax.process_index() == 0 else None
    if text is not None:
      from t2t.training import profiling

      self._signals = 0
      self._traces.append(profiling.begin(run, text))

  def _file(self, run: Run) -> str | None:
    """Returns the content of the file, which it removes; None if there is none."""
    path = run.workdir / NAME
    try:
      if not gcs.is_remote(path):
        if not path.exists():
          return None
        content: bytes | None = path.read_bytes()
        path.unlink()
      elif time.monotonic() - self._looked < _REMOTE_SECONDS:
        return None
      else:
        self._looked = time.monotonic()
        generation, content = gcs.look(path)
        content = content if generation else None
        gcs.discard(path, generation) if generation else None
    except OSError as error:
      run.logger.say(f"{path}: cannot be read or removed ({error})")
      return None
    return None if content is None else content.decode(errors="replace")

  def on_end(self, run: Run) -> None:
    """Says that a request came too late."""
    has_signal = self._signals + early_signals.take() > 0
    if has_signal or (jax.process_index() == 0 and self._file(run) is not None):
      run.logger.say(
        "profile request: no trace, because the request came after the last step that is a multiple of "
        f"config.train.log_every={run.config.train.log_every}. Give --profile BEGIN:END for steps near the end."
      )

  def on_close(self, run: Run) -> None:
    for trace in filter(None, self._traces):
      trace.on_close(run)
    if self._before is not None:
      signal.signal(signal.SIGUSR2, self._before)
