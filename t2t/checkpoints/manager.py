"""Saves and restores the state, the position in the data and the config, with Orbax."""

from collections.abc import Callable, Mapping, Sequence
import concurrent.futures
import contextlib
import dataclasses
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

_LOOK_SECONDS = 1.0  # between looks for what has failed

CHECKPOINTS = "checkpoints"  # folder of a workdir: a folder for each step
VOCABULARY = "vocabulary"  # folder of a workdir: the files of the vocabulary that its model was trained with


class Checkpoints:
  """The checkpoints of one workdir: `workdir/checkpoints/STEP`, saved in the background.

  The last `keep` are kept, and besides them the best by each metric that checkpoints were saved with.  The last but one
  always stays: should the last be damaged, training goes on from it.

  Raises:
    UserError: there is a file in the place of the folder, or a link that leads nowhere.
  """

  def __init__(
    self,
    workdir: epath.Path,
    *,
    keep: int,
    ends: Sequence[int] = (),
    retry_seconds: float = 0.0,
    read_only: bool = False,
  ):
    """Opens the folder, which need not be there.

    Args:
      workdir: local or gs://.
      keep: how many of the last stay.
      ends: of stages, each of which has its best (`retention.best_of_stages`).
      retry_seconds: for which a save that fails is tried again.
      read_only: nothing is saved or deleted, and what an interrupted save has left stays.
    """
    self.directory = workdir / CHECKPOINTS
    if self.directory.exists() and not self.directory.is_dir():
      raise UserError(f"--workdir {workdir}: {self.directory} is a file; give another workdir, or move it away")
    if not gcs.is_remote(self.directory) and os.path.islink(self.directory) and not self.directory.exists():
      raise UserError(
        f"--workdir {workdir}: {self.directory} is a link to {os.readlink(self.directory)}, which is not there; bring"
        " it back (a disk that is not mounted?), or remove the link to begin anew"
      )
    self._options = ocp.CheckpointManagerOptions(
      # best_fn only makes the metrics be written; what is kept is the policy's business.
      best_fn=lambda metrics: metrics["loss"],
      best_mode="min",
      preservation_policy=retention.kept(keep, ends),
      cleanup_tmp_directories=not read_only,
      read_only=read_only,
      create=not read_only,
      save_interval_steps=0 if read_only else 1,
      temporary_path_class=manifest.temporary_path_class(self.directory),
      # On a disk they are made at once: of one that cannot be made the others would hear after five minutes.
      async_options=ocp.options.AsyncOptions(create_directories_asynchronously=gcs.is_remote(self.directory)),
    )
    self.base: Any = None  # the `bases.Base` whose parameters steps leave out; None: steps are whole
    retry.without_tracebacks()
    self._error: Exception | None = None
    self._manager = self._open()
    self._patience = retry.Patience(self.directory, retry_seconds)
    self._waiter = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
    self._saving: tuple[int, concurrent.futures.Future] | None = None  # step, and the end of saving it
    self._is_lost = False  # as one of several processes
    self._last: tuple[int, dict[str, Any]] | None = None  # step and arguments of a save that may be tried again

  def _open(self) -> ocp.CheckpointManager:
    """Orbax's manager, which takes away what an interrupted save has left."""
    manager = ocp.CheckpointManager(
      self.directory,
      options=self._options,
      item_handlers={
        "state": ocp.StandardCheckpointHandler(),
        "streams": StreamsHandler(),
        "config": ocp.JsonCheckpointHandler(),
        verify.BASE: ocp.JsonCheckpointHandler(),
      },
    )
    # For neither has Orbax an option.
    manager._checkpoint_deleter = retention.Deleter(self.directory)
    checkpointer: Any = manager._checkpointer
    checkpointer.wait_until_finished = self._noting_errors(checkpointer.wait_until_finished)
    if gcs.is_remote(self.directory) and not self._options.read_only:
      self._check_listing(manager.all_steps())
    return manager

  def _check_listing(self, listed_steps: Sequence[int]) -> None:
    """Whether Orbax knows all steps that there are: TensorFlow's client, when the bucket does not answer, knows none.

    Raises:
      Away: it does not; the run would begin anew, on top of what is there.
    """
    unknown = sorted(set(verify.steps(self.directory)) - set(listed_steps))
    if unknown:
      raise Away(
        f"{self.directory}: a listing of it lacked step {', '.join(map(str, unknown))}, which is there: the bucket does"
        " not answer as it should; the same command again goes on from what was saved"
      )

  def _noting_errors(self, wait: Callable[[], None]) -> Callable[[], None]:
    """`wait`, which a thread of Orbax calls before it waits for the other processes, perhaps in vain."""

    def noting() -> None:
      try:
        wait()
      except Exception as error:
        self._error = error
        raise

    return noting

  def latest_step(self) -> int | None:
    """The last step that was saved whole."""
    return self._manager.latest_step()

  def latest_config(self) -> dict[str, object]:
    """The config that the last step was saved with; {} where nothing was."""
    step = self.latest_step()
    return {} if step is None else self.config(step)

  def latest_identity(self) -> dict[str, object] | None:
    """What the last step's position in the data belongs to, as far as it says so; None where nothing was saved."""
    step = self.latest_step()
    if step is None:
      return None
    folder = self.directory / str(step) / verify.STREAMS
    identities = (verify.noted(folder / name).get("identity") for name in gcs.names(folder, where="--workdir"))
    return next((identity for identity in identities if isinstance(identity, dict)), {})

  def metrics(self) -> dict[int, Mapping[str, float] | None]:
    """What each step that is kept was measured at; None where nothing was.

    Raises:
      UserError: it cannot be read, however often it was tried.
    """
    return {step: self._measured(step) for step in self._manager.all_steps()}

  def _measured(self, step: int) -> dict[str, float] | None:
    # Orbax's own way gives up where a bucket is away for some seconds.
    metrics: Any = verify.noted(self.directory / str(step) / "metrics" / "metrics", surely=True)
    return metrics or None

  def was_measured(self, step: int) -> bool:
    """Whether a step that is kept was saved with what it was measured at; the same on all hosts."""
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
    """Starts to save; what was saved before is untouched until this is whole.

    If it fails, `overdue` or `wait` see to it.

    Args:
      step: of `state`.
      state: may be donated to the next step at once.
      streams: position of each stream that this host is to write: one host for each (see `streams.writers`).
      config: JSON-serialisable; the number of streams is part of it.
      metrics: "loss" on held-out text and whatever else was measured at this step; None: nothing was.

    Raises:
      UserError: saves have failed for too long; or this one, of several processes.
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
    try:
      if self._patience.failing:
        self._close_manager()
        self._manager = self._open()
      self._manager.save(step, force=True, **how)
    except Exception as error:  # of Orbax, TensorStore or the system
      self._saving = None
      self._failed(step, error)
    else:
      self._saving = step, self._waiter.submit(self._manager.wait_until_finished)

  def overdue(self) -> bool:
    """Whether a save has failed, and the state as it is now is to be saved instead; asked after every step.

    Raises:
      UserError: saves have failed for too long; or the last, of several processes.
    """
    self._last = None  # its state has been donated
    if self._saving is not None:
      error = self._failed_so_far()
      if error is not None or self._saving[1].done():
        self._settle(error)
    return self._patience.failing and not self._patience.seconds_left()

  def _settle(self, error: BaseException | None = None) -> None:
    """Waits for the save that has begun, unless it has failed already, and notes how it ended."""
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
    """What this one of several processes could not write; it would not end before others have waited for it in vain."""
    return self._error if jax.process_count() > 1 else None

  def _failed(self, step: int, error: BaseException) -> None:
    self._is_lost = jax.process_count() > 1
    self._patience.failed(step, error, alone=not self._is_lost)

  def config(self, step: int) -> dict[str, object]:
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
      before = max((earlier for earlier in self._manager.all_steps() if earlier < step), default=None)
      then = "starts afresh" if before is None else f"goes on from step {before}"
      raise UserError(
        f"{self.directory / str(step)}: this checkpoint has no {', no '.join(missing)}, which it had when it was saved;"
        f" restore the folder, or move it away: then the same command {then}"
      )
    saved: Any = self._manager.restore(step, args=ocp.args.Composite(config=ocp.args.JsonRestore()))
    return with_current_keys(saved.config)

  def restore(
    self, step: int, abstract: TrainState, stream_names: tuple[str, ...]
  ) -> tuple[TrainState, dict[str, bytes]]:
    """Returns the state, each array directly in its shards, and the files beside it: its streams and what is no stream.

    Raises:
      UserError: the checkpoint's arrays are not those of `abstract`; names the first that differ.  Or it is of another
        step, which one without a manifest says only now.
    """
    path = self.directory / str(step)
    abstract = dataclasses.replace(abstract, opt_state=l2_sp.without_files(abstract.opt_state))
    with restore.readable(path):
      items: Any = self._manager.item_metadata(step)
      saved_shapes = restore.shapes(items.state)
    unread = {
      name: x for name, x in saved_shapes.items() if name.rpartition("/")[2] in restore.UNREAD and "/heads/" not in name
    }
    restore.check_shapes(
      path, {name: saved_shapes[name] for name in saved_shapes.keys() - unread}, restore.shapes(abstract)
    )
    state = ocp.args.StandardRestore(_saved(_with_unread(abstract, unread)))  # Orbax reads all or nothing
    args = ocp.args.Composite(state=state, streams=RestoreStreams(stream_names))
    with restore.readable(path):
      restored: Any = self._manager.restore(step, args=args)
    state = TrainState(**restored.state)
    if int(state.step) != step:
      raise UserError(f"{path}: its arrays are of step {int(state.step)}; move it away, or give it that name")
    return _without_unread(state, unread), restored.streams

  def wait(self) -> None:
    """Returns when everything is written; a save that fails is tried again here, for no step follows.

    Raises:
      UserError: saves have failed for too long; or the last, of several processes.
    """
    while self._saving is not None or (self._patience.failing and self._last is not None):
      if self._saving is None:
        time.sleep(self._patience.seconds_left())
        self._try()
      if self._saving is not None:
        self._settle()

  def close(self) -> None:
    """Waits until everything is written, or has failed, which is told; and ends the background threads."""
    if self._is_lost:  # of several processes, and each would wait for the others
      self._waiter.shutdown(wait=False)
      return
    if self._saving is not None:
      (step, saving), self._saving = self._saving, None
      if error := saving.exception():
        hosts.log_once(f"{self.directory}: step {step} could not be saved ({retry.reason(error)})")
    self._close_manager()
    self._waiter.shutdown()

  def _close_manager(self) -> None:
    for _ in range(2):  # the first time it raises once more what has failed, and closes nothing
      with contextlib.suppress(Exception):
        self._manager.close()
        return


def _saved(state: TrainState) -> dict[str, Any]:
  """Returns the fields that a checkpoint contains: no `collections` if empty, as in checkpoints of earlier versions."""
  fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
  return {name: value for name, value in fields.items() if name != "collections" or value}


def _of_dicts(function: Callable[[str, dict], dict], state: TrainState) -> TrainState:
  """`function` of the path and the content of each outermost dict of a state: of parameters, or of moments by path."""
  is_dict = lambda x: isinstance(x, dict)
  apply = lambda path, x: function(path_name(path), x) if is_dict(x) else x
  return jax.tree_util.tree_map_with_path(apply, state, is_leaf=is_dict)


def _with_unread(abstract: TrainState, unread: Mapping[str, tuple[int, ...]]) -> TrainState:
  """A state's shapes, and those of what was saved with it but is no part of any model today."""
  if not unread:
    return abstract
  everywhere = sharding.replicated(sharding.mesh_of(abstract.step))
  abstract_array = lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=everywhere)
  unread_of = lambda path: {
    name: abstract_array(unread[f"{path}/{name}"]) for name in restore.UNREAD if f"{path}/{name}" in unread
  }
  return _of_dicts(lambda path, x: x | unread_of(path), abstract)


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


STREAM = "stream-"  # prefix of the names of positions
_OF_ORBAX = ("commit_success", "_")  # its own files in a checkpoint's folder


class StreamsHandler(ocp.AsyncCheckpointHandler):
  """Handler of the files of a checkpoint beside its arrays, one for each stream of the data."""

  async def async_save(self, directory: epath.Path, args: "SaveStreams") -> list[ocp.future.Future]:
    """Writes in the background, as soon as the checkpoint's folder is there."""

    async def write():
      for name, content in args.streams.items():
        # No part and no renaming: the folder itself is one that no reader takes before it is whole.
        (directory / name).write_bytes(content)

    return [ocp.future.CommitFutureAwaitingContractedSignals(write(), name="streams")]

  def save(self, directory: epath.Path, args: "SaveStreams") -> None:
    """Writes at once; only asynchronous checkpoints are made here."""
    del directory, args
    raise TypeError("streams are saved by an asynchronous checkpointer")

  def restore(self, directory: epath.Path, args: "RestoreStreams") -> dict[str, bytes]:
    """Returns the content of each requested stream, and of each file that is no stream."""
    other_files = [path.name for path in directory.iterdir() if not path.name.startswith((STREAM, *_OF_ORBAX))]
    return {name: (directory / name).read_bytes() for name in (*args.names, *sorted(other_files))}


@ocp.args.register_with_handler(StreamsHandler, for_save=True)
@dataclasses.dataclass
class SaveStreams(ocp.args.CheckpointArgs):
  """Position of each stream that this host is to write, by name; no other host writes it."""

  streams: dict[str, bytes]


@ocp.args.register_with_handler(StreamsHandler, for_restore=True)
@dataclasses.dataclass
class RestoreStreams(ocp.args.CheckpointArgs):
  """The streams that this process will read."""

  names: tuple[str, ...]
