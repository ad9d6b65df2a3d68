"""What goes wrong while files are read: records that are malformed, and files that cannot be read for a while."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import itertools
import threading
import time

from absl import logging

from t2t import UserError
from t2t.runtime import console, waiting
from t2t.storage import compression

# A share of fewer records would be none of most.
_LEAST_RECORDS = 1_000
_SHOWN = 10  # malformed records that are told one by one; of more every tenth, every hundredth ...
# Seconds before a file that could not be read is opened again: a disk of another machine may be away for a moment. Of a
# bucket the client has asked again for a minute already.
_WAITS = (1.0, 5.0, 15.0)


# Records that are looked through where none of them has made an example.
MOST_UNUSED = 100_000


class NoExamples(UserError):
  """The error of a task that makes no example of its records.

  Args:
    task: name of the task that was read.
    split: of it.
    num_records: that were read.
  """

  def __init__(self, task: str, split: str, num_records: int):
    self.num_records = num_records
    why = (
      f"its preprocessors keep none of the {num_records:,} records that were read. Check its filters, and the lengths"
      " that it needs, with `t2t tasks show`"
      if num_records
      else "its source has no record. Check what it reads"
    )
    super().__init__(f"{task}: split {split!r} has no example: {why}; or give another split, or leave the task out")


class DamagedRecord(bytes):
  """A record that cannot be what was written: what is there of it, and why."""

  reason: str

  def __new__(cls, content: bytes, reason: str):
    """A record."""
    record = super().__new__(cls, content)
    record.reason = reason
    return record


class Tally:
  """Counts records, and leaves out malformed ones as long as they are few.

  Each process counts what it reads: to add up all of them would have those that read wait for each other.

  Args:
    share: of the records that may be malformed; 0: none.
  """

  def __init__(self, share: float):
    self._share = share
    self._seen = self._bad = 0
    self._lock = threading.Lock()  # streams are read side by side

  def shared_out(self, number: int) -> list[list[int]]:
    """What was counted, in so many parts, each [records, malformed ones]: for streams that may go on elsewhere."""
    with self._lock:
      counts = self._seen, self._bad
    return [[count // number + (part < count % number) for count in counts] for part in range(number)]

  def go_on(self, parts: Iterable[Sequence[int]]) -> None:
    """Counts on from parts of `shared_out`; what had been read ahead of a position is read again, and counts again."""
    parts = list(parts)
    with self._lock:
      self._seen, self._bad = (sum(part[i] for part in parts) for i in range(2))

  def good(self, number: int = 1) -> None:
    """So many were whole."""
    self._seen += number

  def bad(self, error: UserError) -> None:
    """One was malformed.

    Raises:
      UserError: `error`, where that is one too many.
    """
    with self._lock:
      self._seen, self._bad = self._seen + 1, self._bad + 1
      bad, seen = self._bad, self._seen
    if not self._share:
      raise error
    if bad > self._share * max(seen, _LEAST_RECORDS):
      raise UserError(
        f"{error}\n{bad:,} of the {seen:,} records that this process has read are malformed, more than"
        f" config.data.max_bad_record_fraction={self._share:g} allows"
      ) from error
    if bad <= _SHOWN or not bad % 10 ** (len(str(bad)) - 1):
      console.tell(f"left out, malformed record {bad:,} of {seen:,}: {error}")


def patiently(open_again: Callable[[], Iterator[tuple[int, bytes]]], path: str) -> Iterator[tuple[int, bytes]]:
  """The records of a file; where the system cannot read it, it is opened again after a while and read on from there.

  Raises:
    OSError: it still could not be read; at once, where no system's number says that it was the system.
  """
  num_read, tried = 0, 0
  while True:
    try:
      records = itertools.islice(open_again(), num_read, None)
      while True:
        waiting.begin(path, num_read)
        try:
          record = next(records, None)
        finally:
          waiting.end()
        if record is None:
          return
        num_read, tried = num_read + 1, 0
        yield record
    except OSError as error:
      if error.errno is None or tried == len(_WAITS):
        raise
      logging.warning("%s: cannot be read after record %d (%s): it is tried again", path, num_read, error)
      time.sleep(_WAITS[tried])
      tried += 1


def numbered(
  read: Callable[[], Iterator[tuple[int, bytes]]], path: str, *, unit: str, broken: str, where: str
) -> Iterator[tuple[int, bytes]]:
  """What is read of a file, `patiently`, and errors that say how far it came.

  Args:
    read: yields each record with its number, from 1.
    path: of the file.
    unit: what a record is called.
    broken: what the file is where its content ends it.
    where: the configuration key that names it, for messages.

  Raises:
    UserError: the file cannot be read to its end.
  """
  number = 0
  try:
    for number, record in patiently(read, path):
      yield number, record
  except UserError:
    raise
  except (ValueError, *compression.DAMAGED) as error:
    raise UserError(f"{where}: {path}: {broken} after {unit} {number} ({error})") from error
  except OSError as error:
    raise UserError(f"{where}: {path}: cannot be read after {unit} {number} ({error.strerror or error})") from error
