"""Suppresses uninformative log lines of libraries; errors and crash messages are kept."""

import atexit
from collections.abc import Iterator
import contextlib
import importlib.util
import os
import pathlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  import subprocess

# Log levels of C++ libraries, unless the user has set them. Level 3 drops warnings and errors; important ones are
# Python exceptions as well. Messages of a process that aborts have a higher level.
_LOG_LEVELS = {
  "TF_CPP_MIN_LOG_LEVEL": "3",  # TensorFlow: "oneDNN supports DT_INT64 only ..." on CPUs without AVX-512
  "TPU_MIN_LOG_LEVEL": "3",
  "TPU_STDERR_LOG_LEVEL": "3",
  "GRPC_VERBOSITY": "ERROR",
}

_GLOO = r"^\[Gloo\] Rank [0-9]+ is connected to [0-9]+ peer ranks"
_DRAIN_SECONDS = 5.0


def set_log_levels() -> None:
  """Sets log levels of C++ libraries that are loaded later to fatal messages; the environment has precedence."""
  for name, level in _LOG_LEVELS.items():
    os.environ.setdefault(name, level)


def leave_tpu_out() -> None:
  """Keeps JAX from searching for a TPU on a machine without one.

  With the `tpu` extra, which `t2t plan` needs, libtpu would print five lines about TPU_WORKER_HOSTNAMES that no log
  level suppresses. `t2t plan` still compiles for TPUs.
  """
  chosen = ("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "JAX_FORCE_TPU_INIT", "PJRT_NAMES_AND_LIBRARY_PATHS")
  if any(os.environ.get(name) for name in chosen):
    return
  if importlib.util.find_spec("libtpu") is None or importlib.util.find_spec("jax_plugins") is not None or has_tpu():
    return
  os.environ["JAX_PLATFORMS"] = "cpu"
  if jax := sys.modules.get("jax"):  # jax has read the environment already
    jax.config.update("jax_platforms", jax.config.jax_platforms or "cpu")
  _chosen.append("cpu")


_chosen: list[str] = []


def chose_cpu() -> bool:
  """Returns True if `leave_tpu_out` has set JAX_PLATFORMS, rather than the user."""
  return bool(_chosen)


_GOOGLE, _NO_TPU = "0x1ae0", ("0x0042", "0x001f")  # PCI ids; network and disks of virtual machines also have Google's


def has_tpu(root: pathlib.Path = pathlib.Path("/")) -> bool:
  """Returns True if the machine may have a TPU, by its devices.

  Args:
    root: of the file system.
  """
  if any(root.glob("dev/accel*")) or any(root.glob("dev/vfio/[0-9]*")):
    return True

  def content(path: pathlib.Path) -> str:
    with contextlib.suppress(OSError):
      return path.read_text().strip()
    return ""

  devices = root.glob("sys/bus/pci/devices/*")
  return any(content(device / "vendor") == _GOOGLE and content(device / "device") not in _NO_TPU for device in devices)


@contextlib.contextmanager
def stderr() -> Iterator[None]:
  """Drops standard error output of C++ code; Python exceptions propagate."""
  saved_stderr = os.dup(2)
  nowhere = os.open(os.devnull, os.O_WRONLY)
  try:
    os.dup2(nowhere, 2)
    yield
  finally:
    os.dup2(saved_stderr, 2)
    os.close(saved_stderr)
    os.close(nowhere)


def without_gloo() -> None:
  """Drops Gloo's connection messages on standard output until this process exits.

  A separate process copies all other lines as they come, so that none is lost if this process crashes.
  """
  import shutil  # imported here, as subprocess, because `import t2t` imports this module and would take a third longer
  import subprocess

  grep = shutil.which("grep")
  if grep is None or _filters:
    return
  read, write = os.pipe()
  saved_stdout = os.dup(1)
  with contextlib.suppress(OSError, ValueError):
    sys.stdout.flush()
  command = [grep, "--line-buffered", "--text", "--invert-match", "--extended-regexp", _GLOO]
  # A separate session, so that Ctrl-C does not stop it before it has copied this process's last lines.
  child = subprocess.Popen(command, stdin=read, stdout=saved_stdout, stderr=subprocess.DEVNULL, start_new_session=True)
  os.dup2(write, 1)
  os.close(read)
  os.close(write)
  _filters.append((child, saved_stdout))


_filters: list[tuple["subprocess.Popen", int]] = []


@atexit.register
def drain() -> None:
  """Waits until all lines are copied; later output is written directly."""
  if not _filters:
    return
  import subprocess

  while _filters:
    child, saved_stdout = _filters.pop()
    with contextlib.suppress(OSError, ValueError):
      sys.stdout.flush()
    os.dup2(saved_stdout, 1)
    with contextlib.suppress(subprocess.TimeoutExpired):  # a child of this process still has the pipe open
      child.wait(_DRAIN_SECONDS)
