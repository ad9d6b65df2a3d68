"""Runs command lines of other programs, or only prints them (`--dry-run`), and reports progress."""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import textwrap
import time

import t2t
from t2t.runtime import console

_WIDTH = 80
TIMED_OUT = 124  # as timeout(1)

# Missing program -> how to install it.
_INSTALL = {
  "gcloud": "install the Google Cloud CLI, https://cloud.google.com/sdk/docs/install, then run `gcloud init`",
  "kubectl": "run `gcloud components install kubectl gke-gcloud-auth-plugin`",
  "sbatch": "run this on a login node of the SLURM cluster",
  "squeue": "run this on a login node of the SLURM cluster",
  "scancel": "run this on a login node of the SLURM cluster",
}


@dataclasses.dataclass(frozen=True)
class Answer:
  """Result of a program: exit code and output."""

  code: int
  out: str
  err: str

  def reason(self, lines: int = 6) -> str:
    """Returns the last lines of the output, errors first, for a message."""
    text = (self.err.strip() or self.out.strip()).splitlines()
    return "\n".join(f"  {line.rstrip()}" for line in text[-lines:]) or f"  (exit code {self.code}, no output)"


def shown(command: Sequence[str]) -> str:
  """Returns a command line to paste into a shell, wrapped at 80 columns."""
  lines, line = [], ""
  for word in map(shlex.quote, command):
    if line and len(line) + len(word) + 3 > _WIDTH:
      lines.append(line + " \\")
      line = "  " + word
    else:
      line = f"{line} {word}" if line else word
  return "\n".join([*lines, line])


def check_words(words: Mapping[str, str]) -> None:
  """Checks that words contain no control characters, which could act on a terminal or in a script.

  Args:
    words: label, such as "--partition" -> the word.

  Raises:
    UserError: with the first such word.
  """
  for label, word in words.items():
    if not word.isprintable():
      raise t2t.UserError(
        f"{label} {word!r} contains a character that cannot be printed, such as a line break. Remove the character."
      )


class Shell:
  """Runs commands; with `dry_run` it prints them in order and pretends that each succeeds."""

  def __init__(self, *, dry_run: bool = False, poll_seconds: float = 20.0):
    self.dry_run = dry_run
    self._poll_seconds = poll_seconds
    self._progress = ""
    self._since = 0.0

  def ask(
    self, command: Sequence[str], *, given: str | None = None, pretend: str = "", timeout: float = 3600.0
  ) -> Answer:
    """Runs `command` to its end with any exit code; 124 for a timeout.

    Args:
      command: program and arguments; no shell reads them.
      given: text for its standard input.
      pretend: its output in a dry run.
      timeout: seconds.

    Raises:
      UserError: the program is not installed; with how to install it.
    """
    if self.dry_run:
      if given is None:
        print(shown(command))
      elif "\n" in given:
        print(f"{shown(command)} <<'EOF'\n{given.rstrip()}\nEOF")
      else:
        print(f"echo {shlex.quote(given)} | {shown(command)}")
      return Answer(0, pretend, "")
    try:
      process = subprocess.Popen(
        command,
        # The output is captured, so a prompt would be invisible and block.
        stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
      )
    except FileNotFoundError:
      raise _missing(command[0]) from None
    try:
      out, err = process.communicate(given, timeout)
    except subprocess.TimeoutExpired:
      _kill(process)
      return Answer(TIMED_OUT, "", f"timeout after {timeout:.0f} s")
    except BaseException:
      _kill(process)
      raise
    return Answer(process.returncode, out, err)

  def stream(self, command: Sequence[str]) -> int:
    """Runs `command` with its output on the terminal; returns its exit code."""
    self.end_progress()
    if self.dry_run:
      print(shown(command))
      return 0
    sys.stdout.flush()
    try:
      return subprocess.run(command, stdin=subprocess.DEVNULL).returncode
    except FileNotFoundError:
      raise _missing(command[0]) from None

  def write(self, path: pathlib.Path, text: str, *, private: bool = False) -> None:
    """Writes a file on this machine; `private` files are readable only by the user."""
    if self.dry_run:
      print(f"mkdir -p {shlex.quote(str(path.parent))}")
      print(f"cat > {shlex.quote(str(path))} <<'EOF'\n{text.rstrip()}\nEOF")
      return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600 if private else 0o666)
    path.write_text(text)

  def say(self, text: str) -> None:
    """Prints a status line; in a dry run a comment between the commands."""
    self.end_progress()
    if self.dry_run:
      wide = dict(width=_WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
      print("\n" + "\n".join(textwrap.fill(line, **wide, drop_whitespace=False) for line in text.splitlines()))
    else:
      console.tell(text)

  def progress(self, text: str) -> None:
    """Updates one status line on a terminal; elsewhere prints a line for each change."""
    if self.dry_run:
      return
    now = time.monotonic()
    if not self._progress:
      self._since = now
    if sys.stderr.isatty():
      minutes = f"{text} ({(now - self._since) / 60:.0f} min)"[: _WIDTH - 1]
      console.tell(f"\r{minutes:<{_WIDTH - 1}}", end="")
    elif text != self._progress:
      console.tell(text)
    self._progress = text

  def end_progress(self) -> None:
    """Ends the line of `progress`."""
    if self._progress and sys.stderr.isatty():
      console.tell("")
    self._progress = ""

  def pause(self) -> None:
    """Waits until the next status check."""
    if not self.dry_run:
      time.sleep(self._poll_seconds)


def _kill(process: subprocess.Popen) -> None:
  """Kills a program with its child processes, such as gcloud's ssh."""
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)
  process.communicate()


def _missing(program: str) -> t2t.UserError:
  how = _INSTALL.get(program, "install it")
  return t2t.UserError(f"{program} is not installed, or not on PATH; {how}. `--dry-run` works without it")
