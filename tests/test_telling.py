"""Nothing ends because nobody reads what is told."""

import errno
import pathlib
import subprocess
import sys

import pytest

from t2t.runtime import telling

_TELLS = """
import sys
from t2t.runtime import telling
sys.stdin.readline()  # the reader is gone
for number in range(3): telling.tell(f"step {number}")
sys.exit(7)
"""


def test_the_reader_is_gone():
  """As where an ssh connection is cut: what was being done goes on to its end."""
  process = subprocess.Popen(
    [sys.executable, "-S", "-c", _TELLS],
    cwd=pathlib.Path(__file__).parents[1],
    stdin=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  process.stderr.close()
  process.stdin.write("go on\n")
  process.stdin.close()
  assert process.wait(timeout=60) == 7


def test_no_room_for_it(capsys):
  """A log on a full disk: what comes when there is room again is told."""
  with telling.unheeded():
    raise OSError(errno.ENOSPC, "No space left on device")
  telling.tell("there is room")
  assert capsys.readouterr().err == "there is room\n"
  with pytest.raises(ValueError, match="other"), telling.unheeded():
    raise ValueError("other")
