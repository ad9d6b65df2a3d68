"""Reported memory."""

import types

import jax

from t2t.runtime import memory


def device(**stats):
  return types.SimpleNamespace(memory_stats=lambda: stats or None)


def test_the_most_that_a_device_has_held_is_told():
  """The maximum over devices; devices without statistics are skipped."""
  devices = [
    device(peak_bytes_in_use=5),
    device(peak_bytes_in_use=7, bytes_in_use=9),
    device(bytes_in_use=11),
    device(),
  ]
  assert memory.used(devices) == {"device_memory_peak": 7.0}


def test_where_no_device_tells_it_is_the_hosts():
  """On the CPU this process uses more than 50 MB, as JAX alone does."""
  found = memory.used(jax.local_devices())
  assert list(found) == ["host_memory"] and 5e7 < found["host_memory"] < 1e12
