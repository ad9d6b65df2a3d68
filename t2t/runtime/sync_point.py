"""Agreement of all processes on the step after which they act on a request, such as to save and stop.

Every process checks at the same points (after each step and between batches of an evaluation) whether an action is due.
A process with a request sends it to the first process. The first process collects the counts of points that each has
passed, while none may pass its next point, and chooses the point after the furthest. Listener threads exchange the
messages. A process therefore reports its count between points, too; otherwise processes that are ahead would wait for
collectives of processes that wait for them.
"""

from collections.abc import Callable, Collection
import json
import threading
from typing import NamedTuple

FIRST = 0  # index of the process that decides

# Requests; a larger one replaces a smaller one.
SAVE, STOP = 1, 2


class SyncRequest(NamedTuple):
  """A request to all processes.

  Attributes:
    wish: SAVE or STOP.
    signal: number of the signal that caused it; 0 without one.
    why: in words.
  """

  wish: int
  signal: int
  why: str


class Agreement:
  """The agreement as seen by a process; a single process decides by itself.

  Args:
    index: of this process.
    peers: to send to: all others in the first process, the first process in others.
    send: takes the index of a peer, a word and a text.
  """

  def __init__(
    self,
    index: int = FIRST,
    peers: Collection[int] = (),
    send: Callable[[int, str, str], None] = lambda peer, word, text: None,
  ):
    self._index, self._others, self._send = index, tuple(peers), send
    self.on_agreed: Callable[[SyncRequest], None] = lambda request: None
    self._count = 0
    self._due: dict[int, SyncRequest] = {}
    self._counting = False
    self._condition = threading.Condition(threading.RLock())
    # Used by the first process only.
    self._queue: list[SyncRequest] = []
    self._counts: dict[int, int] = {}

  def ask(self, request: SyncRequest) -> None:
    """Requests an action of all processes at the same point."""
    if self._index == FIRST:
      self._line_up(request)
    else:
      self._send(FIRST, "wish", json.dumps(request))

  def reached(self) -> SyncRequest | None:
    """Passes the next point; returns the action that is due there."""
    with self._condition:
      self._condition.wait_for(lambda: not self._counting)
      self._count += 1
      return self._due.pop(self._count, None)

  def take(self, peer: int, word: str, text: str) -> None:
    """Handles a message of another process; unknown words are ignored."""
    if word == "wish":
      self._line_up(SyncRequest(*json.loads(text)))
    elif word == "count":
      with self._condition:
        self._counting = True
        self._send(FIRST, "counted", str(self._count))
    elif word == "counted":
      with self._condition:
        self._counts[peer] = int(text)
        self._conclude()
    elif word == "agreed":
      count, *request = json.loads(text)
      self._note(count, SyncRequest(*request))

  def _line_up(self, request: SyncRequest) -> None:
    with self._condition:
      # A cloud signals all machines at once, and each forwards it to the first process.
      if any(request.wish <= pending.wish for pending in (*self._queue, *self._due.values())):
        return
      self._queue.append(request)
      if len(self._queue) == 1:
        self._count_all()

  def _count_all(self) -> None:
    self._counting, self._counts = True, {self._index: self._count}
    for peer in self._others:
      self._send(peer, "count", "")
    self._conclude()

  def _conclude(self) -> None:
    if not self._queue or len(self._counts) <= len(self._others):
      return
    request, count = self._queue.pop(0), max(self._counts.values()) + 1
    for peer in self._others:
      self._send(peer, "agreed", json.dumps([count, *request]))
    self._note(count, request)
    if self._queue:
      self._count_all()

  def _note(self, count: int, request: SyncRequest) -> None:
    with self._condition:
      self._due[count] = max(request, self._due.get(count, request))
      self._counting = False
      self._condition.notify_all()
    self.on_agreed(request)
