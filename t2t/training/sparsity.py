"""Zeros of pruned parameters: their number in a run, and in a checkpoint that a run starts from."""

from collections.abc import Mapping, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.configuration.schema import Config, OptimizerConfig
from t2t.param_tree import Params, flatten, is_prunable
from t2t.runtime import amounts
from t2t.training import param_groups


def pruned(params: Params, config: OptimizerConfig) -> dict[str, jax.Array]:
  """Returns path -> array of the parameters that rules of the config mask."""
  flat = flatten(params)
  rules = lambda path: (param_groups.setting(config, path, name) for name in param_groups.TRANSFORMS)
  return {
    path: x for path, x in flat.items() if is_prunable(path, x.shape) and any(rule is not None for rule in rules(path))
  }


@functools.cache
def _count() -> Any:
  # A mean for each array, because int32 and float32 cannot count the zeros of large models.
  return jax.jit(lambda arrays: [jnp.mean((x == 0).astype(jnp.float32)) for x in arrays])


def share(arrays: Mapping[str, jax.Array]) -> tuple[list[jax.Array], list[int]]:
  """Returns the fraction of zeros of each array, on the device, and its size."""
  return _count()(list(arrays.values())), [x.size for x in arrays.values()]


def joined(fractions: Sequence[jax.Array | float], sizes: list[int]) -> float:
  """Returns the fraction of zeros among all weights; reads the devices."""
  return sum(float(x) * size for x, size in zip(fractions, sizes, strict=True)) / max(sum(sizes), 1)


def text(sparsity: float, number: int) -> str:
  """Returns "80.0 % of 1.20M weights are zero"."""
  return f"{100 * sparsity:.1f} % of {amounts.compact_count(number)} weights are zero"


def lost_zeros(params: Params, rules: Sequence[str], config: Config, name: str) -> str:
  """Returns a line if a run starts from a pruned checkpoint and keeps no mask; else "".

  Args:
    params: of the checkpoint.
    rules: config.optimizer.param_groups of the run that trained it.
    config: of the run.
    name: of the checkpoint, for the message.
  """
  if not rules or param_groups.sets(config.optimizer, *param_groups.TRANSFORMS):
    return ""
  try:
    before = OptimizerConfig(param_groups=tuple(rules))
    arrays = pruned(params, before)
  except (UserError, TypeError, ValueError):  # rules of another version
    return ""
  fractions, sizes = share(arrays)
  sparsity = joined(jax.device_get(fractions), sizes)
  if not sparsity:
    return ""
  return (
    f"{name}: {text(sparsity, sum(sizes))}, because it was pruned, and this run will not keep the zeros. To keep them, "
    "give --config.optimizer.param_groups='/layers/: mask=zeros'"
  )
