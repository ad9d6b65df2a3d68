"""Training in Python: `t2t.config` finds a config and changes it, `t2t.train` runs it and yields what is measured.

The run has a thread of its own, in which it goes on while the next row is waited for: the mesh that it sets, what it
catches and how it ends are not the caller's, whose signals stay as they are.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import concurrent.futures.thread  # noqa: F401 - what it does at the end of Python comes after `_end_all`, see there
import contextlib
import copy
import math
import os
import queue
import signal
import threading
import traceback
from typing import Any
import warnings
import weakref

import jax
from ml_collections import ConfigDict

from t2t import UserError
from t2t.api.loaded_model import in_python
from t2t.checkpoints import pretrained
from t2t.configs import default
from t2t.configuration import foreign_names, loading, typed_config
from t2t.data import array_batches
from t2t.runtime import console, peer_monitor, preemption, sync_point, waiting
from t2t.storage import gcs, given_paths
from t2t.training import background_compile
from t2t.training.run import Callback, Run
from t2t.training.train import train as train_loop


def config(
  name: str | os.PathLike, changes: Mapping[str, Any] | None = None, **sections: Mapping[str, Any]
) -> ConfigDict:
  """A config by its name, with changes.

      t2t.config("tiny", {"train.steps": 50, "model.dropout_rate": 0.1})
      t2t.config("tiny", train={"steps": 50}, model={"dropout_rate": 0.1})

  Args:
    name: one that comes with t2t (`t2t train --help` lists them), or the path of a .py file with `get_config()`.
    changes: section.key -> value; as `--config.section.key=value` on the command line, of which it has all checks.
    sections: the same by sections, each key -> value.

  Returns:
    The config, whose values may be changed further before `train` gets it; keys that are not there may not be added.
    With `init.checkpoint` and `init.use_model_config` it has that checkpoint's model.

  Raises:
    UserError: no such config, or no such key: names the nearest; or a value of another kind.
  """
  name = given_paths.text(name, called="the config's name")
  if changes is not None and not isinstance(changes, Mapping):
    raise UserError(f"changes is {type(changes).__name__}: give a dict of keys and values, {{'train.steps': 10}}")
  dotted = dict(changes or {})
  for section, values in sections.items():
    if not isinstance(values, Mapping):
      known = foreign_names.translated(section)
      keys = [
        f"{name}.{key}"
        for name, section_keys in default.get_config().items()
        if name != "stages"
        for key in section_keys
      ]
      if same := next((key for key in keys if key.rpartition(".")[2] == section), ""):
        name, _, key = same.partition(".")
        known = f"; did you mean {name}={{{key!r}: {values!r}}}?"
      example = known or f": give the keys of this section, {section}={{'key': {values!r}}}"
      raise UserError(f"{section}={values!r}{example if not known else f' is no section{known}'}")
    dotted |= {f"{section}.{key}": value for key, value in values.items()}
  dotted = {str(key): typed_config.plain(value) for key, value in dotted.items()}
  typed = [f"--config.{key}={value if isinstance(value, str) else repr(value)}" for key, value in dotted.items()]

  with in_python():
    config_dict = loading.overridden(name, typed)
    for key, value in dotted.items():
      if _is_text(config_dict, key) and isinstance(value, list | tuple | Mapping | None):
        texts = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        hint = f"; several are separated by commas: {','.join(value)!r}" if texts else ""
        raise UserError(f"config.{key}={value!r}: must be a text{hint}")
    if config_dict.init.use_model_config and config_dict.init.checkpoint:
      source = pretrained.read_source(config_dict.init.checkpoint, where="config.init.checkpoint=")
      config_dict = loading.overridden(name, typed, prepare=lambda draft: pretrained.adopt(draft, source))
  return typed_config.typed(config_dict)


def _is_text(config: ConfigDict, key: str) -> bool:
  value: Any = config
  for part in key.split("."):
    if not isinstance(value, ConfigDict) or part not in value:
      return False
    value = value[part]
  return isinstance(value, str)


@foreign_names.translating
def train(
  config: ConfigDict,
  workdir: str | os.PathLike,
  *,
  batches: array_batches.Source | None = None,
  eval_batches: Iterable[array_batches.Rows] | None = None,
  examples: Any = None,
  eval_examples: Any = None,
  callbacks: Sequence[Callback] = (),
) -> "Training":
  """Trains as `t2t train` does, and yields what is measured: what it writes to metrics.jsonl, row by row.

      for row in t2t.train(t2t.config("tiny"), "runs/tiny"):
        if row.get("eval/loss", 9.0) < 3.0:
          break

  The run goes on while the next row is waited for, and stands still in between.  Whoever leaves the loop, by `break` or
  by an interruption, has it end after the step that is computed, saved: the same call goes on from there, as the
  command does.  What is read, written and checked is the command's.

  Args:
    config: what `config` gives, as it is now: what is changed later is another run's.
    workdir: local or gs://.
    batches: your own, in the place of what config.data says is read: dicts of arrays [rows, length] by the names of the
      model's features (`encoder_input_tokens`, ...; what follows from others is filled in).  An iterable is gone
      through again and again, an iterator until it ends; a run that goes on passes over what it has read, or asks a
      function, number of batches read -> those that follow.  Without config.data.vocabulary neither TensorFlow nor
      seqio is needed, and ids are not turned into text.
    eval_batches: those to measure on, of which config.eval.batches are read.
    examples: rows of a table, as config.data.files has one for `--config finetune` (docs/finetune_table.md): a list of
      dicts, [{"text": "...", "label": "..."}] or [{"words": [...], "tags": [...]}]; a `datasets.Dataset`; or a pandas
      DataFrame. A run that goes on needs the same ones.
    eval_examples: those to measure on; None: a tenth of `examples` is held out.
    callbacks: instances of `t2t.Callback`, whose hooks run after those of t2t, in the order of the list.

  Raises:
    UserError: a mistake in config, workdir or callbacks, at once; what `training.train` and `data.array_batches` raise,
      with the first row.
  """
  if not isinstance(config, ConfigDict):
    raise UserError(f"config is {type(config).__name__}: give what t2t.config(name) returns")
  if jax.process_count() > 1 and peer_monitor.current() is None:
    raise UserError("several processes train together by the command, `t2t train`; t2t.train is for one process")
  for number, callback in enumerate(callbacks):
    if not isinstance(callback, Callback):
      raise UserError(
        f"callbacks[{number}] is {callback!r}: give an instance of a subclass of t2t.Callback, with parentheses if it"
        " is a class"
      )
  workdir = given_paths.text(workdir, called="workdir")
  if not workdir:
    raise UserError("workdir is empty: give a folder, or a gs:// path, for checkpoints and metrics")
  if (batches is None) != (eval_batches is None):
    raise UserError("batches and eval_batches: give both, what is trained on and what is measured on, or neither")
  if batches is not None and not (callable(batches) or isinstance(batches, Iterable)):
    raise UserError(f"batches is {type(batches).__name__}: give an iterable of dicts, or a function that returns one")
  if eval_batches is not None and not isinstance(eval_batches, Iterable):
    raise UserError(f"eval_batches is {type(eval_batches).__name__}: give an iterable of dicts")
  if examples is not None and batches is not None:
    raise UserError("batches and examples: give one of them, batches of arrays or examples as texts")
  if examples is None and eval_examples is not None:
    raise UserError("eval_examples: without examples there is nothing to train on; give both")
  with in_python():
    gcs.check_folder(workdir, where="workdir ")
    config = copy.deepcopy(config)
    if examples is not None:
      _read_examples(config, examples, eval_examples)

    def run(rows: _Rows) -> None:
      user_data = None if batches is None else array_batches.OwnData(batches, eval_batches)
      train_loop(loading.records(config), workdir, callbacks=[*callbacks, rows], data=user_data)
      if user_data is not None and user_data.failure is not None:
        raise user_data.failure  # which has ended the run, saved

    return Training(_Rows(run))


def _read_examples(config: ConfigDict, examples: Any, eval_examples: Any) -> None:
  """Makes examples in memory the table that a config reads.

  Raises:
    UserError: they are no examples, or the config reads something else.
  """
  from t2t.data import tables

  if any(config.data[key] for key in ("files", "eval_files", "sources")):
    raise UserError("examples: config.data says other data to read; leave out data.files, data.eval_files and sources")
  files = {"files": tables.keep(examples, where="examples"), "eval_files": ""}
  if eval_examples is not None:
    files["eval_files"] = tables.keep(eval_examples, where="eval_examples")
  config.data.update(files, mixture="", labels=config.data.labels or "auto")


class Training(Iterator[dict[str, float]]):
  """A run that goes on as its rows are asked for: {"step": 10, "train/loss": 3.2, ...}."""

  def __init__(self, run: "_Rows"):
    self._run = run
    # When nobody holds it any more, and when Python ends.
    self._finalizer = weakref.finalize(self, _Rows.forgotten, run)
    _trainings.add(self)

  def __next__(self) -> dict[str, float]:
    """The next row.

    Raises:
      StopIteration: the run has ended.
      KeyboardInterrupt: as it came; what was reached is saved.  A second one does not wait for it.
    """
    return self._run.next()

  def run(self) -> dict[str, float]:
    """Goes through all rows that are left; the last value of each metric."""
    last: dict[str, float] = {}
    for row in self:
      last |= row
    return last

  def close(self) -> None:
    """Ends the run after the step that is computed, saved; one that has ended, or has not begun, it leaves as it is."""
    self._finalizer.detach()
    self._run.close()


_COMPILER_SECONDS = 60.0  # that the end of Python waits for a program that nobody needs any more
_PATIENCE = 5.0  # seconds that a run may take to end, before it says what it does
_trainings: weakref.WeakSet[Training] = weakref.WeakSet()


def _end_all() -> None:
  """Ends what is left when Python ends, while there still are pools of threads, which saving needs."""
  for training in list(_trainings):
    try:
      training._finalizer()
    except BaseException:  # else Python would wait for ever for the pools, which are told after this
      traceback.print_exc()
  background_compile.finish(_COMPILER_SECONDS)  # of a run that found its data wanting


# Before `atexit`, whose functions come after pools have been shut down: of these here, the last added are called first.
threading._register_atexit(_end_all)


class _Rows(Callback):
  """Runs the training in a thread and hands over its rows one by one."""

  def __init__(self, train: Callable[["_Rows"], object]):
    self._train = train
    self._rows: queue.SimpleQueue = queue.SimpleQueue()  # of rows, and at the end of None or what was raised
    self._goes_on: queue.SimpleQueue = queue.SimpleQueue()
    self._thread: threading.Thread | None = None
    self._stop: preemption.Steps | None = None
    self._why = ""  # it is to stop
    self._written: list[dict[str, float]] = []
    self._ended = False

  # ---- Of the thread -------------------------------------------------------------------------------------------------

  def _work(self) -> None:
    try:
      self._train(self)
    except preemption.Stopped:
      self._rows.put(None)
    except BaseException as error:  # is raised where the rows are asked for
      self._rows.put(error)
    else:
      self._rows.put(None)

  def on_start(self, run: Run) -> None:
    """See `Callback`."""
    self._stop = run.stop
    if self._why:
      self._ask()

  def on_log(self, run: Run, step: int, row: Mapping[str, float]) -> None:
    """See `Callback`."""
    self._written.append({"step": step, **row})

  def on_step_end(self, run: Run) -> None:
    """See `Callback`."""
    if self._written:
      with run.paused():
        self._hand_over()

  def on_end(self, run: Run) -> None:
    """See `Callback`."""
    self._hand_over()

  def _hand_over(self) -> None:
    rows, self._written = self._written, []
    for row in rows:
      if not self._why:
        self._rows.put(row)
        self._goes_on.get()

  # ---- Of the caller -------------------------------------------------------------------------------------------------

  def next(self) -> dict[str, float]:
    """See `Training.__next__`."""
    if self._ended:
      raise StopIteration
    try:
      if self._thread is None:
        self._thread = threading.Thread(target=self._work, name="train", daemon=True)
        self._thread.start()
      else:
        self._goes_on.put(None)
      row_or_error = self._next()
    except KeyboardInterrupt:
      self._end("interrupted")
      raise
    if isinstance(row_or_error, dict):
      return row_or_error
    self._ended = True
    self._thread.join()
    if row_or_error is not None:
      with in_python():
        raise row_or_error
    raise StopIteration

  def _next(self, *, patience: float = math.inf) -> Any:
    """What is handed over next; a signal that another thread was given is heard meanwhile.

    Args:
      patience: seconds after which it is told what is waited for.
    """
    waited = 0.0
    while True:
      with contextlib.suppress(queue.Empty):
        return self._rows.get(timeout=1.0)
      waited += 1.0
      if waited >= patience:
        patience = math.inf
        pending = "; ".join(waiting.pending()) or "the step that is computed, to be saved"
        console.tell(f"waiting for {pending}; another interruption does not wait")

  def close(self) -> None:
    """See `Training.close`."""
    if self._thread is not None and not self._ended:
      self._end("its rows are read no further")

  def forgotten(self) -> None:
    """Nobody can ask for rows any more."""
    if self._thread is None and not self._ended:
      message = "t2t.train(...) trains as its rows are gone through: for row in t2t.train(...), or t2t.train(...).run()"
      warnings.warn(message, RuntimeWarning, stacklevel=2)
    self.close()

  def _end(self, why: str) -> None:
    self._ended, self._why = True, why
    if self._stop is not None:
      self._ask()
    self._goes_on.put(None)
    while isinstance(row_or_error := self._next(patience=_PATIENCE), dict):
      self._goes_on.put(None)
    self._thread.join()
    if row_or_error is not None:
      raise row_or_error

  def _ask(self) -> None:
    self._stop.ask(sync_point.SyncRequest(sync_point.STOP, signal.SIGINT, self._why))
