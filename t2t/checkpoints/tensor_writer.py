"""Writes and reads converted checkpoints in t2t's format, parameter by parameter.

The files equal the output of Orbax for a `TrainState` without an optimizer, so that all of t2t reads them.  Orbax
needs every array in memory at once; the handler here reads and writes one parameter at a time.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import json
import os
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore

from t2t import UserError
from t2t.checkpoints import base_model_ref, manager, manifest, pretrained, restore, verify
from t2t.convert import atomic_output, vocab_override
from t2t.convert.lazy_tensors import Foreign, Tensor
from t2t.models import adapters as adapters_lib
from t2t.models.config import TransformerConfig
from t2t.param_tree import flatten, unflatten
from t2t.storage import vocabulary_files

_CHUNK_BYTES = 1 << 25  # for unstacked parameters; stacked ones have a chunk per layer


class _TensorHandler(ocp.type_handlers.NumpyHandler):
  """Reserves `Tensor`s in an Orbax checkpoint; `_StateHandler` writes them."""

  def __init__(self):
    super().__init__(deepcopy_host_arrays=False)
    self.waiting: list[tuple[Tensor, ocp.type_handlers.ParamInfo]] = []

  async def serialize(self, values, infos, args=None):
    """Defers the write, because a failure here would make Orbax's threads wait for each other for minutes."""
    del args
    self.waiting += zip(values, infos, strict=True)
    return []


class _StateHandler(ocp.PyTreeCheckpointHandler):
  """Writes `Tensor`s one layer or matrix at a time, after the rest of a checkpoint."""

  def __init__(self, advance: atomic_output.Progress = lambda *_: None):
    self._advance, self._tensors = advance, _TensorHandler()
    registry = ocp.type_handlers.create_type_handler_registry(
      (Tensor, self._tensors), (jax.Array, ocp.type_handlers.ArrayHandler())
    )
    super().__init__(type_handler_registry=registry)

  def finalize(self, directory: epath.Path) -> None:
    """Writes the tensors before Orbax gives the checkpoint its name."""
    # Orbax merges the arrays of all hosts here; the tensors are written like arrays of another host.
    arrays = directory / "ocdbt.process_converted"
    for tensor, info in self._tensors.waiting:
      spec = _spec(arrays, info.name) | _layout(tensor) | {"context": {"file_io_sync": False}}
      store = tensorstore.open(spec, create=True, context=info.ts_context).result()
      for index, read in enumerate(tensor.parts):
        part = np.ascontiguousarray(read(), np.float32)
        target = store[index] if tensor.stacked else store
        target.write(part, can_reference_source_data_indefinitely=True).result()
        self._advance(part.nbytes, 0)
      self._advance(0, 1)
    _flush(arrays)
    super().finalize(directory)


@ocp.args.register_with_handler(_StateHandler, for_save=True, for_restore=True)  # Orbax needs a handler for both
@dataclasses.dataclass
class _StateSave(ocp.args.PyTreeSave):
  """A tree of `Tensor`s and arrays."""


def _flush(folder: epath.Path) -> None:
  """Flushes the files to disk once, because flushing after each write takes more than half of the time."""
  if "://" not in str(folder):
    for parent, _, names in folder.walk():
      for name in names:
        with open(parent / name, "r+b") as file:  # Windows flushes only files open for writing
          os.fsync(file.fileno())


def _spec(directory: epath.Path, name: str) -> dict[str, Any]:
  """Returns TensorStore's spec of a parameter in an Orbax checkpoint."""
  folder = f"{directory.as_posix()}/"
  base = folder if "://" in folder else {"driver": "file", "path": folder}
  return {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}}


def _layout(tensor: Tensor) -> dict[str, Any]:
  """Returns chunks and compression as Orbax uses them, with one chunk per layer."""
  chunks = list(tensor.shape)
  if tensor.shape:
    rows = _CHUNK_BYTES // max(1, tensor.nbytes // max(1, tensor.shape[0]))
    chunks[0] = 1 if tensor.stacked else min(max(1, rows), tensor.shape[0])
  metadata = {"shape": list(tensor.shape), "chunks": chunks, "dtype": "<f4", "compressor": {"id": "zstd", "level": 1}}
  return {"metadata": metadata, "store_data_equal_to_fill_value": True}


def save(
  foreign: Foreign,
  out: epath.Path,
  *,
  config: Mapping[str, object] | None = None,
  base: base_model_ref.Base | None = None,
  advance: atomic_output.Progress = lambda *_: None,
) -> None:
  """Writes a workdir for `config.init.checkpoint` and evaluation: OUT/checkpoints/0, config, vocabulary.

  At most one layer or matrix is in memory at a time.  An interruption leaves nothing under the name `out`.

  Args:
    foreign: the checkpoint, checked.
    out: a folder that does not exist or is empty.
    config: of the run; None: see `run_config`.
    base: reference to parameters that are left out; None: all are written.
    advance: see `atomic_output.Progress`.

  Raises:
    UserError: `out` is not empty, or the disk is full.
  """
  config = run_config(foreign, out) if config is None else config
  with atomic_output.whole(out, sum(tensor.nbytes for tensor in foreign.tensors.values())) as folder:
    if foreign.vocabulary:
      vocab_override.save(foreign, folder / manager.VOCABULARY)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    # Parameters come last: in a bucket, without atomic renames, they make it a checkpoint.
    tensors: Any = dict(foreign.tensors)  # read while they are written
    state = {
      "step": jnp.zeros((), jnp.int32),
      "params": unflatten(tensors),
    }
    items: dict[str, Any] = {"state": _StateSave(state), "config": ocp.args.JsonSave(config)}
    if base is not None:
      items[verify.BASE] = ocp.args.JsonSave(base.to_dict())
    as_json: Any = {name: ocp.JsonCheckpointHandler() for name in items if name != "state"}
    handler = ocp.CompositeCheckpointHandler(state=_StateHandler(advance), **as_json)
    with ocp.Checkpointer(handler) as checkpointer:
      checkpointer.save(folder / "checkpoints" / "0", args=ocp.args.Composite(**items))
    manifest.write(folder / "checkpoints" / "0", 0)


# Default objective of each architecture.
_OBJECTIVES = {"encoder_decoder": "span_corruption", "decoder_only": "causal_lm", "encoder_only": "masked_lm"}


def run_config(foreign: Foreign, out: epath.Path) -> dict[str, object]:
  """Returns a config for this checkpoint: its known settings, otherwise configs/default.py."""
  from t2t.configs import default

  config = default.get_config()
  config.model.update(dataclasses.asdict(foreign.model))
  config.data.update(foreign.lengths)
  config.data.objective = _OBJECTIVES[foreign.model.architecture]
  config.data.update(vocabulary_keys(foreign, out))
  return json.loads(config.to_json_best_effort())


def vocabulary_keys(foreign: Foreign, out: epath.Path) -> dict[str, object]:
  """Returns keys of config.data for the vocabulary beside the parameters."""
  spec = str(out / manager.VOCABULARY) if foreign.vocabulary else ""
  return {"extra_ids": foreign.extra_ids, "vocabulary": spec}


# ---- Reading ---------------------------------------------------------------------------------------------------------


_LENGTHS = ("inputs_length", "targets_length")  # keys of config.data


def open_foreign(path: str, *, where: str = "", weights: str = "") -> Foreign:
  """Opens a t2t checkpoint as lazy tensors; adapters are merged.

  Args:
    path: a workdir or one of its checkpoints.
    where: the option or key of the path, for messages.
    weights: see `pretrained.Source`.

  Raises:
    UserError: there is none, it is damaged, its base has changed, or its adapter cannot be merged.
  """
  source = pretrained.read_source(path, where=where, weights=weights)
  if there := adapters_lib.kept(source.adapters):
    raise UserError(
      f"{where}{path}: the model has the adapter config.{'/'.join(there)}, which cannot be merged. Use the checkpoint "
      "with t2t eval, infer and embed, or give --to peft if PEFT supports this adapter."
    )
  tensors, beside = _tensors(source, where)
  tensors = _merged(tensors, source.adapters)
  extra_ids, vocabulary = 0, ""
  if source.vocabulary:
    folder = epath.Path(source.vocabulary)
    record = vocabulary_files.read_record(folder)
    extra_ids, vocabulary = record.extra_ids, record.spec(folder)
  notes = tuple(f"only the {source.part} is converted, without the {name}" for name in beside)
  data: Any = source.run.get("data", {})
  table = data.get("table") or {}
  if table and table["prefix"] and source.model.kind.is_generative and not source.model.heads:
    notes += (
      f"it was trained with the prefix {table['prefix']!r} before each input: add it to your inputs; only t2t "
      "adds it automatically",
    )
  lengths = {key: length for key in _LENGTHS if (length := data.get(key))}
  # Remove the folder names of the training machine.
  table = {key: os.path.basename(x) if key in ("files", "eval_files") else x for key, x in table.items()}
  model, tensors = _with_sum(source.model, tensors)
  return Foreign(source.path, "t2t", model, vocabulary, extra_ids, lengths, tensors, notes=notes, table=table)


def _with_sum(model: TransformerConfig, tensors: dict[str, Tensor]) -> tuple[TransformerConfig, dict[str, Tensor]]:
  """Replaces the token embedding and its difference by their sum; other models are unchanged."""
  if not model.embedding_difference:
    return model, tensors
  totals = dict(tensors)
  for path in [path for path in tensors if path.endswith("embed/difference")]:
    difference, name = totals.pop(path), f"{path.removesuffix('difference')}table"
    read = lambda table=tensors[name], difference=difference: table.read() + difference.read()
    totals[name] = Tensor(difference.shape, np.dtype(np.float32), (read,))
  return dataclasses.replace(model, embedding_difference=False), totals


def _tensors(source: pretrained.Source, where: str) -> tuple[dict[str, Tensor], list[str]]:
  """Returns the unmerged parameters of a checkpoint's model, and the names of jointly trained modules.

  Raises:
    UserError: it is damaged, or its base has changed.
  """
  trained, frozen, beside = saved(source, where)
  tensors = trained | frozen
  return tensors | of_base(source, every=False), beside


def saved(source: pretrained.Source, where: str) -> tuple[dict[str, Tensor], dict[str, Tensor], list[str]]:
  """Returns trained and frozen parameters in a checkpoint's own files, and the names of jointly trained modules.

  Raises:
    UserError: it is damaged.
  """
  verify.check(source.path, where=where)
  tree: Any = restore.saved_tree(source.path)

  def part(*keys: str) -> dict[str, Tensor]:
    # Leave out modules that were only trained beside the model.
    saved_tensors, prefix = {}, source.prefix
    arrays = functools.reduce(lambda tree, key: tree.get(key) or {}, keys, tree)
    flat = arrays if restore.is_flat(keys) else flatten(arrays)
    for path, array in flat.items():
      if hasattr(array, "shape") and path not in restore.UNREAD and path.startswith(prefix):
        name = path if restore.is_flat(keys) else path.replace("/", ".")
        saved_tensors[path.removeprefix(prefix)] = _saved_tensor(
          source.path / "state", ".".join((*keys, name)), tuple(array.shape), stacked="/layers/" in path
        )
    return saved_tensors

  beside = sorted({name.split("/")[0] for name in tree.get("params") or {}} - {source.part}) if source.part else []
  keys = restore.trained_keys(tree, source.run, source.weights)
  trained = part(*keys)
  if restore.is_flat(keys):
    from t2t.checkpoints import averaged_weights  # few runs have averages

    for of_masks in averaged_weights.mask_keys(tree):
      masks = part(*of_masks)
      trained |= {path: _joined(averaged_weights.masked_on_host, trained[path], mask) for path, mask in masks.items()}
  if restore.has_iterate(tree) and source.weights != "trained":
    from t2t.checkpoints import averaged_weights  # few runs are schedule-free

    iterates, average = part(*restore.ITERATE), lambda y, z: averaged_weights.point(y, z, source.run)
    trained = {path: _joined(average, tensor, iterates[path]) for path, tensor in trained.items()}
  return trained, part("frozen_params"), beside


def _joined(function: Callable[[np.ndarray, np.ndarray], np.ndarray], params: Tensor, other: Tensor) -> Tensor:
  """Returns the lazy `function` of each part of two tensors of one shape."""
  both = zip(params.parts, other.parts, strict=True)
  read = lambda x, y: function(x(), y())
  return dataclasses.replace(params, parts=tuple(functools.partial(read, x, y) for x, y in both))


def of_base(adapted: pretrained.Source, *, every: bool = True) -> dict[str, Tensor]:
  """Returns the base parameters of an adapter after a digest comparison: path in the adapted model -> tensor.

  Args:
    adapted: the checkpoint.
    every: also opens and compares bases without a parameter of the model, such as the teacher of a student.

  Raises:
    UserError: a base does not exist, or a digest differs.
  """
  below: dict[str, Tensor] = {}
  for base in () if adapted.base is None else adapted.base.all_bases:
    if every or any(path.startswith(adapted.prefix) for path in base.entries):
      below |= _of_one_base(adapted, base)
  return below


def _of_one_base(adapted: pretrained.Source, base: base_model_ref.Base) -> dict[str, Tensor]:
  source = pretrained.base_of(adapted, base)
  if source.foreign is not None:
    there = {**source.foreign.tensors, **source.foreign.pooler}
  else:
    there = _tensors(source, f"{source.name}: ")[0]
  tensors = {path: _first_rows(there[entry.name], entry.shape) for path, entry in base.entries.items()}
  for path, tensor in tensors.items():
    base.check({path: base_model_ref.digest_of_parts(read() for read in tensor.parts)}, source.name)
  prefix = adapted.prefix
  return {path.removeprefix(prefix): tensor for path, tensor in tensors.items() if path.startswith(prefix)}


def _first_rows(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
  """Returns the leading part of a tensor with this shape."""
  if tensor.shape == shape:
    return tensor
  room = tuple(map(slice, shape[1:] if tensor.stacked else shape))
  parts = tuple(functools.partial(lambda read: read()[room], read) for read in tensor.parts)
  return dataclasses.replace(tensor, shape=shape, parts=parts)


def _merged(tensors: dict[str, Tensor], adapters: adapters_lib.Adapters) -> dict[str, Tensor]:
  """Returns the model's parameters with the adapter merged, layer by layer when they are read."""
  groups: dict[str, dict[str, Tensor]] = {}
  bases_of = {path: adapters_lib.base_path(path, adapters) for path in tensors}
  for path, base in bases_of.items():
    for target in adapters_lib.merged_into(path, adapters) if base is None else (base,):
      groups.setdefault(target, {})[path] = tensors[path]
  # The target of an adapter may be a bias that the model lacks.
  groups = {base: group for base, group in groups.items() if base in bases_of.values()}

  def read(base: str, index: int) -> np.ndarray:
    arrays: Any = {path: tensor.read_layer(index) for path, tensor in groups[base].items()}
    return np.asarray(adapters_lib.merge(arrays, adapters)[base])

  merged = {}
  for base, group in groups.items():
    # The others are added to the tensor of the base.
    base_tensor = next(x for path, x in group.items() if bases_of[path] == base)
    parts = tuple(functools.partial(read, base, index) for index in range(len(base_tensor.parts)))
    merged[base] = (
      base_tensor
      if len(group) == 1
      else Tensor(base_tensor.shape, base_tensor.dtype, parts, stacked=base_tensor.stacked)
    )
  return merged


def _saved_tensor(directory: epath.Path, name: str, shape: tuple[int, ...], *, stacked: bool) -> Tensor:
  array = _Saved(directory, name)
  if not stacked:
    return Tensor(shape, np.dtype(np.float32), (array.read,))
  parts = tuple(functools.partial(array.read_layer, index) for index in range(shape[0]))
  return Tensor(shape, np.dtype(np.float32), parts, stacked=True)


class _Saved:
  """An array of a checkpoint; an array with all layers in one chunk is cached until its last layer is read."""

  def __init__(self, directory: epath.Path, name: str):
    self._spec = _spec(directory, name)
    self._whole: np.ndarray | None = None

  @functools.cached_property
  def _store(self) -> tensorstore.TensorStore:
    return tensorstore.open(self._spec, read=True).result()

  def read(self) -> np.ndarray:
    return self._store.read().result()

  def read_layer(self, index: int) -> np.ndarray:
    chunk: Any = self._store.chunk_layout.read_chunk.shape
    if chunk[0] == 1:
      return self._store[index].read().result()
    if self._whole is None:
      self._whole = self.read()
    layer = self._whole[index]
    if index == len(self._whole) - 1:
      self._whole = None
    return layer
