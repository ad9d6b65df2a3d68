"""Finds the origin of a NaN or infinity: runs a program one operation at a time and checks each result.

Each value that is not finite carries its origin. A scan is run element by element, which gives the layer number in a
stack. Backward passes are part of the program. Several thousand operations are dispatched one by one, so use this for
single steps only.
"""

from collections.abc import Callable, Sequence
import dataclasses
import pathlib
from typing import Any

import jax

# A private module, but the only way from an operation to its line of code.
from jax._src import source_info_util
from jax.experimental import multihost_utils
import jax.extend
import jax.numpy as jnp
import numpy as np

from t2t.param_tree import path_name, stack_of

# Operations that are run whole although they contain a program.
_WHOLE = ("shard_map", "pallas_call", "while")
_PACKAGE = str(pathlib.Path(__file__).resolve().parent.parent)


@dataclasses.dataclass(frozen=True)
class Origin:
  """The origin of a value that is not finite.

  Attributes:
    what: "NaN" or "infinity".
    argument: path of the argument that was not finite before the computation; "" if the value was computed.
    operation: that returned it from finite inputs.
    line: of the code, "models/feed_forward.py:68 (Mlp.__call__)".
    loops: (path of the stack, element) of the enclosing loops, outermost first.
    backward: whether it is part of a gradient.
    rows: of the batch, if the operation has one result per row.
  """

  what: str
  argument: str = ""
  operation: str = ""
  line: str = ""
  loops: tuple[tuple[str, int], ...] = ()
  backward: bool = False
  rows: tuple[int, ...] = ()

  def __str__(self) -> str:
    """Returns, for example, "infinity, forward, encoder/layers, layer 2, by mul at models/feed_forward.py:68
    (Mlp.__call__)".
    """
    where = "".join(f", {path or 'a loop'}, layer {element}" for path, element in self.loops)
    if self.argument:
      return f"{self.what} in {self.argument}, before the step{where and f'; it is first read in{where[1:]}'}"
    passed = "backward" if self.backward else "forward"
    return f"{self.what}, {passed}{where}, by {self.operation} at {self.line}"


# None for values that are finite, or come from a constant of the program such as a mask's fill value.
_Trace = Origin | None


def find(function: Callable[..., object], *arguments: object, rows: int = 0) -> Origin | None:
  """Returns the origin of the first result that is not finite; None if all are finite.

  Args:
    function: of arrays, jitted or not; nothing is donated.
    arguments: on the devices; with several processes, all of them must call this.
    rows: of a batch, to recognize results with one entry per row.
  """
  closed = jax.make_jaxpr(function)(*arguments)
  leaves = jax.tree_util.tree_leaves_with_path(arguments)
  names = [path_name(path).partition("/")[2] or f"argument {path_name(path)}" for path, _ in leaves]
  names = [name.removeprefix("frozen_").removeprefix("params/") for name in names]
  values = [x for _, x in leaves]
  run = _Run({id(x): name for name, x in zip(names, values, strict=True)}, rows)
  whence = [None if _is_finite(x) else Origin(_kind(x), name) for name, x in zip(names, values, strict=True)]
  _, traces = run.jaxpr(closed.jaxpr, closed.consts, values, whence)
  return next(filter(None, traces), None)


class _Run:
  """Interprets one program.

  Args:
    names: id of an argument -> its path.
    rows: see `find`.
  """

  def __init__(self, names: dict[int, str], rows: int):
    self._names, self._rows = names, rows
    self._loops: list[tuple[str, int]] = []  # the running loops, outermost first

  def jaxpr(
    self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], whence: Sequence[_Trace]
  ) -> tuple[list, list[_Trace]]:
    """Returns the results, and the origin of each that is not finite.

    Args:
      jaxpr, consts, arguments: the program and its inputs.
      whence: origin of each argument.
    """
    values, traces = {}, {}

    def put(variables: Sequence[Any], results: Sequence[Any], whence: Sequence[_Trace]) -> None:
      for variable, value, trace in zip(variables, results, whence, strict=True):
        values[variable], traces[variable] = value, trace

    is_literal = lambda x: isinstance(x, jax.extend.core.Literal)
    value_of = lambda x: x.val if is_literal(x) else values[x]
    trace_of = lambda x: None if is_literal(x) else traces[x]
    put(jaxpr.constvars, consts, [None] * len(consts))
    put(jaxpr.invars, arguments, whence)
    last = {x: number for number, equation in enumerate(jaxpr.eqns) for x in equation.invars if not is_literal(x)}
    output_vars = {x for x in jaxpr.outvars if not is_literal(x)}
    for number, equation in enumerate(jaxpr.eqns):
      inputs = [value_of(x) for x in equation.invars]
      put(equation.outvars, *self._equation(equation, inputs, [trace_of(x) for x in equation.invars]))
      for variable in (*equation.invars, *equation.outvars):
        # Frees values without further readers.
        if not is_literal(variable) and last.get(variable, -1) <= number and variable not in output_vars:
          values.pop(variable, None)
    return [value_of(x) for x in jaxpr.outvars], [trace_of(x) for x in jaxpr.outvars]

  def _equation(self, equation: Any, values: list, traces: list[_Trace]) -> tuple[list, list[_Trace]]:
    name, inner = equation.primitive.name, equation.params
    if name == "scan":
      return self._scan(inner, values, traces)
    if name == "cond":
      chosen = inner["branches"][int(values[0])]
      return self.jaxpr(chosen.jaxpr, chosen.consts, values[1:], traces[1:])
    if name == "sharding_constraint":  # changes the placement, not the values
      return values, traces
    body = None if name in _WHOLE else inner.get("jaxpr", inner.get("call_jaxpr"))
    if body is None:
      return self._operation(equation, values, traces)
    closed = hasattr(body, "jaxpr")
    return self.jaxpr(body.jaxpr if closed else body, body.consts if closed else (), values, traces)

  def _operation(self, equation: Any, values: list, traces: list[_Trace]) -> tuple[list, list[_Trace]]:
    bind_params = equation.primitive.get_bind_params(equation.params)
    functions, parameters = (
      bind_params if isinstance(bind_params, tuple) else ((), bind_params)
    )  # jax before 0.10.2, and since
    with equation.ctx.manager:
      results = equation.primitive.bind(*functions, *values, **parameters)
    results = results if equation.primitive.multiple_results else [results]
    # A NaN input explains more than an infinity, which may be masked out.
    read = sorted(filter(None, traces), key=lambda trace: trace.what != "NaN")
    is_fill = not read and not all(map(_is_finite, values))
    whence = [
      None if is_fill or _is_finite(x) else self._placed(read[0]) if read else self._arisen(equation, x)
      for x in results
    ]
    return list(results), whence

  def _placed(self, trace: Origin) -> Origin:
    """Adds the enclosing loops to the origin of an argument that is read for the first time."""
    if trace.operation or trace.loops:
      return trace
    return dataclasses.replace(trace, loops=tuple(self._loops))

  def _arisen(self, equation: Any, result: jax.Array) -> Origin:
    rows = ()
    if self._rows and result.ndim and result.shape[0] == self._rows:
      finite = jnp.isfinite(result).all(axis=tuple(range(1, result.ndim)))
      rows = tuple(np.flatnonzero(~multihost_utils.process_allgather(finite, tiled=True)).tolist())
    return Origin(
      _kind(result),
      operation=equation.primitive.name,
      line=_line(equation.source_info.traceback),
      loops=tuple(self._loops),
      backward="transpose" in str(equation.source_info.name_stack),
      rows=rows,
    )

  def _scan(self, inner: dict[str, Any], values: list, traces: list[_Trace]) -> tuple[list, list[_Trace]]:
    num_consts, num_carry, length, body = inner["num_consts"], inner["num_carry"], inner["length"], inner["jaxpr"]
    first = num_consts + num_carry
    carry, whence = values[num_consts:first], traces[num_consts:first]
    stack = next(filter(None, (stack_of(self._names.get(id(x), "")) for x in values[first:])), "")
    stacked: list[list] = [[None] * length for _ in body.jaxpr.outvars[num_carry:]]
    made_whence: list[_Trace] = [None] * len(stacked)
    for element in range(length - 1, -1, -1) if inner["reverse"] else range(length):
      elements = [x[element] for x in values[first:]]
      own_whence = [None if _is_finite(x) else trace for x, trace in zip(elements, traces[first:], strict=True)]
      self._loops.append((stack, element))
      results, result_whence = self.jaxpr(
        body.jaxpr, body.consts, [*values[:num_consts], *carry, *elements], [*traces[:num_consts], *whence, *own_whence]
      )
      self._loops.pop()
      carry, whence = results[:num_carry], result_whence[:num_carry]
      for number, result in enumerate(results[num_carry:]):
        stacked[number][element] = result
        made_whence[number] = made_whence[number] or result_whence[num_carry + number]
    return [*carry, *map(jnp.stack, stacked)], [*whence, *made_whence]


def _is_finite(x: Any) -> bool:
  return not jnp.issubdtype(jnp.asarray(x).dtype if not hasattr(x, "dtype") else x.dtype, jnp.inexact) or bool(
    jnp.isfinite(x).all()
  )


def _kind(x: jax.Array) -> str:
  return "NaN" if bool(jnp.isnan(x).any()) else "infinity"


def _line(traceback: Any) -> str:
  """Returns the line of t2t that created an operation, or else the innermost line of user code."""
  frames = list(source_info_util.user_frames(traceback))
  t2t_frames = [frame for frame in frames if frame.file_name.startswith(_PACKAGE)]
  if not (t2t_frames or frames):
    return "an unknown line"
  frame = (t2t_frames or frames)[0]
  return f"{frame.file_name.removeprefix(_PACKAGE + '/')}:{frame.start_line} ({frame.function_name})"
