"""A command does not end because its messages cannot be written."""

import errno
import fcntl
import os
import struct
import subprocess
import sys
import termios

import folders
import hypothesis
from hypothesis import strategies
import pytest

from t2t.runtime import console

_TELLS = """
import sys
from t2t.runtime import console
sys.stdin.readline()  # the reader is gone
for number in range(3): console.tell(f"step {number}")
sys.exit(7)
"""


def test_the_reader_is_gone():
  """For example after an ssh connection is cut: the work continues."""
  process = subprocess.Popen(
    [sys.executable, "-S", "-c", _TELLS],
    cwd=folders.ROOT,
    stdin=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  process.stderr.close()
  process.stdin.write("go on\n")
  process.stdin.close()
  assert process.wait(timeout=60) == 7


def test_no_room_for_it(capsys):
  """A log on a full disk: messages are written when there is space again."""
  with console.unheeded():
    raise OSError(errno.ENOSPC, "No space left on device")
  console.tell("there is room")
  assert capsys.readouterr().err == "there is room\n"
  with pytest.raises(ValueError, match="other"), console.unheeded():
    raise ValueError("other")


ERROR = f"t2t train: error: {'/a/long/path' * 9}: {'some words ' * 9}`t2t checkpoint verify runs/tiny`"
ERROR += f"\n  to be pasted {'x ' * 60}"


def told(stderr: int) -> None:
  program = "import sys; from t2t.runtime import console; console.told_of(sys.argv[1])"
  root = folders.ROOT
  assert subprocess.run([sys.executable, "-S", "-c", program, ERROR], cwd=root, stderr=stderr).returncode == 0


def test_an_error_has_the_width_of_the_terminal():
  """Commands to paste are not wrapped."""
  terminal, own = os.openpty()
  fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
  told(own)
  lines = os.read(terminal, 10_000).decode().replace("\r", "").splitlines()
  os.close(own)
  os.close(terminal)
  assert " ".join(" ".join(lines).split()) == " ".join(ERROR.split()) and len(lines) > 3
  assert "/a/long/path" * 9 + ":" in lines and lines[-1] == ERROR.splitlines()[-1]
  assert [line for line in lines if "`t2t checkpoint verify runs/tiny`" in line]
  assert all(len(line) <= 80 for line in lines[:-1] if "/a/long" not in line)


def test_an_error_in_a_log_is_as_it_is(tmp_path):
  """Programs read pipes and files by lines, so errors are not wrapped."""
  with open(tmp_path / "log", "w") as file:
    told(file.fileno())
  assert (tmp_path / "log").read_text() == ERROR + "\n"


@hypothesis.given(strategies.text(alphabet="ab` -/", max_size=200), strategies.integers(1, 40))
def test_wrapping_loses_nothing(text, width):
  """Except spaces at the ends of lines."""
  assert console.wrapped("x" + text, width).split() == ("x" + text).split()
