"""Remembers SIGUSR2, which requests a profile, until a run can trace steps; by default the signal ends a process."""

from collections.abc import Iterator
import contextlib
import signal
import threading

_received = 0


@contextlib.contextmanager
def remembered() -> Iterator[None]:
  """Remembers signals within the block, for `take`; another handler stays.

  Python sets handlers in the main thread only, so in another thread the block changes nothing.
  """
  in_main_thread = threading.current_thread() is threading.main_thread()
  is_free = hasattr(signal, "SIGUSR2") and signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL  # not on Windows
  if not in_main_thread or not is_free:
    yield
    return
  signal.signal(signal.SIGUSR2, note)
  try:
    yield
  finally:
    if threading.current_thread() is threading.main_thread():
      signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    take()


def note(number: int, frame: object) -> None:
  """Remembers a signal."""
  global _received
  del number, frame
  _received += 1


def take() -> int:
  """Returns the number of signals since the last call."""
  global _received
  number, _received = _received, 0
  return number
