"""How the values of parameters and of their updates are spread, for TensorBoard (`config.logging.histograms`).

They are counted beside the compiled step, which is the same program with and without; where an update is looked at, the
parameters before it are kept for as long as the step takes.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2t import sharding
from t2t.params import Params, path_name
from t2t.training.train_state import TrainState

BINS = 64


@dataclasses.dataclass(frozen=True)
class Histogram:
  """Counts of the values of an array in bins of equal width.

  limits: of the bins, one more than there are counts; the first is the least value, the last the greatest.
  counts: values in each.
  sum, sum_squares: of all.
  """

  limits: list[float]
  counts: list[float]
  sum: float
  sum_squares: float


class Histograms:
  """Looks at every so many steps of a run.

  Args:
    every: steps; 0: at none.
    mesh: that the parameters lie on.
    record: takes the step and what was found, by name; called on every host.
  """

  def __init__(self, every: int, mesh: jax.sharding.Mesh, record: Callable[[int, Mapping[str, Histogram]], None]):
    self._every, self._mesh, self._record = every, mesh, record

  def around(
    self, step: int, run: Callable[..., tuple[TrainState, Any]], state: TrainState, *arguments: Any
  ) -> tuple[TrainState, Any]:
    """What `run` makes of the state, which is used up, and the other arguments: the step of this number."""
    if not self._every or step % self._every:
      return run(state, *arguments)
    before = jax.tree.map(jnp.copy, state.params)
    state, metrics = run(state, *arguments)
    self._record(step, self._found(before, state.params))
    return state, metrics

  def _found(self, before: Params, after: Params) -> dict[str, Histogram]:
    counted = jax.device_get(_program(self._mesh)(before, after))
    leaves = [
      (f"{kind}/{path_name(path)}", found)
      for kind, tree in counted.items()
      for path, found in jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, tuple))
    ]
    return {name: _histogram(*found) for name, found in leaves if all(np.isfinite(x).all() for x in found)}


def _histogram(
  low: np.ndarray, high: np.ndarray, counts: np.ndarray, total: np.ndarray, squares: np.ndarray
) -> Histogram:
  low, high = float(low), float(high)
  if low == high:  # an array that began as zeros, or ones
    high = math.nextafter(high, math.inf) if high else 1e-30
  return Histogram(np.linspace(low, high, BINS + 1).tolist(), counts.tolist(), float(total), float(squares))


def _counted(x: jax.Array) -> tuple[jax.Array, ...]:
  """Least and greatest value, counts float32 [BINS] between them, sum and sum of squares."""
  x = jnp.atleast_1d(x.astype(jnp.float32))
  low, high = jnp.min(x), jnp.max(x)
  width = jnp.where(high > low, (high - low) / BINS, 1.0)
  bins = jnp.clip(jnp.floor((x - low) / width), 0, BINS - 1).astype(jnp.int32)
  # Bin by bin: sharded as it is, the array is read again and again, and nothing of its size is made.  Rows are counted
  # as integers, for in float32 one more than 2**24 is as many.
  count = lambda number: jnp.sum(jnp.sum(bins == number, axis=-1, dtype=jnp.int32).astype(jnp.float32))
  return low, high, jax.lax.map(count, jnp.arange(BINS)), jnp.sum(x), jnp.sum(jnp.square(x))


@functools.cache
def _program(mesh: jax.sharding.Mesh) -> Callable[[Params, Params], dict[str, Any]]:
  """Parameters before and after a step -> counts of these and of what was added; every host has them all."""

  def counts(before: Params, after: Params) -> dict[str, Any]:
    updates = jax.tree.map(jnp.subtract, after, before)
    return {kind: jax.tree.map(_counted, tree) for kind, tree in (("params", after), ("updates", updates))}

  return jax.jit(counts, out_shardings=sharding.replicated(mesh))
