"""Smaller dense models from a checkpoint: fewer layers, attention heads or neurons; and lottery tickets."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from t2t import UserError
from t2t.checkpoints import merge_adapters, pretrained, tensor_writer
from t2t.convert import atomic_output, lazy_tensors
from t2t.convert.lazy_tensors import Foreign, Tensor
from t2t.models.config import TransformerConfig
from t2t.param_tree import is_prunable, stack_of
from t2t.storage import gcs

# Positions whose parameters or formulas do not depend on the index of a head; relative ones are handled apart.
_BY_HEAD = ("relative", "rotary", "sinusoidal", "learned", "none")


def open_checkpoint(path: str) -> tuple[pretrained.Source, Foreign]:
  """Opens a t2t checkpoint, with adapters merged, and as lazy tensors.

  Raises:
    UserError: it is none of t2t's, or its layers are not alike, so that some cannot be removed.
  """
  source = pretrained.read_source(path, where="")
  if source.foreign is not None:
    raise UserError(f"{path} is no checkpoint of t2t. Run `t2t convert {path} --to t2t OUT`, and give OUT.")
  foreign = tensor_writer.open_foreign(path)
  lazy_tensors.check(foreign)
  model, needed = foreign.model, {"share_layers": False, "share_stacks": False, "feed_forward": "dense"}
  needed |= {"attention": "full", "block": "transformer", "recurrence": "", "future_tokens": 0, "memory_length": 0}
  for name, value in needed.items():
    if getattr(model, name) != value:
      raise UserError(
        f"{path}: config.model.{name}={getattr(model, name)!r}: `t2t prune` only shrinks models with "
        f"config.model.{name}={value!r}."
      )
  return source, foreign


def save(source: pretrained.Source, foreign: Foreign, out: str) -> None:
  """Writes a t2t workdir with the run's config, except for the model's sizes.

  Raises:
    UserError: `out` is not empty, or the disk is full.
  """
  lazy_tensors.check(foreign)
  folder = gcs.absolute(out)
  config = merge_adapters.run_config(source, foreign, folder)
  config["model"] = dataclasses.asdict(foreign.model)
  number, size = len(foreign.tensors), sum(tensor.nbytes for tensor in foreign.tensors.values())
  with atomic_output.progress(size, number) as advance:
    tensor_writer.save(foreign, folder, config=config, advance=advance)


def num_parameters(foreign: Foreign) -> int:
  """Returns the number of parameters."""
  return sum(int(np.prod(tensor.shape, dtype=np.int64)) for tensor in foreign.tensors.values())


# ---- Layers ----------------------------------------------------------------------------------------------------------


def with_layers(foreign: Foreign, side: str, kept: Sequence[int]) -> Foreign:
  """Returns the model with some layers of a stack, in their order (Fan et al. 2020, section 3.2).

  Args:
    foreign: the checkpoint.
    side: encoder or decoder.
    kept: indices of layers, from 0.

  Raises:
    UserError: an index is out of range or given twice, or the model's layers depend on their index.
  """
  model, key = foreign.model, f"num_{side}_layers"
  number = getattr(model, key)
  if not number:
    raise UserError(f"--side {side}: {foreign.path} has no {side}. Give the other side.")
  if not kept or sorted(set(kept)) != list(kept) or kept[-1] >= number or kept[0] < 0:
    raise UserError(
      f"--keep {','.join(map(str, kept))}: give increasing indices from 0 to {number - 1}, because the {side} of "
      f"{foreign.path} has {number} layers."
    )
  if model.attention_window and model.global_attention_every:
    raise UserError(
      f"{foreign.path}: config.model.global_attention_every={model.global_attention_every} alternates kinds of layers, "
      "which other indices would exchange. Only models with alike layers can lose some."
    )
  if kept[0] != 0 and ((model.embedding_norm and not model.post_norm) or model.beside_first):
    raise UserError(f"--keep {','.join(map(str, kept))}: the first layer of this model differs. Keep layer 0.")
  prefix = f"{side}/layers"
  tensors = {
    path: dataclasses.replace(tensor, shape=(len(kept), *tensor.shape[1:]), parts=tuple(tensor.parts[i] for i in kept))
    if stack_of(path) == prefix
    else tensor
    for path, tensor in foreign.tensors.items()
  }
  changes: dict[str, Any] = {key: len(kept)}
  return dataclasses.replace(foreign, model=dataclasses.replace(model, **changes), tensors=tensors)


# ---- Heads and neurons -----------------------------------------------------------------------------------------------


def number_kept(total: int, share: float, what: str) -> int:
  """Returns how many of `total` units of a layer are kept if a share is removed.

  Raises:
    UserError: no unit would be removed, or none kept.
  """
  kept = total - round(share * total)
  if not 0 < kept < total:
    raise UserError(
      f"--share {share:g}, the share that is removed: of {total} {what} in each layer {total - kept} would be removed. "
      "Give a share from "
      f"{0.5 / total:.2g} to {1 - 0.5 / total:.2g}."
    )
  return kept


def check_heads(foreign: Foreign) -> None:
  """Checks that heads can be removed.

  Raises:
    UserError: the positions of the model depend on the index of a head.
  """
  if foreign.model.positions not in _BY_HEAD:
    raise UserError(
      f"{foreign.path}: config.model.positions={foreign.model.positions} has parts for each head, which `t2t prune "
      f"heads` cannot remove. It supports {', '.join(_BY_HEAD)}."
    )


def best_units(importance: Mapping[str, np.ndarray], kept: int, *, same: Sequence[str] = ()) -> dict[str, np.ndarray]:
  """Returns the indices of the most important units, increasing: module -> int [layers, kept].

  Args:
    importance: module -> [layers, units]; see `training.unit_importance`.
    kept: number of units of each layer.
    same: modules whose layers all keep the same units, those with the largest sums; each layer's importance is first
      divided by its norm (Michel et al. 2019, section 3.3).
  """
  best = {}
  for module, values in importance.items():
    if module in same:
      norms = np.linalg.norm(values, axis=1, keepdims=True)
      values = np.broadcast_to(np.sum(values / np.maximum(norms, 1e-30), axis=0), values.shape)
    best[module] = np.sort(np.argsort(-values, axis=1, kind="stable")[:, :kept], axis=1)
  return best


def shared_bias(model: TransformerConfig) -> tuple[str, ...]:
  """Returns the modules whose layers share a position bias by head (T5), so that all keep the same heads."""
  return ("encoder/layers/self_attention", "decoder/layers/self_attention") if model.positions == "relative" else ()


def with_heads(foreign: Foreign, kept: Mapping[str, np.ndarray]) -> Foreign:
  """Returns the model with some heads of each layer; with grouped queries a unit is a group with its keys.

  Args:
    foreign: the checkpoint.
    kept: module -> int [layers, units], see `best_units`.
  """
  model, tensors = foreign.model, dict(foreign.tensors)
  changes: dict[str, Any] = {}
  for module, units in kept.items():
    prefix = "encoder_" if module.startswith("encoder") and model.encoder_num_heads else ""
    side = model.of_stack("encoder" if module.startswith("encoder") else "decoder")
    group = side.num_heads // side.kv_heads
    changes[f"{prefix}num_heads"] = units.shape[1] * group
    if getattr(model, f"{prefix}num_kv_heads"):
      changes[f"{prefix}num_kv_heads"] = units.shape[1]
    for name, axis, heads in (("query", -1, group), ("key", -1, 1), ("value", -1, 1), ("out", -2, group)):
      width = heads * side.head_dim
      for path in (f"{module}/{name}", f"{module}/{name}_bias"):
        if path in tensors and not (name == "out" and path.endswith("_bias")):
          tensors[path] = _chosen(tensors[path], axis, _features(units, width))
    bias = f"{module.partition('/')[0]}/position_bias/table"
    if module in shared_bias(model) and bias in tensors:
      table, heads = tensors[bias], _features(units[:1], group)[0]
      read = functools.partial(lambda table, heads: table.read()[:, heads], table, heads)
      tensors[bias] = Tensor((table.shape[0], len(heads)), table.dtype, (read,))
  return dataclasses.replace(foreign, model=dataclasses.replace(model, **changes), tensors=tensors)


def with_neurons(foreign: Foreign, kept: Mapping[str, np.ndarray]) -> Foreign:
  """Returns the model with some neurons of each feed-forward layer; see `with_heads`."""
  model, tensors = foreign.model, dict(foreign.tensors)
  changes: dict[str, Any] = {}
  for module, units in kept.items():
    own = module.startswith("encoder") and model.encoder_mlp_dim
    changes["encoder_mlp_dim" if own else "mlp_dim"] = units.shape[1]
    for name, axis in (("gate", -1), ("up", -1), ("gate_bias", -1), ("up_bias", -1), ("down", -2)):
      if f"{module}/{name}" in tensors:
        tensors[f"{module}/{name}"] = _chosen(tensors[f"{module}/{name}"], axis, units)
  return dataclasses.replace(foreign, model=dataclasses.replace(model, **changes), tensors=tensors)


def _features(units: np.ndarray, width: int) -> np.ndarray:
  """Returns the features of units, [layers, units * width]."""
  return (units[..., None] * width + np.arange(width)).reshape(len(units), -1)


def _chosen(tensor: Tensor, axis: int, indices: np.ndarray) -> Tensor:
  """Returns some entries of an axis of a stacked parameter, others in each layer; `axis` counts from the end."""
  axis = -1 if len(tensor.shape) == 2 else axis  # a bias
  shape = list(tensor.shape)
  shape[axis] = indices.shape[1]
  take = lambda read, of_layer: np.take(read(), of_layer, axis=axis)
  parts = tuple(functools.partial(take, read, of_layer) for read, of_layer in zip(tensor.parts, indices, strict=True))
  return dataclasses.replace(tensor, shape=tuple(shape), parts=parts)


# ---- Lottery tickets -------------------------------------------------------------------------------------------------


def rewound(finished: Foreign, early: Foreign) -> tuple[Foreign, float]:
  """Returns the early parameters with the zeros of the finished ones, and the share of zeros in pruned matrices.

  Source: lottery tickets, Frankle & Carbin 2019; with an early step instead of step 0, Frankle et al. 2020.

  Raises:
    UserError: the models differ, or the finished one has no zeros.
  """
  if finished.model != early.model:
    raise UserError(f"{early.path} is another model than {finished.path}. Give an early checkpoint of the same run.")
  tensors, zeros, total = dict(early.tensors), 0, 0
  for path, tensor in finished.tensors.items():
    if not is_prunable(path, tensor.shape):
      continue
    number = sum(int(np.count_nonzero(read() == 0)) for read in tensor.parts)
    if number < 0.01 * np.prod(tensor.shape, dtype=np.int64) or number == 0:
      continue  # a zero by chance
    zeros, total = zeros + number, total + int(np.prod(tensor.shape, dtype=np.int64))
    masked = lambda read, mask: np.where(mask() == 0, np.float32(0), read())
    pairs = zip(early.tensors[path].parts, tensor.parts, strict=True)
    tensors[path] = dataclasses.replace(early.tensors[path], parts=tuple(functools.partial(masked, *x) for x in pairs))
  if not total:
    raise UserError(f"{finished.path}: no matrix has zeros. Give a run that prunes (docs/compression.md).")
  return dataclasses.replace(early, tensors=tensors), zeros / total
