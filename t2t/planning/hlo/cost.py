"""Counts operations, bytes and collectives of a compiled program on one device, with loops counted per iteration.

XLA's own `cost_analysis()` counts a loop's body once. Rules:
- FLOPs: two for each multiply-add of dots, convolutions (into which TPUs turn dots) and the matmuls of attention
  kernels; nothing else.
- Memory traffic, an estimate: the operands and results of each instruction, with a fusion as one. A slice counts as
  the slice, an in-place update as the update, and on-chip memory as nothing.
- Bytes that a device sends to others in a group of n: B(n-1)/n for an all-gather to B bytes, and for a reduce-scatter
  or all-to-all from B bytes; 2B(n-1)/n for an all-reduce; B for a collective-permute.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import math
import re

import numpy as np

from t2t import UserError
from t2t.planning.hlo import flops as hlo_flops
from t2t.planning.hlo import text as hlo
from t2t.planning.hlo import traffic as hlo_traffic

# The program for several TPU slices is that of one slice. A device sends data for other slices to its host, and an
# attribute contains the collective that the hosts perform.
_HANDED_OVER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_BETWEEN_SLICES = "dcn_data"

# Instructions that move nothing: names, bookkeeping, and ends of asynchronous operations, which count at their start.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"}
_FREE |= {"opt-barrier", "add-dependency", "domain", "get-dimension-size", "async-update", "async-done"}


# Operations that run asynchronously beside the following ones.
_BESIDE = ("copy-start", "slice-start", "fusion-start")
# Custom calls that are ordinary matrix products.
_LIBRARIES = ("__cublas$", "__onednn$matmul")
_CUDNN = "__cudnn$fmha"
# Prefixes of HLO dtypes with a different speed of products.
_KINDS = {"s8": "int8", "u8": "int8", "f8": "fp8", "f3": "float32"}


@dataclasses.dataclass(frozen=True)
class Operation:
  """An instruction and its number of executions; FLOPs and bytes of main memory are per execution.

  overlaps: runs beside others (an asynchronous copy), so that it takes bandwidth but no separate time.
  host_bytes: bytes moved between the device and its host.
  busy_flops: `flops` plus idle capacity of matrix units for narrow matrices; for kernels `flops`.
  is_kernel: an attention kernel, of which only its own annotations are known.
  pace: speed of its products relative to bfloat16, for its dtype.
  """

  name: str
  times: float
  flops: float
  bytes: float
  overlaps: bool = False
  host_bytes: float = 0.0
  busy_flops: float = 0.0
  is_kernel: bool = False
  pace: float = 1.0


@dataclasses.dataclass(frozen=True)
class Collective:
  """A collective and its number of executions; `bytes` are sent by one device per execution.

  axes: mesh axes along which the devices of a group differ.
  beside: indices of operations that run during an asynchronous collective, up to its end; if the end is in another
    computation, all up to the end of its own. None: synchronous.
  """

  kind: str
  axes: tuple[str, ...]
  times: float
  bytes: float
  beside: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True)
class HloProgram:
  """All operations of one device in one call.

  saved_bytes: bytes of stacks that loops of the forward pass fill for the backward pass.
  unknown_loops: number of loops with a data-dependent number of iterations.
  uncounted: names of kernels with unknown FLOPs.
  """

  operations: tuple[Operation, ...]
  collectives: tuple[Collective, ...]
  saved_bytes: float
  unknown_loops: int
  uncounted: tuple[str, ...]

  @property
  def flops(self) -> float:
    """Returns the executed FLOPs, recomputation included."""
    return sum(operation.times * operation.flops for operation in self.operations)

  @property
  def bytes(self) -> float:
    """Returns the bytes from and to main memory."""
    return sum(operation.times * operation.bytes for operation in self.operations)

  @property
  def host_bytes(self) -> float:
    """Returns the bytes from and to the host."""
    return sum(operation.times * operation.host_bytes for operation in self.operations)

  def sent(self) -> dict[str, dict[tuple[str, ...], float]]:
    """Returns kind of collective -> axes -> bytes that one device sends."""
    sent_bytes: dict[str, dict[tuple[str, ...], float]] = {}
    for collective in self.collectives:
      by_axes = sent_bytes.setdefault(collective.kind, {})
      by_axes[collective.axes] = by_axes.get(collective.axes, 0.0) + collective.times * collective.bytes
    return sent_bytes


def analyse(
  text: str, mesh_shape: Mapping[str, int], *, unknown_trips: float = 1.0, paces: Mapping[str, float] | None = None
) -> HloProgram:
  """Counts a program.

  Args:
    text: `compiled.as_text()`.
    mesh_shape: axis -> size, in the order in which the program numbers its devices; dcn_data first.
    unknown_trips: assumed number of iterations of loops with a data-dependent number.
    paces: "int8", "fp8", "float32", "attention" -> speed relative to bfloat16 products, see `accelerators.PACES`.
  """
  counter = _Counter(hlo.parse(text), mesh_shape, unknown_trips, paces or {})
  counter.visit(hlo.Scope(counter.module, counter.module.entry), 1.0)
  return counter.program()


class _Counter:
  """Traverses a program in execution order."""

  def __init__(
    self, module: hlo.Module, mesh_shape: Mapping[str, int], unknown_trips: float, paces: Mapping[str, float]
  ):
    self.module = module
    self._mesh_shape = dict(mesh_shape)
    self._unknown_trips = unknown_trips
    self._paces = paces
    self._operations: list[Operation] = []
    self._collectives: list[Collective] = []
    # For collectives spread over fusions: channel -> index in `_collectives`, and index -> operations that move it.
    self._spread: dict[str, int] = {}
    self._moved_by: dict[int, list[int]] = {}
    self._flops_of: dict[str, np.ndarray] = {}
    self._saved = 0.0
    self._unknown: set[str] = set()
    self._uncounted: set[str] = set()

  def program(self) -> HloProgram:
    collectives = list(self._collectives)
    for index, operations in self._moved_by.items():
      collectives[index] = dataclasses.replace(collectives[index], beside=tuple(operations))
    return HloProgram(
      tuple(self._operations),
      tuple(collectives),
      self._saved,
      len(self._unknown),
      tuple(sorted(self._uncounted)),
    )

  # ---- Control flow ----------------------------------------------------------

  def visit(self, scope: hlo.Scope, times: float, *, overlaps: bool = False) -> None:
    """Counts a computation that runs `times` times."""
    begun: dict[str, tuple[range, int]] = {}
    for instruction in scope.computation:
      opcode, collected = instruction.opcode, len(self._collectives)
      if opcode == "while":
        trips = scope.trips(instruction)
        if trips is None:
          self._unknown.add(instruction.name)
          trips = self._unknown_trips
        body = scope.body(instruction)
        self._saved += _piled_up(self.module, body.computation) if trips > 1 else 0.0
        self.visit(body, times * trips, overlaps=overlaps)
      elif opcode == "call":
        self.visit(scope.inner(instruction), times, overlaps=overlaps)
      elif opcode == "async-start":
        inner = scope.inner(instruction)
        if inner is not None:
          self.visit(inner, times, overlaps=True)
      elif opcode == "conditional":
        self._visit_dearest(instruction, times, overlaps=overlaps)
      elif opcode not in _FREE and not opcode.endswith("-done"):
        self._count(scope.computation, instruction, times, overlaps=overlaps)
      if opcode.endswith("-start") or opcode == "send":
        begun[instruction.name] = range(collected, len(self._collectives)), len(self._operations)
      elif opcode.endswith(("-update", "-done")):
        pending = begun.pop(instruction.operands[0], None)
        if pending and opcode.endswith("-update"):
          begun[instruction.name] = pending
        elif pending:
          self._travelled(*pending)
    for pending in begun.values():  # operations that end in another computation
      self._travelled(*pending)

  def _travelled(self, collectives: Iterable[int], since: int) -> None:
    """Records all operations since `since` as running during the collectives."""
    beside = range(since, len(self._operations))
    for index in collectives:
      self._collectives[index] = dataclasses.replace(self._collectives[index], beside=beside)

  def _visit_dearest(self, instruction: hlo.Instruction, times: float, *, overlaps: bool) -> None:
    """Counts the branch of a conditional with the most FLOPs and then bytes."""
    names = instruction.called("branch_computations")
    names = names or instruction.called("true_computation") + instruction.called("false_computation")
    branches = []
    for name in names:
      branch = _Counter(self.module, self._mesh_shape, self._unknown_trips, self._paces)
      branch.visit(hlo.Scope(self.module, self.module[name]), times, overlaps=overlaps)
      branches.append(branch)
    dearest = max(branches, key=lambda counter: (counter.program().flops, counter.program().bytes))
    first = len(self._operations)
    self._operations += dearest._operations
    for collective in dearest.program().collectives:
      beside = None if collective.beside is None else tuple(first + index for index in collective.beside)
      self._collectives.append(dataclasses.replace(collective, beside=beside))
    self._saved += dearest._saved
    self._unknown |= dearest._unknown
    self._uncounted |= dearest._uncounted

  def _count(self, computation: hlo.Computation, instruction: hlo.Instruction, times: float, *, overlaps: bool) -> None:
    kind = instruction.opcode.removesuffix("-start")
    if kind in hlo.COLLECTIVES:
      self._collect(computation, instruction, times, overlaps=overlaps or instruction.opcode.endswith("-start"))
      return
    handed_over = _HANDED_OVER.search(instruction.attributes)
    if instruction.opcode == "send" and handed_over:
      self._collect_between_slices(computation, instruction, times, handed_over[1].lower().replace("_", "-"))
    moving = set()
    if kind == "fusion":
      moving = self._collect_inside(self.module[instruction.called("calls")[0]], times, overlaps=overlaps)
    moved = hlo_traffic.device_bytes(self.module, computation, instruction)
    host = hlo_traffic.host_bytes(computation, instruction)
    flops, busy, paced = self._flops(computation, instruction)
    if flops or moved or host:
      overlaps = overlaps or instruction.opcode in _BESIDE or host > 0
      is_kernel = instruction.opcode == "custom-call" and not instruction.target.startswith(_LIBRARIES)
      is_kernel = is_kernel and not hlo_flops.is_grouped(instruction)
      pace = flops / paced if paced else 1.0
      for index in moving:
        self._moved_by[index].append(len(self._operations))
      self._operations.append(Operation(instruction.name, times, flops, moved, overlaps, host, busy, is_kernel, pace))

  # ---- Collectives -----------------------------------------------------------

  def _collect_inside(self, computation: hlo.Computation, times: float, *, overlaps: bool) -> set[int]:
    """Counts the collectives of a fusion; a collective that is spread over several counts in the fusion that starts it.

    Returns:
      Indices in `_collectives` that the fusion moves a part of.
    """
    starts = computation.root.target == "AsyncCollectiveStart"
    moving = set()
    for instruction in computation:
      if instruction.opcode == "fusion":
        moving |= self._collect_inside(self.module[instruction.called("calls")[0]], times, overlaps=overlaps)
      elif instruction.opcode in hlo.COLLECTIVES:
        channel = instruction.attribute("channel_id")
        if starts or channel not in self.module.spread_collectives:
          collected = len(self._collectives)
          self._collect(computation, instruction, times, overlaps=overlaps or starts)
          if starts and len(self._collectives) > collected:
            self._spread[channel] = collected
            self._moved_by[collected] = []
        if channel in self._spread:
          moving.add(self._spread[channel])
    return moving

  def _collect(
    self, computation: hlo.Computation, instruction: hlo.Instruction, times: float, *, overlaps: bool
  ) -> None:
    kind = instruction.opcode.removesuffix("-start")
    groups = self._groups(instruction)
    held = [sum(array.bytes for array in arrays) for arrays in computation.operand_arrays(instruction)]
    if kind == "all-reduce" and any(user.opcode == "dynamic-slice" for user in _users(computation, instruction)):
      kind = "reduce-scatter"  # TPUs write it inside a fusion
    # The other operands of a permute are its destination buffers.
    sent = _sent(kind, held[0] if kind == "collective-permute" else sum(held), len(groups[0]))
    axes = varying_axes(groups, self._mesh_shape)
    if axes and sent:
      self._collectives.append(Collective(kind, axes, times, sent, () if overlaps else None))

  def _collect_between_slices(
    self, computation: hlo.Computation, instruction: hlo.Instruction, times: float, kind: str
  ) -> None:
    held = sum(array.bytes for array in computation.operand_arrays(instruction)[0])
    kind = kind if kind in hlo.COLLECTIVES else "collective-permute"  # point to point
    sent = _sent(kind, held, self._mesh_shape[_BETWEEN_SLICES])
    self._collectives.append(Collective(kind, (_BETWEEN_SLICES,), times, sent, beside=()))

  def _groups(self, instruction: hlo.Instruction) -> list[tuple[int, ...]]:
    pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", instruction.attributes)
    if pairs:
      return [tuple(map(int, pair.split(","))) for pair in re.findall(r"\{(\d+,\d+)\}", pairs[1])]
    return replica_groups(instruction.attributes, math.prod(self._mesh_shape.values()))

  # ---- FLOPs -----------------------------------------------------------------

  def _flops(self, computation: hlo.Computation, instruction: hlo.Instruction) -> np.ndarray:
    """Returns [3]: FLOPs, FLOPs including idle parts of matrix units, and bfloat16 FLOPs of the same duration."""
    opcode = instruction.opcode
    if opcode in ("fusion", "fusion-start", "call"):
      called = instruction.called("calls") or instruction.called("to_apply")
      return self._computation_flops(called[0])
    if opcode == "dot":
      flops, busy = hlo_flops.dot(computation, instruction)
    elif opcode == "convolution":
      flops, busy = hlo_flops.convolution(computation, instruction)
    elif opcode == "custom-call":
      flops, busy = self._kernel_flops(computation, instruction)
    else:
      return np.zeros(3)
    return np.array([flops, busy, flops / self._pace(computation, instruction)])

  def _pace(self, computation: hlo.Computation, instruction: hlo.Instruction) -> float:
    operands = computation.operand_arrays(instruction)[:2]
    if instruction.target.startswith(_CUDNN):
      return self._paces.get("biased attention" if "Bias" in instruction.target else "attention", 1.0)
    if instruction.opcode == "custom-call" and not instruction.target.startswith(_LIBRARIES):
      return 1.0
    kinds = {_KINDS.get(arrays[0].dtype[:2]) for arrays in operands if arrays}
    return self._paces.get(kinds.pop(), 1.0) if len(kinds) == 1 else 1.0

  def _computation_flops(self, name: str) -> np.ndarray:
    if name not in self._flops_of:
      computation = self.module[name]
      self._flops_of[name] = sum((self._flops(computation, instruction) for instruction in computation), np.zeros(3))
    return self._flops_of[name]

  def _kernel_flops(self, computation: hlo.Computation, instruction: hlo.Instruction) -> tuple[float, float]:
    """Returns the FLOPs of a custom call, and FLOPs including idle parts of matrix units."""
    if hlo_flops.is_grouped(instruction):
      operands = computation.operand_arrays(instruction)
      return hlo_flops.grouped(instruction, operands, devices=self._mesh_shape.get("expert", 1))
    flops = self._attention_flops(computation, instruction)
    return flops, flops

  def _attention_flops(self, computation: hlo.Computation, instruction: hlo.Instruction) -> float:
    noted = re.search(r'"cost_estimate":\{[^{}]*"flops":"?(\d+)', instruction.attributes)
    if noted:
      return float(noted[1])
    target, operands = instruction.target, computation.operand_arrays(instruction)
    if target.startswith(_LIBRARIES):
      return hlo_flops.gemm(instruction, operands)
    if target == "tpu_custom_call":
      flops = hlo_flops.splash(instruction, operands)
      if flops is not None:
        return flops
    if target.startswith(_CUDNN):
      return hlo_flops.cudnn(instruction, operands)
    if target in ("tpu_custom_call", "triton_kernel_call") or target.startswith("__cudnn$"):
      self._uncounted.add(re.sub(r"[.\d]+$", "", instruction.name))
    return 0.0


def _sent(kind: str, held: float, size: int) -> float:
  """Returns the bytes that one device of a group of `size` sends, from the bytes that it holds at first."""
  if kind == "collective-permute":
    return held
  total = held * (size if kind == "all-gather" else 1)
  return total * (size - 1) / size * (2 if kind == "all-reduce" else 1)


def _users(computation: hlo.Computation, instruction: hlo.Instruction) -> Iterable[hlo.Instruction]:
  """Yields the instructions that read a value, also through bitcasts."""
  for user in computation.users.get(instruction.name, ()):
    if user.opcode == "bitcast":
      yield from _users(computation, user)
    else:
      yield user


# ---- Groups of collectives -------------------------------------------------------------------------------------------


def replica_groups(attributes: str, num_devices: int) -> list[tuple[int, ...]]:
  """Returns the groups of a collective from any of HLO's notations.

  replica_groups={{0,1},{2,3}}                       -> [(0, 1), (2, 3)]
  replica_groups=[2,2]<=[2,2]T(1,0)                  -> [(0, 2), (1, 3)]
  replica_groups=mesh['a'=2,'b'=2] {'a'}             -> [(0, 2), (1, 3)]
  replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}   -> [(0, 1), (2, 3)]
  replica_groups={}, or none                         -> all devices
  """
  listed = re.search(r"replica_groups=\{(\{[\d,{}]*\})\}", attributes)
  if listed:
    return [tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", listed[1])]
  iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes)
  if iota:
    shape, dims = (tuple(map(int, iota[i].split(","))) for i in (1, 2))
    order = tuple(map(int, iota[3].split(","))) if iota[3] else range(len(dims))
    return _rows(np.arange(math.prod(dims)).reshape(dims).transpose(order).reshape(shape))
  mesh = re.search(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\((.*?\)?)\))? ?\{(.*?)\}", attributes)
  if mesh:
    return _mesh_groups(mesh[1], mesh[2] or "", mesh[3])
  if re.search(r"replica_groups=(?!\{\})", attributes):
    raise UserError(
      f"unknown HLO notation of a collective's groups: {attributes[:200]}. Use the JAX version of requirements.lock, "
      "or report this text."
    )
  return [tuple(range(num_devices))]


def _rows(groups: np.ndarray) -> list[tuple[int, ...]]:
  return [tuple(map(int, group)) for group in groups]


def _mesh_groups(mesh: str, device_ids: str, axes: str) -> list[tuple[int, ...]]:
  """Parses mesh axes, "'a'=2,'b'=4", and parts of axes, "'b':(2)2", with stride and size."""
  sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh)}
  chosen = re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", axes)
  dims, used = [], []
  for name, size in sizes.items():
    # An axis of size 8 with the part ":(2)2" is split into 2 x 2 x 2.
    cuts = [(int(before), int(part)) for axis, before, part in chosen if axis == name and before]
    done = 1
    for before, part in sorted(cuts):
      dims += [before // done, part]
      used.append(len(dims) - 1)
      done = before * part
    dims.append(size // done)
    if not cuts and any(axis == name for axis, _, _ in chosen):
      used.append(len(dims) - 1)
  other_dims = [index for index in range(len(dims)) if index not in used]
  ids = np.arange(math.prod(dims))
  iota = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", device_ids)
  if iota:
    shape = tuple(map(int, iota[1].split(",")))
    ids = ids.reshape(shape).transpose(tuple(map(int, iota[2].split(","))) if iota[2] else None)
  elif device_ids:
    ids = np.array(list(map(int, device_ids.split(","))))
  ids = ids.reshape(dims).transpose(other_dims + used)
  return _rows(ids.reshape(-1, math.prod(dims[index] for index in used)))


def varying_axes(groups: Sequence[Sequence[int]], mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
  """Returns the axes along which the members of a group differ; device numbers vary fastest along the last axis."""
  sizes = tuple(mesh_shape.values())
  varies = np.zeros(len(sizes), bool)
  for group in groups:
    places = np.array(np.unravel_index(np.asarray(group), sizes))
    varies |= (places != places[:, :1]).any(axis=1)
  return tuple(axis for axis, yes in zip(mesh_shape, varies, strict=True) if yes)


# ---- Memory kept for the backward pass -------------------------------------------------------------------------------


def _piled_up(module: hlo.Module, body: hlo.Computation) -> float:
  """Returns the bytes of stacks that a loop of the forward pass fills, one slice per iteration."""
  if body.root.opcode != "tuple":
    return 0.0
  total = 0.0
  for name in body.root.operands:
    result = body.instructions[name]
    # JAX's transposed operations are the backward pass; its stacks are gradients.
    if len(result.arrays) == 1 and _updates(module, body, result):
      total += hlo_traffic.in_main_memory(result.arrays)
  return total


def _updates(module: hlo.Module, computation: hlo.Computation, value: hlo.Instruction, index: int = 0) -> bool:
  """Returns True if a value, or one element of it, is an array of the forward pass with an updated slice."""
  if value.opcode == "dynamic-update-slice":
    return "transpose(" not in value.attributes
  if value.opcode in ("bitcast", "get-tuple-element"):
    index = int(value.attribute("index")) if value.opcode == "get-tuple-element" else index
    return _updates(module, computation, computation.instructions[value.operands[0]], index)
  if value.opcode == "tuple":
    return _updates(module, computation, computation.instructions[value.operands[index]])
  if value.opcode == "fusion":
    inner = module[value.called("calls")[0]]
    return _updates(module, inner, inner.root, index)
  return False
