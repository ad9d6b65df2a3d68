"""Restores runs with parameters that their checkpoints leave out: bases of adapters, and Fisher information of EWC."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp

from t2t import losses
from t2t.checkpoints import base_model_ref, fisher_store, manager, pretrained, restore
from t2t.checkpoints.warm_start import Taken
from t2t.configuration.schema import Config
from t2t.param_tree import Params, flatten, join_frozen, unflatten
from t2t.storage import gcs
from t2t.training.train_state import TrainState


def base_of(taken: Taken, frozen: Params, workdir: epath.Path, *, name: str = "") -> base_model_ref.Base:
  """Returns the base of a new run: all taken parameters that it does not train.

  A run may continue an adapter with another task, so heads of the adapted model, which are small, stay with the run.

  Args:
    taken: the parameters read; not donated yet.
    frozen: nested shapes of the frozen parameters.
    workdir: of the run.
    name: of the checkpoint in config.init.others.
  """
  fresh_paths = set(taken.fresh_in(frozen))
  below = [path for path in flatten(frozen) if path not in fresh_paths and (name or "heads/" not in path)]
  params = flatten(taken.params)
  digests = base_model_ref.digests({path: params[path] for path in below})
  entries = {
    path: base_model_ref.BaseEntry(taken.names[path], tuple(params[path].shape), digests[path]) for path in below
  }
  path = taken.source.name
  return base_model_ref.Base(path, base_model_ref.beside(path, workdir), taken.source.part, entries, name)


def restore_step(
  checkpoints: manager.Checkpoints,
  step: int,
  abstract: TrainState,
  stream_names: tuple[str, ...],
  *,
  config: Config,
  moved_to: str = "",
) -> tuple[TrainState, dict[str, bytes]]:
  """Restores a step with `Checkpoints.restore`, and reads the parameters that the step leaves out from their
  checkpoints.

  These are the base of an adapter, which later steps refer to at its current path, and the Fisher information of an EWC
  run.

  Args:
    checkpoints, step, abstract, stream_names: see there.
    config: of the run.
    moved_to: current path of the base; "": its saved path, or the path found at the start of the run.

  Raises:
    UserError: as there; or the base or the Fisher information is missing or has changed.
  """
  state, streams = _restore(checkpoints, step, abstract, stream_names, config=config, moved_to=moved_to)
  return fisher_store.restored(config, abstract, state), streams


def _restore(
  checkpoints: manager.Checkpoints,
  step: int,
  abstract: TrainState,
  stream_names: tuple[str, ...],
  *,
  config: Config,
  moved_to: str,
) -> tuple[TrainState, dict[str, bytes]]:
  saved_base = restore.read_base(checkpoints.directory / str(step))
  if saved_base is None:
    return checkpoints.restore(step, abstract, stream_names)
  workdir = checkpoints.directory.parent
  now = {base.name: base for base in (checkpoints.base or saved_base).all_bases}
  opened, moved_keys = {}, {}
  for base in saved_base.all_bases:
    moved_path = _moved(now[base.name], checkpoints.config(step), config, workdir) if base.name else moved_to
    key = _key(base.name, config)
    where = key if moved_path else f"{workdir}: its base: "
    if moved_path and base.name:
      moved_keys[base.name] = f"{key}{moved_path}"
    opened[base.name] = pretrained.open_base(base, moved_path or now[base.name].locate(workdir), where=where)
  paths = {name: source.name for name, source in opened.items()}
  at = [
    dataclasses.replace(x, path=paths[x.name], beside=base_model_ref.beside(paths[x.name], workdir))
    for x in saved_base.all_bases
  ]
  checkpoints.base = base_model_ref.Base.joined(at)
  without_base = dataclasses.replace(abstract, frozen_params=saved_base.without(abstract.frozen_params))
  state, streams = checkpoints.restore(step, without_base, stream_names)
  frozen = flatten(abstract.frozen_params)
  # Digests are of float32 values, whatever dtype the run keeps them in.
  as_float32 = lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding)
  read = {}
  for base in saved_base.all_bases:
    wanted = {path: (path, as_float32(x)) for path, x in frozen.items() if path in base.entries}
    read |= pretrained.read_base(base, opened[base.name], wanted, where=moved_keys.get(base.name, ""))
  below = unflatten({path: x.astype(frozen[path].dtype) for path, x in read.items()})
  return dataclasses.replace(state, frozen_params=join_frozen(state.frozen_params, below)), streams


def _moved(base: base_model_ref.Base, saved: Mapping[str, Any], config: Config, workdir: epath.Path) -> str:
  """Returns the path that config.init.others gives for a checkpoint, if it is new or the saved one is gone; else "".

  Args:
    base: the saved reference.
    saved: config of the restored step.
    config: of the run.
    workdir: of the run.
  """
  if base.name not in config.init.others:
    return ""
  path = config.init.others[base.name].checkpoint
  before = saved.get("init", {}).get("others", {}).get(base.name, {}).get("checkpoint", path)
  return "" if gcs.is_same_path(path, before) and base.places(workdir) else path


def _key(name: str, config: Config) -> str:
  """Returns the key of the path of a base, with "=", for messages."""
  if losses.has_teacher(config) and name in config.distillation.names:
    return "config.distillation.teacher="
  return f"config.init.others.{name}.checkpoint=" if name else "config.init.checkpoint="
