"""Accelerator data: FLOP/s, memory, bandwidth and links of a chip, and the layout of a mesh on the links of a slice.

TPUs: Google Cloud's page of each generation, docs.cloud.google.com/tpu/docs with /v4, /v5e, /v5p, /v6e and /tpu7x.
GPUs: NVIDIA's data sheets.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import math

import jax
import numpy as np

_GIB = 2**30

# bfloat16 FLOP/s of one device, by `jax.Device.device_kind`. Sources: Google Cloud's TPU system pages and NVIDIA's data
# sheets (dense, without sparsity). Devices that are not listed, such as CPUs, have no MFU.
PEAK_FLOPS: Mapping[str, float] = {
  "TPU v2": 22.5e12,
  "TPU v3": 61.5e12,
  "TPU v4": 275e12,
  "TPU v5 lite": 197e12,
  "TPU v5": 459e12,
  "TPU v6 lite": 918e12,
  "TPU7x": 1153.5e12,
  "NVIDIA A100-SXM4-40GB": 312e12,
  "NVIDIA A100-SXM4-80GB": 312e12,
  "NVIDIA A100-PCIE-40GB": 312e12,
  "NVIDIA A100 80GB PCIe": 312e12,
  "NVIDIA H100 80GB HBM3": 989.4e12,
  "NVIDIA H100 PCIe": 756e12,
  "NVIDIA H200": 989.4e12,
  "NVIDIA B200": 2250e12,
}


# Google Cloud's names of devices with another `device_kind`.
_SOLD_AS = {"TPU v5 lite": "TPU v5e", "TPU v5": "TPU v5p", "TPU v6 lite": "TPU v6e"}

# Measured fractions of Hopper's bfloat16 matmul throughput: cuBLAS float32 products in TF32, and cuDNN attention with
# head dimension 64, without and with a learned bias. Fitted to the steps of T5 1.1 base and GPT-2 small in
# benchmarks/results/h200.jsonl, and checked on the other runs there.
_HOPPER = {"float32": 0.33, "attention": 0.31, "biased attention": 0.16}

# Speed of 8-bit matrix products relative to bfloat16, from the same sources; 1 for devices that are not listed. v4 runs
# int8 at bfloat16 speed, v5e, v5p and v6e have no fp8, and no int8 figure is published for TPU7x.
PACES: Mapping[str, Mapping[str, float]] = {
  "TPU v5 lite": {"int8": 2.0},
  "TPU v5": {"int8": 2.0},
  "TPU v6 lite": {"int8": 2.0},
  "TPU7x": {"fp8": 2.0},
  "NVIDIA A100-SXM4-40GB": {"int8": 2.0},
  "NVIDIA A100-SXM4-80GB": {"int8": 2.0},
  "NVIDIA A100-PCIE-40GB": {"int8": 2.0},
  "NVIDIA A100 80GB PCIe": {"int8": 2.0},
  "NVIDIA H100 80GB HBM3": {"int8": 2.0, "fp8": 2.0, **_HOPPER},
  "NVIDIA H100 PCIe": {"int8": 2.0, "fp8": 2.0, **_HOPPER},
  "NVIDIA H200": {"int8": 2.0, "fp8": 2.0, **_HOPPER},
  "NVIDIA B200": {"int8": 2.0, "fp8": 2.0},
}


@dataclasses.dataclass(frozen=True)
class Chip:
  """A device as JAX sees it: a chip, or for TPU7x one of a chip's two halves.

  hbm_bytes: memory that a program may use, without the share of the runtime.
  hbm_bandwidth: bytes/s.
  link_bandwidth: bytes/s of one link to a neighbouring chip, in one direction.
  host_bandwidth: bytes/s to its host, or from it.
  dcn_bandwidth: bytes/s of a chip's share of its host's network, in one direction, between slices.
  wraps_from: smallest number of chips along a slice dimension that forms a ring; 0: GPUs, which share one switch.
  per_chip: devices on one chip.
  """

  hbm_bytes: float
  hbm_bandwidth: float
  link_bandwidth: float
  host_bandwidth: float
  dcn_bandwidth: float
  wraps_from: int
  per_chip: int = 1


# `jax.Device.device_kind` -> chip. HBM: memory that libtpu's compiler reports for a program ("exceeds available HBM
# (15.75G)"). Links: the published bandwidth of all links in both directions, divided by the number of links and by two:
# 400 GB/s over 4 links for v5e, 1,200 over 6 for v5p and TPU7x, 800 over 4 for v6e. v4's 6 links have 50 GB/s in each
# direction (Jouppi et al. 2023). Slices with optical switches (v4, v5p, TPU7x) are tori from 4 chips a side; on v5e and
# v6e only a side of 16 is a ring. Hosts: PCIe, for TPUs from Austin et al. 2025 ("How to Scale Your Model"): 16 GB/s,
# v6e 32. For TPU7x it is not published; the value of v6e is used.
CHIPS: Mapping[str, Chip] = {
  "TPU v4": Chip(30.75 * _GIB, 1200e9, 50e9, 16e9, 6.25e9, 4),
  "TPU v5 lite": Chip(15.75 * _GIB, 819e9, 50e9, 16e9, 3.125e9, 16),
  "TPU v5": Chip(95.74 * _GIB, 2765e9, 100e9, 16e9, 6.25e9, 4),
  "TPU v6 lite": Chip(31.25 * _GIB, 1638e9, 100e9, 32e9, 12.5e9, 16),
  "TPU7x": Chip(94.75 * _GIB, 3690e9, 50e9, 32e9, 6.25e9, 4, per_chip=2),
  "NVIDIA A100-SXM4-40GB": Chip(40e9, 1555e9, 300e9, 32e9, 25e9, 0),
  "NVIDIA A100-SXM4-80GB": Chip(80e9, 2039e9, 300e9, 32e9, 25e9, 0),
  "NVIDIA H100 80GB HBM3": Chip(80e9, 3350e9, 450e9, 64e9, 50e9, 0),
  "NVIDIA H200": Chip(141e9, 4800e9, 450e9, 64e9, 50e9, 0),
  "NVIDIA B200": Chip(180e9, 8000e9, 900e9, 64e9, 50e9, 0),
}

# Bandwidth between the two halves of a TPU7x, in links to a neighbouring chip (Google Cloud's page of TPU7x).
_ACROSS_A_CHIP = 6


def sold_as(device_kind: str) -> str:
  """Returns the product name of a device's chip: "TPU v5p" for "TPU v5"."""
  return _SOLD_AS.get(device_kind, device_kind)


def peak_flops(device_kind: str) -> float | None:
  """Returns the bfloat16 FLOP/s of one device; None if unknown, as for a CPU."""
  return PEAK_FLOPS.get(device_kind)


def send_seconds(chip: Chip, mesh: jax.sharding.Mesh, axes: Sequence[str], number: float, *, kind: str = "") -> float:
  """Returns the seconds that a device needs to send `number` bytes along `axes` of the mesh over all links in use.

  Along each torus dimension that the axes cover, a ring sends in both directions and an open line in one. Devices
  between neighbours of the group share the links. For a group over several slices, each device of a slice sends its
  part from slice to slice.

  An all-to-all (`kind`) sends each byte to one device, over all links on the way, and the busiest link decides.
  """
  if not chip.wraps_from:
    return number / chip.link_bandwidth
  devices = np.moveaxis(mesh.devices, [list(mesh.shape).index(axis) for axis in axes], range(len(axes)))
  group = devices.reshape(np.prod(devices.shape[: len(axes)], dtype=int), -1)[:, 0]
  slices = len({_slice(device) for device in group})
  seconds = 0.0
  if slices > 1:
    seconds = number / (len(group) // slices) / chip.dcn_bandwidth
    group = [device for device in group if _slice(device) == _slice(group[0])]
  if len(group) == 1:
    return seconds
  coords = np.array([device.coords for device in group])
  sides = np.max([device.coords for device in mesh.devices.flat], axis=0) + 1
  places = [np.unique(column) for column in coords.T]
  strides = [int(np.diff(column).min(initial=side)) for column, side in zip(places, sides, strict=True)]
  covered = [len(column) for column in places]
  if kind == "all-to-all" and max(covered) > 1:
    return seconds + number * _crossings(chip, covered, sides, strides) / chip.link_bandwidth
  return seconds + number / (chip.link_bandwidth * (_links(chip, covered, sides, strides) or _ACROSS_A_CHIP))


def _links(chip: Chip, covered: Sequence[int], sides: Sequence[int], strides: Sequence[int]) -> float:
  """Returns a chip's share of links to other chips of a group with `covered` chips per side at distances `strides`."""
  number = 0.0
  for part, side, stride in zip(covered, sides, strides, strict=True):
    if part > 1:
      number += (2 if part * stride >= side >= chip.wraps_from else 1) / stride
  return number


def _crossings(chip: Chip, covered: Sequence[int], sides: Sequence[int], strides: Sequence[int]) -> float:
  """Returns the load of the busiest link in an all-to-all, as a multiple of the bytes that a chip sends.

  In a ring of n chips half of the bytes cross each of two cuts, in a line one; a cut has two links of each direction or
  one. See `_links`.
  """
  number = math.prod(covered)
  loads = [
    stride * part / (8 if part * stride >= side >= chip.wraps_from else 4)
    for part, side, stride in zip(covered, sides, strides, strict=True)
    if part > 1
  ]
  return max(loads) * number / (number - 1)


def in_blocks(devices: Sequence[jax.Device], size: int) -> np.ndarray | None:
  """Returns a slice's devices in ring-shaped blocks of `size` neighbours, if no whole side of the slice is such a ring.

  A line of 8 of 16 chips sends everything over one link; a block of 2 x 4 chips has two. Among blocks with equal links,
  the function picks blocks that span the fewest hosts.

  Args:
    devices: devices of one slice.
    size: devices per block.

  Returns:
    [number of blocks, size]; None if whole sides are as good, no block is better than a line, the devices fill no box,
    or their links are unknown.
  """
  grid = None if size < 4 else _grid(devices)
  if grid is None:
    return None
  chip, sides = CHIPS[devices[0].device_kind], grid.shape
  best, most = None, (1,)
  for block in boxes(sides, size):
    cut = _cut(grid, [block])
    links, is_whole = (
      _links(chip, block, sides, [1] * len(sides)),
      all(part in (1, side) for part, side in zip(block, sides, strict=True)),
    )
    rank = (min(links, 2), is_whole, -len({device.process_index for device in cut[0]}))
    if links > 1 and rank > most:
      best, most = None if is_whole else cut, rank
  return best


def _grid(devices: Sequence[jax.Device]) -> np.ndarray | None:
  """Returns a slice's devices by coordinates, [chips along each side]; None: see `sides`."""
  chip = CHIPS.get(devices[0].device_kind)
  if chip is None or not chip.wraps_from:
    return None
  at = {tuple(device.coords): device for device in devices}
  lengths = tuple(np.max(list(at), axis=0) + 1)
  if len(at) != len(devices) or math.prod(lengths) != len(devices):
    return None
  return np.array([at[coords] for coords in np.ndindex(lengths)], object).reshape(lengths)


def sides(devices: Sequence[jax.Device]) -> tuple[int, ...] | None:
  """Returns the chips along each side of a slice; None unless the devices are TPUs that fill a box, one per place."""
  grid = _grid(devices)
  return None if grid is None else grid.shape


def boxes(sides: Sequence[int], size: int) -> list[tuple[int, ...]]:
  """Returns the boxes of `size` chips that tile a slice: for 4 in 2 x 4, 1 x 4 and 2 x 2."""
  divisors = ([n for n in range(1, side + 1) if side % n == 0] for side in sides)
  return [box for box in itertools.product(*divisors) if math.prod(box) == size]


def _cut(grid: np.ndarray, nested: Sequence[Sequence[int]]) -> np.ndarray:
  """Reshapes [sides] to [boxes of the last kind, ..., boxes of the first kind in a box of the second, chips]."""
  shape, last = [], np.ones(grid.ndim, int)
  for box in nested:
    last = last * box
  for side, box_side, parts in zip(grid.shape, last, zip(*reversed(nested), strict=True), strict=True):
    shape += [side // box_side, *parts]
  depth = len(nested) + 1
  # From axes by side, then kind of box, to axes by kind, then side.
  cut = grid.reshape(shape).transpose([side * depth + kind for kind in range(depth) for side in range(grid.ndim)])
  return cut.reshape(-1, *(math.prod(box) for box in reversed(nested)))


def in_order(devices: Sequence[jax.Device], nested: Sequence[Sequence[int]]) -> np.ndarray:
  """Returns a slice's devices in nested boxes of neighbours.

  Args:
    devices: devices of one slice with known `sides`, which the product of the boxes must divide.
    nested: a box of chips, then a box of such boxes, and so on.

  Returns:
    [remaining boxes, ..., chips in the first box].
  """
  return _cut(_grid(devices), nested)


def _slice(device: jax.Device) -> int:
  """Returns the slice of a device; JAX sets `slice_index` only if there are several slices."""
  return getattr(device, "slice_index", 0)
