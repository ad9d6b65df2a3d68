"""Files of the Hugging Face hub, read only: commits of revisions, listings, and downloads into hub_cache.py.

A path is hf://datasets/ORG/NAME@REVISION/PATH or, for a model, hf://ORG/NAME@REVISION/PATH. A branch becomes a commit
once in a process. Everything else is read at this commit, so commits and listings are cached on disk, too.

The functions have the names and errors of gcs.py, which calls them for paths hf://. huggingface_hub makes all requests;
its own settings apply: HF_ENDPOINT, HF_TOKEN or the login of `hf auth login`, HF_HUB_OFFLINE.
"""

from collections.abc import Callable, Iterable
import concurrent.futures
import contextlib
import dataclasses
import fnmatch
import functools
import io
import json
import os
import pathlib
import re
import threading
import time
from typing import Any, TypeVar
import urllib.parse

from t2t import UserError, did_you_mean
from t2t.runtime import amounts, cache_folder, console
from t2t.storage import globs, hub_cache, outage, vocabulary_files

T = TypeVar("T")

RETRY_SECONDS = 60.0  # of all retries together, as for a bucket
_RATE_LIMIT_SECONDS = 600.0  # the same, if the hub asks for longer waits; its limits are per five minutes
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 8.0  # seconds between retries
_REQUEST_SECONDS = 20.0
_TOLD_SECONDS = 15.0  # between messages about the progress of downloads
_BLOCK = 2**20  # bytes per read
_AT_ONCE = 4  # downloads of the files of a model

_COMMIT = re.compile(r"[0-9a-f]{40}")
_KINDS = {"datasets": "dataset", "models": "model"}
_FORM = "Give hf://datasets/ORG/NAME@REVISION/PATH, or hf://ORG/NAME@REVISION for a model."
# Files that t2t never reads: weights in other formats than safetensors, pickles, and exports.
_UNREAD = (
  "*.bin *.pt *.pth *.ckpt *.pkl *.h5 rust_model* *.onnx *.onnx_data *.gguf *.tflite *.mlmodel *.pb *.engine *.xml"
)
_UNREAD_NAMES = tuple(_UNREAD.split())
_UNREAD_FOLDERS = ("onnx/", "openvino/", "coreml/", ".git")
_NO_REQUEST = " HF_HUB_OFFLINE=1 forbids requests. Run once without HF_HUB_OFFLINE to download the files."


@dataclasses.dataclass(frozen=True)
class HubPath:
  """A parsed path.

  kind: "dataset" or "model".
  repository: ORG/NAME.
  revision: branch, tag or commit; "": the default branch.
  name: of the file or folder in the repository; "": all of it.
  """

  kind: str
  repository: str
  revision: str
  name: str

  @property
  def url(self) -> str:
    """The path that this location was parsed from."""
    keeps = "/" if _HAS_SLASH.fullmatch(self.revision) else ""
    revision = f"@{urllib.parse.quote(self.revision, safe=keeps)}" if self.revision else ""
    return f"hf://{self.of_kind}{self.repository}{revision}" + (f"/{self.name}" if self.name else "")

  @property
  def of_kind(self) -> str:
    return "datasets/" if self.kind == "dataset" else ""

  @property
  def key(self) -> str:
    """The repository and its revision, "datasets/ORG/NAME@main"."""
    return f"{self.of_kind}{self.repository}@{self.revision or 'main'}"


@dataclasses.dataclass(frozen=True)
class Entry:
  """A file of a listing: bytes, and the digest of its content with the name of the hash."""

  size: int
  digest: str


_HAS_SLASH = re.compile(r"refs/(?:pr|convert)/[^/]+")
_PATH = re.compile(
  r"hf://(?:(?P<kind>datasets|models)/)?(?P<repository>[\w.-]+/[\w.-]+)"
  rf"(?:@(?P<revision>{_HAS_SLASH.pattern}|[^/]+))?(?:/(?P<name>.*))?"
)


def parse(path: str, *, where: str = "") -> HubPath:
  """Parses a path.

  In:  "hf://datasets/ORG/NAME@v1/train/*.parquet"
  Out: HubPath("dataset", "ORG/NAME", "v1", "train/*.parquet")

  Raises:
    UserError: it has another form.
  """
  match = _PATH.fullmatch(path)
  if match is None or match["repository"].startswith(("datasets/", "models/", "spaces/", "buckets/")):
    raise UserError(f"{_begin(where)}{path} is not a path of the Hugging Face hub. {_FORM}")
  name = (match["name"] or "").strip("/")
  if ".." in name.split("/"):
    raise UserError(f"{_begin(where)}{path} contains '..'. {_FORM}")
  kind = _KINDS[match["kind"] or "models"]
  return HubPath(kind, match["repository"], urllib.parse.unquote(match["revision"] or ""), name)


def _begin(where: str) -> str:
  """Returns `where` as the start of a message: a key with "=", an option with a space, or a name without either."""
  return where if not where or where.endswith(("=", " ")) else f"{where}: "


# ---- Requests --------------------------------------------------------------------------------------------------------


@functools.cache
def _library() -> Any:
  try:
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.errors
    import huggingface_hub.hf_api
    import huggingface_hub.utils.logging
  except ImportError as error:
    from t2t.runtime import versions

    raise UserError(
      f"paths hf:// need the package huggingface_hub ({error}). Run `{versions.install_command('hub')}`."
    ) from error
  if not os.environ.get("HF_HUB_VERBOSITY"):
    huggingface_hub.utils.logging.set_verbosity_error()  # its warnings about retries contain signed URLs
  return huggingface_hub


def api() -> Any:
  """Returns the client of the hub; the token comes from the environment or the login.

  Raises:
    UserError: huggingface_hub is not installed.
  """
  return _library().HfApi(endpoint=_endpoint(), library_name="t2t")


def _endpoint() -> str | None:
  return os.environ.get("HF_ENDPOINT") or None  # the library reads the variable only when it is imported


def is_offline() -> bool:
  """Returns whether HF_HUB_OFFLINE forbids requests."""
  return _library().constants.is_offline_mode()


def request(call: Callable[[], T], location: HubPath, *, where: str) -> T:
  """Makes requests, and repeats them after a server error, a lost connection or "too many requests".

  Args:
    call: makes the requests; may be called several times.
    location: that they concern, for messages.
    where: the user's key or option, for messages.

  Raises:
    UserError: the hub refuses the request.
    Away: it does not answer after all retries.
  """
  started, slept, wait = time.monotonic(), 0.0, _FIRST_WAIT
  while True:
    try:
      return call()
    except Exception as error:
      reason = _outage(error)
      if reason is None:
        refusal = _refusal(error, location, where)
        if refusal is None:
          raise
        raise refusal from error
      asked = _retry_after(error)
      pause, most = (asked, _RATE_LIMIT_SECONDS) if asked is not None else (wait, RETRY_SECONDS)
      if max(slept, time.monotonic() - started) + pause > most:
        raise outage.Away(
          f"{_begin(where)}{location.url}: the Hugging Face hub does not answer ({reason}). Run the same command again "
          "to resume."
        ) from error
      console.tell(f"{location.url}: the hub does not answer ({reason}); retrying in {pause:.0f} s")
    time.sleep(pause)
    slept, wait = slept + pause, min(2 * wait, _LONGEST_WAIT)


def _causes(error: BaseException | None) -> Iterable[BaseException]:
  while error is not None:
    yield error
    error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _outage(error: BaseException) -> str | None:
  """Returns the reason in a few words if an error passes by itself; None otherwise."""
  for cause in _causes(error):
    if (status := _status(cause)) is not None:
      return f"HTTP {status}" if status in (408, 429) or status >= 500 else None
    if any(base.__name__ == "TransportError" for base in type(cause).__mro__):  # of httpx
      return f"{type(cause).__name__}: {cause}".strip(": ")
    if type(cause).__name__ == "XetDownloadError" or "Data processing error" in str(cause):
      return f"{type(cause).__name__}: {str(cause)[:100]}"
    if isinstance(cause, OSError) and cause.errno is None and "Consistency check failed" in str(cause):
      return "the download was cut off"
  return None


def _status(error: BaseException) -> int | None:
  return getattr(getattr(error, "response", None), "status_code", None)


def _retry_after(error: BaseException) -> float | None:
  """Returns the seconds of the header Retry-After; None without one."""
  for cause in _causes(error):
    headers = getattr(getattr(cause, "response", None), "headers", {})
    with contextlib.suppress(ValueError):
      if (seconds := float(headers.get("Retry-After", ""))) >= 0:
        return seconds
  return None


def _refusal(error: Exception, location: HubPath, where: str) -> UserError | None:
  """Returns the error of the user that the hub reports; None for other errors."""
  errors, begin, kind = _library().errors, f"{_begin(where)}{location.url}", location.kind
  causes = list(_causes(error))
  any_of = lambda *types: any(isinstance(cause, types) for cause in causes)
  statuses = {_status(cause) for cause in causes}
  if any_of(errors.LocalTokenNotFoundError):
    return UserError(f"{begin}: there is no token for the hub. Set HF_TOKEN, or run `hf auth login`.")
  if any_of(errors.OfflineModeIsEnabled):
    return UserError(f"{begin} is not in the cache {hub_cache.root()}.{_NO_REQUEST}")
  if any_of(errors.RevisionNotFoundError):
    return UserError(
      f"{begin}: the {kind} {location.repository} has no revision {location.revision!r}{_revisions(location)}"
    )
  if any_of(errors.RemoteEntryNotFoundError):
    return UserError(f"{begin} does not exist. {_page(location)} lists the files; correct the path.")
  unreadable = (errors.RepositoryNotFoundError, errors.GatedRepoError, errors.DisabledRepoError)
  if any_of(*unreadable) or statuses & {401, 403, 404}:
    with_token = "the token may not read it" if _library().get_token() else "there is no token"
    gated = f"Accept its conditions on {_page(location)}. " if any_of(errors.GatedRepoError) else ""
    return UserError(
      f"{begin}: the hub has no {kind} {location.repository}, or it is private or gated and {with_token}. {gated}Check "
      "the name, and set HF_TOKEN or run `hf auth login`."
    )
  if any_of(errors.HFValidationError):
    return UserError(f"{begin} is not a valid name ({str(error).splitlines()[0]}). {_FORM}")
  if any_of(errors.HfHubHTTPError, errors.FileMetadataError):
    reason = str(error).strip().splitlines()[0][:200]
    return UserError(f"{begin}: the hub refuses the request ({reason}). Check the path.")
  return None


def _page(location: HubPath) -> str:
  return f"{_endpoint() or 'https://huggingface.co'}/{location.of_kind}{location.repository}"


def _revisions(location: HubPath) -> str:
  """Returns the end of a message with the revisions that exist, as far as the hub says so."""
  try:
    refs = api().list_repo_refs(location.repository, repo_type=location.kind)
  except Exception:  # only for a better message
    return ". Give a branch, a tag or a commit."
  names = [ref.name for ref in (*refs.branches, *refs.tags)]
  near = did_you_mean(location.revision, names)
  return f"{near or '.'} It has {', '.join(names[:8])}{' and others' if len(names) > 8 else ''}."


# ---- Commits ---------------------------------------------------------------------------------------------------------

_commits: dict[str, str] = {}  # `HubPath.key` -> commit, in this process


def commits() -> dict[str, str]:
  """Returns the commits that this process reads, by repository and revision."""
  return dict(_commits)


def adopt(pinned: dict[str, str]) -> None:
  """Makes this process read these commits; see `commits`."""
  _commits.update(pinned)


def pinned(location: HubPath, *, where: str) -> HubPath:
  """Returns a location with its commit as the revision.

  Raises:
    UserError: there is no such repository or revision.
    Away: the hub does not answer.
  """
  if _COMMIT.fullmatch(location.revision):
    return location
  if location.key not in _commits:
    _commits[location.key] = _resolve(location, where)
  return dataclasses.replace(location, revision=_commits[location.key])


def _resolve(location: HubPath, where: str) -> str:
  saved = hub_cache.meta() / f"{urllib.parse.quote(location.key, safe='')}.commit"
  if is_offline():
    try:
      return saved.read_text()
    except OSError:
      raise UserError(
        f"{_begin(where)}{location.url}: the commit of this revision is not in the cache {hub_cache.root()}."
        f"{_NO_REQUEST}"
      ) from None
  options = {"repo_type": location.kind, "revision": location.revision or None, "timeout": _REQUEST_SECONDS}
  info = request(lambda: api().repo_info(location.repository, **options), location, where=where)
  cache_folder.write_atomically(saved, info.sha.encode())
  return info.sha


def at_commit(location: HubPath, commit: str) -> str:
  """Returns the path of a location at a commit."""
  return dataclasses.replace(location, revision=commit).url


def check(path: str, *, where: str) -> None:
  """Checks that a repository and its revision exist and may be read; see `pinned`."""
  pinned(parse(path, where=where), where=where)


def exists(path: str) -> bool:
  """Returns True: a commit stays, and other paths are checked when they are read."""
  del path
  return True


# ---- Listings --------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _tree(location: HubPath, recursive: bool, where: str) -> dict[str, Entry]:
  """Returns the files of a folder at a commit, or of all folders in it, by name in the repository."""
  name = urllib.parse.quote(f"{location.key}/{location.name}{'/**' if recursive else ''}", safe="")
  saved = hub_cache.meta() / f"{name[-200:]}.tree"
  with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
    content = json.loads(saved.read_text())
    if content["of"] == name:
      return {name: Entry(*values) for name, values in content["files"].items()}
  if is_offline():
    raise UserError(
      f"{_begin(where)}{location.url}: the list of files is not in the cache {hub_cache.root()}.{_NO_REQUEST}"
    )
  options = {"repo_type": location.kind, "revision": location.revision, "recursive": recursive}

  def listed() -> dict[str, Entry]:
    try:
      items = list(api().list_repo_tree(location.repository, location.name or None, **options))
    except _library().errors.RemoteEntryNotFoundError:
      return {}  # no such folder
    files = [item for item in items if isinstance(item, _library().hf_api.RepoFile)]
    digest = lambda item: f"sha256:{item.lfs.sha256}" if item.lfs else f"git:{item.blob_id}"
    return {item.path: Entry(item.size, digest(item)) for item in files}

  entries = request(listed, location, where=where)
  files = {name: dataclasses.astuple(entry) for name, entry in entries.items()}
  cache_folder.write_atomically(saved, json.dumps({"of": name, "files": files}).encode())
  return entries


def _folder(location: HubPath, where: str) -> dict[str, Entry]:
  """Returns the files in the folder of a file."""
  return _tree(dataclasses.replace(location, name=location.name.rpartition("/")[0]), False, where)


_matched: dict[str, Entry] = {}  # path at a commit -> file of a listing, for all that `glob` returned


def _entry(path: str, where: str) -> tuple[HubPath, Entry]:
  location = pinned(parse(path, where=where), where=where)
  entry = _matched.get(location.url) or _folder(location, where).get(location.name)
  if entry is None:
    raise UserError(f"{_begin(where)}{path} does not exist. Check the path.")
  return location, entry


def glob(pattern: str, *, where: str) -> list[str]:
  """Returns the files that a glob matches, at a commit; `*` stays within a folder, `**` matches nested folders.

  Raises:
    UserError: none matches; the message names files of the repository.
  """
  typed = parse(pattern, where=where)
  location = pinned(typed, where=where)
  if not location.name:
    example = f"{pattern.rstrip('/')}/**/*.parquet"
    raise UserError(f"{_begin(where)}{pattern} is a repository. Give a glob of its files, for example {example}")
  fixed = re.match(r"[^*?\[]*", location.name).group().rpartition("/")[0]
  recursive = "/" in location.name.removeprefix(fixed).lstrip("/")
  regex = globs.compiled(location.name, like_local=True)
  names = _tree(dataclasses.replace(location, name=fixed), recursive, where)
  # As for local files, brackets that match nothing are literal.
  matches = [name for name in names if regex.fullmatch(name)] or [name for name in names if name == location.name]
  if not matches:
    there = sorted(names) or sorted(_tree(dataclasses.replace(location, name=""), True, where))
    listing = ", ".join(there[:6]) + (f", ... ({len(there)} in all)" if len(there) > 6 else "")
    raise UserError(
      f"{_begin(where)}no file matches {pattern} at commit {location.revision[:12]}. The {location.kind} contains "
      f"{listing or 'no files'}. Check the pattern."
    )
  entries = {dataclasses.replace(location, name=name).url: names[name] for name in matches}
  _matched.update(entries)
  return list(entries)


def stats(paths: list[str], *, where: str) -> dict[str, tuple[int, int]]:
  """Returns path -> (bytes, number of the content); opens no file.

  Raises:
    UserError: a file does not exist.
  """
  entries = {path: _entry(path, where)[1] for path in paths}
  return {path: (entry.size, int(entry.digest.partition(":")[2][:12], 16)) for path, entry in entries.items()}


def checksums(paths: list[str], *, where: str) -> dict[str, str]:
  """Returns path -> digest of the content, "sha256:..." or "git:..."."""
  return {path: _entry(path, where)[1].digest for path in paths}


def names(folder: str, *, where: str) -> list[str]:
  """Returns the names directly in a folder; [] if it does not exist."""
  location = pinned(parse(str(folder), where=where), where=where)
  begin = f"{location.name}/" if location.name else ""
  return sorted({name.removeprefix(begin).partition("/")[0] for name in _tree(location, True, where)})


# ---- Files -----------------------------------------------------------------------------------------------------------


def open_binary(path: str) -> io.BufferedReader:
  """Opens a file, which is downloaded on first use; it stays in the cache while it is open.

  Raises:
    UserError: it does not exist, or does not fit in the cache.
    Away: the hub does not answer.
  """
  return os.fdopen(_held(*_entry(str(path), ""), where="")[1], "rb", _BLOCK)


def _held(location: HubPath, entry: Entry, *, where: str) -> tuple[pathlib.Path, int]:
  """Returns the cached file of a location, downloaded if necessary, and the descriptor that keeps it there."""
  options = {"repo_type": location.kind, "revision": location.revision, "cache_dir": hub_cache.root()}
  cached = _library().try_to_load_from_cache(location.repository, location.name, **options)
  downloaded = False
  while True:
    if isinstance(cached, str):
      descriptor = hub_cache.hold(pathlib.Path(cached))
      if descriptor is not None:
        size = os.fstat(descriptor).st_size
        if size == entry.size:
          return pathlib.Path(cached), descriptor
        os.close(descriptor)
        with contextlib.suppress(FileNotFoundError):
          os.unlink(os.path.realpath(cached))  # damaged by a full disk or by a crash of the machine
        if downloaded:
          raise UserError(
            f"{_begin(where)}{location.url} has {size:,} bytes, but the hub lists {entry.size:,}. Check the repository."
          )
    if is_offline():
      raise UserError(f"{_begin(where)}{location.url} is not in the cache {hub_cache.root()}.{_NO_REQUEST}")
    with hub_cache.room(f"{_begin(where)}{location.url}", entry.size), _meter.of(location.url, entry.size) as bar:
      download = functools.partial(
        _library().hf_hub_download,
        location.repository,
        location.name,
        endpoint=_endpoint(),
        library_name="t2t",
        tqdm_class=bar,
        **options,
      )
      cached, downloaded = request(download, location, where=where), True


class _Meter:
  """Progress of all downloads of the process: a message every few seconds, none for short ones."""

  def __init__(self):
    self._lock = threading.Lock()
    self._running: dict[str, int] = {}  # url -> bytes
    self._received, self._started, self._told = 0, 0.0, 0.0

  @contextlib.contextmanager
  def of(self, url: str, size: int):
    """Yields the class of the progress bar for a download."""
    with self._lock:
      if not self._running:
        self._received, self._started = 0, time.monotonic()
        self._told = self._started
      self._running[url] = size
    try:
      yield functools.partial(_Bar, self)
    finally:
      with self._lock:
        self._running.pop(url, None)

  def add(self, number: int) -> None:
    """Counts received bytes."""
    with self._lock:
      self._received, now = self._received + number, time.monotonic()
      if now - self._told < _TOLD_SECONDS or not self._running:
        return
      self._told = now
      urls, rate = list(self._running), self._received / (now - self._started)
      size = sum(self._running.values())
    more = f" and {len(urls) - 1} more" if len(urls) > 1 else ""
    console.tell(
      f"downloading {urls[0]}{more} ({amounts.nbytes(size)}): {amounts.nbytes(self._received)} received, "
      f"{amounts.nbytes(rate)}/s"
    )


class _Bar:
  """The part of tqdm's interface that huggingface_hub uses for a download."""

  def __init__(self, meter: _Meter, *unused: Any, total: float | None = None, **options: Any):
    del unused, options
    self._meter, self.total, self.n = meter, total, 0.0

  def __enter__(self):
    return self

  def __exit__(self, *unused: object) -> None:
    return None

  def update(self, number: float | None = 1) -> None:
    self._meter.add(int(number or 0))

  def _nothing(self, *unused: object, **options: object) -> None:
    """Methods for the display."""

  set_description = set_description_str = set_postfix_str = refresh = reset = close = _nothing


_meter = _Meter()


# ---- Local copies ----------------------------------------------------------------------------------------------------

_kept: dict[pathlib.Path, int] = {}  # local copy -> descriptor that keeps it in the cache until the process ends
_origins: dict[str, str] = {}  # local path -> path on the hub, with its commit


def fetched(path: str, *, where: str, vocabulary: bool = False) -> str:
  """Returns the local copy of a file or folder, downloaded on first use; it stays until the process ends.

  Args:
    path: a file, a folder or a repository; of a folder the files that t2t reads.
    where: the user's key or option, for messages.
    vocabulary: whether to take only the files of a vocabulary.

  Raises:
    UserError: it does not exist, or does not fit in the cache.
    Away: the hub does not answer.
  """
  location = pinned(parse(path, where=where), where=where)
  wanted = _files_of(location, where, vocabulary)
  if not wanted:
    raise UserError(f"{_begin(where)}{path} contains no {'vocabulary' if vocabulary else 'file'}. Check the path.")
  hub_cache.check_size(f"{_begin(where)}{path}", sum(entry.size for entry in wanted.values()))

  def fetch(item: tuple[str, Entry]) -> pathlib.Path:
    name, entry = item
    file, descriptor = _held(dataclasses.replace(location, name=name), entry, where=where)
    if file in _kept:
      os.close(descriptor)
    else:
      _kept[file] = descriptor
    return file

  with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
    files = dict(zip(wanted, pool.map(fetch, wanted.items()), strict=True))
  first_name, first_file = next(iter(files.items()))
  snapshot = first_file.parents[first_name.count("/")]
  copy = str(snapshot / location.name) if location.name else str(snapshot)
  _origins[str(snapshot)] = dataclasses.replace(location, name="").url
  return copy


def _files_of(location: HubPath, where: str, vocabulary: bool) -> dict[str, Entry]:
  """Returns the files that t2t reads at a location, by name; of a file its folder's vocabulary, too."""
  begin = f"{location.name}/" if location.name else ""
  names: dict[str, Entry] = {}
  if location.name and location.name in (siblings := _folder(location, where)):
    names = {location.name: siblings[location.name]}
    begin, candidates, vocabulary = location.name.rpartition("/")[0], siblings, True
    begin = f"{begin}/" if begin else ""
  else:
    candidates = _tree(location, not vocabulary, where)
  for name, entry in candidates.items():
    inner = name.removeprefix(begin)
    if vocabulary:
      is_read = any(fnmatch.fnmatch(inner, pattern) for pattern in vocabulary_files.PATTERNS)
    else:
      is_read = not inner.startswith(_UNREAD_FOLDERS) and not any(
        fnmatch.fnmatch(inner.lower(), pattern) for pattern in _UNREAD_NAMES
      )
    if is_read:
      names[name] = entry
  return names


def origin(path: str) -> str:
  """Returns the path on the hub, with its commit, of a local copy of `fetched`; other paths unchanged."""
  for folder, url in _origins.items():
    if path == folder or path.startswith(f"{folder}/"):
      return f"{url}{path.removeprefix(folder)}"
  return path


def with_origins(text: str) -> str:
  """Returns a text with `origin` in place of paths of local copies."""
  for folder, url in _origins.items():
    text = text.replace(folder, url)
  return text
