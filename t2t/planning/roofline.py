"""From what a program computes and moves to how long a step may take: a prediction, by one simple rule.

  step = max(work, memory, host, overlapped) + exposed

work: each instruction for itself takes max(FLOPs / (share of peak that matmuls reach), bytes / (share of bandwidth that
  is reached)): matmuls hide the memory traffic of what is fused into them, but not that of their neighbours.
memory: all bytes, copies that run ahead included, at that bandwidth.
host: bytes between the device and its host's memory, which are on their way while other things are computed.
overlapped: collectives that are started ahead of their use, axis after axis.
exposed: all other collectives, during which a chip waits.

What is left out: latencies (of hundreds of small collectives), waiting for data, and hosts that are late.
"""

from collections.abc import Iterable
import dataclasses

import jax

from t2t import chips
from t2t.planning.hlo import cost as hlo_cost

# Shares of the published peaks that large matmuls and long streams reach: the same for all chips, and round, for the
# rule is no more exact than that.  What they are held against: training runs that were published.  MaxText reaches 65 %
# MFU with Llama 2 70B on 512 v5p and 45 % with Llama 3.1 8B on 256 v6e, both recomputing part of the forward pass, so
# that their matmuls run at 0.7 to 0.85 of the peak where nothing waits; Mesh-TensorFlow's T5 base reached about 50 % of
# a TPU v2.  At these shares nothing is predicted above 80 %.
MATMUL_SHARE = 0.8
BANDWIDTH_SHARE = 0.8


@dataclasses.dataclass(frozen=True)
class Times:
  """Seconds of one step.

  compute, memory: FLOPs and bytes at the chip's published peaks.
  host: bytes to and from the host at the published bandwidth of that way.
  links: axes of the mesh, "fsdp" or "fsdp+tensor" -> their collectives at the links' published bandwidth.
  overlapped, exposed: of `links`, by whether they run beside other work.
  predicted: see the rule above.
  """

  compute: float
  memory: float
  host: float
  links: dict[str, float]
  overlapped: float
  exposed: float
  predicted: float


def name(axes: Iterable[str]) -> str:
  """Axes as the report writes them."""
  return "+".join(axes)


def times(program: hlo_cost.Program, chip: chips.Chip, peak: float, mesh: jax.sharding.Mesh) -> Times:
  """The times of a program.

  Args:
    program: of one device.
    chip: what the device can do.
    peak: its FLOP/s.
    mesh: whose axes the collectives name, of real devices or of a topology's.
  """
  per_byte = {axes: chips.send_seconds(chip, mesh, axes, 1.0) for axes in {each.axes for each in program.collectives}}
  links: dict[str, float] = {}
  waiting = {True: 0.0, False: 0.0}
  for each in program.collectives:
    seconds = each.times * each.bytes * per_byte[each.axes]
    links[name(each.axes)] = links.get(name(each.axes), 0.0) + seconds
    waiting[each.overlaps] += seconds
  stream = BANDWIDTH_SHARE * chip.hbm_bandwidth
  work = sum(
    each.times * max(each.flops / (MATMUL_SHARE * peak), each.bytes / stream)
    for each in program.operations
    if not each.overlaps
  )
  host = program.host_bytes / chip.host_bandwidth
  predicted = max(work, program.bytes / stream, host / BANDWIDTH_SHARE, waiting[True]) + waiting[False]
  return Times(
    compute=program.flops / peak,
    memory=program.bytes / chip.hbm_bandwidth,
    host=host,
    links=links,
    overlapped=waiting[True],
    exposed=waiting[False],
    predicted=predicted,
  )
