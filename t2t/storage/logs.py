"""Files that grow, on a disk or in a bucket: what is added waits in memory until it has been written, once."""

from collections.abc import Callable
import os
import pathlib
import threading

from etils import epath

from t2t.runtime import cache_folder
from t2t.storage import gcs


def read(path: epath.Path) -> bytes:
  """All of a file; nothing if it is not there."""
  return _store(path, "").read()


def _store(path: epath.Path, content_type: str) -> "gcs.Object | _Disk":
  return gcs.Object(path, content_type) if gcs.is_remote(path) else _Disk(path)


class _Disk:
  """A local file."""

  def __init__(self, path: epath.Path):
    self._path = pathlib.Path(path)
    self._path.parent.mkdir(parents=True, exist_ok=True)  # and not later: a folder that was moved stays away

  def size(self) -> int:
    return self._path.stat().st_size if self._path.exists() else 0

  def read(self) -> bytes:
    return self._path.read_bytes() if self._path.exists() else b""

  def replace(self, content: bytes) -> None:
    # As durable as what was appended: what a loss of power leaves under the name must not be less than was there.
    cache_folder.write_atomically(self._path, content, durable=True)

  def append(self, content: bytes) -> None:
    with open(self._path, "ab") as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())

  def close(self) -> None:
    pass


class Log:
  """A file, and what waits to be written behind it."""

  def __init__(self, path: epath.Path, *, keep: Callable[[bytes], bytes], content_type: str = "text/plain"):
    """Opens the file, which need not be there.

    Args:
      path: local or gs://.
      keep: what an earlier run has written -> the part of it that stays.
      content_type: what browsers make of an object in a bucket.
    """
    self.path = path
    self._store = _store(path, content_type)
    content = self._store.read()
    kept_content = keep(content)
    if kept_content != content:
      self._store.replace(kept_content)
    self._size = len(kept_content)
    self._sure = True  # that so much is there
    self._waiting = bytearray()
    self._lock = threading.Lock()

  def add(self, content: bytes) -> None:
    """Takes `content`; it is written by `bring`."""
    with self._lock:
      self._waiting += content

  def bring(self) -> None:
    """Writes what waits; if that fails, in whatever way, the next call goes on where this one came to."""
    with self._lock:
      content = bytes(self._waiting)
    if not self._sure:
      # A write that failed may have been made, or half of it: the size tells.
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
    """What is not written yet."""
    return bytes(self._waiting)

  def close(self) -> None:
    """Leaves nothing beside the file."""
    self._store.close()
