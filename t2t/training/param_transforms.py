"""Parameter transforms, set by `config.optimizer.param_groups`: the forward pass reads a function of the parameter.

This file has masks; a gate or fake quantization would be another row of `param_groups.TRANSFORMS`.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp

from t2t.configuration.schema import Config, OptimizerConfig
from t2t.param_tree import stack_of
from t2t.training import param_groups
from t2t.training.state_collections import Flat

Kept = Mapping[str, Mapping[str, jax.Array]]  # transform -> path -> array in the train state


class Transform(Protocol):
  """A transform of one parameter; a row of `param_groups.TRANSFORMS`.

  Attributes:
    wanted: description of valid values, for errors.
  """

  wanted: ClassVar[str]

  @staticmethod
  def read(text: str) -> float:
    """Parses the value of the setting, "0.5" of "mask=0.5".

    Raises:
      ValueError: it is out of range.
    """

  @staticmethod
  def init(setting: float, path: str, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the array for the train state, and the parameter at step 0.

    The array has the shape of `x`, or is replicated.
    """

  @staticmethod
  def forward(setting: float, value: jax.Array, x: jax.Array) -> jax.Array:
    """Returns the array that the forward pass reads, in training and in evaluation; differentiable in `x`."""

  @staticmethod
  def update(setting: float, value: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the value and the parameter after an update of the optimizer."""


class Mask:
  """Sets a fraction of each parameter, of the smallest magnitudes at step 0, to zero, and keeps it zero.

  Stacked layers are masked separately. Source: one-shot magnitude pruning (Han et al. 2015).
  """

  wanted = "the fraction of each parameter that is zero, at least 0 and below 1"

  @staticmethod
  def read(text: str) -> float:
    value = float(text)
    if not 0.0 <= value < 1.0:
      raise ValueError
    return value

  @staticmethod
  def init(setting: float, path: str, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    first = 1 if stack_of(path) else 0
    size = x[0].size if first else x.size
    magnitude = jnp.abs(x).reshape(*x.shape[:first], size)
    # By rank, so that ties do not change the number of zeros.
    rank = jnp.argsort(jnp.argsort(magnitude, axis=-1), axis=-1)
    # At least one value stays, however small a parameter is.
    mask = (rank >= min(round(setting * size), size - 1)).astype(x.dtype).reshape(x.shape)
    return mask, x * mask

  @staticmethod
  def forward(setting: float, value: jax.Array, x: jax.Array) -> jax.Array:
    return x * value

  @staticmethod
  def update(setting: float, value: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return value, x * value  # applied to the parameter, so that checkpoints contain the zeros


@dataclasses.dataclass(frozen=True)
class Transforms:
  """State collection of the transforms that `config.optimizer.param_groups` sets: name -> path -> value."""

  config: OptimizerConfig
  names: tuple[str, ...]

  by_row: ClassVar[bool] = False

  @classmethod
  def from_config(cls, config: Config) -> "Transforms | None":
    names = tuple(name for name in param_groups.TRANSFORMS if param_groups.sets(config.optimizer, name))
    return cls(config.optimizer, names) if names else None

  def _each(self, params: Mapping[str, Any]):
    """Yields name, path, setting and transform of each transformed parameter."""
    for name in self.names:
      for path in params:
        setting = param_groups.setting(self.config, path, name)
        if setting is not None:
          yield name, path, setting, param_groups.TRANSFORMS[name]

  def init(self, params: Flat) -> tuple[Kept, Flat]:
    params, value = dict(params), {name: {} for name in self.names}
    for name, path, setting, transform in self._each(params):
      value[name][path], params[path] = transform.init(setting, path, params[path])
    return value, params

  def forward(self, value: Kept, params: Flat) -> Flat:
    params = dict(params)
    for name, path, setting, transform in self._each(params):
      params[path] = transform.forward(setting, value[name][path], params[path])
    return params

  def update(self, value: Kept, params: Flat, step: jax.Array) -> tuple[Kept, Flat]:
    params, value = dict(params), {name: dict(by_path) for name, by_path in value.items()}
    for name, path, setting, transform in self._each(params):
      value[name][path], params[path] = transform.update(setting, value[name][path], params[path])
    return value, params

  def evaluated(self, value: Kept, params: Flat) -> Flat:
    return self.forward(value, params)
