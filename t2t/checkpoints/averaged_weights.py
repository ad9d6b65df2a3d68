"""Averaged parameters of a checkpoint: average or last step, schedule-free averages, and zeros of pruned averages."""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.checkpoints import restore
from t2t.training import param_groups

T = TypeVar("T", jax.Array, np.ndarray)


def check(path: epath.Path, run: Mapping[str, object], weights: str) -> None:
  """Checks that the checkpoint in folder `path`, with config `run`, has the weights that are asked for.

  Raises:
    UserError: an unknown value, or the checkpoint has no average.
  """
  if weights not in restore.WEIGHTS:
    raise UserError(f"--weights {weights}: unknown value. Give one of {', '.join(restore.WEIGHTS)}, or int8.")
  tree = restore.saved_tree(path)
  has_average = restore.is_flat(restore.trained_keys(tree, run, "average")) or restore.has_iterate(tree)
  if weights == "average" and not has_average:
    raise UserError(
      f"--weights average: {path} has no average of the parameters. Leave it out, or train with "
      "--config.optimizer.average=ema."
    )


def point(params: T, iterate: T, run: Mapping[str, object]) -> T:
  """Returns the average x of a schedule-free run from y and z; see training/schedule_free.py."""
  b1: float = dict[str, Any](run)["optimizer"]["b1"]
  average: Any = (params - (1.0 - b1) * iterate) / b1
  return average


def points(
  params: Mapping[str, jax.Array], iterates: Mapping[str, jax.Array], run: Mapping[str, object]
) -> dict[str, jax.Array]:
  """Returns `point` of each name of `iterates`."""
  return {name: point(params[name], z, run) for name, z in iterates.items()}


def mask_keys(tree: Mapping[str, object]) -> dict[tuple[str, ...], Collection[str]]:
  """Returns the masks of a pruned run: keys of a flat dict in its saved state -> the paths of masked parameters.

  A saved average contains no zeros, because a weight that movement pruning masks may return with its average. Readers
  apply the masks, as evaluation does.
  """
  masks, saved = {}, dict[str, Any](tree)
  for name, value in ((saved.get("collections") or {}).get("transforms") or {}).items():
    key = param_groups.TRANSFORMS[name].mask_key if name in param_groups.TRANSFORMS else None
    if key is not None:
      arrays = value
      for part in key:
        arrays = arrays.get(part) or {}
      masks["collections", "transforms", name, *key] = frozenset(arrays)
  return masks


def masked(x: jax.Array, mask: jax.Array) -> jax.Array:
  """Returns the parameter with zeros where the mask, of any dtype, is zero."""
  return jnp.where(mask != 0, x, 0)


def masked_on_host(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
  """Returns the same as `masked`, in the dtype of the parameter."""
  return np.where(mask != 0, x, x.dtype.type(0))
