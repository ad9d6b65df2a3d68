"""Runs of `t2t` commands by benchmarks: without output, once, and with their seconds."""

import contextlib
import io
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time
from typing import Any

from t2t import UserError
from t2t import __main__ as command


def run(arguments: list[str], out: pathlib.Path, *, devices: int = 1) -> float:
  """Runs a command without output, unless it was completed before; returns its seconds.

  Args:
    arguments: of `t2t`.
    out: file or folder that the command writes.
    devices: number of CPU devices; several need a process of their own.

  Raises:
    UserError: the command failed; includes the end of its output.
  """
  done = out.with_name(f"{out.name}.done.json")
  if done.exists() and (record := json.loads(done.read_text()))["arguments"] == arguments and out.exists():
    return record["seconds"]
  shutil.rmtree(out, ignore_errors=True)
  started = time.monotonic()
  code, output = _run(arguments, devices)
  if code:
    raise UserError(f"t2t {shlex.join(arguments)}: exited with {code}; fix the error and rerun\n{output[-2_000:]}")
  seconds = time.monotonic() - started
  done.write_text(json.dumps({"arguments": arguments, "seconds": seconds}) + "\n")
  return seconds


def _run(arguments: list[str], devices: int) -> tuple[int, str]:
  """Runs a command; returns its exit code and its output."""
  if devices > 1:
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)}
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run([sys.executable, "-m", "t2t", *arguments], env=environment, **options)
    return done.returncode, done.stdout
  output = io.StringIO()
  with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
    return command.main(arguments), output.getvalue()
