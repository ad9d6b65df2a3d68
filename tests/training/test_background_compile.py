"""Background compilation gives the same results as a direct call."""

import jax
import jax.numpy as jnp
import pytest

from t2t.training.background_compile import BackgroundCompile


def mesh():
  return jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def shape(*sizes):
  return jax.ShapeDtypeStruct(sizes, jnp.float32)


def test_it_gives_what_the_function_gives():
  """The compiled program serves the named shapes; other shapes use the function itself."""
  calls = []

  def double(x):
    calls.append(x.shape)
    return 2 * x

  ahead = BackgroundCompile(jax.jit(double), mesh(), shape(3))
  for length in (3, 3, 4):
    assert ahead(jnp.ones(length)).tolist() == [2.0] * length
  assert calls == [(3,), (4,)]  # traced once for each shape


def test_the_mesh_is_set_in_its_thread():
  """Axis names resolve to the axes of the mesh."""
  spread = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, jax.P("data")))
  out = BackgroundCompile(spread, mesh(), shape(8))(jnp.ones(8))
  assert len(out.addressable_shards) == jax.device_count()


def test_an_error_is_raised_where_it_is_called():
  """An error of tracing is raised by each call."""

  def fails(x):
    raise ValueError("no such thing")

  ahead = BackgroundCompile(jax.jit(fails), mesh(), shape(3))
  for _ in range(2):
    with pytest.raises(ValueError, match="no such thing"):
      ahead(jnp.ones(3))
