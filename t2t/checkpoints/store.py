"""Saves and restores the state, the position in the data and the config, with Orbax."""

from collections.abc import Callable, Mapping
import dataclasses
import math
from typing import Any

from etils import epath
from flax import traverse_util
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from t2t import UserError, sharding
from t2t.config import with_current_keys
from t2t.params import Params, join_frozen, path_name
from t2t.storage import bucket
from t2t.training.train_state import TrainState

_policies = ocp.checkpoint_managers

VOCABULARY = "vocabulary"  # folder of a workdir: the files of the vocabulary that its model was trained with


class StreamsHandler(ocp.AsyncCheckpointHandler):
  """One file for each stream of the data."""

  async def async_save(self, directory: epath.Path, args: "StreamsSave") -> list[ocp.future.Future]:
    """Writes in the background, as soon as the checkpoint's folder is there."""

    async def write():
      for name, content in args.streams.items():
        # No part and no renaming: the folder itself is one that no reader takes before it is whole.
        (directory / name).write_bytes(content)

    return [ocp.future.CommitFutureAwaitingContractedSignals(write(), name="streams")]

  def save(self, directory: epath.Path, args: "StreamsSave") -> None:
    """Writes at once; only asynchronous checkpoints are made here."""
    del directory, args
    raise TypeError("streams are saved by an asynchronous checkpointer")

  def restore(self, directory: epath.Path, args: "StreamsRestore") -> dict[str, bytes]:
    """The content of each stream asked for, and of what else is there of `args.others`."""
    there = [name for name in args.others if (directory / name).exists()]
    return {name: (directory / name).read_bytes() for name in (*args.names, *there)}


@ocp.args.register_with_handler(StreamsHandler, for_save=True)
@dataclasses.dataclass
class StreamsSave(ocp.args.CheckpointArgs):
  """Position of each stream that this host is to write, by name; no other host writes it."""

  streams: dict[str, bytes]


@ocp.args.register_with_handler(StreamsHandler, for_restore=True)
@dataclasses.dataclass
class StreamsRestore(ocp.args.CheckpointArgs):
  """The streams that this host will read, and what else was saved beside them if there was need."""

  names: tuple[str, ...]
  others: tuple[str, ...] = ()


def best_steps(metrics: Mapping[int, Mapping[str, float] | None]) -> dict[str, int]:
  """The best step by each metric, the earliest of several that are as good; what is no number is never the best.

  In:  {10: {"loss": nan, "cb/f1": 50.0}, 20: {"loss": 1.5, "cb/f1": 50.0, "rte/f1": nan}, 30: None}
  Out: {"loss": 20, "cb/f1": 10}

  Args:
    metrics: step -> name -> value, None where nothing was measured. Of "loss" less is better, of all others more.
  """
  best: dict[str, int] = {}
  for step, values in sorted(metrics.items()):
    for name, value in (values or {}).items():
      if math.isnan(value):
        continue
      sign = -1 if name == "loss" else 1
      if name not in best or sign * value > sign * metrics[best[name]][name]:
        best[name] = step
  return best


class _BestOfEach(_policies.PreservationPolicy):
  """Keeps the best checkpoint by each metric."""

  def should_preserve(self, checkpoints, *, context):
    del context
    best = set(best_steps({each.step: each.metrics for each in checkpoints}).values())
    return [each.step in best for each in checkpoints]


class Checkpoints:
  """The checkpoints of one workdir: `workdir/checkpoints/STEP`, saved in the background.

  The last `keep` are kept, and besides them the best by each metric that checkpoints were saved with.

  Raises:
    UserError: there is a file in the place of the folder.
  """

  def __init__(self, workdir: epath.Path, *, keep: int):
    policy = _policies.AnyPreservationPolicy([_policies.LatestN(keep), _BestOfEach()])
    self.directory = workdir / "checkpoints"
    if self.directory.exists() and not self.directory.is_dir():
      raise UserError(f"--workdir {workdir}: {self.directory} is a file; give another workdir, or move it away")
    self._manager = ocp.CheckpointManager(
      self.directory,
      options=ocp.CheckpointManagerOptions(
        # best_fn only makes the metrics be written; what is kept is the policy's business.
        best_fn=lambda metrics: metrics["loss"],
        best_mode="min",
        preservation_policy=policy,
        cleanup_tmp_directories=True,
      ),
      item_handlers={
        "state": ocp.StandardCheckpointHandler(),
        "streams": StreamsHandler(),
        "config": ocp.JsonCheckpointHandler(),
      },
    )

  def latest_step(self) -> int | None:
    """The last step that was saved whole."""
    return self._manager.latest_step()

  def latest_config(self) -> dict:
    """The config that the last step was saved with; {} where nothing was."""
    step = self.latest_step()
    return {} if step is None else self.config(step)

  def metrics(self) -> dict[int, Mapping[str, float] | None]:
    """What each step that is kept was measured at; None where nothing was."""
    return {step: self._manager.metrics(step) or None for step in self._manager.all_steps()}

  def save(
    self,
    step: int,
    state: TrainState,
    streams: dict[str, bytes],
    config: dict,
    *,
    metrics: Mapping[str, float] | None,
  ) -> None:
    """Starts to save; what was saved before is untouched until this is whole.

    Args:
      step: of `state`.
      state: may be donated to the next step at once.
      streams: position of each stream that this host is to write: one host for each (see `streams.writers`).
      config: JSON-serialisable; the number of streams is part of it.
      metrics: "loss" on held-out text and whatever else was measured at this step; None: nothing was.
    """
    args = ocp.args.Composite(
      state=ocp.args.StandardSave(jax.tree.map(_apart, state)),
      streams=StreamsSave(streams),
      config=ocp.args.JsonSave(config),
    )
    self._manager.save(step, args=args, metrics=metrics, force=True)

  def config(self, step: int) -> dict:
    """The config that `step` was saved with, by the keys of today.

    Raises:
      UserError: the step is not whole any more; says what is missing, and which step there is before it.
    """
    missing = [item for item in ("config", "state", "streams") if not (self.directory / str(step) / item).exists()]
    if missing == ["streams"]:
      raise UserError(
        f"{self.directory / str(step)}: this checkpoint has no position in its data, as those that were converted; to"
        f" train from it give --config.init.checkpoint={self.directory.parent} and another --workdir"
      )
    if missing:
      before = max((each for each in self._manager.all_steps() if each < step), default=None)
      then = "starts afresh" if before is None else f"goes on from step {before}"
      raise UserError(
        f"{self.directory / str(step)}: this checkpoint has no {', no '.join(missing)}, which it had when it was saved;"
        f" restore the folder, or move it away: then the same command {then}"
      )
    saved = self._manager.restore(step, args=ocp.args.Composite(config=ocp.args.JsonRestore())).config
    return with_current_keys(saved)

  def restore(
    self, step: int, abstract: TrainState, stream_names: tuple[str, ...], others: tuple[str, ...] = ()
  ) -> tuple[TrainState, dict[str, bytes]]:
    """The state, each array directly in its shards, and the streams; of `others` those that were saved beside them.

    Raises:
      UserError: the checkpoint's arrays are not those of `abstract`; names the first that differ.
    """
    path = self.directory / str(step)
    found = _shapes(self._manager.item_metadata(step).state)
    unread = {name: x for name, x in found.items() if name.rpartition("/")[2] in UNREAD and "/heads/" not in name}
    _check_shapes(path, {name: found[name] for name in found.keys() - unread}, _shapes(abstract))
    state = ocp.args.StandardRestore(_with_unread(abstract, unread))  # Orbax reads all or nothing
    args = ocp.args.Composite(state=state, streams=StreamsRestore(stream_names, others))
    restored = self._manager.restore(step, args=args)
    return _without_unread(restored.state, unread), restored.streams

  def wait(self) -> None:
    """Returns when everything is written."""
    self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits until everything is written, and ends the background threads."""
    self._manager.wait_until_finished()
    self._manager.close()


def _of_dicts(function: Callable[[str, dict], dict], state: TrainState) -> TrainState:
  """`function` of the path and the content of each outermost dict of a state: of parameters, or of moments by path."""
  is_dict = lambda x: isinstance(x, dict)
  each = lambda path, x: function(path_name(path), x) if is_dict(x) else x
  return jax.tree_util.tree_map_with_path(each, state, is_leaf=is_dict)


def _with_unread(abstract: TrainState, unread: Mapping[str, tuple[int, ...]]) -> TrainState:
  """A state's shapes, and those of what was saved with it but is no part of any model today."""
  if not unread:
    return abstract
  everywhere = sharding.replicated(abstract.step.sharding.mesh)
  place = lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=everywhere)
  own = lambda path: {name: place(unread[f"{path}/{name}"]) for name in UNREAD if f"{path}/{name}" in unread}
  return _of_dicts(lambda path, x: x | own(path), abstract)


def _without_unread(state: TrainState, unread: Mapping[str, tuple[int, ...]]) -> TrainState:
  return _of_dicts(lambda path, x: {k: v for k, v in x.items() if f"{path}/{k}" not in unread}, state)


def _apart(x: jax.Array) -> jax.Array:
  """The array, or of one that waits in the host's memory a copy, which no later step can be given the memory of.

  Orbax (`replica_slices.transfer_arrays_to_host`) holds np.asarray of each shard when `save` returns.  Of a device's
  memory that is a copy; of the host's it is a view, which is read in the background while the next step, to which the
  state is donated, writes.  XLA's CPU backend refuses the donation as long as there is a view; no one says that all do.
  """
  if x.sharding.memory_kind != "pinned_host":
    return x
  return jax.device_put(x, x.sharding, may_alias=False)


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: hasattr(x, "shape"))
  return {path_name(path): tuple(leaf.shape) for path, leaf in leaves if hasattr(leaf, "shape")}


def _check_shapes(path: epath.Path, found: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]]) -> None:
  differences = [
    f"  {name}: {found.get(name, 'missing')} in the checkpoint, {expected.get(name, 'unknown')} in config.model"
    # Parameters before the moments that follow from them.
    for name in sorted(found.keys() | expected.keys(), key=lambda name: (name.startswith("opt_state"), name))
    if found.get(name) != expected.get(name)
  ]
  if differences:
    shown = "\n".join(differences[:5] + ([f"  and {len(differences) - 5} more"] if len(differences) > 5 else []))
    raise UserError(
      f"{path} is a checkpoint of another model or optimizer than the config says:\n{shown}\n"
      "give the config that it was trained with (config.json stands in its workdir), or another workdir"
    )


def checkpoint_folder(path: str, *, where: str = "config.init.checkpoint=") -> epath.Path:
  """The folder of one checkpoint: `path` itself, or the last of the workdir `path` that was saved to its end.

  Args:
    path: local or gs://.
    where: what the user named it with, for messages.

  Raises:
    UserError: there is none; says what was looked for.
  """
  bucket.check(path, where=where)
  root = bucket.absolute(path)
  if (root / "state").exists():
    if not ocp.path.step.is_path_finalized(root):
      raise UserError(f"{where}{path}: {_UNFINISHED}")
    return root
  unfinished = []
  for folder in (root / "checkpoints", root):
    steps = sorted(int(name) for name in bucket.names(folder, where=where.strip(" =")) if name.isdigit())
    for step in reversed(steps):
      child = folder / str(step)
      if ocp.path.step.is_path_finalized(child) and (child / "state").exists():
        return child
      unfinished.append(child)
  if unfinished:
    raise UserError(f"{where}{path}: of its steps none is whole; {unfinished[0]}: {_UNFINISHED}")
  raise UserError(
    f"{where}{path}: no checkpoint there; looked for {root}/state, {root}/checkpoints/STEP"
    f" and {root}/STEP, and for a checkpoint of Hugging Face's or T5X's; give a workdir that t2t trained in, or a"
    " checkpoint"
  )


_UNFINISHED = (
  "was not saved to its end (in a bucket commit_success.txt is written last); give another step, or, if it was copied"
  " whole from a disk, put an empty file of that name into the folder of the step"
)


# A key of config.model, and parameters, of BERTs that t2t trained before its heads had names: nothing read them.
_POOLER, UNREAD = "pooler", ("pooler", "pooler_bias")


def read_config(path: epath.Path) -> dict:
  """The config that the checkpoint in folder `path` was saved with, by the keys of today."""
  with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as checkpointer:
    config = with_current_keys(checkpointer.restore(path / "config"))
  config["model"].pop(_POOLER, None)
  return config


def param_shapes(path: epath.Path) -> dict[str, tuple[int, ...]]:
  """Path and shape of each parameter of the checkpoint in folder `path`, whether it was trained or not."""
  found = _shapes(join_frozen(*_saved_params(path)))
  return {name: shape for name, shape in found.items() if name not in UNREAD}


def _saved_params(path: epath.Path) -> tuple[Params, Params]:
  with ocp.PyTreeCheckpointer() as checkpointer:
    saved = checkpointer.metadata(path / "state").item_metadata.tree
  return saved["params"], saved.get("frozen_params") or {}


def read_params(path: epath.Path, wanted: Mapping[str, tuple[str, jax.ShapeDtypeStruct]]) -> dict[str, jax.Array]:
  """Some parameters of the checkpoint in folder `path`, each host reading what its own devices hold.

  Args:
    path: see `checkpoint_folder`.
    wanted: name -> (path of the parameter in the checkpoint, its shape with a sharding). Of another length than it was
      saved with, a dimension is cut off, or filled up with zeros.

  Returns:
    Name -> array.
  """
  # The checkpoint may have frozen other parameters than this run does: what is asked for is split as it was saved.
  frozen = _shapes(_saved_params(path)[1])
  found, waiting = {}, dict(wanted)
  with ocp.PyTreeCheckpointer() as checkpointer:
    while waiting:
      # What is wanted under several names is read as often.
      names = {saved: name for name, (saved, _) in waiting.items()}
      parts = {("frozen_params" if saved in frozen else "params", *saved.split("/")): saved for saved in names}
      item = traverse_util.unflatten_dict({part: waiting[names[saved]][1] for part, saved in parts.items()})
      restore_args = jax.tree.map(
        lambda x: ocp.ArrayRestoreArgs(sharding=x.sharding, dtype=x.dtype, global_shape=x.shape, strict=False), item
      )
      args = ocp.args.PyTreeRestore(item, restore_args=restore_args, partial_restore=True)
      restored = traverse_util.flatten_dict(checkpointer.restore(path / "state", args=args))
      for part, saved in parts.items():
        found[names[saved]] = restored[part]
        del waiting[names[saved]]
  return found


def restore_params(path: epath.Path, params: Params) -> Params:
  """The parameters of the checkpoint in folder `path`, whatever its optimizer was.

  Heads by name that are not asked for are passed over, and so is an old pooler.

  Args:
    path: see `checkpoint_folder`.
    params: nested dict of `jax.ShapeDtypeStruct` with shardings: the arrays are read directly into them.

  Raises:
    UserError: the checkpoint's parameters are not these; names the first that differ.
  """
  # Heads that the model does not have, and what was never read, are passed over.
  found = {name: shape for name, shape in param_shapes(path).items() if name in _shapes(params) or not _is_head(name)}
  _check_shapes(path, found, _shapes(params))
  wanted = traverse_util.flatten_dict(params, sep="/")
  return traverse_util.unflatten_dict(read_params(path, {name: (name, x) for name, x in wanted.items()}), sep="/")


def _is_head(name: str) -> bool:
  return name.startswith("heads/")
