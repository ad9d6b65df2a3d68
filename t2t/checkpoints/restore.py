"""Reads a saved step: its folder, config, parameter shapes, and parameters."""

from collections.abc import Collection, Iterator, Mapping
import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from etils import epath
from flax import traverse_util
import jax
import orbax.checkpoint as ocp

from t2t import UserError
from t2t.checkpoints import manifest, retry, verify
from t2t.configuration.renamed_keys import with_current_keys
from t2t.param_tree import Params, flatten, join_frozen, path_name, unflatten
from t2t.storage import gcs

if TYPE_CHECKING:
  from t2t.checkpoints import base_model_ref

FISHER = "fisher"  # item of a folder with Fisher information instead of a model; see fisher_store.py


def checkpoint_folder(path: str, *, where: str = "config.init.checkpoint=") -> epath.Path:
  """Returns the folder of a checkpoint: `path` itself, or the last completely saved step of the workdir `path`.

  Args:
    path: local or gs://.
    where: the option or key of the path, for messages.

  Raises:
    UserError: there is none; the message contains the searched paths.  Or its small files are damaged.
  """
  root = gcs.absolute(gcs.fetched(path, where=where))
  if any((root / name).exists() for name in ("state", manifest.NAME)):
    if not ocp.path.step.is_path_finalized(root):
      raise UserError(f"{where}{path} {_UNFINISHED}")
    verify.check(root, where=where, full=False)
    return root
  unfinished = []
  for folder in (root / "checkpoints", root):
    steps = sorted(int(name) for name in gcs.names(folder, where=where.strip(" =")) if name.isdigit())
    for step in reversed(steps):
      child = folder / str(step)
      if ocp.path.step.is_path_finalized(child) or child.is_file():
        verify.check(child, where=where, full=False)
        return child
      unfinished.append(child)
  if unfinished:
    raise UserError(f"{where}{path}: no step is complete. {unfinished[0]} {_UNFINISHED}")
  from t2t.checkpoints import missing_folder
  from t2t.storage import hub

  hub.check(path, where=where)
  if not gcs.is_remote(root) and root.is_file():
    raise UserError(f"{where}{path} is a file. Give the folder of a checkpoint, or a workdir.")
  if problem := missing_folder.problem(path, root):
    raise UserError(f"{where}{path}: no checkpoint in {root}: {problem}")
  raise UserError(
    f"{where}{path}: no checkpoint in {root}/state, {root}/checkpoints/STEP or {root}/STEP, and no checkpoint of "
    "Hugging Face or T5X. Give a workdir of `t2t train`, or a checkpoint."
  )


_UNFINISHED = (
  "was not saved completely. Give another step. If the step is a complete copy from a disk to a bucket, put an empty "
  "file commit_success.txt into its folder."
)


# A key of config.model, and unused parameters, of BERTs from versions without names for heads.
_POOLER, UNREAD = "pooler", ("pooler", "pooler_bias")
MASKS = "collections/transforms/mask/"  # path of the masks of a rule "mask" in a state


def read_config(path: epath.Path) -> dict[str, object]:
  """Returns the config of the checkpoint in folder `path`, with current keys."""
  config: dict[str, Any] = with_current_keys(_read_json(path / "config"))
  config["model"].pop(_POOLER, None)
  return config


def has_base(path: epath.Path) -> bool:
  """Returns whether the checkpoint in folder `path` leaves out parameters of another checkpoint."""
  return (path / verify.BASE).exists()


def read_base(path: epath.Path) -> "base_model_ref.Base | None":
  """Returns the base of the checkpoint in folder `path`; None if it is complete.

  Raises:
    UserError: its file has another form.
  """
  if not has_base(path):
    return None
  from t2t.checkpoints import base_model_ref

  with readable(path):
    return base_model_ref.Base.from_dict(_read_json(path / verify.BASE), path)


def _read_json(item: epath.Path) -> dict:
  retry.without_tracebacks()  # every read begins here
  with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as checkpointer:
    return checkpointer.restore(item)


def param_shapes(path: epath.Path) -> dict[str, tuple[int, ...]]:
  """Returns path and shape of each parameter of the checkpoint in folder `path`, trained or frozen.

  Parameters of an adapter's base are not included.
  """
  saved: Any = saved_tree(path)
  saved_shapes = shapes(join_frozen(saved["params"], saved.get("frozen_params") or {}))
  return {name: shape for name, shape in saved_shapes.items() if name not in UNREAD}


def saved_tree(path: epath.Path) -> Params:
  """Returns the state of the checkpoint in folder `path`, with metadata in place of arrays.

  Raises:
    DamagedCheckpoint: the metadata cannot be read.
  """
  with ocp.PyTreeCheckpointer() as checkpointer:
    metadata = checkpointer.metadata(path / "state").item_metadata
  if metadata is None:
    raise verify.DamagedCheckpoint(
      f"{path}: state/_METADATA, the list of the arrays, cannot be read. Restore the file, or give another step."
    )
  return metadata.tree


def read_params(
  path: epath.Path, wanted: Mapping[str, tuple[str, jax.ShapeDtypeStruct]], *, weights: str = ""
) -> dict[str, jax.Array]:
  """Reads some parameters of the checkpoint in folder `path`, on each host only for its devices.

  Args:
    path: see `checkpoint_folder`.
    wanted: name -> (path of the parameter in the checkpoint, its shape with a sharding). A dimension of another length
      is truncated or zero-padded.
    weights: see `trained_keys`.

  Returns:
    Name -> array.

  Raises:
    UserError: the checkpoint is damaged.
  """
  verify.check(path)
  with readable(path):
    # The checkpoint may have frozen other parameters than this run: split the requested paths as they were saved.
    tree, run = saved_tree(path), read_config(path)
    frozen = shapes(tree.get("frozen_params") or {})
    keys = trained_keys(tree, run, weights)
    params = _read_params(path, wanted, frozen, keys)
    if not is_flat(keys) and (not has_iterate(tree) or weights == "trained"):
      return params
    averaged_weights = importlib.import_module("t2t.checkpoints.averaged_weights")  # few runs have averages

    trained = {name: target for name, target in wanted.items() if target[0] not in frozen}
    if is_flat(keys):
      for of_masks, paths in averaged_weights.mask_keys(tree).items():
        pruned = {name: target for name, target in trained.items() if target[0] in paths}
        masks = _read_params(path, pruned, (), of_masks)
        params |= {name: averaged_weights.masked(params[name], mask) for name, mask in masks.items()}
      return params
    return params | averaged_weights.points(params, _read_params(path, trained, frozen, ITERATE), run)


def _read_params(
  path: epath.Path,
  wanted: Mapping[str, tuple[str, jax.ShapeDtypeStruct]],
  frozen: Collection[str],
  trained: tuple[str, ...],
) -> dict[str, jax.Array]:
  arrays, waiting = {}, dict(wanted)
  with ocp.PyTreeCheckpointer() as checkpointer:
    while waiting:
      # A parameter requested under several names is read several times.
      names = {saved: name for name, (saved, _) in waiting.items()}
      parts = {_item(saved, frozen, trained): saved for saved in names}
      item = traverse_util.unflatten_dict({part: waiting[names[saved]][1] for part, saved in parts.items()})
      restore_args = jax.tree.map(
        lambda x: ocp.ArrayRestoreArgs(sharding=x.sharding, dtype=x.dtype, global_shape=x.shape, strict=False), item
      )
      args = ocp.args.PyTreeRestore(item, restore_args=restore_args, partial_restore=True)
      restored = traverse_util.flatten_dict(checkpointer.restore(path / "state", args=args))
      for part, saved in parts.items():
        arrays[names[saved]] = restored[part]
        del waiting[names[saved]]
  return arrays


WEIGHTS = ("average", "trained")  # values of --weights
ITERATE = "opt_state", "z"  # keys of a schedule-free optimizer's iterate in a saved state, a flat dict


def has_iterate(tree: Mapping[str, object]) -> bool:
  """Returns whether a saved state is that of a schedule-free optimizer."""
  opt_state: Any = tree.get(ITERATE[0])
  return isinstance(opt_state, Mapping) and ITERATE[1] in opt_state


def trained_keys(tree: Mapping[str, object], run: Mapping[str, object], weights: str = "") -> tuple[str, ...]:
  """Returns the keys, in a saved state, of the trained parameters that readers take.

  With config.eval.average these are the average, a flat dict.  A merged or converted checkpoint has the config of its
  run, but contains only the parameters that were read for it.

  Args:
    tree: of a saved state.
    run: its config.
    weights: average, trained (the parameters of the last step), or "", which is config.eval.average.
  """
  saved, settings = dict[str, Any](tree), dict[str, Any](run).get("eval", {})
  wanted = weights == "average" or (settings.get("average") and weights != "trained")
  averaged = wanted and "average" in (saved.get("collections") or {})
  return ("collections", "average") if averaged else ("params",)


def is_flat(keys: tuple[str, ...]) -> bool:
  """Returns whether the dict under these keys of a saved state is flat: its keys are whole paths."""
  return keys[0] in ("collections", ITERATE[0])


def _item(name: str, frozen: Collection[str], trained: tuple[str, ...]) -> tuple[str, ...]:
  if name in frozen:
    return "frozen_params", *name.split("/")
  return (*trained, name) if is_flat(trained) else (*trained, *name.split("/"))


def restore_params(path: epath.Path, params: Params, *, weights: str = "") -> Params:
  """Restores the parameters of the checkpoint in folder `path`, with any optimizer.

  Named heads that are not requested, and an old pooler, are ignored.

  Args:
    path: see `checkpoint_folder`.
    params: nested dict of `jax.ShapeDtypeStruct` with shardings; arrays are read directly into them.
    weights: see `trained_keys`.

  Raises:
    UserError: the checkpoint has other parameters; the message contains the first.  Or it is damaged.
  """
  verify.check(path)
  # Ignore heads that the model lacks, and parameters that were never used.
  saved_shapes = {
    name: shape for name, shape in param_shapes(path).items() if name in shapes(params) or not _is_head(name)
  }
  check_shapes(path, saved_shapes, shapes(params))
  wanted: Any = flatten(params)
  return unflatten(read_params(path, {name: (name, x) for name, x in wanted.items()}, weights=weights))


def _is_head(name: str) -> bool:
  return name.startswith("heads/")


# ---- Errors ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def readable(path: epath.Path) -> Iterator[None]:
  """Converts read errors of arrays without a manifest to DamagedCheckpoint.

  Raises:
    DamagedCheckpoint: the block cannot read.
  """
  try:
    yield
  except UserError:
    raise
  except Exception as error:  # TensorStore and Orbax have no error class for it
    raise verify.DamagedCheckpoint(
      f"{path} cannot be read ({retry.reason(error)}). Restore the folder, or move it away."
    ) from error


def shapes(tree: object) -> dict[str, tuple[int, ...]]:
  """Returns path and shape of all leaves of a tree that have one."""
  leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: hasattr(x, "shape"))
  return {path_name(path): tuple(leaf.shape) for path, leaf in leaves if hasattr(leaf, "shape")}


class OtherArrays(UserError):
  """The checkpoint's arrays differ from the config's model or optimizer."""


def check_shapes(
  path: epath.Path, saved_shapes: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]]
) -> None:
  """Compares path -> shape of the checkpoint in folder `path` with the expected ones.

  Raises:
    OtherArrays: they differ; the message contains the first.
  """
  differences = [
    f"  {name}: {saved_shapes.get(name, 'missing')} in the checkpoint, {expected.get(name, 'unknown')} in config.model"
    # Parameters come before the moments that depend on them.
    for name in sorted(saved_shapes.keys() | expected.keys(), key=lambda name: (name.startswith("opt_state"), name))
    if saved_shapes.get(name) != expected.get(name)
  ]
  if differences:
    shown = "\n".join(differences[:5] + ([f"  and {len(differences) - 5} more"] if len(differences) > 5 else []))
    raise OtherArrays(
      f"{path}: the checkpoint's model or optimizer differs from the config:\n{shown}\n"
      "Give the config of the checkpoint (config.json in its workdir), or another workdir."
    )
