"""What training measures: sums, with the weights that divide them."""

from collections.abc import Mapping
import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WeightedSum:
  """A sum and the weight that it is divided by, once, after all parts have been added."""

  total: jax.Array
  weight: jax.Array

  def __add__(self, other: "WeightedSum") -> "WeightedSum":
    return WeightedSum(self.total + other.total, self.weight + other.weight)

  def value(self) -> jax.Array:
    """total / weight; 0 where nothing counted."""
    return jnp.where(self.weight > 0, self.total / jnp.maximum(self.weight, 1e-8), 0.0)


Metrics = dict[str, WeightedSum]
Outputs = Mapping[str, WeightedSum | jax.Array]  # of a loss: metrics, and features carried/SIDE/NAME of the next step


def merge(first: Metrics, second: Metrics) -> Metrics:
  """The metrics of two batches as one."""
  return {name: first[name] + second[name] for name in first}
