"""Reads T5X checkpoints as t2t models: folders of zarr arrays, and single msgpack files.

A checkpoint is a tree {"target": parameters, "state": optimizer}, in msgpack.  Its arrays are in the tree, or in a
folder each, written by TensorStore: target.decoder.decoder_norm.scale/.zarray.  Layers are `layers_0`, `layers_1`, ...
or, if T5X scans them, one array with a layer axis, the second one.

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
# Stack -> t2t's attention -> T5X's name.
_ATTENTION = {
  "encoder": {"self_attention": "attention"},
  "decoder": {"self_attention": "self_attention", "cross_attention": "encoder_decoder_attention"},
}
_NORM = {"self_attention": "pre_{}_layer_norm", "cross_attention": "pre_cross_attention_layer_norm"}
_LAYER = "layers_{}"  # path segment of a layer
_RELATIVE = ("relpos_bias", "relative_posemb")  # alternative names of the relative position table


def names(model: TransformerConfig) -> dict[str, str]:
  """Returns path of a t2t parameter -> T5X's, with `layers_{}` for the layers.

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
  # Keys of T5X's own files, and of files that Orbax wrote for it.
  *("version", "optimizer", "target", "state"),
  *("_optimizer", "flax_mutables", "flax_mutables_axes", "params_axes"),
)
# Dtypes of T5X; its files of version 2 store bfloat16 as 16 bits, and TensorStore has its own name.
_ZARR_DTYPES = ("<f4", "<f2", "<f8", "<u2", "bfloat16", ">f4", ">f2", ">f8")
# limits of numbers per compressed byte (more are zeros), and of numbers at any compression
_MOST_PACKED, _SMALL = 4_096, 2**24
_PLACEHOLDER = "PLACEHOLDER://"
_STEP = re.compile(r"(?:.*\.)?checkpoint_(\d+)")
_PARAMETERS = "target"
_TENSORFLOW = b"model_checkpoint_path"  # content of TensorFlow's file `checkpoint`
TENSORFLOW = "is a TensorFlow checkpoint of Mesh TensorFlow's T5. Convert it to T5X or Hugging Face first."


@dataclasses.dataclass(frozen=True)
class _Array:
  """An array of a checkpoint: `read(axis)` reads it with this axis first."""

  shape: tuple[int, ...]
  dtype: np.dtype
  read: Callable[[int], np.ndarray]


def _file_or_folder(path: epath.Path) -> epath.Path | None:
  """Returns the msgpack file of a checkpoint, or its folder if it has none."""
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
  """Returns whether a T5X checkpoint, or a folder of several, is at `path`; reads file names and first bytes."""
  return _file_or_folder(gcs.absolute(path)) is not None


def _zarr(folder: epath.Path) -> dict:
  """Returns TensorStore's spec."""
  path = os.fspath(folder)
  if path.startswith("gs://"):
    bucket, _, path = path.removeprefix("gs://").partition("/")
    return {"driver": "zarr", "kvstore": {"driver": "gcs", "bucket": bucket, "path": f"{path}/"}}
  return {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{path}/"}}


def _check_header(name: str, folder: epath.Path) -> bool:
  """Checks an array's header before TensorStore, which waits for pipes and allocates any size.

  Returns:
    Whether the array has a fill value.  (TensorStore caches its answer forever.)

  Raises:
    UserError: sizes or dtype are impossible for parameters.
  """
  path = folder / ".zarray"
  wrong = lambda problem: UserError(
    f"{folder} cannot be read as the zarr array {name}: {problem}. Copy the checkpoint again."
  )
  header = safe_read.read_json(path)
  shape, chunks, dtype = (header.get(key) for key in ("shape", "chunks", "dtype"))
  for key, sizes, least in (("shape", shape, 0), ("chunks", chunks, 1)):
    if not isinstance(sizes, list) or not all(type(size) is int and least <= size < 2**48 for size in sizes):
      raise wrong(f"the {key} is {str(sizes)[:40]}, not a list of sizes")
  if len(shape) != len(chunks) or any(chunk > max(size, 1) for size, chunk in zip(shape, chunks, strict=True)):
    raise wrong(f"chunks of {str(chunks)[:40]} do not fit an array of {str(shape)[:40]}")
  if dtype not in _ZARR_DTYPES:
    raise wrong(f"the dtype is {str(dtype)[:40]!r}, but parameters must have one of {', '.join(_ZARR_DTYPES)}")
  fills = header.get("fill_value") is not None
  if "://" in str(folder):
    return fills
  stored = 0
  for child in folder.iterdir():
    if not child.name.startswith("."):
      stored += safe_read.size(child)
  if math.prod(shape) > max(_SMALL, _MOST_PACKED * stored):
    raise wrong(f"the header describes an array of shape {shape}, but all chunks together have only {stored:,} bytes")
  return fills


def _open_all(folders: Mapping[str, epath.Path]) -> dict[str, _Array]:
  """Opens arrays in separate folders concurrently."""
  fills = {name: _check_header(name, folder) for name, folder in folders.items()}
  opening = {name: tensorstore.open(_zarr(folder), open=True, read=True) for name, folder in folders.items()}
  stores = {}
  for name, future in opening.items():
    try:
      stores[name] = future.result()
    except Exception as error:  # TensorStore raises many classes
      raise UserError(
        f"{folders[name]} cannot be read as the zarr array {name}: {_first_line(error)}. Copy the checkpoint again."
      ) from error
  listing = {name: store.kvstore.list() for name, store in stores.items()}
  for name, store in stores.items():
    if not fills[name]:
      _check_whole(folders[name], store, listing[name].result())
  return {name: _stored(folders[name], store) for name, store in stores.items()}


def _first_line(error: Exception) -> str:
  return str(error).split(" [tensorstore_spec")[0].split("\n")[0]


def _check_whole(folder: epath.Path, store: tensorstore.TensorStore, keys: list[bytes]) -> None:
  """Checks the number of chunks, because TensorStore reads a missing chunk as zeros; without a fill value none may be
  missing.
  """
  chunks = store.chunk_layout.read_chunk.shape
  wanted = int(np.prod([-(-size // chunk) for size, chunk in zip(store.shape, chunks, strict=True)], dtype=np.int64))
  num_chunks = sum(not key.rpartition(b"/")[2].startswith(b".") for key in keys)
  if num_chunks < wanted:
    raise UserError(f"{folder}: only {num_chunks} of {wanted} chunks exist. Copy the checkpoint again.")


def _stored(folder: epath.Path, store: tensorstore.TensorStore) -> _Array:
  # T5X's files of version 2 store bfloat16 as 16-bit integers.
  dtype = store.dtype.numpy_dtype
  dtype = np.dtype(jnp.bfloat16) if dtype == np.uint16 else dtype

  def read(axis: int) -> np.ndarray:
    order = [axis, *(other_axis for other_axis in range(store.rank) if other_axis != axis)] if store.rank else []
    try:
      return store.transpose(order).read().result().view(dtype)
    except Exception as error:  # many classes, as above
      raise UserError(f"{folder} cannot be read: {_first_line(error)}. Copy the checkpoint again.") from error

  return _Array(tuple(store.shape), dtype, read)


def _in_file(array: flax_msgpack.MsgpackArray) -> _Array:
  return _Array(array.shape, array.dtype, lambda axis: np.moveaxis(array.read(), axis, 0) if axis else array.read())


def _leaves(tree: flax_msgpack.Tree, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], flax_msgpack.Tree]:
  """Returns path -> array, placeholder or array specification, for all leaves."""
  if isinstance(tree, dict) and (
    not {"driver", "kvstore"} <= tree.keys() or not isinstance(tree["kvstore"], str | dict)
  ):
    leaves = {}
    for key, child in tree.items():
      leaves |= _leaves(child, (*prefix, key))
    return leaves
  return {} if tree is None else {prefix: tree}


def _arrays(path: epath.Path) -> tuple[dict[str, _Array], int]:
  """Returns the parameters of a checkpoint by name, "encoder/encoder_norm/scale", and the number of other arrays."""
  if path.is_dir():
    folders = {child.name.split(".", 1)[1].replace(".", "/"): child for child in _array_folders(path)}
    num_other = sum(child.name.startswith("state.") for child in path.iterdir())
    return _open_all(folders), num_other
  tree = flax_msgpack.read(path)
  if not isinstance(tree, dict):
    raise UserError(
      f"{path} is not a T5X checkpoint, because the file does not begin with a dict. Copy the file again."
    )
  for key in ("optimizer", "_optimizer"):
    tree = tree[key] if isinstance(tree.get(key), dict) else tree
  parameters = _leaves(tree.get(_PARAMETERS))
  folders, arrays = {}, {}
  for keys, leaf in parameters.items():
    name = "/".join(keys)
    if name in arrays or name in folders:
      raise UserError(f"{path}: two arrays have the name {name}. Give another checkpoint.")
    if isinstance(leaf, flax_msgpack.MsgpackArray):
      arrays[name] = _in_file(leaf)
    elif isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER):
      folders[name] = _beside(path, leaf.removeprefix(_PLACEHOLDER), name)
    elif isinstance(leaf, dict):
      # The recorded folder may have moved: use the folder of the same name beside this file.
      store = leaf["kvstore"]
      where = store if isinstance(store, str) else store.get("path") or leaf.get("path")
      folders[name] = _beside(path, str(where), name)
    else:
      raise UserError(f"{path}: {name} is {str(leaf)[:40]!r}, not an array. Copy the checkpoint again.")
  return arrays | _open_all(folders), len(_leaves(tree)) - len(parameters)


def _beside(path: epath.Path, where: str, name: str) -> epath.Path:
  """Returns the folder of an array: beside its file, with the last part of the recorded name."""
  folder_name = epath.Path(where).name
  if not vocabulary_files.is_own(folder_name):
    raise UserError(f"{path}: {name} refers to {where[:40]!r}, which is not a folder name. Copy the checkpoint again.")
  return path.parent / folder_name


# ---- Model -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Layers:
  """Storage of the layers of one stack.

  number: of layers.
  scanned: replaces `layers_{}`, if the layers are one array.
  axis: of layers, if they are one array.
  """

  number: int
  scanned: str = ""
  axis: int = 0

  def names(self, theirs: str) -> list[str]:
    """Returns the names of an array for each layer, or the one for all of them."""
    if self.scanned:
      return [theirs.replace(_LAYER, self.scanned)]
    return [theirs.format(index) for index in range(self.number)]


class _T5xReader:
  """The arrays of one checkpoint; their names and shapes determine the model."""

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
        f"{self.path} is not a T5X encoder-decoder: the array {name} is missing. Arrays: {shown or 'none'}"
        f"{f' and {len(self.arrays) - 3} more' if len(self.arrays) > 3 else ''}. Give another checkpoint."
      )
    shape = self.arrays[name].shape
    if len(shape) not in ranks:
      raise UserError(
        f"{self.path}: {name} has the shape {list(shape)}, but must have {' or '.join(str(rank) for rank in ranks)} "
        "dimensions"
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
        f"the {stack} has as many layers as features, {shape[0]}, and shapes do not distinguish these axes: the"
        " second axis was taken as the layer axis, T5X's default"
      )
    return _Layers(shape[axis], scanned, axis)

  def _share_relative_positions(self) -> None:
    """Keeps one table of relative positions per stack, under one name, if all tables are equal."""
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
    """Removes several arrays of a stack, or of its layers, and returns their common table.

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
        f"{self.path}: each layer of the {stack} has a separate table of relative positions ({first_name}), as in"
        " umT5 and models trained by T5X's scalable_t5. t2t's model has one table per stack, and cannot represent"
        " this checkpoint."
      )
    if differs:
      raise UserError(
        f"{self.path}: the {stack} has two different tables of relative positions, {first_name} and {differs[0]},"
        " but t2t's model has only one table. Remove the table that the model was not trained with."
      )
    if len(names) == 1:
      self.notes.append(f"all layers of the {stack} have the same table of relative positions; one table was kept")
    else:
      self.notes.append(f"the {stack} has the same table of relative positions under several names; one table was kept")
    value = first[0]
    return _Array(value.shape, value.dtype, lambda axis: np.moveaxis(value, axis, 0))

  def _of_one_layer(self, theirs: str, *ranks: int) -> tuple[int, ...]:
    """Returns the shape of an encoder array for one layer."""
    layers = self.layers["encoder"]
    shape = list(self._shape(layers.names(theirs)[0], *(rank + bool(layers.scanned) for rank in ranks)))
    if layers.scanned:
      shape.pop(layers.axis)
    return tuple(shape)

  def config(self) -> TransformerConfig:
    """Returns the model's config; T5's settings replace what shapes do not determine."""
    heads, buckets = self._shape(f"encoder/{_RELATIVE[0]}/rel_embedding", 2)
    query = self._of_one_layer(f"encoder/{_LAYER}/attention/query/kernel", 2, 3)
    gated = any("/mlp/wi_0/" in name for name in self.arrays)
    mlp = self._of_one_layer(f"encoder/{_LAYER}/mlp/{_MLP[gated]['up']}/kernel", 2)
    joined = int(np.prod(query[1:]))
    if joined % heads:
      raise UserError(
        f"{self.path}: the {heads} heads of the table of relative positions do not divide the {joined} columns of"
        " encoder/.../query/kernel. Copy the checkpoint again."
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
    """Returns t2t's parameters.

    Raises:
      UserError: arrays are missing, left over, or have inconsistent shapes.
    """
    wanted, places, shapes = {}, {}, expected(model)
    for ours, theirs in names(model).items():
      layers = self.layers[ours.split("/")[0]] if _LAYER in theirs else None
      places[ours] = ([theirs], layers) if layers is None else (layers.names(theirs), layers)
      for name in places[ours][0]:
        rank = len(self.arrays[name].shape) if name in self.arrays else 0
        wanted[name] = _theirs(ours, shapes[ours].shape, layers, rank=rank, head_dim=model.head_dim)
    hint = "the expected shapes follow from the embedding, the relative positions and the encoder's first layer"
    compare(str(self.path), {name: array.shape for name, array in self.arrays.items()}, wanted, hint=hint)
    return {ours: self._tensor(ours, shapes[ours].shape, *sources) for ours, sources in places.items()}

  def _tensor(self, ours: str, shape: tuple[int, ...], array_names: list[str], layers: _Layers | None) -> Tensor:
    stacked = layers is not None and not layers.scanned
    part_shape = shape[1:] if stacked else shape

    def part(name: str) -> np.ndarray:
      array = self.arrays[name].read(0 if layers is None else layers.axis)
      check_finite(array, f"{self.path}: {name}")
      # A table of relative positions is [heads, buckets]; a separate head axis is joined.
      return array.T if _is_transposed(ours) else array.reshape(part_shape)

    parts = tuple(functools.partial(part, name) for name in array_names)
    return Tensor(shape, self.arrays[array_names[0]].dtype, parts, stacked=stacked)


def _is_transposed(ours: str) -> bool:
  return ours.endswith("position_bias/table")


def _theirs(ours: str, shape: tuple[int, ...], layers: _Layers | None, *, rank: int, head_dim: int) -> tuple[int, ...]:
  """Returns the shape of T5X's array for a t2t parameter: one layer, or with a layer axis; heads joined or not."""
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
  """Opens the T5X checkpoint at `path` with lazy parameters.

  Args:
    path: its folder or single file, or a folder with several checkpoints, of which the last is taken; local or gs://. A
      single file in a bucket is read whole, a local one array by array.
    where: the option or key of the path, for messages.

  Raises:
    UserError: it is not a T5X checkpoint, is truncated, is not an encoder-decoder, or has missing, unknown or wrongly
      shaped arrays.
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
    *([f"the optimizer's state was left out ({num_other:,} arrays)"] if num_other else []),
    *reader.notes,
    f"assumed, because a T5X checkpoint does not store it: {activation} in the feed-forward layers"
    f" (config.model.mlp_activation={model.mlp_activation}; UL2's is gated_silu), relative positions up to"
    f" {model.relative_position_max_distance} and norms with epsilon {model.norm_epsilon:g}, as in T5",
    f"a T5X checkpoint has no vocabulary, and its embedding has {model.vocab_size:,} rows: give the vocabulary of its"
    " training, for example T5's spiece.model, to `t2t convert` with --vocabulary, or later to `t2t train` and"
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
    return f"{path}: no such file or folder. Check the path."
  if is_tensorflow(root):
    return f"{path} {TENSORFLOW}"
  return f"{path}: no T5X checkpoint; looked for {looked_for(root)}"


def looked_for(root: epath.Path) -> str:
  """Describes the searched paths of a T5X checkpoint at `root`, for messages."""
  return (
    f"msgpack in {root} and {root}/checkpoint, for folders {root}/target.*/ with .zarray, and for the last"
    f" {root}/checkpoint_STEP"
  )


def is_tensorflow(root: epath.Path) -> bool:
  """Returns whether a TensorFlow checkpoint is at `root`; t2t cannot read it."""
  if any(root.glob("model.ckpt-*.index")):
    return True
  file = root / "checkpoint" if root.is_dir() else root
  if not safe_read.is_file(file):
    return False
  with file.open("rb") as head:
    return head.read(len(_TENSORFLOW)) == _TENSORFLOW
