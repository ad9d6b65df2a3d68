"""Places of a model: each parameter, and of a stack each layer by itself; which of them a number comes from."""

from collections.abc import Mapping, Sequence
import math

import jax
import jax.numpy as jnp
import numpy as np

from t2t.param_tree import Params, path_name, stack_of

# Parts in the order in which the model runs them; others stand behind these, by name.
_ORDER = (
  *("generator", "discriminator", "embed", "encoder", "decoder", "position_bias", "layers", "layer"),
  *("self_attention_norm", "self_attention", "cross_attention_norm", "cross_attention", "mlp_norm", "mlp"),
  *("branch_norms", "norm", "head", "heads"),
)


def squares(tree: Params) -> jax.Array:
  """The sum of the squares of each parameter, and of each layer of a stack; float32 [places].

  The norm is the root of their sum, so that to know each costs nothing that the norm does not.
  """
  return jnp.concatenate(
    [
      jnp.sum(jnp.square(jnp.abs(x)), axis=tuple(range(1, x.ndim)) if stack_of(path) else None).reshape(-1)
      for path, x in _leaves(tree)
    ]
  )


def in_order(tree: Params, numbers: np.ndarray) -> list[tuple[str, int | None, float]]:
  """(path, layer or None, number) of what `squares` gives, in the order in which the model runs them.

  In:  {"decoder": {"layers": {"mlp": {"up": [2, 8, 4]}}}, "embed": {"table": [9, 8]}}, [0.5, 0.25, nan]
  Out: [("embed/table", None, nan), ("decoder/layers/mlp/up", 0, 0.5), ("decoder/layers/mlp/up", 1, 0.25)]

  Args:
    tree: of arrays, or of their shapes.
    numbers: float [places].
  """
  named = []
  for path, x in _leaves(tree):
    named += [(path, layer) for layer in range(x.shape[0])] if stack_of(path) else [(path, None)]
  entries = [(path, layer, float(number)) for (path, layer), number in zip(named, numbers, strict=True)]
  return sorted(entries, key=lambda entry: _rank(entry[0], entry[1]))


def first_not_finite(tree: Params, numbers: np.ndarray) -> str:
  """Which parameter is the first whose number is not finite, in words; "" where all are finite."""
  bad = [(path, layer) for path, layer, number in in_order(tree, numbers) if not math.isfinite(number)]
  if not bad:
    return ""
  paths, all_paths = {path for path, _ in bad}, [path for path, _ in _leaves(tree)]
  return f"{name(*bad[0])} ({len(paths)} of {len(all_paths)} parameters)"


def name(path: str, layer: int | None) -> str:
  """A place in words."""
  return path if layer is None else f"{path}, layer {layer}"


def _leaves(tree: Params) -> Sequence[tuple[str, jax.Array]]:
  return [(path_name(path), x) for path, x in jax.tree_util.tree_leaves_with_path(tree)]


def _rank(path: str, layer: int | None) -> list[tuple[int | None, str]]:
  ranks: Mapping[str, int] = {part: index for index, part in enumerate(_ORDER)}
  rank: list[tuple[int | None, str]] = []
  for part in path.split("/"):
    rank.append((ranks.get(part, len(ranks)), part))
    if part == "layers":
      rank.append((layer, ""))
  return rank
