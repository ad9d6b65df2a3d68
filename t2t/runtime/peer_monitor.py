"""Connections between the processes of a run: if one fails or falls silent, all exit with its name and reason.

Each process keeps the connection of the roll call with the first process (see rendezvous.py). The first process hears
of each failure and forwards it to all. JAX's own service notices only after 100 s, and then aborts with a C++ stack and
without the name of the process.
"""

import atexit
from collections.abc import Mapping
import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from typing import NoReturn

from t2t.runtime import exit_codes, sync_point

FIRST = sync_point.FIRST  # index of the process that all others are connected to
_BEATS = 6  # missed heartbeats before a process counts as lost
# Seconds to wait: before a process reports an error that another process's exit may have caused, before it exits after
# a report, and for the answers about positions.
_PATIENCE = 5.0
_KILLED = "exited without a message: killed, out of memory, or crashed; check its log"

_current: "Link | None" = None  # one per process, as with jax.distributed


def current() -> "Link | None":
  """Returns the link of this process; None for a single process."""
  return _current


def fail(why: str, code: int, *, trace: str = "") -> None:
  """Reports to the other processes why this one fails, and exits; does nothing in a single process.

  Args:
    why: reason, in a line.
    code: exit code of this process.
    trace: of an error that another process's exit may have caused; printed if no such exit is reported.
  """
  if _current is not None:
    _current.fail(why, code, trace)


def _place() -> str:
  """Returns the position of this process's main thread in t2t's code, as in a traceback."""
  frame = sys._current_frames().get(threading.main_thread().ident)
  here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the folder t2t
  passed_on = os.path.join(here, "runtime", "progress.py")  # wraps loops of other modules
  named = lambda frame: frame.f_code.co_filename
  while frame is not None and (not named(frame).startswith(here) or named(frame) == passed_on):
    frame = frame.f_back
  if frame is None:
    return "code outside t2t"
  name = os.path.relpath(frame.f_code.co_filename, os.path.dirname(here))
  return f"{name}, line {frame.f_lineno}, in {frame.f_code.co_name}"


class Link:
  """This process's connections to its peers, open until the process exits.

  Args:
    index: of this process.
    peers: index -> (connection, name): all others in the first process, the first process in others.
    silence: seconds without a message after which a process counts as lost.
  """

  def __init__(self, index: int, peers: Mapping[int, tuple[socket.socket, str]], *, silence: float):
    self._index, self._silence = index, silence
    self._sockets = {peer: connection for peer, (connection, _) in peers.items()}
    self._names = {peer: f"process {peer} on {name}" for peer, (_, name) in peers.items()}
    self._names[index] = f"process {index} on {socket.gethostname()}"
    self._heard = dict.fromkeys(peers, time.monotonic())
    self._rest = dict.fromkeys(peers, b"")
    self._done: set[int] = set()
    self._places: dict[int, str] = {}
    self._ask_until: float | None = None
    self._stalled_for = ""
    self._code: int | None = None  # of this process's own failure
    self._sending, self._ending = threading.Lock(), threading.Lock()
    self.agreement = sync_point.Agreement(index, list(peers), self._send)

  def start_listening(self) -> None:
    """Starts listening in a background thread until the process exits."""
    global _current
    _current = self
    # JAX aborts a process by SIGABRT as soon as the first process is gone. The handler is replaced by the C library's
    # `sleep`, which is called with the signal's number, 6. These 6 seconds suffice for this thread's message.
    with contextlib.suppress(OSError, AttributeError, TypeError):  # TypeError on Windows
      library = ctypes.CDLL(None)
      library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
      library.signal(signal.SIGABRT, ctypes.cast(library.sleep, ctypes.c_void_p))
    atexit.register(self._bye)  # before JAX leaves its service, which waits for the others
    threading.Thread(target=self._listen, name="link", daemon=True).start()

  # ---- Called by other threads ---------------------------------------------------------------------------------------

  def fail(self, why: str, code: int, trace: str) -> NoReturn:
    if trace:
      time.sleep(_PATIENCE)  # a failure of another process would have ended this one by then
      print(trace, file=sys.stderr)
    self._code = code
    if self._index == FIRST:
      self._end(f"{self._names[FIRST]}: {why}", code, blamed=FIRST)
    self._send(FIRST, "failed", json.dumps([why, code]))
    time.sleep(_PATIENCE)  # until the first process has informed all; `_end` exits on its answer
    self._exit(code)

  def stalled(self, seconds: float) -> None:
    """Handles a step that takes too long: collects the positions of all processes, then ends all."""
    text = f"{seconds:.0f}"
    if self._index == FIRST:
      self._ask(text)
    else:
      self._send(FIRST, "stalled", text)

  def _bye(self) -> None:
    for peer in self._sockets:
      self._send(peer, "bye")

  # ---- Listener thread -----------------------------------------------------------------------------------------------

  def _listen(self) -> None:
    selector = selectors.DefaultSelector()
    for peer, connection in self._sockets.items():
      connection.settimeout(_PATIENCE)
      selector.register(connection, selectors.EVENT_READ, peer)
    beat = self._silence / _BEATS
    next_beat = time.monotonic() + beat
    while True:
      now = time.monotonic()
      wake = next_beat if self._ask_until is None else min(next_beat, self._ask_until)
      for key, _ in selector.select(max(0.0, min(wake - now, 1.0))):
        if not self._read(key.data):
          selector.unregister(key.fileobj)
      now = time.monotonic()
      if now >= next_beat:
        next_beat = now + beat
        for peer in self._sockets.keys() - self._done:
          self._send(peer, "alive")
      if self._ask_until is not None and (now >= self._ask_until or len(self._places) == len(self._names)):
        self._tell_places()
      for peer, heard in self._heard.items():
        if peer not in self._done and now - heard > self._silence:
          self._lost(
            peer, f"has not answered for {self._silence:.0f} s: it was stopped, or its machine or network failed"
          )

  def _read(self, peer: int) -> bool:
    """Reads messages of a process; returns False if it closed the connection."""
    try:
      content = self._sockets[peer].recv(1 << 16)
    except TimeoutError:
      return True
    except OSError:
      content = b""
    if not content:
      if peer not in self._done:
        self._lost(peer, _KILLED)
      return False
    self._heard[peer] = time.monotonic()
    *lines, self._rest[peer] = (self._rest[peer] + content).split(b"\n")
    for line in lines:
      self._take(peer, *json.loads(line))
    return True

  def _take(self, peer: int, word: str, text: str) -> None:
    if word == "bye":
      self._done.add(peer)
    elif word == "failed":
      why, code = json.loads(text)
      self._end(f"{self._names[peer]}: {why}", code, blamed=peer)
    elif word == "stalled":
      self._ask(text)
    elif word == "where":
      self._send(peer, "at", _place())
    elif word == "at":
      self._places[peer] = text
    elif word == "end":
      self._end(*json.loads(text))
    else:
      self.agreement.take(peer, word, text)

  def _ask(self, seconds: str) -> None:
    if self._ask_until is None:
      self._stalled_for, self._places = seconds, {self._index: _place()}
      self._ask_until = time.monotonic() + _PATIENCE
      for peer in self._sockets:
        self._send(peer, "where")

  def _tell_places(self) -> None:
    """Lists positions with few processes first, because the others wait for them."""
    groups: dict[str, list[int]] = {}
    for index in sorted(self._names):
      groups.setdefault(self._places.get(index, "an unknown place (no answer)"), []).append(index)
    shown = []
    for location, indices in sorted(groups.items(), key=lambda item: len(item[1])):
      who = self._names[indices[0]] if len(indices) == 1 else f"{len(indices)} processes ({_numbers(indices)})"
      shown.append(f"{who} in {location}")
    self._end(f"no step has ended for {self._stalled_for} s; positions: {'; '.join(shown)}", exit_codes.LOST)

  def _lost(self, peer: int, why: str) -> None:
    self._end(f"{self._names[peer]} {why}; run the same command again", exit_codes.LOST, blamed=peer)

  # ---- Exit ----------------------------------------------------------------------------------------------------------

  def _end(self, sentence: str, code: int, *, blamed: int | None = None) -> NoReturn:
    """Ends this process, and all others if this is the first; a second caller waits for the first.

    All processes exit with the same code, so that any of them shows whether a restart may help.
    """
    if not self._ending.acquire(blocking=False):
      time.sleep(4 * _PATIENCE)
    if self._index == FIRST:
      for peer in self._sockets:
        self._send(peer, "end", json.dumps([sentence, code]))
      # JAX's service ends with this process, and would abort the others before they have printed the reason.
      self._wait_until_gone([peer for peer in self._sockets if peer != blamed])
    if self._code is None:
      _say_last(f"\nt2t: {sentence}; {self._names[self._index]} exits, too\n")
    self._exit(code if self._code is None else self._code)

  def _wait_until_gone(self, peers: list[int]) -> None:
    deadline = time.monotonic() + _PATIENCE
    for peer in peers:
      with contextlib.suppress(OSError):
        while time.monotonic() < deadline and self._sockets[peer].recv(1 << 16):
          pass

  def _exit(self, code: int) -> NoReturn:
    """Exits immediately, because threads that wait for a dead process would block a regular exit."""
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(Exception):
        stream.flush()
    os._exit(code)

  def _send(self, peer: int, word: str, text: str = "") -> None:
    with contextlib.suppress(OSError), self._sending:
      self._sockets[peer].sendall(json.dumps([word, text]).encode() + b"\n")


def _say_last(text: str) -> None:
  """Writes to standard error, then closes it for JAX's C++ code, which reports the same failure in other words."""
  with contextlib.suppress(Exception):
    sys.stderr.flush()
  with contextlib.suppress(OSError):
    saved_stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.write(saved_stderr, text.encode())


def _numbers(indices: list[int]) -> str:
  """Formats indices: [0, 2, 3, 4, 7] as "0, 2-4, 7"."""
  runs: list[list[int]] = []
  for index in indices:
    if runs and runs[-1][1] == index - 1:
      runs[-1][1] = index
    else:
      runs.append([index, index])
  return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
