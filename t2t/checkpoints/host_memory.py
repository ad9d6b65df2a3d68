"""Host memory of a save, in bytes; without Orbax, for plans."""

from collections.abc import Iterable
import math

import jax

from t2t.training.train_state import TrainState

# Orbax keeps a batch until the next one is copied, so each has half of the limit.
BATCHES = 2


def copied_bytes(x: jax.Array | jax.ShapeDtypeStruct, process: int) -> int:
  """Returns the bytes of an array that a process copies to its host memory and writes.

  Args:
    x: array, or abstract array with a sharding.
    process: its index.
  """
  devices = x.sharding.device_set
  here = sum(device.process_index == process for device in devices)
  shard_shape = x.sharding.shard_shape(x.shape)
  shard = math.prod(shard_shape) * x.dtype.itemsize
  parts = math.prod(-(-size // part) for size, part in zip(x.shape, shard_shape, strict=True) if part)
  replicas = len(devices) // max(parts, 1)
  # Each replica writes a part of a shard, if a dimension can be divided.
  if replicas > 1 and any(size and size % replicas == 0 for size in shard_shape):
    return here * shard // replicas
  return min(here, parts) * shard


def peak_bytes(sizes: Iterable[int], limit: int | None) -> int:
  """Returns the bytes that a save holds in host memory at most.

  In:  [4, 4, 4, 4], limit 8
  Out: 8

  Args:
    sizes: of the arrays, in order; see `copied_bytes`.
    limit: in bytes; None: no limit. An array larger than half of the limit is copied whole, and exceeds the limit.
  """
  sizes = list(sizes)
  if limit is None or sum(sizes) <= limit:
    return sum(sizes)
  batches = [0]
  for size in sizes:
    # A batch of Orbax stays below its budget.
    if batches[-1] and batches[-1] + size >= limit // BATCHES:
      batches.append(0)
    batches[-1] += size
  return max(map(sum, zip(batches, [*batches[1:], 0], strict=True)))


def of_state(state: TrainState, mesh: jax.sharding.Mesh, limit: int | None) -> int:
  """Returns `peak_bytes` of a state on the host of the first device of a mesh, whose devices need not be attached."""
  process = mesh.devices.flat[0].process_index
  arrays = jax.tree.leaves(state)
  # Orbax reads arrays in host memory from a copy, because the next step overwrites them (`manager._apart`).
  offloaded = sum(copied_bytes(x, process) for x in arrays if x.sharding.memory_kind == "pinned_host")
  return offloaded + peak_bytes((copied_bytes(x, process) for x in arrays), limit)


def limit_bytes(gigabytes: float) -> int | None:
  """Returns the limit of config.checkpoint.host_memory_gb in bytes; None without a limit."""
  return round(gigabytes * 1e9) or None
