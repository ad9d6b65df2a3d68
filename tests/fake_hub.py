"""A Hugging Face hub in memory, for the real client: repositories with commits, faults, and uploads with Git LFS."""

import base64
from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import hashlib
import http.server
import json
import re
import socket
import threading
from urllib import parse

PAGE = 3  # entries of a listing, so that tests turn pages
LFS = 10_000  # bytes of a file from which on it is stored by LFS


@dataclasses.dataclass
class Fault:
  """An answer that is wrong: for requests with `match` in "METHOD path", `times` times.

  status: of the answer; 0: the connection is closed.
  headers: of the answer.
  cut: number of bytes of the right answer after which the connection is closed.
  skip: number of matching requests before the first wrong answer.
  """

  match: str
  times: int = 1
  status: int = 0
  headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
  cut: int | None = None
  skip: int = 0


@dataclasses.dataclass
class Repository:
  """Files by commit, and commits by branch."""

  commits: dict[str, dict[str, bytes]] = dataclasses.field(default_factory=dict)
  branches: dict[str, str] = dataclasses.field(default_factory=dict)
  private: bool = False

  def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
    """Adds files to a branch; returns the commit."""
    tree = {**self.commits.get(self.branches.get(branch, ""), {}), **files}
    text = json.dumps([len(self.commits), sorted((name, hashlib.sha1(x).hexdigest()) for name, x in tree.items())])
    sha = hashlib.sha1(text.encode()).hexdigest()
    self.commits[sha], self.branches[branch] = tree, sha
    return sha


class Hub:
  """The server; `url` is the value of HF_ENDPOINT."""

  def __init__(self):
    self.repositories: dict[str, Repository] = {}  # "datasets/ORG/NAME" or "ORG/NAME"
    self.faults: list[Fault] = []
    self.requests: list[str] = []  # "METHOD path"
    self.received_ranges: list[str] = []  # of downloads of LFS files
    self.token = "hf_secret"  # that may read private repositories, and write
    self.objects: dict[str, bytes] = {}  # uploaded by LFS
    hub = self

    class Handler(_Handler):
      server_hub = hub

    self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    self._server.daemon_threads = True
    self.port = self._server.server_port
    self.url = f"http://127.0.0.1:{self.port}"
    threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

  def repository(self, name: str, files: Mapping[str, bytes] = {}, *, private: bool = False) -> Repository:  # noqa: B006
    repository = self.repositories.setdefault(name, Repository(private=private))
    if files:
      repository.commit(files)
    return repository

  def count(self, text: str) -> int:
    """Returns the number of requests so far that contain a text."""
    return sum(text in request for request in self.requests)

  def close(self) -> None:
    self._server.shutdown()
    self._server.server_close()


@contextlib.contextmanager
def running() -> Iterator[Hub]:
  hub = Hub()
  try:
    yield hub
  finally:
    hub.close()


class _Handler(http.server.BaseHTTPRequestHandler):
  server_hub: Hub
  protocol_version = "HTTP/1.1"

  def log_message(self, *unused):
    del unused

  def do_GET(self):
    self._answer()

  do_HEAD = do_POST = do_PUT = do_GET

  # ---- Answers -------------------------------------------------------------------------------------------------------

  def _answer(self) -> None:
    hub, self._cut = self.server_hub, None
    self._body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
    request = f"{self.command} {self.path}"
    hub.requests.append(request)
    self._token = self.headers.get("Authorization", "").removeprefix("Bearer ")
    for fault in hub.faults:
      if fault.match in request and fault.skip > 0:
        fault.skip -= 1
      elif fault.match in request and fault.times > 0:
        fault.times -= 1
        if fault.cut is not None:
          self._cut = fault.cut
        elif fault.status:
          return self._send(b"{}", fault.status, **fault.headers)
        else:
          return self._drop()
        break
    path, query = parse.urlsplit(self.path).path, dict(parse.parse_qsl(parse.urlsplit(self.path).query))
    for pattern, answer in _ROUTES.items():
      if match := re.fullmatch(pattern, path):
        return answer(
          self,
          *(parse.unquote(part or "") for part in match.groups()),
          **({"query": query} if answer is _Handler._tree else {}),
        )
    return self._error(404, "RepoNotFound")

  def _drop(self) -> None:
    self.close_connection = True
    with contextlib.suppress(OSError):
      self.connection.shutdown(socket.SHUT_RDWR)

  def _send(self, content: bytes, status: int = 200, **headers: str) -> None:
    self.send_response(status)
    for name, value in {"Content-Length": str(len(content)), **headers}.items():
      self.send_header(name.replace("_", "-"), value)
    self.end_headers()
    if self.command == "HEAD":
      return
    self.wfile.write(content if self._cut is None else content[: self._cut])
    if self._cut is not None:
      self.wfile.flush()
      self._drop()

  def _json(self, value: object, **headers: str) -> None:
    self._send(json.dumps(value).encode(), Content_Type="application/json", **headers)

  def _error(self, status: int, code: str) -> None:
    self._send(b"{}", status, X_Error_Code=code)

  def _repository(self, name: str) -> Repository | None:
    repository = self.server_hub.repositories.get(name.removeprefix("models/"))
    if repository is None or (repository.private and self._token != self.server_hub.token):
      self._error(401, "RepoNotFound")
      return None
    return repository

  def _files(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
    if (repository := self._repository(name)) is None:
      return None
    sha = repository.branches.get(revision or "main", revision)
    if sha not in repository.commits:
      self._error(404, "RevisionNotFound")
      return None
    return sha, repository.commits[sha]

  # ---- Reading -------------------------------------------------------------------------------------------------------

  def _info(self, name: str, revision: str) -> None:
    if found := self._files(name, revision):
      siblings = [{"rfilename": path} for path in found[1]]
      self._json({"id": name.partition("/")[2], "sha": found[0], "private": False, "siblings": siblings, "tags": []})

  def _refs(self, name: str) -> None:
    if repository := self._repository(name):
      branches = [{"name": x, "ref": f"refs/heads/{x}", "targetCommit": y} for x, y in repository.branches.items()]
      self._json({"branches": branches, "tags": [], "converts": []})

  def _tree(self, name: str, revision: str, folder: str, query: Mapping[str, str]) -> None:
    if not (found := self._files(name, revision)):
      return None
    begin = f"{folder}/" if folder else ""
    items = []
    for path, content in sorted(found[1].items()):
      inner = path.removeprefix(begin)
      if path.startswith(begin) and (
        "/" not in inner or query.get("recursive") == "True" or query.get("recursive") == "true"
      ):
        items.append({"type": "file", "path": path, "size": len(content), "oid": _git(content)})
        if len(content) >= LFS:
          items[-1]["lfs"] = {"size": len(content), "oid": hashlib.sha256(content).hexdigest(), "pointerSize": 130}
    if folder and not items:
      return self._error(404, "EntryNotFound")
    first = int(query.get("cursor", 0))
    more = {}
    if first + PAGE < len(items):
      following = parse.urlencode({**query, "cursor": first + PAGE})
      more = {"Link": f'<{self.server_hub.url}{parse.urlsplit(self.path).path}?{following}>; rel="next"'}
    return self._json(items[first : first + PAGE], **more)

  def _resolve(self, name: str, revision: str, path: str) -> None:
    if not (found := self._files(name, revision)):
      return None
    sha, files = found
    if path not in files:
      return self._send(b"{}", 404, X_Error_Code="EntryNotFound", X_Repo_Commit=sha)
    content = files[path]
    if len(content) < LFS:
      return self._content(content, ETag=f'"{_git(content)}"', X_Repo_Commit=sha)
    digest = hashlib.sha256(content).hexdigest()
    self.server_hub.objects[digest] = content
    # Another host than that of the hub, to which clients must not send their token.
    location = f"http://localhost:{self.server_hub.port}/cdn/{digest}"
    linked = {"X_Linked_Etag": f'"{digest}"', "X_Linked_Size": str(len(content))}
    return self._send(b"", 302, Location=location, X_Repo_Commit=sha, **linked)

  def _cdn(self, digest: str) -> None:
    assert "Authorization" not in self.headers
    self.server_hub.received_ranges.append(self.headers.get("Range", ""))
    self._content(self.server_hub.objects[digest], ETag=f'"{digest}"')

  def _content(self, content: bytes, **headers: str) -> None:
    match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
    if not match:
      return self._send(content, Accept_Ranges="bytes", **headers)
    first, size = int(match[1]), len(content)
    return self._send(content[first:], 206, Content_Range=f"bytes {first}-{size - 1}/{size}", **headers)

  # ---- Writing -------------------------------------------------------------------------------------------------------

  def _may_write(self) -> bool:
    if self._token != self.server_hub.token:
      self._error(401, "")
    return self._token == self.server_hub.token

  def _create(self) -> None:
    if not self._may_write():
      return None
    asked = json.loads(self._body)
    name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
    if name in self.server_hub.repositories:
      return self._send(json.dumps({"url": f"{self.server_hub.url}/{name}"}).encode(), 409)
    self.server_hub.repository(name, {".gitattributes": b""}, private=bool(asked.get("private")))
    return self._json({"url": f"{self.server_hub.url}/{name}"})

  def _branch(self, name: str, branch: str) -> None:
    if self._may_write():
      branches = self.server_hub.repositories[name.removeprefix("models/")].branches
      branches.setdefault(branch, branches["main"])
      self._json({})

  def _who(self) -> None:
    if self._may_write():
      self._json({"name": "ORG", "type": "user", "orgs": []})

  def _yaml(self) -> None:
    self._json({"errors": [], "warnings": []})

  def _preupload(self, name: str, revision: str) -> None:
    del name, revision
    if self._may_write():
      mode = lambda size: "lfs" if size >= LFS else "regular"
      files = [
        {"path": x["path"], "uploadMode": mode(x["size"]), "shouldIgnore": False}
        for x in json.loads(self._body)["files"]
      ]
      self._json({"files": files})

  def _batch(self, name: str) -> None:
    del name
    objects = json.loads(self._body)["objects"]
    upload = lambda x: {"href": f"{self.server_hub.url}/upload/{x['oid']}"}
    answers = [{"oid": x["oid"], "size": x["size"], "actions": {"upload": upload(x)}} for x in objects]
    self._json({"transfer": "basic", "objects": answers})

  def _upload(self, digest: str) -> None:
    assert hashlib.sha256(self._body).hexdigest() == digest
    self.server_hub.objects[digest] = self._body
    self._send(b"")

  def _commit(self, name: str, revision: str) -> None:
    if not self._may_write():
      return
    files, removed = {}, []
    for line in self._body.splitlines():
      operation = json.loads(line)
      value = operation["value"]
      if operation["key"] == "file":
        files[value["path"]] = base64.b64decode(value["content"])
      elif operation["key"] == "lfsFile":
        files[value["path"]] = self.server_hub.objects[value["oid"]]
      elif operation["key"] == "deletedFile":
        removed.append(value["path"])
    name = name.removeprefix("models/")
    repository = self.server_hub.repositories[name]
    sha = repository.commit(files, revision)
    for path in removed:
      del repository.commits[sha][path]
    self._json({"commitOid": sha, "commitUrl": f"{self.server_hub.url}/{name}/commit/{sha}", "pullRequestUrl": None})


_NAME = r"((?:models|datasets)/[^/]+/[^/]+)"
_ROUTES = {
  rf"/api/{_NAME}(?:/revision/([^/]+))?": _Handler._info,
  rf"/api/{_NAME}/refs": _Handler._refs,
  rf"/api/{_NAME}/tree/([^/]+)(?:/(.+))?": _Handler._tree,
  rf"/api/{_NAME}/branch/([^/]+)": _Handler._branch,
  rf"/api/{_NAME}/preupload/([^/]+)": _Handler._preupload,
  rf"/api/{_NAME}/commit/([^/]+)": _Handler._commit,
  r"/((?:datasets/)?[^/]+/[^/]+)/resolve/([^/]+)/(.+)": _Handler._resolve,
  r"/cdn/(\w+)": _Handler._cdn,
  r"/api/repos/create": _Handler._create,
  r"/api/whoami-v2": _Handler._who,
  r"/api/validate-yaml": _Handler._yaml,
  r"/(.+)\.git/info/lfs/objects/batch": _Handler._batch,
  r"/upload/(\w+)": _Handler._upload,
}


def _git(content: bytes) -> str:
  return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
