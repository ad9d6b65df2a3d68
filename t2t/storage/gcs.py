"""Google Cloud Storage client: listings, bytes of objects, growing objects and conditional writes.

TensorStore and TensorFlow have their own clients, for arrays and for seqio's files. When iterating lines, TensorFlow's
client takes an error for the end of a file; this one raises.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
import contextlib
import functools
import http
import importlib
import io
import os
import pathlib
import posixpath
import re
import sys
from typing import Any

from etils import epath

from t2t import UserError
from t2t.storage import outage

# Time limit of one request, and of all retries together.
_REQUEST_SECONDS = 20
RETRY_SECONDS = 60
_LONGEST_WAIT = 5.0  # between retries; the client's default of up to 60 s could end the retries early

_READ_AT_ONCE = 4 * 2**20  # bytes; a request takes about 30 ms at any size

# The client's errors for invalid bucket names: "", "-".
_NO_NAME = (ValueError, IndexError)


# Stores that t2t only reads: beginning of paths -> module with functions of the same names as here
_READ_ONLY = {"hf://": "t2t.storage.hub_files", "s3://": "t2t.storage.stores", "az://": "t2t.storage.stores"}


def _reader(path: Any) -> str:
  return next((module for begin, module in _READ_ONLY.items() if str(path).startswith(begin)), "")


def is_remote(path: Any) -> bool:
  """Returns True if `path` is in a bucket or on the Hugging Face hub."""
  return str(path).startswith("gs://") or bool(_reader(path))


def _by_store(function: Callable) -> Callable:
  """Passes paths of a store that t2t only reads to its function of the same name; joins the dicts of several paths."""

  @functools.wraps(function)
  def of_path(path: Any, **options):
    if isinstance(path, list):
      parts: dict[str, list] = {}
      for each in path:
        parts.setdefault(_reader(each), []).append(each)
      found = [_of_module(module, function)(part, **options) for module, part in parts.items()]
      return {each: value for values in found for each, value in values.items()}
    return _of_module(_reader(path), function)(path, **options)

  return of_path


def _of_module(module: str, function: Callable) -> Callable:
  return getattr(importlib.import_module(module), function.__name__) if module else function


def split(path: Any) -> tuple[str, str]:
  """Splits a path into the names of bucket and object."""
  name, _, key = str(path).removeprefix("gs://").partition("/")
  return name, key


@functools.lru_cache(maxsize=1)
def client() -> Any:
  """Returns the client, with the credentials of the machine; public buckets need none."""
  # Imported on first use, because the import takes half a second.
  import google.auth.exceptions
  from google.cloud import storage

  try:
    return storage.Client()
  except google.auth.exceptions.DefaultCredentialsError:
    return storage.Client.create_anonymous_client()  # public buckets, such as T5's vocabularies, are still readable


def patience(seconds: float | None = None) -> Mapping[str, Any]:
  """Returns the options of a request: its time limit, and its retries for up to `seconds`."""
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
def as_os_errors() -> Iterator[None]:
  """Converts the client's errors to OSError."""
  try:
    yield
  except _errors() as error:
    raise (FileNotFoundError if _reason(error).startswith("404") else OSError)(_reason(error)) from error


@_by_store
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
    for _ in client().list_blobs(split(path)[0], max_results=1, fields="items(name)", **patience(15)):
      pass
  except (*_errors(), *_NO_NAME) as error:
    raise _refusal(error, path, f"{where}{path}") from error


def check_folder(path: Any, *, where: str) -> None:
  """Checks that a folder for output is no file.

  Args:
    path: where t2t writes; need not exist.
    where: the user's key or flag for it, for messages.

  Raises:
    UserError: it is a file, or see `absolute`.
  """
  absolute(str(path), where=where)
  if not is_remote(path) and os.path.exists(path) and not os.path.isdir(path):
    raise UserError(f"{where}{path} is a file. Give a folder; t2t creates the folder if it does not exist.")


def _refusal(error: Exception, path: Any, subject: str) -> UserError:
  from google.api_core import exceptions

  name = split(path)[0]
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


@_by_store
def glob(pattern: str, *, where: str) -> list[str]:
  """Returns the paths of objects that match a glob; `*` stays within a folder, `**` does not.

  The exact name of an existing object matches itself, including brackets and braces.

  Args:
    pattern: gs://BUCKET/NAME.
    where: the user's key or flag for it, for messages.

  Raises:
    UserError: the bucket cannot be listed.
  """
  name, key = split(pattern)
  prefix = re.match(r"[^*?\[{]*", key).group()
  blobs: list = []
  if prefix == key or "[" in key or "{" in key:
    blobs, _ = _list(name, key, where=where, path=pattern, delimiter="/")
    blobs = [blob for blob in blobs if blob.name == key]
  if prefix != key and not blobs:
    blobs, _ = _list(name, prefix, where=where, path=pattern, match_glob=key)
  return [f"gs://{name}/{blob.name}" for blob in blobs if not blob.name.endswith("/")]


@_by_store
def stats(paths: list[str], *, where: str) -> dict[str, tuple[int, int]]:
  """Returns path -> (bytes, generation) of objects; lists each folder once, a thousand objects per request.

  Raises:
    UserError: a bucket cannot be listed, or an object does not exist.
  """
  return {path: (blob.size, blob.generation) for path, blob in _listed(paths, where=where).items()}


@_by_store
def checksums(paths: list[str], *, where: str) -> dict[str, str]:
  """Returns path -> CRC-32C of objects, as stored by their bucket; see `stats`."""
  return {path: blob.crc32c or "" for path, blob in _listed(paths, where=where).items()}


def _listed(paths: list[str], *, where: str) -> dict[str, Any]:
  blobs: dict[str, Any] = {}
  for folder in sorted({path.rpartition("/")[0] for path in paths}):
    name, key = split(folder)
    for blob in _list(name, f"{key}/" if key else "", where=where, path=folder, delimiter="/")[0]:
      blobs[f"gs://{name}/{blob.name}"] = blob
  missing = [path for path in paths if path not in blobs]
  if missing:
    raise UserError(f"{where}: {missing[0]} does not exist. Check the path.")
  return {path: blobs[path] for path in paths}


@_by_store
def names(folder: epath.Path, *, where: str) -> list[str]:
  """Returns the names directly in a folder, local or in a bucket; [] if it does not exist.

  Raises:
    UserError: the bucket cannot be listed.
  """
  if not is_remote(folder):
    return sorted(child.name for child in folder.iterdir()) if folder.is_dir() else []
  name, key = split(folder)
  prefix = f"{key.rstrip('/')}/" if key else ""
  blobs, inner = _list(name, prefix, where=where, path=folder, delimiter="/")
  full_names = [*(blob.name for blob in blobs), *inner]
  return sorted({full_name[len(prefix) :].rstrip("/") for full_name in full_names if full_name != prefix})


def checksums_below(folder: Any, *, where: str) -> dict[str, tuple[int, int]]:
  """Returns path within a folder -> (bytes, CRC-32C) of every object below it, from metadata alone.

  Raises:
    UserError: the bucket cannot be listed.
  """
  name, key = split(folder)
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
    pages = client().list_blobs(name, prefix=prefix, fields=fields, **options, **patience())
    return list(pages), pages.prefixes
  except (*_errors(), *_NO_NAME) as error:
    raise _refusal(error, path, f"{where}: {path}") from error


# ---- Bytes -----------------------------------------------------------------------------------------------------------


@_by_store
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


def write(path: epath.Path, text: str) -> None:
  """Replaces a whole file, local or in a bucket, so that a failure leaves the earlier content.

  Raises:
    OSError: it cannot be written.
  """
  if not is_remote(path):
    from t2t.runtime import cache_folder

    cache_folder.write_atomically(pathlib.Path(path), text.encode(), durable=True)
    return
  target = Object(path, "text/plain")
  target.size()  # the present generation is replaced
  target.replace(text.encode())


class RangeReader(io.RawIOBase):
  """Reads an object of `size` bytes by ranges, with `read_range`."""

  def __init__(self, size: int):
    super().__init__()
    self._position, self._size = 0, size

  def read_range(self, start: int, stop: int) -> bytes:
    """Returns the bytes from `start` up to `stop`.

    Raises:
      OSError: they cannot be read.
    """
    raise NotImplementedError

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
    content = self.read_range(self._position, end)
    self._position = end
    return content


class _BlobReader(RangeReader):
  def __init__(self, path: Any):
    name, key = split(path)
    blob = client().bucket(name).blob(key)
    with as_os_errors():
      blob.reload(**patience())
    super().__init__(blob.size)
    # Built from name and generation, because the listed blob has a link that may bypass this client's endpoint.
    self._blob = client().bucket(name).blob(key, generation=blob.generation)

  def read_range(self, start: int, stop: int) -> bytes:
    with as_os_errors():
      content = self._blob.download_as_bytes(start=start, end=stop - 1, checksum=None, **patience())
    if len(content) != stop - start:
      raise outage.CutOff(f"received {len(content):,} of {stop - start:,} bytes")
    return content


class Object:
  """An object that grows: an addition is uploaded as .NAME.part beside it, and the bucket joins the two.

  Each object has its own part, because several threads and processes may write logs of one folder. Each change requires
  the generation of the previous one, so a request that is sent twice is applied once. All methods raise OSError if a
  request to the bucket fails.
  """

  def __init__(self, path: Any, content_type: str):
    name, self._key = split(path)
    folder, slash, name_in_folder = self._key.rpartition("/")
    self._part = f"{folder}{slash}.{name_in_folder}.part"
    self._bucket = client().bucket(name)
    self._content_type = content_type
    self._generation, self._size = 0, 0  # of the existing object; 0 without one

  def size(self) -> int:
    """Returns the current number of bytes."""
    with as_os_errors():
      self._is(self._bucket.get_blob(self._key, **patience()))
    return self._size

  def _is(self, blob) -> None:
    self._generation, self._size = (blob.generation, blob.size) if blob else (0, 0)

  def read(self) -> bytes:
    """Returns all bytes; b"" if the object does not exist."""
    if not self.size():
      return b""
    with as_os_errors():
      return self._bucket.blob(self._key, generation=self._generation).download_as_bytes(**patience())

  def replace(self, content: bytes) -> None:
    """Replaces the whole object by `content`."""
    target, kind = self._bucket.blob(self._key), {"content_type": self._content_type}
    with self._once(len(content)):
      target.upload_from_string(content, if_generation_match=self._generation, **kind, **patience())
      self._is(target)

  def append(self, content: bytes) -> None:
    """Appends; if it raises, `size` shows whether the content was added."""
    if not self._generation:
      self.replace(content)
      return
    target, part = self._bucket.blob(self._key), self._bucket.blob(self._part)
    target.content_type = self._content_type
    with self._once(self._size + len(content)):
      part.upload_from_string(content, content_type=self._content_type, **patience())
      target.compose([self._bucket.blob(self._key), part], if_generation_match=self._generation, **patience())
      self._is(target)

  @contextlib.contextmanager
  def _once(self, size: int) -> Iterator[None]:
    """Makes a change that leaves `size` bytes; detects a retried request whose first try succeeded."""
    from google.api_core import exceptions

    with as_os_errors():
      try:
        yield
      except exceptions.PreconditionFailed:
        if self.size() != size:
          raise

  def close(self) -> None:
    """Removes the part; the object stays."""
    with as_os_errors():
      part = self._bucket.get_blob(self._part, **patience())
      if part:
        part.delete(**patience())


# ---- Conditional writes ----------------------------------------------------------------------------------------------


def look(path: Any) -> tuple[int, bytes]:
  """Returns generation and content of an object; generation 0 if it does not exist.

  Raises:
    OSError: a request to the bucket failed.
  """
  from google.api_core import exceptions

  name, key = split(path)
  while True:
    with as_os_errors():
      current = client().bucket(name).get_blob(key, **patience())
      if current is None:
        return 0, b""
      try:
        blob = client().bucket(name).blob(key, generation=current.generation)
        return current.generation, blob.download_as_bytes(**patience())
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

  name, key = split(path)
  blob = client().bucket(name).blob(key)
  with as_os_errors():
    try:
      blob.upload_from_string(content, if_generation_match=generation, **patience())
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

  name, key = split(path)
  with as_os_errors(), contextlib.suppress(exceptions.NotFound, exceptions.PreconditionFailed):
    client().bucket(name).blob(key).delete(if_generation_match=generation, **patience(5))


def absolute(path: str, *, where: str = "") -> epath.Path:
  """Makes a local path absolute, which TensorStore requires; gs:// paths are unchanged.

  Raises:
    UserError: a path of a store that t2t only reads, see `fetched`.
  """
  if _reader(path):
    raise UserError(
      f"{where}{path}: of hf://, s3:// and az:// t2t reads data files, vocabularies and checkpoints, and nothing is "
      "written there, because Orbax and TensorFlow have no client for these stores. Give a local or gs:// path, and "
      "copy the folder with `hf download`, `aws s3 sync` or `az storage blob download-batch`."
    )
  return epath.Path(path) if "://" in path else epath.Path(os.path.abspath(os.path.expanduser(path)))


def canonical(path: str) -> str:
  """Returns a path for comparison: a local one absolute and without symbolic links, a URL without repeated slashes.

  In:  gs://bucket//runs/a/
  Out: gs://bucket/runs/a
  """
  scheme, separator, rest = path.partition("://")
  return f"{scheme}://{posixpath.normpath(rest)}" if separator else os.path.realpath(os.path.expanduser(path))


def is_same_path(path: str, other: str) -> bool:
  """Returns True if two paths name the same file or folder."""
  return path == other or canonical(path) == canonical(other)


def fetched(path: str, *, where: str, vocabulary: bool = False) -> str:
  """Checks a path and returns one for reading: the local copy of a file or folder of hf://, s3:// or az://.

  A step is copied with config and vocabulary of its workdir.

  Args:
    path: other paths are returned unchanged.
    where: the user's key or flag for it, for messages.
    vocabulary: whether to copy only the files of a vocabulary.

  Raises:
    UserError: it does not exist, or cannot be read.
  """
  if not (module := _reader(path)):
    check(path, where=where)
    return path
  copied = importlib.import_module(module).fetched
  copy = copied(path, where=where, vocabulary=vocabulary)
  if not vocabulary and (step := re.fullmatch(r"(.*)/checkpoints/\d+/*", path)):
    for name in {"config.json", "vocabulary"} & set(names(step[1], where=where)):
      copied(f"{step[1]}/{name}", where=where)
  return copy


@_by_store
def exists(path: str) -> bool:
  """Returns whether a file or folder exists; a commit on the Hugging Face hub does, without a request."""
  return absolute(path).exists()


def with_origins(text: str) -> str:
  """Returns a message with the paths in their stores in place of those of local copies; see `origin`."""
  for module in map(sys.modules.get, dict.fromkeys(_READ_ONLY.values())):
    text = text if module is None else module.with_origins(text)
  return text


def origin(path: str) -> str:
  """Returns the path of which `path` is a copy of `fetched`; other paths unchanged."""
  for module in map(sys.modules.get, dict.fromkeys(_READ_ONLY.values())):
    path = path if module is None else module.origin(path)
  return path
