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


class Asked(NamedTuple):
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
    others: that it sends to; of the first process all others, of another the first alone.
    send: takes the index of another, a word and a text.
  """

  def __init__(
    self,
    index: int = FIRST,
    others: Collection[int] = (),
    send: Callable[[int, str, str], None] = lambda other, word, text: None,
  ):
    self._index, self._others, self._send = index, tuple(others), send
    self.on_agreed: Callable[[Asked], None] = lambda asked: None
    self._count = 0
    self._due: dict[int, Asked] = {}
    self._counting = False
    self._condition = threading.Condition(threading.RLock())
    # Of the first process alone.
    self._queue: list[Asked] = []
    self._counts: dict[int, int] = {}

  def ask(self, asked: Asked) -> None:
    """Has all processes do it, at the same point."""
    if self._index == FIRST:
      self._line_up(asked)
    else:
      self._send(FIRST, "wish", json.dumps(asked))

  def reached(self) -> Asked | None:
    """This process is at the next point: what is due there."""
    with self._condition:
      self._condition.wait_for(lambda: not self._counting)
      self._count += 1
      return self._due.pop(self._count, None)

  def take(self, other: int, word: str, text: str) -> None:
    """What another process sent; other words are no concern of this."""
    if word == "wish":
      self._line_up(Asked(*json.loads(text)))
    elif word == "count":
      with self._condition:
        self._counting = True
        self._send(FIRST, "counted", str(self._count))
    elif word == "counted":
      with self._condition:
        self._counts[other] = int(text)
        self._conclude()
    elif word == "agreed":
      count, *asked = json.loads(text)
      self._note(count, Asked(*asked))

  def _line_up(self, asked: Asked) -> None:
    with self._condition:
      # A cloud tells all machines at once, and each tells the first process.
      if any(asked.wish <= other.wish for other in (*self._queue, *self._due.values())):
        return
      self._queue.append(asked)
      if len(self._queue) == 1:
        self._count_all()

  def _count_all(self) -> None:
    self._counting, self._counts = True, {self._index: self._count}
    for other in self._others:
      self._send(other, "count", "")
    self._conclude()

  def _conclude(self) -> None:
    if not self._queue or len(self._counts) <= len(self._others):
      return
    asked, count = self._queue.pop(0), max(self._counts.values()) + 1
    for other in self._others:
      self._send(other, "agreed", json.dumps([count, *asked]))
    self._note(count, asked)
    if self._queue:
      self._count_all()

  def _note(self, count: int, asked: Asked) -> None:
    with self._condition:
      self._due[count] = max(asked, self._due.get(count, asked))
      self._counting = False
      self._condition.notify_all()
    self.on_agreed(asked)
