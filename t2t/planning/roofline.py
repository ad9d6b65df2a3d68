"""From what a program computes and moves to how long a step may take: a prediction, by one simple rule.

  step = max(work + exposed, memory, host)

work: each instruction for itself takes max(FLOPs / (share of peak that matmuls reach), bytes / (share of bandwidth that
  is reached)): matmuls hide the memory traffic of what is fused into them, but not that of their neighbours.  Matrices
  and heads narrower than a TPU's matrix unit take as long as if they filled it.  TPUs' kernels of attention reach what
  libtpu's schedules of them say.
memory: all bytes, copies that run ahead included, at that bandwidth.
host: bytes between the device and its host's memory, which are on their way while other things are computed.
exposed: collectives, during which a chip waits.  What is started ahead of its use is exposed by what is left of it once
  the instructions between have had their time, each of which hides one collective after the other; TPUs move what they
  spread over several fusions in these alone.

What is left out: latencies (of hundreds of small collectives), waiting for data, and hosts that are late.
"""

from collections.abc import Iterable
import dataclasses

import jax

from t2t import accelerators
from t2t.planning.hlo import cost as hlo_cost
from t2t.planning.hlo import flops as hlo_flops

# Round numbers, the same for all chips, for the rule is no more exact than that.  How far it is off is in
# docs/prediction.md, on runs that were published, which these numbers were not fitted to: benchmarks/prediction.py
# compiles them.
MATMUL_SHARE = 0.8
BANDWIDTH_SHARE = 0.8


# What may take the largest part of a step.
BOUNDS = {
  "matmuls": "products of matrices, one after another",
  "kernels": "kernels of attention",
  "memory": "reading and writing the chip's memory",
  "copies": "memory, copies that run ahead included",
  "host": "copies to and from the host's memory",
  "waiting": "for other chips, with nothing to do",
}


@dataclasses.dataclass(frozen=True)
class Times:
  """Seconds of one step.

  compute, memory: FLOPs, each in its dtype, and bytes at the chip's published peaks.
  host: bytes to and from the host at the published bandwidth of that way.
  links: axes of the mesh, "fsdp" or "fsdp+tensor" -> their collectives at the links' published bandwidth.
  waiting: of `links`, what all wait for; of what runs beside other work, what is left when that is done.
  exposed: all of `waiting`.
  kernels: of the work, kernels of attention.
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
  """Axes as the report writes them."""
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
  """The times of a program.

  Args:
    program: of one device.
    chip: what the device can do.
    peak: its FLOP/s in bfloat16.
    mesh: whose axes the collectives name, of real devices or of a topology's.
    head_dim: of attention, for its kernels; 0: they have none.
    kernel_share: of the peak, that kernels of attention reach, see `schedules.share`.
  """
  stream = BANDWIDTH_SHARE * chip.hbm_bandwidth
  # GPUs have small units.
  narrow = hlo_flops.idle(head_dim) if head_dim and chip.wraps_from else 1.0
  took = {"matmuls": 0.0, "kernels": 0.0, "memory": 0.0}
  left = []  # of each operation: for how much longer it hides what is on its way
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
    axes: accelerators.send_seconds(chip, mesh, axes, 1.0)
    for axes in {collective.axes for collective in program.collectives}
  }
  links: dict[str, float] = {}
  waiting: dict[str, float] = {}
  for item in program.collectives:
    seconds = item.times * item.bytes * per_byte[item.axes]
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
