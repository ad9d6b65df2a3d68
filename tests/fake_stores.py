"""A server for the requests that S3's and Azure's clients make to read objects, with faults on demand.

Checked against moto 5.2 for S3, and against the parser of Azure's client in pyarrow.
"""

import contextlib
import hashlib
import http.server
import threading
import urllib.parse
from xml.sax import saxutils

_DATE = "Mon, 30 Nov 2026 00:00:00 GMT"
# Azure's client ends the process if a response lacks one of its headers.
_AZURE = {
  "x-ms-creation-time": _DATE,
  "x-ms-blob-type": "BlockBlob",
  "x-ms-server-encrypted": "true",
  "x-ms-lease-status": "unlocked",
  "x-ms-lease-state": "available",
  "x-ms-has-immutability-policy": "false",
  "x-ms-has-legal-hold": "false",
  "x-ms-immutable-storage-with-versioning-enabled": "false",
  "x-ms-default-encryption-scope": "none",
  "x-ms-deny-encryption-scope-override": "false",
  "x-ms-request-id": "0",
  "x-ms-version": "2020-02-10",
  "x-ms-client-request-id": "0",
}


class Stores:
  """Objects, and faults.

  Attributes:
    objects: "bucket/name" -> content.
    faults: dicts of `match`, a part of a request's path; `status`, or `cut`, bytes after which the connection ends;
      `times`; and `read`, True for requests of content alone.
    port: of the server.
  """

  def __init__(self):
    self.objects: dict[str, bytes] = {}
    self.faults: list[dict] = []
    self.port = 0

  def fault(self, path: str, *, reads: bool) -> dict:
    for fault in self.faults:
      if fault["match"] in path and fault.get("times", 1) > 0 and (reads or not fault.get("read")):
        fault["times"] = fault.get("times", 1) - 1
        return fault
    return {}

  def environment(self, scheme: str) -> dict[str, str]:
    """Returns the variables with endpoint and credentials."""
    if scheme == "s3":
      keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_EC2_METADATA_DISABLED": "true"}
      return {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", **keys}
    endpoint = f"BlobEndpoint=http://127.0.0.1:{self.port}/account"
    return {"AZURE_STORAGE_CONNECTION_STRING": f"AccountName=account;AccountKey=a2V5;{endpoint}"}


@contextlib.contextmanager
def serve():
  """Yields `Stores` that a server on a free port offers."""
  stores = Stores()
  handler = type("Handler", (_Handler,), {"stores": stores})
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
  server.daemon_threads = True
  stores.port = server.server_address[1]
  threading.Thread(target=server.serve_forever, daemon=True).start()
  try:
    yield stores
  finally:
    server.shutdown()
    server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"
  stores: Stores

  def log_message(self, *arguments):
    pass

  def do_HEAD(self):
    self.answer()

  def do_GET(self):
    self.answer()

  def answer(self):
    path, _, query = self.path.partition("?")
    path, options = urllib.parse.unquote(path).strip("/"), dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    is_azure = "x-ms-version" in self.headers
    if is_azure:
      path = path.removeprefix("account").strip("/")
    reads = self.command == "GET" and "/" in path
    fault = self.stores.fault(path, reads=reads)
    if "status" in fault:
      return self.send(fault["status"])
    if "Authorization" not in self.headers:
      return self.send(403)
    if options.get("action") == "getAccessControl":
      return self.send(400, code="HierarchicalNamespaceNotEnabled")  # a storage account without folders
    bucket, _, key = path.partition("/")
    if not any(name.startswith(f"{bucket}/") for name in self.stores.objects):
      return self.send(404, code="ContainerNotFound" if is_azure else "NoSuchBucket")
    if not key:
      lists = "list-type" in options or options.get("comp") == "list"
      return self.send(200, self.listing(bucket, options, is_azure) if lists else b"", {"ETag": '"0"'})
    if path not in self.stores.objects:
      return self.send(404, code="BlobNotFound" if is_azure else "NoSuchKey")
    content, sizes = self.stores.objects[path], {}
    asked = self.headers.get("x-ms-range") or self.headers.get("Range")
    if asked and self.command == "GET":
      first, _, last = asked.removeprefix("bytes=").partition("-")
      stop = min(int(last or len(content) - 1) + 1, len(content))
      sizes = {"Content-Range": f"bytes {first}-{stop - 1}/{len(content)}"}
      content = content[int(first) : stop]
    etag = hashlib.md5(self.stores.objects[path]).hexdigest()
    return self.send(206 if sizes else 200, content, {"ETag": f'"{etag}"', **sizes}, cut=fault.get("cut"))

  def listing(self, bucket: str, options: dict[str, str], is_azure: bool) -> bytes:
    prefix, delimiter = options.get("prefix", ""), options.get("delimiter", "")
    keys = [name[len(bucket) + 1 :] for name in sorted(self.stores.objects) if name.startswith(f"{bucket}/")]
    files, folders = [], set()
    for key in (key for key in keys if key.startswith(prefix)):
      folder, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
      if slash:
        folders.add(f"{prefix}{folder}{slash}")
      else:
        files.append((saxutils.escape(key), len(self.stores.objects[f"{bucket}/{key}"])))
    if is_azure:
      blobs = "".join(
        f"<Blob><Name>{key}</Name><Properties><Creation-Time>{_DATE}</Creation-Time><Last-Modified>{_DATE}"
        f"</Last-Modified><Etag>1</Etag><Content-Length>{size}</Content-Length><BlobType>BlockBlob</BlobType>"
        "<ServerEncrypted>true</ServerEncrypted></Properties></Blob>"
        for key, size in files
      )
      blobs += "".join(f"<BlobPrefix><Name>{saxutils.escape(folder)}</Name></BlobPrefix>" for folder in sorted(folders))
      return (
        f'<?xml version="1.0"?><EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>'.encode()
      )
    contents = "".join(
      f"<Contents><Key>{key}</Key><LastModified>2026-11-30T00:00:00.000Z</LastModified><ETag>1</ETag>"
      f"<Size>{size}</Size></Contents>"
      for key, size in files
    )
    contents += "".join(
      f"<CommonPrefixes><Prefix>{saxutils.escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders)
    )
    number = len(files) + len(folders)
    return (
      f"<ListBucketResult><Name>{bucket}</Name><KeyCount>{number}</KeyCount><IsTruncated>false</IsTruncated>{contents}"
      "</ListBucketResult>"
    ).encode()

  def send(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None, *, code="", cut=None):
    if status >= 400:
      content = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'.encode()
    self.send_response(status)
    for name, value in (headers or {}).items():
      self.send_header(name, value)
    if code:
      self.send_header("x-ms-error-code", code)
    self.send_header("Last-Modified", _DATE)
    if "x-ms-version" in self.headers:
      for name, value in _AZURE.items():
        self.send_header(name, value)
    if self.command != "HEAD":
      self.send_header("Content-Type", "application/xml" if content[:1] == b"<" else "application/octet-stream")
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    if self.command != "HEAD":
      self.wfile.write(content if cut is None else content[:cut])
    if cut is not None:
      self.close_connection = True
