"""Bytes that an instruction of a compiled program moves, in the device's main memory and to and from its host."""

from collections.abc import Iterable, Sequence

from t2t.planning.hlo import text as hlo

_HOST = 5  # XLA's number of the host's memory space
_BUFFERS = ("AllocateBuffer", "ConcatBitcast", "AsyncCollectiveStart", "AsyncCollectiveDone")


def _is_spread(module: hlo.Module, instruction: hlo.Instruction) -> bool:
  """Returns True for a part of a collective that runs beside computation; its memory traffic is not counted."""
  is_collective = instruction.opcode in hlo.COLLECTIVES
  return is_collective and instruction.attribute("channel_id") in module.spread_collectives


def in_main_memory(arrays: Iterable[hlo.Array]) -> float:
  """Returns the bytes of the arrays in main memory."""
  return sum(array.bytes for array in arrays if not array.space)


def device_bytes(module: hlo.Module, computation: hlo.Computation, instruction: hlo.Instruction) -> float:
  """Returns the bytes that an instruction reads from and writes to the device's main memory."""
  opcode, results, operands = instruction.opcode, instruction.arrays, computation.operand_arrays(instruction)
  if opcode == "copy-start":
    return in_main_memory(results[:2])
  if opcode == "slice-start":
    return sum(results[1].bytes for array in results[:2] if not array.space)
  if opcode in ("dynamic-slice-start", "dynamic-update-slice-start"):
    # Only the whole array and the slice; the other operands are indices.
    part = _slice(computation, instruction)
    return sum(part.bytes for array in (operands[0][0], part) if not array.space)
  if opcode in ("dynamic-slice", "slice", "gather"):
    return in_main_memory(results) + (in_main_memory(results) if operands and not operands[0][0].space else 0.0)
  if opcode in ("dynamic-update-slice", "scatter"):
    update = operands[1 if opcode == "dynamic-update-slice" else -1]
    return in_main_memory(update) + (sum(array.bytes for array in update) if not results[0].space else 0.0)
  if opcode == "custom-call" and instruction.target in _BUFFERS:
    return 0.0
  if opcode == "send":
    return in_main_memory(operands[0])
  if opcode == "fusion-start":
    results = results[sum(map(len, operands)) : -1]  # the operands come first
  elif opcode != "fusion":
    return in_main_memory(results) + sum(in_main_memory(operand) for operand in operands)
  called = module[instruction.called("calls")[0]]
  read = 0.0
  for number, operand in enumerate(operands):
    if operand and not all(array.space for array in operand):
      read += min(in_main_memory(operand), _read(module, called, called.parameters[number]))
  return read + min(in_main_memory(results), _written(module, called, called.root, results))


# Operations that need all elements of their operands for any part of the result.
_MIXING = {"convolution", "dot", "reduce", "reduce-window", "sort", "scatter", "custom-call", "cholesky", "fft"}
_MIXING |= set(hlo.COLLECTIVES)


def _read(module: hlo.Module, computation: hlo.Computation, value: hlo.Instruction) -> float:
  """Returns the bytes of a fusion's parameter that are read."""
  array = value.arrays[0]
  return _needed(module, computation, value, {}) * array.bytes / max(array.elements, 1)


def _needed(
  module: hlo.Module, computation: hlo.Computation, value: hlo.Instruction, known: dict[tuple[str, str], float]
) -> float:
  """Returns the number of elements of a value that a fusion uses; for values that are sliced later, of the slice."""
  key = computation.name, value.name
  if key not in known:
    elements = value.arrays[0].elements if value.arrays else 0
    known[key] = elements
    if not value.is_root:
      uses = (_needed_by(module, computation, value, user, known) for user in computation.users.get(value.name, ()))
      known[key] = min(elements, sum(uses))
  return known[key]


def _needed_by(module, computation, value: hlo.Instruction, user: hlo.Instruction, known) -> float:
  """Returns the number of elements of a value that one of its users uses."""
  elements, first = value.arrays[0].elements, user.operands[0] == value.name
  if user.opcode in ("dynamic-slice", "slice", "gather") and first:
    return user.arrays[0].elements
  if user.opcode == "dynamic-update-slice" and first:
    return 0  # in-place update
  if _is_spread(module, user) or user.target in _BUFFERS:
    return 0
  if user.opcode == "tuple":
    return 0 if value.opcode == "parameter" else elements  # a parameter is passed through
  if user.opcode == "fusion":
    inner = module[user.called("calls")[0]]
    parameters = (inner.parameters[number] for number, name in enumerate(user.operands) if name == value.name)
    return sum(_needed(module, inner, parameter, known) for parameter in parameters)
  same_shape = user.opcode in ("bitcast", "pad") or (user.arrays and user.arrays[0].dims == value.arrays[0].dims)
  if user.opcode in _MIXING or not same_shape:
    return elements
  return min(elements, _needed(module, computation, user, known))


def _written(
  module: hlo.Module, computation: hlo.Computation, value: hlo.Instruction, results: Sequence[hlo.Array]
) -> float:
  """Returns the bytes of a fusion's result, stored as `results`, that are newly written."""
  if value.opcode == "tuple":
    parts = [computation.instructions[name] for name in value.operands]
    if all(len(part.arrays) == 1 for part in parts) and len(parts) == len(results):
      return sum(_written(module, computation, part, [array]) for part, array in zip(parts, results, strict=True))
  if all(array.space for array in results) or value.opcode == "parameter":
    return 0.0
  if _is_spread(module, value) or value.target in _BUFFERS:
    return 0.0
  if value.opcode == "bitcast":
    return _written(module, computation, computation.instructions[value.operands[0]], results)
  if value.opcode == "dynamic-update-slice":
    return sum(array.bytes for array in computation.instructions[value.operands[1]].arrays)
  if value.opcode == "fusion":
    inner = module[value.called("calls")[0]]
    return _written(module, inner, inner.root, results)
  return in_main_memory(results)


# ---- To and from the host --------------------------------------------------------------------------------------------


def _slice(computation: hlo.Computation, instruction: hlo.Instruction) -> hlo.Array:
  """Returns the part of an array that an asynchronous slice or update moves."""
  if instruction.opcode == "dynamic-slice-start":
    return instruction.arrays[len(instruction.operands)]
  return computation.operand_arrays(instruction)[1][0]


def host_bytes(computation: hlo.Computation, instruction: hlo.Instruction) -> float:
  """Returns the bytes that an instruction moves between the memory of the device and that of its host."""
  opcode, results, operands = instruction.opcode, instruction.arrays, computation.operand_arrays(instruction)
  if opcode in ("dynamic-slice-start", "dynamic-update-slice-start"):
    part = _slice(computation, instruction)
    return part.bytes if (operands[0][0].space == _HOST) != (part.space == _HOST) else 0.0
  if opcode in ("copy", "copy-start") and operands and operands[0]:
    return operands[0][0].bytes if (operands[0][0].space == _HOST) != (results[0].space == _HOST) else 0.0
  return 0.0
