"""Handles SIGTERM, SIGINT and SIGHUP: training saves and stops; other commands end soon.

A separate thread receives the signals, so that a hanging library cannot keep a process from ending.
"""

from collections.abc import Callable, Iterable, Iterator
import contextlib
from contextlib import AbstractContextManager
import os
import signal
import socket
import statistics
import threading
import time
from typing import NoReturn, TypeVar

from t2t.runtime import maintenance, peer_monitor, sync_point

T = TypeVar("T")

# Deadline in seconds for a step or an evaluation batch after a signal. A short step has 15 seconds, because a
# loaded machine may stall for several seconds. For long steps it is a multiple of the usual time, at most a minute,
# because a cloud does not wait much longer. Steps of about a minute or more get one and a half times the usual time.
_SHORTEST_STEP_SECONDS, _STEPS, _LONGEST_STEP_SECONDS, _LONG_STEPS = 15.0, 3.0, 60.0, 1.5
_STEP_SECONDS = 5.0  # for what is no step: the start, the end, other commands
_FIRST_SECONDS = 15.0  # for a first step, which may have to compile
_STEP, _BATCH, _SAVING = "the step", "the evaluation", "saving"
# Deadline for a save; shorter than GKE's and SLURM's grace periods (launch/gke.py, launch/slurm.py).
_SAVE_SECONDS = 270.0
_LAST_WORDS_SECONDS = 3.0
_ECHO_SECONDS = 1.0  # maximum delay between duplicates of one request

_SIGHUP = getattr(signal, "SIGHUP", None)  # not on Windows
_HEEDED = tuple(filter(None, (signal.SIGTERM, signal.SIGINT, _SIGHUP)))
_NOTHING_SAVED = "nothing new was saved; the same command starts where this one started"
_CLOSE, _LOOK = 0, 255  # bytes of the socket that are not signals: the command has ended; the deadline has changed


class Stopped(SystemExit):
  """Raised after the save that a signal requested; exits with the signal's code."""

  def __init__(self, number: int):
    super().__init__(128 + number)


class Abandoned(Exception):
  """Ends an evaluation between two batches, so that there is time to save."""


class _Watch:
  """Signal handling of this process.

  Args:
    command: its name, for messages.
  """

  def __init__(self, command: str):
    self._command = command
    self._number: int | None = None  # of the signal that ends the run, in whichever process it arrived
    self._heard: float | None = None  # time of the first signal to this process
    self._raised = False
    self._steps: Steps | None = None
    self.has_stepped = False
    self._deadline: float | None = None
    self._doing = ""
    self._winding_up: tuple[float, str] | None = None  # duration in seconds, and description
    self._interrupted_by = signal.SIGINT
    self._left: Callable[[], str] = lambda: _NOTHING_SAVED
    self._before: dict[int, object] = {}  # previous signal handlers
    self._last_words: list[Callable[[], None]] = []
    self._out, self._in = socket.socketpair()  # Windows cannot wait for a pipe
    self._in.setblocking(False)

  @contextlib.contextmanager
  def running(self) -> Iterator[None]:
    """Handles signals within the block."""
    # Under `nohup` SIGHUP is ignored and must stay so.
    heeded = [number for number in _HEEDED if number != _SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    self._before = {number: signal.signal(number, self._in_main_thread) for number in heeded}
    # The signal handler in C writes to it even if the main thread is busy.
    wakeup = signal.set_wakeup_fd(self._in.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=self._listen, name="signals", daemon=True)
    thread.start()
    process = os.getpid()
    try:
      yield
    finally:
      if os.getpid() == process:  # not in a forked child, which has no such thread
        signal.set_wakeup_fd(wakeup)
        self._restore()
        self._in.send(bytes([_CLOSE]))
        thread.join()
        self._in.close()
        self._out.close()

  def leave_to_parent(self) -> None:
    """Restores signal handling in a forked child, so that the parent does not receive the child's signals."""
    signal.set_wakeup_fd(-1)
    self._restore()
    self._in.close()
    self._out.close()

  def _restore(self) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def _in_main_thread(self, number: int, frame) -> None:
    del frame
    if self._steps is None and (number == signal.SIGINT or self._winding_up) and not self._raised:
      self._raised = True  # a second signal ends the process from the thread, without interrupting the cleanup
      self._interrupted_by = number  # the thread may read it later
      raise KeyboardInterrupt

  def _listen(self) -> None:
    while True:
      deadline = self._deadline
      if deadline is not None and time.monotonic() >= deadline:
        self.end(f"{_name(self._number)}: {self._doing} did not end in time and is aborted{self._and_left()}")
      self._out.settimeout(None if deadline is None else max(1e-3, deadline - time.monotonic()))
      try:
        numbers = self._out.recv(4096)
      except TimeoutError:
        continue
      for number in numbers:
        if number == _CLOSE:
          return
        if number in _HEEDED:
          self._hear(number)

  def _hear(self, number: int) -> None:
    # A cloud signals each of several hosts: a stop that all agreed on because of one signal is not a first signal here.
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
      self.expect(_STEP_SECONDS, "the current operation")  # the main thread may not reach KeyboardInterrupt
    else:
      self.end(f"{_name(number)}: ended at once{self._and_left()}")

  def _and_left(self) -> str:
    return f"; {self._left()}" if self._steps is None else ""

  def hear_of(self, request: sync_point.SyncRequest) -> None:
    """Takes a request that all processes have agreed on."""
    if request.wish == sync_point.STOP and self._number is None:
      self._number = request.signal
      self.say(f"{request.why}: saving after this step")
      if self._steps is None:
        self.expect(_STEP_SECONDS, "the start")
      else:
        self.expect(self._steps.patience(), self._steps.doing)

  def heeded_by(self, steps: "Steps | None") -> None:
    """Sets the loop that saves at a signal; None if signals end the process."""
    self._steps, self.has_stepped = steps, self.has_stepped or steps is not None

  @contextlib.contextmanager
  def winding_up(self, seconds: float, doing: str) -> Iterator[None]:
    self._winding_up = (seconds, doing)
    try:
      yield
    except KeyboardInterrupt:
      raise Stopped(self._interrupted_by) from None
    self._winding_up = None

  @contextlib.contextmanager
  def leaving(self, describe: Callable[[], str]) -> Iterator[None]:
    before, self._left = self._left, describe
    try:
      yield
    finally:
      self._left = before

  def expect(self, seconds: float, doing: str) -> None:
    """Sets the current operation, and its time limit if a signal has arrived."""
    self._doing = doing
    if self._number is not None:
      self._deadline = time.monotonic() + seconds
      self._in.send(bytes([_LOOK]))

  def say(self, text: str) -> None:
    _within(_LAST_WORDS_SECONDS, lambda: os.write(2, f"\nt2t {self._command}: {text}\n".encode()))

  def end(self, why: str, code: int | None = None) -> NoReturn:
    """Exits immediately from any thread, and informs the other processes."""
    self.say(why)
    for last in self._last_words:
      _within(_LAST_WORDS_SECONDS, last)
    code = 128 + (self._number or signal.SIGTERM) if code is None else code
    peer_monitor.fail(why, code)
    os._exit(code)


def _is_echo(number: int, seconds: float) -> bool:
  """Returns True if a signal repeats the previous request, rather than being the user's second request.

  A closed terminal sends SIGHUP twice, from the shell and from the kernel; `timeout` signals a process, then its group.
  """
  return number == _SIGHUP or (number == signal.SIGTERM and seconds < _ECHO_SECONDS)


def _then(number: int) -> str:
  return "SIGTERM to end at once" if number == _SIGHUP else "again to end at once"


def _name(number: int | None) -> str:
  return signal.Signals(number or signal.SIGTERM).name


def _within(seconds: float, function: Callable[[], object]) -> None:
  """Calls a function that may hang or fail."""

  def call():
    with contextlib.suppress(Exception):
      function()

  thread = threading.Thread(target=call, daemon=True)
  thread.start()
  thread.join(seconds)


_current: _Watch | None = None  # one per process, as with signal handlers


@contextlib.contextmanager
def watched(command: str) -> Iterator[None]:
  """Runs a command that ends soon after any signal, with the signal's code of exit_codes.py.

  Args:
    command: its name, for messages.
  """
  global _current
  if _current is not None or threading.current_thread() is not threading.main_thread():
    yield  # only the main thread receives signals
    return
  _current = _Watch(command)
  try:
    with _current.running():
      yield
  finally:
    _current = None


_masks = threading.local()  # signals that a forking thread had blocked


def _before_fork() -> None:
  # Signals are blocked during the fork; otherwise the parent would receive a signal to the child.
  _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED)


def _after_fork() -> None:
  signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _in_child() -> None:
  global _current
  if _current is not None:
    _current.leave_to_parent()
    _current = None
  _after_fork()


# For multiprocessing, whose pools end their processes by SIGTERM: a user's task module may use one.
if hasattr(os, "register_at_fork"):
  os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def has_stepped() -> bool:
  """Returns whether a training run of this command has had a step, from which on there is something to save."""
  return _current is None or _current.has_stepped


def winding_up(seconds: float, doing: str) -> AbstractContextManager[None]:
  """Makes any signal raise KeyboardInterrupt within the block; after the block the process ends soon.

  Args:
    seconds: maximum duration of the cleanup after a signal.
    doing: description of the cleanup, such as "answering pending requests".

  Raises:
    Stopped: in place of KeyboardInterrupt.
  """
  return contextlib.nullcontext() if _current is None else _current.winding_up(seconds, doing)


def leaving(describe: Callable[[], str]) -> AbstractContextManager[None]:
  """Adds a description of unfinished work to the message of a signal within the block.

  Args:
    describe: returns a sentence; called for the message.
  """
  return contextlib.nullcontext() if _current is None else _current.leaving(describe)


def end(why: str, code: int | None = None) -> NoReturn:
  """Ends this process and those of the same run; for threads, whose exceptions are not caught.

  Args:
    why: in a line.
    code: exit code; None for the code of the signal that arrived.
  """
  (_current or _Watch("train")).end(why, code)


@contextlib.contextmanager
def last_words(function: Callable[[], None]) -> Iterator[None]:
  """Calls a function for a short time if a signal ends the process within the block."""
  if _current is None:
    yield
    return
  _current._last_words.append(function)
  try:
    yield
  finally:
    _current._last_words.remove(function)


class Steps:
  """A loop that checks after each step whether all processes must save, or stop.

  Attributes:
    stops: whether the loop must stop after the save.
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
    """Requests an action of all processes after the same step."""
    self._agreement.ask(request)

  def patience(self) -> float:
    """Returns the time limit of the current operation in seconds."""
    if self.doing == _SAVING:
      return _SAVE_SECONDS
    if seconds := self._seconds.get(self.doing):
      usual = statistics.median(seconds)
      return max(_SHORTEST_STEP_SECONDS, min(_STEPS * usual, _LONGEST_STEP_SECONDS), _LONG_STEPS * usual)
    # Without a timed batch, the time up to the first step indicates how slow this run may be.
    usual = statistics.median(self._seconds[_STEP] or [self._first])
    return max(_FIRST_SECONDS, _LONG_STEPS * usual)

  def reached(self, doing: str = _STEP) -> bool:
    """Ends a step; returns whether to save. Signals are handled from the first step on, because there is nothing to
    save before.
    """
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
    """Allows the operations until the next `reached` the time of a checkpoint."""
    self.doing = _SAVING
    if self._watch is not None:
      self._watch.expect(_SAVE_SECONDS, _SAVING)

  def finish(self, tell: Callable[[], None]) -> None:
    """Ends the loop after the last save; later signals lose nothing.

    Args:
      tell: called if a signal stops the run here.

    Raises:
      Stopped: a signal stopped the run.
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
    """Yields batches; every process must have the same number of them.

    Raises:
      Abandoned: all processes stop, before the next batch.
    """
    # The first batch must not count as a training step, which may be shorter.
    self.doing, self._since = _BATCH, time.monotonic()
    for batch in batches:
      yield batch
      self.between()

  def between(self, *_) -> None:
    """Checks for a stop between two batches of an evaluation; see `abandonable`."""
    saves = self.reached(_BATCH)
    if self.stops:
      raise Abandoned
    if saves:
      self._owed = sync_point.SyncRequest(sync_point.SAVE, 0, "")  # save after the next step


@contextlib.contextmanager
def after_steps() -> Iterator[Steps]:
  """Turns SIGTERM (preemption), SIGHUP and SIGINT into a request to stop after a step.

  All processes stop after the same step, whichever of them received the signal. A second signal ends the process, and
  so does a step beyond its time limit. When Google Cloud announces maintenance of the machine, all processes save and
  continue.
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
