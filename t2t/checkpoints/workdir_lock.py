"""That one run alone writes to a workdir: a lock on a disk, a lease in a bucket, and whether the folder is there."""

from collections.abc import Iterator
import contextlib
import fcntl
import os

from etils import epath
import jax

from t2t import UserError
from t2t.runtime import exit_codes, preemption
from t2t.storage import gcs, lease

NAME = ".lock"


class Workdir:
  """A folder on a disk that this process has locked, or None where it need not."""

  def __init__(self, path: epath.Path, folder: int | None):
    self._path, self._folder = path, folder

  def check(self) -> None:
    """Whether the folder is still the one that the run began in.

    Raises:
      UserError: it was moved, deleted, or another stands in its place.
    """
    if self._folder is None:
      return
    try:
      same = os.path.samestat(os.stat(self._path), os.fstat(self._folder))
    except OSError:
      same = False
    if not same:
      raise UserError(
        f"--workdir {self._path}: was moved or deleted while the run wrote to it, so nothing more is saved; bring it"
        " back, and the same command goes on from its last checkpoint"
      )


@contextlib.contextmanager
def held(workdir: epath.Path) -> Iterator[Workdir]:
  """Holds `workdir` for this run; on a disk the lock goes with the process, however it ends.

  Raises:
    UserError: another run is writing there, or nobody can.
  """
  if gcs.is_remote(workdir):
    if jax.process_index() == 0:
      lost = lambda why: preemption.end(f"--workdir {why}", exit_codes.REFUSED)
      with lease.held(workdir / NAME, on_lost=lost) as held_lease, preemption.last_words(held_lease.release):
        yield Workdir(workdir, None)
      return
    yield Workdir(workdir, None)
    return
  try:
    workdir.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError(f"--workdir {workdir}: cannot be made ({error.strerror}); give another") from error
  if jax.process_index() != 0 or "://" in str(workdir):
    yield Workdir(workdir, None)
    return
  with contextlib.ExitStack() as stack:
    try:
      folder = os.open(workdir, os.O_RDONLY | os.O_DIRECTORY)
      stack.callback(os.close, folder)
      file = stack.enter_context(open(workdir / NAME, "a+"))
    except OSError as error:
      raise UserError(f"--workdir {workdir}: cannot be written ({error.strerror}); give another") from error
    try:
      # The folder as well, or who deletes the file would let another in.
      _lock(file.fileno())
      with contextlib.suppress(_Unknown):  # some network file systems lock files alone
        _lock(folder)
    except BlockingIOError:
      file.seek(0)
      owner = file.read().strip() or "unknown"
      raise UserError(
        f"--workdir {workdir}: another run (process {owner}) is writing there; wait for it, stop it, or give another"
      ) from None
    except _Unknown as error:
      raise UserError(f"--workdir {workdir}: its file system knows no locks ({error}); give another") from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    yield Workdir(workdir, folder)


def is_held(workdir: epath.Path) -> bool:
  """Whether a run holds `workdir` now; in a bucket, whether one does that has not ended in order.

  Raises:
    OSError: its bucket does not say.
  """
  if gcs.is_remote(workdir):
    return lease.is_held(workdir / NAME)
  try:
    with open(workdir / NAME) as file:  # shared, and let go of at once: nobody who only looks keeps a run out
      fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
  except BlockingIOError:
    return True
  except OSError:
    pass
  return False


class _Unknown(Exception):
  """The file system cannot lock this."""


def _lock(descriptor: int) -> None:
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise
  except OSError as error:
    raise _Unknown(error.strerror) from error
