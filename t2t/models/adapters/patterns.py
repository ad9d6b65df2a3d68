"""What adapters say over paths of parameters, checked before anything is built on it."""

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
  """Of all parameters: what patterns are set against."""
  return list(traverse_util.flatten_dict(nnx.to_pure_dict(nnx.split(model, graph=False)[1]), sep="/"))


def copy_of(model: nnx.Module) -> nnx.Module:
  """The same model, with modules of its own: what is put into them is not put into the one that was given."""
  return nnx.merge(*nnx.split(model, graph=False))


def modules(
  model: nnx.Module, kind: type[Kind] | tuple[type[Kind], ...], prefix: str = ""
) -> Iterator[tuple[str, Kind]]:
  """Path and module of every one of a kind, the model itself among them; none of what lies in one is looked at."""
  if isinstance(model, kind):
    yield prefix, model
    return
  for name, child in sorted(vars(model).items()):
    if isinstance(child, nnx.Module):
      yield from modules(child, kind, f"{prefix}/{name}" if prefix else name)


def matrices(model: nnx.Module) -> Iterator[tuple[str, nnx.Module, str]]:
  """Path, owner and name of every matrix of attentions and feed-forward layers; these go through `layers.dense`."""
  for prefix, module in modules(model, _WITH_MATRICES):
    yield from _matrices_of(module, prefix)


def _matrices_of(module: nnx.Module, prefix: str) -> Iterator[tuple[str, nnx.Module, str]]:
  """Those of a module, and of the feed-forward layers that it is made of."""
  for name, child in sorted(vars(module).items()):
    if isinstance(child, nnx.Param) and len(child.get_metadata()["axes"]) == 2:
      yield f"{prefix}/{name}", module, name
    elif isinstance(child, FeedForward):
      yield from _matrices_of(child, f"{prefix}/{name}")


def check(patterns: Iterable[str], key: str, paths: Sequence[str]) -> None:
  """Refuses patterns that are none, or fit nothing.

  Args:
    patterns: of `key`.
    key: "config.lora.also_train".
    paths: that they are set against.

  Raises:
    UserError: names the first, what there is, and what is nearest.
  """
  for pattern in patterns:
    check_pattern(pattern, key)
    if not any(re.search(pattern, path) for path in paths):
      near = did_you_mean(pattern, list(paths) + sorted({part for path in paths for part in path.split("/")}))
      raise UserError(f"{key}: {pattern!r} matches none of {', '.join(paths)}{near}")
