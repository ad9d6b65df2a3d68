"""Google Cloud Storage client: listings, bytes of objects, growing objects and conditional writes.

TensorStore and TensorFlow have their own clients, for arrays and for seqio's files. When iterating lines, TensorFlow's
client takes an error for the end of a file; this one raises.
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

# Time limit of one request, and of all retries together.
_REQUEST_SECONDS = 20
RETRY_SECONDS = 60
_LONGEST_WAIT = 5.0  # between retries; the client's default of up to 60 s could end the retries early

_READ_AT_ONCE = 4 * 2**20  # bytes; a request takes about 30 ms at any size
_MOVED_AT_ONCE = 8  # objects

# The client's errors for invalid bucket names: "", "-".
_NO_NAME = (ValueError, IndexError)


def is_remote(path: Any) -> bool:
  """Returns True if `path` is in a bucket."""
  return str(path).startswith("gs://")


def _split(path: Any) -> tuple[str, str]:
  """Splits a path into the names of bucket and object."""
  name, _, key = str(path).removeprefix("gs://").partition("/")
  return name, key


@functools.lru_cache(maxsize=1)
def _client():
  # Imported on first use, because the import takes half a second.
  import google.auth.exceptions
  from google.cloud import storage

  try:
    return storage.Client()
  except google.auth.exceptions.DefaultCredentialsError:
    return storage.Client.create_anonymous_client()  # public buckets, such as T5's vocabularies, are still readable


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
  """Returns the useful part of a client error."""
  import google.api_core.exceptions
  import google.auth.exceptions
  from google.cloud.storage import exceptions

  if isinstance(error, google.api_core.exceptions.RetryError) and error.cause is not None:
    return f"{_reason(error.cause)} after all retries"
  if isinstance(error, google.auth.exceptions.GoogleAuthError):
    return f"no credentials for Google Cloud: {error}"
  if isinstance(error, google.api_core.exceptions.GoogleAPICallError):
    return _status(error.code) if error.code else str(error)
  if isinstance(error, exceptions.InvalidResponse):
    return _status(error.response.status_code)
  return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"


def _status(code: int) -> str:
  """Formats an HTTP status with its name; the client has classes for some codes only."""
  names = {status.value: f" {status.phrase}" for status in http.HTTPStatus}
  return f"{int(code)}{names.get(int(code), '')}"


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
  """Converts the client's errors to OSError."""
  try:
    yield
  except _errors() as error:
    raise (FileNotFoundError if _reason(error).startswith("404") else OSError)(_reason(error)) from error


def check(path: Any, *, where: str) -> None:
  """Checks that the bucket of `path` exists and is readable; local paths always pass.

  Args:
    path: local or gs://.
    where: the user's key or flag for it, for messages.

  Raises:
    UserError: the bucket does not exist, or access is denied.
    Away: the bucket cannot be reached.
  """
  if not is_remote(path):
    return
  try:
    for _ in _client().list_blobs(_split(path)[0], max_results=1, fields="items(name)", **_patience(15)):
      pass
  except (*_errors(), *_NO_NAME) as error:
    raise _refusal(error, path, f"{where}{path}") from error


def check_folder(path: Any, *, where: str) -> None:
  """Checks that `path` is a folder, or can become one.

  Args:
    path: local or gs://; gs:// paths always pass.
    where: the user's key or flag for it, for messages.

  Raises:
    UserError: it is a file.
  """
  if not is_remote(path) and os.path.exists(path) and not os.path.isdir(path):
    raise UserError(f"{where}{path} is a file. Give a folder; t2t creates the folder if it does not exist.")


def _refusal(error: Exception, path: Any, subject: str) -> UserError:
  from google.api_core import exceptions

  name = _split(path)[0]
  if isinstance(error, (exceptions.NotFound, exceptions.BadRequest, *_NO_NAME)):
    return UserError(f"{subject}: bucket {name!r} does not exist. Run `gcloud storage ls` to list the buckets.")
  if isinstance(error, exceptions.Forbidden | exceptions.Unauthorized):
    return UserError(
      f"{subject}: access to bucket {name!r} is denied ({_reason(error)}). Run `gcloud auth application-default "
      "login`, or give this machine's service account roles/storage.objectAdmin and "
      "roles/storage.legacyBucketReader (docs/launch.md)."
    )
  return outage.refusal(f"{subject}: bucket {name!r} cannot be reached ({_reason(error)})", error)


# ---- Listings --------------------------------------------------------------------------------------------------------


def glob(pattern: str, *, where: str) -> list[str]:
  """Returns the paths of objects that match a glob; `*` stays within a folder, `**` does not.

  The exact name of an existing object matches itself, including brackets and braces.

  Args:
    pattern: gs://BUCKET/NAME.
    where: the user's key or flag for it, for messages.

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
  """Returns path -> (bytes, generation) of objects; lists each folder once, a thousand objects per request.

  Raises:
    UserError: a bucket cannot be listed, or an object does not exist.
  """
  return {path: (blob.size, blob.generation) for path, blob in _listed(paths, where=where).items()}


def checksums(paths: list[str], *, where: str) -> dict[str, str]:
  """Returns path -> CRC-32C of objects, as stored by their bucket; see `stats`."""
  return {path: blob.crc32c or "" for path, blob in _listed(paths, where=where).items()}


def _listed(paths: list[str], *, where: str) -> dict[str, Any]:
  blobs: dict[str, Any] = {}
  for folder in sorted({path.rpartition("/")[0] for path in paths}):
    name, key = _split(folder)
    for blob in _list(name, f"{key}/" if key else "", where=where, path=folder, delimiter="/")[0]:
      blobs[f"gs://{name}/{blob.name}"] = blob
  missing = [path for path in paths if path not in blobs]
  if missing:
    raise UserError(f"{where}: {missing[0]} does not exist. Check the path.")
  return {path: blobs[path] for path in paths}


def names(folder: epath.Path, *, where: str) -> list[str]:
  """Returns the names directly in a folder, local or in a bucket; [] if it does not exist.

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
  """Returns path within a folder -> (bytes, CRC-32C) of every object below it, from metadata alone.

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
  """Returns objects, and the names of folders that were not listed."""
  fields = "items(name,size,generation,crc32c),prefixes,nextPageToken"
  try:
    pages = _client().list_blobs(name, prefix=prefix, fields=fields, **options, **_patience())
    return list(pages), pages.prefixes
  except (*_errors(), *_NO_NAME) as error:
    raise _refusal(error, path, f"{where}: {path}") from error


def move(folder: Any, target: Any, *, first: Sequence[str]) -> None:
  """Moves everything below a folder to another folder of the same bucket, by copies within the bucket.

  Everything is copied before anything is removed: after a kill nothing is lost, and the next call finishes.

  Args:
    folder, target: gs://BUCKET/NAME.
    first: objects to remove first, in order; their absence marks the folder as incomplete. All others follow in any
      order.

  Raises:
    OSError: a request to the bucket failed.
  """
  name, key = _split(folder)
  prefix, (_, new) = f"{key.rstrip('/')}/", _split(target)
  bucket_ = _client().bucket(name)
  with _as_os_errors(), concurrent.futures.ThreadPoolExecutor(_MOVED_AT_ONCE) as movers:
    blobs = list(_client().list_blobs(name, prefix=prefix, **_patience()))

    def copy(blob) -> None:
      copied, token = bucket_.blob(f"{new.rstrip('/')}/{blob.name[len(prefix) :]}"), None
      while True:  # large objects are copied in parts
        token, _, _ = copied.rewrite(blob, token=token, **_patience())
        if token is None:
          return

    list(movers.map(copy, blobs))
  remove(folder, first=first)


def remove(folder: Any, *, first: Sequence[str]) -> None:
  """Removes everything below a folder.

  Args:
    folder: gs://BUCKET/NAME.
    first: see `move`.

  Raises:
    OSError: a request to the bucket failed.
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
  """Opens an object as a binary file; an object that is overwritten meanwhile is read in its old version or not at all.

  Raises:
    OSError: on opening or reading: the object does not exist, or cannot be read to its end.
  """
  return io.BufferedReader(_BlobReader(path), _READ_AT_ONCE)


def read(path: epath.Path) -> bytes:
  """Returns all bytes of a file, local or in a bucket.

  Raises:
    OSError: it does not exist, or cannot be read to its end.
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
    # Built from name and generation, because the listed blob has a link that may bypass this client's endpoint.
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
      raise OSError(f"received {len(content)} of {end - self._position} bytes")
    self._position = end
    return content


# ---- Growing objects -------------------------------------------------------------------------------------------------


class Object:
  """An object that grows: an addition is uploaded as .part beside it, and the bucket joins the two.

  Each change requires the generation of the previous one, so a request that is sent twice is applied once. All methods
  raise OSError if a request to the bucket fails.
  """

  def __init__(self, path: Any, content_type: str):
    name, self._key = _split(path)
    folder, slash, _ = self._key.rpartition("/")
    self._part = f"{folder}{slash}.part"
    self._bucket = _client().bucket(name)
    self._content_type = content_type
    self._generation, self._size = 0, 0  # of the existing object; 0 without one

  def size(self) -> int:
    """Returns the current number of bytes."""
    with _as_os_errors():
      self._is(self._bucket.get_blob(self._key, **_patience()))
    return self._size

  def _is(self, blob) -> None:
    self._generation, self._size = (blob.generation, blob.size) if blob else (0, 0)

  def read(self) -> bytes:
    """Returns all bytes; b"" if the object does not exist."""
    if not self.size():
      return b""
    with _as_os_errors():
      return self._bucket.blob(self._key, generation=self._generation).download_as_bytes(**_patience())

  def replace(self, content: bytes) -> None:
    """Replaces the whole object by `content`."""
    target, kind = self._bucket.blob(self._key), {"content_type": self._content_type}
    with self._once(len(content)):
      target.upload_from_string(content, if_generation_match=self._generation, **kind, **_patience())
      self._is(target)

  def append(self, content: bytes) -> None:
    """Appends; if it raises, `size` shows whether the content was added."""
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
    """Makes a change that leaves `size` bytes; detects a retried request whose first try succeeded."""
    from google.api_core import exceptions

    with _as_os_errors():
      try:
        yield
      except exceptions.PreconditionFailed:
        if self.size() != size:
          raise

  def close(self) -> None:
    """Removes the part; the object stays."""
    with _as_os_errors():
      part = self._bucket.get_blob(self._part, **_patience())
      if part:
        part.delete(**_patience())


# ---- Conditional writes ----------------------------------------------------------------------------------------------


def look(path: Any) -> tuple[int, bytes]:
  """Returns generation and content of an object; generation 0 if it does not exist.

  Raises:
    OSError: a request to the bucket failed.
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
        continue  # it was written or deleted meanwhile


def swap(path: Any, content: bytes, generation: int) -> int | None:
  """Writes an object if its generation matches; returns the new generation, or None if it does not match.

  Args:
    path: gs://.
    content: unique, because a lost answer is recognized by the content.
    generation: 0 if the object must not exist.

  Raises:
    OSError: a request to the bucket failed.
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
  """Deletes an object if its generation matches.

  Raises:
    OSError: a request to the bucket failed.
  """
  from google.api_core import exceptions

  name, key = _split(path)
  with _as_os_errors(), contextlib.suppress(exceptions.NotFound, exceptions.PreconditionFailed):
    _client().bucket(name).blob(key).delete(if_generation_match=generation, **_patience(5))


def absolute(path: str) -> epath.Path:
  """Makes a local path absolute, which TensorStore requires; gs:// paths are unchanged."""
  return epath.Path(path) if "://" in path else epath.Path(os.path.abspath(os.path.expanduser(path)))
