"""How a command ends before it is done: saved at a signal where it trains, soon where there is nothing to save.

A thread hears the signals, so that no library that hangs can keep a process from ending.
"""

from collections.abc import Callable, Iterable, Iterator
import contextlib
from contextlib import AbstractContextManager
import os
import select
import signal
import statistics
import threading
import time
from typing import NoReturn, TypeVar

from t2t.runtime import maintenance, peer_monitor, sync_point

T = TypeVar("T")

# Seconds until a step, or a batch of an evaluation, must have come to its end once a signal has come; where they are
# long, so many times what is usual, but no more than a minute: a cloud does not wait much longer.  Of those that take
# most of a minute and more one is waited for, and half of another.
_STEP_SECONDS, _STEPS, _LONGEST_STEP_SECONDS, _LONG_STEPS = 5.0, 3.0, 60.0, 1.5
_FIRST_SECONDS = 10.0  # of what has not been done before, and may have to be compiled
_STEP, _BATCH, _SAVING = "the step", "the evaluation", "saving"
# Until what is saved must be written: less than GKE and SLURM give (launch/gke.py, launch/slurm.py).
_SAVE_SECONDS = 270.0
_LAST_WORDS_SECONDS = 3.0
_ECHO_SECONDS = 1.0  # within which one request may come by two ways

_HEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOTHING_SAVED = "there is nothing to save; the same command begins again"
_CLOSE, _LOOK = 0, 255  # bytes of the pipe that are no signals: the command has ended; the deadline is another


class Stopped(SystemExit):
  """What was asked to stop has saved, and ends with the exit code of the signal that asked."""

  def __init__(self, number: int):
    super().__init__(128 + number)


class Abandoned(Exception):
  """An evaluation ends between two batches, so that there is time to save."""


class _Watch:
  """What this process does at a signal.

  Args:
    command: its name, for messages.
  """

  def __init__(self, command: str):
    self._command = command
    self._number: int | None = None  # of the signal that ends the process, to whichever of all it came first
    self._heard: float | None = None  # when the first came to this process
    self._raised = False
    self._steps: Steps | None = None
    self._deadline: float | None = None
    self._doing = ""
    self._winding_up: tuple[float, str] | None = None  # seconds that it takes, and what is done
    self._interrupted_by = signal.SIGINT
    self._left: Callable[[], str] = lambda: _NOTHING_SAVED
    self._before: dict[int, object] = {}  # handlers of signals, before this one's
    self._last_words: list[Callable[[], None]] = []
    self._out, self._in = os.pipe()
    os.set_blocking(self._in, False)

  @contextlib.contextmanager
  def running(self) -> Iterator[None]:
    """Hears signals in the block."""
    # `nohup` has SIGHUP ignored, and it stays so.
    heeded = [number for number in _HEEDED if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    self._before = {number: signal.signal(number, self._in_main_thread) for number in heeded}
    # Written to by the signal's handler in C, whatever the main thread does.
    wakeup = signal.set_wakeup_fd(self._in, warn_on_full_buffer=False)
    thread = threading.Thread(target=self._listen, name="signals", daemon=True)
    thread.start()
    process = os.getpid()
    try:
      yield
    finally:
      if os.getpid() == process:  # and not one that was forked off, in which all this is gone
        signal.set_wakeup_fd(wakeup)
        self._restore()
        os.write(self._in, bytes([_CLOSE]))
        thread.join()
        os.close(self._in)
        os.close(self._out)

  def leave_to_parent(self) -> None:
    """In a process that was forked off: its signals are its own, and none is heard by the one that it comes from."""
    signal.set_wakeup_fd(-1)
    self._restore()
    os.close(self._in)
    os.close(self._out)

  def _restore(self) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def _in_main_thread(self, number: int, frame) -> None:
    del frame
    if self._steps is None and (number == signal.SIGINT or self._winding_up) and not self._raised:
      self._raised = True  # what it began is not broken off: at a second signal the thread ends all
      self._interrupted_by = number  # the thread may come to it later
      raise KeyboardInterrupt

  def _listen(self) -> None:
    poll = select.poll()
    poll.register(self._out, select.POLLIN)
    while True:
      deadline = self._deadline
      if deadline is not None and time.monotonic() >= deadline:
        self.end(f"{_name(self._number)}: {self._doing} did not end in time, and is broken off{self._and_left()}")
      if not poll.poll(None if deadline is None else max(0.0, 1000 * (deadline - time.monotonic()))):
        continue
      for number in os.read(self._out, 4096):
        if number == _CLOSE:
          return
        if number in _HEEDED:
          self._hear(number)

  def _hear(self, number: int) -> None:
    # Of several hosts a cloud tells each: that all have agreed to stop because one was told is no first time here.
    first, now = self._heard, time.monotonic()
    self._heard = now if first is None else first
    if first is not None and _is_echo(number, now - first):
      return
    again = first is not None
    agreed, self._number = self._number is not None, self._number or number
    steps = self._steps
    if again:
      self.end(f"{_name(number)} again: ended at once")
    elif agreed:
      return
    elif steps is not None:
      self.say(f"{_name(number)}: saving after this step; {_then(number)}")
      steps.ask(sync_point.SyncRequest(sync_point.STOP, number, f"{_name(number)} came"))
      self.expect(steps.patience(), steps.doing)
    elif self._winding_up is not None:
      seconds, doing = self._winding_up
      self.say(f"{_name(number)}: ends within {seconds:.0f} s, {doing}; {_then(number)}")
      self.expect(seconds, doing)
    elif number == signal.SIGINT:
      self.say(f"{_name(number)}: ending; again to end at once")
      self.expect(_STEP_SECONDS, "what was going on")  # KeyboardInterrupt, which the main thread may not come to
    else:
      self.end(f"{_name(number)}: ended at once{self._and_left()}")

  def _and_left(self) -> str:
    return f"; {self._left()}" if self._steps is None else ""

  def hear_of(self, request: sync_point.SyncRequest) -> None:
    """All have agreed upon what this process, or another, was asked for."""
    if request.wish == sync_point.STOP and self._number is None:
      self._number = request.signal
      self.say(f"{request.why}: saving after this step")
      if self._steps is None:
        self.expect(_STEP_SECONDS, "the start")
      else:
        self.expect(self._steps.patience(), self._steps.doing)

  def heeded_by(self, steps: "Steps | None") -> None:
    """Who saves at a signal; None: nobody, so that it ends the process."""
    self._steps = steps

  @contextlib.contextmanager
  def winding_up(self, seconds: float, doing: str) -> Iterator[None]:
    """See the function of this name."""
    self._winding_up = (seconds, doing)
    try:
      yield
    except KeyboardInterrupt:
      raise Stopped(self._interrupted_by) from None
    self._winding_up = None

  @contextlib.contextmanager
  def leaving(self, describe: Callable[[], str]) -> Iterator[None]:
    """See the function of this name."""
    before, self._left = self._left, describe
    try:
      yield
    finally:
      self._left = before

  def expect(self, seconds: float, doing: str) -> None:
    """What is done now, and how long it may take if a signal has come."""
    self._doing = doing
    if self._number is not None:
      self._deadline = time.monotonic() + seconds
      os.write(self._in, bytes([_LOOK]))

  def say(self, text: str) -> None:
    """Tells in a line."""
    _within(_LAST_WORDS_SECONDS, lambda: os.write(2, f"\nt2t {self._command}: {text}\n".encode()))

  def end(self, why: str, code: int | None = None) -> NoReturn:
    """At once, telling the other processes; for any thread, whatever the others do."""
    self.say(why)
    for last in self._last_words:
      _within(_LAST_WORDS_SECONDS, last)
    code = 128 + (self._number or signal.SIGTERM) if code is None else code
    peer_monitor.fail(why, code)
    os._exit(code)


def _is_echo(number: int, seconds: float) -> bool:
  """Whether a signal that comes so long after another is the same request by another way, and nobody's second one.

  When a terminal is closed, its shell and the kernel both send SIGHUP; `timeout` tells a process, and then its group.
  """
  return number == signal.SIGHUP or (number == signal.SIGTERM and seconds < _ECHO_SECONDS)


def _then(number: int) -> str:
  return "SIGTERM to end at once" if number == signal.SIGHUP else "again to end at once"


def _name(number: int | None) -> str:
  return signal.Signals(number or signal.SIGTERM).name


def _within(seconds: float, function: Callable[[], object]) -> None:
  """Calls a function that may hang, or fail."""

  def call():
    with contextlib.suppress(Exception):
      function()

  thread = threading.Thread(target=call, daemon=True)
  thread.start()
  thread.join(seconds)


_current: _Watch | None = None  # there is one in a process, as there is one handler of a signal


@contextlib.contextmanager
def watched(command: str) -> Iterator[None]:
  """Runs a command that ends soon at any signal, with the signal's code of exit_codes.py.

  Args:
    command: its name, for messages.
  """
  global _current
  if _current is not None or threading.current_thread() is not threading.main_thread():
    yield  # only the main thread can be told
    return
  _current = _Watch(command)
  try:
    with _current.running():
      yield
  finally:
    _current = None


_masks = threading.local()  # of a thread that forks: which signals it had blocked


def _before_fork() -> None:
  # Else a signal that comes to the child before its handlers are its own would be heard by the parent.
  _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED)


def _after_fork() -> None:
  signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _in_child() -> None:
  global _current
  if _current is not None:
    _current.leave_to_parent()
    _current = None
  _after_fork()


# As multiprocessing does, whose pools end their processes by SIGTERM: a task's module may have one.
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def winding_up(seconds: float, doing: str) -> AbstractContextManager[None]:
  """Has any signal raise KeyboardInterrupt within the block, which it may catch, and then ends soon.

  Args:
    seconds: that what is done at a signal takes at most.
    doing: what that is, such as "answering the requests that are there".

  Raises:
    Stopped: in place of KeyboardInterrupt.
  """
  return contextlib.nullcontext() if _current is None else _current.winding_up(seconds, doing)


def leaving(describe: Callable[[], str]) -> AbstractContextManager[None]:
  """Within the block, a signal that ends the process tells what is left behind.

  Args:
    describe: in a sentence; called when it is told.
  """
  return contextlib.nullcontext() if _current is None else _current.leaving(describe)


def end(why: str, code: int | None = None) -> NoReturn:
  """Ends this process, and tells those that it runs with; for threads, which cannot raise where somebody catches.

  Args:
    why: in a line.
    code: of its exit; None: that of the signal that came.
  """
  (_current or _Watch("train")).end(why, code)


@contextlib.contextmanager
def last_words(function: Callable[[], None]) -> Iterator[None]:
  """What is done, for a moment, when a signal ends the process within the block."""
  if _current is None:
    yield
    return
  _current._last_words.append(function)
  try:
    yield
  finally:
    _current._last_words.remove(function)


class Steps:
  """A loop that asks after each step whether all processes are to save, or to stop, there.

  Attributes:
    stops: whether it is to stop, once saved.
  """

  def __init__(self, watch: _Watch | None):
    current_link = peer_monitor.current()
    self._watch, self._agreement = watch, sync_point.Agreement() if current_link is None else current_link.agreement
    if watch is not None:
      self._agreement.on_agreed = watch.hear_of
    self._seconds: dict[str, list[float]] = {_STEP: [], _BATCH: []}
    self._since, self._first, self._finished = time.monotonic(), 0.0, False
    self._number, self._owed = signal.SIGTERM, None
    self.doing, self.stops = "", False

  def ask(self, request: sync_point.SyncRequest) -> None:
    """Has all processes do it, after the same step."""
    self._agreement.ask(request)

  def patience(self) -> float:
    """Seconds that what is going on may take."""
    if self.doing == _SAVING:
      return _SAVE_SECONDS
    if seconds := self._seconds.get(self.doing):
      usual = statistics.median(seconds)
      return max(_STEP_SECONDS, min(_STEPS * usual, _LONGEST_STEP_SECONDS), _LONG_STEPS * usual)
    # Until one has been timed, the first step and what led to it says how slow this run may be.
    usual = statistics.median(self._seconds[_STEP] or [self._first])
    return max(_FIRST_SECONDS, _LONG_STEPS * usual)

  def reached(self, doing: str = _STEP) -> bool:
    """After a step: whether to save there.  Signals are heeded from the first on: before it, nothing would be lost."""
    now = time.monotonic()
    if self.doing == doing:
      self._seconds[doing] = [*self._seconds[doing][-9:], now - self._since]
    elif not self.doing:
      self._first = now - self._since
    self._since, self.doing = now, doing
    if self._watch is not None and not self._finished:
      self._watch.heeded_by(self)
    request, self._owed = self._agreement.reached() or self._owed, None
    if request is not None and request.wish == sync_point.STOP:
      self.stops, self._number = True, request.signal
    return request is not None

  def saving(self) -> None:
    """What comes until the next `reached` may take as long as a checkpoint does."""
    self.doing = _SAVING
    if self._watch is not None:
      self._watch.expect(_SAVE_SECONDS, _SAVING)

  def finish(self, tell: Callable[[], None]) -> None:
    """No step follows, and all is saved: from here on nothing is lost by a signal.

    Args:
      tell: called if the run stops here.

    Raises:
      Stopped: a signal asked for it.
    """
    self._finished = True
    if self._watch is not None:
      self._watch.heeded_by(None)
    self.reached()
    if self.stops:
      tell()
      if self._watch is not None:
        self._watch.expect(_STEP_SECONDS, "the end")
      raise Stopped(self._number)

  def abandonable(self, batches: Iterable[T]) -> Iterator[T]:
    """Goes through batches which every process has as many of.

    Raises:
      Abandoned: all are to stop, before the next batch.
    """
    # The first is none of the steps before it, which take less.
    self.doing, self._since = _BATCH, time.monotonic()
    for batch in batches:
      yield batch
      self.between()

  def between(self, *_) -> None:
    """Between two batches of an evaluation; see `abandonable`."""
    saves = self.reached(_BATCH)
    if self.stops:
      raise Abandoned
    if saves:
      self._owed = sync_point.SyncRequest(sync_point.SAVE, 0, "")  # after the next step


@contextlib.contextmanager
def after_steps() -> Iterator[Steps]:
  """Turns SIGTERM, by which a cloud says that it takes a machine, SIGHUP and SIGINT into a wish to stop after a step.

  Of several processes all stop after the same step, whichever of them was told.  A second signal ends the process, and
  so does a step that does not end.  When Google Cloud announces maintenance of the machine, all save and go on.
  """
  watch = _current
  steps = Steps(watch)
  notice = lambda text: steps.ask(sync_point.SyncRequest(sync_point.SAVE, 0, text))
  try:
    with maintenance.watched(notice):
      yield steps
  finally:
    if watch is not None:
      watch.heeded_by(None)
