"""Connection limits that uvicorn lacks: number of connections, and read and write deadlines."""

import asyncio
import json
import sys
from typing import Any

import h11
from uvicorn.protocols.http import h11_impl

MAX_CONNECTIONS = 128
MAX_HEAD = 65_536  # bytes of a request line and headers
# Deadlines for a request to arrive, including idle time before it, and for the client to read a piece of the response.
READ_SECONDS, WRITE_SECONDS = 15.0, 5.0
LINGER_SECONDS = 5.0  # for the rest of a refused request


def refusal_headers(status: int) -> dict[str, str]:
  """Returns the headers of an error, which closes the connection."""
  return {"Connection": "close"} | ({"Retry-After": "2"} if status == 503 else {})


class Connection(h11_impl.H11Protocol):
  """A client connection with deadlines.

  until: time by which a request must have arrived, on the event loop's clock.
  has_left: whether the client has closed its sending side.
  """

  def __init__(self, *args: Any, **kwargs: Any):
    super().__init__(*args, **kwargs)
    self.app_state = {"connection": self}  # `state` of each request
    self.timeout_keep_alive = READ_SECONDS
    self.until, self.has_left, self._is_refused = 0.0, False, False
    self._writing: asyncio.TimerHandle | None = None

  def connection_made(self, transport: asyncio.Transport) -> None:
    """Starts the deadline of the first request; refuses connections beyond the limit."""
    is_full = len(self.connections) >= MAX_CONNECTIONS
    super().connection_made(transport)
    # Pauses as soon as the network buffer is full, so that `pause_writing` starts the deadline.
    transport.set_write_buffer_limits(high=0)
    self.until = self.loop.time() + READ_SECONDS
    self.timeout_keep_alive_task = self.loop.call_later(READ_SECONDS, self.timeout_keep_alive_handler)
    if is_full:
      self.connections.discard(self)
      self._write_refusal(503, "too many connections; retry in a moment")
      transport.close()

  def data_received(self, data: bytes) -> None:
    """Handles data; unlike in uvicorn, the timer runs until the request's head is complete."""
    if not self._is_refused:
      self.conn.receive_data(data)
      self.handle_events()

  def on_response_complete(self) -> None:
    """Starts the deadline of the next request, if the client may send one."""
    super().on_response_complete()
    self.until = self.loop.time() + READ_SECONDS
    if self.has_left and self.cycle.response_complete:
      self.transport.close()

  def eof_received(self) -> bool:
    """Serves a client that closed only its sending side; returns whether the connection stays open."""
    self.has_left = True
    if self._is_refused or self.cycle is None or self.cycle.response_complete:
      return False
    self.cycle.more_body = False
    self.cycle.message_event.set()
    return True

  def connection_lost(self, exc: Exception | None) -> None:
    """Cancels the timers and wakes up pending writers."""
    self.has_left = True
    self.resume_writing()
    self._unset_keepalive_if_required()
    super().connection_lost(exc)

  def pause_writing(self) -> None:
    """Starts the deadline for the client to read."""
    super().pause_writing()
    self._writing = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

  def resume_writing(self) -> None:
    """Cancels the deadline for the client to read."""
    if self._writing is not None:
      self._writing.cancel()
      self._writing = None
    super().resume_writing()

  def shutdown(self) -> None:
    """Closes connections with incomplete requests; the others are served first."""
    if self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete:
      self.transport.close()
    else:
      super().shutdown()

  def send_400_response(self, msg: str) -> None:
    """Refuses malformed HTTP with a JSON error, and drains the rest: see `app._Refusal`."""
    error = sys.exception()
    status = getattr(error, "error_status_hint", 400)
    if status == 431:
      status = 431 if b"\n" in self.conn.trailing_data[0] else 414
    is_answering = self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE)
    self._is_refused = True
    if self.cycle is not None and not self.cycle.response_complete:
      self.cycle.disconnected = True
      self.cycle.message_event.set()
    if is_answering:
      self.transport.close()
      return
    self._unset_keepalive_if_required()
    self.flow.resume_reading()
    self._write_refusal(status, str(error))
    self.transport.write_eof()
    self.timeout_keep_alive_task = self.loop.call_later(LINGER_SECONDS, self.transport.close)

  def _write_refusal(self, status: int, reason: str) -> None:
    content = json.dumps({"error": reason}).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(content))} | refusal_headers(status)
    head = h11.Response(
      status_code=status,
      headers=[*self.server_state.default_headers, *headers.items()],
      reason=h11_impl.STATUS_PHRASES[status],
    )
    for event in (head, h11.Data(data=content), h11.EndOfMessage()):
      self.transport.write(self.conn.send(event))
