"""Batches that a user makes himself, dicts of arrays, in place of what config.data says (`t2t.train(batches=...)`)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import itertools
import json
import time
from typing import Any

from etils import epath
import jax
import numpy as np

from t2t import UserError, did_you_mean, sharding, stages
from t2t.models.architecture import ARCHITECTURES, Batch
from t2t.runtime import hosts, waiting
from t2t.sections import Config
from t2t.stages import Stage
from t2t.training import recipe

Rows = Mapping[str, Any]  # feature -> array [rows, length], of NumPy or of what it reads
Source = Iterable[Rows] | Callable[[int], Iterable[Rows]]

_STREAM, _VERSION = "stream-00000-of-00001", 2  # as of a run whose data is in one part: either refuses the other's
_IDENTITY = {"data.batches": "those that t2t.train(batches=...) was given"}
# Of config.data, what says what is read.
_UNREAD = {"files": "", "eval_files": "", "mixture": "", "sources": {}, "folders": {}, "cache_dir": ""}


class OwnData:
  """A user's batches as the loop reads them; a `course.Data`.

  Args:
    batches: to train on: an iterable, which is gone through again and again; an iterator, which is gone through once;
      or a function: number of batches that a run has read -> those that follow.
    held_out: to measure on: as many as config.eval.batches are read, once.
    ended: is called when nothing follows the batch that is handed out.
  """

  def __init__(self, batches: Source, held_out: Iterable[Rows], *, ended: Callable[[], None]):
    self._batches, self._held_out, self._ended = batches, held_out, ended
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
    intervals = {f"config.{name}.every": getattr(config, name).every for name in ("eval", "checkpoint")}
    for key, value in ({"config.train.epochs": config.train.epochs} | intervals).items():
      if bool(value) != (key in intervals):
        counted = "give a number of steps" if key in intervals else "give config.train.steps, and 0.0 epochs"
        raise UserError(f"{key}={value}: nobody knows how many batches of your own an epoch has; {counted}")
    if config.eval.tasks:
      raise UserError(f"config.eval.tasks={config.eval.tasks}: batches of your own are of no task; set it to ()")
    return stages.of(config.with_(data=_UNREAD, train={"loss": config.train.loss or "cross_entropy"}))

  def check_stages(self, run: Sequence[Stage]) -> None:
    """Looks through the held-out batches.

    Raises:
      UserError: there are none, or one is not what the model reads.
    """
    self._eval_rows(run[-1].config)

  def vocabulary(self, config: Config) -> Any:
    """What config.data.vocabulary names, for which TensorFlow is loaded; None where it is empty."""
    if not config.data.vocabulary:
      return None
    from t2t.data import vocabularies

    return vocabularies.load(config.data.vocabulary, extra_ids=config.data.extra_ids)

  def check_vocabulary(
    self, config: Config, vocabulary: Any, kept: epath.Path, saved: Mapping[str, Any] | None
  ) -> None:
    """See `runs.check_vocabulary`; refuses a run that has read something else, too."""
    if saved is not None and not _IDENTITY.items() <= saved.items():
      raise UserError(
        "this run has read what its config.data says: it goes on without batches=, or begin another workdir with"
        " config.init.checkpoint"
      )
    if vocabulary is not None:
      from t2t.data import runs

      runs.check_vocabulary(config, vocabulary, kept, saved)

  def keep_vocabulary(self, vocabulary: Any, folder: epath.Path) -> None:
    """See `runs.keep_vocabulary`."""
    if vocabulary is not None:
      from t2t.data import runs

      runs.keep_vocabulary(vocabulary, folder)

  def batches(self, run: Sequence[Stage], mesh: jax.sharding.Mesh, **_: Any) -> "OwnBatches":
    """Those to train on, from the first."""
    return OwnBatches(self._batches, run[-1].config, mesh, ended=self._ended)

  def eval_batches(self, config: Config, mesh: jax.sharding.Mesh) -> list[Batch]:
    """The held-out ones, on the mesh."""
    return [_placed(rows, mesh) for rows in self._eval_rows(config)]

  def eval_batches_by_source(self, config: Config, mesh: jax.sharding.Mesh) -> dict[str, list[Batch]]:
    """None: nobody says what they are of."""
    del config, mesh
    return {}

  def _eval_rows(self, config: Config) -> list[dict[str, np.ndarray]]:
    if self._kept:
      return self._kept
    sized = config.with_(train={"batch_size": config.eval.batch_size or config.train.batch_size})
    for number, rows in enumerate(itertools.islice(self._held_out, config.eval.batches), start=1):
      self._kept.append(completed(rows, sized, where=f"eval_batches, batch {number}"))
    if not self._kept:
      raise UserError("eval_batches has none: give at least one batch that is not trained on")
    return self._kept


class OwnBatches:
  """A user's batches one after another, and how many have been read; otherwise as `staged.StagedBatches`."""

  stage, num_streams, stream_names, begins_stage = 0, 1, (_STREAM,), False

  def __init__(self, source: Source, config: Config, mesh: jax.sharding.Mesh, *, ended: Callable[[], None]):
    self.wait_seconds, self.epochs = 0.0, {}
    self._source, self._config, self._mesh, self._ended = source, config, mesh, ended
    self._iterator: Iterator[Rows] | None = None
    self._read = self._step = 0
    self._next: dict[str, np.ndarray] | None = None  # is ahead of what has been read

  def __iter__(self) -> "OwnBatches":
    """Itself."""
    return self

  def __next__(self) -> dict[str, jax.Array]:
    """The batch of the next step; `ended` is called if none follows, and the run has steps left.

    Raises:
      UserError: it is not what the model reads, or there is none at all.
    """
    began = time.monotonic()
    rows = self._next or self._taken()
    if rows is None:
      raise UserError(f"batches ended after {self._read}: give more, or fewer config.train.steps")
    self._next, self._step, self._read = None, self._step + 1, self._read + 1
    if self._step < self._config.train.steps:
      self._next = self._taken()
      if self._next is None:
        hosts.say(f"batches ended after {self._read}, and config.train.steps={self._config.train.steps}")
        self._ended()
    self.wait_seconds = time.monotonic() - began
    return _placed(rows, self._mesh)

  def _taken(self) -> dict[str, np.ndarray] | None:
    """The one behind what has been read; None where an iterator has ended."""
    if self._iterator is None:
      self._open()
    waiting.begin(f"batch {self._read + 1} of those that t2t.train was given")
    try:
      found = next(self._iterator, None)
    finally:
      waiting.end()
    if found is None:
      return None
    return completed(found, self._config, where=f"batches, batch {self._read + 1}")

  def _open(self) -> None:
    """Begins behind what has been read."""
    if not isinstance(self._source, Iterable):
      self._iterator = iter(self._source(self._read))
      return
    # An iterator stands where it stood when the run began, as whoever calls again has made it anew.
    self._iterator = _again_and_again(self._source)
    if self._read:
      hosts.say(f"passing over the {self._read} batches that this run has read; a function of their number need not")
    for number in range(self._read):
      if next(self._iterator, None) is None:
        raise UserError(
          f"batches ended after {number}, and this run has read {self._read}: give them from its beginning"
        )

  def leave_out(self, begin: int, end: int) -> None:
    """Takes away as many batches as there are steps from begin + 1 to end."""
    for _ in range(end - begin):
      self._taken()
      self._read += 1

  def state(self, step: int | None = None) -> dict[str, bytes]:
    """How many have been read, by the stream's name; see `streams.BatchIterator.state`."""
    place = {} if step is None else {"step": step, "stream": _STREAM}
    return {_STREAM: json.dumps({"version": _VERSION, **place, "read": self._read, "identity": _IDENTITY}).encode()}

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
    self._read, self._step, self._iterator, self._next = json.loads(state[_STREAM])["read"], step, None, None

  def begin_stage(self) -> None:
    """There is but one."""
    raise AssertionError("a run of own batches has no stages")

  def close(self) -> None:
    """Reads no further."""
    self._iterator = self._next = None


def _again_and_again(source: Iterable[Rows]) -> Iterator[Rows]:
  """Round after round, until one is empty, as that of an iterator that has ended is."""
  while True:
    number = -1
    for number, rows in enumerate(source):  # noqa: B007 - whether there was any
      yield rows
    if number < 0:
      return


def completed(rows: Rows, config: Config, *, where: str) -> dict[str, np.ndarray]:
  """A batch as the model takes it: what follows from other features is filled in, and all are filled up with padding.

  In:  {"encoder_input_tokens": [[5, 6]], "decoder_target_tokens": [[7, 1]]}, of inputs_length 3 and targets_length 2
  Out: these, the first as [[5, 6, 0]], with "decoder_input_tokens": [[0, 7]] and "decoder_loss_weights": [[1., 1.]]

  Args:
    rows: arrays [rows, length], at most as large as the config has it.
    config: of the run.
    where: they come from, for messages.

  Raises:
    UserError: a feature is missing, not known, or not of integers, or larger than the config has it, or an id beyond
      the vocabulary.
  """
  wanted = recipe.batch(config)
  if not isinstance(rows, Mapping):
    raise UserError(f"{where} is {type(rows).__name__}: give a dict of arrays, {_listed(wanted)}")
  for name in rows:
    if name not in wanted:
      raise UserError(
        f"{where}: {name!r} is no feature of this model{did_you_mean(str(name), wanted)}; {_listed(wanted)}"
      )
  found = {name: _array(x, wanted[name], f"{where}: {name}") for name, x in rows.items()}
  if len({len(x) for x in found.values()}) > 1:
    told = ", ".join(f"{name} {len(x)}" for name, x in found.items())
    raise UserError(f"{where}: features have different numbers of rows: {told}")
  for name, array in found.items():
    if not name.endswith("_tokens") or not array.size:
      continue
    if array.min() < 0 or array.max() >= config.model.vocab_size:
      raise UserError(
        f"{where}: {name} has ids from {array.min()} to {array.max()}, and config.model.vocab_size is"
        f" {config.model.vocab_size}"
      )
  found = {name: _filled_up(x, wanted[name].shape) for name, x in found.items()}
  _fill_in(found, wanted, ARCHITECTURES[config.model.architecture].predicts)
  if missing := [name for name in wanted if name not in found]:
    raise UserError(f"{where}: has no {', '.join(missing)}; {_listed(wanted)}")
  return {name: found[name] for name in wanted}


def _array(values: Any, wanted: jax.ShapeDtypeStruct, where: str) -> np.ndarray:
  try:
    array = np.array(values)  # a copy: whoever made it may write the next batch into the same memory
  except ValueError as error:  # rows of different lengths
    raise UserError(f"{where}: no array [rows, length] ({error})") from error
  shape = list(array.shape)
  if len(shape) != 2 or any(own > most for own, most in zip(shape, wanted.shape, strict=True)):
    raise UserError(
      f"{where} is {shape}: the config asks for [rows, length], at most {list(wanted.shape)}"
      " (config.train.batch_size; config.data.inputs_length and targets_length)"
    )
  kinds = "bui" if wanted.dtype == np.int32 else "buif"
  if array.dtype.kind not in kinds:
    raise UserError(f"{where} is of {array.dtype}: must be {'integers' if kinds == 'bui' else 'numbers'}")
  if array.dtype.kind in "iu" and array.size and (array.max() > 2**31 - 1 or array.min() < -(2**31)):
    raise UserError(f"{where} has numbers of more than 32 bits")
  return array.astype(wanted.dtype)


def _fill_in(found: dict[str, np.ndarray], wanted: Mapping[str, Any], predicts: str) -> None:
  """What follows from features that are there, of rows that have one example each."""
  is_packed = f"{predicts}_positions" in wanted and f"{predicts}_segment_ids" in wanted
  targets, tokens = found.get(f"{predicts}_target_tokens"), found.get("encoder_input_tokens")
  made: dict[str, Callable[[], np.ndarray]] = {}
  if targets is not None:
    made[f"{predicts}_loss_weights"] = lambda: (targets > 0).astype(np.float32)
    if predicts == "decoder" and not is_packed:  # begins with padding
      made["decoder_input_tokens"] = lambda: np.pad(targets[:, :-1], [(0, 0), (1, 0)])
  if tokens is not None and not is_packed:
    made["encoder_segment_ids"] = lambda: (tokens > 0).astype(np.int32)
    made["encoder_token_types"] = lambda: np.zeros_like(tokens)
  found |= {name: make() for name, make in made.items() if name in wanted and name not in found}


def _filled_up(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
  return np.pad(array, [(0, most - own) for own, most in zip(array.shape, shape, strict=True)])


def _listed(wanted: Mapping[str, jax.ShapeDtypeStruct]) -> str:
  shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in wanted.items())
  return f"this config's model takes {shapes}"


def _placed(rows: Mapping[str, np.ndarray], mesh: jax.sharding.Mesh) -> dict[str, jax.Array]:
  return jax.device_put(dict(rows), sharding.batch_sharding(mesh))
