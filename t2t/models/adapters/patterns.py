"""Helpers for adapters: copies of models, iteration over modules and matrices, and checks of patterns over paths."""

from collections.abc import Iterable, Iterator, Sequence
import re
from typing import TypeVar

from flax import nnx, traverse_util

from t2t import UserError, did_you_mean
from t2t.models import attention
from t2t.models.feed_forward import FeedForward
from t2t.param_tree import check_pattern

Kind = TypeVar("Kind", bound=nnx.Module)
_WITH_MATRICES = (attention.Attention, FeedForward)


def paths_of(model: nnx.Module) -> list[str]:
  """Returns the paths of all parameters, which patterns are matched against."""
  return list(traverse_util.flatten_dict(nnx.to_pure_dict(nnx.split(model, graph=False)[1]), sep="/"))


def copy_of(model: nnx.Module) -> nnx.Module:
  """Returns a copy of the model with separate modules, so that changes do not affect the original."""
  return nnx.merge(*nnx.split(model, graph=False))


def modules(
  model: nnx.Module, kind: type[Kind] | tuple[type[Kind], ...], prefix: str = ""
) -> Iterator[tuple[str, Kind]]:
  """Yields path and module of every instance of a kind, the model included; does not descend into matches."""
  if isinstance(model, kind):
    yield prefix, model
    return
  for name, child in sorted(vars(model).items()):
    if isinstance(child, nnx.Module):
      yield from modules(child, kind, f"{prefix}/{name}" if prefix else name)


def matrices(model: nnx.Module) -> Iterator[tuple[str, nnx.Module, str]]:
  """Yields path, owner and name of every matrix of attentions and feed-forward layers (see `layers.dense`)."""
  for prefix, module in modules(model, _WITH_MATRICES):
    yield from _matrices_of(module, prefix)


def _matrices_of(module: nnx.Module, prefix: str) -> Iterator[tuple[str, nnx.Module, str]]:
  """Yields the matrices of a module and of feed-forward layers inside it."""
  for name, child in sorted(vars(module).items()):
    if isinstance(child, nnx.Param) and len(child.get_metadata()["axes"]) == 2:
      yield f"{prefix}/{name}", module, name
    elif isinstance(child, FeedForward):
      yield from _matrices_of(child, f"{prefix}/{name}")


def check(patterns: Iterable[str], key: str, paths: Sequence[str]) -> None:
  """Checks that patterns are valid and match a path.

  Args:
    patterns: value of `key`.
    key: config key, such as "config.lora.also_train".
    paths: paths that patterns are matched against.

  Raises:
    UserError: a pattern is invalid or matches nothing; the message contains the paths and the most similar name.
  """
  for pattern in patterns:
    check_pattern(pattern, key)
    if not any(re.search(pattern, path) for path in paths):
      near = did_you_mean(pattern, list(paths) + sorted({part for path in paths for part in path.split("/")}))
      raise UserError(f"{key}: the pattern {pattern!r} matches no path. Paths: {', '.join(paths)}{near}")
