"""Parameters as nested dicts of arrays: the names of their paths, and which of them are trained."""

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
    """The id of padding."""

  @property
  def eos_id(self) -> int | None:
    """The id that ends a text."""

  @property
  def unk_id(self) -> int | None:
    """The id of what has no piece."""

  @property
  def vocab_size(self) -> int:
    """The number of ids."""

  def encode(self, s: str) -> Sequence[int]:
    """Returns the ids of a text."""

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids."""


def flatten(params: Params) -> dict[str, jax.Array]:
  """Returns the parameters by path, "encoder/layers/mlp/up"."""
  # Flax types values as if they might be its marker of an empty dict, which is never returned here.
  return cast(dict[str, jax.Array], traverse_util.flatten_dict(params, sep="/"))


def unflatten(flat: Mapping[str, jax.Array]) -> Params:
  """Returns the nested parameters of a mapping by path."""
  return traverse_util.unflatten_dict(flat, sep="/")


def check_pattern(pattern: str, where: str) -> None:
  """Refuses what cannot be looked for in paths, alone or beside others.

  Args:
    pattern: a regular expression.
    where: it was given, for the message.

  Raises:
    UserError: it is none.
  """
  try:
    re.compile(pattern)
    re.compile(f"(?:{pattern})")  # as it stands among others: flags are of a group, (?i:...), and not of all
  except re.error as error:
    raise UserError(f"{where}: {pattern!r} is no regular expression: {error}") from error


def matches(patterns: tuple[str, ...], path: str) -> bool:
  """Whether one of the patterns is found in the path."""
  return any(re.search(pattern, path) for pattern in patterns)


def split_frozen(params: Params, patterns: tuple[str, ...], *, halved: tuple[str, ...] = ()) -> tuple[Params, Params]:
  """The parameters that are trained, and those that are not: whose path matches one of `patterns`.

  Args:
    params: of arrays, or with `halved` empty of anything else.
    patterns: of what is not trained.
    halved: of what is held in bfloat16 of that.

  Raises:
    UserError: a pattern that matches nothing, or nothing left to train.
  """
  flat = flatten(params)
  for pattern in patterns:
    if not any(re.search(pattern, path) for path in flat):
      raise UserError(f"config.train.freeze: {pattern!r} matches no parameter; there are {', '.join(sorted(flat))}")
  frozen = {path: x for path, x in flat.items() if matches(patterns, path)}
  if len(frozen) == len(flat):
    raise UserError(f"config.train.freeze={patterns}: every parameter is frozen; nothing is left to train")
  trained = {path: x for path, x in flat.items() if path not in frozen}
  frozen = {path: x.astype(jnp.bfloat16) if matches(halved, path) else x for path, x in frozen.items()}
  return unflatten(trained), unflatten(frozen)


def join_frozen(params: Params, frozen: Params) -> Params:
  """The inverse of `split_frozen`; of what both have, the second's."""
  flat = traverse_util.flatten_dict(params) | traverse_util.flatten_dict(frozen)
  return traverse_util.unflatten_dict(flat)


def path_name(path: tuple) -> str:
  """A key path of a tree as text: "encoder/layers/mlp/up"."""
  return jax.tree_util.keystr(path, simple=True, separator="/")


def stack_of(path: str) -> str:
  """The stack that a parameter belongs to: "encoder/layers" of "encoder/layers/mlp/up"; "" of others."""
  parts = path.split("/")
  return "/".join(parts[: parts.index("layers") + 1]) if "layers" in parts else ""
