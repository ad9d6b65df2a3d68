"""Folders of quantized models: int8 tensors with scales in safetensors, and t2t's config in t2t.json.

A matrix NAME is stored as int8, with float32 scales in NAME.scale; its value is integer * scale. Other parameters are
float32, among them the ranges of activations of a model that was trained with `config.model.fake_quantization`. Such a
model computes the same logits as before, because rounding a rounded value changes nothing.
"""

from collections.abc import Container, Iterator
import dataclasses
import functools
import json
import re
from typing import Any

from etils import epath
import numpy as np

from t2t import UserError
from t2t.convert import atomic_output, lazy_tensors, safetensors, vocab_override
from t2t.convert.lazy_tensors import Foreign, Tensor
from t2t.models import fake_quantization, int8_matrix
from t2t.models.config import TransformerConfig
from t2t.storage import gcs, safe_read, vocabulary_files

CONFIG, WEIGHTS = "t2t.json", "int8.safetensors"  # `convert.kind_of` has the latter, too
_VOCABULARY = "vocabulary"
_SCALE = ".scale"
_FORMAT = 1
# Patterns of quantized parameters -> axis with a common scale; those that `fake_quantization` rounds.
_QUANTIZED = {
  r"/layers?/.*(attention/(query|key|value|out)|mlp/(gate|up|down))$": -2,
  r"(^|/)embed/table$": -1,
  r"^head/projection$": -2,
}


def axis_of(path: str) -> int | None:
  """Returns the axis of a parameter along which int8 values have one scale; None: the parameter stays float32."""
  return next((axis for pattern, axis in _QUANTIZED.items() if re.search(pattern, path)), None)


def quantized(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns int8 values and float32 scales, with `axis` of size 1; see `int8_matrix.integers`."""
  values, scale = int8_matrix.integers(x, axis)
  return np.asarray(values), np.asarray(scale)


def save(foreign: Foreign, out: epath.Path, *, advance: atomic_output.Progress = lambda *_: None) -> list[str]:
  """Writes the folder of a model; memory holds one parameter.

  Args:
    foreign: a t2t checkpoint, checked.
    out: a folder that does not exist or is empty.
    advance: see `atomic_output.Progress`.

  Returns:
    Notes for the user.

  Raises:
    UserError: no parameter would be int8, `out` is not empty, or the disk is full.
  """
  axes = {path: axis for path in foreign.tensors if (axis := axis_of(path)) is not None}
  if not any("/layers" in path or "/layer/" in path for path in axes):
    raise UserError(
      f"{foreign.path}: config.model.block={foreign.model.block} has no matrices with an int8 form. Give a model with "
      "config.model.block=transformer."
    )
  for path, tensor in foreign.tensors.items():
    if f"/{fake_quantization.RANGES}/" in path and not np.all(tensor.read()[..., 1] > 0):
      raise UserError(
        f"{foreign.path}: {path} is 0, because no training step has measured it. Train at least one step."
      )
  shapes, dtypes = {}, {}
  for path, tensor in foreign.tensors.items():
    shapes[path], dtypes[path] = tensor.shape, "F32"
    if path in axes:
      dtypes[path] = "I8"
      scales = list(tensor.shape)
      scales[axes[path]] = 1
      shapes[path + _SCALE], dtypes[path + _SCALE] = tuple(scales), "F32"
  about: dict[str, Any] = {"format": _FORMAT, "model": dataclasses.asdict(foreign.model)}
  about |= {"lengths": dict(foreign.lengths), "extra_ids": foreign.extra_ids, "table": dict(foreign.table)}
  with atomic_output.whole(out, sum(tensor.nbytes for tensor in foreign.tensors.values())) as folder:
    if foreign.vocabulary:
      vocab_override.save(foreign, folder / _VOCABULARY)
    (folder / CONFIG).write_text(json.dumps(about, indent=2) + "\n")
    with safetensors.SafetensorsWriter(folder / WEIGHTS, shapes, dtype=dtypes) as writer:
      for path, tensor in foreign.tensors.items():
        value = tensor.read()
        lazy_tensors.check_finite(value, f"{foreign.path}: {path}")
        parts = quantized(value, axes[path]) if path in axes else (value,)
        for name, part in zip((path, path + _SCALE), parts, strict=False):
          writer.write(name, part)
        advance(value.nbytes, 1)
  if foreign.model.fake_quantization:
    return []
  return ["only weights are rounded; train with --config.model.fake_quantization=int8 to round activations, too"]


def open_foreign(path: str, *, where: str = "") -> Foreign:
  """Opens a folder of this format as a t2t model with lazy float32 parameters.

  Raises:
    UserError: a file is damaged or of a later version, or the tensors do not match the config.
  """
  folder = gcs.absolute(path)
  about: Any = safe_read.read_json(folder / CONFIG)
  if about.get("format") != _FORMAT:
    raise UserError(
      f"{where}{folder / CONFIG}: format={about.get('format')!r}, but this t2t reads {_FORMAT}. Upgrade t2t."
    )
  known = {field.name for field in dataclasses.fields(TransformerConfig)}
  if unknown := sorted(set(about["model"]) - known):
    raise UserError(f"{where}{folder / CONFIG}: this t2t does not know the model key {unknown[0]!r}. Upgrade t2t.")
  model = TransformerConfig(**about["model"])
  entries = safetensors.read_header(folder / WEIGHTS)
  tensors = dict(_tensors(entries))
  vocabulary, extra_ids = "", about["extra_ids"]
  if (folder / _VOCABULARY).exists():
    record = vocabulary_files.read_record(folder / _VOCABULARY)
    vocabulary, extra_ids = record.spec(folder / _VOCABULARY), record.extra_ids
  foreign = Foreign(folder, "int8", model, vocabulary, extra_ids, about["lengths"], tensors, table=about["table"])
  lazy_tensors.check(foreign)
  return foreign


def for_params(foreign: Foreign, params: Container[str]) -> Foreign:
  """Returns the folder with integers and scales apart for the `int8_matrix.Int8Matrix` among `params`."""
  tensors = dict(foreign.tensors)
  entries = safetensors.read_header(foreign.path / WEIGHTS)
  for path in foreign.tensors:
    values, scale = f"{path}/{int8_matrix.VALUES}", f"{path}/{int8_matrix.SCALE}"
    if values in params:
      del tensors[path]
      read = functools.partial(entries[path].read, np.dtype(np.int8))
      tensors[values] = Tensor(entries[path].shape, np.dtype(np.int8), (read,))
      tensors[scale] = Tensor(entries[path + _SCALE].shape, np.dtype(np.float32), (entries[path + _SCALE].read,))
  return dataclasses.replace(foreign, tensors=tensors)


def integers(path: str) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
  """Yields path, int8 values and float32 scales of the quantized parameters of a folder."""
  entries = safetensors.read_header(gcs.absolute(path) / WEIGHTS)
  for name, entry in entries.items():
    if entry.dtype == "I8":
      yield name, entry.read(np.dtype(np.int8)), entries[name + _SCALE].read()


def _tensors(entries: dict[str, safetensors.TensorEntry]) -> Iterator[tuple[str, Tensor]]:
  for name, entry in entries.items():
    if name.endswith(_SCALE):
      continue
    if entry.dtype != "I8":
      yield name, Tensor(entry.shape, np.dtype(np.float32), (entry.read,))
      continue
    if name + _SCALE not in entries:
      raise UserError(f"{entry.path}: {name} has no {name}{_SCALE}. {safe_read.COPY_AGAIN}")
    yield name, Tensor(entry.shape, np.dtype(np.float32), (functools.partial(_read, entry, entries[name + _SCALE]),))


def _read(entry: safetensors.TensorEntry, scale: safetensors.TensorEntry) -> np.ndarray:
  return entry.read(np.dtype(np.int8)).astype(np.float32) * scale.read()
