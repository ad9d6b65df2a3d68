"""Imports that leave out what they can do without."""

from collections.abc import Iterator
import contextlib
import sys


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
  """As if these packages were not installed, for what is imported meanwhile; one that is loaded already stays.

  Libraries that load others only to offer something with them do so behind `except ImportError`.
  """
  hidden = [name for name in names if name not in sys.modules]
  sys.modules.update(dict.fromkeys(hidden))  # None: the import system's own sign that there is no such module
  try:
    yield
  finally:
    for name in hidden:
      del sys.modules[name]
