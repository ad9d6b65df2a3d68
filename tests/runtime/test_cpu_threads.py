"""Several devices on few cores."""

import os
import subprocess
import sys

import folders
import pytest

from t2t.runtime import hosts

_AHEAD = """
import jax
from jax.sharding import PartitionSpec as P
from t2t.runtime import hosts
hosts.start_enough_cpu_threads()
mesh = jax.make_mesh((8,), ("data",))
mean = jax.jit(jax.shard_map(lambda x: jax.lax.pmean(x @ x, "data"), mesh=mesh, in_specs=P(), out_specs=P()))
more = jax.jit(lambda x: x + 1)
arrays = [jax.numpy.eye(64)] * 60
for _ in range(8):
  arrays = [mean(more(x)) for x in arrays]
print(len(jax.block_until_ready(arrays)))
"""


@pytest.mark.exhaustive
def test_a_process_may_run_far_ahead_of_its_devices():
  """Hundreds of programs with collectives are dispatched without waiting; with one thread per device they would
  deadlock.
  """
  environment = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")}
  environment |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
  environment["PYTHONPATH"] = str(folders.ROOT)
  child = subprocess.run(
    [sys.executable, "-c", _AHEAD], env=environment, capture_output=True, text=True, timeout=300, check=False
  )
  assert (child.returncode, child.stdout) == (0, "60\n"), child.stderr


@pytest.mark.parametrize(
  ("devices", "flags", "before", "after"),
  [
    (8, "", None, 16),
    (-1, "--xla_force_host_platform_device_count=4", None, 8),
    (-1, "", None, None),
    (8, "", "3", 3),
  ],
)
def test_two_threads_for_each_device(devices, flags, before, after, monkeypatch):
  """For any way to set the number of devices, unless the user sets the threads or there is one device."""
  monkeypatch.setattr(os, "cpu_count", lambda: 2)
  monkeypatch.setattr(hosts.jax, "config", type("Config", (), {"jax_num_cpu_devices": devices}))
  monkeypatch.setenv("XLA_FLAGS", flags)
  monkeypatch.delenv("NPROC", raising=False)
  if before:
    monkeypatch.setenv("NPROC", before)
  hosts.start_enough_cpu_threads()
  assert os.environ.get("NPROC") == (str(after) if after else None)
