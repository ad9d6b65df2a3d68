"""Fisher information as a file: how much what a checkpoint has learned depends on each of its parameters.

FOLDER/checkpoints/STEP is a checkpoint in whose place of parameters the diagonal stands.  It names what it is of as an
adapter names its base, by path and a digest of each array, and nothing reads it as a model.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from etils import epath
import jax
import numpy as np
import orbax.checkpoint as ocp

from t2t import UserError
from t2t.checkpoints import base_model_ref, manager, manifest, pretrained, restore, verify
from t2t.checkpoints.warm_start import Taken
from t2t.configuration.schema import Config
from t2t.param_tree import Params, flatten
from t2t.storage import gcs
from t2t.training import l2_sp
from t2t.training.train_state import TrainState

_KEY = "config.optimizer.fisher="
_SHOWN = 3  # parameters that a message names


@dataclasses.dataclass(frozen=True)
class Fisher:
  """What `t2t fisher` wrote.

  folder: of the checkpoint that it is written as.
  base: the checkpoint that it is of.
  """

  folder: epath.Path
  base: base_model_ref.Base

  @property
  def workdir(self) -> epath.Path:
    """The folder that the user gave."""
    return self.folder.parent.parent


def save(
  fisher: Params,
  source: pretrained.Source,
  params: Params,
  out: str,
  *,
  config: Mapping[str, object],
  about: Mapping[str, object],
) -> None:
  """Writes Fisher information; all hosts call it.

  Args:
    fisher: nested dict of arrays, on the mesh.
    source: the checkpoint that it is of.
    params: its parameters; nested dict of arrays.
    out: a folder that is not there yet, or is empty.
    config: that it was computed with.
    about: how, as JSON.
  """
  folder, flat = gcs.absolute(out), flatten(params)
  digests = base_model_ref.digests(flat)
  entries = {path: base_model_ref.BaseEntry(path, tuple(x.shape), digests[path]) for path, x in flat.items()}
  base = base_model_ref.Base(str(source.path), base_model_ref.beside(str(source.path), folder), source.part, entries)
  step = int(source.path.name) if source.path.name.isdigit() else 0
  items = {
    "state": ocp.args.StandardSave({"step": np.asarray(step, np.int32), "params": fisher}),
    "config": ocp.args.JsonSave(dict(config)),
    verify.BASE: ocp.args.JsonSave(base.to_dict()),
    restore.FISHER: ocp.args.JsonSave(dict(about)),
  }
  as_json: Any = {name: ocp.JsonCheckpointHandler() for name in items if name != "state"}
  handler = ocp.CompositeCheckpointHandler(state=ocp.StandardCheckpointHandler(), **as_json)
  directory = folder / manager.CHECKPOINTS
  directory.mkdir(parents=True, exist_ok=True)
  sealed = manifest.temporary_path_class(directory)
  with ocp.Checkpointer(handler, temporary_path_class=sealed) as checkpointer:
    checkpointer.save(directory / str(step), args=ocp.args.Composite(**items))


def open_fisher(path: str) -> Fisher:
  """What `t2t fisher` wrote to a folder; arrays are not read.

  Raises:
    UserError: there is none, or it is damaged as far as its small files show.
  """
  folder = restore.checkpoint_folder(path, where=_KEY)
  if not (folder / restore.FISHER).exists():
    raise UserError(
      f"{_KEY}{path}: is a checkpoint, and no Fisher information; `t2t fisher {path} --output DIR` makes it"
    )
  base: Any = restore.read_base(folder)  # it has one
  return Fisher(folder, base)


# ---- A run that is held by it ----------------------------------------------------------------------------------------


def check(fisher: Fisher, abstract: TrainState) -> None:
  """Refuses what is of a model with other parameters than those that a run holds.

  Args:
    fisher: see `open_fisher`.
    abstract: the run's state, or its shapes.

  Raises:
    UserError: names the first.
  """
  consolidated = l2_sp.consolidated(abstract.opt_state)
  assert consolidated is not None
  wanted = consolidated.fisher
  entries, where = fisher.base.entries, f"{_KEY}{fisher.workdir}"
  if missing := [path for path in wanted if path not in entries]:
    shown = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
    raise UserError(
      f"{where}: says nothing of {shown}, which {fisher.base.path} has not; let go of it by a last rule of"
      f" config.optimizer.param_groups, '{missing[0]}: anchor=0'"
    )
  for path, x in wanted.items():
    if entries[path].shape != x.shape:
      raise UserError(
        f"{where}: is of a model whose {path} is {list(entries[path].shape)}, that of {fisher.base.path}; here it is"
        f" {list(x.shape)}"
      )


def check_base(fisher: Fisher, abstract: TrainState, taken: Taken) -> None:
  """Refuses what is of another checkpoint than a run begins from.

  Args:
    fisher, abstract: see `check`, which they have passed.
    taken: what the run takes; not donated yet.

  Raises:
    UserError: names the first parameter that differs.
  """
  params = flatten(taken.params)
  consolidated = l2_sp.consolidated(abstract.opt_state)
  assert consolidated is not None
  held = consolidated.fisher
  for path in held:
    if path not in params or path in taken.shared or path in taken.by_piece:
      raise UserError(
        f"{_KEY}{fisher.workdir}: holds {path} where it was, and config.init has it begin afresh; let go of it by a"
        f" last rule of config.optimizer.param_groups, '{path}: anchor=0'"
      )
  digests = base_model_ref.digests({path: params[path] for path in held})
  fisher.base.check(digests, f"config.init.checkpoint={taken.source.path}", than=_than(fisher))


def begin(fisher: Fisher, abstract: TrainState, state: TrainState) -> TrainState:
  """The state of a run that begins, with the information in it.

  Args:
    fisher, abstract: see `check`, which they have passed.
    state: of a run that begins with the parameters that the information is of; not to be used any more.
  """

  def put(shapes: l2_sp.Consolidated, x: l2_sp.Consolidated) -> l2_sp.Consolidated:
    information: Any = shapes.fisher  # in the shape of arrays
    return x._replace(fisher=_information(fisher, information))

  return dataclasses.replace(state, opt_state=l2_sp.with_files(state.opt_state, abstract.opt_state, put))


def restored(config: Config, abstract: TrainState, state: TrainState) -> TrainState:
  """The state of a run that goes on, with what its checkpoints leave out, read where it lies.

  Args:
    config: of the run.
    abstract: the state's shapes, with shardings.
    state: as it was saved; see `l2_sp.without_files`.

  Raises:
    UserError: the information, or the checkpoint that it is of, is gone, damaged, or another.
  """
  if l2_sp.consolidated(abstract.opt_state) is None:
    return state
  fisher = open_fisher(config.optimizer.fisher)
  check(fisher, abstract)

  def put(shapes: l2_sp.Consolidated, _: Any) -> l2_sp.Consolidated:
    initial: Any = shapes.initial
    information: Any = shapes.fisher
    return l2_sp.Consolidated(_initial(fisher, config, initial), _information(fisher, information))

  return dataclasses.replace(state, opt_state=l2_sp.with_files(state.opt_state, abstract.opt_state, put))


Shapes = Mapping[str, jax.ShapeDtypeStruct]  # path -> shape, with a sharding


def _information(fisher: Fisher, shapes: Shapes) -> dict[str, jax.Array]:
  return _placed(restore.read_params(fisher.folder, _on_device(shapes)), shapes)


def _initial(fisher: Fisher, config: Config, shapes: Shapes) -> dict[str, jax.Array]:
  """The parameters that the information is of, compared with what they were."""
  # Wherever they are now: what is not the same has another digest.
  places = [*fisher.base.places(fisher.workdir), *([config.init.checkpoint] if config.init.checkpoint else [])]
  if not places:
    raise UserError(
      f"{_KEY}{fisher.workdir}: is of {fisher.base.path}, which is not there any more; bring it back, or say where"
      " it is by config.init.checkpoint"
    )
  source = pretrained.open_base(fisher.base, places[0], where=f"{_KEY}{fisher.workdir}: its checkpoint: ")
  params = pretrained.read(source, _on_device(shapes))
  fisher.base.check(base_model_ref.digests(params), str(source.path), than=_than(fisher))
  return _placed(params, shapes)


def _on_device(shapes: Shapes) -> dict[str, tuple[str, jax.ShapeDtypeStruct]]:
  """What is to be read, in the device's memory, though it may wait in the host's between updates."""
  on_device = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding.with_memory_kind("device"))
  return {path: (path, on_device(x)) for path, x in shapes.items()}


def _placed(params: Mapping[str, jax.Array], shapes: Shapes) -> dict[str, jax.Array]:
  return {path: jax.device_put(x, shapes[path].sharding) for path, x in params.items()}


def _than(fisher: Fisher) -> str:
  return f"that which {_KEY}{fisher.workdir} is of"
