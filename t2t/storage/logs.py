"""Growing files, on a disk or in a bucket; additions wait in memory until they have been written exactly once."""

from collections.abc import Callable
import os
import pathlib
import threading

from etils import epath

from t2t.runtime import cache_folder
from t2t.storage import gcs


def read(path: epath.Path) -> bytes:
  """Returns the content of a file; b"" if it does not exist. Reading creates no folder."""
  if not gcs.is_remote(path) and not pathlib.Path(path).exists():
    return b""
  return _store(path, "").read()


def _store(path: epath.Path, content_type: str) -> "gcs.Object | _Disk":
  return gcs.Object(path, content_type) if gcs.is_remote(path) else _Disk(path)


class _Disk:
  """A local file."""

  def __init__(self, path: epath.Path):
    self._path = pathlib.Path(path)
    # created only once: a folder that is moved later is not created again
    self._path.parent.mkdir(parents=True, exist_ok=True)

  def size(self) -> int:
    return self._path.stat().st_size if self._path.exists() else 0

  def read(self) -> bytes:
    return self._path.read_bytes() if self._path.exists() else b""

  def replace(self, content: bytes) -> None:
    # Durable as appends are, so that a power loss cannot leave less than before.
    cache_folder.write_atomically(self._path, content, durable=True)

  def append(self, content: bytes) -> None:
    with open(self._path, "ab") as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())

  def close(self) -> None:
    pass


class Log:
  """A file with additions that wait to be written."""

  def __init__(self, path: epath.Path, *, keep: Callable[[bytes], bytes], content_type: str = "text/plain"):
    """Opens the file, which may not exist.

    Args:
      path: local or gs://.
      keep: content from earlier runs -> the part to keep.
      content_type: of an object in a bucket, for browsers.
    """
    self.path = path
    self._store = _store(path, content_type)
    content = self._store.read()
    kept_content = keep(content)
    if kept_content != content:
      self._store.replace(kept_content)
    self._size = len(kept_content)
    self._sure = True  # whether `_size` is the actual size
    self._waiting = bytearray()
    self._lock = threading.Lock()

  def add(self, content: bytes) -> None:
    """Queues `content` for `bring`."""
    with self._lock:
      self._waiting += content

  def bring(self) -> None:
    """Writes the queue; after any failure the next call continues at the right byte."""
    with self._lock:
      content = bytes(self._waiting)
    if not self._sure:
      # A failed write may have been applied completely or partly; the size shows how much.
      size = self._store.size()
      arrived = size - self._size if self._size <= size <= self._size + len(content) else 0
      self._forget(arrived)
      content, self._size, self._sure = content[arrived:], size, True
    if content:
      self._sure = False
      self._store.append(content)
      self._size, self._sure = self._size + len(content), True
      self._forget(len(content))

  def _forget(self, size: int) -> None:
    with self._lock:
      del self._waiting[:size]

  @property
  def waiting(self) -> bytes:
    """Bytes that are not written yet."""
    return bytes(self._waiting)

  def close(self) -> None:
    """Removes temporary objects."""
    self._store.close()
