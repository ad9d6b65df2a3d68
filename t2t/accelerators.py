"""What accelerators can do: FLOP/s, memory, bandwidth and links of a chip, and how a mesh lies on a slice's links.

TPUs: Google Cloud's page of each generation, docs.cloud.google.com/tpu/docs
with /v4, /v5e, /v5p, /v6e and /tpu7x.  GPUs: NVIDIA's data sheets.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import math

import jax
import numpy as np

_GIB = 2**30

# bfloat16 FLOP/s of one device, by `jax.Device.device_kind`.  Google Cloud's TPU system pages and NVIDIA's data sheets
# (dense, without sparsity).  A device that is not here (a CPU) has no MFU.
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


# What Google Cloud calls the devices that name themselves otherwise.
_SOLD_AS = {"TPU v5 lite": "TPU v5e", "TPU v5": "TPU v5p", "TPU v6 lite": "TPU v6e"}

# Of Hopper's GPUs, as shares of what large products in bfloat16 reach: cuBLAS' products of float32, in TF32, and
# cuDNN's attention of 64 features, with a bias to be learned and without.  Taken from the steps of T5 1.1 base and
# GPT-2 small that are in benchmarks/results/h200.jsonl, and tried on the others there.
_HOPPER = {"float32": 0.33, "attention": 0.31, "biased attention": 0.16}

# How many times as fast as in bfloat16 a device multiplies matrices of 8 bits, by the same sources; of what is not here
# no faster: v4 has int8 at the same pace, v5e, v5p and v6e have no fp8, and of TPU7x nothing is published for int8.
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
  """One device as JAX sees it: a chip, or for TPU7x one of a chip's two halves.

  hbm_bytes: what a program may use; the runtime keeps the rest.
  hbm_bandwidth: bytes/s.
  link_bandwidth: bytes/s, one link, one way, of those that connect a chip to its neighbours.
  host_bandwidth: bytes/s to its host, or from it.
  dcn_bandwidth: bytes/s of a chip's share of its host's network, one way, between slices.
  wraps_from: chips along a dimension of a slice from which on its two ends are connected, too; 0: GPUs, which have one
    switch for all.
  per_chip: devices on one chip.
  """

  hbm_bytes: float
  hbm_bandwidth: float
  link_bandwidth: float
  host_bandwidth: float
  dcn_bandwidth: float
  wraps_from: int
  per_chip: int = 1


# `jax.Device.device_kind` -> chip.  HBM: what libtpu's compiler says is there for a program ("exceeds available HBM
# (15.75G)").  Links: the published bandwidth of all links both ways, by links and by two: 400 GB/s over 4 links for
# v5e, 1,200 over 6 for v5p and TPU7x, 800 over 4 for v6e; v4's 6 links have 50 GB/s each way (Jouppi et al. 2023).
# Slices are tori from 4 chips a side on where there are optical switches (v4, v5p, TPU7x); of v5e and v6e only a side
# of 16 is a ring.  Hosts: PCIe, for TPUs as Austin et al. 2025 ("How to Scale Your Model") give it, 16 GB/s and v6e 32;
# of TPU7x it is not published, and taken to be v6e's.
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

# The two halves of a TPU7x are six times as close as neighbouring chips (Cloud's page of TPU7x).
_ACROSS_A_CHIP = 6


def sold_as(device_kind: str) -> str:
  """What the chip of a device is called where it is to be had: "TPU v5" is v5p."""
  return _SOLD_AS.get(device_kind, device_kind)


def peak_flops(device_kind: str) -> float | None:
  """bfloat16 FLOP/s of one device; None where it is not known, as of a CPU."""
  return PEAK_FLOPS.get(device_kind)


def send_seconds(chip: Chip, mesh: jax.sharding.Mesh, axes: Sequence[str], number: float) -> float:
  """How long a device takes to send so many bytes along these axes of the mesh, all its links that way together.

  Links lead both ways along each dimension of the torus that the axes cover, if its ends are connected, and one way
  otherwise.  Where others lie between neighbours, they share the links.  Of what goes over several slices, each device
  of a slice sends its part from slice to slice.
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
  links = _links(chip, [len(column) for column in places], sides, strides)
  return seconds + number / (chip.link_bandwidth * (links or _ACROSS_A_CHIP))


def _links(chip: Chip, covered: Sequence[int], sides: Sequence[int], strides: Sequence[int]) -> float:
  """A chip's share of those to others of a group that has so many of each side of a slice, so far from each other."""
  number = 0.0
  for part, side, stride in zip(covered, sides, strides, strict=True):
    if part > 1:
      number += (2 if part * stride >= side >= chip.wraps_from else 1) / stride
  return number


def in_blocks(devices: Sequence[jax.Device], size: int) -> np.ndarray | None:
  """A slice's devices in blocks of `size` neighbours that are a ring, where no whole side of the slice is one.

  A line of 8 of 16 chips has one link for what all of it sends; around 2 x 4 chips there are two.  Of such blocks those
  are taken that the fewest hosts share.

  Args:
    devices: of one slice.
    size: of a block.

  Returns:
    [number of blocks, size]; None where whole sides or nothing else will do, the devices fill no box, or nothing is
    known of their links.
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
  """A slice's devices by their place in it, [chips along each side]; None: see `sides`."""
  chip = CHIPS.get(devices[0].device_kind)
  if chip is None or not chip.wraps_from:
    return None
  at = {tuple(device.coords): device for device in devices}
  lengths = tuple(np.max(list(at), axis=0) + 1)
  if len(at) != len(devices) or math.prod(lengths) != len(devices):
    return None
  return np.array([at[coords] for coords in np.ndindex(lengths)], object).reshape(lengths)


def sides(devices: Sequence[jax.Device]) -> tuple[int, ...] | None:
  """Chips along each side of a slice; None where its devices are not one on each place of a box, or no TPUs."""
  grid = _grid(devices)
  return None if grid is None else grid.shape


def boxes(sides: Sequence[int], size: int) -> list[tuple[int, ...]]:
  """The boxes of so many chips that whole numbers of fill a slice: of 4 in 2 x 4 they are 1 x 4 and 2 x 2."""
  divisors = ([n for n in range(1, side + 1) if side % n == 0] for side in sides)
  return [box for box in itertools.product(*divisors) if math.prod(box) == size]


def _cut(grid: np.ndarray, nested: Sequence[Sequence[int]]) -> np.ndarray:
  """[sides] -> [boxes of the last kind, ..., of the second kind in one of the next, chips in a box of the first]."""
  shape, last = [], np.ones(grid.ndim, int)
  for box in nested:
    last = last * box
  for side, box_side, parts in zip(grid.shape, last, zip(*reversed(nested), strict=True), strict=True):
    shape += [side // box_side, *parts]
  depth = len(nested) + 1
  # Of each side by itself as it is cut, to each kind by itself as it lies along the sides.
  cut = grid.reshape(shape).transpose([side * depth + kind for kind in range(depth) for side in range(grid.ndim)])
  return cut.reshape(-1, *(math.prod(box) for box in reversed(nested)))


def in_order(devices: Sequence[jax.Device], nested: Sequence[Sequence[int]]) -> np.ndarray:
  """A slice's devices in boxes of neighbours, those in boxes of such boxes, and so on.

  Args:
    devices: of one slice that has `sides`, which the boxes together must divide.
    nested: a box of chips; of such boxes; ...

  Returns:
    [boxes that are left, ..., chips in the first box].
  """
  return _cut(_grid(devices), nested)


def _slice(device: jax.Device) -> int:
  """Which slice a device is of; JAX says so only where there are several."""
  return getattr(device, "slice_index", 0)
