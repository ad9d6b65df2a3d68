import dataclasses

import jax
import jax.numpy as jnp
import pytest
import test_manager

from t2t import UserError
from t2t.training.callbacks import checkpointing


def spoilt(state, *where, value=jnp.nan):
  """Returns the state with one value replaced in the last shard of each of these arrays."""
  spoil = lambda x: jax.device_put(x.at[(-1,) * x.ndim].set(value), x.sharding)
  put = lambda path, x: spoil(x) if jax.tree_util.keystr(path) in where else x
  return jax.tree_util.tree_map_with_path(put, state)


@pytest.mark.parametrize("value", [jnp.nan, -jnp.inf])
def test_the_first_parameter_that_is_not_finite_is_named(value):
  """A single value on one of eight devices; moments are found, too, and are named after parameters."""
  state = test_manager.make_state(mesh_shape={"fsdp": 4, "tensor": 2})
  checkpointing.check_finite(state, step=3)
  names = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)}
  moment = next(name for name in sorted(names) if ".mu" in name and "kernel" in name)
  parameter = next(name for name in names if name.startswith(".params") and "encoder" in name and "kernel" in name)
  with pytest.raises(
    UserError, match="step 3: opt_state/.*kernel is not finite after this update. The step was not saved"
  ):
    checkpointing.check_finite(spoilt(state, moment, value=value), step=3)
  with pytest.raises(UserError, match="step 3: params/encoder/kernel and 1 more arrays are not finite"):
    checkpointing.check_finite(spoilt(state, moment, parameter, value=value), step=3)


def test_moments_in_the_hosts_memory_are_left_there():
  """The check does not move them to a device."""
  state = test_manager.make_state()
  on_host = lambda x: jax.device_put(x, x.sharding.with_memory_kind("pinned_host"))
  checkpointing.check_finite(dataclasses.replace(state, opt_state=jax.tree.map(on_host, state.opt_state)), step=1)
