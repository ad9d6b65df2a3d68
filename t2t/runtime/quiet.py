"""Keeps lines of libraries that say nothing to a user off the terminal; errors and crash messages come through."""

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

# Log levels of C++ libraries, where the user has set none: 3 leaves out warnings and errors, of which each that matters
# is a Python exception as well.  Messages of a process that ends itself are of a higher level.
_LOG_LEVELS = {
  "TF_CPP_MIN_LOG_LEVEL": "3",  # TensorFlow: "oneDNN supports DT_INT64 only ..." on CPUs without AVX-512
  "TPU_MIN_LOG_LEVEL": "3",
  "TPU_STDERR_LOG_LEVEL": "3",
  "GRPC_VERBOSITY": "ERROR",
}

_GLOO = r"^\[Gloo\] Rank [0-9]+ is connected to [0-9]+ peer ranks"
_DRAIN_SECONDS = 5.0


def set_log_levels() -> None:
  """Has C++ libraries that are loaded later log what ends the process, and no less; the environment has precedence."""
  for name, level in _LOG_LEVELS.items():
    os.environ.setdefault(name, level)


def leave_tpu_out() -> None:
  """Has JAX not look for a TPU on a machine that has none.

  Where the `tpu` extra is installed, as for `t2t plan`, libtpu would write five lines of TPU_WORKER_HOSTNAMES, which no
  log level turns off.  `t2t plan` compiles for TPUs all the same.
  """
  chosen = ("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "JAX_FORCE_TPU_INIT", "PJRT_NAMES_AND_LIBRARY_PATHS")
  if any(os.environ.get(name) for name in chosen):
    return
  if importlib.util.find_spec("libtpu") is None or importlib.util.find_spec("jax_plugins") is not None or has_tpu():
    return
  os.environ["JAX_PLATFORMS"] = "cpu"
  if jax := sys.modules.get("jax"):  # has read the environment
    jax.config.update("jax_platforms", jax.config.jax_platforms or "cpu")
  _chosen.append("cpu")


_chosen: list[str] = []


def chose_cpu() -> bool:
  """Returns True if `leave_tpu_out` has set JAX_PLATFORMS, and not the user."""
  return bool(_chosen)


_GOOGLE, _NO_TPU = "0x1ae0", ("0x0042", "0x001f")  # of PCI; a virtual machine's network and disks are Google's, too


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
  """Drops what C++ code writes to standard error; Python's exceptions come through."""
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
  """Drops the lines in which Gloo says on standard output that processes are connected, until this one ends.

  A process of its own copies all other lines as they come, so that none is lost if this process crashes.
  """
  import shutil  # here, as subprocess: `import t2t` imports this module, and would take a third longer
  import subprocess

  grep = shutil.which("grep")
  if grep is None or _filters:
    return
  read, write = os.pipe()
  saved_stdout = os.dup(1)
  with contextlib.suppress(OSError, ValueError):
    sys.stdout.flush()
  command = [grep, "--line-buffered", "--text", "--invert-match", "--extended-regexp", _GLOO]
  # In a session of its own: Ctrl-C is for this process, whose last lines are still to be copied.
  child = subprocess.Popen(command, stdin=read, stdout=saved_stdout, stderr=subprocess.DEVNULL, start_new_session=True)
  os.dup2(write, 1)
  os.close(read)
  os.close(write)
  _filters.append((child, saved_stdout))


_filters: list[tuple["subprocess.Popen", int]] = []


@atexit.register
def drain() -> None:
  """Waits until all lines are copied, and writes directly from then on."""
  if not _filters:
    return
  import subprocess

  while _filters:
    child, saved_stdout = _filters.pop()
    with contextlib.suppress(OSError, ValueError):
      sys.stdout.flush()
    os.dup2(saved_stdout, 1)
    with contextlib.suppress(subprocess.TimeoutExpired):  # another process that this one has started has it open
      child.wait(_DRAIN_SECONDS)
