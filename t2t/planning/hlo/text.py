"""Reads the text of a compiled program: computations, instructions, arrays, and how often its loops run.

The text is `compiled.as_text()`, HLO after all optimizations, of one device.
"""

from collections.abc import Callable, Iterator
import dataclasses
import functools
import math
import operator
import re

# Bits of an element; types that are not here (token, opaque) take no memory.
_BITS = {"pred": 8, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "bf16": 16, "c64": 64, "c128": 128}
_BITS |= {f"{kind}{bits}": bits for kind in "suf" for bits in (8, 16, 32, 64)}
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](?:\{([^{}]*)\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_START = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_END = re.compile(r'\}(, execution_thread="\w+")?$')  # "sparsecore": that core of a TPU runs it
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_NAME = re.compile(r"%?([\w.\-]+)$")
_MOST_TRIPS = 1_000_000

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")


@dataclasses.dataclass(frozen=True)
class Array:
  """Type and place of one array; `space` 0 is the device's main memory, others are on the chip or on the host."""

  dtype: str
  dims: tuple[int, ...]
  space: int = 0

  @property
  def elements(self) -> int:
    """How many."""
    return math.prod(self.dims)

  @property
  def bytes(self) -> float:
    """Without the padding of tiles."""
    bits = _BITS.get(self.dtype, 8 if self.dtype.startswith("f8") else 0)
    return self.elements * bits / 8


def arrays(text: str) -> tuple[Array, ...]:
  """All arrays of a type, of nested tuples one after the other: "(f32[2,3]{1,0:S(1)}, s32[])"."""
  parsed = []
  for dtype, dims, layout in _ARRAY.findall(text):
    space = re.search(r"S\((\d+)\)", layout)
    # A bounded dynamic dimension, "<=8", counts as its bound.
    sizes = tuple(int(size.removeprefix("<=")) for size in dims.split(",") if size)
    parsed.append(Array(dtype, sizes, int(space[1]) if space else 0))
  return tuple(parsed)


@dataclasses.dataclass(frozen=True, eq=False)
class Instruction:
  """One line: `name = type opcode(operands), attributes`; for constants and parameters the operand is a `literal`."""

  name: str
  type: str
  opcode: str
  operands: tuple[str, ...]
  literal: str
  attributes: str
  is_root: bool

  @functools.cached_property
  def arrays(self) -> tuple[Array, ...]:
    """What it yields."""
    return arrays(self.type)

  def attribute(self, name: str) -> str | None:
    """The value of `name=...` up to the next comma or blank; of a list in braces, what stands in them."""
    match = re.search(rf"(?:^|[ ,]){name}=(\{{[^{{}}]*\}}|[^,\s]+)", self.attributes)
    return None if match is None else match[1].strip("{}")

  @property
  def target(self) -> str:
    """What a custom call calls."""
    return (self.attribute("custom_call_target") or "").strip('"')

  def called(self, name: str) -> list[str]:
    """Names of computations in an attribute: calls, to_apply, body, condition, branch_computations."""
    return [part.strip().lstrip("%") for part in (self.attribute(name) or "").split(",") if part.strip()]


@dataclasses.dataclass(eq=False)
class Computation:
  """Instructions by name, in the order of their execution."""

  name: str
  instructions: dict[str, Instruction] = dataclasses.field(default_factory=dict)

  def __iter__(self) -> Iterator[Instruction]:
    return iter(self.instructions.values())

  @functools.cached_property
  def root(self) -> Instruction:
    """What the computation yields."""
    return next(instruction for instruction in self if instruction.is_root)

  @functools.cached_property
  def parameters(self) -> dict[int, Instruction]:
    """By number."""
    return {int(instruction.literal): instruction for instruction in self if instruction.opcode == "parameter"}

  @functools.cached_property
  def users(self) -> dict[str, list[Instruction]]:
    """Who reads an instruction."""
    users: dict[str, list[Instruction]] = {}
    for instruction in self:
      for name in instruction.operands:
        users.setdefault(name, []).append(instruction)
    return users

  def operand_arrays(self, instruction: Instruction) -> list[tuple[Array, ...]]:
    """What each operand of an instruction holds."""
    return [self.instructions[name].arrays if name in self.instructions else () for name in instruction.operands]


@dataclasses.dataclass(eq=False)
class Module:
  """A program: its computations by name, and the one that is run."""

  computations: dict[str, Computation]
  entry: Computation

  def __getitem__(self, name: str) -> Computation:
    return self.computations[name]

  @functools.cached_property
  def spread_collectives(self) -> frozenset[str]:
    """Channels of collectives that TPUs spread over several fusions, in each of which they are written down again."""
    return frozenset(
      instruction.attribute("channel_id")
      for computation in self.computations.values()
      if computation.root.target == "AsyncCollectiveStart"
      for instruction in computation
      if instruction.opcode in COLLECTIVES
    )


def _closing(text: str, start: int) -> int:
  """Where the parenthesis that opens at `start` closes."""
  depth = 0
  for match in re.compile(r"[()]").finditer(text, start):
    depth += 1 if match[0] == "(" else -1
    if not depth:
      return match.start()
  raise ValueError(f"a parenthesis is not closed: {text[start : start + 80]}")


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
  """At the commas outside of brackets."""
  parts, depth, last = [], 0, 0
  for match in re.finditer(r"[(){}\[\],]", text):
    if match[0] != ",":
      depth += 1 if match[0] in "({[" else -1
    elif not depth:
      parts.append(text[last : match.start()])
      last = match.end()
  return [*parts, text[last:]]


def parse(text: str) -> Module:
  """The program that `compiled.as_text()` shows.

  Raises:
    ValueError: it is not HLO text.
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
      lines.append(line)  # attributes of kernels have lines of their own
  if entry is None:
    raise ValueError("no ENTRY: this is not the text of a compiled program")
  return Module(computations, entry)


# ---- How often a loop runs -------------------------------------------------------------------------------------------

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
  """A computation where it is called: what is known of its integers before the program runs.

  Args:
    module: of the computation.
    computation: whose values are asked for.
    argument: number of a parameter -> its value, if that is one integer, or None.
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
    """The integer that an instruction yields, if it is known."""
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
    """One element of the tuple that an instruction yields, if it is known."""
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
    """The computation that a fusion or call runs, with what is known of its operands."""
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
    """A loop's body, in which is known what no iteration changes."""
    body, start = self._body(loop), loop.operands[0]
    known_element = lambda _, index: self.element(start, index) if _is_kept(body, index) else None
    return Scope(self.module, body, element=known_element)

  def trips(self, loop: Instruction) -> int | None:
    """How often a `while` runs: as the compiler has noted, or by running its counter; None: the data decides."""
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

    # The elements that the condition depends on, through the body, too.
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
  """Whether a loop's body hands on an element of its tuple as it came."""
  root = body.root
  if root.opcode != "tuple":
    return False
  result = body.instructions[root.operands[index]]
  while result.opcode in ("copy", "bitcast"):
    result = body.instructions[result.operands[0]]
  if result.opcode != "get-tuple-element" or int(result.attribute("index")) != index:
    return False
  return body.instructions[result.operands[0]].opcode == "parameter"
