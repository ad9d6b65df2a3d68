"""Locks of open files, which end with the process: flock on Unix, a range beyond the content on Windows."""

import errno
import os
import pathlib
import time
from typing import IO

try:
  import fcntl
except ImportError:  # Windows
  fcntl = None

# Windows locks ranges of bytes, which other processes then cannot read or write, and has no shared locks in Python: an
# exclusive lock takes the range, a shared one the first free byte in it.
_START, _MOST_SHARED = 2**40, 64  # 1 TiB; some file systems allow no position beyond 16 TiB
_POLL_SECONDS = 0.05


def lock(file: IO | int, *, shared: bool = False) -> bool:
  """Locks a file until it is closed; returns False if another open file has a lock that excludes this one.

  Args:
    file: open file, or descriptor.
    shared: permits other shared locks, but no exclusive one.

  Raises:
    OSError: the file system has no locks.
  """
  descriptor = file if isinstance(file, int) else file.fileno()
  try:
    if fcntl is not None:
      fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
      return True
  except OSError as error:
    if error.errno not in (errno.EAGAIN, errno.EACCES):
      raise
    return False
  ranges = [(_START + i, 1) for i in range(_MOST_SHARED)] if shared else [(_START, _MOST_SHARED)]
  return any(_lock_range(descriptor, start, size) for start, size in ranges)


def wait(file: IO | int, *, shared: bool = False) -> None:
  """Locks a file as `lock` does, as soon as no other lock excludes this one."""
  if fcntl is not None:
    fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    return
  while not lock(file, shared=shared):
    time.sleep(_POLL_SECONDS)


def remove(file: IO, path: os.PathLike) -> None:
  """Removes a locked file, if it is there; Windows removes only a closed one, and none that another process has open.

  Raises:
    PermissionError: another process has it open.
  """
  if fcntl is None:
    file.close()
  pathlib.Path(path).unlink(missing_ok=True)


def _lock_range(descriptor: int, start: int, size: int) -> bool:
  import msvcrt

  before = os.lseek(descriptor, 0, os.SEEK_CUR)
  os.lseek(descriptor, start, os.SEEK_SET)
  try:
    msvcrt.locking(descriptor, msvcrt.LK_NBLCK, size)
  except PermissionError:  # EACCES
    return False
  finally:
    os.lseek(descriptor, before, os.SEEK_SET)
  return True
