"""Endpoints of the server: parsing, answering and schemas of requests."""

import collections
from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import threading
import time
from typing import Any, Protocol

from t2t import UserError

LONGEST_WAIT = 300.0  # seconds until a pending request gives up

Event = dict[str, Any]

LINES, WHOLE, EVENTS = "application/x-ndjson", "application/json", "text/event-stream"


@dataclasses.dataclass(frozen=True)
class Endpoint:
  """A path that accepts POST requests.

  says: description.
  parse: parses a body; raises a UserError if it is invalid.
  answer: yields events until the request is answered.
  schema: JSON Schema of a request.
  form: format of the response. LINES: a JSON line for each event; WHOLE: only the last event; EVENTS:
    server-sent events, without events that have "state".
  forms: possible values of `form`.
  replies: JSON Schema of the last line, of the whole response, or of an event.
  """

  says: str
  parse: Callable[[bytes], Any]
  answer: Callable[[Any], Iterator[Event]]
  schema: Mapping[str, Any]
  form: Callable[[Any], str] = lambda request: LINES
  forms: tuple[str, ...] = (LINES,)
  replies: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"type": "object"})


class Service(Protocol):
  """A model that answers requests."""

  def about(self) -> Mapping[str, Any]:
    """Returns the facts that the page shows, and the features of the model."""

  def endpoints(self) -> Mapping[str, Endpoint]:
    """Returns the endpoints by path."""

  @property
  def models(self) -> list[str]:
    """Names of the models for `/v1/models`, its own first."""


class Busy(UserError):
  """An error of requests that should be retried later."""


class Turns:
  """Lock whose holders take turns in the order in which they asked; a thread may release what another acquired."""

  def __init__(self):
    self._lock, self._line, self._held = threading.Lock(), collections.deque[threading.Event](), False

  def ask(self) -> threading.Event:
    """Joins the line; the event is set as soon as the lock is held."""
    turn = threading.Event()
    with self._lock:
      if self._held:
        self._line.append(turn)
      else:
        self._held = True
        turn.set()
    return turn

  def give_up(self, turn: threading.Event) -> None:
    """Leaves the line, or releases the lock if it was this turn's."""
    with self._lock:
      if not turn.is_set():
        self._line.remove(turn)
        return
    self.release()

  def release(self) -> None:
    """Passes the lock on to the next in line."""
    with self._lock:
      if self._line:
        self._line.popleft().set()
      else:
        self._held = False

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """Holds the lock until the end of the block."""
    turn = self.ask()
    turn.wait()
    try:
      yield
    finally:
      self.release()


def waiting(device: Turns) -> Iterator[Event]:
  """Acquires the lock; meanwhile yields events regularly, so that a disconnected client is noticed."""
  until, turn = time.monotonic() + LONGEST_WAIT, device.ask()
  try:
    while not turn.wait(timeout=1.0):
      yield {"state": "waiting"}
      if time.monotonic() > until:
        raise busy()
  except BaseException:
    device.give_up(turn)
    raise


def busy() -> Busy:
  """Returns the error of a request that waited too long."""
  return Busy(f"the model was busy for {LONGEST_WAIT:.0f} s; retry later")


def number(least: float | None = None) -> dict[str, Any]:
  """Returns the JSON Schema of a number."""
  return {"type": "number"} | ({} if least is None else {"minimum": least})


def or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the JSON Schema of the same type, or null."""
  return {"anyOf": [dict(schema), {"type": "null"}]}


TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}


def record(says: str = "", /, **properties: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the JSON Schema of an object with these optional properties."""
  return {"type": "object", "properties": properties} | ({"description": says} if says else {})


def listed(items: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the JSON Schema of an array."""
  return {"type": "array", "items": items}
