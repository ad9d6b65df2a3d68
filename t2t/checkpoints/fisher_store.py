"""Storage of Fisher information (EWC).

FOLDER/checkpoints/STEP is a checkpoint with the diagonal in place of the parameters.  It refers to its model as an
adapter refers to its base, by path and a digest of each array. No reader takes it for a model.
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
_SHOWN = 3  # parameters in a message


@dataclasses.dataclass(frozen=True)
class Fisher:
  """The output of `t2t fisher`.

  folder: its checkpoint folder.
  base: the checkpoint that it was computed for.
  """

  folder: epath.Path
  base: base_model_ref.Base

  @property
  def workdir(self) -> epath.Path:
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
    source: the checkpoint that it was computed for.
    params: parameters of that checkpoint; nested dict of arrays.
    out: a folder that does not exist or is empty.
    config: of the computation.
    about: further settings of the computation, as JSON.
  """
  folder, flat = gcs.absolute(out), flatten(params)
  digests = base_model_ref.digests(flat)
  entries = {path: base_model_ref.BaseEntry(path, tuple(x.shape), digests[path]) for path, x in flat.items()}
  path = source.name
  base = base_model_ref.Base(path, base_model_ref.beside(path, folder), source.part, entries)
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
  """Opens the output of `t2t fisher` without reading its arrays.

  Raises:
    UserError: there is none, or its small files are damaged.
  """
  folder = restore.checkpoint_folder(path, where=_KEY)
  if not (folder / restore.FISHER).exists():
    raise UserError(
      f"{_KEY}{path} is a checkpoint, not Fisher information. Compute the Fisher information with "
      f"`t2t fisher {path} --output DIR`, and give --{_KEY}DIR."
    )
  base: Any = restore.read_base(folder)  # never None here
  return Fisher(folder, base)


# ---- EWC runs --------------------------------------------------------------------------------------------------------


def check(fisher: Fisher, abstract: TrainState) -> None:
  """Raises an error unless the information covers the anchored parameters of a run.

  Args:
    fisher: see `open_fisher`.
    abstract: the run's state, or its shapes.

  Raises:
    UserError: a parameter is missing or has another shape; the message contains the first.
  """
  consolidated = l2_sp.consolidated(abstract.opt_state)
  assert consolidated is not None
  wanted = consolidated.fisher
  entries, where = fisher.base.entries, f"{_KEY}{fisher.workdir}"
  if missing := [path for path in wanted if path not in entries]:
    shown = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
    raise UserError(
      f"{where} has no values for {shown}, because {fisher.base.path} lacks such parameters. Exclude each such "
      f"parameter by a last rule of config.optimizer.param_groups, '{missing[0]}: anchor=0'."
    )
  for path, x in wanted.items():
    if entries[path].shape != x.shape:
      raise UserError(
        f"{where}: {path} has shape {list(entries[path].shape)} in the Fisher information of {fisher.base.path}, but "
        f"{list(x.shape)} in this run. Give the Fisher information of the run's initial checkpoint."
      )


def check_base(fisher: Fisher, abstract: TrainState, taken: Taken) -> None:
  """Raises an error unless the information was computed for the initial checkpoint of a run.

  Args:
    fisher, abstract: see `check`, which has passed.
    taken: the initial parameters; not donated yet.

  Raises:
    UserError: a parameter differs; the message contains the first.
  """
  params = flatten(taken.params)
  consolidated = l2_sp.consolidated(abstract.opt_state)
  assert consolidated is not None
  held = consolidated.fisher
  for path in held:
    if path not in params or path in taken.shared or path in taken.by_piece:
      raise UserError(
        f"{_KEY}{fisher.workdir} anchors {path}, but config.init initializes this parameter with other values. Exclude "
        f"the parameter by a last rule of config.optimizer.param_groups, '{path}: anchor=0'."
      )
  digests = base_model_ref.digests({path: params[path] for path in held})
  fisher.base.check(digests, f"config.init.checkpoint={taken.source.path}", than=_than(fisher))


def begin(fisher: Fisher, abstract: TrainState, state: TrainState) -> TrainState:
  """Returns the initial state of a run, including the information.

  Args:
    fisher, abstract: see `check`, which has passed.
    state: initialized with the parameters that the information was computed for; donated.
  """

  def put(shapes: l2_sp.Consolidated, x: l2_sp.Consolidated) -> l2_sp.Consolidated:
    information: Any = shapes.fisher  # arrays with these shapes
    return x._replace(fisher=_information(fisher, information))

  return dataclasses.replace(state, opt_state=l2_sp.with_files(state.opt_state, abstract.opt_state, put))


def restored(config: Config, abstract: TrainState, state: TrainState) -> TrainState:
  """Returns the state of a resumed run, including the arrays that its checkpoints leave out.

  Args:
    config: of the run.
    abstract: the state's shapes, with shardings.
    state: as it was saved; see `l2_sp.without_files`.

  Raises:
    UserError: the information, or the checkpoint that it was computed for, is missing, damaged, or has changed.
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
  """Returns the parameters that the information was computed for, after a comparison of digests."""
  # Any path may be tried, because the digest of another checkpoint differs.
  places = [*fisher.base.places(fisher.workdir), *([config.init.checkpoint] if config.init.checkpoint else [])]
  if not places:
    raise UserError(
      f"{_KEY}{fisher.workdir} was computed for {fisher.base.path}, but that checkpoint no longer exists. Restore the "
      "checkpoint, or give its new path, --config.init.checkpoint=PATH."
    )
  source = pretrained.open_base(fisher.base, places[0], where=f"{_KEY}{fisher.workdir}: its checkpoint: ")
  params = pretrained.read(source, _on_device(shapes))
  fisher.base.check(base_model_ref.digests(params), source.name, than=_than(fisher))
  return _placed(params, shapes)


def _on_device(shapes: Shapes) -> dict[str, tuple[str, jax.ShapeDtypeStruct]]:
  """Returns the target shapes in device memory, even of arrays that wait in host memory between updates."""
  on_device = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding.with_memory_kind("device"))
  return {path: (path, on_device(x)) for path, x in shapes.items()}


def _placed(params: Mapping[str, jax.Array], shapes: Shapes) -> dict[str, jax.Array]:
  return {path: jax.device_put(x, shapes[path].sharding) for path, x in params.items()}


def _than(fisher: Fisher) -> str:
  return f"that {_KEY}{fisher.workdir} was computed for"
