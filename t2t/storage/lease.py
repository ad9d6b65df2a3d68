"""A lease on a folder of a bucket, which has no locks: an object that its holder rewrites periodically.

A process that finds the object waits for a rewrite. If it is rewritten, the holder is alive; otherwise the lease is
taken over. Clocks of different machines are never compared.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import threading
import time
from typing import Any
import uuid

from t2t import UserError
from t2t.runtime import console
from t2t.storage import gcs, outage

RENEW_SECONDS = 15.0
MISSED = 3  # missed renewals before a takeover


def _machine() -> str:
  """Returns an id of the running machine, because clones and containers may share host name and pids."""
  identifiers = []
  for read in (
    lambda: pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    lambda: os.readlink("/proc/self/ns/pid"),
  ):
    with contextlib.suppress(OSError):
      identifiers.append(read())
  return " ".join(identifiers)


@dataclasses.dataclass
class _Holder:
  """Content of the object.

  Attributes:
    host, pid: of the process.
    since: start time, in words.
    machine: see `_machine`.
    key: unique for each lease.
    times: number of renewals, so that all contents differ.
  """

  host: str
  pid: int
  since: str
  machine: str = ""
  key: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
  times: int = 0

  def __str__(self):
    return f"process {self.pid} on {self.host}, since {self.since}"

  def is_dead(self) -> bool:
    """Returns True if it was a process of this machine that has exited; False if that is unknown."""
    if (self.host, self.machine) != (socket.gethostname(), _machine()):
      return False
    try:
      os.kill(self.pid, 0)
    except ProcessLookupError:
      return True
    except OSError:
      pass
    return False


def _read(content: bytes) -> _Holder:
  try:
    return _Holder(**json.loads(content))
  except (ValueError, TypeError):
    return _Holder("an unknown host", 0, "an unknown time")


class Lease:
  """A lease that is held until `release`.

  Args:
    path: of the object, gs://.
    on_lost: called in a thread, with a sentence, after a takeover by another run.

  Raises:
    UserError: another run holds it, or it cannot be written; `Away` if the bucket does not answer.
  """

  def __init__(self, path: Any, *, on_lost: Callable[[str], None]):
    self._path, self._on_lost = path, on_lost
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    self._own = _Holder(socket.gethostname(), os.getpid(), since, machine=_machine())
    self._released, self._writing = threading.Event(), threading.Lock()
    try:
      self._generation = self._take()
    except OSError as error:
      problem = (
        f"{path} cannot be written ({error}). Training needs this file as a lock. Check the "
        "bucket's permissions, or give another --workdir."
      )
      raise outage.refusal(problem, error) from error
    threading.Thread(target=self._renew, name="lease", daemon=True).start()

  def _content(self) -> bytes:
    return json.dumps(dataclasses.asdict(self._own)).encode()

  def _take(self) -> int:
    generation, content = gcs.look(self._path)
    if generation:
      self._wait_for_the_end_of(_read(content), generation)
      generation = gcs.look(self._path)[0]
    new_generation = gcs.swap(self._path, self._content(), generation)
    if new_generation is None:
      raise UserError(self._refusal(_read(gcs.look(self._path)[1])))
    return new_generation

  def _refusal(self, holder: _Holder) -> str:
    return (
      f"{self._path}: another run ({holder}) is writing there. Wait for that run, stop it, or give another --workdir."
    )

  def _wait_for_the_end_of(self, holder: _Holder, generation: int) -> None:
    if holder.is_dead():
      return
    seconds = MISSED * RENEW_SECONDS
    console.tell(f"{self._path} is held by {holder}; waiting {seconds:.0f} s to see whether that process is alive")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
      time.sleep(RENEW_SECONDS / 4)
      current_generation, content = gcs.look(self._path)
      if not current_generation:
        return
      if current_generation != generation:
        raise UserError(self._refusal(_read(content)))

  def _renew(self) -> None:
    while not self._released.wait(RENEW_SECONDS):
      with self._writing:
        if self._released.is_set():
          return
        self._own.times += 1
        try:
          new_generation = gcs.swap(self._path, self._content(), self._generation)
        except OSError:
          continue  # the bucket does not answer, so no other process can write, either
      if new_generation is None:
        self._released.set()
        self._on_lost(f"{self._path}: another run has taken the lease over, so this run must not write any more")
        return
      self._generation = new_generation

  def release(self) -> None:
    """Releases the lease, so that others can take it immediately."""
    if self._released.is_set():
      return
    self._released.set()
    with self._writing, contextlib.suppress(OSError):
      gcs.discard(self._path, self._generation)


def is_held(path: Any) -> bool:
  """Returns whether there is a lease; False if its holder is known to be dead. Holders elsewhere are not checked.

  Raises:
    OSError: the bucket does not answer.
  """
  generation, content = gcs.look(path)
  return bool(generation) and not _read(content).is_dead()


@contextlib.contextmanager
def held(path: Any, *, on_lost: Callable[[str], None]) -> Iterator[Lease]:
  """Holds a lease within the block; see `Lease`."""
  lease = Lease(path, on_lost=on_lost)
  try:
    yield lease
  finally:
    lease.release()
