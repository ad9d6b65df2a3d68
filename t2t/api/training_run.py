"""Training in Python: `t2t.config` builds a config, `t2t.train` runs it and yields its metrics.

The run has its own thread and continues while the caller waits for the next row. Its mesh, its error handling and its
exit do not affect the caller, and the caller keeps its signal handlers; SIGUSR2, whose default action ends the process,
requests a profile meanwhile.
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
from t2t.runtime import console, early_signals, lazy_table, peer_monitor, preemption, sync_point, waiting
from t2t.storage import gcs, given_paths
from t2t.training import background_compile
from t2t.training.run import Callback, Run
from t2t.training.train import train as train_loop


def config(
  name: str | os.PathLike, changes: Mapping[str, Any] | None = None, **sections: Mapping[str, Any]
) -> ConfigDict:
  """Returns a config by name, with overrides.

      t2t.config("tiny", {"train.steps": 50, "model.dropout_rate": 0.1})
      t2t.config("tiny", train={"steps": 50}, model={"dropout_rate": 0.1})

  Args:
    name: a config of t2t (`t2t train --help` lists them), or the path of a .py file with `get_config()`.
    changes: section.key -> value; the same checks apply as for `--config.section.key=value` on the command line.
    sections: overrides by section, each key -> value.

  Returns:
    The config. Its values may still be changed before `train` gets it; keys cannot be added. With `init.checkpoint` and
    `init.use_model_config` it contains the model of that checkpoint.

  Raises:
    UserError: no such config or key (the message suggests the nearest), or a value of the wrong type.
  """
  name = given_paths.text(name, called="the config's name")
  if changes is not None and not isinstance(changes, Mapping):
    raise UserError(
      f"'changes' has type {type(changes).__name__}; give a dict of keys and values: {{'train.steps': 10}}"
    )
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
      example = known or f" is not a dict; give the keys of this section: {section}={{'key': {values!r}}}"
      raise UserError(f"{section}={values!r}{example if not known else f' is not a section{known}'}")
    dotted |= {f"{section}.{key}": value for key, value in values.items()}
  dotted = {str(key): typed_config.plain(value) for key, value in dotted.items()}
  typed = [f"--config.{key}={value if isinstance(value, str) else repr(value)}" for key, value in dotted.items()]

  with in_python():
    config_dict = loading.overridden(name, typed)
    for key, value in dotted.items():
      if _is_text(config_dict, key) and isinstance(value, list | tuple | Mapping | None):
        texts = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        hint = f"; separate several values by commas: {','.join(value)!r}" if texts else ""
        raise UserError(f"config.{key}={value!r} must be a string{hint}")
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
  """Trains as `t2t train` does, and yields the rows of metrics.jsonl one by one.

      for row in t2t.train(t2t.config("tiny"), "runs/tiny"):
        if row.get("eval/loss", 9.0) < 3.0:
          break

  The run advances while the caller waits for the next row, and pauses in between. Leaving the loop, by `break` or an
  interruption, ends the run after the current step and saves it. The same call resumes it, as the command does.
  Reading, writing and checks are the same as those of the command.

  Args:
    config: the result of `config`; later changes to it do not affect this run.
    workdir: local or gs://.
    batches: own batches in place of config.data: dicts of arrays [rows, length] by feature name
      (`encoder_input_tokens`, ...; derived features are filled in). An iterable is repeated; an iterator is read to its
      end. A resumed run skips the batches that it has read. A function takes the number of batches read and returns the
      following ones, so nothing is skipped. Neither TensorFlow nor seqio is needed. Without config.data.vocabulary ids
      are not decoded.
    eval_batches: evaluation batches, of which config.eval.batches are read.
    examples: rows of a table, as in config.data.files with `--config finetune` (docs/finetune_table.md): a list of
      dicts, [{"text": "...", "label": "..."}] or [{"words": [...], "tags": [...]}]; a `datasets.Dataset`; or a pandas
      DataFrame. A resumed run needs the same examples.
    eval_examples: evaluation rows; None: a tenth of `examples` is held out.
    callbacks: instances of `t2t.Callback`; their hooks run after those of t2t, in list order.

  Raises:
    UserError: config, workdir or callbacks are wrong (raised at once); errors of `training.train` and
      `data.array_batches` are raised with the first row.
  """
  if not isinstance(config, ConfigDict):
    raise UserError(f"'config' has type {type(config).__name__}; give the result of t2t.config(name)")
  if jax.process_count() > 1 and peer_monitor.current() is None:
    raise UserError(
      f"t2t.train supports only one process, but this run has {jax.process_count()} processes; run the command "
      "`t2t train` in each process instead"
    )
  for number, callback in enumerate(callbacks):
    if not isinstance(callback, Callback):
      raise UserError(
        f"callbacks[{number}] is {callback!r}, not an instance of t2t.Callback; give an instance, such as MyCallback() "
        "for the class MyCallback"
      )
  workdir = given_paths.text(workdir, called="workdir")
  if not workdir:
    raise UserError("workdir='' is empty: give a folder, or a gs:// path, for checkpoints and metrics")
  if (batches is None) != (eval_batches is None):
    given = "batches" if eval_batches is None else "eval_batches"
    raise UserError(
      f"only {given}= is given; give both batches= (training data) and eval_batches= (evaluation data), or neither"
    )
  if batches is not None and not (callable(batches) or isinstance(batches, Iterable)):
    raise UserError(
      f"'batches' has type {type(batches).__name__}; give an iterable of dicts, or a function that returns an iterable"
    )
  if eval_batches is not None and not isinstance(eval_batches, Iterable):
    raise UserError(f"'eval_batches' has type {type(eval_batches).__name__}; give an iterable of dicts")
  if examples is not None and batches is not None:
    raise UserError("batches= and examples= are both given; give only batches= (arrays) or only examples= (texts)")
  if examples is None and eval_examples is not None:
    raise UserError("eval_examples= is given without training examples; give examples= as well")
  with in_python():
    gcs.check_folder(workdir, where="workdir ")
    config = copy.deepcopy(config)
    if "distillation" in config:
      lazy_table.load("t2t.losses.distillation:check_teacher")(config)
    if examples is not None:
      _read_examples(config, examples, eval_examples)

    def run(rows: _Rows) -> None:
      user_data = None if batches is None else array_batches.OwnData(batches, eval_batches)
      train_loop(loading.records(config), workdir, callbacks=[*callbacks, rows], data=user_data)
      if user_data is not None and user_data.failure is not None:
        raise user_data.failure  # the run has ended and is saved

    return Training(_Rows(run))


def _read_examples(config: ConfigDict, examples: Any, eval_examples: Any) -> None:
  """Stores examples in memory as the table that a config reads.

  Raises:
    UserError: the examples are invalid, or the config names other data.
  """
  from t2t.data import tables

  if keys := [f"config.data.{key}" for key in ("files", "eval_files", "sources") if config.data[key]]:
    named = " and ".join(keys)
    raise UserError(
      f"examples= is given, but the config names other data with {named}; leave out examples=, or {named}"
    )
  files = {"files": tables.keep(examples, where="examples"), "eval_files": ""}
  if eval_examples is not None:
    files["eval_files"] = tables.keep(eval_examples, where="eval_examples")
  config.data.update(files, mixture="", labels=config.data.labels or "auto")


class Training(Iterator[dict[str, float]]):
  """Iterator over the metric rows of a run, {"step": 10, "train/loss": 3.2, ...}; reading a row advances the run."""

  def __init__(self, run: "_Rows"):
    self._run = run
    # Called when the last reference is gone, and at Python's exit.
    self._finalizer = weakref.finalize(self, _Rows.forgotten, run)
    _trainings.add(self)

  def __next__(self) -> dict[str, float]:
    """Returns the next row.

    Raises:
      StopIteration: the run has ended.
      KeyboardInterrupt: passed on after the run is saved; a second one does not wait for that.
    """
    return self._run.next()

  def run(self) -> dict[str, float]:
    """Reads all remaining rows, and returns the last value of each metric."""
    last: dict[str, float] = {}
    for row in self:
      last |= row
    return last

  def close(self) -> None:
    """Ends the run after the current step and saves it; does nothing if it has ended or has not started."""
    self._finalizer.detach()
    self._run.close()


_COMPILER_SECONDS = 60.0  # that Python's exit waits for an unneeded compilation
_PATIENCE = 5.0  # seconds until a run that is ending logs what it waits for
_trainings: weakref.WeakSet[Training] = weakref.WeakSet()


def _end_all() -> None:
  """Ends all runs at Python's exit, while the thread pools that saving needs still exist."""
  for training in list(_trainings):
    try:
      training._finalizer()
    except BaseException:  # otherwise Python would wait forever for the pools, which shut down next
      traceback.print_exc()
  background_compile.finish(_COMPILER_SECONDS)  # of a run whose data was invalid


# Runs before `atexit` functions, which come after the shutdown of thread pools. The last registered function is called
# first.
threading._register_atexit(_end_all)


class _Rows(Callback):
  """Runs the training in a thread and passes its rows to the caller one by one."""

  def __init__(self, train: Callable[["_Rows"], object]):
    self._train = train
    self._rows: queue.SimpleQueue = queue.SimpleQueue()  # of rows; at the end None or an exception
    self._goes_on: queue.SimpleQueue = queue.SimpleQueue()
    self._thread: threading.Thread | None = None
    self._stop: preemption.Steps | None = None
    self._why = ""  # reason for stopping
    self._written: list[dict[str, float]] = []
    self._ended = False
    self._signals = contextlib.ExitStack()  # SIGUSR2 would end the process

  # ---- Training thread -----------------------------------------------------------------------------------------------

  def _work(self) -> None:
    try:
      self._train(self)
    except preemption.Stopped:
      self._rows.put(None)
    except BaseException as error:  # raised in the caller's thread
      self._rows.put(error)
    else:
      self._rows.put(None)

  def on_start(self, run: Run) -> None:
    self._stop = run.stop
    if self._why:
      self._ask()

  def on_log(self, run: Run, step: int, row: Mapping[str, float]) -> None:
    self._written.append({"step": step, **row})

  def on_step_end(self, run: Run) -> None:
    if self._written:
      with run.paused():
        self._hand_over()

  def on_end(self, run: Run) -> None:
    self._hand_over()

  def _hand_over(self) -> None:
    rows, self._written = self._written, []
    for row in rows:
      if not self._why:
        self._rows.put(row)
        self._goes_on.get()

  # ---- Caller's thread -----------------------------------------------------------------------------------------------

  def next(self) -> dict[str, float]:
    if self._ended:
      raise StopIteration
    try:
      if self._thread is None:
        self._signals.enter_context(early_signals.remembered())
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
    self._signals.close()
    if row_or_error is not None:
      with in_python():
        raise row_or_error
    raise StopIteration

  def _next(self, *, patience: float = math.inf) -> Any:
    """Returns the next item of the queue; waits in short intervals, so that signals are handled meanwhile.

    Args:
      patience: seconds until a message says what is waited for.
    """
    waited = 0.0
    while True:
      with contextlib.suppress(queue.Empty):
        return self._rows.get(timeout=1.0)
      waited += 1.0
      if waited >= patience:
        patience = math.inf
        pending = "; ".join(waiting.pending()) or "the current step and its checkpoint"
        console.tell(f"waiting for {pending}; interrupt again to stop without waiting")

  def close(self) -> None:
    if self._thread is not None and not self._ended:
      self._end("the caller stopped reading rows")

  def forgotten(self) -> None:
    """Ends the run after the last reference to it is gone."""
    if self._thread is None and not self._ended:
      message = "t2t.train(...) trains only while its rows are read: for row in t2t.train(...), or t2t.train(...).run()"
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
    self._signals.close()
    if row_or_error is not None:
      raise row_or_error

  def _ask(self) -> None:
    self._stop.ask(sync_point.SyncRequest(sync_point.STOP, signal.SIGINT, self._why))
