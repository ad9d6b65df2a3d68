"""Amazon S3 (s3://) and Azure Blob Storage (az://) for reading, by the clients of pyarrow.

Data files are read by ranges. A vocabulary or a checkpoint is copied to the cache folder first, because TensorFlow,
SentencePiece and Orbax have no client for these stores. Credentials come from the environment, as the tools of the
stores read them; for S3 also from ~/.aws and from the role of the machine.
"""

from collections.abc import Iterator
import concurrent.futures
import contextlib
import fnmatch
import functools
import hashlib
import io
import os
import pathlib
import re
import tempfile
from typing import Any

import pyarrow as pa
from pyarrow import fs

from t2t import UserError
from t2t.runtime import cache_folder, file_lock, progress
from t2t.storage import gcs, globs, outage, vocabulary_files

_READ_AT_ONCE = 4 * 2**20  # bytes
_COPIED_AT_ONCE = 8  # files
_REQUESTED_AT_ONCE = 32  # ETags
_SECOND = 10**9  # nanoseconds
_TRIES = 6  # of a request to S3, with waits that double; the client for Azure has 4, fixed
_REQUEST_SECONDS = 20

_NAMES = {"s3": ("bucket", "`aws s3 ls`"), "az": ("container", "`az storage container list`")}
_CREDENTIALS = {
  "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE,",
  "az": "AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING",
}
_MISSING = re.compile(r"NO_SUCH_BUCKET|ContainerNotFound|ContainerBeingDeleted|InvalidResourceName|INVALID_BUCKET")
_DENIED = re.compile(r"ACCESS_DENIED|HTTP status 40[13]|\] 40[13] |SIGNATURE|INVALID_ACCESS_KEY|Credential|InvalidAuth")
_AWAY = re.compile(
  r"SLOW_DOWN|THROTTLING|NETWORK_CONNECTION|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_TIMEOUT"
  r"|HTTP status (408|429|5)|\] (408|429|5\d\d) |[Cc]onnect|[Tt]imed out|[Tt]ransport|curl|socket"
)


class StoreError(OSError):
  """A failed request.

  Attributes:
    is_outage: whether the same request may succeed later.
  """

  def __init__(self, reason: str, *, is_outage: bool):
    super().__init__(reason)
    self.is_outage = is_outage


def _split(path: Any) -> tuple[str, str]:
  """Splits a path into the store and the name of bucket and object."""
  scheme, _, name = str(path).partition("://")
  return scheme, name.strip("/")


# ---- Clients ---------------------------------------------------------------------------------------------------------


def _client(scheme: str) -> fs.FileSystem:
  names = [name for name in sorted(os.environ) if name.startswith(("AWS_", "AZURE_"))]
  return _clients(scheme, tuple((name, os.environ[name]) for name in names))


@functools.lru_cache(maxsize=4)
def _clients(scheme: str, environment: tuple[tuple[str, str], ...]) -> fs.FileSystem:
  given = dict(environment)
  if scheme == "s3":
    fs.ensure_s3_initialized()
    return fs.S3FileSystem(
      endpoint_override=given.get("AWS_ENDPOINT_URL_S3") or given.get("AWS_ENDPOINT_URL"),
      request_timeout=_REQUEST_SECONDS,
      connect_timeout=_REQUEST_SECONDS,
      retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_TRIES),
    )
  if not hasattr(fs, "AzureFileSystem"):
    raise UserError("az:// needs a pyarrow with Azure. Run `pip install --upgrade pyarrow`.")
  stated = given.get("AZURE_STORAGE_CONNECTION_STRING", "")
  parts = dict(part.split("=", 1) for part in stated.split(";") if "=" in part)
  account = parts.get("AccountName") or given.get("AZURE_STORAGE_ACCOUNT") or given.get("AZURE_STORAGE_ACCOUNT_NAME")
  if not account:
    raise UserError(f"az:// needs the name of a storage account. Set {_CREDENTIALS['az']} in the environment.")
  options: dict[str, Any] = {
    "account_key": parts.get("AccountKey") or given.get("AZURE_STORAGE_KEY") or given.get("AZURE_STORAGE_ACCOUNT_KEY"),
    "sas_token": parts.get("SharedAccessSignature") or given.get("AZURE_STORAGE_SAS_TOKEN"),
  }
  options = {name: value for name, value in options.items() if value}
  if match := re.fullmatch(r"(https?)://([^/]+)(/.*)?", parts.get("BlobEndpoint", "")):
    for service in ("blob", "dfs"):
      options |= {f"{service}_storage_scheme": match[1], f"{service}_storage_authority": match[2]}
  try:
    return fs.AzureFileSystem(account, **options)
  except (ValueError, OSError) as error:
    raise UserError(f"az://: the credentials cannot be used ({_line(error)}). Check {_CREDENTIALS['az']}.") from error


# ---- Errors ----------------------------------------------------------------------------------------------------------


def _line(error: BaseException) -> str:
  text = " ".join(str(error).split()) or type(error).__name__
  reason = re.search(r"(AWS|Azure) Error.*", text)
  return re.sub(r" ?\(?Request ID:.*", "", reason[0] if reason else text)[:200].rstrip(" :.")


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
  """Converts the clients' errors to FileNotFoundError and `StoreError`."""
  try:
    yield
  except (FileNotFoundError, StoreError):
    raise
  except (OSError, pa.ArrowException) as error:
    raise StoreError(_line(error), is_outage=bool(_AWAY.search(str(error)))) from error


@contextlib.contextmanager
def _refusing(path: Any, *, where: str) -> Iterator[None]:
  """Converts errors to a sentence for the user; `outage.Away` if the store does not answer."""
  scheme, key = _split(path)
  if not key:
    word = _NAMES[scheme][0]
    raise UserError(f"{_subject(path, where)}: the path has no {word}. Give {scheme}://{word.upper()}/NAME.")
  try:
    with _as_os_errors():
      yield
  except (FileNotFoundError, StoreError) as error:
    raise _refusal(error, path, where=where) from error


def _subject(path: Any, where: str) -> str:
  return f"{where}{path}" if where.endswith((" ", "=")) or not where else f"{where}: {path}"


def _refusal(error: OSError, path: Any, *, where: str) -> UserError:
  scheme, key = _split(path)
  (word, listing), name, text = _NAMES[scheme], key.partition("/")[0], str(error)
  subject = _subject(path, where)
  if isinstance(error, FileNotFoundError) or _MISSING.search(text):
    return UserError(f"{subject}: {word} {name!r} does not exist. Run {listing} to list them.")
  if _DENIED.search(text):
    return UserError(
      f"{subject}: access to {word} {name!r} is denied ({text}). Set {_CREDENTIALS[scheme]} in the environment, of an "
      "account that may read it."
    )
  return outage.refusal(f"{subject}: {word} {name!r} cannot be reached ({text})", error)


def check(path: Any, *, where: str) -> None:
  """Checks that the bucket or container of `path` exists and is readable.

  Args:
    path: s3:// or az://.
    where: the user's key or flag for it, for messages.

  Raises:
    UserError: it does not exist, or access is denied.
    Away: the store cannot be reached.
  """
  scheme, key = _split(path)
  with _refusing(path, where=where):
    if _client(scheme).get_file_info(key.partition("/")[0]).type == fs.FileType.NotFound:
      raise FileNotFoundError(key)


def exists(path: Any) -> bool:
  """Returns whether there is an object or a folder; see `check` for errors."""
  scheme, key = _split(path)
  with _refusing(path, where=""):
    return _client(scheme).get_file_info(key).type != fs.FileType.NotFound


# ---- Listings --------------------------------------------------------------------------------------------------------


def _list(scheme: str, folder: str, *, recursive: bool) -> list[fs.FileInfo]:
  selector = fs.FileSelector(folder, allow_not_found=True, recursive=recursive)
  return [info for info in _client(scheme).get_file_info(selector) if ".." not in info.path.split("/")]


def glob(pattern: str, *, where: str) -> list[str]:
  """Returns the paths of objects that match a glob, by the rules of `gcs.glob`.

  Raises:
    UserError: the bucket cannot be listed.
  """
  scheme, key = _split(pattern)
  literal = re.match(r"[^*?\[{]*", key).group()
  folder = literal.rpartition("/")[0] or key.partition("/")[0]
  with _refusing(pattern, where=where):
    names = _list(scheme, folder, recursive="/" in key[len(folder) + 1 :])
  if not names:
    check(pattern, where=where)
  files = [info.path for info in names if info.type == fs.FileType.File]
  expression = globs.compiled(key, like_local=False)
  matches = [path for path in files if path == key] or [path for path in files if expression.fullmatch(path)]
  return [f"{scheme}://{path}" for path in matches]


def stats(paths: list[str], *, where: str) -> dict[str, tuple[int, int]]:
  """Returns path -> (bytes, `_version`) of objects; lists each folder once, and requests the ETag of each object.

  Raises:
    UserError: a bucket cannot be listed, or an object does not exist.
  """
  listed: dict[str, fs.FileInfo] = {}
  for folder in sorted({path.rpartition("/")[0] for path in paths}):
    scheme, key = _split(folder)
    with _refusing(folder, where=where):
      names = _list(scheme, key, recursive=False)
    listed |= {f"{scheme}://{info.path}": info for info in names if info.type == fs.FileType.File}
  if missing := [path for path in paths if path not in listed]:
    raise UserError(f"{where}: {missing[0]} does not exist. Check the path.")
  with _refusing(paths[0], where=where), concurrent.futures.ThreadPoolExecutor(_REQUESTED_AT_ONCE) as pool:
    versions = pool.map(lambda path: _version(_split(path)[0], listed[path]), paths)
    return {path: (listed[path].size, version) for path, version in zip(paths, versions, strict=True)}


def _version(scheme: str, info: fs.FileInfo) -> int:
  """Returns the time of change in nanoseconds, below a second a digest of the ETag.

  A store notes the second of a change. Only the ETag tells two changes of one second apart.
  """
  with _as_os_errors(), _client(scheme).open_input_file(info.path) as file:
    etag = file.metadata().get("ETag", b"")
  digest = int.from_bytes(hashlib.sha256(etag).digest()[:8], "big")
  return (info.mtime_ns or 0) // _SECOND * _SECOND + digest % _SECOND


def checksums(paths: list[str], *, where: str) -> dict[str, str]:
  """Returns {}: these stores have no CRC-32C; see `gcs.checksums`."""
  del paths, where
  return {}


def names(folder: Any, *, where: str) -> list[str]:
  """Returns the names directly in a folder; [] if it does not exist.

  Raises:
    UserError: the bucket cannot be listed.
  """
  scheme, key = _split(folder)
  with _refusing(folder, where=where):
    return sorted({info.base_name for info in _list(scheme, key, recursive=False)})


# ---- Bytes -----------------------------------------------------------------------------------------------------------


class _ObjectReader(gcs.RangeReader):
  def __init__(self, path: Any):
    scheme, key = _split(path)
    with _as_os_errors():
      self._file = _client(scheme).open_input_file(key)
      super().__init__(self._file.size())

  def read_range(self, start: int, stop: int) -> bytes:
    with _as_os_errors():
      content = self._file.read_at(stop - start, start)
    if len(content) != stop - start:
      raise outage.CutOff(f"received {len(content):,} of {stop - start:,} bytes")
    return content


def open_binary(path: Any) -> io.BufferedReader:
  """Opens an object as a binary file.

  Raises:
    OSError: on opening or reading: it does not exist, or cannot be read to its end.
  """
  return io.BufferedReader(_ObjectReader(path), _READ_AT_ONCE)


# ---- Copies ----------------------------------------------------------------------------------------------------------


def fetched(path: str, *, where: str, vocabulary: bool = False) -> str:
  """Returns the local copy of an object, or of all objects below a folder; unchanged files are copied once.

  Of a workdir only the last step is copied. Copies of other steps are removed, if no process uses them.

  Args:
    path: s3:// or az://.
    where: the user's key or flag for it, for messages.
    vocabulary: whether to copy only the files of a vocabulary of a folder.

  Raises:
    UserError: it does not exist, or cannot be read or copied.
  """
  scheme, key = _split(path)
  root = _copies() / scheme
  with _refusing(path, where=where):
    info = _client(scheme).get_file_info(key)
    is_file = info.type == fs.FileType.File
    files = [info] if is_file else [x for x in _list(scheme, key, recursive=True) if x.type == fs.FileType.File]
  if not files:
    check(path, where=where)
    raise UserError(f"{_subject(path, where)} does not exist. Check the path.")
  if vocabulary and not is_file:
    files = [x for x in files if any(fnmatch.fnmatch(x.base_name, pattern) for pattern in vocabulary_files.PATTERNS)]
  steps = {int(match[1]) for x in files if (match := _step(x.path[len(key) :]))}
  last = max(steps, default=-1)
  files = [x for x in files if not (match := _step(x.path[len(key) :])) or int(match[1]) == last]
  wanted = {root / x.path for x in files}
  try:
    with _exclusive():  # of several processes on a machine the first one copies
      for folder in {step for x in files if (step := _step_folder(root / x.path))}:
        _keep(folder)
      if not is_file and not vocabulary:
        _remove_others(root / key, wanted)
      with concurrent.futures.ThreadPoolExecutor(_REQUESTED_AT_ONCE) as pool:
        is_same = pool.map(lambda x: _is_same(root / x.path, scheme, x), files)
        new = [x for x, same in zip(files, is_same, strict=True) if not same]
      with concurrent.futures.ThreadPoolExecutor(_COPIED_AT_ONCE) as pool:
        copies = pool.map(lambda x: _copy(scheme, x, root / x.path), new)
        for _ in progress.track(copies, f"copying {path} to {_copies()}", total=len(new)) if new else ():
          pass
  except StoreError as error:
    raise _refusal(error, path, where=where) from error
  except OSError as error:
    raise UserError(
      f"{_subject(path, where)} cannot be copied to {_copies()} ({error.strerror or error}). Check the disk, or set "
      "T2T_CACHE_DIR to another folder."
    ) from error
  return str(root / key)


def _copies() -> pathlib.Path:
  return cache_folder.cache_dir() / "buckets"


def origin(path: str) -> str:
  """Returns the path in a store of a local copy of `fetched`; other paths unchanged."""
  folder = pathlib.Path(path)
  if not folder.is_relative_to(_copies()):
    return path
  scheme, *key = folder.relative_to(_copies()).parts
  return f"{scheme}://{'/'.join(key)}"


def with_origins(text: str) -> str:
  """Returns a text with `origin` in place of paths of local copies."""
  return re.sub(rf"{re.escape(str(_copies()))}/({'|'.join(_NAMES)})/", r"\1://", text)


def _step(name: str) -> re.Match | None:
  return re.match(r"/(?:checkpoints/)?(\d+)/", name)


# ---- Steps in use ----------------------------------------------------------------------------------------------------

_kept: dict[pathlib.Path, int] = {}  # folder of a step -> descriptor that keeps its copy until the process ends


@contextlib.contextmanager
def _exclusive() -> Iterator[None]:
  """Lets one process at a time change the copies."""
  descriptor = _lock_file("all")
  try:
    file_lock.wait(descriptor)
    yield
  finally:
    os.close(descriptor)


def _lock_file(name: str) -> int:
  folder = _copies() / ".locks"
  folder.mkdir(parents=True, exist_ok=True)
  return os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o666)


def _of_step(folder: pathlib.Path) -> int:
  return _lock_file(hashlib.sha256(str(folder.relative_to(_copies())).encode()).hexdigest()[:32])


def _keep(folder: pathlib.Path) -> None:
  if folder not in _kept:
    _kept[folder] = _of_step(folder)
    file_lock.wait(_kept[folder], shared=True)


def _step_folder(path: pathlib.Path) -> pathlib.Path | None:
  """Returns the innermost folder of a copied file that has the name of a step; None without one."""
  names = path.relative_to(_copies()).parts[:-1]
  depth = max((i for i, name in enumerate(names, start=1) if name.isdigit()), default=0)
  return _copies().joinpath(*names[:depth]) if depth else None


def _remove_others(folder: pathlib.Path, wanted: set[pathlib.Path]) -> None:
  """Removes files that the store has no longer, and steps that no process uses."""
  in_use: dict[pathlib.Path, bool] = {}
  wanted_steps = {_step_folder(path) for path in wanted}
  for old in folder.rglob("*"):
    if not old.is_file() or old in wanted:
      continue
    step = _step_folder(old)
    if step is not None and step not in wanted_steps:
      if step not in in_use:
        in_use[step] = _is_in_use(step)
      if in_use[step]:
        continue
    old.unlink()


def _is_in_use(step: pathlib.Path) -> bool:
  descriptor = _of_step(step)
  try:
    return not file_lock.lock(descriptor)
  finally:
    os.close(descriptor)


def _is_same(copy: pathlib.Path, scheme: str, info: fs.FileInfo) -> bool:
  if not copy.is_file() or copy.stat().st_size != info.size:
    return False
  return copy.stat().st_mtime_ns == _version(scheme, info)


def _copy(scheme: str, info: fs.FileInfo, target: pathlib.Path) -> None:
  path = f"{scheme}://{info.path}"
  target.parent.mkdir(parents=True, exist_ok=True)
  version = _version(scheme, info)
  with open_binary(path) as source, tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
    try:
      while block := source.read(_READ_AT_ONCE):
        file.write(block)
      if _version(scheme, info) != version:  # blocks of two objects
        raise StoreError(f"{path} was overwritten while it was copied", is_outage=True)
    except BaseException:
      os.unlink(file.name)
      raise
  os.utime(file.name, ns=(version, version))
  os.replace(file.name, target)
