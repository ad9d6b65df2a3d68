"""After which step all processes of a run do what one of them was asked for, such as to save and stop.

Every process asks at the same points, after each step and between the batches of an evaluation, whether something is
due.  One that was asked tells the first; that has all say how often they have been here, during which nobody may go
past the next point, and names the point after the furthest.  The link's threads exchange this: a process need not come
to a point to say how far it is, or those that are ahead would wait for data of those that wait for them.
"""

from collections.abc import Callable, Collection
import json
import threading
from typing import NamedTuple

FIRST = 0  # index of the process that decides

# Of what may be asked for; the larger takes the place of the smaller.
SAVE, STOP = 1, 2


class SyncRequest(NamedTuple):
  """What is asked for.

  wish: SAVE or STOP.
  signal: the number of the signal that asked; 0: none did.
  why: in words.
  """

  wish: int
  signal: int
  why: str


class Agreement:
  """One process's part in it; without others it decides by itself.

  Args:
    index: of this process.
    peers: that it sends to; of the first process all others, of another the first alone.
    send: takes the index of another, a word and a text.
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
    # Of the first process alone.
    self._queue: list[SyncRequest] = []
    self._counts: dict[int, int] = {}

  def ask(self, request: SyncRequest) -> None:
    """Has all processes do it, at the same point."""
    if self._index == FIRST:
      self._line_up(request)
    else:
      self._send(FIRST, "wish", json.dumps(request))

  def reached(self) -> SyncRequest | None:
    """This process is at the next point: what is due there."""
    with self._condition:
      self._condition.wait_for(lambda: not self._counting)
      self._count += 1
      return self._due.pop(self._count, None)

  def take(self, peer: int, word: str, text: str) -> None:
    """What another process sent; other words are no concern of this."""
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
      # A cloud tells all machines at once, and each tells the first process.
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
