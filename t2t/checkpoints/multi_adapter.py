"""Several adapters of one base model, which is in memory once.

The adapters are not merged, because each merged model would be a full copy.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

import jax

from t2t import UserError
from t2t.checkpoints import base_model_ref, pretrained, restore, select_task, tensor_writer
from t2t.convert.lazy_tensors import Tensor
from t2t.param_tree import Params, flatten, unflatten
from t2t.storage import gcs

_LOOKED_AT = 1 << 20  # bytes of the base's smallest arrays, which are compared before loading


def open_all(base: pretrained.Source, places: Mapping[str, str]) -> dict[str, pretrained.Source]:
  """Opens adapters of a checkpoint as unmerged sources; needs no device.

  Args:
    base: the checkpoint.
    places: name of an adapter -> its run or checkpoint; if that has several tasks, the name is a task's.

  Raises:
    UserError: a path has no adapter, its base differs in shapes or small arrays, or the base is read in int8.
  """
  if places and base.int8:
    raise UserError("--weights int8: --adapter needs the float32 parameters of its base. Leave out --weights.")
  tensors = functools.cache(lambda: (base.foreign or tensor_writer.open_foreign(str(base.path))).tensors)
  sources = {}
  for name, path in places.items():
    source = _open(base, tensors, path, f"--adapter {name}=")
    sources[name] = select_task.choose(source, name if source.tasks else "", where=f"--adapter {name}={path}: the task")
  return sources


def _open(
  base: pretrained.Source, tensors: Callable[[], Mapping[str, Tensor]], path: str, where: str
) -> pretrained.Source:
  source = dataclasses.replace(pretrained.read_source(path, where=where), keeps=True)
  if not source.adapters:
    raise UserError(f"{where}{path}: the model has no adapter. Give {path} as --checkpoint, without --adapter.")
  if source.base is None:
    raise UserError(
      f"{where}{path}: an earlier version of t2t saved this adapter together with its base. Give {path} as "
      "--checkpoint, without --adapter."
    )
  entries, shapes = source.base.entries, pretrained.shapes(base)
  another = f"{where}{path}: the adapter's base is {source.base.path}, not {base.path}"
  for entry in entries.values():
    if shapes.get(entry.name) != entry.shape:
      there = "is missing"
      if entry.name in shapes:
        there = f"has shape {list(shapes[entry.name])} instead of {list(entry.shape)}"
      raise UserError(f"{another}, in which {entry.name} {there}. Give --checkpoint {source.base.path}.")
  if source.base.path == gcs.origin(str(base.path)):
    return source
  there = tensors()
  left = _LOOKED_AT
  for entry in sorted(entries.values(), key=lambda entry: there[entry.name].nbytes):
    left -= there[entry.name].nbytes
    if left < 0:
      break
    digest = base_model_ref.digest_of_parts(read() for read in there[entry.name].parts)
    if digest != entry.digest:
      raise UserError(
        f"{another}, in which {entry.name} has the digest {digest} instead of {entry.digest}. Give --checkpoint "
        f"{source.base.path}."
      )
  return source


def load(
  base: pretrained.Source, adapters: Mapping[str, pretrained.Source], mesh: jax.sharding.Mesh
) -> dict[str, Params]:
  """Loads the parameters of each adapted model, and of the base as ""; models share their common arrays.

  Args:
    base: the checkpoint.
    adapters: see `open_all`; or the tasks of the checkpoint itself, see `select_task.split_by_task`.
    mesh: device mesh of the arrays.

  Raises:
    UserError: an adapter has another base.
  """
  plain = pretrained.load(base, mesh).params
  if base.tasks:
    return {"": plain} | {name: pretrained.of_task(source, plain) for name, source in adapters.items()}
  below = flatten(plain)
  digests = base_model_ref.digests(below) if adapters else {}
  models = {"": plain}
  for name, source in adapters.items():
    assert source.base is not None  # an adapter's checkpoint has one
    entries = source.base.entries
    source.base.check({path: digests[entry.name] for path, entry in entries.items()}, f"--adapter {name}: {base.path}")
    wanted: Any = flatten(pretrained.abstract(source, mesh).params)
    saved = {path: source.prefix + path for path in wanted}
    adapter_params = {path: (saved[path], x) for path, x in wanted.items() if saved[path] not in entries}
    both = restore.read_params(source.path, adapter_params)
    both |= {path: below[entries[saved[path]].name] for path in wanted if path not in adapter_params}
    models[name] = pretrained.of_task(source, unflatten(both))
  return models
