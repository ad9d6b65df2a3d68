"""Silence for libraries whose C++ code writes to standard error whatever one sets."""

from collections.abc import Iterator
import contextlib
import os


@contextlib.contextmanager
def stderr() -> Iterator[None]:
  """Drops what C++ code writes to standard error; Python's exceptions come through."""
  kept = os.dup(2)
  nowhere = os.open(os.devnull, os.O_WRONLY)
  try:
    os.dup2(nowhere, 2)
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)
    os.close(nowhere)
