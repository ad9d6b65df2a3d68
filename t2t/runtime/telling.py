"""What a person is told on standard error, which a terminal or a program reads as long as it likes."""

from collections.abc import Iterator
import contextlib
import errno
import os
import sys

_GONE = (errno.EPIPE, errno.EIO)  # the reader has ended, or the terminal is closed


@contextlib.contextmanager
def unheeded() -> Iterator[None]:
  """In the block nothing fails because nobody reads what is told, or because there is no room for it.

  Work goes on, and machines that cost money are looked after: neither may end with an ssh connection.
  """
  try:
    yield
  except OSError as error:
    if error.errno in _GONE:  # nor may what is still to be told, at exit
      with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def tell(text: str, *, end: str = "\n") -> None:
  """Prints it, if that can be done.

  Args:
    text: in words.
    end: what stands behind it.
  """
  with unheeded():
    print(text, end=end, file=sys.stderr, flush=True)
