"""Histograms of parameters and updates for TensorBoard (`config.logging.histograms`).

A separate program counts the values, so the compiled step does not change. The parameters before the step are kept
during the step.
"""

from collections.abc import Callable
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2t import sharding
from t2t.models.architecture import Batch
from t2t.param_tree import Params, path_name
from t2t.training.metric_writers import Histogram
from t2t.training.run import Callback, Run

BINS = 64


class Histograms(Callback):
  """Writes histograms of parameters and updates every `config.logging.histograms` steps."""

  def __init__(self):
    self._before: Params | None = None

  def on_batch(self, run: Run, batch: Batch) -> None:
    if (run.step + 1) % run.config.logging.histograms == 0:
      self._before = jax.tree.map(jnp.copy, run.state.params)  # a copy, because the step donates its input

  def on_step(self, run: Run) -> None:
    before, self._before = self._before, None
    if before is not None:
      run.logger.histograms(run.step, _histograms(run.mesh, before, run.state.params))


def _histograms(mesh: jax.sharding.Mesh, before: Params, after: Params) -> dict[str, Histogram]:
  counted = jax.device_get(_program(mesh)(before, after))
  leaves = [
    (f"{kind}/{path_name(path)}", counts)
    for kind, tree in counted.items()
    for path, counts in jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, tuple))
  ]
  return {name: _histogram(*counts) for name, counts in leaves if all(np.isfinite(x).all() for x in counts)}


def _histogram(
  low: np.ndarray, high: np.ndarray, counts: np.ndarray, total: np.ndarray, squares: np.ndarray
) -> Histogram:
  first, last = float(low), float(high)
  if first == last:  # constant array, such as initial zeros or ones
    last = math.nextafter(last, math.inf) if last else 1e-30
  return Histogram(np.linspace(first, last, BINS + 1).tolist(), counts.tolist(), float(total), float(squares))


def _counted(x: jax.Array) -> tuple[jax.Array, ...]:
  """Returns minimum, maximum, float32 [BINS] counts, sum and sum of squares."""
  x = jnp.atleast_1d(x.astype(jnp.float32))
  low, high = jnp.min(x), jnp.max(x)
  width = jnp.where(high > low, (high - low) / BINS, 1.0)
  bins = jnp.clip(jnp.floor((x - low) / width), 0, BINS - 1).astype(jnp.int32)
  # A loop over bins reads the sharded array once per bin, but allocates nothing of its size. Counts within a row are
  # integers, because float32 cannot count beyond 2**24.
  count = lambda number: jnp.sum(jnp.sum(bins == number, axis=-1, dtype=jnp.int32).astype(jnp.float32))
  return low, high, jax.lax.map(count, jnp.arange(BINS)), jnp.sum(x), jnp.sum(jnp.square(x))


@functools.cache
def _program(mesh: jax.sharding.Mesh) -> Callable[[Params, Params], dict[str, Any]]:
  """Compiles (parameters before, parameters after) -> counts of the parameters and of their updates, replicated."""

  def counts(before: Params, after: Params) -> dict[str, Any]:
    updates = jax.tree.map(jnp.subtract, after, before)
    return {kind: jax.tree.map(_counted, tree) for kind, tree in (("params", after), ("updates", updates))}

  return jax.jit(counts, out_shardings=sharding.replicated(mesh))
