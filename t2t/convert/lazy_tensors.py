"""A model's parameters that lie elsewhere: read one by one, set against the model, put on the mesh."""

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

_SHOWN = 5  # differences that a message names; of the others it gives the number


@dataclasses.dataclass(frozen=True)
class Tensor:
  """One parameter of a t2t model, of which nothing is read before it is asked for.

  shape: the parameter's, [layers, ...] where layers are stacked.
  dtype: as it is stored.
  parts: functions that read it, in the order of its first axis: one for each layer where layers are stacked, of shape
    `shape[1:]`; otherwise a single one, of shape `shape`.
  stacked: whether there is one function for each layer.
  """

  shape: tuple[int, ...]
  dtype: np.dtype
  parts: tuple[Callable[[], np.ndarray], ...]
  stacked: bool = False

  @property
  def nbytes(self) -> int:
    """As float32, which is what t2t keeps parameters in."""
    return 4 * int(np.prod(self.shape, dtype=np.int64))

  def read_layer(self, index: int) -> np.ndarray:
    """One layer of a stacked parameter, as it is stored."""
    return self.parts[index]()

  def read(self) -> np.ndarray:
    """All of it, float32; of stacked layers no more than one is held besides."""
    if not self.stacked:
      return np.ascontiguousarray(self.parts[0](), np.float32)
    array = np.empty(self.shape, np.float32)
    for index, read in enumerate(self.parts):
      array[index] = read()
    return array


@dataclasses.dataclass(frozen=True)
class Foreign:
  """A checkpoint of another format, as the t2t model that it is.

  path: where it lies.
  kind: "hf", "t5x" or "t2t".
  model: its shape.
  vocabulary: what `t2t.data.vocabularies.load` takes; "" where the checkpoint has none.
  extra_ids: sentinels behind the vocabulary's own ids.
  lengths: keys of `config.data` with lengths that suit it, {"inputs_length": 512, ...}.
  tensors: path of a parameter -> the parameter; exactly those of the model.
  pooler: name of a parameter of a class head -> the parameter, where the checkpoint has these but no such head.
  notes: what whoever converts it must be told, a sentence each.
  table: config.data.table of a model that was fine-tuned on one: its columns, classes and prefix.
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
  """Whether a parameter that was read consists of numbers.

  Raises:
    UserError: there is NaN or infinity in it, of which a model computes nothing but more of them.
  """
  with np.errstate(all="ignore"):
    # A sum has what any of the numbers has, and takes no memory; where it overflows, the second look tells.
    if value.dtype.kind not in "fV" or np.isfinite(np.sum(value, dtype=np.float64)):
      return
    bad = ~np.isfinite(value)
  if bad.any():
    raise UserError(
      f"{where}: {np.count_nonzero(bad):,} of its {value.size:,} numbers are NaN or infinite, the first at"
      f" {np.argwhere(bad)[0].tolist()}; take an earlier checkpoint, or download it again"
    )


@functools.cache
def expected(model: TransformerConfig) -> dict[str, jax.ShapeDtypeStruct]:
  """Path and shape of every parameter of a model; no device is needed.

  Out: {"embed/table": [vocab, embed], "encoder/layers/self_attention/query": [layers, embed, heads * kv], ...}
  """
  return expected_of(functools.partial(transformer.build, model))


def expected_of(build: Callable[[nnx.Rngs], nnx.Module]) -> dict[str, jax.ShapeDtypeStruct]:
  """`expected` of the model that `build` makes."""
  make = lambda key: build(nnx.Rngs(key))
  state = nnx.split(jax.eval_shape(make, jax.eval_shape(lambda: jax.random.key(0))), graph=False)[1]
  leaves = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(state))
  return {path_name(path): jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in leaves}


def compare(
  where: str, actual: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]], *, hint: str = ""
) -> None:
  """Sets names and shapes of a checkpoint's tensors against those that its config asks for.

  Args:
    where: the checkpoint, for the message.
    actual: name -> shape.
    wanted: name -> shape.
    hint: what would be right, for the end of the message.

  Raises:
    UserError: some are missing, unknown or of another shape; names the first of them.
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
    raise UserError(f"{where}: its tensors are not those that its config says:\n{shown}{end}")


def check(foreign: Foreign) -> None:
  """Whether a checkpoint has exactly the parameters of its model.

  Raises:
    UserError: see `compare`; names are the parameters' paths.
  """
  shapes = {path: tensor.shape for path, tensor in foreign.tensors.items()}
  compare(str(foreign.path), shapes, {path: x.shape for path, x in expected(foreign.model).items()})


def pooler_shapes(foreign: Foreign, paths: Iterable[str]) -> dict[str, tuple[int, ...]]:
  """Of those parameters of a model's class heads that are in the checkpoint's pooler."""
  names = {path: path.rpartition("/")[2] for path in paths if path.startswith("heads/")}
  return {path: foreign.pooler[name].shape for path, name in names.items() if name in foreign.pooler}


def load(foreign: Foreign, params: Params) -> Params:
  """The parameters on the mesh, float32; the host holds one of them at a time.

  A class head that is asked for takes the checkpoint's pooler.

  Args:
    foreign: the checkpoint.
    params: nested dict of `jax.ShapeDtypeStruct` with shardings, as `pretrained.abstract` makes it.

  Raises:
    UserError: the checkpoint's parameters are not these.
  """
  flat = traverse_util.flatten_dict(params, sep="/")
  shapes = {path: tensor.shape for path, tensor in foreign.tensors.items()} | pooler_shapes(foreign, flat)
  compare(str(foreign.path), shapes, {path: x.shape for path, x in flat.items()})
  placed = place_on_mesh(foreign, {path: (path, wanted) for path, wanted in flat.items()})
  return traverse_util.unflatten_dict(placed, sep="/")


def place_on_mesh(foreign: Foreign, wanted: Mapping[str, tuple[str, jax.ShapeDtypeStruct]]) -> dict[str, jax.Array]:
  """Some parameters on the mesh, float32; the host holds one of them at a time.

  Args:
    foreign: the checkpoint.
    wanted: name -> (path of the parameter in the checkpoint, its shape with a sharding). Of another length than there,
      a dimension is cut off, or filled up with zeros.

  Returns:
    Name -> array.
  """
  placed = {}
  for name, (path, x) in wanted.items():
    tensor = foreign.tensors[path] if path in foreign.tensors else foreign.pooler[path.rpartition("/")[2]]
    array = tensor.read()
    shard = functools.partial(_shard, array, x.shape)
    placed[name] = jax.make_array_from_callback(x.shape, x.sharding, shard, dtype=x.dtype)
    # Copies to a device run in the background: without waiting, all tensors would be held at once.
    placed[name].block_until_ready()
  return placed


def _shard(array: np.ndarray, shape: tuple[int, ...], index: tuple[slice, ...]) -> np.ndarray:
  """What `index` says of `array`, were it of this shape."""
  if array.shape == shape:
    return array[index]
  index = tuple(slice(*part.indices(size)) for part, size in zip(index, shape, strict=True))
  there = array[index]
  filled = np.zeros([part.stop - part.start for part in index], array.dtype)
  filled[tuple(map(slice, there.shape))] = there
  return filled
