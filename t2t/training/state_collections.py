"""State collections: parts of the train state besides parameters and moments, and their updates in a step."""

from collections.abc import Iterator, Mapping
import functools
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar

import jax
import jax.numpy as jnp

from t2t.configuration.schema import Config
from t2t.param_tree import Params, flatten, unflatten
from t2t.runtime.lazy_table import LazyTable

Value = TypeVar("Value")
Flat = Mapping[str, jax.Array]  # path -> parameter


class Collection(Protocol[Value]):
  """A part of the train state: a tree of arrays. Arrays with the shape of a parameter have its path as last key.

  It is saved and restored with the state. `params` in its methods are the trained parameters.

  A collection may also have `gradients(value, params, grads, step) -> (value, grads)`, which changes gradients before
  the optimizer reads them. They are sums over all microbatches, with respect to `params`.

  Attributes:
    by_row: whether arrays are [rows of a batch, ...]: features that the loss reads and returns in each step, sharded as
      batches. Such a collection also has `evaluation_features(num_rows)`, the features before the first held-out batch.
  """

  by_row: ClassVar[bool]

  @classmethod
  def from_config(cls, config: Config) -> "Collection[Value] | None":
    """Returns the collection of a run; None if the run has none.

    Raises:
      UserError: its settings contradict each other.
    """

  def init(self, params: Flat) -> tuple[Value, Flat]:
    """Returns the value and the parameters at step 0, from initial parameters."""

  def forward(self, value: Value, params: Flat) -> Flat:
    """Returns the parameters that the forward pass of training reads; differentiable in `params`."""

  def update(self, value: Value, params: Flat, step: jax.Array) -> tuple[Value, Flat]:
    """Returns the value and the parameters after the optimizer's update.

    Args:
      value: before the update.
      params: after it.
      step: int32 [], number of updates before it.
    """

  def evaluated(self, value: Value, params: Flat) -> Flat:
    """Returns the parameters that are evaluated."""


# Name in the train state -> a `Collection`; a run has those with a result of `from_config`, in this order.
COLLECTIONS: LazyTable[type[Collection[object]]] = LazyTable(
  {
    "carried": "t2t.training.carried_state:CarriedState",
    "ranges": "t2t.training.activation_ranges:ActivationRanges",
    "transforms": "t2t.training.param_transforms:Transforms",
    "average": "t2t.training.weight_average:Average",
  }
)
_SELECTED_BY = {
  "carried": lambda config: config.model.memory_length or config.model.feed_forward_class.carried(config.model),
  "ranges": lambda config: config.model.fake_quantization,
  "transforms": lambda config: config.optimizer.param_groups,
  "average": lambda config: config.optimizer.average,
}
Collections = Mapping[str, Collection[object]]
NONE: Collections = MappingProxyType({})


def of_run(config: Config) -> Collections:
  """Returns the collections of a run, by name; most runs have none, and import none.

  Raises:
    UserError: see `Collection.from_config`.
  """
  wanted = (name for name in COLLECTIONS if _SELECTED_BY.get(name, bool)(config))
  built = {name: COLLECTIONS[name].from_config(config) for name in wanted}
  return {name: collection for name, collection in built.items() if collection is not None}


def features(collections: Collections, values: Mapping[str, object]) -> dict[str, jax.Array]:
  """Returns the features that a step reads besides those of its batch, [rows, ...]."""
  by_row: Iterator[Any] = (values[name] for name, collection in collections.items() if collection.by_row)
  return {name: x for value in by_row for name, x in value.items()}


def evaluation_features(collections: Collections, num_rows: int) -> dict[str, jax.Array]:
  """Returns the features that held-out batches of this many rows pass on, before the first; often none."""
  by_row: Iterator[Any] = (collection for collection in collections.values() if collection.by_row)
  return {name: x for collection in by_row for name, x in collection.evaluation_features(num_rows).items()}


def without_nonfinite_rows(
  collections: Collections, values: Mapping[str, object]
) -> tuple[dict[str, object], jax.Array | None]:
  """Returns the values with zeros in rows that have a NaN or Inf, and the number of these rows; None: no rows."""
  by_row = features(collections, values)
  if not by_row:
    return dict(values), None
  finite = [jnp.all(jnp.isfinite(x), axis=tuple(range(1, x.ndim))) for x in by_row.values()]
  kept = functools.reduce(jnp.logical_and, finite)
  emptied = {name: jnp.where(kept.reshape(-1, *[1] * (x.ndim - 1)), x, 0) for name, x in by_row.items()}
  return with_features(collections, values, emptied), jnp.sum(~kept)


def with_features(
  collections: Collections, values: Mapping[str, object], new_features: Mapping[str, jax.Array]
) -> dict[str, object]:
  """Returns the values with the features that the loss returned for the next step."""
  renewed = lambda value: {name: new_features[name].astype(x.dtype) for name, x in value.items()}
  return {name: renewed(value) if collections[name].by_row else value for name, value in values.items()}


def _flat(params: Params) -> Flat:
  return flatten(params)


def _nested(params: Flat) -> Params:
  return unflatten(params)


def init(collections: Collections, params: Params) -> tuple[dict[str, object], Params]:
  """Returns the values and the nested parameters at step 0; see `Collection.init`."""
  new_values = {}
  for name, collection in collections.items():
    new_values[name], flat = collection.init(_flat(params))
    params = _nested(flat)
  return new_values, params


def forward(collections: Collections, values: Mapping[str, object], params: Params) -> Params:
  """Returns the nested parameters that the forward pass of training reads."""
  for name, collection in collections.items():
    params = _nested(collection.forward(values[name], _flat(params)))
  return params


def gradients(
  collections: Collections, values: Mapping[str, object], params: Params, grads: Params, step: jax.Array
) -> tuple[dict[str, object], Params]:
  """Returns the values and the nested gradients that the optimizer reads; see `Collection`."""
  new_values = dict(values)
  items: Any = collections.items()
  for name, collection in items:
    if hasattr(collection, "gradients"):
      new_values[name], flat = collection.gradients(values[name], _flat(params), _flat(grads), step)
      grads = _nested(flat)
  return new_values, grads


def update(
  collections: Collections, values: Mapping[str, object], params: Params, step: jax.Array
) -> tuple[dict[str, object], Params]:
  """Returns the values and the nested parameters after an update; see `Collection.update`."""
  new_values = {}
  for name, collection in collections.items():
    new_values[name], flat = collection.update(values[name], _flat(params), step)
    params = _nested(flat)
  return new_values, params


def evaluated(collections: Collections, values: Mapping[str, object], params: Params) -> Params:
  """Returns the nested parameters for evaluation, such as an average, after transforms."""
  items: Any = collections.items()
  for name, collection in reversed(items):
    params = _nested(collection.evaluated(values[name], _flat(params)))
  return params
