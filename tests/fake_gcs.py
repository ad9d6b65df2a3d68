"""Google Cloud Storage on 127.0.0.1: PyPI's gcp-storage-emulator, with additions that real clients need, and faults.

The emulator alone accepts stale preconditions, omits generations in headers and offsets in listings, and uses HTTP/1.0
without TLS. TensorFlow's client has Google's addresses built in, so it uses a proxy (CONNECT) with a certificate made
here. The proxy refuses all other addresses.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import http.server
import io
import json
import logging
import os
import pathlib
import socketserver
import ssl
import subprocess
import threading
import time
from urllib import parse

from gcp_storage_emulator import server as emulator
from gcp_storage_emulator.handlers import buckets
from gcp_storage_emulator.storage import Storage

BUCKET = "bucket"
_HOSTS = ("www.googleapis.com", "storage.googleapis.com")  # TensorFlow's addresses

logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
_read_data = emulator._read_data


def _body(handler, query):
  """Returns a body for empty objects, too, such as TensorFlow's "folder/"."""
  data = _read_data(handler, query)
  return b"" if data is None and query.get("uploadType") == ["media"] else data


emulator._read_data = _body


@dataclasses.dataclass
class Fault:
  """A fault in the answers to some requests.

  match: a part of the requests' method and path.
  times: number of faulty answers.
  after: number of correct answers before.
  status: status of the answer.
  slow: seconds before the answer.
  cut: half of the answer is sent, and the connection is closed.
  lost: the request is executed, and the connection is closed without an answer.
  dropped: the request is not executed, and the connection is closed.
  away: seconds for which this and all other connections are closed.
  then: called first at each such request.
  """

  match: str
  times: int = 1
  after: int = 0
  status: int = 0
  slow: float = 0.0
  cut: bool = False
  lost: bool = False
  dropped: bool = False
  away: float = 0.0
  then: Callable[[], None] = lambda: None


class Gcs(http.server.ThreadingHTTPServer):
  """A server with one bucket in memory, as a context manager."""

  daemon_threads = True
  request_queue_size = 128

  def __init__(self, folder: pathlib.Path):
    super().__init__(("127.0.0.1", 0), _Handler)
    self.storage = Storage(use_memory_fs=True)
    self.storage._write_config_to_file = lambda: None  # unused, and takes quadratic time
    buckets.create_bucket(BUCKET, self.storage)
    self.storage.buckets[BUCKET]["softDeletePolicy"] = {"retentionDurationSeconds": "0"}
    self.lock = threading.Lock()
    self.faults: list[Fault] = []
    self.requests: list[tuple[str, int]] = []  # method and path, and bytes of the body
    self.away_until = 0.0
    self._certificate, key = folder / "ca.pem", folder / "key.pem"
    names = ",".join(f"DNS:{host}" for host in _HOSTS)
    made = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=fake-gcs -addext subjectAltName={names}"
    subprocess.run(
      [*made.split(), "-keyout", str(key), "-out", str(self._certificate)], check=True, capture_output=True
    )
    self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    self.tls.load_cert_chain(self._certificate, key)

  def __enter__(self):
    threading.Thread(target=self.serve_forever, daemon=True).start()
    return self

  def __exit__(self, *error):
    self.shutdown()
    super().__exit__(*error)

  def verify_request(self, request, client_address):
    return time.monotonic() >= self.away_until

  def handle_error(self, request, client_address):
    """Ignores clients that disconnect."""

  def environment(self) -> dict[str, str]:
    """Returns environment variables that redirect TensorStore, google-cloud-storage and TensorFlow (etils)."""
    address = f"http://127.0.0.1:{self.server_port}"
    return {
      "TENSORSTORE_GCS_HTTP_URL": address,
      "GOOGLE_AUTH_TOKEN_FOR_TESTING": "x",
      "STORAGE_EMULATOR_HOST": address,
      "GOOGLE_CLOUD_PROJECT": "test",
      "NO_GCE_CHECK": "true",
      "HTTPS_PROXY": address,
      "https_proxy": address,
      "NO_PROXY": "127.0.0.1",
      "no_proxy": "127.0.0.1",
      "CURL_CA_BUNDLE": str(self._certificate),
      # TensorFlow waits a second before its first retry, then longer.
      "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "20000",
      "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "1000000",
    }

  def sizes(self, prefix: str = "") -> dict[str, int]:
    """Returns name -> bytes of each object."""
    found = self.storage.objects.get(BUCKET, {})
    return {name: int(found[name]["size"]) for name in sorted(found) if name.startswith(prefix)}

  def read(self, name: str) -> bytes:
    """Returns the content of an object."""
    return self.storage.get_file(BUCKET, name)

  def write(self, name: str, content: bytes) -> None:
    """Creates an object."""
    address = f"http://127.0.0.1:{self.server_port}"
    record = emulator.objects._make_object_resource(address, BUCKET, name, "application/octet-stream", len(content))
    with self.lock:
      self.storage.create_file(BUCKET, name, content, emulator.objects._checksums(content, record))

  def upload(self, folder: pathlib.Path, prefix: str) -> None:
    """Creates objects from all files in a folder."""
    for path in sorted(folder.rglob("*")):
      if path.is_file():
        self.write(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

  def delete(self, name: str) -> None:
    """Removes an object."""
    with self.lock:
      self.storage.delete_file(BUCKET, name)


class _Handler(emulator.RequestHandler):
  protocol_version = "HTTP/1.1"
  disable_nagle_algorithm = True
  tls, generation = False, None

  def __init__(self, request, address, gcs: Gcs):
    self.gcs = gcs
    super().__init__(gcs.storage, request, address, gcs)

  def log_message(self, *args):
    pass

  def do_CONNECT(self):
    if self.path.removesuffix(":443") not in _HOSTS:
      self.send_error(403)
      return
    self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    self.wfile.flush()
    try:
      self.connection = self.request = self.gcs.tls.wrap_socket(self.connection, server_side=True)
    except OSError:
      self.close_connection = True
      return
    self.rfile, self.wfile = self.connection.makefile("rb", -1), socketserver._SocketWriter(self.connection)
    self.tls, self.close_connection = True, False

  def do_GET(self):
    self._serve("GET")

  def do_POST(self):
    self._serve("POST")

  def do_PUT(self):
    self._serve("PUT")

  def do_DELETE(self):
    self._serve("DELETE")

  def do_PATCH(self):
    self._serve("PATCH")

  def _serve(self, method: str) -> None:
    body = self._take_body()
    url = parse.urlsplit(self.path)
    asked = f"{method} {parse.unquote(self.path)}"
    with self.gcs.lock:
      self.gcs.requests.append((asked, len(body)))
      fault = self._fault(asked)
    fault.then()
    if fault.away:
      self.gcs.away_until = time.monotonic() + fault.away
    if fault.dropped or time.monotonic() < self.gcs.away_until:
      self._hang_up()
      return
    time.sleep(fault.slow)
    if fault.status:
      self._answer(fault.status, {"error": {"code": fault.status, "message": "a fault that the test asked for"}})
      return
    if fault.cut or fault.lost:
      answer, self.wfile = self.wfile, io.BytesIO()
      self._do(method, url, body)
      content = self.wfile.getvalue()
      with contextlib.suppress(OSError):
        answer.write(content[: len(content) // 2 if fault.cut else 0])
      self.wfile = answer
      self._hang_up()
      return
    self._do(method, url, body)

  def _take_body(self) -> bytes:
    # TensorFlow's curl sends both headers with a PUT; chunked applies (RFC 9112, 6.3).
    if "chunked" in self.headers.get("Transfer-Encoding", ""):
      chunks = []
      while size := int(self.rfile.readline().split(b";")[0], 16):
        chunks.append(self.rfile.read(size))
        self.rfile.readline()
      self.rfile.readline()
      body = b"".join(chunks)
    else:
      body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
    del self.headers["Transfer-Encoding"], self.headers["Content-Length"]
    self.headers["Content-Length"] = str(len(body))
    return body

  def _fault(self, asked: str) -> Fault:
    for fault in self.gcs.faults:
      if fault.match in asked and fault.times > 0:
        if fault.after > 0:
          fault.after -= 1
          continue
        fault.times -= 1
        return fault
    return Fault("")

  def _hang_up(self) -> None:
    self.close_connection = True
    with contextlib.suppress(OSError):
      self.connection.shutdown(2)

  def _do(self, method: str, url: parse.SplitResult, body: bytes) -> None:
    query = parse.parse_qs(url.query)
    if url.path.endswith("/storageLayout"):  # TensorFlow requests it before renaming a folder
      self._answer(200, {"kind": "storage#storageLayout", "hierarchicalNamespace": {"enabled": False}})
      return
    bucket, name = self._named(url.path, query, body)
    storage = self.gcs.storage
    with self.gcs.lock:
      found = storage.objects.get(bucket, {}).get(name) if name else None
      generation = int(found["generation"]) if found else 0
      wanted = query.get("ifGenerationMatch", [self.headers.get("x-goog-if-generation-match")])[0]
      unwanted = query.get("ifGenerationNotMatch", [None])[0]
      past_end = self.headers.get("Range") and found and method == "GET" and self._first_byte() >= int(found["size"])
      if wanted is not None and int(wanted) != generation:
        self._answer(412, {"error": {"code": 412, "message": "conditionNotMet"}})
      elif unwanted is not None and int(unwanted) == generation:
        self._answer(304 if method == "GET" else 412)
      elif "generation" in query and method == "GET" and int(query["generation"][0]) != generation:
        self._answer(404, {"error": {"code": 404, "message": "no such generation"}})
      elif method == "DELETE" and found:
        storage.delete_file(bucket, name)
        self.send_response(204)
        self.end_headers()
      elif past_end:
        self._answer(416)
      elif url.path.endswith("/o") and method == "GET":
        self._list(parse.unquote(url.path.split("/")[-2]), {key: values[0] for key, values in query.items()})
      else:
        self.generation = generation if found and method == "GET" else None
        connection, self.rfile = self.rfile, io.BytesIO(body)
        try:
          emulator.Router(self).handle(method)
        finally:
          self.rfile = connection

  def _first_byte(self) -> int:
    return int(self.headers["Range"].removeprefix("bytes=").split("-")[0] or 0)

  def _named(self, path: str, query, body: bytes) -> tuple[str | None, str | None]:
    """Returns bucket and object of a request; None: no bucket or object."""
    parts = path.split("/")
    if "/o/" in path:  # .../b/BUCKET/o/OBJECT, optionally followed by rewriteTo/b/BUCKET/o/OBJECT or compose
      last = len(parts) - 1 - parts[::-1].index("o")
      return parse.unquote(parts[last - 1]), parse.unquote("/".join(parts[last + 1 :])).removesuffix("/compose")
    if path.startswith("/upload/"):
      name = query.get("name", [None])[0]
      if name is None and b'"name"' in body:
        name = json.JSONDecoder().raw_decode(body[body.index(b"{") :].decode("latin1"))[0].get("name")
      return parse.unquote(parts[-2]), name
    if not path.startswith(("/storage/", "/b/", "/batch")) and path.count("/") >= 2:
      return parse.unquote(parts[1]), parse.unquote("/".join(parts[2:]))
    return None, None

  def _list(self, bucket: str, query: dict[str, str]) -> None:
    if bucket not in self.gcs.storage.buckets:
      self._answer(404, {"error": {"code": 404, "message": "The specified bucket does not exist."}})
      return
    keys = ("prefix", "delimiter", "matchGlob")
    files, prefixes = self.gcs.storage.get_file_list(bucket, *(query.get(key) for key in keys))
    low, high = max(query.get("startOffset", ""), query.get("pageToken", "")), query.get("endOffset")
    pairs = sorted([(file["name"], file) for file in files] + [(each, None) for each in prefixes], key=lambda x: x[0])
    pairs = [(name, file) for name, file in pairs if name >= low and (not high or name < high)]
    limit = int(query.get("maxResults", 1000))
    answer = {"kind": "storage#objects", "items": [file for _, file in pairs[:limit] if file]}
    answer["prefixes"] = [name for name, file in pairs[:limit] if not file]
    if pairs[limit:]:
      answer["nextPageToken"] = pairs[limit][0]
    self._answer(200, answer)

  def _answer(self, status: int, content: dict | None = None) -> None:
    body = b"" if content is None else json.dumps(content).encode()
    self.send_response(status)
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(body)))
    self.end_headers()
    self.wfile.write(body)

  def send_header(self, name, value):
    if name.lower() == "range" and value == "bytes=0-0":
      return  # for an empty upload, the emulator reports one byte
    if self.tls and name.lower() == "location":
      value = value.replace("http://", "https://", 1)
    super().send_header(name, value)

  def end_headers(self):
    if self.generation:
      self.send_header("x-goog-generation", str(self.generation))
      self.generation = None
    super().end_headers()


if __name__ == "__main__":
  with Gcs(pathlib.Path(os.path.abspath("."))) as gcs:
    print("\n".join(f"export {name}={value}" for name, value in gcs.environment().items()), flush=True)
    threading.Event().wait()
