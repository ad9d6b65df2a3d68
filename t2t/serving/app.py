"""ASGI application of the server: routes, access control, responses and errors."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
import contextlib
import functools
import json
import sys
import threading
import time
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from t2t import UserError
from t2t.serving import admission, connection, html_page, openai_api, openapi, request_schema, routes
from t2t.serving.routes import Endpoint, Event, Service

MAX_REQUESTS = 32  # concurrent requests, in 32 of Starlette's 40 threads
# Seconds for pending answers at shutdown, and then for their final errors.
END_SECONDS, CUT_SECONDS = 10.0, 3.0
_LINGER_BYTES = 64_000_000  # of the rest of a refused request
# Sent with every response.
HEADERS = {
  "Server": "t2t",
  "Cache-Control": "no-store",
  "X-Content-Type-Options": "nosniff",
  "Referrer-Policy": "no-referrer",
  "Cross-Origin-Resource-Policy": "same-origin",
}
# Status by error; the first match counts.
_STATUS = {request_schema.TooLarge: 413, openai_api.NotFound: 404, routes.Busy: 503, UserError: 400}


def _json(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
  return Response(f"{json.dumps(value)}\n", status, headers, media_type="application/json")


def _reading(make: Callable[[], Response]) -> Callable[[Request], Awaitable[Response]]:
  """Returns a handler that runs in the event loop, because a thread would only compete for the interpreter."""

  async def handle(request: Request) -> Response:
    del request
    return make()

  return handle


def _error(path: str, status: int, reason: str, cause: Exception | None = None) -> dict[str, Any]:
  """Returns an error in the format of the path's clients."""
  return openai_api.error(status, reason, cause) if path.startswith("/v1/") else {"error": reason}


class _Refusal(Response):
  """An error response, which closes the connection.

  Closing a connection during an upload resets it, and the client never receives the response. Therefore the
  rest of
  the request is read and dropped, up to a limit.
  """

  def __init__(
    self, path: str, status: int, reason: str, cause: Exception | None = None, headers: Mapping[str, str] | None = None
  ):
    headers = connection.refusal_headers(status) | dict(headers or {})
    content = f"{json.dumps(_error(path, status, reason, cause))}\n"
    super().__init__(content, status, headers, media_type="application/json")

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the error, then drains the request."""
    await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
    await send({"type": "http.response.body", "body": self.body, "more_body": True})
    cycle, left = scope["state"]["connection"].cycle, _LINGER_BYTES
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(connection.LINGER_SECONDS):
        while cycle.more_body and not cycle.disconnected and left > 0:
          left -= len((await receive()).get("body", b""))
    await send({"type": "http.response.body"})


class _Stream(StreamingResponse):
  """A streamed response.

  Args:
    pieces: of the response; closed when the client disconnects.
    form: media type.
    finish: always called at the end.
  """

  def __init__(self, pieces: Iterator[bytes], form: str, finish: Callable[[], None]):
    super().__init__(pieces, headers={"Content-Type": form})
    self._pieces, self._finish = pieces, finish

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the pieces until the last, or until the client disconnects."""
    try:
      await super().__call__(scope, receive, send)
    finally:
      self._pieces.close()
      self._finish()


class _Gate:
  """Middleware that refuses requests by their head: unsupported HTTP, and clients without access."""

  def __init__(self, app: ASGIApp, let_in: admission.Admission):
    self._app, self._admission = app, let_in

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    path, request = scope["path"], Request(scope)
    refusal = self._admission.refusal(request.headers, asks=path != "/")
    if not scope["http_version"].startswith("1."):
      refusal = 505, f"HTTP {scope['http_version']} is not supported; use HTTP 1.1"
    elif len(scope["raw_path"]) + len(scope["query_string"]) > connection.MAX_HEAD:
      refusal = 414, f"the URL is longer than {connection.MAX_HEAD:,} bytes; shorten it"
    elif sum(len(name) + len(value) for name, value in scope["headers"]) > connection.MAX_HEAD:
      refusal = 431, f"the headers are longer than {connection.MAX_HEAD:,} bytes; shorten them"
    await (self._app if refusal is None else _Refusal(path, *refusal))(scope, receive, send)


class Application:
  """Serves the HTTP requests of one service.

  Args:
    service: computes the answers.
    let_in: access control.

  Attributes:
    places: semaphore of the concurrent requests.
    ending: whether new requests are refused.
    cutting: whether pending requests end at once.
  """

  def __init__(self, service: Service, let_in: admission.Admission):
    self.ending = self.cutting = False
    self.places = threading.BoundedSemaphore(MAX_REQUESTS)
    self._endpoints, began = service.endpoints(), int(time.time())
    self._models = lambda: openai_api.models(service.models, began)
    content, policy = html_page.page()
    reading = {
      "/": _reading(lambda: HTMLResponse(content, headers={"Content-Security-Policy": policy})),
      "/about": _reading(lambda: _json(service.about())),
      "/schema.json": _reading(lambda: _json(openapi.document(self._endpoints))),
      "/v1/models": _reading(lambda: _json(self._models())),
      "/v1/models/{name:path}": self._model,
    }
    self.asgi = Starlette(
      routes=[
        *(Route(path, handler) for path, handler in reading.items()),
        *(
          Route(path, functools.partial(self._answer, endpoint), methods=["POST"])
          for path, endpoint in self._endpoints.items()
        ),
      ],
      middleware=[Middleware(_Gate, let_in)],
      exception_handlers={
        404: self._no_path,
        405: self._no_method,
        ClientDisconnect: _hang_up,
        **dict.fromkeys((HTTPException, UserError, Exception), _refuse),
      },
    )
    self.asgi.router.redirect_slashes = False

  async def _model(self, request: Request) -> Response:
    name = request.path_params["name"]
    models = {each["id"]: each for each in self._models()["data"]}
    if name not in models:
      raise openai_api.NotFound("model", f"model {name[:60]!r} is unknown; give one of {', '.join(models)}")
    return _json(models[name])

  # ---- Errors --------------------------------------------------------------

  async def _no_path(self, request: Request, error: HTTPException) -> Response:
    path = request.scope["path"]
    if request.method == "OPTIONS" and path == "*":
      return _options("GET, HEAD, POST, OPTIONS")
    hint = f"The page is at /; programs send POST {' or '.join(self._endpoints)}"
    if path.startswith("/v1/chat/"):
      hint = "Send POST /v1/completions, because no model here was trained on chats"
    return _Refusal(path, 404, f"unknown path {path[:80]}. {hint}.")

  async def _no_method(self, request: Request, error: HTTPException) -> Response:
    allowed = "POST, OPTIONS" if "POST" in error.headers["Allow"] else "GET, HEAD, OPTIONS"
    if request.method == "OPTIONS":
      return _options(allowed)
    reason = f"{request.scope['path'][:80]} does not support {request.method[:20]}; use {allowed}"
    return _Refusal(request.scope["path"], 405, reason, headers={"Allow": allowed})

  # ---- Responses -----------------------------------------------------------------------------------------------------

  async def _answer(self, endpoint: Endpoint, request: Request) -> Response:
    parsed = await run_in_threadpool(endpoint.parse, await _body(request))
    if self.ending:
      raise routes.Busy(f"{request.scope['path'][:80]}: the server is shutting down; retry after the restart")
    # Requests take a place only once they are complete, so that slow uploads do not block others.
    if not self.places.acquire(blocking=False):
      raise routes.Busy(f"{MAX_REQUESTS} requests are already pending; retry in a moment")
    with contextlib.ExitStack() as stack:
      stack.callback(self.places.release)
      form, events = endpoint.form(parsed), endpoint.answer(parsed)
      if form != routes.WHOLE:
        return _Stream(self._pieces(events, form, request.scope["path"]), form, stack.pop_all().close)
      return await run_in_threadpool(self._whole, events, request.state.connection)

  def _whole(self, events: Iterator[Event], client: connection.Connection) -> Response:
    """Returns the last event only."""
    answer: Event = {}
    with contextlib.closing(events):
      for event in events:
        answer = event
        if client.has_left:
          raise ClientDisconnect
        if self.cutting:
          raise routes.Busy(_cut())
    return _json(answer)

  def _pieces(self, events: Iterator[Event], form: str, path: str) -> Iterator[bytes]:
    """Yields each event encoded, and an error as the last event."""
    write = _line if form == routes.LINES else _server_sent
    with contextlib.closing(events):
      try:
        for event in events:
          yield write(event)
          if self.cutting:
            raise UserError(_cut())
        if form == routes.EVENTS:
          yield b"data: [DONE]\n\n"
      except UserError as error:
        yield write(_error(path, 400, str(error), error))
      except Exception as error:
        yield write(_error(path, 500, _failed(error)))

  def wait_for_answers(self, seconds: float) -> int:
    """Waits for pending answers; returns the number that are still pending after `seconds`."""
    until = time.monotonic() + seconds
    held = 0
    while held < MAX_REQUESTS and self.places.acquire(timeout=max(0.0, until - time.monotonic())):
      held += 1
    for _ in range(held):
      self.places.release()
    return MAX_REQUESTS - held


async def _refuse(request: Request, error: Exception) -> Response:
  path = request.scope["path"]
  if isinstance(error, HTTPException):
    return _Refusal(path, error.status_code, error.detail)
  for kind, status in _STATUS.items():
    if isinstance(error, kind):
      return _Refusal(path, status, str(error), error)
  return _Refusal(path, 500, _failed(error))


async def _hang_up(request: Request, error: Exception) -> None:
  del error
  request.state.connection.transport.abort()


async def _body(request: Request) -> bytes:
  headers = request.headers
  # A form on another site can send text, but sending JSON needs permission.
  content_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
  if content_type != "application/json":
    raise UserError(f"Content-Type must be application/json, not {content_type[:40] or 'empty'}")
  if "Transfer-Encoding" in headers:
    raise HTTPException(
      411, f"Transfer-Encoding {headers['Transfer-Encoding'][:40]} is not supported; send Content-Length instead"
    )
  if (coding := headers.get("Content-Encoding", "identity")) != "identity":
    raise HTTPException(415, f"Content-Encoding {coding[:40]} is not supported; send the JSON uncompressed")
  if "Content-Length" not in headers:
    raise HTTPException(
      411, f"Content-Length is missing; send the number of bytes, at most {request_schema.MAX_BODY:,}"
    )
  length = int(headers["Content-Length"])
  if length > request_schema.MAX_BODY:
    raise request_schema.TooLarge(
      f"the request has {length:,} bytes, more than the limit of {request_schema.MAX_BODY:,}; shorten the request"
    )
  try:
    async with asyncio.timeout_at(request.state.connection.until):
      content = await request.body()
  except TimeoutError:
    raise HTTPException(
      408, f"the request did not arrive within {connection.READ_SECONDS:.0f} s; send the request again"
    ) from None
  if len(content) < length:
    raise UserError(
      f"the request ends after {len(content):,} of {length:,} bytes (Content-Length); send the request again"
    )
  return content


def _options(allowed: str) -> Response:
  return Response(status_code=204, headers={"Allow": allowed, "Content-Type": "application/json"})


def _cut() -> str:
  return f"the server shut down {END_SECONDS:.0f} s after a signal, before the answer was complete; retry"


def _failed(error: Exception) -> str:
  """Returns a device error, such as out of memory, and prints it."""
  print(f"{type(error).__name__}: {error}", file=sys.stderr)
  return f"{type(error).__name__}: {str(error)[:300]}"


def _line(event: Event) -> bytes:
  return json.dumps(event).encode() + b"\n"


def _server_sent(event: Event) -> bytes:
  # An SSE comment, which reveals whether the client is still connected.
  return b": waiting\n\n" if "state" in event else b"data: %s\n\n" % json.dumps(event).encode()
