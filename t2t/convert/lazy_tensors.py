"""Lazy parameters of a stored model: read one by one, compared with the model, placed on the mesh."""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
from typing import Any

from etils import epath
from flax import nnx, traverse_util
import jax
import numpy as np

from t2t import UserError
from t2t.models import transformer
from t2t.models.config import TransformerConfig
from t2t.param_tree import Params, path_name

_SHOWN = 5  # differences in a message, before the number of the others


@dataclasses.dataclass(frozen=True)
class Tensor:
  """A lazy parameter of a t2t model.

  shape: of the parameter, [layers, ...] if layers are stacked.
  dtype: as stored.
  parts: functions that read it, in the order of its first axis: one for each stacked layer, of shape
    `shape[1:]`; otherwise a single one, of shape `shape`.
  stacked: whether there is one function for each layer.
  """

  shape: tuple[int, ...]
  dtype: np.dtype
  parts: tuple[Callable[[], np.ndarray], ...]
  stacked: bool = False

  @property
  def nbytes(self) -> int:
    """Size as float32, t2t's dtype of parameters."""
    return 4 * int(np.prod(self.shape, dtype=np.int64))

  def read_layer(self, index: int) -> np.ndarray:
    """Returns one layer of a stacked parameter, as stored."""
    return self.parts[index]()

  def read(self) -> np.ndarray:
    """Returns the whole parameter as float32; reads stacked layers one at a time."""
    if not self.stacked:
      return np.ascontiguousarray(self.parts[0](), np.float32)
    array = np.empty(self.shape, np.float32)
    for index, read in enumerate(self.parts):
      array[index] = read()
    return array


@dataclasses.dataclass(frozen=True)
class Foreign:
  """A checkpoint of another format as a t2t model.

  path: its folder or file.
  kind: "hf", "t5x" or "t2t".
  model: its config.
  vocabulary: argument of `t2t.data.vocabularies.load`; "" if the checkpoint has none.
  extra_ids: number of sentinels after the vocabulary's own ids.
  lengths: suitable lengths for `config.data`, {"inputs_length": 512, ...}.
  tensors: path of a parameter -> the parameter; exactly the model's.
  pooler: name of a parameter of a class head -> the parameter, if the checkpoint has a pooler without a head.
  notes: messages for the user, one sentence each.
  table: config.data.table of a model that was fine-tuned on a table: its columns, classes and prefix.
  """

  path: epath.Path
  kind: str
  model: TransformerConfig
  vocabulary: str
  extra_ids: int
  lengths: Mapping[str, int]
  tensors: Mapping[str, Tensor]
  pooler: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
  notes: tuple[str, ...] = ()
  table: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def check_finite(value: np.ndarray, where: str) -> None:
  """Checks a parameter for NaN and infinity.

  Raises:
    UserError: it contains NaN or infinity, which would spread to all outputs.
  """
  with np.errstate(all="ignore"):
    # The sum propagates NaN and infinity, and needs no memory; after an overflow each value is checked.
    if value.dtype.kind not in "fV" or np.isfinite(np.sum(value, dtype=np.float64)):
      return
    bad = ~np.isfinite(value)
  if bad.any():
    raise UserError(
      f"{where}: {np.count_nonzero(bad):,} of {value.size:,} numbers are NaN or infinite, the first at index"
      f" {np.argwhere(bad)[0].tolist()}. Give an earlier checkpoint, or download the file again."
    )


@functools.cache
def expected(model: TransformerConfig) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns path and shape of every parameter of a model; needs no device.

  Out: {"embed/table": [vocab, embed], "encoder/layers/self_attention/query": [layers, embed, heads * kv], ...}
  """
  return expected_of(functools.partial(transformer.build, model))


def expected_of(build: Callable[[nnx.Rngs], nnx.Module]) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns path and shape of every parameter of the model that `build` returns."""
  make = lambda key: build(nnx.Rngs(key))
  state = nnx.split(jax.eval_shape(make, jax.eval_shape(lambda: jax.random.key(0))), graph=False)[1]
  leaves = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(state))
  return {path_name(path): jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in leaves}


def compare(
  where: str, actual: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]], *, hint: str = ""
) -> None:
  """Compares names and shapes of a checkpoint's tensors with its config's.

  Args:
    where: the checkpoint, for the message.
    actual: name -> shape.
    wanted: name -> shape.
    hint: advice at the end of the message.

  Raises:
    UserError: some are missing, unknown or of another shape; the message contains the first of them.
  """
  differences = []
  for name in sorted(actual.keys() | wanted.keys(), key=lambda name: (name not in wanted, name)):
    if name not in actual:
      differences.append(f"  {name}: missing; expected {list(wanted[name])}")
    elif name not in wanted:
      differences.append(f"  {name}: unknown; found {list(actual[name])}")
    elif tuple(actual[name]) != tuple(wanted[name]):
      differences.append(f"  {name}: expected {list(wanted[name])}, found {list(actual[name])}")
  if differences:
    left = len(differences) - _SHOWN
    shown = "\n".join(differences[:_SHOWN] + ([f"  and {left} more"] if left > 0 else []))
    end = f"\n{hint}" if hint else ""
    raise UserError(f"{where}: the tensors do not match the config:\n{shown}{end}")


def check(foreign: Foreign) -> None:
  """Checks that a checkpoint has exactly the parameters of its model.

  Raises:
    UserError: see `compare`; names are the parameters' paths.
  """
  shapes = {path: tensor.shape for path, tensor in foreign.tensors.items()}
  compare(str(foreign.path), shapes, {path: x.shape for path, x in expected(foreign.model).items()})


def pooler_shapes(foreign: Foreign, paths: Iterable[str]) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of class-head parameters that the checkpoint's pooler contains."""
  names = {path: path.rpartition("/")[2] for path in paths if path.startswith("heads/")}
  return {path: foreign.pooler[name].shape for path, name in names.items() if name in foreign.pooler}


def load(foreign: Foreign, params: Params) -> Params:
  """Returns the parameters on the mesh, float32; the host holds one of them at a time.

  A requested class head takes the checkpoint's pooler.

  Args:
    foreign: the checkpoint.
    params: nested dict of `jax.ShapeDtypeStruct` with shardings, as returned by `pretrained.abstract`.

  Raises:
    UserError: the checkpoint has other parameters.
  """
  flat = traverse_util.flatten_dict(params, sep="/")
  shapes = {path: tensor.shape for path, tensor in foreign.tensors.items()} | pooler_shapes(foreign, flat)
  compare(str(foreign.path), shapes, {path: x.shape for path, x in flat.items()})
  placed = place_on_mesh(foreign, {path: (path, wanted) for path, wanted in flat.items()})
  return traverse_util.unflatten_dict(placed, sep="/")


def place_on_mesh(foreign: Foreign, wanted: Mapping[str, tuple[str, jax.ShapeDtypeStruct]]) -> dict[str, jax.Array]:
  """Returns some parameters on the mesh, float32; the host holds one of them at a time.

  Args:
    foreign: the checkpoint.
    wanted: name -> (path of the parameter in the checkpoint, its shape with a sharding). A dimension of another length
      is truncated or zero-padded.

  Returns:
    Name -> array.
  """
  placed = {}
  for name, (path, x) in wanted.items():
    tensor = foreign.tensors[path] if path in foreign.tensors else foreign.pooler[path.rpartition("/")[2]]
    array = tensor.read()
    array = array.astype(np.int8) if x.dtype == np.int8 else array
    shard = functools.partial(_shard, array, x.shape)
    placed[name] = jax.make_array_from_callback(x.shape, x.sharding, shard, dtype=x.dtype)
    # Copies to a device run in the background: without waiting, the host would hold all tensors at once.
    placed[name].block_until_ready()
  return placed


def _shard(array: np.ndarray, shape: tuple[int, ...], index: tuple[slice, ...]) -> np.ndarray:
  """Returns `array[index]` as if `array` were truncated or zero-padded to this shape."""
  if array.shape == shape:
    return array[index]
  index = tuple(slice(*part.indices(size)) for part, size in zip(index, shape, strict=True))
  there = array[index]
  filled = np.zeros([part.stop - part.start for part in index], array.dtype)
  filled[tuple(map(slice, there.shape))] = there
  return filled
