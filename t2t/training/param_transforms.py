"""Parameter transforms, set by `config.optimizer.param_groups`: the forward pass reads a function of the parameter.

This file has masks of one shot; `pruning` has masks with a schedule. A gate would be another row of
`param_groups.TRANSFORMS`.
"""

from collections.abc import Collection, Mapping
import dataclasses
import re
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.configuration.schema import Config, OptimizerConfig
from t2t.param_tree import is_prunable, stack_of
from t2t.training import param_groups
from t2t.training.state_collections import Flat

_SHOWN = 5  # paths in an error
# Transform -> path -> array in the train state; or, for several arrays, transform -> field -> path -> array.
Kept = Mapping[str, Mapping[str, object]]


class Transform(Protocol):
  """A transform of one matrix; a row of `param_groups.TRANSFORMS`. Rules leave other parameters as they are.

  `setting` in its methods is the result of `configured`; `value` is an array or a dict of arrays.

  Attributes:
    wanted: description of valid values, for errors.
    mask_key: keys of the mask in the value of a parameter, () if the value is the mask; None if there is no mask.
  """

  wanted: ClassVar[str]
  mask_key: ClassVar[tuple[str, ...] | None]

  @staticmethod
  def configured(setting: float, config: Config) -> object:
    """Returns the setting together with other keys of the run.

    Raises:
      UserError: the keys do not fit each other.
    """

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
  def gradient(
    setting: object, path: str, value: object, x: jax.Array, grad: jax.Array, step: jax.Array
  ) -> tuple[object, jax.Array]:
    """Returns the value and the gradient that the optimizer reads, from the gradient with respect to `x`."""

  @staticmethod
  def update(setting: float, value: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the value and the parameter after an update of the optimizer."""


def by_layer(path: str, x: jax.Array) -> jax.Array:
  """Reshapes a parameter to [layers, size of a layer]; outside of stacks there is one layer."""
  return x.reshape(x.shape[0] if stack_of(path) else 1, -1)


def largest(values: jax.Array, num_zeros: jax.Array | int) -> jax.Array:
  """Returns a mask of [layers, size] that is False at the `num_zeros` smallest values of each row.

  Ranks decide, so that ties do not change the number.
  """
  rank = jnp.argsort(jnp.argsort(values, axis=-1), axis=-1)
  # At least one value stays, however small a parameter is.
  return rank >= jnp.minimum(num_zeros, values.shape[-1] - 1)


class Mask:
  """Sets a fraction of each matrix, of the smallest magnitudes at step 0, to zero, and keeps it zero.

  Stacked layers are masked separately. Source: one-shot magnitude pruning (Han et al. 2015). With "zeros" the values
  that are zero at step 0 stay zero, such as those of a pruned checkpoint.
  """

  wanted = "the fraction of each matrix that is zero, at least 0 and below 1, or zeros"
  mask_key = ()

  @staticmethod
  def read(text: str) -> float:
    value = -1.0 if text == "zeros" else float(text)
    if text != "zeros" and not 0.0 <= value < 1.0:
      raise ValueError
    return value

  @staticmethod
  def configured(setting: float, config: Config) -> float:
    del config
    return setting

  @staticmethod
  def init(setting: float, path: str, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    if setting < 0.0:
      return (x != 0).astype(x.dtype), x
    magnitude = by_layer(path, jnp.abs(x))
    mask = largest(magnitude, round(setting * magnitude.shape[-1])).astype(x.dtype).reshape(x.shape)
    return mask, x * mask

  @staticmethod
  def forward(setting: float, value: jax.Array, x: jax.Array) -> jax.Array:
    return x * value

  @staticmethod
  def gradient(
    setting: float, path: str, value: jax.Array, x: jax.Array, grad: jax.Array, step: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    return value, grad

  @staticmethod
  def update(setting: float, value: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return value, x * value  # applied to the parameter, so that checkpoints contain the zeros


def check(config: OptimizerConfig, shapes: Mapping[str, tuple[int, ...]], trained: Collection[str]) -> None:
  """Checks that each rule with a transform has a matrix, and each parameter one transform.

  Raises:
    UserError: with the rule and a fix.
  """
  for rule in param_groups.parse(tuple(config.param_groups)):
    mine = [path for path in shapes if re.search(rule.pattern, path)]
    for name in set(param_groups.TRANSFORMS) & set(rule.settings):
      if not any(is_prunable(path, shapes[path]) for path in mine if path in trained):
        more = f" and {len(mine) - _SHOWN} more" if len(mine) > _SHOWN else ""
        raise UserError(
          f"{rule.where}: {name!r} sets weights of matrices to zero, but the pattern matches no trained matrix of a "
          f"layer or head, only {', '.join(mine[:_SHOWN])}{more}. Give a pattern such as '/layers/.*(attention|mlp)/'."
        )
  for path in trained:
    names = [name for name in param_groups.TRANSFORMS if param_groups.setting(config, path, name) is not None]
    if len(names) > 1 and is_prunable(path, shapes[path]):
      raise UserError(
        f"config.optimizer.param_groups: {path} has {' and '.join(map(repr, names))}. Give it one of them."
      )


@dataclasses.dataclass(frozen=True)
class Transforms:
  """State collection of the transforms that `config.optimizer.param_groups` sets; see `Kept`."""

  config: OptimizerConfig
  names: tuple[str, ...]
  run: Config

  by_row: ClassVar[bool] = False

  @classmethod
  def from_config(cls, config: Config) -> "Transforms | None":
    names = tuple(name for name in param_groups.TRANSFORMS if param_groups.sets(config.optimizer, name))
    for rule in param_groups.parse(tuple(config.optimizer.param_groups)):
      for name in set(names) & set(rule.settings):
        setting: Any = rule.settings[name]
        param_groups.TRANSFORMS[name].configured(setting, config)  # checks
    return cls(config.optimizer, names, config) if names else None

  def _each(self, params: Mapping[str, Any]):
    """Yields name, path, setting and transform of each transformed parameter."""
    for name in self.names:
      transform = param_groups.TRANSFORMS[name]
      for path, x in params.items():
        setting = param_groups.setting(self.config, path, name)
        if setting is not None and is_prunable(path, x.shape):
          yield name, path, transform.configured(setting, self.run), transform

  def init(self, params: Flat) -> tuple[Kept, Flat]:
    params, values = dict(params), {name: {} for name in self.names}
    for name, path, setting, transform in self._each(params):
      value, params[path] = transform.init(setting, path, params[path])
      _put(values[name], path, value)
    return values, params

  def forward(self, value: Kept, params: Flat) -> Flat:
    params = dict(params)
    for name, path, setting, transform in self._each(params):
      params[path] = transform.forward(setting, _of(value[name], path), params[path])
    return params

  def gradients(self, value: Kept, params: Flat, grads: Flat, step: jax.Array) -> tuple[Kept, Flat]:
    grads, values = dict(grads), {name: {} for name in self.names}
    for name, path, setting, transform in self._each(params):
      new, grads[path] = transform.gradient(setting, path, _of(value[name], path), params[path], grads[path], step)
      _put(values[name], path, new)
    return values, grads

  def update(self, value: Kept, params: Flat, step: jax.Array) -> tuple[Kept, Flat]:
    params, values = dict(params), {name: {} for name in self.names}
    for name, path, setting, transform in self._each(params):
      new, params[path] = transform.update(setting, _of(value[name], path), params[path])
      _put(values[name], path, new)
    return values, params

  def evaluated(self, value: Kept, params: Flat) -> Flat:
    return self.forward(value, params)


def _put(by_path: dict[str, Any], path: str, value: Any) -> None:
  """Adds the value of a parameter; arrays of a dict get the path as last key, by which they are sharded."""
  if not isinstance(value, dict):
    by_path[path] = value
    return
  for field, x in value.items():
    by_path.setdefault(field, {})[path] = x


def _of(by_path: Mapping[str, Any], path: str) -> Any:
  """Returns the value of a parameter; inverse of `_put`."""
  if path in by_path:
    return by_path[path]
  return {field: arrays[path] for field, arrays in by_path.items()}
