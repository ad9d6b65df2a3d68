"""Bounded disk cache of files of the Hugging Face hub, in the layout of huggingface_hub.

A process holds a shared lock on each file that it reads. Before a download the least recently used files without a lock
are removed until the new file fits. All processes of a machine may share the cache.
"""

from collections.abc import Iterator
import contextlib
import math
import os
import pathlib
import time
import uuid

from t2t import UserError
from t2t.runtime import amounts, cache_folder, file_lock

LIMIT_VARIABLE = "T2T_HUB_CACHE_GB"
_DEFAULT_GB = 100.0
_PATIENCE = 60.0  # seconds to wait for files in use
_POLL = 0.2  # seconds
_RESERVED, _LOCK, _META = ".reserved", ".evict.lock", ".meta"
_PART = ".incomplete"  # end of the names of unfinished downloads in huggingface_hub
# Files of huggingface_hub without content of the hub.
_NO_CONTENT = (".lock", ".refs")


def root() -> pathlib.Path:
  """Returns the folder of the cache; it may not exist yet."""
  return cache_folder.cache_dir() / "hub"


def meta() -> pathlib.Path:
  """Returns the folder of commits and listings, a few kB for each; they are never evicted."""
  return root() / _META


def limit() -> int:
  """Returns the maximum size in bytes, of the environment variable T2T_HUB_CACHE_GB.

  Raises:
    UserError: the variable is not a positive number.
  """
  text = os.environ.get(LIMIT_VARIABLE, "")
  try:
    gigabytes = float(text) if text else _DEFAULT_GB
  except ValueError:
    gigabytes = math.nan
  if not 0 < gigabytes < math.inf:
    raise UserError(f"{LIMIT_VARIABLE}={text} is not a positive number. Give the size of the cache in GB, such as 200.")
  return int(gigabytes * 1e9)


def check_size(path: str, size: int) -> None:
  """Checks that files fit in the cache, whatever else it contains.

  Raises:
    UserError: they are larger than the limit; or there is no such limit.
  """
  if size > limit():
    raise UserError(
      f"{path} has {amounts.nbytes(size)}, more than the cache of the hub may have ({amounts.nbytes(limit())} in "
      f"{root()}). Set the environment variable {LIMIT_VARIABLE}={math.ceil(size / 1e9) + 1} or more."
    )


# ---- Files in use ----------------------------------------------------------------------------------------------------


def hold(path: pathlib.Path) -> int | None:
  """Opens a cached file with a shared lock, which lasts until the descriptor is closed; None if the file is gone."""
  try:
    descriptor = os.open(path, os.O_RDONLY)
  except FileNotFoundError:
    return None
  try:
    file_lock.wait(descriptor, shared=True)
    # The file may have been evicted before the lock.
    if not os.path.exists(path) or not os.path.samestat(os.fstat(descriptor), os.stat(path)):
      raise FileNotFoundError(path)
    status = os.fstat(descriptor)
    os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))  # many disks are mounted with noatime
  except FileNotFoundError:
    os.close(descriptor)
    return None
  except PermissionError:
    return descriptor  # a cache of another user, which only its owner evicts
  except BaseException:
    os.close(descriptor)
    raise
  return descriptor


# ---- Room ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def room(path: str, size: int) -> Iterator[None]:
  """Reserves bytes for a download in the block; evicts other files, and waits for those in use.

  Args:
    path: of the download, for messages.
    size: in bytes.

  Raises:
    UserError: the limit does not allow it.
  """
  check_size(path, size)
  folder = root() / _RESERVED
  folder.mkdir(parents=True, exist_ok=True)
  reservation = folder / uuid.uuid4().hex
  waited = 0.0
  while True:
    with _exclusive():
      used = _make_room(size)
      if used + size <= limit():
        file = reservation.open("wb", buffering=0)
        file_lock.lock(file, shared=True)  # the system releases it if the process is killed
        file.write(str(size).encode())
        break
    if waited >= _PATIENCE:
      least, in_use = math.ceil((used + size) / 1e9) + 1, f"{amounts.nbytes(used)} of {amounts.nbytes(limit())}"
      raise UserError(
        f"{path} has {amounts.nbytes(size)}, but {in_use} of the cache {root()} are in use. Set the environment "
        f"variable {LIMIT_VARIABLE}={least} or more."
      )
    time.sleep(_POLL)
    waited += _POLL
  try:
    yield
  finally:
    with file, contextlib.suppress(PermissionError):  # on Windows, if another process reads the file just now
      file_lock.remove(file, reservation)


@contextlib.contextmanager
def _exclusive() -> Iterator[None]:
  with (root() / _LOCK).open("w") as file:
    file_lock.wait(file)
    yield


def _make_room(size: int) -> int:
  """Evicts files until `size` fits, if possible; returns the bytes that are used or reserved."""
  reserved = _live_reservations()
  files = []
  for path in _contents():
    with contextlib.suppress(FileNotFoundError):
      if path.name.endswith(_PART):
        if not reserved:  # of a killed process, because every download has a reservation
          path.unlink()
        continue
      status = path.stat()
      files.append((status.st_atime_ns, status.st_size, path))
  used = sum(reserved) + sum(num_bytes for _, num_bytes, _ in files)
  repositories = set()
  for _, num_bytes, path in sorted(files):
    if used + size <= limit():
      break
    if _evict(path):
      used -= num_bytes
      repositories.add(root() / path.relative_to(root()).parts[0])
  for repository in repositories:
    _remove_broken_links(repository)
  return used


def _contents() -> Iterator[pathlib.Path]:
  """Yields the files with content of the hub, finished or not."""
  for folder, names, files in os.walk(root()):
    names[:] = [name for name in names if name != "refs" and not name.startswith(".")]
    for path in (pathlib.Path(folder, name) for name in files if pathlib.Path(folder) != root()):
      if not path.name.startswith(".") and not path.name.endswith(_NO_CONTENT) and not path.is_symlink():
        yield path


def _live_reservations() -> list[int]:
  sizes = []
  for path in (root() / _RESERVED).iterdir():
    with contextlib.suppress(FileNotFoundError, ValueError), path.open("r+") as file:
      if file_lock.lock(file):
        file_lock.remove(file, path)  # of a killed process
      else:
        sizes.append(int(file.read()))
  return sizes


def _evict(path: pathlib.Path) -> bool:
  """Removes a file that no process holds; returns whether it is gone."""
  try:
    with path.open("r+") as file:
      if not file_lock.lock(file):
        return False
      file_lock.remove(file, path)
  except FileNotFoundError:
    return True
  except PermissionError:
    return False
  return True


def _remove_broken_links(repository: pathlib.Path) -> None:
  """Removes links of snapshots to evicted files, so that a listing of a snapshot shows only files."""
  for folder, _, names in os.walk(repository):
    for path in (pathlib.Path(folder, name) for name in names):
      if path.is_symlink() and not path.exists():
        path.unlink(missing_ok=True)
