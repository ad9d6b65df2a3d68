"""The NaN tracer finds the origin of a NaN or infinity in a layer, forward or backward, also in bfloat16."""

import dataclasses
import functools

import hypothesis
from hypothesis import strategies
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_train_state
import toy

from t2t.training import nan_tracer

ROWS = 8
OUT = "decoder/layers/mlp/down"


@functools.cache
def made(dtype="float32", remat="none"):
  """Returns a state of a T5, and the function to trace."""
  config = dataclasses.replace(toy.KINDS["t5_1_1"], dtype=dtype, remat=remat)
  mesh, _, fresh, step = test_train_state.made(tuple(test_train_state.ONE_DEVICE.items()), config=config)
  return mesh, fresh, step


def find(change=lambda params: params, **how):
  """Returns the origin in a step with changed parameters."""
  mesh, fresh, step = made(**how)
  state = fresh()
  with jax.set_mesh(mesh):
    batch = jax.device_put(test_train_state.uneven_batch(), jax.devices()[0])
    return nan_tracer.find(step, dataclasses.replace(state, params=change(state.params)), batch, toy.key(), rows=ROWS)


def changed(params, path, change):
  return jax.tree_util.tree_map_with_path(
    lambda found, x: change(x) if jax.tree_util.keystr(found, simple=True, separator="/") == path else x, params
  )


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", [{}, {"dtype": "bfloat16", "remat": "full"}])
@pytest.mark.parametrize("layer", [0, 2])
def test_a_weight_that_is_nan_is_named_with_its_layer(layer, how):
  found = find(lambda params: changed(params, OUT, lambda x: x.at[layer, 0, 0].set(jnp.nan)), **how)
  assert found.what == "NaN" and found.argument == OUT
  assert found.loops == (("decoder/layers", layer),)


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", [{}, {"dtype": "bfloat16", "remat": "full"}])
def test_an_overflow_is_found_in_its_layer(how):
  """Products of finite weights overflow."""
  found = find(lambda params: changed(params, OUT, lambda x: x.at[1].set(3e38)), **how)
  assert (found.argument, found.backward, found.loops) == ("", False, (("decoder/layers", 1),))
  assert found.line.startswith("models/") and found.operation == "dot_general"


def test_rows_are_those_whose_result_is_not_finite():
  """The operation has one result per row."""
  found = nan_tracer.find(lambda x: jnp.exp(x).sum(), jnp.array([[1.0, 2.0], [1e3, 0.0], [0.0, 1e3]]), rows=3)
  assert found.rows == (1, 2) and found.operation == "exp"


@pytest.mark.exhaustive
def test_a_step_whose_numbers_are_finite_has_no_origin():
  assert find() is None


def test_what_arises_backward_is_told_apart():
  """Zero times two large numbers is zero, but its derivative is infinite."""
  found = nan_tracer.find(jax.grad(lambda x: (x * 1e30 * 1e30).sum()), jnp.zeros(3))
  assert found.backward and found.what == "infinity"
  assert str(found).startswith("infinity, backward, by ")


def test_infinities_that_a_mask_is_made_of_are_none():
  """Masks contain them on purpose."""
  masked = lambda x, real: jax.nn.softmax(jnp.where(real, x, -jnp.inf))
  real = jnp.array([True, False, True])
  assert nan_tracer.find(masked, jnp.ones(3), real) is None
  found = nan_tracer.find(masked, jnp.array([1.0, 1.0, 1e30]) * 1e30, real)
  assert found.what == "infinity" and found.argument


@hypothesis.given(strategies.sets(strategies.integers(0, 5), min_size=1), strategies.booleans())
@hypothesis.settings(deadline=None, max_examples=10)
def test_the_element_of_a_scan_is_the_first_that_overflows(elements, reverse):
  """In either direction."""
  scales = np.ones(6, np.float32)
  scales[list(elements)] = 3e38

  def function(scales, x):
    return jax.lax.scan(lambda x, scale: (10 * x * scale / jnp.maximum(scale, 1), None), x, scales, reverse=reverse)[0]

  found = nan_tracer.find(jax.jit(function), scales, jnp.ones(()))
  assert found.loops == (("", max(elements) if reverse else min(elements)),) and found.operation == "mul"
