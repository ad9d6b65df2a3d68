"""The link between the processes of a run: one that fails says why, one that falls silent is named, and all end.

Each process keeps the connection over which it answered the first one's roll call (see hosts.py).  The first one hears
what happens to any, and tells all.  JAX's own service notices as well, but only after 100 s, and then ends a process
with the stacks of its C++ code and without a name.
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
_BEATS = 6  # that a process must miss before it counts as lost
# What a process waits before it blames itself for an error that may be the echo of another's end, before it leaves
# when it has said why, and for an answer to the question where it stands.
_PATIENCE = 5.0
_KILLED = "ended without a word: killed, out of memory, or crashed; its log may say more"

_current: "Link | None" = None  # there is one in a process, as there is one jax.distributed


def current() -> "Link | None":
  """The link of this process; None: it is alone."""
  return _current


def fail(why: str, code: int, *, trace: str = "") -> None:
  """Tells the other processes why this one cannot go on, and ends it; alone it does nothing.

  Args:
    why: what is known, in a line.
    code: of this process's exit.
    trace: of an error that may be the echo of another process's end: it is printed if none is told.
  """
  if _current is not None:
    _current.fail(why, code, trace)


def _place() -> str:
  """Where the main thread of this process stands, in the words of a traceback."""
  frame = sys._current_frames().get(threading.main_thread().ident)
  here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # t2t
  passed_on = os.path.join(here, "runtime", "progress.py")  # shows how far others are
  named = lambda frame: frame.f_code.co_filename
  while frame is not None and (not named(frame).startswith(here) or named(frame) == passed_on):
    frame = frame.f_back
  if frame is None:
    return "code that is not t2t's"
  name = os.path.relpath(frame.f_code.co_filename, os.path.dirname(here))
  return f"{name}, line {frame.f_lineno}, in {frame.f_code.co_name}"


class Link:
  """A process's end of the link; it is open until the process ends.

  Args:
    index: of this process.
    peers: index -> (its connection, its name); of the first process all others, of another the first alone.
    silence: seconds after which a process of which nothing is heard counts as lost.
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
    """Begins to listen, in the background, until the process ends."""
    global _current
    _current = self
    # JAX ends a process by SIGABRT the moment that the first one is gone.  Its handler of that signal, the C library's
    # `sleep`, is called with the signal's number, 6: so many seconds are left to this thread to say who it was.
    with contextlib.suppress(OSError, AttributeError):
      library = ctypes.CDLL(None)
      library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
      library.signal(signal.SIGABRT, ctypes.cast(library.sleep, ctypes.c_void_p))
    atexit.register(self._bye)  # before JAX leaves its service, which waits for the others
    threading.Thread(target=self._listen, name="link", daemon=True).start()

  # ---- What other threads call ---------------------------------------------

  def fail(self, why: str, code: int, trace: str) -> NoReturn:
    """See `fail`."""
    if trace:
      time.sleep(_PATIENCE)  # whoever caused it is told by then, which ends this process
      print(trace, file=sys.stderr)
    self._code = code
    if self._index == FIRST:
      self._end(f"{self._names[FIRST]}: {why}", code, blamed=FIRST)
    self._send(FIRST, "failed", json.dumps([why, code]))
    time.sleep(_PATIENCE)  # until the first one has told all: it answers, and `_end` exits
    self._exit(code)

  def stalled(self, seconds: float) -> None:
    """No step has ended for so long: all are asked where they stand, and end."""
    text = f"{seconds:.0f}"
    if self._index == FIRST:
      self._ask(text)
    else:
      self._send(FIRST, "stalled", text)

  def _bye(self) -> None:
    for peer in self._sockets:
      self._send(peer, "bye")

  # ---- The thread ----------------------------------------------------------

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
            peer, f"has not answered for {self._silence:.0f} s: stopped, or its machine or the network is gone"
          )

  def _read(self, peer: int) -> bool:
    """Takes what a process said; False: it has hung up."""
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
    """Whoever stands where few stand comes first: it is what the others wait for."""
    groups: dict[str, list[int]] = {}
    for index in sorted(self._names):
      groups.setdefault(self._places.get(index, "an unknown place: it does not answer"), []).append(index)
    shown = []
    for location, indices in sorted(groups.items(), key=lambda item: len(item[1])):
      who = self._names[indices[0]] if len(indices) == 1 else f"{len(indices)} processes ({_numbers(indices)})"
      shown.append(f"{who} in {location}")
    self._end(f"no step has ended for {self._stalled_for} s; where they stand: {'; '.join(shown)}", exit_codes.LOST)

  def _lost(self, peer: int, why: str) -> None:
    self._end(f"{self._names[peer]} {why}; run the same command again", exit_codes.LOST, blamed=peer)

  # ---- The end -------------------------------------------------------------

  def _end(self, sentence: str, code: int, *, blamed: int | None = None) -> NoReturn:
    """Tells all, if this is the first process, and ends this one; whoever calls second waits for it.

    All end with the same code, so that whoever looks at one of them knows whether to start them again.
    """
    if not self._ending.acquire(blocking=False):
      time.sleep(4 * _PATIENCE)
    if self._index == FIRST:
      for peer in self._sockets:
        self._send(peer, "end", json.dumps([sentence, code]))
      # Its service goes with it, at which JAX would end the others before they have said why.
      self._wait_until_gone([peer for peer in self._sockets if peer != blamed])
    if self._code is None:
      _say_last(f"\nt2t: {sentence}; {self._names[self._index]} ends, too\n")
    self._exit(code if self._code is None else self._code)

  def _wait_until_gone(self, peers: list[int]) -> None:
    deadline = time.monotonic() + _PATIENCE
    for peer in peers:
      with contextlib.suppress(OSError):
        while time.monotonic() < deadline and self._sockets[peer].recv(1 << 16):
          pass

  def _exit(self, code: int) -> NoReturn:
    """At once: threads that wait for a process which is gone would hold up any other way to leave."""
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(Exception):
        stream.flush()
    os._exit(code)

  def _send(self, peer: int, word: str, text: str = "") -> None:
    with contextlib.suppress(OSError), self._sending:
      self._sockets[peer].sendall(json.dumps([word, text]).encode() + b"\n")


def _say_last(text: str) -> None:
  """Writes to standard error, to which JAX's C++ code, which notices the same in its own words, writes no more."""
  with contextlib.suppress(Exception):
    sys.stderr.flush()
  with contextlib.suppress(OSError):
    saved_stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.write(saved_stderr, text.encode())


def _numbers(indices: list[int]) -> str:
  """In: [0, 2, 3, 4, 7]; Out: "0, 2-4, 7"."""
  runs: list[list[int]] = []
  for index in indices:
    if runs and runs[-1][1] == index - 1:
      runs[-1][1] = index
    else:
      runs.append([index, index])
  return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
