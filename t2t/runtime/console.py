"""Messages to the user, mostly on standard error, which may be closed at any time."""

from collections.abc import Iterator
import contextlib
import errno
import os
import re
import sys
import textwrap
from typing import TextIO

_GONE = (errno.EPIPE, errno.EIO)  # the reader has exited, or the terminal is closed


@contextlib.contextmanager
def unheeded(number: int = 2) -> Iterator[None]:
  """Ignores errors of writing messages in the block, such as a closed terminal or a full disk.

  Neither training nor the supervision of paid machines may end because an ssh connection closes.

  Args:
    number: file descriptor of the messages: 2 for standard error, 1 for standard output.
  """
  try:
    yield
  except OSError as error:
    if error.errno in _GONE:  # also silences messages at exit
      with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def tell(text: str, *, end: str = "\n", file: TextIO | None = None) -> None:
  """Prints a message, and ignores errors of writing it.

  Args:
    text: the message.
    end: printed after it.
    file: for example standard output, in place of standard error.
  """
  with unheeded(2 if file is None else 1):
    print(text, end=end, file=file or sys.stderr, flush=True)


def told_of(error: object) -> None:
  """Prints an error, wrapped to the width of the terminal.

  Args:
    error: the error or its text; indented lines are commands to paste, and are not wrapped.
  """
  width = 0
  with contextlib.suppress(OSError, ValueError):
    width = os.get_terminal_size(sys.stderr.fileno()).columns
  tell("\n".join(wrapped(line, width) for line in str(error).splitlines()) if width else str(error))


_COMMAND = re.compile(r"`[^`]*`")


def wrapped(line: str, width: int) -> str:
  """Wraps a line to `width` columns without breaking a word or a `command`."""
  if line.startswith(" "):
    return line
  glued = _COMMAND.sub(lambda match: match[0].replace(" ", "\0"), line)
  return textwrap.fill(glued, width, break_long_words=False, break_on_hyphens=False).replace("\0", " ")
