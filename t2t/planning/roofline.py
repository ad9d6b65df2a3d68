"""Predicts the time of a step from the operations and bytes of its program, by one simple rule.

  step = max(work + exposed, memory, host)

work: sum over instructions of max(FLOPs / (fraction of peak that matmuls reach), bytes / (fraction of bandwidth that is
  reached)). Matmuls hide the memory traffic of operations fused into them, but not of their neighbours. Matrices and
  heads narrower than a TPU's matrix unit take as long as full ones. TPU attention kernels reach the fraction of
  libtpu's schedules.
memory: all bytes, asynchronous copies included, at that bandwidth.
host: bytes between the device and its host's memory, which are transferred during computation.
exposed: time that a chip waits for collectives. An asynchronous collective is exposed by what remains after the
  instructions between its start and its end; each instruction hides one collective after the other. On TPUs, a
  collective that is spread over several fusions progresses only during these.

Not included: latencies (of hundreds of small collectives), waiting for data, and late hosts.
"""

from collections.abc import Iterable
import dataclasses

import jax

from t2t import accelerators
from t2t.planning.hlo import cost as hlo_cost
from t2t.planning.hlo import flops as hlo_flops

# Round numbers, the same for all chips, because the rule is not more exact. docs/prediction.md compares predictions
# with published runs, which these numbers were not fitted to; benchmarks/prediction.py compiles them.
MATMUL_SHARE = 0.8
BANDWIDTH_SHARE = 0.8


# Possible largest parts of a step.
BOUNDS = {
  "matmuls": "matrix products, one after another",
  "kernels": "attention kernels",
  "memory": "reading and writing the chip's memory",
  "copies": "memory, asynchronous copies included",
  "host": "copies to and from the host's memory",
  "waiting": "waiting for other chips",
}


@dataclasses.dataclass(frozen=True)
class Times:
  """Seconds of one step.

  compute, memory: FLOPs, each in its dtype, and bytes at the chip's published peaks.
  host: bytes to and from the host at the published bandwidth.
  links: mesh axes, "fsdp" or "fsdp+tensor" -> their collectives at the links' published bandwidth.
  waiting: exposed time of `links`: synchronous collectives, and the rest of asynchronous ones.
  exposed: sum of `waiting`.
  kernels: attention kernels, as part of the work.
  predicted: see the rule above.
  bound: a key of `BOUNDS`.
  """

  compute: float
  memory: float
  host: float
  links: dict[str, float]
  waiting: dict[str, float]
  exposed: float
  kernels: float
  predicted: float
  bound: str


def name(axes: Iterable[str]) -> str:
  """Returns the name of axes in reports."""
  return "+".join(axes)


def times(
  program: hlo_cost.HloProgram,
  chip: accelerators.Chip,
  peak: float,
  mesh: jax.sharding.Mesh,
  *,
  head_dim: int = 0,
  kernel_share: float = MATMUL_SHARE,
) -> Times:
  """Returns the times of a program.

  Args:
    program: program of one device.
    chip: properties of the device.
    peak: its FLOP/s in bfloat16.
    mesh: the mesh with the collectives' axes, of real devices or of a topology's.
    head_dim: head dimension of attention kernels; 0: no kernels.
    kernel_share: fraction of the peak that attention kernels reach, see `kernel_cycles.share`.
  """
  stream = BANDWIDTH_SHARE * chip.hbm_bandwidth
  # GPUs have small matrix units.
  narrow = hlo_flops.idle(head_dim) if head_dim and chip.wraps_from else 1.0
  took = {"matmuls": 0.0, "kernels": 0.0, "memory": 0.0}
  left = []  # per operation: remaining time that can hide collectives
  for item in program.operations:
    left.append(0.0)
    if not item.overlaps:
      flops = item.flops * narrow if item.is_kernel else item.busy_flops if chip.wraps_from else item.flops
      share = kernel_share if item.is_kernel else MATMUL_SHARE
      computing, streamed = flops / item.pace / (share * peak), item.bytes / stream
      bound_by = "memory" if streamed > computing else "kernels" if item.is_kernel else "matmuls"
      left[-1] = item.times * max(computing, streamed)
      took[bound_by] += left[-1]
  per_byte = {
    (kind, axes): accelerators.send_seconds(chip, mesh, axes, 1.0, kind=kind)
    for kind, axes in {(collective.kind, collective.axes) for collective in program.collectives}
  }
  links: dict[str, float] = {}
  waiting: dict[str, float] = {}
  for item in program.collectives:
    seconds = item.times * item.bytes * per_byte[item.kind, item.axes]
    links[name(item.axes)] = links.get(name(item.axes), 0.0) + seconds
    for index in item.beside or ():
      if not seconds:
        break
      hidden = min(seconds, left[index])
      left[index] -= hidden
      seconds -= hidden
    if seconds:
      waiting[name(item.axes)] = waiting.get(name(item.axes), 0.0) + seconds
  exposed = sum(waiting.values())
  host = program.host_bytes / chip.host_bandwidth
  work = sum(took.values())
  most = "waiting" if exposed >= max(work / 2, *took.values()) else max(took, key=took.get)
  beside = {most: work + exposed, "copies": program.bytes / stream, "host": host / BANDWIDTH_SHARE}
  bound = max(beside, key=beside.get)
  return Times(
    compute=sum(operation.times * operation.flops / operation.pace for operation in program.operations) / peak,
    memory=program.bytes / chip.hbm_bandwidth,
    host=host,
    links=links,
    waiting=waiting,
    exposed=exposed,
    kernels=took["kernels"],
    predicted=beside[bound],
    bound=bound,
  )
