"""What a person is told, mostly on standard error, which a terminal or a program reads as long as it likes."""

from collections.abc import Iterator
import contextlib
import errno
import os
import re
import sys
import textwrap
from typing import TextIO

_GONE = (errno.EPIPE, errno.EIO)  # the reader has ended, or the terminal is closed


@contextlib.contextmanager
def unheeded(number: int = 2) -> Iterator[None]:
  """In the block nothing fails because nobody reads what is told, or because there is no room for it.

  Work goes on, and machines that cost money are looked after: neither may end with an ssh connection.

  Args:
    number: of the file that is told to: standard error, or 1, standard output.
  """
  try:
    yield
  except OSError as error:
    if error.errno in _GONE:  # nor may what is still to be told, at exit
      with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def tell(text: str, *, end: str = "\n", file: TextIO | None = None) -> None:
  """Prints it, if that can be done.

  Args:
    text: in words.
    end: what stands behind it.
    file: standard output in place of standard error.
  """
  with unheeded(2 if file is None else 1):
    print(text, end=end, file=file or sys.stderr, flush=True)


def told_of(error: object) -> None:
  """Tells of an error, on a terminal in lines that it has room for.

  Args:
    error: its text, whose lines that are indented are to be pasted, and stay as they are.
  """
  width = 0
  with contextlib.suppress(OSError, ValueError):
    width = os.get_terminal_size(sys.stderr.fileno()).columns
  tell("\n".join(wrapped(line, width) for line in str(error).splitlines()) if width else str(error))


_COMMAND = re.compile(r"`[^`]*`")


def wrapped(line: str, width: int) -> str:
  """In lines of at most so many columns, if its words allow it; neither a word nor a `command` is broken."""
  if line.startswith(" "):
    return line
  glued = _COMMAND.sub(lambda match: match[0].replace(" ", "\0"), line)
  return textwrap.fill(glued, width, break_long_words=False, break_on_hyphens=False).replace("\0", " ")
