"""If one of several processes is killed, fails, is stopped or hangs, the others soon exit with its name and the reason.

JAX's own service runs, too, and all wait in a collective; the whole command is in test_hosts.py.
"""

import os
import signal
import socket
import subprocess
import sys

import folders
import pytest
import test_hosts

from t2t.runtime import exit_codes, peer_monitor

# `ready` is printed when the processes have met; then each acts by its argument.
_CHILD = """
import argparse, socket, sys, time
import jax
from jax.experimental import multihost_utils
from t2t.runtime import hosts, peer_monitor, rendezvous, watchdog
port, index, role = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
hosts.join(argparse.Namespace(
  coordinator=f"localhost:{port}", num_processes=3, process_id=index, join_seconds=120, lost_seconds=3))
try:
  multihost_utils.process_allgather(index)
  print("ready", flush=True)
  sys.stdin.readline()
  if role == "fail":
    peer_monitor.fail("text.jsonl, line 7: no JSON", 2)
  if role == "bug":
    raise KeyError("a bug")
  if role == "bye":
    sys.exit(0)
  with watchdog.Watchdog(0.0, longest=2.0 if role == "stall" else 0.0).running():
    if role == "hang":
      ends = socket.socketpair()
      rendezvous._line(ends[0], 600.0)
    while role != "idle":
      multihost_utils.process_allgather(index)
      time.sleep(0.01)
    time.sleep(600)
except Exception as error:
  peer_monitor.fail(f"{type(error).__name__}: {error}".partition("\\n")[0], 1, trace="Traceback")
  raise
"""


class Three:
  """Three processes, each with a role."""

  def __init__(self, *roles: str):
    port = test_hosts.free_port()
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(folders.ROOT)}
    self.children = [
      subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(port), str(index), role],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
      )
      for index, role in enumerate(roles)
    ]

  def __enter__(self) -> "Three":
    for child in self.children:
      while (line := child.stdout.readline()) != "ready\n":  # Gloo prints its peers before it
        assert line, child.stderr.read()
    for child in self.children:
      child.stdin.write("go\n")
      child.stdin.flush()
    return self

  def __exit__(self, *error) -> None:
    for child in self.children:
      child.kill()
      child.communicate()

  def last_lines(self, *indices: int, code: int = exit_codes.LOST) -> list[str]:
    """Returns the last line of each process, and checks that it exited with `code`."""
    said = [self.children[index].communicate(timeout=60)[1].strip() for index in indices]
    assert [self.children[index].returncode for index in indices] == [code] * len(indices), said
    return [text.splitlines()[-1] for text in said]


def on_this_host(index: int) -> str:
  return f"process {index} on {socket.gethostname()}"


@pytest.mark.slow
def test_one_that_is_killed_is_named():
  """Both if the others wait for it in a collective and if they do not."""
  with Three("work", "work", "idle") as three:
    three.children[1].kill()
    for index, said in zip((0, 2), three.last_lines(0, 2), strict=True):
      assert said.startswith(f"t2t: {on_this_host(1)} exited without a message: killed")
      assert said.endswith(f"; {on_this_host(index)} exits, too")


@pytest.mark.exhaustive
def test_the_first_one_is_named_as_well():
  """JAX's service ends with it, and aborts processes with a C++ stack, but not before they have printed the reason.

  A process that is done is not reported as missing.
  """
  with Three("idle", "bye", "idle") as three:
    three.children[0].kill()
    said = three.last_lines(1, 2)
    assert all("process 0 on localhost exited without a message" in each for each in said), said


@pytest.mark.exhaustive
def test_sigterm_before_there_is_anything_to_save_ends_all():
  """Immediately, because no loop handles signals yet."""
  with Three("idle", "work", "work") as three:
    three.children[2].terminate()
    assert all(f"{on_this_host(2)} exited without a message" in said for said in three.last_lines(0, 1))
    assert three.children[2].wait() == -signal.SIGTERM


@pytest.mark.slow
def test_one_that_is_stopped_is_missed():
  """Its machine seems to be gone; when it continues, it exits, too."""
  with Three("idle", "work", "work") as three:
    three.children[1].send_signal(signal.SIGSTOP)
    assert all(f"{on_this_host(1)} has not answered for 3 s" in said for said in three.last_lines(0, 2))
    three.children[1].send_signal(signal.SIGCONT)
    assert "process 0 on localhost" in three.last_lines(1)[0]


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 2])
def test_one_that_fails_says_why(failing):
  """For invalid input it exits with its own code, and the others repeat its message."""
  roles = ["work"] * 3
  roles[failing] = "fail"
  with Three(*roles) as three:
    others = [index for index in range(3) if index != failing]
    assert all(
      f"process {failing} on" in s and "text.jsonl, line 7: no JSON" in s for s in three.last_lines(*others, code=2)
    )
    assert three.children[failing].wait() == 2


@pytest.mark.exhaustive
def test_an_error_of_the_code_is_told_as_well():
  """After a delay, in which another process's exit would have been reported instead."""
  with Three("work", "bug", "work") as three:
    assert all(f"{on_this_host(1)}: KeyError: 'a bug'" in said for said in three.last_lines(0, 2, code=1))
    assert "Traceback" in three.children[1].communicate()[1]


@pytest.mark.slow
def test_of_those_who_stand_still_the_one_that_holds_up_the_others_comes_first():
  """Each process reports its position when one of them has waited too long."""
  with Three("work", "hang", "stall") as three:
    for said in three.last_lines(0, 1, 2):
      assert "no step has ended for 2 s; positions: " in said
      assert f"{on_this_host(1)} in t2t/runtime/rendezvous.py, line " in said and "in _line" in said


def test_numbers_are_short():
  """For 256 hosts as for three."""
  assert peer_monitor._numbers([*range(17), 18, *range(20, 256)]) == "0-16, 18, 20-255"
