"""Uninformative lines of libraries are suppressed; all others are kept, even of a process that crashes."""

import os
import signal
import subprocess
import sys

import pytest

from t2t.runtime import quiet

GLOO = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1"


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
  own = {key: value for key, value in os.environ.items() if key not in (*quiet._LOG_LEVELS, "JAX_PLATFORMS")}
  return subprocess.run([sys.executable, "-c", code], env=own | environment, capture_output=True, text=True)


_WRITES = f"""
import os, subprocess, sys
from t2t.runtime import quiet
print("before")
quiet.without_gloo()
quiet.without_gloo()
os.write(1, b"{GLOO}\\nfrom C++\\n")
print("[Gloo] is named here")
subprocess.run(["echo", "from a child"])
os.write(2, b"an error\\n")
sys.stdout.write("no end of line")
"""


def test_lines_of_gloo_alone_are_left_out():
  """All other output of Python, C++ and other processes is complete and in order when the process has ended."""
  found = run(_WRITES)
  lines = found.stdout.splitlines()
  assert lines[0] == "before" and sorted(lines[1:4]) == ["[Gloo] is named here", "from C++", "from a child"]
  assert lines[4:] == ["no end of line"] and found.stderr == "an error\n" and found.returncode == 0


@pytest.mark.parametrize(
  "end", ["os.abort()", "raise ValueError('as it is')", "os._exit(3)", "os.kill(os.getpid(), 9)"]
)
def test_what_a_process_writes_before_it_ends_is_there(end):
  found = run(f"{_WRITES}\nsys.stdout.flush()\nos.write(1, b' and a last line\\n')\n{end}")
  assert "no end of line and a last line" in found.stdout and "Gloo] Rank" not in found.stdout
  assert ("as it is" in found.stderr) == ("as it is" in end)


def test_an_interruption_does_not_lose_lines():
  """The terminal sends Ctrl-C to all processes in the foreground."""
  # A shell starts background jobs with SIGINT ignored, which these tests would inherit.
  catch = "signal.signal(signal.SIGINT, signal.default_int_handler)"
  wait = f"{catch}\nos.setpgid(0, 0)\nsys.stdout.flush()\nos.killpg(0, {int(signal.SIGINT)})\nsignal.pause()"
  found = run(f"import signal\n{_WRITES}\n{wait}")
  assert "from C++" in found.stdout and "KeyboardInterrupt" in found.stderr


_SHOW = "import t2t, os; print(*(os.environ.get(name) for name in ('TF_CPP_MIN_LOG_LEVEL', 'JAX_PLATFORMS')))"


def test_log_levels_are_set_where_the_user_has_set_none():
  assert run(_SHOW).stdout.split()[0] == "3"
  assert run(_SHOW, TF_CPP_MIN_LOG_LEVEL="0").stdout.split()[0] == "0"


def test_jax_does_not_look_for_a_tpu_that_is_not_there(tmp_path):
  """With libtpu installed on a machine without a TPU; a choice of the user stays."""
  (tmp_path / "libtpu.py").write_text("")
  path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
  if quiet.has_tpu():
    pytest.skip("this machine has a TPU")
  assert run(_SHOW, PYTHONPATH=path).stdout.split()[1] == "cpu"
  assert run(_SHOW, PYTHONPATH=path, JAX_PLATFORMS="tpu,cpu").stdout.split()[1] == "tpu,cpu"
  (tmp_path / "jax_plugins").mkdir()
  assert run(_SHOW, PYTHONPATH=path).stdout.split()[1] == "None"  # JAX searches for another accelerator


@pytest.mark.parametrize(
  ("files", "there"),
  [
    ({}, False),
    ({"dev/accel0": ""}, True),
    ({"dev/vfio/vfio": ""}, False),
    ({"dev/vfio/0": ""}, True),
    ({"sys/bus/pci/devices/a/vendor": "0x1ae0\n", "sys/bus/pci/devices/a/device": "0x0063\n"}, True),
    ({"sys/bus/pci/devices/a/vendor": "0x1ae0\n", "sys/bus/pci/devices/a/device": "0x0042\n"}, False),  # gVNIC
    ({"sys/bus/pci/devices/a/vendor": "0x1af4\n"}, False),
  ],
)
def test_a_tpu_is_found_by_its_devices(files, there, tmp_path):
  for name, content in files.items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(content)
  assert quiet.has_tpu(tmp_path) == there
