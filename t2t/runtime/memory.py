"""Memory of this process: allocator settings, and use on the host and on devices."""

from collections.abc import Iterable
import ctypes
import importlib.util
import os
from typing import Any

# mallopt(3) of glibc
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
  """Makes glibc keep freed memory for the next step, on CPUs only.

  XLA's CPU backend allocates all temporaries in each step. By default glibc maps and unmaps blocks of this size: half a
  million page faults per step of T5 small, an eighth of its time. The process keeps its peak size instead. Call this
  before JAX starts a backend, because existing threads have their own arenas.
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
  """Returns bytes: "device_memory_peak", the maximum over devices; if devices do not report it, the current
  "host_memory".

  Args:
    devices: JAX's, of this process.
  """
  peaks = [stats["peak_bytes_in_use"] for x in devices if "peak_bytes_in_use" in (stats := x.memory_stats() or {})]
  if peaks:
    return {"device_memory_peak": float(max(peaks))}
  try:
    with open("/proc/self/statm") as file:
      return {"host_memory": float(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))}
  except OSError:  # not Linux
    return {}
