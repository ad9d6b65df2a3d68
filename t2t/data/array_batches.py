"""Training batches that a user passes as dicts of arrays instead of `config.data` (`t2t.train(batches=...)`)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import itertools
import json
import queue
import threading
import time
from typing import Any
import weakref

from etils import epath
from flax import nnx
import jax
import numpy as np

from t2t import UserError, feature_spec, sharding
from t2t.configuration import stages
from t2t.configuration.schema import INTERVALS, Config
from t2t.configuration.stages import Stage
from t2t.data.batch_checks import ArrayFraming, Rows, completed
from t2t.models.architecture import Batch
from t2t.runtime import hosts, waiting

Source = Iterable[Rows] | Callable[[int], Iterable[Rows]]

# Name and format version of the one stream; data positions of other kinds are refused.
_STREAM, _VERSION = "stream-00000-of-00001", 2
_IDENTITY = {"data.batches": "those that t2t.train(batches=...) was given"}
# Values of the `config.data` keys that select data, which own batches replace.
_UNREAD = {"files": "", "eval_files": "", "mixture": "", "sources": {}, "benchmark_dirs": {}, "cache_dir": ""}


class OwnData:
  """A user's batches for the training loop; implements `stage_program.Data`.

  Args:
    batches: training batches: an iterable, which is repeated; an iterator, which is read once; or a function from the
      number of batches already read to the batches that follow.
    held_out: evaluation batches; the first config.eval.batches are read, once.
  """

  def __init__(self, batches: Source, held_out: Iterable[Rows]):
    self._batches, self._held_out = batches, held_out
    self._made: OwnBatches | None = None
    self._vocabulary: Any = None
    self._kept: list[dict[str, np.ndarray]] = []

  def resolved_stages(self, config: Config) -> tuple[Stage, ...]:
    """Returns the one stage of the run, with a config that names no other data.

    Raises:
      UserError: the config needs something that own batches do not have.
    """
    if config.stages:
      raise UserError(
        "config.stages: a run with batches= cannot have stages. Set config.stages=(), and train each stage in a "
        "separate run that starts from config.init.checkpoint."
      )
    intervals = {
      f"config.{section}.{key}": getattr(getattr(config, section), key) for section, key in INTERVALS.items()
    }
    for key, value in ({"config.train.epochs": config.train.epochs} | intervals).items():
      if bool(value) != (key in intervals):
        counted = (
          f"Set {key} to a number of steps."
          if key in intervals
          else "Set config.train.steps and config.train.epochs=0.0."
        )
        raise UserError(f"{key}={value}: with batches= the number of batches per epoch is unknown. {counted}")
    if config.eval.tasks:
      raise UserError(
        f"config.eval.tasks={config.eval.tasks}: a run with batches= has no tasks. Set config.eval.tasks=()."
      )
    if not config.model.vocab_size:
      if not config.data.vocabulary:
        raise UserError(
          "config.model.vocab_size=0: the size of the vocabulary is unknown. Set config.model.vocab_size to the number "
          "of ids in your batches, or give config.data.vocabulary."
        )
      rows = feature_spec.rows_of(self.vocabulary(config).vocab_size)
      config = config.with_(model={"vocab_size": rows})
    return stages.of(config.with_(data=_UNREAD, train={"loss": config.train.loss or "cross_entropy"}))

  def check_stages(self, run: Sequence[Stage]) -> None:
    """Checks the held-out batches.

    Raises:
      UserError: there is none, or one does not fit the model.
    """
    self._eval_rows(run[-1].config)

  def vocabulary(self, config: Config) -> Any:
    """Returns the vocabulary of config.data.vocabulary, None if the key is empty."""
    if config.data.vocabulary and self._vocabulary is None:
      from t2t.data import vocabularies

      self._vocabulary = vocabularies.load(config.data.vocabulary, extra_ids=config.data.extra_ids)
    return self._vocabulary

  def check_vocabulary(
    self, config: Config, vocabulary: Any, vocabulary_folder: epath.Path, saved: Mapping[str, Any] | None
  ) -> None:
    """Checks the vocabulary as `train_data.check_vocabulary` does, and refuses a run that has read other data."""
    if saved is not None and not _IDENTITY.items() <= saved.items():
      raise UserError(
        "batches=: this run has so far read the data of config.data. Leave out batches=, or start a new workdir "
        "with config.init.checkpoint."
      )
    if vocabulary is not None:
      from t2t.data import vocabularies

      vocabularies.check_run(vocabulary, vocabulary_folder, saved, spec=config.data.vocabulary)

  def keep_vocabulary(self, vocabulary: Any, folder: epath.Path) -> None:
    """Saves the vocabulary as `train_data.keep_vocabulary` does."""
    if vocabulary is not None:
      from t2t.data import vocabularies

      vocabularies.save(vocabulary, folder)

  def batches(self, run: Sequence[Stage], mesh: jax.sharding.Mesh, **_: Any) -> "OwnBatches":
    """Returns the training batches, from the first."""
    config = run[-1].config
    self._made = OwnBatches(self._batches, config, mesh, self._framing(config))
    return self._made

  @property
  def failure(self) -> Exception | None:
    """The exception of the user's code that ended the run."""
    return None if self._made is None else self._made.failure

  def eval_batches(self, config: Config, mesh: jax.sharding.Mesh) -> list[Batch]:
    """Returns the held-out batches on the mesh."""
    return [_placed(rows, mesh) for rows in self._eval_rows(config)]

  def eval_batches_by_source(self, config: Config, mesh: jax.sharding.Mesh) -> dict[str, list[Batch]]:
    """Returns {}: own batches have no sources."""
    del config, mesh
    return {}

  def evaluation(self, config: Config, graphdef: nnx.GraphDef, mesh: jax.sharding.Mesh) -> None:
    """Returns None: own batches belong to no task."""
    del config, graphdef, mesh

  def _framing(self, config: Config) -> ArrayFraming:
    vocabulary = self.vocabulary(config)
    if vocabulary is None:
      return ArrayFraming()
    from t2t.data import vocabularies

    return ArrayFraming(vocabularies.bos_id(vocabulary), vocabularies.pads_with_zero(vocabulary))

  def _eval_rows(self, config: Config) -> list[dict[str, np.ndarray]]:
    if self._kept:
      return self._kept
    sized = config.with_(train={"batch_size": config.eval.batch_size or config.train.batch_size})
    for number, rows in enumerate(itertools.islice(self._held_out, config.eval.batches), start=1):
      where = f"eval_batches, batch {number}"
      self._kept.append(completed(rows, sized, where=where, framing=self._framing(config)))
    weights = f"{config.model.kind.predicts}_loss_weights"
    if self._kept and weights in self._kept[0] and not any(rows[weights].any() for rows in self._kept):
      raise UserError(f"eval_batches: all {weights} are 0, so no target is evaluated. Give weights above 0.")
    if not self._kept:
      raise UserError("eval_batches=[] is empty. Give at least one batch that is not trained on.")
    return self._kept


class OwnBatches:
  """Iterator over a user's batches that counts them; otherwise like `stage_iterator.StagedBatches`.

  Attributes:
    ended: reason why no batch follows the last one returned; "" if one follows, or if the run is complete.
    failure: exception raised while a batch was made.
  """

  stage, num_streams, stream_names, begins_stage = 0, 1, (_STREAM,), False

  def __init__(self, source: Source, config: Config, mesh: jax.sharding.Mesh, framing: ArrayFraming = ArrayFraming()):  # noqa: B008
    self.wait_seconds, self.epochs, self.ended = 0.0, {}, ""
    self.failure: Exception | None = None
    self._source, self._config, self._mesh, self._framing = source, config, mesh, framing
    self._apart = _Apart()
    self._iterator: Iterator[Rows] | None = None
    self._read = self._step = 0
    self._next: dict[str, np.ndarray] | None = None  # read ahead and not counted yet
    self._skipped = False  # whether the rows before the next batch were not trained on

  def __iter__(self) -> "OwnBatches":
    return self

  def __next__(self) -> dict[str, jax.Array]:
    """Returns the batch of the next step.

    Raises:
      UserError: the batch does not fit the model, or there is none.
      Exception: raised by the user's code for the first batch; at a later batch the run saves and ends.
    """
    began = time.monotonic()
    rows = self._next or self._taken()
    if rows is None:
      raise UserError(
        f"batches= ended after {self._read} batches, but config.train.steps={self._config.train.steps}. Give more "
        "batches, or lower config.train.steps."
      )
    rows, self._skipped = feature_spec.continuing_nothing(rows) if self._skipped else rows, False
    self._next, self._step, self._read = None, self._step + 1, self._read + 1
    if self._step < self._config.train.steps:
      self._look_ahead()
    self.wait_seconds = time.monotonic() - began
    return _placed(rows, self._mesh)

  def _look_ahead(self) -> None:
    where = f"after {self._read} of config.train.steps={self._config.train.steps}"
    try:
      self._next = self._taken()
    except Exception as error:  # includes errors of the user's code
      self.failure, self.ended = error, f"batches failed {where}; the run ends here"
    else:
      self.ended = "" if self._next else f"batches ended {where}; the run ends here"

  def _taken(self) -> dict[str, np.ndarray] | None:
    """Returns the next batch, or None if an iterator has ended."""
    if self._iterator is None:
      self._iterator = self._opened()
    batch = self._made(lambda: next(self._iterator, None))
    if batch is None:
      return None
    return completed(batch, self._config, where=f"batches, batch {self._read + 1}", framing=self._framing)

  def _made(self, call: Callable[[], Any]) -> Any:
    """Returns the result of the user's code."""
    waiting.begin(f"batch {self._read + 1} of t2t.train(batches=...)")
    try:
      return self._apart(call)
    except StopIteration as error:  # otherwise the run would end silently
      raise UserError("batches= raised StopIteration. Return an empty iterable when no batch follows.") from error
    finally:
      waiting.end()

  def _opened(self) -> Iterator[Rows]:
    """Opens the source behind the batches already read."""
    source = self._source
    if not isinstance(source, Iterable):
      iterable = self._made(lambda: source(self._read))
      if not isinstance(iterable, Iterable):
        raise UserError(
          f"batches({self._read}) returned {type(iterable).__name__}, which is not iterable. Return an iterable of "
          "dicts."
        )
      return iter(iterable)
    if isinstance(source, Iterator):
      _check_begins(source)
    # An iterator is not advanced: a caller that resumes has made a new one, which begins where the run began.
    iterator = _again_and_again(source)
    if self._read:
      hosts.log_once(
        f"skipping the {self._read} batches that this run has read; a function of the number of batches avoids this"
      )
    for number in range(self._read):
      if self._made(lambda: next(iterator, None)) is None:
        raise UserError(
          f"batches= ended after {number} batches, but this run has already read {self._read}. Give the batches from "
          "the beginning of the run."
        )
    return iterator

  def leave_out(self, begin: int, end: int) -> None:
    """Skips the batches of steps begin + 1 to end."""
    for _ in range(end - begin):
      self._taken()
      self._read += 1
      self._skipped = True

  def state(self, step: int | None = None) -> dict[str, bytes]:
    """Returns the number of batches read, by stream name; see `batch_iterator.BatchIterator.state`."""
    position = {} if step is None else {"step": step, "stream": _STREAM}
    return {_STREAM: json.dumps({"version": _VERSION, **position, "read": self._read, "identity": _IDENTITY}).encode()}

  def restore(self, state: Mapping[str, bytes], *, step: int) -> None:
    """Continues where `state` was taken.

    Raises:
      UserError: the source is an iterator that has moved on.
    """
    if self._iterator is not None and isinstance(self._source, Iterator):
      raise UserError(
        "batches= is an iterator and cannot be rewound. Give an iterable that can be repeated, or a function from "
        "the number of batches read to the batches that follow."
      )
    self._read, self._step = json.loads(state[_STREAM])["read"], step
    self._iterator, self._next, self.ended, self.failure = None, None, "", None
    self._skipped = False

  def begin_stage(self) -> None:
    raise AssertionError("config.stages is () with own batches")

  def close(self) -> None:
    """Stops reading."""
    self._iterator = self._next = None
    self._apart.close()


class _Apart:
  """Thread that calls a user's code, so that JAX's thread-local state, such as the mesh, does not leak into it."""

  def __init__(self) -> None:
    self._asked: queue.SimpleQueue = queue.SimpleQueue()
    self._found: queue.SimpleQueue = queue.SimpleQueue()
    self._thread: threading.Thread | None = None

  def __call__(self, call: Callable[[], Any]) -> Any:
    if self._thread is None:
      self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
      self._thread.start()
    self._asked.put(call)
    result, error = self._found.get()
    if error is not None:
      raise error
    return result

  def _work(self) -> None:
    while (call := self._asked.get()) is not None:
      try:
        self._found.put((call(), None))
      except BaseException as error:  # is raised again by the caller
        self._found.put((None, error))

  def close(self) -> None:
    """Ends the thread after its current call."""
    self._asked.put(None)
    self._thread = None


_begun: weakref.WeakSet = weakref.WeakSet()  # iterators that a run of this process has read from


def _check_begins(source: Iterator[Rows]) -> None:
  """Refuses an iterator that a run has read from, because its first batches would be lost."""
  try:
    if source in _begun:
      raise UserError(
        "batches= is an iterator that a run has already read from. Give a new iterator from the first batch of the "
        "run, or a function from the number of batches read to the batches that follow."
      )
    _begun.add(source)
  except TypeError:  # the iterator cannot be weakly referenced
    return


def _again_and_again(source: Iterable[Rows]) -> Iterator[Rows]:
  """Yields from the source repeatedly, until a pass is empty, as for an exhausted iterator."""
  while True:
    number = -1
    for number, rows in enumerate(source):  # noqa: B007 - whether there was any
      yield rows
    if number < 0:
      return


def _placed(rows: Mapping[str, np.ndarray], mesh: jax.sharding.Mesh) -> dict[str, jax.Array]:
  return jax.device_put(dict(rows), sharding.batch_sharding(mesh))
