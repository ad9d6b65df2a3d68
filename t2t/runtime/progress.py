"""Shows progress of slow operations on stderr: a bar on a terminal, two log lines elsewhere."""

from collections.abc import Iterable, Iterator
import sys
import time
from typing import TypeVar

from absl import logging
import rich.console
import rich.progress

T = TypeVar("T")


def track(items: Iterable[T], description: str, *, total: int | None = None) -> Iterator[T]:
  """Yields `items`, and shows the progress.

  Args:
    items: items to process.
    description: of the operation, such as "reading the installed documentation".
    total: number of items if `items` has no length.
  """
  if sys.stderr.isatty():
    console = rich.console.Console(stderr=True)
    yield from rich.progress.track(items, description, total=total, console=console, transient=True)
    return
  started = time.monotonic()
  logging.info("%s ...", description)
  yield from items
  logging.info("%s: done in %.1f s", description, time.monotonic() - started)
