"""What a conversion writes: all of it or nothing, and not before there is room; and how far it has come."""

from collections.abc import Callable, Iterator
import contextlib
import errno
import shutil
import sys
import time
import uuid

from etils import epath
import rich.console
import rich.progress

from t2t import UserError

Progress = Callable[[int, int], None]  # is told how many bytes and tensors were written since the last call

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
      f"{out}: no space left: {needed / 1e9:.2f} GB are needed, {free / 1e9:.2f} GB are free on the disk of {folder}"
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
  check(out, nbytes)
  # A bucket has no folders to rename: there, what says that all is written is written last.
  part = out if _is_remote(out) else out.parent / f"{out.name}.part-{uuid.uuid4().hex[:8]}"
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
    return f"{done[1]}/{num_tensors} tensors  {done[0] / 1e9:.2f}/{nbytes / 1e9:.2f} GB  {rate / 1e9:.2f} GB/s"

  columns = [rich.progress.TextColumn("{task.description}"), rich.progress.BarColumn()]
  columns += [rich.progress.TimeRemainingColumn(), rich.progress.TextColumn("left")]
  with rich.progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as line:
    task = line.add_task(text(), total=nbytes)

    def advance(written: int, tensors: int) -> None:
      done[0], done[1] = done[0] + written, done[1] + tensors
      line.update(task, advance=written, description=text())

    yield advance
  print(text(), file=sys.stderr)
