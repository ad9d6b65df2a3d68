"""TPU slices by either of their names: Google Cloud's type, v5e-16, or the chips along each side, v5e:4x4."""

import dataclasses
import math

import t2t


@dataclasses.dataclass(frozen=True)
class _Generation:
  cores: int  # units per chip of the number in a name: v5p-8 has four chips
  runtime: str | None  # software of its TPU VMs; None: not available in the Cloud TPU API
  label: str | None  # value of `cloud.google.com/gke-tpu-accelerator` on GKE; None: not for training on GKE
  machine: str | None  # machine type of a GKE node, without "-4t"
  topologies: str


# Runtimes: cloud.google.com/tpu/docs/runtimes. TPU7x is only on GKE. Labels and machine types: Google's xpk.
_CUBES = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x12 8x8x16 8x16x16"
_SQUARES = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
_GENERATIONS = {
  "v2": _Generation(2, "tpu-ubuntu2204-base", None, None, "2x2 4x4 8x8 8x16 16x16"),
  "v3": _Generation(2, "tpu-ubuntu2204-base", None, None, "2x2 4x4 4x8 8x8 8x16 16x16 16x32 32x32"),
  "v4": _Generation(2, "tpu-ubuntu2204-base", "tpu-v4-podslice", "ct4p-hightpu", _CUBES),
  "v5litepod": _Generation(1, "v2-alpha-tpuv5-lite", "tpu-v5-lite-podslice", "ct5lp-hightpu", _SQUARES),
  "v5p": _Generation(2, "v2-alpha-tpuv5", "tpu-v5p-slice", "ct5p-hightpu", _CUBES + " 4x4x12 16x16x16 16x16x24"),
  "v6e": _Generation(1, "v2-alpha-tpuv6e", "tpu-v6e-slice", "ct6e-standard", _SQUARES),
  "tpu7x": _Generation(2, None, "tpu7x", "tpu7x-standard", "1x1x1 " + _CUBES + " 16x16x16"),
}


@dataclasses.dataclass(frozen=True)
class TpuType:
  """A slice: number of chips and machines, and the names that launchers need."""

  name: str
  topology: str
  chips: int
  hosts: int  # TPU VMs of the slice
  runtime: str | None
  label: str | None
  machine: str | None  # machine type of a GKE node
  gke_hosts: int  # GKE nodes of the slice

  @property
  def devices(self) -> int:
    """Returns the number of JAX devices: one per chip, or per core for v2, v3 and TPU7x."""
    return self.chips * (2 if self.name.startswith(("v2-", "v3-", "tpu7x-")) else 1)


def _types() -> dict[str, TpuType]:
  types = {}
  for prefix, generation in _GENERATIONS.items():
    for topology in generation.topologies.split():
      chips = math.prod(int(side) for side in topology.split("x"))
      name = f"{prefix}-{chips * generation.cores}"
      per_node = min(chips, 4)
      # v5e and v6e slices up to eight chips have one machine; GKE's machines for training always have four chips.
      single_host = "x" in topology and topology.count("x") == 1 and prefix in ("v5litepod", "v6e") and chips <= 8
      types[name] = TpuType(
        name,
        topology,
        chips,
        1 if single_host else chips // per_node,
        generation.runtime,
        generation.label,
        generation.machine and f"{generation.machine}-{per_node}t",
        chips // per_node,
      )
  return types


TYPES = _types()


def described() -> str:
  """Returns all names, one line per generation."""
  lines = []
  for prefix in _GENERATIONS:
    sizes = sorted(int(name.rpartition("-")[2]) for name in TYPES if name.rpartition("-")[0] == prefix)
    lines.append(f"  {prefix + '-':<11}" + " ".join(str(size) for size in sizes))
  return "\n".join(lines)


def tpu_type(name: str, *, where: str = "--type") -> TpuType:
  """Returns the slice with this name: v5litepod-16, v5e-16 or v5e:4x4.

  Args:
    name: name of the slice.
    where: the option with the name, for messages.

  Raises:
    UserError: the name is unknown; the message has the most similar name and all names.
  """
  normalized = "v5litepod" + name.removeprefix("v5e") if name.startswith(("v5e-", "v5e:")) else name
  generation, colon, topology = normalized.partition(":")
  if colon:
    names = [x.name for x in TYPES.values() if x.name.startswith(f"{generation}-") and x.topology == topology]
    normalized = next(iter(names), normalized)
  if normalized not in TYPES:
    raise t2t.UserError(
      f"{where} {name}: unknown TPU type{t2t.did_you_mean(normalized, TYPES) or '.'} Known types, by number of "
      f"TensorCores (v5litepod and v6e: chips):\n{described()}\nAlternatively, give the chips along each side, "
      "for example v5e:4x4 or v5p:2x4x4."
    )
  return TYPES[normalized]


def topology(name: str, *, where: str = "--topology") -> str:
  """Returns a slice's topology: v5e:4x4 for v5e-16; other names unchanged.

  Raises:
    UserError: see `tpu_type`.
  """
  generation, dash, _ = name.partition("-")
  if ":" in name or not dash:
    return name
  slice_type = tpu_type(name, where=where)
  return f"{'v5e' if generation == 'v5litepod' else generation}:{slice_type.topology}"
