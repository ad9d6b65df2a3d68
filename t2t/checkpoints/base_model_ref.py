"""The model that an adapter's checkpoints are of: named by its path, and known by a digest of each of its arrays.

An adapter's step holds what is trained alone.  What it was trained on top of is read where it lies, and compared: a few
small matrices on top of another model would give nonsense without a word.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import math
import os
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError, sharding
from t2t.checkpoints import verify
from t2t.param_tree import Params, flatten, unflatten
from t2t.storage import gcs


@dataclasses.dataclass(frozen=True)
class BaseEntry:
  """An array of the base.

  name: its path there.
  shape: as the adapted model has it; of fewer rows than there it is the first of them.
  digest: see `digests`.
  """

  name: str
  shape: tuple[int, ...]
  digest: str


@dataclasses.dataclass(frozen=True)
class Base:
  """What a step lies on top of.

  path: of the checkpoint, absolute or gs://.
  beside: the same seen from the workdir of the adapter, "" where there is no such way: both may have been moved.
  part: see `pretrained.Source`.
  entries: path in the adapted model -> what it is of the base.
  name: in config.init.others; "": of config.init.checkpoint, or of what is no run's.
  others: further checkpoints that have frozen parameters of the step; these have no others themselves.
  """

  path: str
  beside: str
  part: str
  entries: Mapping[str, BaseEntry]
  name: str = ""
  others: tuple["Base", ...] = ()

  @classmethod
  def joined(cls, bases: Sequence["Base"]) -> "Base | None":
    """Returns the first with the rest as its `others`; None for none."""
    return dataclasses.replace(bases[0], others=tuple(bases[1:])) if bases else None

  @property
  def all_bases(self) -> tuple["Base", ...]:
    """The base without its `others`, and these."""
    return (dataclasses.replace(self, others=()), *self.others)

  @property
  def paths(self) -> frozenset[str]:
    """Paths of all parameters that a step leaves out."""
    return frozenset(path for base in (self, *self.others) for path in base.entries)

  def to_dict(self) -> dict[str, object]:
    """Returns what JSON has; empty keys are left out, as older versions wrote it."""
    values = dataclasses.asdict(self)
    return {key: value for key, value in values.items() if value or key not in ("name", "others")}

  @classmethod
  def from_dict(cls, values: Mapping[str, object], where: object) -> "Base":
    """The inverse of `to_dict`.

    Raises:
      UserError: it is something else.
    """
    saved: Mapping[str, Any] = values
    try:
      entries = {
        str(path): BaseEntry(str(entry["name"]), tuple(map(int, entry["shape"])), str(entry["digest"]))
        for path, entry in saved["entries"].items()
      }
      other_bases = tuple(cls.from_dict(other_values, where) for other_values in saved.get("others", ()))
      name = str(values.get("name", ""))
      path, beside, part = (str(values[key]) for key in ("path", "beside", "part"))
      return cls(path, beside, part, entries, name, other_bases)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
      raise UserError(f"{where}/{verify.BASE}: does not say what the checkpoint lies on top of ({error!r})") from error

  def places(self, workdir: epath.Path) -> list[str]:
    """Where it is now: at its path, or as far from what lies on top of it as it was; [] where it is at neither."""
    places = [self.path, *([str(workdir / self.beside)] if self.beside else [])]
    return [path for path in places if gcs.absolute(path).exists()]

  def locate(self, workdir: epath.Path) -> str:
    """The first of `places`, of an adapter's workdir.

    Raises:
      UserError: there is none.
    """
    if places := self.places(workdir):
      return places[0]
    holds, key = f"what adapts the model of {self.path}", "init.checkpoint"
    if self.name:
      holds, key = f"a model with frozen parts of {self.path}", f"init.others.{self.name}.checkpoint"
    raise UserError(
      f"{workdir}: holds {holds}, which is not there any more; bring it back, or, if it is elsewhere, let the run go on"
      f" from --config.{key}=PLACE: what it saves from then on names that"
    )

  def without(self, params: Params) -> Params:
    """Nested parameters that are not of the base."""
    flat = flatten(params)
    base_paths = self.paths
    return unflatten({path: x for path, x in flat.items() if path not in base_paths})

  def check(self, actual: Mapping[str, str], where: str, *, than: str = "the adapter was trained on") -> None:
    """Compares digests.

    Args:
      actual: path in the adapted model -> digest of what was read for it.
      where: it was read from.
      than: what the base is to what lies on top of it, for messages.

    Raises:
      UserError: one is another; names the first.
    """
    wrong = [path for path, digest in actual.items() if digest != self.entries[path].digest]
    if wrong:
      more = f" (and {len(wrong) - 1} more of {len(actual)})" if len(wrong) > 1 else ""
      raise UserError(
        f"{where}: is another model than {than}, which lay at {self.path}: {wrong[0]} has the"
        f" digest {actual[wrong[0]]}, and had {self.entries[wrong[0]].digest}{more}"
      )


def beside(path: str, workdir: epath.Path) -> str:
  """The way from a workdir to a checkpoint; "" where either lies in a bucket."""
  if gcs.is_remote(path) or gcs.is_remote(workdir):
    return ""
  return os.path.relpath(path, workdir)


# ---- Digests ---------------------------------------------------------------------------------------------------------

# Of each number its bits and its place are mixed, and all of it is added up modulo 2**32: a sum does not care in which
# order and on how many devices, so that every mesh, and every format that a model is read from, gives the same.
_SEEDS = (0x243F6A88, 0x85A308D3)  # two sums, 64 bits; pi's digits
_STRIDE = 0x9E3779B1  # odd, so that no two of 2**32 places give the same
_ROUNDS = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))  # Appleby 2008: the finalizer of MurmurHash3


def _mixed(bits: Any, positions: Any, seed: int) -> Any:
  """uint32 -> uint32, of jax or numpy."""
  x = bits ^ (positions * np.uint32(_STRIDE) + np.uint32(seed))
  for shift, factor in _ROUNDS:
    x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
  return x ^ (x >> np.uint32(16))


def _hex(sums: Iterable[Any]) -> str:
  return "".join(f"{int(total) % 2**32:08x}" for total in sums)


def digests(params: Mapping[str, jax.Array]) -> dict[str, str]:
  """Name -> a digest of 64 bits of each float32 array, computed where it lies; the same on all hosts.

  It is one against accidents, not against somebody who wants two models to have the same.
  """
  if not params:
    return {}
  names = list(params)
  mesh = sharding.mesh_of(params[names[0]])
  sums = np.asarray(_program(mesh)([params[name] for name in names]))
  return {name: _hex(row) for name, row in zip(names, sums, strict=True)}


@functools.cache
def _program(mesh: jax.sharding.Mesh):
  def digest(x: jax.Array) -> jax.Array:
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    strides = [math.prod(x.shape[axis + 1 :]) % 2**32 for axis in range(x.ndim)]
    parts = (
      jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis) * np.uint32(stride) for axis, stride in enumerate(strides)
    )
    positions = sum(parts, jnp.zeros((), jnp.uint32))
    return jnp.stack([jnp.sum(_mixed(bits, positions, seed), dtype=jnp.uint32) for seed in _SEEDS])

  return jax.jit(lambda arrays: jnp.stack(list(map(digest, arrays))), out_shardings=sharding.replicated(mesh))


def digest_of_parts(parts: Iterable[np.ndarray]) -> str:
  """The same of an array that is read part by part, along its first axis."""
  sums, begin = [0] * len(_SEEDS), 0
  for part in parts:
    bits = np.ascontiguousarray(part, np.float32).reshape(-1).view(np.uint32)
    positions = (np.arange(begin, begin + bits.size) % 2**32).astype(np.uint32)
    begin += bits.size
    for index, seed in enumerate(_SEEDS):
      sums[index] += int(np.sum(_mixed(bits, positions, seed), dtype=np.uint64))
  return _hex(sums)
