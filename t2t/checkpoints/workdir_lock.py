"""Exclusive access of one run to a workdir: a lock on a disk, a lease in a bucket."""

from collections.abc import Iterator
import contextlib
import os

from etils import epath
import jax

from t2t import UserError
from t2t.runtime import exit_codes, preemption
from t2t.storage import gcs

NAME = ".lock"


class Workdir:
  """A folder on a disk, locked by this process; None: no lock is needed."""

  def __init__(self, path: epath.Path, folder: int | None):
    self._path, self._folder = path, folder

  def check(self) -> None:
    """Checks that the folder is still the one in which the run began.

    Raises:
      UserError: it was moved, deleted, or replaced.
    """
    if self._folder is None:
      return
    try:
      same = os.path.samestat(os.stat(self._path), os.fstat(self._folder))
    except OSError:
      same = False
    if not same:
      raise UserError(
        f"--workdir {self._path} was moved or deleted during the run, so nothing more is saved. Restore the folder; "
        "the same command then resumes from the last checkpoint."
      )


@contextlib.contextmanager
def held(workdir: epath.Path, *, option: str = "--workdir") -> Iterator[Workdir]:
  """Locks `workdir`, the value of `option`, for this run; on a disk the lock ends with the process.

  Raises:
    UserError: another run writes there, or the folder is not writable.
  """
  kind = "workdir" if option == "--workdir" else "folder"
  remedy = f"Give another {kind}."
  if gcs.is_remote(workdir):
    if jax.process_index() == 0:
      from t2t.storage import lease

      lost = lambda why: preemption.end(f"{option} {why}", exit_codes.REFUSED)
      with lease.held(workdir / NAME, on_lost=lost) as held_lease, preemption.last_words(held_lease.release):
        yield Workdir(workdir, None)
      return
    yield Workdir(workdir, None)
    return
  try:
    workdir.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError(f"{option} {workdir} cannot be created ({error.strerror}). {remedy}") from error
  if jax.process_index() != 0 or "://" in str(workdir):
    yield Workdir(workdir, None)
    return
  with contextlib.ExitStack() as stack:
    try:
      folder = None
      if hasattr(os, "O_DIRECTORY"):  # Windows neither opens folders nor moves those with an open file
        folder = os.open(workdir, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, folder)
      file = stack.enter_context(open(workdir / NAME, "a+"))
    except OSError as error:
      raise UserError(f"{option} {workdir} cannot be written ({error.strerror}). {remedy}") from error
    from t2t.runtime import file_lock

    try:
      is_free = file_lock.lock(file)
    except OSError as error:
      raise UserError(f"{option} {workdir}: its file system has no locks ({error.strerror}). {remedy}") from None
    # Lock the folder as well, because the lock file may be deleted; some network file systems lock only files.
    with contextlib.suppress(OSError):
      is_free = is_free and (folder is None or file_lock.lock(folder))
    if not is_free:
      file.seek(0)
      owner = file.read().strip() or "unknown"
      raise UserError(
        f"{option} {workdir}: another run (process {owner}) is writing there. Wait for that run, stop it, or give "
        f"another {kind}."
      )
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    yield Workdir(workdir, folder)


def is_held(workdir: epath.Path) -> bool:
  """Returns whether a run holds `workdir`; in a bucket, also after a run that crashed.

  Raises:
    OSError: the bucket does not answer.
  """
  if gcs.is_remote(workdir):
    from t2t.storage import lease

    return lease.is_held(workdir / NAME)
  from t2t.runtime import file_lock

  try:
    with open(workdir / NAME) as file:  # shared and released at once, so that a check never blocks a run
      return not file_lock.lock(file, shared=True)
  except OSError:
    return False
