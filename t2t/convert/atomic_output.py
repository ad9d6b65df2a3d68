"""What a conversion writes: all of it or nothing, and not before there is room; and how far it has come."""

from collections.abc import Callable, Iterator
import contextlib
import errno
import fcntl
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

Progress = Callable[[int, int], None]  # is told how many bytes and tensors were written since the last call

_PART, _LOCK = ".part-", ".lock"  # what follows the name of what is not written to its end; and of its lock
_ATTEMPTS = 20  # to remove what was left unfinished
_SPARE = 0.02  # share of the parameters' size for names, offsets and what else lies beside them


def _is_remote(path: epath.Path) -> bool:
  return "://" in str(path)


def check(out: epath.Path, nbytes: int) -> None:
  """Whether `nbytes` may be written to the folder `out`.

  Raises:
    UserError: there is something there, or no room.
  """
  if out.exists() and (not out.is_dir() or any(out.iterdir())):
    raise UserError(f"{out}: exists and is not an empty folder; give another, or delete it first")
  if _is_remote(out):
    return
  folder = next(parent for parent in out.parents if parent.exists())
  free, needed = shutil.disk_usage(folder).free, int(nbytes * (1 + _SPARE))
  if free < needed:
    raise UserError(
      f"{out}: no space left: {amounts.nbytes(needed)} are needed, {amounts.nbytes(free)} are free on the disk of"
      f" {folder}"
    )


@contextlib.contextmanager
def whole(out: epath.Path, nbytes: int) -> Iterator[epath.Path]:
  """A folder to write into, which becomes `out` when the block ends; if it fails or is interrupted, nothing is left.

  Args:
    out: not there yet, or an empty folder.
    nbytes: how much will be written, about.

  Raises:
    UserError: see `check`; or the disk was full in the end.
  """
  if not _is_remote(out):
    _remove_abandoned(out)
  check(out, nbytes)
  # A bucket has no folders to rename: there, what says that all is written is written last.
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
      raise UserError(f"{out}: no space left while it was written; nothing was kept") from error
    raise


def _lock_of(part: epath.Path) -> pathlib.Path:
  return pathlib.Path(f"{part}{_LOCK}")


@contextlib.contextmanager
def _held(part: epath.Path) -> Iterator[None]:
  """Says to others that a folder is being written: by a lock that the system lets go of however this process ends."""
  if _is_remote(part):
    yield
    return
  part.parent.mkdir(parents=True, exist_ok=True)
  path = _lock_of(part)
  with path.open("w") as file:
    try:
      # Before the folder is there, so that nobody finds it without.
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      path.unlink(missing_ok=True)  # a disk that has no locks: then nobody takes the folder for abandoned
    try:
      yield
    finally:
      path.unlink(missing_ok=True)


def _remove_abandoned(out: epath.Path) -> None:
  """Removes what conversions to the same place left that were killed: whose lock nobody holds."""
  for path in sorted(pathlib.Path(out.parent).glob(f"{glob.escape(out.name)}{_PART}*{_LOCK}")):
    part = epath.Path(str(path).removesuffix(_LOCK))
    with contextlib.suppress(OSError), path.open("r+") as file:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      print(f"{part}: was left by a conversion that was killed; it is removed", file=sys.stderr)
      _remove(part)
      path.unlink(missing_ok=True)


def _remove(folder: epath.Path) -> None:
  for _ in range(_ATTEMPTS):
    # Where a thread of Orbax's still writes or deletes, it fails; the error that brought us here must not be lost.
    with contextlib.suppress(OSError):
      folder.rmtree(missing_ok=True)
      return
    time.sleep(0.1)


def _disk_full(error: BaseException) -> bool:
  # TensorStore wraps the system's error in one of its own.
  return getattr(error, "errno", None) == errno.ENOSPC or "No space left on device" in str(error)


@contextlib.contextmanager
def progress(nbytes: int, num_tensors: int) -> Iterator[Progress]:
  """Says on stderr how far a conversion is: a line that changes on a terminal, one at the end elsewhere.

  Args:
    nbytes: of everything that will be written.
    num_tensors: likewise.
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
