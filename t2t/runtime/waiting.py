"""What threads wait for that may not come, so that whoever watches them can name it: a file, a batch."""

import threading
import time

_waits: dict[int, tuple[str, int, float]] = {}


def begin(subject: str, number: int = 0) -> None:
  """This thread waits from now on.

  Args:
    subject: the file or the stage, in words for a person.
    number: records of it that have come; a call for each costs less than a microsecond.
  """
  _waits[threading.get_ident()] = subject, number, time.monotonic()


def end() -> None:
  """It has come."""
  _waits.pop(threading.get_ident(), None)


def pending(least: float = 0.0) -> list[str]:
  """What has been waited for so many seconds or more, the longest first.

  Out: ["/data/a.txt, behind record 12: 63 s", "the next batch: 61 s"]
  """
  now = time.monotonic()
  overdue = sorted((since, subject, number) for subject, number, since in list(_waits.values()) if now - since >= least)
  return [
    f"{subject}{f', behind record {number:,}' if number else ''}: {now - since:.0f} s"
    for since, subject, number in overdue
  ]
