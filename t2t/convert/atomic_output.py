"""Atomic output of conversions, with a check of disk space and a progress bar."""

from collections.abc import Callable, Iterator
import contextlib
import errno
import glob
import pathlib
import shutil
import sys
import time
import uuid

from etils import epath
import rich.console
import rich.progress

from t2t import UserError
from t2t.runtime import amounts

Progress = Callable[[int, int], None]  # receives the numbers of bytes and tensors written since the last call

_PART, _LOCK = ".part-", ".lock"  # name suffixes of an incomplete folder and its lock
_ATTEMPTS = 20  # attempts to remove an incomplete folder
_SPARE = 0.02  # fraction of the parameters' size for names, offsets and other files


def _is_remote(path: epath.Path) -> bool:
  return "://" in str(path)


def check(out: epath.Path, nbytes: int) -> None:
  """Checks that `nbytes` can be written to the folder `out`.

  Raises:
    UserError: the folder is not empty, or the disk is full.
  """
  if out.exists() and (not out.is_dir() or any(out.iterdir())):
    raise UserError(f"{out} exists and is not an empty folder. Give another folder, or delete {out} first.")
  if _is_remote(out):
    return
  folder = next(parent for parent in out.parents if parent.exists())
  free, needed = shutil.disk_usage(folder).free, int(nbytes * (1 + _SPARE))
  if free < needed:
    raise UserError(
      f"{out} needs {amounts.nbytes(needed)}, but the disk of {folder} has {amounts.nbytes(free)} free. Free "
      "some space, or give a folder on another disk."
    )


@contextlib.contextmanager
def whole(out: epath.Path, nbytes: int) -> Iterator[epath.Path]:
  """Yields a temporary folder, which becomes `out` when the block ends; after a failure or interruption nothing is
  left.

  Args:
    out: a folder that does not exist or is empty.
    nbytes: approximate size of the output.

  Raises:
    UserError: see `check`; or the disk became full.
  """
  if not _is_remote(out):
    _remove_abandoned(out)
  check(out, nbytes)
  # A bucket has no atomic rename: there, the marker of completeness is written last.
  part = out if _is_remote(out) else out.parent / f"{out.name}{_PART}{uuid.uuid4().hex[:8]}"
  with _held(part):
    yield from _written(part, out)


def _written(part: epath.Path, out: epath.Path) -> Iterator[epath.Path]:
  part.mkdir(parents=True, exist_ok=True)
  try:
    yield part
    if part != out:
      if out.exists():
        out.rmdir()
      part.rename(out)
  except BaseException as error:
    _remove(part)
    if _disk_full(error):
      raise UserError(
        f"{out}: the disk became full during the write, and nothing was kept. Free some space, or give a folder on "
        "another disk."
      ) from error
    raise


def _lock_of(part: epath.Path) -> pathlib.Path:
  return pathlib.Path(f"{part}{_LOCK}")


@contextlib.contextmanager
def _held(part: epath.Path) -> Iterator[None]:
  """Marks a folder as in progress by a file lock, which the system releases at the end of the process."""
  if _is_remote(part):
    yield
    return
  from t2t.runtime import file_lock

  part.parent.mkdir(parents=True, exist_ok=True)
  path = _lock_of(part)
  with path.open("w") as file:
    # Lock before the folder exists, so that it is never seen without a lock.
    with contextlib.suppress(OSError):
      file_lock.lock(file)
    try:
      yield
    finally:
      file_lock.remove(file, path)


def _remove_abandoned(out: epath.Path) -> None:
  """Removes incomplete folders of killed conversions to the same path: their locks are free."""
  from t2t.runtime import file_lock

  for path in sorted(pathlib.Path(out.parent).glob(f"{glob.escape(out.name)}{_PART}*{_LOCK}")):
    part = epath.Path(str(path).removesuffix(_LOCK))
    with contextlib.suppress(OSError), path.open("r+") as file:
      if file_lock.lock(file):
        print(f"{part}: removing the incomplete output of a killed conversion", file=sys.stderr)
        _remove(part)
        file_lock.remove(file, path)


def _remove(folder: epath.Path) -> None:
  for _ in range(_ATTEMPTS):
    # Removal fails while a thread of Orbax still writes or deletes; the original error must be raised.
    with contextlib.suppress(OSError):
      folder.rmtree(missing_ok=True)
      return
    time.sleep(0.1)


def _disk_full(error: BaseException) -> bool:
  # TensorStore wraps the system's error.
  return getattr(error, "errno", None) == errno.ENOSPC or "No space left on device" in str(error)


@contextlib.contextmanager
def progress(nbytes: int, num_tensors: int) -> Iterator[Progress]:
  """Prints the progress of a conversion on stderr: a progress bar on a terminal, otherwise one line at the end.

  Args:
    nbytes: total size.
    num_tensors: total number of tensors.
  """
  console, started, done = rich.console.Console(stderr=True), time.monotonic(), [0, 0]

  def text() -> str:
    rate = done[0] / max(time.monotonic() - started, 1e-3)
    size = f"{amounts.nbytes(done[0])} of {amounts.nbytes(nbytes)}"
    return f"{done[1]}/{num_tensors} tensors  {size}  {amounts.nbytes(rate)}/s"

  columns = [rich.progress.TextColumn("{task.description}"), rich.progress.BarColumn()]
  columns += [rich.progress.TimeRemainingColumn(), rich.progress.TextColumn("left")]
  with rich.progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as line:
    task = line.add_task(text(), total=nbytes)

    def advance(written: int, tensors: int) -> None:
      done[0], done[1] = done[0] + written, done[1] + tensors
      line.update(task, advance=written, description=text())

    yield advance
  print(text(), file=sys.stderr)
