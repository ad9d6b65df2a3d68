"""Registers what threads wait for, such as a file or a batch, so that the watchdog can name it."""

import threading
import time

_waits: dict[int, tuple[str, int, float]] = {}


def begin(subject: str, number: int = 0) -> None:
  """Registers that this thread starts to wait.

  Args:
    subject: the file or the stage, in words.
    number: records of it received so far; one call per record costs less than a microsecond.
  """
  _waits[threading.get_ident()] = subject, number, time.monotonic()


def end() -> None:
  """Registers that this thread stops waiting."""
  _waits.pop(threading.get_ident(), None)


def pending(least: float = 0.0) -> list[str]:
  """Returns descriptions of waits of at least `least` seconds, the longest first.

  Out: ["/data/a.txt, behind record 12: 63 s", "the next batch: 61 s"]
  """
  now = time.monotonic()
  overdue = sorted((since, subject, number) for subject, number, since in list(_waits.values()) if now - since >= least)
  return [
    f"{subject}{f', behind record {number:,}' if number else ''}: {now - since:.0f} s"
    for since, subject, number in overdue
  ]
