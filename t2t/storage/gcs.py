"""Google Cloud Storage as t2t itself asks it: what a bucket holds, the bytes of objects, and objects that grow.

TensorStore and TensorFlow have clients of their own, for arrays and for what seqio reads. TensorFlow's takes an error
for the end of a file where lines are iterated; this one raises.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
import concurrent.futures
import contextlib
import functools
import http
import io
import os
import re
from typing import Any

from etils import epath

from t2t import UserError
from t2t.storage import outage

# One request is given this long; what may be tried again is, until the other is over.
_REQUEST_SECONDS = 20
RETRY_SECONDS = 60
_LONGEST_WAIT = 5.0  # between tries, which end where one that is drawn would be too late: of the client's, up to 60 s

_READ_AT_ONCE = 4 * 2**20  # bytes: a request takes 30 ms or so, whatever its size
_MOVED_AT_ONCE = 8  # objects

# What the client raises at a name that no bucket can have: "", "-".
_NO_NAME = (ValueError, IndexError)


def is_remote(path: Any) -> bool:
  """Whether `path` lies in a bucket."""
  return str(path).startswith("gs://")


def _split(path: Any) -> tuple[str, str]:
  """Name of the bucket and of the object."""
  name, _, key = str(path).removeprefix("gs://").partition("/")
  return name, key


@functools.lru_cache(maxsize=1)
def _client():
  # Half a second to import: only who names a bucket waits for it.
  import google.auth.exceptions
  from google.cloud import storage

  try:
    return storage.Client()
  except google.auth.exceptions.DefaultCredentialsError:
    return storage.Client.create_anonymous_client()  # public buckets, such as T5's vocabularies, can still be read


def _patience(seconds: float | None = None) -> Mapping[str, Any]:
  from google.cloud.storage import retry

  tries = retry.DEFAULT_RETRY.with_timeout(seconds or RETRY_SECONDS).with_delay(maximum=_LONGEST_WAIT)
  return {"retry": tries, "timeout": _REQUEST_SECONDS}


def _errors() -> tuple[type[Exception], ...]:
  import google.api_core.exceptions
  import google.auth.exceptions
  from google.cloud.storage import exceptions
  import requests

  known = (google.api_core.exceptions.GoogleAPIError, google.auth.exceptions.GoogleAuthError)
  return *known, exceptions.DataCorruption, exceptions.InvalidResponse, requests.RequestException


def _reason(error: Exception) -> str:
  """What a person can use of an error of the client."""
  import google.api_core.exceptions
  import google.auth.exceptions
  from google.cloud.storage import exceptions

  if isinstance(error, google.api_core.exceptions.RetryError) and error.cause is not None:
    return f"{_reason(error.cause)}, however often it was tried"
  if isinstance(error, google.auth.exceptions.GoogleAuthError):
    return f"no credentials for Google Cloud: {error}"
  if isinstance(error, google.api_core.exceptions.GoogleAPICallError):
    return _status(error.code) if error.code else str(error)
  if isinstance(error, exceptions.InvalidResponse):
    return _status(error.response.status_code)
  return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"


def _status(code: int) -> str:
  """Of HTTP, with its name if it has one; the client has classes for some alone, and gives the others as numbers."""
  names = {status.value: f" {status.phrase}" for status in http.HTTPStatus}
  return f"{int(code)}{names.get(int(code), '')}"


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
  """What the client raises, as those know it who read and write files."""
  try:
    yield
  except _errors() as error:
    raise (FileNotFoundError if _reason(error).startswith("404") else OSError)(_reason(error)) from error


def check(path: Any, *, where: str) -> None:
  """Asks whether the bucket of `path` is there and may be read; a local path is always right.

  Args:
    path: local or gs://.
    where: what the user named it with, for messages.

  Raises:
    UserError: there is no such bucket, or no right to it.
    Away: there is no way to it.
  """
  if not is_remote(path):
    return
  try:
    for _ in _client().list_blobs(_split(path)[0], max_results=1, fields="items(name)", **_patience(15)):
      pass
  except (*_errors(), *_NO_NAME) as error:
    raise _refusal(error, path, f"{where}{path}") from error


def check_folder(path: Any, *, where: str) -> None:
  """Whether a folder may be at `path`, or be made there.

  Args:
    path: local or gs://, where anything may be.
    where: what the user named it with, for messages.

  Raises:
    UserError: a file is there.
  """
  if not is_remote(path) and os.path.exists(path) and not os.path.isdir(path):
    raise UserError(f"{where}{path}: is a file; give a folder, which is made where there is none")


def _refusal(error: Exception, path: Any, subject: str) -> UserError:
  from google.api_core import exceptions

  name = _split(path)[0]
  if isinstance(error, (exceptions.NotFound, exceptions.BadRequest, *_NO_NAME)):
    return UserError(f"{subject}: there is no bucket {name!r}; `gcloud storage ls` shows those there are")
  if isinstance(error, exceptions.Forbidden | exceptions.Unauthorized):
    return UserError(
      f"{subject}: no right to bucket {name!r} ({_reason(error)}); `gcloud auth application-default login`, or give"
      " this machine's service account roles/storage.objectAdmin and roles/storage.legacyBucketReader (docs/launch.md)"
    )
  return outage.refusal(f"{subject}: bucket {name!r} cannot be reached ({_reason(error)})", error)


# ---- What is there ---------------------------------------------------------------------------------------------------


def glob(pattern: str, *, where: str) -> list[str]:
  """Paths of the objects whose names match a glob; `*` stays within a folder, `**` does not.

  The name of an object that is there is taken as it stands, with brackets and braces in it.

  Args:
    pattern: gs://BUCKET/NAME.
    where: what the user set, for messages.

  Raises:
    UserError: the bucket cannot be listed.
  """
  name, key = _split(pattern)
  prefix = re.match(r"[^*?\[{]*", key).group()
  blobs: list = []
  if prefix == key or "[" in key or "{" in key:
    blobs, _ = _list(name, key, where=where, path=pattern, delimiter="/")
    blobs = [blob for blob in blobs if blob.name == key]
  if prefix != key and not blobs:
    blobs, _ = _list(name, prefix, where=where, path=pattern, match_glob=key)
  return [f"gs://{name}/{blob.name}" for blob in blobs if not blob.name.endswith("/")]


def stats(paths: list[str], *, where: str) -> dict[str, tuple[int, int]]:
  """Path -> (bytes, generation) of these objects, by a listing of each of their folders: a request for a thousand.

  Raises:
    UserError: a bucket cannot be listed, or one of the objects is not there.
  """
  return {path: (blob.size, blob.generation) for path, blob in _listed(paths, where=where).items()}


def checksums(paths: list[str], *, where: str) -> dict[str, str]:
  """Path -> CRC-32C of these objects, as their bucket has it, see `stats`."""
  return {path: blob.crc32c or "" for path, blob in _listed(paths, where=where).items()}


def _listed(paths: list[str], *, where: str) -> dict[str, Any]:
  blobs: dict[str, Any] = {}
  for folder in sorted({path.rpartition("/")[0] for path in paths}):
    name, key = _split(folder)
    for blob in _list(name, f"{key}/" if key else "", where=where, path=folder, delimiter="/")[0]:
      blobs[f"gs://{name}/{blob.name}"] = blob
  missing = [path for path in paths if path not in blobs]
  if missing:
    raise UserError(f"{where}: {missing[0]}: is not there")
  return {path: blobs[path] for path in paths}


def names(folder: epath.Path, *, where: str) -> list[str]:
  """Names of what lies directly in a folder, local or of a bucket, which need not be there.

  Raises:
    UserError: the bucket cannot be listed.
  """
  if not is_remote(folder):
    return sorted(child.name for child in folder.iterdir()) if folder.is_dir() else []
  name, key = _split(folder)
  prefix = f"{key.rstrip('/')}/" if key else ""
  blobs, inner = _list(name, prefix, where=where, path=folder, delimiter="/")
  full_names = [*(blob.name for blob in blobs), *inner]
  return sorted({full_name[len(prefix) :].rstrip("/") for full_name in full_names if full_name != prefix})


def checksums_below(folder: Any, *, where: str) -> dict[str, tuple[int, int]]:
  """Path within a folder -> bytes and CRC-32C of every object below it, as the bucket knows them: nothing is read.

  Raises:
    UserError: the bucket cannot be listed.
  """
  name, key = _split(folder)
  prefix = f"{key.rstrip('/')}/" if key else ""
  blobs, _ = _list(name, prefix, where=where, path=folder)
  by_name = {blob.name[len(prefix) :]: blob for blob in blobs if not blob.name.endswith("/")}
  return {
    path: (blob.size, int.from_bytes(base64.b64decode(blob.crc32c or ""), "big")) for path, blob in by_name.items()
  }


def _list(name: str, prefix: str, *, where: str, path: Any, **options) -> tuple[list, set[str]]:
  """Objects, and names of the folders that were not looked into."""
  fields = "items(name,size,generation,crc32c),prefixes,nextPageToken"
  try:
    pages = _client().list_blobs(name, prefix=prefix, fields=fields, **options, **_patience())
    return list(pages), pages.prefixes
  except (*_errors(), *_NO_NAME) as error:
    raise _refusal(error, path, f"{where}: {path}") from error


def move(folder: Any, target: Any, *, first: Sequence[str]) -> None:
  """Moves all that is below a folder to another of the same bucket, which copies it without a byte coming here.

  All is there twice before anything is taken away: killed anywhere, nothing is lost, and the next call ends it.

  Args:
    folder, target: gs://BUCKET/NAME.
    first: of what is taken away, the objects whose absence says that the folder is no whole one any more; one after
      another, and all others after them, in any order.

  Raises:
    OSError: the bucket does not do as asked.
  """
  name, key = _split(folder)
  prefix, (_, new) = f"{key.rstrip('/')}/", _split(target)
  bucket_ = _client().bucket(name)
  with _as_os_errors(), concurrent.futures.ThreadPoolExecutor(_MOVED_AT_ONCE) as movers:
    blobs = list(_client().list_blobs(name, prefix=prefix, **_patience()))

    def copy(blob) -> None:
      copied, token = bucket_.blob(f"{new.rstrip('/')}/{blob.name[len(prefix) :]}"), None
      while True:  # of a large object a part at a time
        token, _, _ = copied.rewrite(blob, token=token, **_patience())
        if token is None:
          return

    list(movers.map(copy, blobs))
  remove(folder, first=first)


def remove(folder: Any, *, first: Sequence[str]) -> None:
  """Removes all that is below a folder.

  Args:
    folder: gs://BUCKET/NAME.
    first: as `move`'s.

  Raises:
    OSError: the bucket does not do as asked.
  """
  name, key = _split(folder)
  prefix = f"{key.rstrip('/')}/"
  with _as_os_errors(), concurrent.futures.ThreadPoolExecutor(_MOVED_AT_ONCE) as removers:
    blobs = list(_client().list_blobs(name, prefix=prefix, **_patience()))
    markers = [[blob for blob in blobs if blob.name == prefix + marker] for marker in first]
    for part in (*markers, [blob for blob in blobs if blob.name.removeprefix(prefix) not in first]):
      list(removers.map(lambda blob: blob.delete(**_patience()), part))


# ---- Bytes -----------------------------------------------------------------------------------------------------------


def open_binary(path: Any) -> io.BufferedReader:
  """An object as a file of bytes; one that is overwritten meanwhile is read as it was or not at all.

  Raises:
    OSError: here or by any reading: it is not there, or cannot be read to its end.
  """
  return io.BufferedReader(_BlobReader(path), _READ_AT_ONCE)


def read(path: epath.Path) -> bytes:
  """All bytes of a file, local or in a bucket.

  Raises:
    OSError: it is not there, or cannot be read to its end.
  """
  if not is_remote(path):
    return path.read_bytes()
  with open_binary(path) as file:
    return file.read()


class _BlobReader(io.RawIOBase):
  """Reads by ranges."""

  def __init__(self, path: Any):
    super().__init__()
    name, key = _split(path)
    self._position = 0
    blob = _client().bucket(name).blob(key)
    with _as_os_errors():
      blob.reload(**_patience())
    self._size = blob.size
    # By name and generation: what was found has a link of its own, which may lead by another way than this client's.
    self._blob = _client().bucket(name).blob(key, generation=blob.generation)

  def readable(self):
    return True

  def seekable(self):
    return True

  def tell(self):
    return self._position

  def seek(self, offset, whence=io.SEEK_SET):
    self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
    return self._position

  def readall(self):
    return self._take(self._size)

  def readinto(self, buffer):
    content = self._take(len(buffer))
    buffer[: len(content)] = content
    return len(content)

  def _take(self, size: int) -> bytes:
    end = min(self._position + size, self._size)
    if self._position >= end:
      return b""
    with _as_os_errors():
      content = self._blob.download_as_bytes(start=self._position, end=end - 1, checksum=None, **_patience())
    if len(content) != end - self._position:
      raise OSError(f"{len(content)} bytes came where {end - self._position} were asked for")
    self._position = end
    return content


# ---- Objects that grow -----------------------------------------------------------------------------------------------


class Object:
  """An object that grows: what is added goes up by itself, as .part beside it, and the bucket joins the two.

  Each change asks for the generation that the last one left, so that one which is sent twice is made once.  All methods
  raise OSError where the bucket does not do as asked.
  """

  def __init__(self, path: Any, content_type: str):
    name, self._key = _split(path)
    folder, slash, _ = self._key.rpartition("/")
    self._part = f"{folder}{slash}.part"
    self._bucket = _client().bucket(name)
    self._content_type = content_type
    self._generation, self._size = 0, 0  # of what is there; 0: nothing

  def size(self) -> int:
    """Bytes that are there now."""
    with _as_os_errors():
      self._is(self._bucket.get_blob(self._key, **_patience()))
    return self._size

  def _is(self, blob) -> None:
    self._generation, self._size = (blob.generation, blob.size) if blob else (0, 0)

  def read(self) -> bytes:
    """All of it; nothing if it is not there."""
    if not self.size():
      return b""
    with _as_os_errors():
      return self._bucket.blob(self._key, generation=self._generation).download_as_bytes(**_patience())

  def replace(self, content: bytes) -> None:
    """Makes `content` all that is there."""
    target, kind = self._bucket.blob(self._key), {"content_type": self._content_type}
    with self._once(len(content)):
      target.upload_from_string(content, if_generation_match=self._generation, **kind, **_patience())
      self._is(target)

  def append(self, content: bytes) -> None:
    """Adds to what is there; if it raises, `size` tells whether it was added."""
    if not self._generation:
      self.replace(content)
      return
    target, part = self._bucket.blob(self._key), self._bucket.blob(self._part)
    target.content_type = self._content_type
    with self._once(self._size + len(content)):
      part.upload_from_string(content, content_type=self._content_type, **_patience())
      target.compose([self._bucket.blob(self._key), part], if_generation_match=self._generation, **_patience())
      self._is(target)

  @contextlib.contextmanager
  def _once(self, size: int) -> Iterator[None]:
    """A change that leaves `size` bytes; of one whose answer was lost, the next try finds another generation."""
    from google.api_core import exceptions

    with _as_os_errors():
      try:
        yield
      except exceptions.PreconditionFailed:
        if self.size() != size:
          raise

  def close(self) -> None:
    """Removes the part; what was added stays."""
    with _as_os_errors():
      part = self._bucket.get_blob(self._part, **_patience())
      if part:
        part.delete(**_patience())


# ---- Objects that one of many may write ------------------------------------------------------------------------------


def look(path: Any) -> tuple[int, bytes]:
  """Generation and content of an object; 0 where there is none.

  Raises:
    OSError: the bucket does not do as asked.
  """
  from google.api_core import exceptions

  name, key = _split(path)
  while True:
    with _as_os_errors():
      current = _client().bucket(name).get_blob(key, **_patience())
      if current is None:
        return 0, b""
      try:
        blob = _client().bucket(name).blob(key, generation=current.generation)
        return current.generation, blob.download_as_bytes(**_patience())
      except exceptions.NotFound:
        continue  # written again, or deleted, in between


def swap(path: Any, content: bytes, generation: int) -> int | None:
  """Writes an object if its generation is the one given; the new one, or None where it is not.

  Args:
    path: gs://.
    content: no other is the same, or an answer that was lost cannot be told from another's doing.
    generation: 0: there is no object.

  Raises:
    OSError: the bucket does not do as asked.
  """
  from google.api_core import exceptions

  name, key = _split(path)
  blob = _client().bucket(name).blob(key)
  with _as_os_errors():
    try:
      blob.upload_from_string(content, if_generation_match=generation, **_patience())
      return blob.generation
    except exceptions.PreconditionFailed:
      pass
  current_generation, written = look(path)
  return current_generation if written == content else None


def discard(path: Any, generation: int) -> None:
  """Deletes an object if its generation is the one given.

  Raises:
    OSError: the bucket does not do as asked.
  """
  from google.api_core import exceptions

  name, key = _split(path)
  with _as_os_errors(), contextlib.suppress(exceptions.NotFound, exceptions.PreconditionFailed):
    _client().bucket(name).blob(key).delete(if_generation_match=generation, **_patience(5))


def absolute(path: str) -> epath.Path:
  """A local path from the root, since TensorStore takes no other; a bucket's as it is."""
  return epath.Path(path) if "://" in path else epath.Path(os.path.abspath(os.path.expanduser(path)))
