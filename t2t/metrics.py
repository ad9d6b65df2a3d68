"""Training metrics as weighted sums."""

from collections.abc import Mapping
import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WeightedSum:
  """A sum and its weight; the division comes once, after all parts have been added."""

  total: jax.Array
  weight: jax.Array

  def __add__(self, other: "WeightedSum") -> "WeightedSum":
    return WeightedSum(self.total + other.total, self.weight + other.weight)

  def value(self) -> jax.Array:
    """Returns total / weight, or 0 if the weight is 0."""
    return jnp.where(self.weight > 0, self.total / jnp.maximum(self.weight, 1e-8), 0.0)


Metrics = dict[str, WeightedSum]
Outputs = Mapping[str, WeightedSum | jax.Array]  # of a loss: metrics, and features carried/SIDE/NAME of the next step


def merge(first: Metrics, second: Metrics) -> Metrics:
  """Adds the metrics of two batches by name."""
  return {name: first[name] + second[name] for name in first}
