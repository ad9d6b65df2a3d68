"""`t2t infer --server`: a page on this machine where one asks the model, and paths at which programs do."""

import base64
from collections.abc import Iterator, Mapping
import concurrent.futures
import functools
import hashlib
import http
import http.server
import io
import json
import pathlib
import re
import socket
import sys
import threading
import time
from typing import Any
import urllib.parse

from t2t import UserError
from t2t.inference import admission, completions, endpoints, fields, openapi
from t2t.inference.endpoints import Event, Service
from t2t.runtime import console, preemption

_MAX_CONNECTIONS, _MAX_REQUESTS = 128, 32  # at a time; of requests all but one wait for the model
_READ_SECONDS, _WRITE_SECONDS = (
  15.0,
  5.0,
)  # for a request to arrive, idling before it included; for a piece of the answer
# For answers that are under way when the server is to end, and for them to say that they have not come to theirs.
_END_SECONDS, _CUT_SECONDS = 10.0, 3.0
# Paths that answer GET; behind the last one comes a name.
_READ, _MODEL = ("/", "/about", "/schema.json", "/v1/models"), "/v1/models/"
_LINGER_SECONDS, _LINGER_BYTES = 5.0, 64_000_000  # for the rest of a request that was refused


class _Incoming(io.RawIOBase):
  """What a client sends, all of which must have come by a time: one that sends a byte now and then holds nobody up."""

  def __init__(self, connection: socket.socket):
    super().__init__()
    self._connection = connection
    self.until = time.monotonic() + _READ_SECONDS

  def readable(self) -> bool:
    return True

  def readinto(self, buffer) -> int:
    left = self.until - time.monotonic()
    if left <= 0:
      raise TimeoutError("the request did not come in time")
    self._connection.settimeout(left)
    return self._connection.recv_into(buffer)


class _Refused(UserError):
  """A request whose body cannot be read.

  Args:
    status: of the answer.
    message: what is wrong, and what to send.
  """

  def __init__(self, status: int, message: str):
    super().__init__(message)
    self.status = status


class _Handler(http.server.BaseHTTPRequestHandler):
  """GET / is the page, other paths say what model it is and what it can be asked; POST asks it, see `Endpoint`."""

  protocol_version = "HTTP/1.1"
  server_version, sys_version = "t2t", ""
  server: "Server"
  command, path = "", "/"  # until a request has said them

  def setup(self) -> None:
    """As theirs, but for what limits how long a request takes to come."""
    super().setup()
    self._incoming = _Incoming(self.connection)
    self.rfile = io.BufferedReader(self._incoming)

  def handle_one_request(self) -> None:
    """As theirs; the time begins anew."""
    self._incoming.until = time.monotonic() + _READ_SECONDS
    super().handle_one_request()

  def do_GET(self) -> None:  # noqa: N802  http.server's name
    """The page, and what it says of the model."""
    path = self._path()
    if not self._is_let_in(asks=path != "/"):
      return
    service = self.server.service
    if path == "/":
      content, policy = page()
      self._reply(200, "text/html; charset=utf-8", content, {"Content-Security-Policy": policy})
    elif path == "/about":
      self._reply_json(200, service.about())
    elif path == "/schema.json":
      self._reply_json(200, openapi.document(self.server.endpoints))
    elif path == "/v1/models":
      self._reply_json(200, completions.models(service.models, self.server.began))
    elif path.startswith(_MODEL):
      self._reply_model(urllib.parse.unquote(path.removeprefix(_MODEL)))
    else:
      self._refuse_method()

  do_HEAD = do_GET  # noqa: N815  whose body `_reply` leaves out

  def _reply_model(self, name: str) -> None:
    found = {each["id"]: each for each in completions.models(self.server.service.models, self.server.began)["data"]}
    if name in found:
      self._reply_json(200, found[name])
      return
    error = completions.NotFound("model", f"model: there is no {name[:60]!r}; there are {', '.join(found)}")
    self._refuse(404, str(error), error)

  def do_OPTIONS(self) -> None:  # noqa: N802  http.server's name
    """Answers OPTIONS with the methods of a path; sends no CORS headers."""
    path = self._path()
    if not self._is_let_in(asks=path != "/"):
      return
    allowed = "GET, HEAD, POST, OPTIONS" if path == "*" else self._allowed(path)
    if not allowed:
      self._refuse_method()
      return
    self._start(204, "application/json", {"Allow": allowed})

  def _refuse_method(self) -> None:
    """Returns 405 with the methods of a known path, else 404."""
    path = self._path()
    if allowed := self._allowed(path):
      self._refuse(405, f"{path[:80]} has no {str(self.command)[:20]}; give {allowed}", headers={"Allow": allowed})
      return
    hint = f"the page is at /, and programs give POST {' or '.join(self.server.endpoints)}"
    if path.startswith("/v1/chat/"):
      hint = "give POST /v1/completions, because no model here was trained on the turns of a chat"
    self._refuse(404, f"nothing is at {path[:80]}; {hint}")

  def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
    """Sends http.server's own refusals as JSON: malformed HTTP, headers that are too long, unknown methods."""
    if code == http.HTTPStatus.NOT_IMPLEMENTED:
      if self._is_let_in(asks=True):
        self._refuse_method()
      return
    self.request_version = self.protocol_version  # of a line that is none, http.server takes HTTP 0.9, without a head
    self._refuse(int(code), message or explain or http.HTTPStatus(code).description)

  def _path(self) -> str:
    return self.path.partition("?")[0]

  def _allowed(self, path: str) -> str:
    """The methods of a path; "": there is no such path."""
    if path in self.server.endpoints:
      return "POST, OPTIONS"
    return "GET, HEAD, OPTIONS" if path in _READ or path.startswith(_MODEL) else ""

  def do_POST(self) -> None:  # noqa: N802  http.server's name
    """What the model writes."""
    if not self._is_let_in(asks=True):
      return
    endpoint = self.server.endpoints.get(self._path())
    if endpoint is None:
      self._refuse_method()
      return
    try:
      request = endpoint.parse(self._body())
    except fields.TooLarge as error:
      self._refuse(413, str(error))
      return
    except _Refused as error:
      self._refuse(error.status, str(error))
      return
    except completions.NotFound as error:
      self._refuse(404, str(error), error)
      return
    except UserError as error:
      self._refuse(400, str(error), error)
      return
    except TimeoutError:
      self._refuse(408, f"the request did not come within {_READ_SECONDS:.0f} s")
      return
    if self.server.ending:
      self._refuse(503, "the server ends")
      return
    # Only who has asked takes a place: those whose requests are still on their way would keep others out.
    if not self.server.places.acquire(blocking=False):
      self._refuse(503, f"{_MAX_REQUESTS} requests are waiting already; ask again in a moment")
      return
    try:
      form, events = endpoint.form(request), endpoint.answer(request)
      if form == endpoints.WHOLE:
        self._answer_whole(events)
      else:
        self._stream(events, form)
    finally:
      self.server.places.release()

  def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  http.server's name
    """Says nothing: what goes wrong is told to who asked."""

  def _is_let_in(self, *, asks: bool) -> bool:
    refusal = self.server.admission.refusal(self.headers, asks=asks)
    if refusal:
      self._refuse(*refusal)
    return refusal is None

  def _body(self) -> bytes:
    # A form on another site can send text, but no JSON without being allowed to.
    if self.headers.get_content_type() != "application/json":
      raise UserError("Content-Type: must be application/json")
    if "Transfer-Encoding" in self.headers:
      raise _Refused(
        411, f"Transfer-Encoding: is {self.headers['Transfer-Encoding'][:40]}; send Content-Length instead"
      )
    if (coding := self.headers.get("Content-Encoding", "identity")) != "identity":
      raise _Refused(415, f"Content-Encoding: is {coding[:40]}; send the JSON as it is")
    lengths = self.headers.get_all("Content-Length", [])
    if not lengths:
      raise _Refused(411, "Content-Length: is missing; send the number of bytes")
    if len(lengths) != 1 or not re.fullmatch("[0-9]{1,18}", lengths[0]):
      raise UserError("Content-Length: is given twice, or is no number")
    length = int(lengths[0])
    if length > fields.MAX_BODY:
      raise fields.TooLarge(f"the request has {length:,} bytes; {fields.MAX_BODY:,} are the most")
    content = self.rfile.read(length)
    if len(content) < length:
      raise UserError(f"the request ends after {len(content):,} of {length:,} bytes")
    return content

  def _error(self, status: int, reason: str, cause: Exception | None = None) -> dict[str, Any]:
    """As who asks at this path expects it."""
    return completions.error(status, reason, cause) if self.path.startswith("/v1/") else {"error": reason}

  def _refuse(
    self, status: int, reason: str, cause: Exception | None = None, headers: Mapping[str, str] | None = None
  ) -> None:
    """Answers a request whose body was perhaps not read, and ends the connection."""
    self.close_connection = True
    # A connection that is closed while data are on their way is reset, and who sends them never sees the answer: so
    # the rest is taken and thrown away, up to a limit.
    try:
      self._reply_json(status, self._error(status, reason, cause), headers)
      self.connection.shutdown(socket.SHUT_WR)
      end = self._incoming.until = time.monotonic() + _LINGER_SECONDS
      left = _LINGER_BYTES
      while left > 0 and time.monotonic() < end and (taken := len(self.rfile.read1(65_536))):
        left -= taken
    except OSError:
      pass  # the other side has gone, or says nothing more

  def _reply_json(self, status: int, value: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
    self._reply(status, "application/json", f"{json.dumps(value)}\n".encode(), headers or {})

  def _reply(self, status: int, content_type: str, content: bytes, headers: Mapping[str, str]) -> None:
    self._start(status, content_type, headers | {"Content-Length": str(len(content))})
    if self.command != "HEAD":
      self.wfile.write(content)

  def _start(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
    self.connection.settimeout(_WRITE_SECONDS)
    self.send_response(status)
    fixed = {"Content-Type": content_type, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    fixed |= {"Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin"}
    fixed |= {"Retry-After": "2"} if status == 503 else {}
    for name, value in (fixed | dict(headers)).items():
      self.send_header(name, value)
    if self.close_connection:
      self.send_header("Connection", "close")
    self.end_headers()

  def _answer_whole(self, events: Iterator[Event]) -> None:
    """The last event alone; or what went wrong, with a status that says so."""
    try:
      answer: Event = {}
      for event in events:
        answer = event
        if self._has_left():
          self.close_connection = True
          return
        if self.server.cutting:
          raise endpoints.Busy(self._cut())
      self.close_connection |= self.server.ending
      self._reply_json(200, answer)
    except endpoints.Busy as error:
      self._refuse(503, str(error), error)
    except UserError as error:
      self._refuse(400, str(error), error)
    except (ConnectionError, TimeoutError):
      self.close_connection = True
    except Exception as error:
      self._refuse(500, self._failed(error))
    finally:
      events.close()
      self.close_connection |= self.server.ending

  def _has_left(self) -> bool:
    """Whether who asked has closed the connection; nothing is sent to them that would say so."""
    try:
      self.connection.setblocking(False)
      return not self.connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
      return False
    finally:
      self.connection.settimeout(_WRITE_SECONDS)

  def _stream(self, events: Iterator[Event], form: str) -> None:
    write = self._line if form == endpoints.LINES else self._server_sent
    try:
      if self._takes_chunks:
        self._start(200, form, {"Transfer-Encoding": "chunked"})
      else:
        self.close_connection = True  # which is the end of the answer
        self._start(200, form, {})
      try:
        for event in events:
          write(event)
          if self.server.cutting:
            raise UserError(self._cut())
        if form == endpoints.EVENTS:
          self._chunk(b"data: [DONE]\n\n")
      except UserError as error:
        write(self._error(400, str(error), error))
      except (ConnectionError, TimeoutError):
        raise
      except Exception as error:
        write(self._error(500, self._failed(error)))
      if self._takes_chunks:
        self.wfile.write(b"0\r\n\r\n")
    except (ConnectionError, TimeoutError):
      self.close_connection = True  # who asked has left, or does not read: nothing more is written for them
    finally:
      events.close()
      self.close_connection |= self.server.ending

  def _cut(self) -> str:
    return f"the server has ended, {_END_SECONDS:.0f} s after it was told to"

  def _failed(self, error: Exception) -> str:
    """Whatever a device raises, such as that it has no memory left."""
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return f"{type(error).__name__}: {str(error)[:300]}"

  def _line(self, event: Event) -> None:
    self._chunk(json.dumps(event).encode() + b"\n")

  def _server_sent(self, event: Event) -> None:
    # A comment, which shows whether anybody is there.
    self._chunk(b": waiting\n\n" if "state" in event else b"data: %s\n\n" % json.dumps(event).encode())

  @property
  def _takes_chunks(self) -> bool:
    """False for HTTP/1.0, which has no chunks: a client would read their lengths as text."""
    return self.request_version != "HTTP/1.0"

  def _chunk(self, content: bytes) -> None:
    self.connection.settimeout(_WRITE_SECONDS)
    self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content) if self._takes_chunks else content)


_BUSY = b'{"error": "too many connections; ask again in a moment"}'


class Server(http.server.ThreadingHTTPServer):
  """Answers so many connections at a time, each in a thread; others are told to come again.

  Args:
    service: answers.
    let_in: who is let in.
    port: 0 is any that is free.
  """

  daemon_threads = True
  request_queue_size = _MAX_CONNECTIONS

  def __init__(self, service: Service, let_in: admission.Admission, port: int):
    self.service, self.admission, self.ending = service, let_in, False
    self.cutting = False
    self.endpoints, self.began = service.endpoints(), int(time.time())
    self.places = threading.BoundedSemaphore(_MAX_REQUESTS)
    self._connections = threading.BoundedSemaphore(_MAX_CONNECTIONS)
    self.address_family = socket.AF_INET6 if ":" in let_in.host else socket.AF_INET
    super().__init__((let_in.host, port), _Handler)

  def process_request(self, request: socket.socket, client_address: Any) -> None:
    """In a thread, if there is one left."""
    if self._connections.acquire(blocking=False):
      try:
        super().process_request(request, client_address)
      except BaseException:  # there was no thread to be had
        self._connections.release()
        raise
      return
    try:
      request.setblocking(False)
      request.send(
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 2\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_BUSY), _BUSY)
      )
    except OSError:
      pass  # it has left
    self.shutdown_request(request)

  def process_request_thread(self, request: socket.socket, client_address: Any) -> None:
    """As theirs; then there is a place again."""
    try:
      super().process_request_thread(request, client_address)
    finally:
      self._connections.release()

  def handle_error(self, request: socket.socket, client_address: Any) -> None:
    """A line, where it was not the client that left."""
    error = sys.exception()
    if not isinstance(error, ConnectionError | TimeoutError):
      print(f"{type(error).__name__}: {error}", file=sys.stderr)

  def end(self) -> tuple[int, int]:
    """Takes no more connections, and lets answers that are under way come to an end; how many have not, or cannot."""
    self.ending = True
    self.shutdown()
    self.socket.close()  # who asks now is refused, and does not wait for nobody
    late = self._wait_for_answers(_END_SECONDS)
    self.cutting = True  # each with a last event that says so
    return late, self._wait_for_answers(_CUT_SECONDS) if late else 0

  def _wait_for_answers(self, seconds: float) -> int:
    """How many are still under way when no more time is left."""
    until = time.monotonic() + seconds
    held = 0
    while held < _MAX_REQUESTS and self.places.acquire(timeout=max(0.0, until - time.monotonic())):
      held += 1
    for _ in range(held):
      self.places.release()
    return _MAX_REQUESTS - held


def make_server(service: Service, *, host: str, port: int) -> Server:
  """A server that has its port and waits to be started with `serve_forever`.

  Args:
    service: answers.
    host: address whose requests are heard.
    port: 0 is any that is free.

  Raises:
    UserError: the port is taken, there is no such address, or the environment's token is none.
  """
  try:
    return Server(service, admission.of(host), port)
  except (OSError, OverflowError) as error:
    raise UserError(f"--host {host} --port {port}: {error}; give another, or --port 0 for any that is free") from error


def serve(service: Service, *, host: str, port: int) -> None:
  """Serves the page until a signal ends it, which those are answered before who have asked already.

  Args:
    service: answers.
    host, port: see `make_server`.

  Raises:
    Stopped: a signal came.
  """
  with make_server(service, host=host, port=port) as server:
    at = f"[{host}]" if ":" in host else host
    # Behind #, what a browser keeps to itself.
    token = f"#{server.admission.token}" if server.admission.token else ""
    if not admission.is_local(host):
      print(
        f"--host {host}: others than this machine reach the page, unencrypted; whoever has the address with its token"
        " may ask the model",
        file=sys.stderr,
      )
    answering = preemption.winding_up(_END_SECONDS + _CUT_SECONDS + 1, "when those who have asked are answered")
    with answering, preemption.leaving(lambda: "who was not answered may ask again"):
      print(f"http://{at}:{server.server_port}/{token} is the page; Ctrl-C ends it", flush=True)
      # In a thread of its own: what a signal raises would cut off the request that is just being taken.
      taking = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="server").submit(server.serve_forever, 0.1)
      try:
        while not taking.done():
          concurrent.futures.wait([taking], timeout=0.2)  # in between the main thread hears what came to another
        taking.result()
      except KeyboardInterrupt:
        late, stuck = server.end()
        if stuck:  # in XLA, which would bring down a process that Python takes apart around it
          preemption.end(f"ended; {late} requests were not answered in time")
        console.tell(f"ended; {late} requests were not answered in time" if late else "ended; all are answered")
        raise


_PAGE_FOLDER = pathlib.Path(__file__).parent / "page"
# In this order, in one script.
_PAGE_SCRIPTS = ("elements", "answers", "tokens", "attention", "asking", "start")


def _page_element(tag: str, *files: str) -> tuple[str, str]:
  """An element with the content of these files, and the digest by which a browser knows it."""
  content = "\n" + "\n".join((_PAGE_FOLDER / file).read_text() for file in files)
  digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
  return f"<{tag}>{content}</{tag}>", f"'sha256-{digest}'"


@functools.cache
def page() -> tuple[bytes, str]:
  """The _page, and the policy by which a browser runs no other script and style on it."""
  style, of_style = _page_element("style", "style.css")
  script, of_script = _page_element("script", *(f"{name}.js" for name in _PAGE_SCRIPTS))
  content = (
    (_PAGE_FOLDER / "page.html").read_text().replace("<style></style>", style).replace("<script></script>", script)
  )
  policy = (
    f"default-src 'none'; script-src {of_script}; style-src {of_style}; img-src data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
  )
  return content.encode(), policy
