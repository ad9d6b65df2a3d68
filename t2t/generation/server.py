"""`t2t infer --server`: a page on this machine where one types an input and watches the model answer."""

import base64
from collections.abc import Iterator, Mapping
import functools
import hashlib
import http.server
import json
import pathlib
import re
import socket
import sys
import time
from typing import Any

from t2t import UserError
from t2t.generation.served import Event, Service

_MAX_BODY = 1_000_000
_LINGER_SECONDS, _LINGER_BYTES = 5.0, 64_000_000  # for the rest of a request that was refused


# ---- The page --------------------------------------------------------------------------------------------------------


@functools.cache
def page() -> tuple[bytes, str]:
  """The page, which loads nothing from elsewhere, and the policy by which a browser runs no other script on it."""
  content = pathlib.Path(__file__).with_name("page.html").read_text()

  def hashed(tag: str) -> str:
    inside = re.search(f"<{tag}>(.*?)</{tag}>", content, re.DOTALL)[1]
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"

  policy = (
    f"default-src 'none'; script-src {hashed('script')}; style-src {hashed('style')}; img-src data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
  )
  return content.encode(), policy


class _Handler(http.server.BaseHTTPRequestHandler):
  """GET / is the page, GET /about says what model it is, POST /generate answers with a line of JSON for each event."""

  protocol_version = "HTTP/1.1"
  service: Service  # set by `make_server`
  only_local: bool

  def do_GET(self) -> None:  # noqa: N802  http.server's name
    """The page, and what it says of the model."""
    if not self._is_ours():
      return
    if self.path == "/":
      content, policy = page()
      self._reply(200, "text/html; charset=utf-8", content, {"Content-Security-Policy": policy})
    elif self.path == "/about":
      self._reply_json(200, self.service.about())
    else:
      self._reply_json(404, {"error": f"nothing is at {self.path}; the page is at /"})

  def do_POST(self) -> None:  # noqa: N802  http.server's name
    """What the model writes."""
    if not self._is_ours():
      return
    if self.path != "/generate":
      self._refuse(404, f"nothing is at {self.path}; give POST /generate")
      return
    try:
      request = self.service.parse(self._body())
    except UserError as error:
      self._refuse(400, str(error))
      return
    self._stream(self.service.generate(request))

  def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  http.server's name
    """Says nothing: what goes wrong is told to who asked."""

  def _is_ours(self) -> bool:
    """Whether the page itself asks: another site that a browser shows must not get at what this machine serves."""
    host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
    if self.only_local and host.strip("[]") not in ("localhost", "127.0.0.1", "::1"):
      self._refuse(403, f"no requests for {host}; this page is at localhost")
      return False
    return True

  def _body(self) -> bytes:
    # A form on another site can send text, but no JSON without being allowed to.
    if self.headers.get_content_type() != "application/json":
      raise UserError("Content-Type: must be application/json")
    length = self.headers.get("Content-Length", "")
    if not length.isdigit():
      raise UserError("Content-Length: is missing")
    if int(length) > _MAX_BODY:
      raise UserError(f"the request has {int(length):,} bytes; {_MAX_BODY:,} are the most")
    return self.rfile.read(int(length))

  def _refuse(self, status: int, reason: str) -> None:
    """Answers a request whose body was perhaps not read, and ends the connection."""
    self.close_connection = True
    self._reply_json(status, {"error": reason})
    # A connection that is closed while data are on their way is reset, and who sends them never sees the answer: so
    # the rest is taken and thrown away, up to a limit.
    try:
      self.connection.shutdown(socket.SHUT_WR)
      self.connection.settimeout(_LINGER_SECONDS)
      end = time.monotonic() + _LINGER_SECONDS
      left = _LINGER_BYTES
      while left > 0 and time.monotonic() < end and (taken := len(self.rfile.read1(65_536))):
        left -= taken
    except OSError:
      pass  # the other side has gone, or says nothing more

  def _reply_json(self, status: int, value: Mapping[str, Any]) -> None:
    self._reply(status, "application/json", json.dumps(value).encode(), {})

  def _reply(self, status: int, content_type: str, content: bytes, headers: Mapping[str, str]) -> None:
    self._start(status, content_type, headers | {"Content-Length": str(len(content))})
    self.wfile.write(content)

  def _start(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
    self.send_response(status)
    fixed = {"Content-Type": content_type, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    for name, value in (fixed | dict(headers)).items():
      self.send_header(name, value)
    if self.close_connection:
      self.send_header("Connection", "close")
    self.end_headers()

  def _stream(self, events: Iterator[Event]) -> None:
    self._start(200, "application/x-ndjson", {"Transfer-Encoding": "chunked"})
    try:
      try:
        for event in events:
          self._chunk(event)
      except UserError as error:
        self._chunk({"error": str(error)})
      except ConnectionError:
        raise
      except Exception as error:  # whatever a device raises, such as that it has no memory left
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        self._chunk({"error": f"{type(error).__name__}: {str(error)[:300]}"})
      self.wfile.write(b"0\r\n\r\n")
    except ConnectionError:
      self.close_connection = True  # who asked has left: nothing more is written for them
    finally:
      events.close()

  def _chunk(self, event: Event) -> None:
    content = json.dumps(event).encode() + b"\n"
    self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))


def make_server(service: Service, *, host: str, port: int) -> http.server.ThreadingHTTPServer:
  """A server that has its port and waits to be started with `serve_forever`.

  Args:
    service: answers.
    host: address whose requests are heard.
    port: 0 is any that is free.

  Raises:
    UserError: the port is taken, or there is no such address.
  """
  local = host in ("127.0.0.1", "localhost", "::1")
  handler = type("Handler", (_Handler,), {"service": service, "only_local": local})
  try:
    return http.server.ThreadingHTTPServer((host, port), handler)
  except (OSError, OverflowError) as error:
    raise UserError(f"--host {host} --port {port}: {error}; give another, or --port 0 for any that is free") from error


def serve(service: Service, *, host: str, port: int) -> None:
  """Serves the page until Ctrl-C.

  Args:
    service: answers.
    host, port: see `make_server`.
  """
  with make_server(service, host=host, port=port) as server:
    print(f"http://{host}:{server.server_port}/ is the page; Ctrl-C ends it", flush=True)
    try:
      server.serve_forever()
    except KeyboardInterrupt:
      print("\nended", file=sys.stderr)
