"""The application of the server: its paths, who is let in, and how answers and errors are sent."""

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

MAX_REQUESTS = 32  # at a time; all but one wait for the model, in 32 of the 40 threads of Starlette
# For answers that are under way when the server is to end, and for them to say that they have not come to theirs.
END_SECONDS, CUT_SECONDS = 10.0, 3.0
_LINGER_BYTES = 64_000_000  # of the rest of a request that was refused
# Of every response.
HEADERS = {
  "Server": "t2t",
  "Cache-Control": "no-store",
  "X-Content-Type-Options": "nosniff",
  "Referrer-Policy": "no-referrer",
  "Cross-Origin-Resource-Policy": "same-origin",
}
# Error -> status; the first that fits.
_STATUS = {request_schema.TooLarge: 413, openai_api.NotFound: 404, routes.Busy: 503, UserError: 400}


def _json(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
  return Response(f"{json.dumps(value)}\n", status, headers, media_type="application/json")


def _reading(make: Callable[[], Response]) -> Callable[[Request], Awaitable[Response]]:
  """Returns a handler that runs in the event loop: threads would only compete with it for the interpreter."""

  async def handle(request: Request) -> Response:
    del request
    return make()

  return handle


def _error(path: str, status: int, reason: str, cause: Exception | None = None) -> dict[str, Any]:
  """Returns an error as clients of a path expect it."""
  return openai_api.error(status, reason, cause) if path.startswith("/v1/") else {"error": reason}


class _Refusal(Response):
  """An error, which ends the connection.

  A connection that is closed while data are on their way is reset, and the client never sees the answer.  Therefore the
  rest of the request is read and dropped, up to a limit.
  """

  def __init__(
    self, path: str, status: int, reason: str, cause: Exception | None = None, headers: Mapping[str, str] | None = None
  ):
    headers = connection.refusal_headers(status) | dict(headers or {})
    content = f"{json.dumps(_error(path, status, reason, cause))}\n"
    super().__init__(content, status, headers, media_type="application/json")

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the error, and then takes the rest."""
    await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
    await send({"type": "http.response.body", "body": self.body, "more_body": True})
    cycle, left = scope["state"]["connection"].cycle, _LINGER_BYTES
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(connection.LINGER_SECONDS):
        while cycle.more_body and not cycle.disconnected and left > 0:
          left -= len((await receive()).get("body", b""))
    await send({"type": "http.response.body"})


class _Stream(StreamingResponse):
  """An answer that is sent as it comes.

  Args:
    pieces: of the answer; closed when the client has left.
    form: media type.
    finish: called at the end, whatever has happened.
  """

  def __init__(self, pieces: Iterator[bytes], form: str, finish: Callable[[], None]):
    super().__init__(pieces, headers={"Content-Type": form})
    self._pieces, self._finish = pieces, finish

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the pieces until the last, or until the client leaves."""
    try:
      await super().__call__(scope, receive, send)
    finally:
      self._pieces.close()
      self._finish()


class _Gate:
  """Middleware that refuses requests by their head: HTTP that is not spoken here, and clients that are not let in."""

  def __init__(self, app: ASGIApp, let_in: admission.Admission):
    self._app, self._admission = app, let_in

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    path, request = scope["path"], Request(scope)
    refusal = self._admission.refusal(request.headers, asks=path != "/")
    if not scope["http_version"].startswith("1."):
      refusal = 505, f"HTTP {scope['http_version']} is not spoken here; give HTTP 1.1"
    elif len(scope["raw_path"]) + len(scope["query_string"]) > connection.MAX_HEAD:
      refusal = 414, f"the address is longer than {connection.MAX_HEAD:,} bytes"
    elif sum(len(name) + len(value) for name, value in scope["headers"]) > connection.MAX_HEAD:
      refusal = 431, f"the headers are longer than {connection.MAX_HEAD:,} bytes"
    await (self._app if refusal is None else _Refusal(path, *refusal))(scope, receive, send)


class Application:
  """Answers requests to one service.

  Args:
    service: answers.
    let_in: who is let in.

  Attributes:
    places: of requests that are being answered.
    ending: whether new requests are refused.
    cutting: whether those that are being answered end at once.
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
      raise openai_api.NotFound("model", f"model: there is no {name[:60]!r}; there are {', '.join(models)}")
    return _json(models[name])

  # ---- Errors --------------------------------------------------------------

  async def _no_path(self, request: Request, error: HTTPException) -> Response:
    path = request.scope["path"]
    if request.method == "OPTIONS" and path == "*":
      return _options("GET, HEAD, POST, OPTIONS")
    hint = f"the page is at /, and programs give POST {' or '.join(self._endpoints)}"
    if path.startswith("/v1/chat/"):
      hint = "give POST /v1/completions, because no model here was trained on the turns of a chat"
    return _Refusal(path, 404, f"nothing is at {path[:80]}; {hint}")

  async def _no_method(self, request: Request, error: HTTPException) -> Response:
    allowed = "POST, OPTIONS" if "POST" in error.headers["Allow"] else "GET, HEAD, OPTIONS"
    if request.method == "OPTIONS":
      return _options(allowed)
    reason = f"{request.scope['path'][:80]} has no {request.method[:20]}; give {allowed}"
    return _Refusal(request.scope["path"], 405, reason, headers={"Allow": allowed})

  # ---- Answers -------------------------------------------------------------

  async def _answer(self, endpoint: Endpoint, request: Request) -> Response:
    parsed = await run_in_threadpool(endpoint.parse, await _body(request))
    if self.ending:
      raise routes.Busy("the server ends")
    # Requests that are still on their way take no place: they would keep others out.
    if not self.places.acquire(blocking=False):
      raise routes.Busy(f"{MAX_REQUESTS} requests are waiting already; ask again in a moment")
    with contextlib.ExitStack() as stack:
      stack.callback(self.places.release)
      form, events = endpoint.form(parsed), endpoint.answer(parsed)
      if form != routes.WHOLE:
        return _Stream(self._pieces(events, form, request.scope["path"]), form, stack.pop_all().close)
      return await run_in_threadpool(self._whole, events, request.state.connection)

  def _whole(self, events: Iterator[Event], client: connection.Connection) -> Response:
    """Returns the last event alone."""
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
    """Yields each event as it is sent, and an error as the last."""
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
    """Returns how many answers are still under way when no more time is left."""
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
  # A form on another site can send text, but no JSON without being allowed to.
  if headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
    raise UserError("Content-Type: must be application/json")
  if "Transfer-Encoding" in headers:
    raise HTTPException(411, f"Transfer-Encoding: is {headers['Transfer-Encoding'][:40]}; send Content-Length instead")
  if (coding := headers.get("Content-Encoding", "identity")) != "identity":
    raise HTTPException(415, f"Content-Encoding: is {coding[:40]}; send the JSON as it is")
  if "Content-Length" not in headers:
    raise HTTPException(411, "Content-Length: is missing; send the number of bytes")
  length = int(headers["Content-Length"])
  if length > request_schema.MAX_BODY:
    raise request_schema.TooLarge(f"the request has {length:,} bytes; {request_schema.MAX_BODY:,} are the most")
  try:
    async with asyncio.timeout_at(request.state.connection.until):
      content = await request.body()
  except TimeoutError:
    raise HTTPException(408, f"the request did not come within {connection.READ_SECONDS:.0f} s") from None
  if len(content) < length:
    raise UserError(f"the request ends after {len(content):,} of {length:,} bytes")
  return content


def _options(allowed: str) -> Response:
  return Response(status_code=204, headers={"Allow": allowed, "Content-Type": "application/json"})


def _cut() -> str:
  return f"the server has ended, {END_SECONDS:.0f} s after it was told to"


def _failed(error: Exception) -> str:
  """Returns what a device raises, such as that it has no memory left, and prints it."""
  print(f"{type(error).__name__}: {error}", file=sys.stderr)
  return f"{type(error).__name__}: {str(error)[:300]}"


def _line(event: Event) -> bytes:
  return json.dumps(event).encode() + b"\n"


def _server_sent(event: Event) -> bytes:
  # A comment, which shows whether anybody is there.
  return b": waiting\n\n" if "state" in event else b"data: %s\n\n" % json.dumps(event).encode()
