"""Chips of a slice, and the links of a mesh's axes on them, by device descriptions."""

import collections
import functools
import itertools
import types

import jax
import numpy as np
import pytest

from t2t import UserError, accelerators, sharding
from t2t.planning import aot_compile


@pytest.mark.parametrize(
  ("topology", "message"),
  [
    ("v9:4x4", "unknown TPU topology.*v5e:16x16"),
    ("v5e", "unknown TPU topology"),
    ("v5e:16xx16", "unknown TPU topology"),
    ("v5e:4x4x4", "a v5e slice has 2 dimensions"),
    ("v5p:8x8", "a v5p slice has 3 dimensions. Examples: v5p:2x2x1"),
  ],
)
def test_an_unknown_topology_is_refused(topology, message):
  """The message has examples."""
  with pytest.raises(UserError, match="(?s)" + message):
    aot_compile.devices(topology)


def test_without_libtpu_the_error_says_how_to_get_it(monkeypatch):
  """libtpu is part of an extra, which a CPU installation does not have."""
  monkeypatch.setattr(aot_compile.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(UserError, match=r"pip install -e '.\[tpu\]'"):
    aot_compile.devices("v5e:4x4")


def torus(*sides: int, slices: int = 1) -> types.SimpleNamespace:
  """Returns a mesh whose axes are the sides of a slice, with the attributes that `accelerators` reads."""
  devices = np.empty((slices, *sides), object)
  for index in np.ndindex(*devices.shape):
    coords = (*index[1:], *[0] * (3 - len(sides)))
    devices[index] = types.SimpleNamespace(coords=coords, slice_index=index[0])
  return types.SimpleNamespace(devices=devices, shape=dict(zip(("slice", "x", "y", "z"), devices.shape, strict=False)))


def test_bandwidth_of_axes():
  """Two links along a ring, one along a line, all along several sides, and the network between slices."""
  v5e, v5p = accelerators.CHIPS["TPU v5 lite"], accelerators.CHIPS["TPU v5"]
  assert accelerators.send_seconds(v5e, torus(16, 16), ("x",), 100e9) == 1
  assert accelerators.send_seconds(v5e, torus(16, 16), ("x", "y"), 100e9) == 0.5
  assert accelerators.send_seconds(v5e, torus(4, 8), ("x",), 100e9) == 2
  assert accelerators.send_seconds(v5p, torus(4, 4, 4), ("z",), 100e9) == 0.5
  assert accelerators.send_seconds(v5p, torus(4, 4, 2), ("z",), 100e9) == 1
  assert accelerators.send_seconds(v5p, torus(4, 4, 4, slices=2), ("x",), 100e9) == 0.5
  assert accelerators.send_seconds(v5p, torus(4, 4, 4, slices=2), ("slice",), 100e9) == 16
  # On a side of 16, every second chip shares its ring with those between, and neighbours are lines.
  cut = torus(16, 16)
  cut.devices = cut.devices.reshape(1, 8, 2, 16)
  cut.shape = {"slice": 1, "outer": 8, "inner": 2, "y": 16}
  assert accelerators.send_seconds(v5e, cut, ("outer",), 100e9) == 2
  assert accelerators.send_seconds(v5e, cut, ("inner",), 100e9) == 2
  assert accelerators.send_seconds(v5e, cut, ("outer", "inner"), 100e9) == 1
  # Each of the four chips of a slice sends a quarter to the other slice.
  assert accelerators.send_seconds(v5p, torus(4, 4, 4, slices=2), ("slice", "x"), 100e9) == 0.5 + 4


def busiest(size: int, *, ring: bool) -> float:
  """Returns the load of the busiest link if each chip sends one byte, in equal parts to all others."""
  loads = collections.Counter()
  for first, last in itertools.permutations(range(size), 2):
    distance = (last - first) % size
    steps = [step for step in (1, -1) if (distance if step == 1 else size - distance) * 2 <= size]
    for step in steps if ring else [1 if last > first else -1]:
      at = first
      while at != last:
        loads[at, step] += 1 / (size - 1) / (len(steps) if ring else 1)
        at = (at + step) % size
  return max(loads.values())


def test_an_all_to_all_crosses_many_links():
  """The busiest link is that of shortest paths, chip by chip; sides carry it at once, and the longest decides."""
  v5e, v5p = accelerators.CHIPS["TPU v5 lite"], accelerators.CHIPS["TPU v5"]
  seconds = functools.partial(accelerators.send_seconds, kind="all-to-all")
  assert seconds(v5e, torus(16, 16), ("x",), 50e9) == pytest.approx(busiest(16, ring=True))
  assert seconds(v5e, torus(4, 8), ("y",), 50e9) == pytest.approx(busiest(8, ring=False))
  assert seconds(v5p, torus(4, 4, 2), ("z",), 100e9) == pytest.approx(1)
  assert seconds(v5p, torus(4, 4, 8), ("x", "y", "z"), 100e9) == pytest.approx(
    busiest(8, ring=True) * 7 / 8 * 128 / 127
  )


def chips_of(kind: str, *sides: int) -> list:
  """Returns the devices of a slice with hosts of 2 x 2 chips."""
  places = [(*place, *[0] * (3 - len(sides))) for place in np.ndindex(sides)]
  host = lambda x, y, z: (x // 2 * 100 + y // 2) * 100 + z
  known = {"device_kind": kind, "platform": "tpu", "core_on_chip": 0}
  return [types.SimpleNamespace(**known, coords=at, process_index=host(*at)) for at in places]


@pytest.mark.parametrize(
  ("kind", "sides", "size", "block"),
  [
    ("TPU v5 lite", (16, 16), 8, (2, 4)),  # 8 on a side of 16 would be a line
    ("TPU v5 lite", (16, 16), 4, (2, 2)),
    ("TPU v5 lite", (16, 16), 16, None),  # a side is a ring, which JAX finds
    ("TPU v5 lite", (4, 8), 8, (2, 4)),  # too short for a ring
    ("TPU v5 lite", (16, 16), 2, None),
    ("TPU v5", (8, 8, 16), 8, None),
    ("TPU v5", (8, 8, 16), 4, (2, 2, 1)),  # on one host
    ("TPU v5 lite", (1, 8), 4, None),
    ("NVIDIA H200", (8,), 8, None),
  ],
)
def test_a_tensor_axis_is_a_ring_of_neighbours(kind, sides, size, block):
  """Blocks of adjacent chips, each chip in one; two links per chip, instead of one in a line."""
  devices = chips_of(kind, *sides)
  found = accelerators.in_blocks(devices, size)
  if block is None:
    assert found is None
    return
  assert found.shape == (len(devices) // size, size)
  assert {id(device) for device in found.flat} == {id(device) for device in devices}
  for one in found:
    extent = np.ptp([device.coords for device in one], axis=0) + 1
    assert tuple(extent[: len(block)]) == block
  mesh = types.SimpleNamespace(devices=found, shape={"fsdp": len(found), "tensor": size})
  assert (
    accelerators.send_seconds(accelerators.CHIPS[kind], mesh, ("tensor",), 2 * accelerators.CHIPS[kind].link_bandwidth)
    == 1
  )


@pytest.mark.parametrize(
  ("kind", "sides", "mesh", "order"),
  [
    ("TPU v5 lite", (4, 8), {"fsdp": 4, "tensor": 8}, ("tensor:1x8",)),
    ("TPU v5 lite", (4, 8), {"fsdp": 4, "tensor": 8}, ("fsdp:2x2", "tensor:2x4")),
    ("TPU v5", (4, 4, 8), {"data": 2, "fsdp": 16, "tensor": 4}, ("tensor:1x1x4", "data:1x1x2")),
  ],
)
def test_axes_lie_over_a_slice_as_they_are_told(kind, sides, mesh, order):
  """Each chip has one position, and the first axis of the layout covers a box of neighbours."""
  devices = chips_of(kind, *sides)
  placed = sharding._placed(mesh, devices, order)
  assert placed.shape == tuple(mesh.values())
  assert {id(device) for device in placed.flat} == {id(device) for device in devices}
  axis, _, box = order[0].partition(":")
  for group in np.moveaxis(placed, list(mesh).index(axis), -1).reshape(-1, mesh[axis]):
    extent = np.ptp([device.coords for device in group], axis=0) + 1
    assert "x".join(map(str, extent[: len(sides)])) == box


@pytest.mark.parametrize(
  ("order", "message"),
  [
    (
      ("tensor:3x4",),
      r"must be a box of 8 device\(s\) with sides that divide the remaining "
      r"4x8 .* Possible boxes: 1x8, 2x4, 4x2",
    ),
    (("fsdp:1x4", "tensor:2x4"), r"divide the remaining 4x2 of the slice 4x8. Possible boxes: 4x2"),
    (("heads:2x4",), "'heads' is not an axis. Known axes: fsdp, tensor"),
    (("tensor:2x4", "tensor:2x1"), "'tensor' occurs twice"),
    (("tensor",), "must be a box of 8"),
  ],
)
def test_an_order_that_does_not_cover_a_slice_is_refused(order, message):
  """The message has the possible boxes."""
  with pytest.raises(UserError, match=f"config.mesh.physical_layout=.*{message}"):
    sharding._placed({"fsdp": 4, "tensor": 8}, chips_of("TPU v5 lite", 4, 8), order)
  with pytest.raises(UserError, match="needs whole TPU slices with one device per chip, but these devices are 'cpu'"):
    sharding._placed({"fsdp": 1, "tensor": 8}, jax.devices(), order)


def test_every_chip_has_its_peak():
  """Without a peak there would be no prediction."""
  assert all(accelerators.peak_flops(kind) for kind in accelerators.CHIPS)
