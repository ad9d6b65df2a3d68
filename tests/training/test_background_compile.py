"""A program that is compiled beside other things is the program that would have been compiled."""

import jax
import jax.numpy as jnp
import pytest

from t2t.training.background_compile import BackgroundCompile


def mesh():
  return jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def shape(*sizes):
  return jax.ShapeDtypeStruct(sizes, jnp.float32)


def test_it_gives_what_the_function_gives():
  """Its own program takes the shapes that were named; others, the function itself."""
  calls = []

  def double(x):
    calls.append(x.shape)
    return 2 * x

  ahead = BackgroundCompile(jax.jit(double), mesh(), shape(3))
  for length in (3, 3, 4):
    assert ahead(jnp.ones(length)).tolist() == [2.0] * length
  assert calls == [(3,), (4,)]  # traced once for each shape


def test_the_mesh_is_set_in_its_thread():
  """What is said of axes by name means those of the mesh."""
  spread = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, jax.P("data")))
  out = BackgroundCompile(spread, mesh(), shape(8))(jnp.ones(8))
  assert len(out.addressable_shards) == jax.device_count()


def test_an_error_is_raised_where_it_is_called():
  """That the function cannot be traced is known to whoever calls it, each time."""

  def fails(x):
    raise ValueError("no such thing")

  ahead = BackgroundCompile(jax.jit(fails), mesh(), shape(3))
  for _ in range(2):
    with pytest.raises(ValueError, match="no such thing"):
      ahead(jnp.ones(3))
