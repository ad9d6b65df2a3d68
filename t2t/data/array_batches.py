"""Batches that a user makes himself, dicts of arrays, in place of what config.data says (`t2t.train(batches=...)`)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import itertools
import json
import queue
import threading
import time
from typing import Any
import weakref

from etils import epath
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

_STREAM, _VERSION = "stream-00000-of-00001", 2  # as of a run whose data is in one part: either refuses the other's
_IDENTITY = {"data.batches": "those that t2t.train(batches=...) was given"}
# Of config.data, what says what is read.
_UNREAD = {"files": "", "eval_files": "", "mixture": "", "sources": {}, "benchmark_dirs": {}, "cache_dir": ""}


class OwnData:
  """A user's batches as the loop reads them; a `stage_program.Data`.

  Args:
    batches: to train on: an iterable, which is gone through again and again; an iterator, which is gone through once;
      or a function: number of batches that a run has read -> those that follow.
    held_out: to measure on: as many as config.eval.batches are read, once.
  """

  def __init__(self, batches: Source, held_out: Iterable[Rows]):
    self._batches, self._held_out = batches, held_out
    self._made: OwnBatches | None = None
    self._vocabulary: Any = None
    self._kept: list[dict[str, np.ndarray]] = []

  def resolved_stages(self, config: Config) -> tuple[Stage, ...]:
    """The one stage of the run, whose config names no other data.

    Raises:
      UserError: it asks for what own batches do not have.
    """
    if config.stages:
      raise UserError(
        "config.stages: batches of your own are of one run without stages: set it to (), and begin the next run with"
        " config.init.checkpoint"
      )
    intervals = {
      f"config.{section}.{key}": getattr(getattr(config, section), key) for section, key in INTERVALS.items()
    }
    for key, value in ({"config.train.epochs": config.train.epochs} | intervals).items():
      if bool(value) != (key in intervals):
        counted = "give a number of steps" if key in intervals else "give config.train.steps, and 0.0 epochs"
        raise UserError(f"{key}={value}: nobody knows how many batches of your own an epoch has; {counted}")
    if config.eval.tasks:
      raise UserError(f"config.eval.tasks={config.eval.tasks}: batches of your own are of no task; set it to ()")
    if not config.model.vocab_size:
      if not config.data.vocabulary:
        raise UserError("config.model.vocab_size=0: give the number of ids in your batches, or config.data.vocabulary")
      rows = feature_spec.rows_of(self.vocabulary(config).vocab_size)
      config = config.with_(model={"vocab_size": rows})
    return stages.of(config.with_(data=_UNREAD, train={"loss": config.train.loss or "cross_entropy"}))

  def check_stages(self, run: Sequence[Stage]) -> None:
    """Looks through the held-out batches.

    Raises:
      UserError: there are none, or one is not what the model reads.
    """
    self._eval_rows(run[-1].config)

  def vocabulary(self, config: Config) -> Any:
    """What config.data.vocabulary names, for which TensorFlow is loaded; None where it is empty."""
    if config.data.vocabulary and self._vocabulary is None:
      from t2t.data import vocabularies

      self._vocabulary = vocabularies.load(config.data.vocabulary, extra_ids=config.data.extra_ids)
    return self._vocabulary

  def check_vocabulary(
    self, config: Config, vocabulary: Any, vocabulary_folder: epath.Path, saved: Mapping[str, Any] | None
  ) -> None:
    """See `train_data.check_vocabulary`; refuses a run that has read something else, too."""
    if saved is not None and not _IDENTITY.items() <= saved.items():
      raise UserError(
        "this run has read what its config.data says: it goes on without batches=, or begin another workdir with"
        " config.init.checkpoint"
      )
    if vocabulary is not None:
      from t2t.data import train_data

      train_data.check_vocabulary(config, vocabulary, vocabulary_folder, saved)

  def keep_vocabulary(self, vocabulary: Any, folder: epath.Path) -> None:
    """See `train_data.keep_vocabulary`."""
    if vocabulary is not None:
      from t2t.data import train_data

      train_data.keep_vocabulary(vocabulary, folder)

  def batches(self, run: Sequence[Stage], mesh: jax.sharding.Mesh, **_: Any) -> "OwnBatches":
    """Those to train on, from the first."""
    config = run[-1].config
    self._made = OwnBatches(self._batches, config, mesh, self._framing(config))
    return self._made

  @property
  def failure(self) -> Exception | None:
    """What the user's code has raised, by which the run has ended."""
    return None if self._made is None else self._made.failure

  def eval_batches(self, config: Config, mesh: jax.sharding.Mesh) -> list[Batch]:
    """The held-out ones, on the mesh."""
    return [_placed(rows, mesh) for rows in self._eval_rows(config)]

  def eval_batches_by_source(self, config: Config, mesh: jax.sharding.Mesh) -> dict[str, list[Batch]]:
    """None: nobody says what they are of."""
    del config, mesh
    return {}

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
      raise UserError(f"eval_batches: no target counts, for {weights} are all 0")
    if not self._kept:
      raise UserError("eval_batches has none: give at least one batch that is not trained on")
    return self._kept


class OwnBatches:
  """A user's batches one after another, and how many have been read; otherwise as `staged.StagedBatches`.

  Attributes:
    ended: why nothing follows the batch that was handed out; "": something does, or it is the run's last.
    failure: what was raised where the batches are made.
  """

  stage, num_streams, stream_names, begins_stage = 0, 1, (_STREAM,), False

  def __init__(self, source: Source, config: Config, mesh: jax.sharding.Mesh, framing: ArrayFraming = ArrayFraming()):  # noqa: B008
    self.wait_seconds, self.epochs, self.ended = 0.0, {}, ""
    self.failure: Exception | None = None
    self._source, self._config, self._mesh, self._framing = source, config, mesh, framing
    self._apart = _Apart()
    self._iterator: Iterator[Rows] | None = None
    self._read = self._step = 0
    self._next: dict[str, np.ndarray] | None = None  # is ahead of what has been read

  def __iter__(self) -> "OwnBatches":
    """Itself."""
    return self

  def __next__(self) -> dict[str, jax.Array]:
    """The batch of the next step.

    Raises:
      UserError: it is not what the model reads, or there is none at all.
      Exception: what the user's code raises for the first; with a later one the run ends, saved.
    """
    began = time.monotonic()
    rows = self._next or self._taken()
    if rows is None:
      raise UserError(f"batches ended after {self._read}: give more, or fewer config.train.steps")
    self._next, self._step, self._read = None, self._step + 1, self._read + 1
    if self._step < self._config.train.steps:
      self._look_ahead()
    self.wait_seconds = time.monotonic() - began
    return _placed(rows, self._mesh)

  def _look_ahead(self) -> None:
    where = f"after {self._read}, of config.train.steps={self._config.train.steps}"
    try:
      self._next = self._taken()
    except Exception as error:  # of the user's code, too
      self.failure, self.ended = error, f"batches failed {where}: the run ends here"
    else:
      self.ended = "" if self._next else f"batches ended {where}: the run ends here"

  def _taken(self) -> dict[str, np.ndarray] | None:
    """The one behind what has been read; None where an iterator has ended."""
    if self._iterator is None:
      self._iterator = self._opened()
    batch = self._made(lambda: next(self._iterator, None))
    if batch is None:
      return None
    return completed(batch, self._config, where=f"batches, batch {self._read + 1}", framing=self._framing)

  def _made(self, call: Callable[[], Any]) -> Any:
    """What the user's code makes."""
    waiting.begin(f"batch {self._read + 1} of those that t2t.train was given")
    try:
      return self._apart(call)
    except StopIteration as error:  # else the run would end, without a word
      raise UserError("batches raised StopIteration: a function that has none returns what is empty") from error
    finally:
      waiting.end()

  def _opened(self) -> Iterator[Rows]:
    """Begins behind what has been read."""
    source = self._source
    if not isinstance(source, Iterable):
      iterable = self._made(lambda: source(self._read))
      if not isinstance(iterable, Iterable):
        raise UserError(f"batches({self._read}) is {type(iterable).__name__}: return an iterable of dicts")
      return iter(iterable)
    if isinstance(source, Iterator):
      _check_begins(source)
    # An iterator stands where it stood when the run began, as whoever calls again has made it anew.
    iterator = _again_and_again(source)
    if self._read:
      hosts.log_once(
        f"passing over the {self._read} batches that this run has read; a function of their number need not"
      )
    for number in range(self._read):
      if self._made(lambda: next(iterator, None)) is None:
        raise UserError(
          f"batches ended after {number}, and this run has read {self._read}: give them from its beginning"
        )
    return iterator

  def leave_out(self, begin: int, end: int) -> None:
    """Takes away as many batches as there are steps from begin + 1 to end."""
    for _ in range(end - begin):
      self._taken()
      self._read += 1

  def state(self, step: int | None = None) -> dict[str, bytes]:
    """How many have been read, by the stream's name; see `streams.BatchIterator.state`."""
    position = {} if step is None else {"step": step, "stream": _STREAM}
    return {_STREAM: json.dumps({"version": _VERSION, **position, "read": self._read, "identity": _IDENTITY}).encode()}

  def restore(self, state: Mapping[str, bytes], *, step: int) -> None:
    """Goes on where `state` was taken.

    Raises:
      UserError: it is of an iterator, which has moved on.
    """
    if self._iterator is not None and isinstance(self._source, Iterator):
      raise UserError(
        "batches is an iterator, in which a run cannot go back: give what can be gone through again, or a function of"
        " the number of batches that have been read"
      )
    self._read, self._step = json.loads(state[_STREAM])["read"], step
    self._iterator, self._next, self.ended, self.failure = None, None, "", None

  def begin_stage(self) -> None:
    """There is but one."""
    raise AssertionError("a run of own batches has no stages")

  def close(self) -> None:
    """Reads no further."""
    self._iterator = self._next = None
    self._apart.close()


class _Apart:
  """Calls a user's code in a thread of its own: what JAX keeps by thread, its mesh above all, is not the run's."""

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
      except BaseException as error:  # is raised where it was asked for
        self._found.put((None, error))

  def close(self) -> None:
    """Ends the thread, when it has ended its call."""
    self._asked.put(None)
    self._thread = None


_begun: weakref.WeakSet = weakref.WeakSet()  # iterators that a run of this process has taken from


def _check_begins(source: Iterator[Rows]) -> None:
  """Refuses an iterator that has moved on: whatever was passed over in it would be lost."""
  try:
    if source in _begun:
      raise UserError(
        "batches is an iterator that a run has taken from already: make it anew, from the run's beginning, or give a"
        " function of the number of batches that have been read"
      )
    _begun.add(source)
  except TypeError:  # of which nothing can be remembered
    return


def _again_and_again(source: Iterable[Rows]) -> Iterator[Rows]:
  """Round after round, until one is empty, as that of an iterator that has ended is."""
  while True:
    number = -1
    for number, rows in enumerate(source):  # noqa: B007 - whether there was any
      yield rows
    if number < 0:
      return


def _placed(rows: Mapping[str, np.ndarray], mesh: jax.sharding.Mesh) -> dict[str, jax.Array]:
  return jax.device_put(dict(rows), sharding.batch_sharding(mesh))
