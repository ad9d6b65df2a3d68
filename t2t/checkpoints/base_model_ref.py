"""Reference from an adapter's checkpoint to its base model: a path, and a digest of each array.

A step of an adapter contains only the trained parameters.  The base is read from its own checkpoint and compared with
the digests, because an adapter on another model gives wrong results without an error.
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
  shape: in the adapted model; if it has fewer rows than the base, they are the first ones.
  digest: see `digests`.
  """

  name: str
  shape: tuple[int, ...]
  digest: str


@dataclasses.dataclass(frozen=True)
class Base:
  """The base of a step.

  path: of the checkpoint, absolute, gs:// or hf:// with a commit.
  beside: the path relative to the adapter's workdir, "" if there is none; it is valid if both were moved together.
  part: see `pretrained.Source`.
  entries: path in the adapted model -> array of the base.
  name: in config.init.others; "" for config.init.checkpoint, or outside a run.
  others: further checkpoints with frozen parameters of the step; they have no `others`.
  """

  path: str
  beside: str
  part: str
  entries: Mapping[str, BaseEntry]
  name: str = ""
  others: tuple["Base", ...] = ()

  @classmethod
  def joined(cls, bases: Sequence["Base"]) -> "Base | None":
    """Returns the first base with the rest as its `others`; None for an empty sequence."""
    return dataclasses.replace(bases[0], others=tuple(bases[1:])) if bases else None

  @property
  def all_bases(self) -> tuple["Base", ...]:
    return (dataclasses.replace(self, others=()), *self.others)

  @property
  def paths(self) -> frozenset[str]:
    """Paths of all parameters that a step leaves out."""
    return frozenset(path for base in (self, *self.others) for path in base.entries)

  def to_dict(self) -> dict[str, object]:
    """Returns the JSON form; empty optional keys are left out, as in older versions."""
    values = dataclasses.asdict(self)
    return {key: value for key, value in values.items() if value or key not in ("name", "others")}

  @classmethod
  def from_dict(cls, values: Mapping[str, object], where: object) -> "Base":
    """Parses the result of `to_dict`.

    Raises:
      UserError: the values have another form.
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
      raise UserError(
        f"{where}/{verify.BASE} is not a valid reference to a base model ({error!r}). Restore the file, or give "
        "another step."
      ) from error

  def places(self, workdir: epath.Path) -> list[str]:
    """Returns the existing paths of the base: the saved one, and the one relative to the workdir.

    A commit on the Hugging Face hub counts as existing, without a request.
    """
    places = [self.path, *([str(workdir / self.beside)] if self.beside else [])]
    return [path for path in places if gcs.exists(path)]

  def locate(self, workdir: epath.Path) -> str:
    """Returns the first of `places` for an adapter's workdir.

    Raises:
      UserError: there is none.
    """
    if places := self.places(workdir):
      return places[0]
    holds, key = f"an adapter of {self.path}", "init.checkpoint"
    if self.name:
      holds, key = f"a model with frozen parameters of {self.path}", f"init.others.{self.name}.checkpoint"
    raise UserError(
      f"{workdir} contains {holds}, but that checkpoint no longer exists. Restore the checkpoint, or resume the run "
      f"with the new path of the checkpoint, --config.{key}=PATH."
    )

  def without(self, params: Params) -> Params:
    """Returns nested parameters without the base's."""
    flat = flatten(params)
    base_paths = self.paths
    return unflatten({path: x for path, x in flat.items() if path not in base_paths})

  def check(self, actual: Mapping[str, str], where: str, *, than: str = "that the adapter was trained on") -> None:
    """Compares digests.

    Args:
      actual: path in the adapted model -> digest of the array read for it.
      where: path that it was read from.
      than: phrase that identifies the base in messages.

    Raises:
      UserError: a digest differs; the message contains the first.
    """
    wrong = [path for path, digest in actual.items() if digest != self.entries[path].digest]
    if wrong:
      more = f"; {len(wrong)} of {len(actual)} parameters differ" if len(wrong) > 1 else ""
      raise UserError(
        f"{where} is not the model {than}: {wrong[0]} has the digest {actual[wrong[0]]}, expected "
        f"{self.entries[wrong[0]].digest}{more}. Give the original model, which was at {self.path}."
      )


def beside(path: str, workdir: epath.Path) -> str:
  """Returns the path of a checkpoint relative to a workdir; "" if either is in a bucket."""
  if gcs.is_remote(path) or gcs.is_remote(workdir):
    return ""
  return os.path.relpath(path, workdir)


# ---- Digests ---------------------------------------------------------------------------------------------------------

# The digest hashes bits and index of each number and sums the hashes modulo 2**32. A sum is independent of order and of
# the number of devices, so that every mesh and every source format gives the same digest.
_SEEDS = (0x243F6A88, 0x85A308D3)  # two sums, 64 bits; digits of pi
_STRIDE = 0x9E3779B1  # odd, so that 2**32 indices give distinct products
_ROUNDS = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))  # Appleby 2008: the finalizer of MurmurHash3


def _mixed(bits: Any, positions: Any, seed: int) -> Any:
  """Hashes uint32 arrays of jax or numpy."""
  x = bits ^ (positions * np.uint32(_STRIDE) + np.uint32(seed))
  for shift, factor in _ROUNDS:
    x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
  return x ^ (x >> np.uint32(16))


def _hex(sums: Iterable[Any]) -> str:
  return "".join(f"{int(total) % 2**32:08x}" for total in sums)


def digests(params: Mapping[str, jax.Array]) -> dict[str, str]:
  """Returns name -> 64-bit digest of each float32 array, computed on its devices; equal on all hosts.

  It detects accidents; it is not cryptographic.
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
  """Returns the same digest of an array that is read in parts along its first axis."""
  sums, begin = [0] * len(_SEEDS), 0
  for part in parts:
    bits = np.ascontiguousarray(part, np.float32).reshape(-1).view(np.uint32)
    positions = (np.arange(begin, begin + bits.size) % 2**32).astype(np.uint32)
    begin += bits.size
    for index, seed in enumerate(_SEEDS):
      sums[index] += int(np.sum(_mixed(bits, positions, seed), dtype=np.uint64))
  return _hex(sums)
