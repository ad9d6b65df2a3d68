"""Memory of this process: how the C library keeps it, and how much is used, there and on devices."""

from collections.abc import Iterable
import ctypes
import importlib.util
import os
from typing import Any

# mallopt(3) of glibc
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
  """Has glibc keep what a step frees, for the next step; with an accelerator, or without glibc, it does nothing.

  XLA's CPU backend asks for all temporaries of a step anew.  Blocks of this size glibc maps from the kernel and unmaps
  again: half a million page faults a step of T5 small, an eighth of its time.  The process stays at its peak size
  instead.  Call it before JAX starts a backend: threads that run by then have memory of their own, out of reach.
  """
  plugins = ("libtpu", "jax_plugins")
  if os.environ.get("JAX_PLATFORMS") != "cpu" and any(importlib.util.find_spec(name) for name in plugins):
    return
  try:
    mallopt = ctypes.CDLL("libc.so.6").mallopt
  except (OSError, AttributeError):
    return
  mallopt(_MMAP_MAX, 0)
  mallopt(_TRIM_THRESHOLD, -1)
  mallopt(_ARENA_MAX, 1)


def used(devices: Iterable[Any]) -> dict[str, float]:
  """Bytes: "device_memory_peak", the most that one of the devices has held; where none tells, "host_memory", held now.

  Args:
    devices: JAX's, of this process.
  """
  peaks = [stats["peak_bytes_in_use"] for x in devices if "peak_bytes_in_use" in (stats := x.memory_stats() or {})]
  if peaks:
    return {"device_memory_peak": float(max(peaks))}
  try:
    with open("/proc/self/statm") as file:
      return {"host_memory": float(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))}
  except OSError:  # no Linux
    return {}
