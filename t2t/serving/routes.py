"""What stands behind a path of the server: how its requests are read, answered and described."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import threading
import time
from typing import Any, Protocol

from t2t import UserError

_LONGEST_WAIT = 300.0  # seconds until the model is free

Event = dict[str, Any]

LINES, WHOLE, EVENTS = "application/x-ndjson", "application/json", "text/event-stream"


@dataclasses.dataclass(frozen=True)
class Endpoint:
  """One path to which requests are sent.

  says: what it is for.
  parse: the request that a body makes; raises a UserError of what cannot be used.
  answer: what happens until a request is answered.
  schema: JSON Schema of a request.
  form: of an answer to a request: LINES, a line of JSON for each event; WHOLE, the last event alone; EVENTS, those that
    have no "state" as server-sent events.
  forms: those that there are.
  replies: JSON Schema of what comes: of the last line, of the whole, of an event.
  """

  says: str
  parse: Callable[[bytes], Any]
  answer: Callable[[Any], Iterator[Event]]
  schema: Mapping[str, Any]
  form: Callable[[Any], str] = lambda request: LINES
  forms: tuple[str, ...] = (LINES,)
  replies: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"type": "object"})


class Service(Protocol):
  """One model, which answers one request after another."""

  def about(self) -> Mapping[str, Any]:
    """What the page says of the model, and what it offers."""

  def endpoints(self) -> Mapping[str, Endpoint]:
    """What may be asked, by its path."""

  @property
  def models(self) -> list[str]:
    """Names of what may be asked, its own first."""


class Busy(UserError):
  """The model was not free for so long that it is better to ask again."""


def waiting(device: threading.Lock) -> Iterator[Event]:
  """Takes the lock; meanwhile something is sent all the time, so that who has left is noticed."""
  until = time.monotonic() + _LONGEST_WAIT
  while not device.acquire(timeout=1.0):
    yield {"state": "waiting"}
    if time.monotonic() > until:
      raise Busy(f"the model was not free for {_LONGEST_WAIT:.0f} s; ask again later")


def number(least: float | None = None) -> dict[str, Any]:
  """JSON Schema of a number."""
  return {"type": "number"} | ({} if least is None else {"minimum": least})


def or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
  """JSON Schema of the same, or null."""
  return {"anyOf": [dict(schema), {"type": "null"}]}


TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}


def record(says: str = "", /, **properties: Mapping[str, Any]) -> dict[str, Any]:
  """JSON Schema of an object that may have these properties."""
  return {"type": "object", "properties": properties} | ({"description": says} if says else {})


def listed(items: Mapping[str, Any]) -> dict[str, Any]:
  """JSON Schema of an array."""
  return {"type": "array", "items": items}
