"""The rule of a plan's prediction, on programs of a few instructions."""

import dataclasses

import pytest
from test_topologies import torus

from t2t import accelerators
from t2t.planning import roofline
from t2t.planning.hlo import cost as hlo_cost


def test_the_rule_of_the_prediction():
  """Each instruction is bound by FLOPs or by bytes; synchronous collectives wait, asynchronous ones overlap."""
  chip, peak = accelerators.CHIPS["TPU v5 lite"], 100e12
  mesh = torus(16, 16)
  second = {"flops": peak * roofline.MATMUL_SHARE, "bytes": chip.hbm_bandwidth * roofline.BANDWIDTH_SHARE}
  operations = (
    hlo_cost.Operation("matmul", 2, second["flops"], second["bytes"] / 4, busy_flops=second["flops"]),
    hlo_cost.Operation("copy", 1, 0, second["bytes"]),
  )
  ahead = hlo_cost.Collective("all-gather", ("x",), 2, 100e9, beside=(0, 1))
  waiting = hlo_cost.Collective("all-reduce", ("y",), 1, 50e9)
  program = hlo_cost.HloProgram(operations, (ahead, waiting), 0, 0, ())
  times = roofline.times(program, chip, peak, mesh)
  assert times.bound == "matmuls"
  assert times.compute == pytest.approx(2 * roofline.MATMUL_SHARE)
  assert times.memory == pytest.approx(1.5 * roofline.BANDWIDTH_SHARE)
  assert times.links == pytest.approx({"x": 2.0, "y": 0.5})
  assert times.predicted == pytest.approx(2 + 1 + 0.5)
  assert times.waiting == pytest.approx({"y": 0.5})
  # Host transfers run beside everything else.
  offload = hlo_cost.Operation("offload", 4, 0, 0, True, host_bytes=chip.host_bandwidth)
  times = roofline.times(dataclasses.replace(program, operations=(*operations, offload)), chip, peak, mesh)
  assert times.host == pytest.approx(4.0)
  assert times.predicted == pytest.approx(4 / roofline.BANDWIDTH_SHARE)
  assert times.bound == "host"


def test_an_instruction_hides_at_most_as_much_as_it_takes():
  """Two collectives of 0.6 and 1 s beside a product of a second; the second one is beside a copy, too."""
  chip, peak = accelerators.CHIPS["TPU v5 lite"], 100e12
  operations = (
    hlo_cost.Operation(
      "matmul", 10, peak * roofline.MATMUL_SHARE / 10, 0.0, busy_flops=peak * roofline.MATMUL_SHARE / 10
    ),
    hlo_cost.Operation("copy", 1, 0, 0.25 * chip.hbm_bandwidth * roofline.BANDWIDTH_SHARE),
    hlo_cost.Operation("ahead", 1, 0, chip.hbm_bandwidth, overlaps=True),
  )
  first = hlo_cost.Collective("all-gather", ("x",), 10, 6e9, beside=(0,))
  second = hlo_cost.Collective("all-reduce", ("y",), 10, 10e9, beside=(0, 1, 2))
  times = roofline.times(hlo_cost.HloProgram(operations, (first, second), 0, 0, ()), chip, peak, torus(16, 16))
  assert times.links == pytest.approx({"x": 0.6, "y": 1.0})
  # The 0.6 s hidden beside the product are used up for the other; an asynchronous copy hides nothing.
  assert times.waiting == pytest.approx({"y": 1.0 - 0.4 - 0.25})
  assert times.exposed == pytest.approx(0.35)


def test_narrow_matrices_take_as_long_as_wide_ones():
  """A TPU's matrix units process 128 rows and columns at a time; kernels get the head dimension."""
  chip, peak = accelerators.CHIPS["TPU v5 lite"], accelerators.peak_flops("TPU v5 lite")
  one = lambda chip=chip, **fields: roofline.times(
    hlo_cost.HloProgram((hlo_cost.Operation("x", 1, flops=peak, bytes=0.0, **fields),), (), 0, 0, ()),
    *(chip, peak, torus(4, 4)),
    head_dim=64,
  )
  assert one(busy_flops=3 * peak).predicted == pytest.approx(3 / roofline.MATMUL_SHARE)
  assert one(chip=accelerators.CHIPS["NVIDIA H200"], busy_flops=3 * peak).predicted == pytest.approx(
    1 / roofline.MATMUL_SHARE
  )
  assert one(busy_flops=3 * peak, pace=2.0).predicted == pytest.approx(1.5 / roofline.MATMUL_SHARE)
  assert one(pace=2.0).compute == pytest.approx(0.5)
  kernel = one(busy_flops=peak, is_kernel=True)
  assert kernel.predicted == pytest.approx(2 / roofline.MATMUL_SHARE)
  assert kernel.bound == "kernels"
