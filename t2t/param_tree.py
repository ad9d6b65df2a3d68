"""Parameter trees as nested dicts of arrays: path names, patterns, and the split into trained and frozen parameters."""

from collections.abc import Iterable, Mapping, Sequence
import re
from typing import Protocol, cast

from flax import traverse_util
import jax
import jax.numpy as jnp

from t2t import UserError

Params = dict[str, "jax.Array | Params"]  # nested


class Vocabulary(Protocol):
  """The part of `seqio.Vocabulary` that models and runs read."""

  @property
  def pad_id(self) -> int:
    pass

  @property
  def eos_id(self) -> int | None:
    pass

  @property
  def unk_id(self) -> int | None:
    pass

  @property
  def vocab_size(self) -> int:
    pass

  def encode(self, s: str) -> Sequence[int]:
    pass

  def decode(self, ids: Iterable[int]) -> str:
    pass


def flatten(params: Params) -> dict[str, jax.Array]:
  """Returns the parameters by path, such as "encoder/layers/mlp/up"."""
  # Flax's return type includes its marker of an empty dict, which never occurs here.
  return cast(dict[str, jax.Array], traverse_util.flatten_dict(params, sep="/"))


def unflatten(flat: Mapping[str, jax.Array]) -> Params:
  """Returns the nested parameters of a mapping by path; inverse of `flatten`."""
  return traverse_util.unflatten_dict(flat, sep="/")


def check_pattern(pattern: str, where: str) -> None:
  """Checks that a pattern is a regular expression that also compiles inside a group.

  Args:
    pattern: a regular expression.
    where: the config key or flag of the pattern, for the message.

  Raises:
    UserError: the pattern does not compile.
  """
  try:
    re.compile(pattern)
    re.compile(f"(?:{pattern})")  # patterns are joined in groups: flags must be local, (?i:...)
  except re.error as error:
    raise UserError(
      f"{where}: {pattern!r} is not a valid regular expression ({error}). Correct the pattern."
    ) from error


def matches(patterns: tuple[str, ...], path: str) -> bool:
  """Returns True if one of the patterns is found in the path."""
  return any(re.search(pattern, path) for pattern in patterns)


def split_frozen(params: Params, patterns: tuple[str, ...], *, halved: tuple[str, ...] = ()) -> tuple[Params, Params]:
  """Splits the parameters into trained and frozen ones; frozen paths match one of `patterns`.

  Args:
    params: tree of arrays; with empty `halved`, leaves of any type.
    patterns: regular expressions of frozen paths.
    halved: regular expressions of frozen paths that are cast to bfloat16.

  Raises:
    UserError: a pattern matches nothing, or no trained parameter is left.
  """
  flat = flatten(params)
  for pattern in patterns:
    if not any(re.search(pattern, path) for path in flat):
      raise UserError(f"config.train.freeze: {pattern!r} matches no parameter. Parameters: {', '.join(sorted(flat))}")
  frozen = {path: x for path, x in flat.items() if matches(patterns, path)}
  if len(frozen) == len(flat):
    raise UserError(
      f"config.train.freeze={patterns}: every parameter is frozen, so nothing is trained. Remove a pattern."
    )
  trained = {path: x for path, x in flat.items() if path not in frozen}
  halves = lambda path, x: matches(halved, path) and jnp.issubdtype(x.dtype, jnp.floating)  # not tables of ids
  frozen = {path: x.astype(jnp.bfloat16) if halves(path, x) else x for path, x in frozen.items()}
  return unflatten(trained), unflatten(frozen)


def join_frozen(params: Params, frozen: Params) -> Params:
  """Merges both trees, the inverse of `split_frozen`; a path in both takes the value of `frozen`."""
  flat = traverse_util.flatten_dict(params) | traverse_util.flatten_dict(frozen)
  return traverse_util.unflatten_dict(flat)


def path_name(path: tuple) -> str:
  """Returns a key path of a tree as text, such as "encoder/layers/mlp/up"."""
  return jax.tree_util.keystr(path, simple=True, separator="/")


def stack_of(path: str) -> str:
  """Returns the layer stack of a parameter: "encoder/layers" for "encoder/layers/mlp/up"; "" outside of stacks.

  Alternating feed-forward layers have a stack for each kind: "encoder/layers/mlp/moe/layers".
  """
  parts = path.split("/")
  last = max((index for index, part in enumerate(parts) if part == "layers"), default=-1)
  return "/".join(parts[: last + 1])


def is_prunable(path: str, shape: tuple[int, ...]) -> bool:
  """Returns whether a parameter is a matrix of a layer or head, not a vector, an embedding or a position bias."""
  parts, num_axes = path.split("/"), len(shape) - bool(stack_of(path))
  is_table = parts[-1] in ("table", "step_table", "segments") or "biases" in parts[-2:]
  return num_axes >= 2 and not is_table and not {"embed", "position_bias"} & set(parts)
