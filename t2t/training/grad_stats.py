"""Sums of squares per parameter and per layer of a stack, and the first of them that is not finite."""

from collections.abc import Mapping, Sequence
import math

import jax
import jax.numpy as jnp
import numpy as np

from t2t.param_tree import Params, path_name, stack_of

# Parts in the order in which the model runs them; others follow in alphabetical order.
_ORDER = (
  *("generator", "discriminator", "embed", "encoder", "decoder", "position_bias", "layers", "layer"),
  *("self_attention_norm", "self_attention", "cross_attention_norm", "cross_attention", "mlp_norm", "mlp"),
  *("branch_norms", "norm", "head", "heads"),
)


def squares(tree: Params) -> jax.Array:
  """Returns the sum of squares of each parameter, and of each layer of a stack; float32 [places].

  The global norm is the root of their sum, so the separate values cost nothing extra.
  """
  return jnp.concatenate(
    [
      jnp.sum(jnp.square(jnp.abs(x)), axis=tuple(range(1, x.ndim)) if stack_of(path) else None).reshape(-1)
      for path, x in _leaves(tree)
    ]
  )


def in_order(tree: Params, numbers: np.ndarray) -> list[tuple[str, int | None, float]]:
  """Returns (path, layer or None, number) for each result of `squares`, in the order in which the model runs them.

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
  """Returns the first parameter with a number that is not finite, in words; "" if all are finite."""
  bad = [(path, layer) for path, layer, number in in_order(tree, numbers) if not math.isfinite(number)]
  if not bad:
    return ""
  paths, all_paths = {path for path, _ in bad}, [path for path, _ in _leaves(tree)]
  return f"{name(*bad[0])} ({len(paths)} of {len(all_paths)} parameters)"


def name(path: str, layer: int | None) -> str:
  """Returns a readable name of a parameter or layer."""
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
