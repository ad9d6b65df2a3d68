"""Train state: shapes with shardings, and initialization."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import optax

from t2t import sharding
from t2t.param_tree import Params, join_frozen, path_name, split_frozen
from t2t.training import state_collections


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """Everything that training changes: the content of a checkpoint, except the data position.

  Attributes:
    step: int32 [], number of updates.
    params, frozen_params: nested dicts of float32 arrays, frozen ones also bfloat16; together they are the model's.
    opt_state: optax's.
    collections: name -> value of each `state_collections.Collection` of the run; most runs have none.
  """

  step: jax.Array
  params: Params
  frozen_params: Params
  opt_state: optax.OptState
  collections: Mapping[str, object] = dataclasses.field(default_factory=dict)

  def model(self, graphdef: nnx.GraphDef) -> nnx.Module:
    """Returns the model with these parameters."""
    return nnx.merge(graphdef, join_frozen(self.params, self.frozen_params))


HOST, DEVICE = "pinned_host", "device"  # memory kinds


def _shardings_like(tree, params: Params, param_shardings: Params, mesh: jax.sharding.Mesh, *, offload: bool):
  """Shards arrays with a parameter's path as last key as that parameter, and replicates other arrays.

  With `offload` the former are in host memory.
  """
  by_path = {
    path_name(path): (leaf.shape, placed)
    for (path, leaf), placed in zip(
      jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(param_shardings), strict=True
    )
  }

  def sharded_leaf(path, leaf):
    # Optimizer and collections see flat dicts, so the last key is the parameter's whole path.
    shape, placed = by_path.get(str(getattr(path[-1], "key", "")), (None, None)) if path else (None, None)
    if placed is None or shape != leaf.shape:
      return sharding.replicated(mesh)
    return placed.with_memory_kind(HOST) if offload else placed

  return jax.tree_util.tree_map_with_path(sharded_leaf, tree)


def abstract_train_state(
  model_fn: Callable[[jax.Array], nnx.Module],
  tx: optax.GradientTransformation,
  mesh: jax.sharding.Mesh,
  *,
  freeze: tuple[str, ...] = (),
  halved: tuple[str, ...] = (),
  offload_optimizer: bool = False,
  collections: state_collections.Collections = state_collections.NONE,
) -> tuple[nnx.GraphDef, TrainState, Callable[[jax.Array], TrainState]]:
  """Returns the model's structure, the state's shapes with shardings, and the function key -> state; uses no device.

  Args: see `init_train_state`, `split_frozen` for `halved`, and `state_collections.of_run`.
  """

  def make(key: jax.Array) -> TrainState:
    params = nnx.to_pure_dict(nnx.split(model_fn(key), graph=False)[1])
    params, frozen = split_frozen(params, freeze, halved=halved)
    collection_values, params = state_collections.init(collections, params)
    return TrainState(jnp.zeros((), jnp.int32), params, frozen, tx.init(params), collection_values)

  key = jax.eval_shape(lambda: jax.random.key(0))
  graphdef, model_state = nnx.split(jax.eval_shape(model_fn, key), graph=False)
  shapes = jax.eval_shape(make, key)
  params, frozen = split_frozen(sharding.param_shardings(model_state, mesh), freeze)
  replicated: Any = sharding.replicated(mesh)
  shardings = TrainState(
    replicated,
    params,
    frozen,
    _shardings_like(shapes.opt_state, shapes.params, params, mesh, offload=offload_optimizer),
    {
      name: jax.tree.map(lambda _: sharding.batch_sharding(mesh), value)
      if collections[name].by_row
      else _shardings_like(value, shapes.params, params, mesh, offload=False)
      for name, value in shapes.collections.items()
    },
  )
  placed = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
  return graphdef, jax.tree.map(placed, shapes, shardings), make


def init_train_state(
  model_fn: Callable[[jax.Array], nnx.Module],
  tx: optax.GradientTransformation,
  key: jax.Array,
  mesh: jax.sharding.Mesh,
  *,
  freeze: tuple[str, ...] = (),
  offload_optimizer: bool = False,
) -> tuple[nnx.GraphDef, TrainState, TrainState]:
  """Returns a fresh state, with each array created in its shards, so that no device holds a whole sharded array.

  Args:
    model_fn: key -> model.
    tx: optimizer over nested dicts of parameters.
    key: for initial values, which do not depend on the mesh.
    mesh: of the state.
    freeze: patterns; parameters with a matching path are not trained.
    offload_optimizer: keeps moments in host memory between updates.

  Returns:
    The model's structure, the state, and a tree like it of shardings.

  Raises:
    UserError: the mesh does not divide a parameter, or a pattern of `freeze` matches no parameter.
  """
  graphdef, abstract, make = abstract_train_state(
    model_fn, tx, mesh, freeze=freeze, offload_optimizer=offload_optimizer
  )
  shardings = jax.tree.map(lambda x: x.sharding, abstract)
  return graphdef, jax.jit(make, out_shardings=shardings)(key), shardings
