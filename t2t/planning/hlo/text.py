"""Parses the text of a compiled program: computations, instructions, arrays, and numbers of loop iterations.

The text is `compiled.as_text()`, HLO after all optimizations, of one device.
"""

from collections.abc import Callable, Iterator
import dataclasses
import functools
import math
import operator
import re

# Bits per element; other types (token, opaque) take no memory.
_BITS = {"pred": 8, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "bf16": 16, "c64": 64, "c128": 128}
_BITS |= {f"{kind}{bits}": bits for kind in "suf" for bits in (8, 16, 32, 64)}
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](?:\{([^{}]*)\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_START = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_END = re.compile(r'\}(, execution_thread="\w+")?$')  # "sparsecore": runs on that core of a TPU
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_NAME = re.compile(r"%?([\w.\-]+)$")
_MOST_TRIPS = 1_000_000

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")


@dataclasses.dataclass(frozen=True)
class Array:
  """Type and memory space of an array; `space` 0 is the device's main memory, others are on the chip or the host."""

  dtype: str
  dims: tuple[int, ...]
  space: int = 0

  @property
  def elements(self) -> int:
    return math.prod(self.dims)

  @property
  def bytes(self) -> float:
    """Returns the bytes without padding of tiles."""
    bits = _BITS.get(self.dtype, 8 if self.dtype.startswith("f8") else 0)
    return self.elements * bits / 8


def arrays(text: str) -> tuple[Array, ...]:
  """Returns all arrays of a type, with nested tuples flattened: "(f32[2,3]{1,0:S(1)}, s32[])"."""
  parsed = []
  for dtype, dims, layout in _ARRAY.findall(text):
    space = re.search(r"S\((\d+)\)", layout)
    # A bounded dynamic dimension, "<=8", counts as its bound.
    sizes = tuple(int(size.removeprefix("<=")) for size in dims.split(",") if size)
    parsed.append(Array(dtype, sizes, int(space[1]) if space else 0))
  return tuple(parsed)


@dataclasses.dataclass(frozen=True, eq=False)
class Instruction:
  """A line of HLO: `name = type opcode(operands), attributes`; constants and parameters have a `literal` as operand."""

  name: str
  type: str
  opcode: str
  operands: tuple[str, ...]
  literal: str
  attributes: str
  is_root: bool

  @functools.cached_property
  def arrays(self) -> tuple[Array, ...]:
    """Returns the arrays of the result."""
    return arrays(self.type)

  def attribute(self, name: str) -> str | None:
    """Returns the value of `name=...` up to the next comma or blank, or the content of braces."""
    match = re.search(rf"(?:^|[ ,]){name}=(\{{[^{{}}]*\}}|[^,\s]+)", self.attributes)
    return None if match is None else match[1].strip("{}")

  @property
  def target(self) -> str:
    """Returns the target of a custom call."""
    return (self.attribute("custom_call_target") or "").strip('"')

  def called(self, name: str) -> list[str]:
    """Returns the computations in an attribute: calls, to_apply, body, condition, branch_computations."""
    return [part.strip().lstrip("%") for part in (self.attribute(name) or "").split(",") if part.strip()]


@dataclasses.dataclass(eq=False)
class Computation:
  """Instructions by name, in execution order."""

  name: str
  instructions: dict[str, Instruction] = dataclasses.field(default_factory=dict)

  def __iter__(self) -> Iterator[Instruction]:
    return iter(self.instructions.values())

  @functools.cached_property
  def root(self) -> Instruction:
    """Returns the instruction with the computation's result."""
    return next(instruction for instruction in self if instruction.is_root)

  @functools.cached_property
  def parameters(self) -> dict[int, Instruction]:
    """Returns the parameters by number."""
    return {int(instruction.literal): instruction for instruction in self if instruction.opcode == "parameter"}

  @functools.cached_property
  def users(self) -> dict[str, list[Instruction]]:
    """Returns the instructions that read each instruction."""
    users: dict[str, list[Instruction]] = {}
    for instruction in self:
      for name in instruction.operands:
        users.setdefault(name, []).append(instruction)
    return users

  def operand_arrays(self, instruction: Instruction) -> list[tuple[Array, ...]]:
    """Returns the arrays of each operand of an instruction."""
    return [self.instructions[name].arrays if name in self.instructions else () for name in instruction.operands]


@dataclasses.dataclass(eq=False)
class Module:
  """A program: its computations by name, and the entry computation."""

  computations: dict[str, Computation]
  entry: Computation

  def __getitem__(self, name: str) -> Computation:
    return self.computations[name]

  @functools.cached_property
  def spread_collectives(self) -> frozenset[str]:
    """Returns the channels of collectives that TPUs spread over several fusions, each with a copy of the collective."""
    return frozenset(
      instruction.attribute("channel_id")
      for computation in self.computations.values()
      if computation.root.target == "AsyncCollectiveStart"
      for instruction in computation
      if instruction.opcode in COLLECTIVES
    )


def _closing(text: str, start: int) -> int:
  """Returns the index of the parenthesis that closes the one at `start`."""
  depth = 0
  for match in re.compile(r"[()]").finditer(text, start):
    depth += 1 if match[0] == "(" else -1
    if not depth:
      return match.start()
  raise ValueError(f"HLO text: unclosed parenthesis: {text[start : start + 80]}")


def _instruction(line: str) -> Instruction:
  start = _START.match(line)
  begin = start.end()
  end = _closing(line, begin) + 1 if line[begin] == "(" else line.index(" ", begin)
  opcode = _OPCODE.match(line, end)
  close = _closing(line, opcode.end() - 1)
  inside = re.sub(r"/\*.*?\*/", "", line[opcode.end() : close])
  is_literal = opcode[1] in ("constant", "parameter")
  names = [] if is_literal else [_NAME.search(part.strip()) for part in _parts(inside)]
  return Instruction(
    name=start[2],
    type=line[begin:end],
    opcode=opcode[1],
    operands=tuple(name[1] for name in names if name),
    literal=inside.strip() if is_literal else "",
    attributes=line[close + 1 :],
    is_root=bool(start[1]),
  )


def _parts(text: str) -> list[str]:
  """Splits at commas outside of brackets."""
  parts, depth, last = [], 0, 0
  for match in re.finditer(r"[(){}\[\],]", text):
    if match[0] != ",":
      depth += 1 if match[0] in "({[" else -1
    elif not depth:
      parts.append(text[last : match.start()])
      last = match.end()
  return [*parts, text[last:]]


def parse(text: str) -> Module:
  """Parses the text of `compiled.as_text()`.

  Raises:
    ValueError: the text is not HLO.
  """
  computations, entry, current, lines = {}, None, None, []

  def flush():
    if lines:
      instruction = _instruction("".join(lines))
      current.instructions[instruction.name] = instruction
      lines.clear()

  for line in text.splitlines():
    if current is None:
      header = _HEADER.match(line)
      if header:
        current = computations[header[2]] = Computation(header[2])
        entry = current if header[1] else entry
    elif _END.match(line):
      flush()
      current = None
    elif _START.match(line):
      flush()
      lines.append(line)
    elif lines:
      lines.append(line)  # attributes of kernels are on separate lines
  if entry is None:
    raise ValueError("HLO text has no ENTRY: not the text of a compiled program")
  return Module(computations, entry)


# ---- Numbers of loop iterations --------------------------------------------------------------------------------------

_SAME = ("copy", "bitcast", "convert", "reshape", "broadcast", "copy-start", "copy-done", "opt-barrier")
_ARITHMETIC: dict[str, Callable[..., int]] = {
  "add": operator.add,
  "subtract": operator.sub,
  "multiply": operator.mul,
  "minimum": min,
  "maximum": max,
  "and": operator.and_,
  "or": operator.or_,
  "not": lambda x: int(not x),
  "select": lambda chosen, yes, no: yes if chosen else no,
  "clamp": lambda low, x, high: max(low, min(x, high)),
}
_COMPARISONS = {
  "LT": operator.lt,
  "LE": operator.le,
  "GT": operator.gt,
  "GE": operator.ge,
  "EQ": operator.eq,
  "NE": operator.ne,
}


class Scope:
  """A computation at its call site, with the integers that are known before the program runs.

  Args:
    module: module of the computation.
    computation: the computation to evaluate.
    argument: number of a parameter -> its value, if it is a known integer, or None.
    element: number of a parameter, index -> that element of a tuple, or None.
  """

  def __init__(
    self,
    module: Module,
    computation: Computation,
    argument: Callable[[int], int | None] = lambda number: None,
    element: Callable[[int, int], int | None] = lambda number, index: None,
  ):
    self.module, self.computation = module, computation
    self._argument, self._element = argument, element
    self._known: dict[str, int | None] = {}

  def value(self, name: str) -> int | None:
    """Returns the integer result of an instruction, if known."""
    if name not in self._known:
      self._known[name] = self._evaluate(self.computation.instructions[name])
    return self._known[name]

  def _evaluate(self, instruction: Instruction) -> int | None:
    opcode, operands = instruction.opcode, instruction.operands
    if opcode == "constant":
      literal = {"true": "1", "false": "0"}.get(instruction.literal, instruction.literal)
      return int(literal) if re.fullmatch(r"-?\d+", literal) else None
    if opcode == "parameter":
      return self._argument(int(instruction.literal))
    if opcode == "get-tuple-element":
      return self.element(operands[0], int(instruction.attribute("index")))
    if opcode in _SAME:
      return self.value(operands[0])
    if opcode in ("fusion", "call"):
      inner = self.inner(instruction)
      return None if inner is None else inner.value(inner.computation.root.name)
    if opcode in _ARITHMETIC or opcode == "compare":
      values = [self.value(name) for name in operands]
      if None in values:
        return None
      if opcode == "compare":
        return int(_COMPARISONS[instruction.attribute("direction")](*values))
      return _ARITHMETIC[opcode](*values)
    return None

  def element(self, name: str, index: int) -> int | None:
    """Returns one element of an instruction's tuple, if known."""
    instruction = self.computation.instructions[name]
    opcode, operands = instruction.opcode, instruction.operands
    if opcode == "tuple":
      return self.value(operands[index])
    if opcode == "parameter":
      return self._element(int(instruction.literal), index)
    if opcode in _SAME:
      return self.element(operands[0], index)
    if opcode == "while":
      return self.element(operands[0], index) if _is_kept(self._body(instruction), index) else None
    if opcode in ("fusion", "call"):
      inner = self.inner(instruction)
      return None if inner is None else inner.element(inner.computation.root.name, index)
    return None

  def inner(self, instruction: Instruction) -> "Scope | None":
    """Returns the computation of a fusion or call, with the known values of its operands."""
    called = instruction.called("calls") or instruction.called("to_apply")
    if not called or called[0] not in self.module.computations:
      return None
    operands = instruction.operands
    return Scope(
      self.module,
      self.module[called[0]],
      lambda number: self.value(operands[number]),
      lambda number, index: self.element(operands[number], index),
    )

  def _body(self, loop: Instruction) -> Computation:
    return self.module[loop.called("body")[0]]

  def body(self, loop: Instruction) -> "Scope":
    """Returns a loop's body with the values that do not change between iterations."""
    body, start = self._body(loop), loop.operands[0]
    known_element = lambda _, index: self.element(start, index) if _is_kept(body, index) else None
    return Scope(self.module, body, element=known_element)

  def trips(self, loop: Instruction) -> int | None:
    """Returns the iterations of a `while`, from the compiler's note or by running its counter; None: data-dependent."""
    noted = re.search(r"known_trip_count\W+n\W+(\d+)", loop.attributes)
    if noted:
      return int(noted[1])
    body, condition = self._body(loop), self.module[loop.called("condition")[0]]
    used: set[int] = set()

    def of(computation, state):
      def element(_, index):
        used.add(index)
        return state(index)

      return Scope(self.module, computation, element=element)

    # Elements that the condition depends on, directly or through the body.
    start = lambda index: self.element(loop.operands[0], index)
    goes_on = of(condition, start).value(condition.root.name)
    known, seen = {}, set()
    while used - seen:
      for index in used - seen:
        seen.add(index)
        known[index] = start(index)
        of(body, start).element(body.root.name, index)
    trips = 0
    while goes_on:
      trips += 1
      scope = of(body, known.get)
      known = {index: scope.element(body.root.name, index) for index in seen}
      goes_on = of(condition, known.get).value(condition.root.name)
      if trips > _MOST_TRIPS:
        return None
    return None if goes_on is None else trips


def _is_kept(body: Computation, index: int) -> bool:
  """Returns True if a loop's body returns an element of its tuple unchanged."""
  root = body.root
  if root.opcode != "tuple":
    return False
  result = body.instructions[root.operands[index]]
  while result.opcode in ("copy", "bitcast"):
    result = body.instructions[result.operands[0]]
  if result.opcode != "get-tuple-element" or int(result.attribute("index")) != index:
    return False
  return body.instructions[result.operands[0]].opcode == "parameter"
