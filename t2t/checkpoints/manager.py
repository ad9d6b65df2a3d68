"""Saves and restores the state, the position in the data and the config, with Orbax."""

from collections.abc import Callable, Mapping, Sequence
import concurrent.futures
import contextlib
import dataclasses
import importlib
import os
import time
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from t2t import UserError, sharding
from t2t.checkpoints import manifest, restore, retention, retry, verify
from t2t.configuration.renamed_keys import with_current_keys
from t2t.param_tree import path_name
from t2t.runtime import hosts
from t2t.storage import gcs
from t2t.storage.outage import Away
from t2t.training import l2_sp
from t2t.training.train_state import TrainState

_LOOK_SECONDS = 1.0  # polling interval for failures

CHECKPOINTS = "checkpoints"  # folder of a workdir with one folder per step
VOCABULARY = "vocabulary"  # folder of a workdir with the vocabulary files of its model


class Checkpoints:
  """The checkpoints of one workdir, `workdir/checkpoints/STEP`, saved in the background.

  Keeps the last `keep` steps, and the best step by each saved metric.  At least two steps are kept, so that a damaged
  last one can be replaced.

  Raises:
    UserError: the folder's path is a file, or a broken link.
  """

  def __init__(
    self,
    workdir: epath.Path,
    *,
    keep: int,
    ends: Sequence[int] = (),
    retry_seconds: float = 0.0,
    read_only: bool = False,
    host_memory_limit: int | None = None,
  ):
    """Opens the folder, which may not exist yet.

    Args:
      workdir: local or gs://.
      keep: number of last steps to keep.
      ends: of stages, each of which keeps its best (`retention.best_of_stages`).
      retry_seconds: how long a failing save is retried.
      read_only: saves and deletes nothing, and keeps the remains of an interrupted save.
      host_memory_limit: bytes that a save may hold in host memory, see `deferred_copies`; None: no limit.
    """
    self.directory = workdir / CHECKPOINTS
    if self.directory.exists() and not self.directory.is_dir():
      raise UserError(f"--workdir {workdir}: {self.directory} is a file. Give another workdir, or move the file away.")
    if not gcs.is_remote(self.directory) and os.path.islink(self.directory) and not self.directory.exists():
      raise UserError(
        f"--workdir {workdir}: {self.directory} is a link to {os.readlink(self.directory)}, which does not exist. "
        "Restore that folder (is a disk not mounted?), or remove the link to start anew."
      )
    self._options = ocp.CheckpointManagerOptions(
      # best_fn only makes Orbax write the metrics; the policy decides which steps are kept.
      best_fn=lambda metrics: metrics["loss"],
      best_mode="min",
      preservation_policy=retention.kept(keep, ends),
      cleanup_tmp_directories=not read_only,
      read_only=read_only,
      create=not read_only,
      save_interval_steps=0 if read_only else 1,
      temporary_path_class=manifest.temporary_path_class(self.directory),
      # On a disk folders are created synchronously: otherwise other hosts learn of a failure after five minutes.
      async_options=ocp.options.AsyncOptions(create_directories_asynchronously=gcs.is_remote(self.directory)),
    )
    self.base: Any = None  # the `base_model_ref.Base` of parameters that steps leave out; None: steps are complete
    self._transfers: Any = None  # `deferred_copies.Transfers`, with a limit of host memory
    if host_memory_limit:
      from t2t.checkpoints import deferred_copies

      self._transfers = deferred_copies.Transfers(host_memory_limit)
    retry.without_tracebacks()
    self._error: Exception | None = None
    self._manager = self._open()
    self._patience = retry.Patience(self.directory, retry_seconds)
    self._waiter = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
    self._saving: tuple[int, concurrent.futures.Future] | None = None  # step, and future of its save
    self._is_lost = False  # a save of several processes failed
    self._last: tuple[int, dict[str, Any]] | None = None  # step and arguments of a save that may be retried

  def _open(self) -> ocp.CheckpointManager:
    """Returns Orbax's manager, which removes the remains of an interrupted save."""
    manager = ocp.CheckpointManager(
      self.directory,
      options=self._options,
      item_handlers={
        "state": self._transfers.handler() if self._transfers else ocp.StandardCheckpointHandler(),
        "streams": StreamsHandler(),
        "config": ocp.JsonCheckpointHandler(),
        verify.BASE: ocp.JsonCheckpointHandler(),
      },
    )
    # Orbax has no options for these.
    manager._checkpoint_deleter = retention.Deleter(self.directory)
    checkpointer: Any = manager._checkpointer
    checkpointer.wait_until_finished = self._noting_errors(checkpointer.wait_until_finished)
    if gcs.is_remote(self.directory) and not self._options.read_only:
      self._check_listing(manager.all_steps())
    return manager

  def _check_listing(self, listed_steps: Sequence[int]) -> None:
    """Checks that Orbax lists all steps: TensorFlow's client lists none if the bucket does not answer.

    Raises:
      Away: a step is missing, and the run would restart and overwrite the steps.
    """
    unknown = sorted(set(verify.steps(self.directory)) - set(listed_steps))
    if unknown:
      raise Away(
        f"{self.directory}: a listing of the bucket lacked step {', '.join(map(str, unknown))}, which exists. Run the "
        "same command again to resume from the saved steps."
      )

  def _noting_errors(self, wait: Callable[[], None]) -> Callable[[], None]:
    """Wraps `wait`, which a thread of Orbax calls before it waits for other processes, to record its error."""

    def noting() -> None:
      try:
        wait()
      except Exception as error:
        self._error = error
        raise

    return noting

  def latest_step(self) -> int | None:
    """Returns the last completely saved step."""
    return self._manager.latest_step()

  def latest_config(self) -> dict[str, object]:
    """Returns the config of the last step; {} without a step."""
    step = self.latest_step()
    return {} if step is None else self.config(step)

  def latest_identity(self) -> dict[str, object] | None:
    """Returns the data identity in the last step's position, {} if it has none; None without a step."""
    step = self.latest_step()
    if step is None:
      return None
    folder = self.directory / str(step) / verify.STREAMS
    identities = (verify.noted(folder / name).get("identity") for name in gcs.names(folder, where="--workdir"))
    return next((identity for identity in identities if isinstance(identity, dict)), {})

  def metrics(self) -> dict[int, Mapping[str, float] | None]:
    """Returns the metrics of each kept step; None for a step without metrics.

    Raises:
      UserError: a file cannot be read after several attempts.
    """
    return {step: self._measured(step) for step in self._manager.all_steps()}

  def _measured(self, step: int) -> dict[str, float] | None:
    # Orbax's reader fails if a bucket is away for some seconds.
    metrics: Any = verify.noted(self.directory / str(step) / "metrics" / "metrics", surely=True)
    return metrics or None

  def was_measured(self, step: int) -> bool:
    """Returns whether a kept step has metrics; equal on all hosts."""
    return hosts.share(bool(self._measured(step)))

  @staticmethod
  def may_contain(name: str) -> bool:
    """Returns whether a file of this name may be saved beside the streams, and is restored with them."""
    return name not in ("", ".", "..") and "/" not in name and not name.startswith((STREAM, *_OF_ORBAX))

  def save(
    self,
    step: int,
    state: TrainState,
    streams: dict[str, bytes],
    config: Mapping[str, object],
    *,
    metrics: Mapping[str, float] | None,
  ) -> None:
    """Starts to save; earlier steps stay unchanged until the save is complete.

    Waits until the state is copied to host memory. `overdue` or `wait` handle a failure.

    Args:
      step: of `state`.
      state: may be donated to the next step at once.
      streams: positions of the streams that this host writes; one host writes each stream (see `streams.writers`).
      config: JSON-serialisable; contains the number of streams.
      metrics: "loss" on held-out text and other metrics of this step; None: not evaluated.

    Raises:
      UserError: saves have failed for too long; or this save failed in a run of several processes.
    """
    items = {"streams": SaveStreams(streams), "config": ocp.args.JsonSave(config)}
    if self.base is not None:
      state = dataclasses.replace(state, frozen_params=self.base.without(state.frozen_params))
      items[verify.BASE] = ocp.args.JsonSave(self.base.to_dict())
    state = dataclasses.replace(state, opt_state=l2_sp.without_files(state.opt_state))
    args = ocp.args.Composite(state=ocp.args.StandardSave(_saved(jax.tree.map(_apart, state))), **items)
    if self._saving is not None:
      self._settle()
    self._last = step, {"args": args, "metrics": metrics}
    self._try()

  def _try(self) -> None:
    assert self._last is not None
    step, how = self._last
    deferred = self._transfers is not None and self._transfers.begin(how["args"].state.item)
    try:
      if self._patience.failing:
        self._close_manager()
        self._manager = self._open()
      self._manager.save(step, force=True, **how)
    except Exception as error:  # from Orbax, TensorStore or the system
      self._saving = None
      self._failed(step, error)
    else:
      self._saving = step, self._waiter.submit(self._manager.wait_until_finished)
      if deferred:
        self._wait_for_copies()

  def _wait_for_copies(self) -> None:
    """Waits until the state is copied to host memory in parts, or the save has failed."""
    assert self._saving is not None
    while not (self._transfers.wait(_LOOK_SECONDS) or self._saving[1].done() or self._failed_so_far()):
      pass

  @property
  def is_idle(self) -> bool:
    """True if no save is running or to be retried, as of the last call of `overdue`."""
    return self._saving is None and not self._patience.failing

  def overdue(self) -> bool:
    """Returns whether a save failed and the current state must be saved instead; called after every step.

    Raises:
      UserError: saves have failed for too long; or the last one failed in a run of several processes.
    """
    self._last = None  # its state has been donated
    if self._saving is not None:
      error = self._failed_so_far()
      if error is not None or self._saving[1].done():
        self._settle(error)
    return self._patience.failing and not self._patience.seconds_left()

  def _settle(self, error: BaseException | None = None) -> None:
    """Waits for the running save, unless it has failed, and records its result."""
    assert self._saving is not None
    (step, saving), self._saving = self._saving, None
    while error is None and not saving.done():
      concurrent.futures.wait([saving], timeout=_LOOK_SECONDS)
      error = self._failed_so_far()
    error = saving.exception() if error is None else error
    if error is None:
      self._patience.succeeded()
    else:
      self._failed(step, error)

  def _failed_so_far(self) -> Exception | None:
    """Returns the write error of one of several processes: Orbax reports it only after a timeout of the others."""
    return self._error if jax.process_count() > 1 else None

  def _failed(self, step: int, error: BaseException) -> None:
    self._is_lost = jax.process_count() > 1
    self._patience.failed(step, error, alone=not self._is_lost)

  def config(self, step: int) -> dict[str, object]:
    """Returns the config of `step`, with current keys.

    Raises:
      UserError: the step is incomplete; the message contains the missing items and the preceding step.
    """
    missing = [item for item in ("config", "state", "streams") if not (self.directory / str(step) / item).exists()]
    if missing == ["streams"]:
      raise UserError(
        f"{self.directory / str(step)}: no run can resume from this checkpoint, because it has no data position "
        "(`t2t convert` writes none). To train from this checkpoint, give "
        f"--config.init.checkpoint={self.directory.parent} and another --workdir."
      )
    if missing:
      before = max((earlier for earlier in self._manager.all_steps() if earlier < step), default=None)
      then = "starts afresh" if before is None else f"resumes from step {before}"
      raise UserError(
        f"{self.directory / str(step)}: this checkpoint is damaged, because it lacks {', '.join(missing)}. Restore the "
        f"folder, or move it away; the same command then {then}."
      )
    saved: Any = self._manager.restore(step, args=ocp.args.Composite(config=ocp.args.JsonRestore()))
    return with_current_keys(saved.config)

  def restore(
    self, step: int, abstract: TrainState, stream_names: tuple[str, ...]
  ) -> tuple[TrainState, dict[str, bytes]]:
    """Returns the state, each array read directly into its shards, and the files beside it: streams and other files.

    Raises:
      UserError: the checkpoint's arrays differ from `abstract`; the message contains the first.  Or the checkpoint
        belongs to another step, which is detected here if it has no manifest.
    """
    path = self.directory / str(step)
    abstract = dataclasses.replace(abstract, opt_state=l2_sp.without_files(abstract.opt_state))
    with restore.readable(path):
      items: Any = self._manager.item_metadata(step)
      saved_shapes = restore.shapes(items.state)
    unread = {
      name: x for name, x in saved_shapes.items() if name.rpartition("/")[2] in restore.UNREAD and "/heads/" not in name
    }
    expected = restore.shapes(abstract)
    if any(name.startswith(restore.MASKS) for name in expected):
      unread |= _earlier_masks().of_vectors(path, saved_shapes, expected)
    restore.check_shapes(path, {name: saved_shapes[name] for name in saved_shapes.keys() - unread}, expected)
    state = ocp.args.StandardRestore(_saved(_with_unread(abstract, unread)))  # Orbax reads all or nothing
    args = ocp.args.Composite(state=state, streams=RestoreStreams(stream_names))
    with restore.readable(path):
      restored: Any = self._manager.restore(step, args=args)
    state = TrainState(**restored.state)
    if int(state.step) != step:
      raise UserError(
        f"{path} contains the arrays of step {int(state.step)}. Move the folder away, or rename it to "
        f"{int(state.step)}."
      )
    return _without_unread(state, unread), restored.streams

  def wait(self) -> None:
    """Waits until everything is written; retries a failed save, because no step follows.

    Raises:
      UserError: saves have failed for too long; or the last one failed in a run of several processes.
    """
    while self._saving is not None or (self._patience.failing and self._last is not None):
      if self._saving is None:
        time.sleep(self._patience.seconds_left())
        self._try()
      if self._saving is not None:
        self._settle()

  def close(self) -> None:
    """Waits for the running save, logs its failure, and ends the background threads."""
    if self._is_lost:  # each of several processes would wait for the others
      self._waiter.shutdown(wait=False)
      return
    if self._saving is not None:
      (step, saving), self._saving = self._saving, None
      if error := saving.exception():
        hosts.log_once(f"{self.directory}: step {step} could not be saved ({retry.reason(error)})")
    self._close_manager()
    self._waiter.shutdown()

  def _close_manager(self) -> None:
    for _ in range(2):  # the first call raises the earlier error again and closes nothing
      with contextlib.suppress(Exception):
        self._manager.close()
        return


def _saved(state: TrainState) -> dict[str, Any]:
  """Returns the fields that a checkpoint contains: no `collections` if empty, as in checkpoints of earlier versions."""
  fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
  return {name: value for name, value in fields.items() if name != "collections" or value}


def _of_dicts(function: Callable[[str, dict], dict], state: TrainState) -> TrainState:
  """Applies `function` to path and content of each outermost dict of a state: parameters, or moments by path."""
  is_dict = lambda x: isinstance(x, dict)
  apply = lambda path, x: function(path_name(path), x) if is_dict(x) else x
  return jax.tree_util.tree_map_with_path(apply, state, is_leaf=is_dict)


def _earlier_masks() -> Any:
  return importlib.import_module("t2t.checkpoints.earlier_masks")  # few runs have masks


def _with_unread(abstract: TrainState, unread: Mapping[str, tuple[int, ...]]) -> TrainState:
  """Returns the state's shapes, plus the shapes of saved parameters that no model uses today."""
  if not unread:
    return abstract
  everywhere = sharding.replicated(sharding.mesh_of(abstract.step))
  abstract_array = lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=everywhere)
  unread_of = lambda path: {
    name: abstract_array(unread[f"{path}/{name}"]) for name in restore.UNREAD if f"{path}/{name}" in unread
  }
  abstract = _of_dicts(lambda path, x: x | unread_of(path), abstract)
  masks = {name: abstract_array(x) for name, x in unread.items() if name.startswith(restore.MASKS)}
  return _earlier_masks().added(abstract, masks) if masks else abstract


def _without_unread(state: TrainState, unread: Mapping[str, tuple[int, ...]]) -> TrainState:
  state = _of_dicts(lambda path, x: {k: v for k, v in x.items() if f"{path}/{k}" not in unread}, state)
  masks = [name for name in unread if name.startswith(restore.MASKS)]
  return _earlier_masks().removed(state, masks) if masks else state


def _apart(x: jax.Array) -> jax.Array:
  """Returns the array, or a copy of an array in host memory, so that no later step reuses its memory.

  Orbax (`replica_slices.transfer_arrays_to_host`) keeps np.asarray of each shard when `save` returns.  For device
  memory this is a copy. For host memory it is a view, read in the background while the next step, which the state is
  donated to, writes to it.  XLA's CPU backend refuses the donation while a view exists; other backends may not.
  """
  if x.sharding.memory_kind != "pinned_host":
    return x
  return jax.device_put(x, x.sharding, may_alias=False)


STREAM = "stream-"  # name prefix of positions
_OF_ORBAX = ("commit_success", "_")  # Orbax's own files in a checkpoint's folder


class StreamsHandler(ocp.AsyncCheckpointHandler):
  """Handler of the files beside a checkpoint's arrays, one for each data stream."""

  async def async_save(self, directory: epath.Path, args: "SaveStreams") -> list[ocp.future.Future]:
    """Writes in the background, once the checkpoint's folder exists."""

    async def write():
      for name, content in args.streams.items():
        # No temporary file is needed: readers ignore the folder until it is complete.
        (directory / name).write_bytes(content)

    return [ocp.future.CommitFutureAwaitingContractedSignals(write(), name="streams")]

  def save(self, directory: epath.Path, args: "SaveStreams") -> None:
    """Raises TypeError: only asynchronous checkpoints are supported."""
    del directory, args
    raise TypeError(f"{type(self).__name__}: only an asynchronous checkpointer can save streams")

  def restore(self, directory: epath.Path, args: "RestoreStreams") -> dict[str, bytes]:
    """Returns the content of each requested stream, and of each other file."""
    other_files = [path.name for path in directory.iterdir() if not path.name.startswith((STREAM, *_OF_ORBAX))]
    return {name: (directory / name).read_bytes() for name in (*args.names, *sorted(other_files))}


@ocp.args.register_with_handler(StreamsHandler, for_save=True)
@dataclasses.dataclass
class SaveStreams(ocp.args.CheckpointArgs):
  """Positions of the streams that this host writes, by name; no other host writes them."""

  streams: dict[str, bytes]


@ocp.args.register_with_handler(StreamsHandler, for_restore=True)
@dataclasses.dataclass
class RestoreStreams(ocp.args.CheckpointArgs):
  """The streams that this process reads."""

  names: tuple[str, ...]
