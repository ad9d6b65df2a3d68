"""Errors while reading files: malformed records, and files that are temporarily unreadable."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import itertools
import threading
import time

from absl import logging

from t2t import UserError
from t2t.runtime import console, waiting
from t2t.storage import compression, outage

# The share of malformed records refers to at least this many records.
_LEAST_RECORDS = 1_000
_SHOWN = 10  # malformed records that are logged one by one; then every tenth, every hundredth, ...
# Seconds before an unreadable file is opened again, because a network disk may be away for a moment. For a bucket, the
# client has already retried for a minute.
_WAITS = (1.0, 5.0, 15.0)


# Maximum number of records to look through if none of them yields an example.
MOST_UNUSED = 100_000


class NoExamples(UserError):
  """Error of a task without examples.

  Args:
    task: name of the task.
    split: of the task.
    num_records: number of records that were read.
  """

  def __init__(self, task: str, split: str, num_records: int):
    self.num_records = num_records
    why = (
      f"the preprocessors of the task keep none of the {num_records:,} records that were read. Check the filters and"
      " lengths of the task with `t2t tasks show`"
      if num_records
      else "the source of the task has no record. Check the files of the source"
    )
    super().__init__(
      f"{task}: split {split!r} has no example, because {why}, give another split, or leave the task out."
    )


class DamagedRecord(bytes):
  """Damaged record: the bytes that could be read, and the reason."""

  reason: str

  def __new__(cls, content: bytes, reason: str):
    record = super().__new__(cls, content)
    record.reason = reason
    return record


class Tally:
  """Counts records, and skips malformed ones while they are few.

  Each process counts only its own records, because a global count would make readers wait for each other.

  Args:
    share: allowed share of malformed records; 0: none.
  """

  def __init__(self, share: float):
    self._share = share
    self._seen = self._bad = 0
    self._lock = threading.Lock()  # streams are read in parallel

  def shared_out(self, number: int) -> list[list[int]]:
    """Splits the counts into parts, each [records, malformed records], for streams that may resume elsewhere."""
    with self._lock:
      counts = self._seen, self._bad
    return [[count // number + (part < count % number) for count in counts] for part in range(number)]

  def go_on(self, parts: Iterable[Sequence[int]]) -> None:
    """Resumes from parts of `shared_out`; records that were prefetched are read and counted again."""
    parts = list(parts)
    with self._lock:
      self._seen, self._bad = (sum(part[i] for part in parts) for i in range(2))

  def good(self, number: int = 1) -> None:
    """Counts well-formed records."""
    self._seen += number

  def bad(self, error: UserError) -> None:
    """Counts a malformed record.

    Raises:
      UserError: `error`, if too many records are malformed.
    """
    with self._lock:
      self._seen, self._bad = self._seen + 1, self._bad + 1
      bad, seen = self._bad, self._seen
    if not self._share:
      raise error
    if bad > self._share * max(seen, _LEAST_RECORDS):
      raise UserError(
        f"{error}\n{bad:,} of the {seen:,} records that this process has read are malformed, more than "
        f"config.data.max_bad_record_fraction={self._share:g} allows; correct the files, or raise the allowed fraction"
      ) from error
    if bad <= _SHOWN or not bad % 10 ** (len(str(bad)) - 1):
      console.tell(f"skipped malformed record {bad:,} of {seen:,}: {error}")


def patiently(open_again: Callable[[], Iterator[tuple[int, bytes]]], path: str) -> Iterator[tuple[int, bytes]]:
  """Yields the records of a file; if the system cannot read it, opens it again after a while and continues.

  Raises:
    OSError: the file is still unreadable; or, without a retry, the error has no errno.
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
      logging.warning("%s: cannot be read after record %d (%s); retrying", path, num_read, error)
      time.sleep(_WAITS[tried])
      tried += 1


def numbered(
  read: Callable[[], Iterator[tuple[int, bytes]]], path: str, *, unit: str, broken: str, where: str
) -> Iterator[tuple[int, bytes]]:
  """Reads a file with `patiently`; errors name the last record that was read.

  Args:
    read: yields each record with its number, from 1.
    path: of the file.
    unit: name of a record, for messages.
    broken: description of a damaged file, for messages.
    where: configuration key of the file, for messages.

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
    raise UserError(
      f"{where}: {path}: {broken} after {unit} {number} ({error}). Repair the file, or copy or download the file again."
    ) from error
  except OSError as error:
    raise interrupted(path, f"{unit} {number}", error, where=where) from error


def interrupted(path: str, after: str, error: OSError, *, where: str) -> UserError:
  """Returns the error for a file that a disk or network failed to deliver to its end; `outage.Away` for an outage.

  Args:
    path: of the file.
    after: the last record that was read, for example "line 3".
    error: its reason.
    where: configuration key of the file.
  """
  reason = (str(error.strerror or error).splitlines() or [type(error).__name__])[0]
  message = (
    f"{where}: {path} cannot be read after {after} ({reason}); check the disk or network of the file, and try again"
  )
  return outage.refusal(message, error)
