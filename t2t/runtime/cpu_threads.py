"""Threads of XLA's CPU backend, for several devices on few cores."""

import os
import re

import jax


def enough() -> None:
  """Has XLA start two threads for each CPU device; it is called before JAX starts a backend.

  Of as many threads as there are cores or devices, whichever is more, some may run one part of a collective while the
  others wait to launch what comes more than 32 programs later: for ever, or until XLA ends the process (seen with
  jaxlib 0.10.2: three of eight threads in `AwaitAndLogIfStuck`, five in `ExecuteLaunch` -> `Semaphore::Acquire`).
  NPROC is what XLA reads (`DefaultThreadPoolSize`); one that is set stays.
  """
  flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
  devices = max(jax.config.jax_num_cpu_devices, int(flag[1]) if flag else 1)
  if devices > 1:
    os.environ.setdefault("NPROC", str(max(os.cpu_count() or 1, 2 * devices)))
