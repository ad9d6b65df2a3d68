"""Histograms of parameters and updates, which do not change the step."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_manager

from t2t.configuration.loading import load_config, records
from t2t.training import callbacks
from t2t.training.callbacks import histograms


def looked_at(every, steps, *, change=lambda x: x + 0.5, mesh_shape=None):
  """Returns the histograms of steps with these updates, and the state after them."""
  state = test_manager.make_state(mesh_shape=mesh_shape) if mesh_shape else test_manager.make_state()
  found = {}
  logger = types.SimpleNamespace(histograms=found.__setitem__)
  config = types.SimpleNamespace(logging=types.SimpleNamespace(histograms=every))
  run = types.SimpleNamespace(config=config, mesh=state.step.sharding.mesh, logger=logger, state=state, step=0)
  drawn = histograms.Histograms()
  for number in range(1, steps + 1):
    drawn.on_batch(run, "batch")
    changed = jax.tree.map(change, run.state.params)
    jax.tree.map(lambda x: x.delete(), run.state.params)  # as a step that donates its input
    run.state, run.step = dataclasses.replace(run.state, params=changed), number
    drawn.on_step(run)
  return found, run.state


@pytest.mark.slow
def test_values_and_updates_are_counted():
  """At the interval, equal to NumPy's counts, also on a mesh."""
  random = iter(range(100))
  noisy = lambda x: x + jax.random.normal(jax.random.key(next(random)), x.shape)
  found, state = looked_at(2, 5, change=noisy, mesh_shape={"fsdp": 4, "tensor": 2})
  assert list(found) == [2, 4]
  found, state = looked_at(4, 4, change=noisy, mesh_shape={"fsdp": 4, "tensor": 2})
  leaves = jax.tree_util.tree_leaves_with_path(state.params)
  assert len(found[4]) == 2 * len(leaves)
  for path, x in leaves:
    name = "/".join(key.key for key in path)
    each, x = found[4][f"params/{name}"], np.asarray(x, np.float64)
    np.testing.assert_allclose((each.limits[0], each.limits[-1]), (x.min(), x.max()), rtol=1e-6)
    np.testing.assert_allclose((each.sum, each.sum_squares), (x.sum(), np.square(x).sum()), rtol=1e-3, atol=1e-3)
    expected, _ = np.histogram(x, bins=histograms.BINS)
    # at the border of a bin
    assert sum(each.counts) == x.size and np.abs(np.asarray(each.counts) - expected).sum() <= 2
    assert sum(found[4][f"updates/{name}"].counts) == x.size


@pytest.mark.slow
def test_an_array_of_one_value_has_a_histogram():
  """An array with NaN or Inf has none."""
  found, state = looked_at(1, 1)
  assert all(sum(each.counts) > 0 for each in found[1].values())
  for name, each in found[1].items():
    if name.startswith("updates/"):
      np.testing.assert_allclose((each.limits[0], each.limits[-1]), 0.5, rtol=1e-5)
      assert len(set(each.limits)) > 1
  assert looked_at(1, 1, change=lambda x: x * jnp.nan)[0] == {1: {}}


def test_without_them_nothing_is_looked_at():
  """A config without histograms has no such callback."""
  config = records(load_config("tiny"))
  kinds = lambda config: [type(each) for each in callbacks.of_run(config)]
  assert histograms.Histograms not in kinds(config)
  assert histograms.Histograms in kinds(config.with_(logging={"histograms": 2}))
