"""T5X checkpoints as t2t models: folders of zarr arrays, and single msgpack files.

A checkpoint is a tree {"target": parameters, "state": optimizer}, in msgpack.  Its arrays stand in the tree or, written
by TensorStore, in a folder each: target.decoder.decoder_norm.scale/.zarray.  Layers are `layers_0`, `layers_1`, ... or,
where T5X scans them, one array with an axis of layers, which is the second one.

T5X is not needed, nothing is unpickled, and arrays are read one at a time.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import math
import os
import re

from etils import epath
import jax.numpy as jnp
import numpy as np
import tensorstore

from t2t import UserError
from t2t.convert import flax_msgpack
from t2t.convert.lazy_tensors import Foreign, Tensor, check_finite, compare, expected
from t2t.models.config import TransformerConfig
from t2t.storage import gcs, safe_read, vocabulary_files

# ---- Names -----------------------------------------------------------------------------------------------------------

_KERNELS = ("query", "key", "value", "out")
_MLP = {True: {"gate": "wi_0", "up": "wi_1", "down": "wo"}, False: {"up": "wi", "down": "wo"}}
# Stack -> our attention -> T5X's name of it.
_ATTENTION = {
  "encoder": {"self_attention": "attention"},
  "decoder": {"self_attention": "self_attention", "cross_attention": "encoder_decoder_attention"},
}
_NORM = {"self_attention": "pre_{}_layer_norm", "cross_attention": "pre_cross_attention_layer_norm"}
_LAYER = "layers_{}"  # which layer an array belongs to
_RELATIVE = ("relpos_bias", "relative_posemb")  # what has the table of relative positions is called either


def names(model: TransformerConfig) -> dict[str, str]:
  """Path of our parameter -> T5X's, with `layers_{}` for the layers.

  Out: {"embed/table": "token_embedder/embedding",
        "encoder/layers/self_attention/query": "encoder/layers_{}/attention/query/kernel", ...}
  """
  table = {"embed/table": "token_embedder/embedding"}
  if not model.tied_logits:
    table["head/projection"] = "decoder/logits_dense/kernel"
  for stack, attentions in _ATTENTION.items():
    table[f"{stack}/norm/scale"] = f"{stack}/{stack}_norm/scale"
    table[f"{stack}/position_bias/table"] = f"{stack}/{_RELATIVE[0]}/rel_embedding"
    ours, theirs = f"{stack}/layers", f"{stack}/{_LAYER}"
    for attention, name in attentions.items():
      table[f"{ours}/{attention}_norm/scale"] = f"{theirs}/{_NORM[attention].format(name)}/scale"
      table |= {f"{ours}/{attention}/{kernel}": f"{theirs}/{name}/{kernel}/kernel" for kernel in _KERNELS}
    table[f"{ours}/mlp_norm/scale"] = f"{theirs}/pre_mlp_layer_norm/scale"
    table |= {f"{ours}/mlp/{kernel}": f"{theirs}/mlp/{name}/kernel" for kernel, name in _MLP[model.gated].items()}
  return table


# ---- Files -----------------------------------------------------------------------------------------------------------

_FIRST_KEYS = (
  # Of T5X's own files, and of those that Orbax wrote for it.
  *("version", "optimizer", "target", "state"),
  *("_optimizer", "flax_mutables", "flax_mutables_axes", "params_axes"),
)
# Of what T5X trains; its files of version 2 have bfloat16 as 16 bits, TensorStore a name of its own for it.
_ZARR_DTYPES = ("<f4", "<f2", "<f8", "<u2", "bfloat16", ">f4", ">f2", ">f8")
_MOST_PACKED, _SMALL = 4_096, 2**24  # numbers for a byte of compressed ones, of which more are zeros; numbers anyway
_PLACEHOLDER = "PLACEHOLDER://"
_STEP = re.compile(r"(?:.*\.)?checkpoint_(\d+)")
_PARAMETERS = "target"
_TENSORFLOW = b"model_checkpoint_path"  # what a folder of TensorFlow's has in its file `checkpoint`
TENSORFLOW = "is a TensorFlow checkpoint, as Mesh TensorFlow's T5 wrote them; t2t reads T5X's and Hugging Face's"


@dataclasses.dataclass(frozen=True)
class _Array:
  """An array of a checkpoint: `read(axis)` reads it with this axis in front."""

  shape: tuple[int, ...]
  dtype: np.dtype
  read: Callable[[int], np.ndarray]


def _file_or_folder(path: epath.Path) -> epath.Path | None:
  """The msgpack file of a checkpoint, or its folder if it has none."""
  if not path.is_dir():
    return path if flax_msgpack.first_key(path) in _FIRST_KEYS else None
  for folder in (path, path / "state"):
    file = folder / "checkpoint"
    if flax_msgpack.first_key(file) in _FIRST_KEYS:
      return file
  children = list(path.iterdir())
  for folder in (path, *(child for child in children if child.name == "state")):
    if any(safe_read.is_file(array / ".zarray") for array in _array_folders(folder)[:1]):
      return folder
  steps = [(int(match[1]), child) for child in children if (match := _STEP.fullmatch(child.name))]
  return _file_or_folder(max(steps)[1]) if steps else None


def _array_folders(folder: epath.Path) -> list[epath.Path]:
  return [child for child in folder.iterdir() if child.name.startswith(f"{_PARAMETERS}.")] if folder.is_dir() else []


def is_t5x(path: str) -> bool:
  """Whether there is a T5X checkpoint at `path`, or in it the last of several; looks at names and first bytes."""
  return _file_or_folder(gcs.absolute(path)) is not None


def _zarr(folder: epath.Path) -> dict:
  """What TensorStore opens."""
  path = os.fspath(folder)
  if path.startswith("gs://"):
    bucket, _, path = path.removeprefix("gs://").partition("/")
    return {"driver": "zarr", "kvstore": {"driver": "gcs", "bucket": bucket, "path": f"{path}/"}}
  return {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{path}/"}}


def _check_header(name: str, folder: epath.Path) -> bool:
  """What TensorStore is not asked to find out: it waits for pipes, and makes room for whatever is said.

  Returns:
    Whether the array has a fill value.  TensorStore, asked for it, keeps what it answers for ever.

  Raises:
    UserError: sizes, or a dtype, that no array of parameters has.
  """
  path = folder / ".zarray"
  wrong = lambda problem: UserError(
    f"{folder}: cannot be read as a zarr array of {name}: {problem}; copy the checkpoint again"
  )
  header = safe_read.read_json(path)
  shape, chunks, dtype = (header.get(key) for key in ("shape", "chunks", "dtype"))
  for key, sizes, least in (("shape", shape, 0), ("chunks", chunks, 1)):
    if not isinstance(sizes, list) or not all(type(size) is int and least <= size < 2**48 for size in sizes):
      raise wrong(f"its {key} is {str(sizes)[:40]}, no list of sizes")
  if len(shape) != len(chunks) or any(chunk > max(size, 1) for size, chunk in zip(shape, chunks, strict=True)):
    raise wrong(f"it has chunks of {str(chunks)[:40]} for an array of {str(shape)[:40]}")
  if dtype not in _ZARR_DTYPES:
    raise wrong(f"its dtype is {str(dtype)[:40]!r}, and that of parameters one of {', '.join(_ZARR_DTYPES)}")
  fills = header.get("fill_value") is not None
  if "://" in str(folder):
    return fills
  stored = 0
  for child in folder.iterdir():
    if not child.name.startswith("."):
      stored += safe_read.size(child)
  if math.prod(shape) > max(_SMALL, _MOST_PACKED * stored):
    raise wrong(f"it says an array of {shape}, but its chunks have {stored:,} bytes in all")
  return fills


def _open_all(folders: Mapping[str, epath.Path]) -> dict[str, _Array]:
  """The arrays in folders of their own, all opened at once."""
  fills = {name: _check_header(name, folder) for name, folder in folders.items()}
  opening = {name: tensorstore.open(_zarr(folder), open=True, read=True) for name, folder in folders.items()}
  stores = {}
  for name, future in opening.items():
    try:
      stores[name] = future.result()
    except Exception as error:  # each part of TensorStore raises something else
      raise UserError(f"{folders[name]}: cannot be read as a zarr array of {name}: {_first_line(error)}") from error
  listing = {name: store.kvstore.list() for name, store in stores.items()}
  for name, store in stores.items():
    if not fills[name]:
      _check_whole(folders[name], store, listing[name].result())
  return {name: _stored(folders[name], store) for name, store in stores.items()}


def _first_line(error: Exception) -> str:
  return str(error).split(" [tensorstore_spec")[0].split("\n")[0]


def _check_whole(folder: epath.Path, store: tensorstore.TensorStore, keys: list[bytes]) -> None:
  """TensorStore takes a chunk whose file is gone for zeros; without a fill value every chunk has been written."""
  chunks = store.chunk_layout.read_chunk.shape
  wanted = int(np.prod([-(-size // chunk) for size, chunk in zip(store.shape, chunks, strict=True)], dtype=np.int64))
  num_chunks = sum(not key.rpartition(b"/")[2].startswith(b".") for key in keys)
  if num_chunks < wanted:
    raise UserError(f"{folder}: {num_chunks} of its {wanted} chunks are there; copy the checkpoint again")


def _stored(folder: epath.Path, store: tensorstore.TensorStore) -> _Array:
  # T5X's files of version 2 hold bfloat16 as 16 bits without a meaning.
  dtype = store.dtype.numpy_dtype
  dtype = np.dtype(jnp.bfloat16) if dtype == np.uint16 else dtype

  def read(axis: int) -> np.ndarray:
    order = [axis, *(other_axis for other_axis in range(store.rank) if other_axis != axis)] if store.rank else []
    try:
      return store.transpose(order).read().result().view(dtype)
    except Exception as error:  # as above
      raise UserError(f"{folder} cannot be read: {_first_line(error)}; copy the checkpoint again") from error

  return _Array(tuple(store.shape), dtype, read)


def _in_file(array: flax_msgpack.MsgpackArray) -> _Array:
  return _Array(array.shape, array.dtype, lambda axis: np.moveaxis(array.read(), axis, 0) if axis else array.read())


def _leaves(tree: flax_msgpack.Tree, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], flax_msgpack.Tree]:
  """Path -> array, placeholder or specification of an array, of all that are there."""
  if isinstance(tree, dict) and (
    not {"driver", "kvstore"} <= tree.keys() or not isinstance(tree["kvstore"], str | dict)
  ):
    leaves = {}
    for key, child in tree.items():
      leaves |= _leaves(child, (*prefix, key))
    return leaves
  return {} if tree is None else {prefix: tree}


def _arrays(path: epath.Path) -> tuple[dict[str, _Array], int]:
  """The parameters of a checkpoint by name, "encoder/encoder_norm/scale", and how many other arrays it has."""
  if path.is_dir():
    folders = {child.name.split(".", 1)[1].replace(".", "/"): child for child in _array_folders(path)}
    num_other = sum(child.name.startswith("state.") for child in path.iterdir())
    return _open_all(folders), num_other
  tree = flax_msgpack.read(path)
  if not isinstance(tree, dict):
    raise UserError(f"{path}: is no checkpoint of T5X, whose first value is a dict; copy it again")
  for key in ("optimizer", "_optimizer"):
    tree = tree[key] if isinstance(tree.get(key), dict) else tree
  parameters = _leaves(tree.get(_PARAMETERS))
  folders, arrays = {}, {}
  for keys, leaf in parameters.items():
    name = "/".join(keys)
    if name in arrays or name in folders:
      raise UserError(f"{path}: two of its arrays are called {name}; take out the wrong one")
    if isinstance(leaf, flax_msgpack.MsgpackArray):
      arrays[name] = _in_file(leaf)
    elif isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER):
      folders[name] = _beside(path, leaf.removeprefix(_PLACEHOLDER), name)
    elif isinstance(leaf, dict):
      # Where it lay when it was written does not matter: beside this file, under its own name.
      store = leaf["kvstore"]
      where = store if isinstance(store, str) else store.get("path") or leaf.get("path")
      folders[name] = _beside(path, str(where), name)
    else:
      raise UserError(f"{path}: {name} is no array but {str(leaf)[:40]!r}")
  return arrays | _open_all(folders), len(_leaves(tree)) - len(parameters)


def _beside(path: epath.Path, where: str, name: str) -> epath.Path:
  """The folder of an array, which lies beside its file under the last part of the name that it had."""
  folder_name = epath.Path(where).name
  if not vocabulary_files.is_own(folder_name):
    raise UserError(f"{path}: {name} is said to lie at {where[:40]!r}, which names no folder beside it; copy it again")
  return path.parent / folder_name


# ---- The model -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Layers:
  """How the layers of one stack are stored.

  number: how many there are.
  scanned: what stands in place of `layers_{}`, if they are one array.
  axis: of layers, if they are one array.
  """

  number: int
  scanned: str = ""
  axis: int = 0

  def names(self, theirs: str) -> list[str]:
    """What a name is for each of the layers, or for all of them."""
    if self.scanned:
      return [theirs.replace(_LAYER, self.scanned)]
    return [theirs.format(index) for index in range(self.number)]


class _T5xReader:
  """The arrays of one checkpoint, and what their names and shapes say of the model."""

  def __init__(self, path: epath.Path, arrays: dict[str, _Array]):
    self.path = path
    self.arrays = arrays
    self.notes: list[str] = []
    self.vocab_size, self.embed_dim = self._shape("token_embedder/embedding", 2)
    self.layers = {stack: self._find_layers(stack) for stack in _ATTENTION}
    self._share_relative_positions()

  def _shape(self, name: str, *ranks: int) -> tuple[int, ...]:
    if name not in self.arrays:
      shown = ", ".join(sorted(self.arrays)[:3])
      raise UserError(
        f"{self.path}: {name} is missing, without which it is no encoder-decoder of T5X's; it has {shown or 'nothing'}"
        f"{f' and {len(self.arrays) - 3} more' if len(self.arrays) > 3 else ''}"
      )
    shape = self.arrays[name].shape
    if len(shape) not in ranks:
      raise UserError(
        f"{self.path}: {name}: expected {' or '.join(str(rank) for rank in ranks)} dimensions, found {list(shape)}"
      )
    return shape

  def _find_layers(self, stack: str) -> _Layers:
    numbered = [re.match(rf"{stack}/layers_(\d+)/", name) for name in self.arrays]
    indices = [int(match[1]) for match in numbered if match]
    if indices:
      return _Layers(max(indices) + 1)
    norm = f"{_NORM['self_attention'].format(_ATTENTION[stack]['self_attention'])}/scale"
    # Flaxformer names the layers of a scanned encoder `encoder`.
    scanned = stack if f"{stack}/{stack}/{norm}" in self.arrays else "layers"
    shape = self._shape(f"{stack}/{scanned}/{norm}", 2)
    axis = 1 if shape[0] == self.embed_dim else 0
    if shape[0] == shape[1]:
      self.notes.append(
        f"its {stack} has as many layers as features, {shape[0]}, so that shapes do not tell their axes apart: the"
        " second was taken for the layers, as T5X has it by default"
      )
    return _Layers(shape[axis], scanned, axis)

  def _share_relative_positions(self) -> None:
    """Keeps one table of relative positions for a stack, under one name, if all that are there are the same."""
    for stack, layers in self.layers.items():
      kept_name = f"{stack}/{_RELATIVE[0]}/rel_embedding"
      stack_names = [f"{stack}/{name}/rel_embedding" for name in _RELATIVE]
      of_layers = [layers.names(f"{stack}/{_LAYER}/{name}/rel_embedding") for name in _RELATIVE]
      present = [[name] for name in stack_names if name in self.arrays]
      present += [layer_names for layer_names in of_layers if all(name in self.arrays for name in layer_names)]
      if len(present) == 1 and present[0][0] in stack_names:
        self.arrays[kept_name] = self.arrays.pop(present[0][0])
      elif present:
        self.arrays[kept_name] = self._one_table(
          stack, present, is_whole=lambda name, stack_names=stack_names: name in stack_names
        )

  def _one_table(self, stack: str, names: list[list[str]], *, is_whole: Callable[[str], bool]) -> _Array:
    """The table that several arrays hold, which are taken out: of a stack, or of each of its layers.

    Raises:
      UserError: they differ.
    """
    axis, tables = self.layers[stack].axis, {}
    for group in names:
      for name in group:
        is_shared = is_whole(name)
        self._shape(name, 3 if self.layers[stack].scanned and not is_shared else 2)
        value = self.arrays.pop(name).read(0 if is_shared else axis)
        tables[name] = value[None] if value.ndim == 2 else value
    first_name, first = next(iter(tables.items()))
    differs = [name for name, x in tables.items() if x.shape[1:] != first.shape[1:] or not (x == first[:1]).all()]
    if differs and len(names) == 1:
      raise UserError(
        f"{self.path}: each layer of its {stack} has a table of relative positions of its own ({first_name}), as"
        " models that T5X's scalable_t5 trained and umT5 have; a t2t model has one table for a stack, so that"
        " this one cannot be converted without changing what it computes"
      )
    if differs:
      raise UserError(
        f"{self.path}: its {stack} has two tables of relative positions that differ, {first_name} and {differs[0]}; a"
        " t2t model has one for a stack. Take out the one that the model was not trained with"
      )
    if len(names) == 1:
      self.notes.append(f"the layers of its {stack} have the same table of relative positions each; one was kept")
    else:
      self.notes.append(f"its {stack} has the same table of relative positions under several names; one was kept")
    value = first[0]
    return _Array(value.shape, value.dtype, lambda axis: np.moveaxis(value, axis, 0))

  def _of_one_layer(self, theirs: str, *ranks: int) -> tuple[int, ...]:
    """The shape that an array of the encoder has in one layer."""
    layers = self.layers["encoder"]
    shape = list(self._shape(layers.names(theirs)[0], *(rank + bool(layers.scanned) for rank in ranks)))
    if layers.scanned:
      shape.pop(layers.axis)
    return tuple(shape)

  def config(self) -> TransformerConfig:
    """The model: what shapes do not say is as in T5."""
    heads, buckets = self._shape(f"encoder/{_RELATIVE[0]}/rel_embedding", 2)
    query = self._of_one_layer(f"encoder/{_LAYER}/attention/query/kernel", 2, 3)
    gated = any("/mlp/wi_0/" in name for name in self.arrays)
    mlp = self._of_one_layer(f"encoder/{_LAYER}/mlp/{_MLP[gated]['up']}/kernel", 2)
    joined = int(np.prod(query[1:]))
    if joined % heads:
      raise UserError(
        f"{self.path}: {heads} heads, by the table of relative positions, do not divide the {joined} columns of"
        " encoder/.../query/kernel"
      )
    return TransformerConfig(
      architecture="encoder_decoder",
      vocab_size=self.vocab_size,
      embed_dim=self.embed_dim,
      num_heads=heads,
      head_dim=joined // heads,
      mlp_dim=mlp[1],
      num_encoder_layers=self.layers["encoder"].number,
      num_decoder_layers=self.layers["decoder"].number,
      relative_position_buckets=buckets,
      mlp_activation="gated_gelu" if gated else "relu",
      tied_logits="decoder/logits_dense/kernel" not in self.arrays,
      dtype="float32",
    )

  def tensors(self, model: TransformerConfig) -> dict[str, Tensor]:
    """Our parameters.

    Raises:
      UserError: arrays are missing, left over, or of another shape than the others ask for.
    """
    wanted, places, shapes = {}, {}, expected(model)
    for ours, theirs in names(model).items():
      layers = self.layers[ours.split("/")[0]] if _LAYER in theirs else None
      places[ours] = ([theirs], layers) if layers is None else (layers.names(theirs), layers)
      for name in places[ours][0]:
        rank = len(self.arrays[name].shape) if name in self.arrays else 0
        wanted[name] = _theirs(ours, shapes[ours].shape, layers, rank=rank, head_dim=model.head_dim)
    hint = "expected is what the sizes of the embedding, the relative positions and the encoder's first layer ask for"
    compare(str(self.path), {name: array.shape for name, array in self.arrays.items()}, wanted, hint=hint)
    return {ours: self._tensor(ours, shapes[ours].shape, *sources) for ours, sources in places.items()}

  def _tensor(self, ours: str, shape: tuple[int, ...], array_names: list[str], layers: _Layers | None) -> Tensor:
    stacked = layers is not None and not layers.scanned
    part_shape = shape[1:] if stacked else shape

    def part(name: str) -> np.ndarray:
      array = self.arrays[name].read(0 if layers is None else layers.axis)
      check_finite(array, f"{self.path}: {name}")
      # A table of relative positions is [heads, buckets]; heads that are an axis of their own are joined.
      return array.T if _is_transposed(ours) else array.reshape(part_shape)

    parts = tuple(functools.partial(part, name) for name in array_names)
    return Tensor(shape, self.arrays[array_names[0]].dtype, parts, stacked=stacked)


def _is_transposed(ours: str) -> bool:
  return ours.endswith("position_bias/table")


def _theirs(ours: str, shape: tuple[int, ...], layers: _Layers | None, *, rank: int, head_dim: int) -> tuple[int, ...]:
  """The shape of T5X's array: one layer of our parameter, with the axis of layers where it is; heads joined or not."""
  if layers is None:
    return shape[::-1] if _is_transposed(ours) else shape
  layer_shape = list(shape[1:])
  heads_axis = {"query": 1, "key": 1, "value": 1, "out": 0}.get(ours.rpartition("/")[2])
  if heads_axis is not None and rank == len(layer_shape) + 1 + bool(layers.scanned):
    layer_shape[heads_axis : heads_axis + 1] = [layer_shape[heads_axis] // head_dim, head_dim]
  if layers.scanned:
    layer_shape.insert(layers.axis, layers.number)
  return tuple(layer_shape)


def open_foreign(path: str, *, where: str = "") -> Foreign:
  """The T5X checkpoint at `path`, of which no array is read yet.

  Args:
    path: its folder or single file, or a folder of which it is the last; local or gs://. A single file of a bucket is
      read whole, a local one array by array.
    where: what the user named it with, for messages.

  Raises:
    UserError: no T5X checkpoint, one that is cut off, of something else than an encoder-decoder, or with arrays
      missing, unknown or of a wrong shape.
  """
  root = gcs.absolute(path)
  checkpoint_path = _file_or_folder(root)
  if checkpoint_path is None:
    raise UserError(f"{where}{_nothing_there(root, path)}")
  arrays, num_other = _arrays(checkpoint_path)
  reader = _T5xReader(checkpoint_path, arrays)
  model = reader.config()
  tensors = reader.tensors(model)
  activation = "gelu (the tanh approximation) times a gate" if model.gated else "relu"
  notes = [
    *([f"its optimizer's state was left out ({num_other:,} arrays)"] if num_other else []),
    *reader.notes,
    f"assumed, since a T5X checkpoint does not say it: {activation} in the feed-forward layers"
    f" (config.model.mlp_activation={model.mlp_activation}; UL2's is gated_silu), relative positions up to"
    f" {model.relative_position_max_distance} and norms with epsilon {model.norm_epsilon:g}, as in T5",
    f"a T5X checkpoint has no vocabulary, and its embedding has {model.vocab_size:,} rows: name the one that it was"
    " trained with, T5's spiece.model for example, to `t2t convert` with --vocabulary, or later to `t2t train` and"
    " `t2t eval` with --config.data.vocabulary",
  ]
  return Foreign(
    path=checkpoint_path
    if checkpoint_path.is_dir()
    else checkpoint_path.parent
    if checkpoint_path.name == "checkpoint"
    else checkpoint_path,
    kind="t5x",
    model=model,
    vocabulary="",
    extra_ids=100,
    lengths={"inputs_length": 512, "targets_length": 114},
    tensors=tensors,
    notes=tuple(notes),
  )


def _nothing_there(root: epath.Path, path: str) -> str:
  if not root.exists():
    return f"{path}: no such file or folder"
  if is_tensorflow(root):
    return f"{path}: {TENSORFLOW}"
  return f"{path}: no T5X checkpoint there; looked for {looked_for(root)}"


def looked_for(root: epath.Path) -> str:
  """What would have been a T5X checkpoint at `root`, for messages."""
  return (
    f"msgpack in {root} and {root}/checkpoint, for folders {root}/target.*/ with .zarray, and for the last"
    f" {root}/checkpoint_STEP"
  )


def is_tensorflow(root: epath.Path) -> bool:
  """Whether a checkpoint of TensorFlow's is at `root`, which nothing here reads."""
  if any(root.glob("model.ckpt-*.index")):
    return True
  file = root / "checkpoint" if root.is_dir() else root
  if not safe_read.is_file(file):
    return False
  with file.open("rb") as head:
    return head.read(len(_TENSORFLOW)) == _TENSORFLOW
