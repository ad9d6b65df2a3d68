"""Reads the files of a workdir: metrics, config, history; and finds workdirs."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import datetime
import functools
import json
import re
from typing import Any

from etils import epath
import ml_collections

from t2t import UserError
from t2t.checkpoints import manager, rollback, verify, workdir_lock
from t2t.configuration import stages
from t2t.configuration.loading import config_names, flat, load_config, records, saved_config
from t2t.losses import Baseline
from t2t.reports import first_batches, goodput, history, ngram_record, profile
from t2t.storage import gcs, logs
from t2t.training import class_files, metric_writers, profiling
from t2t.training.callbacks import nan_policy

METRICS, CONFIG = metric_writers.METRICS, "config.json"
RUNS, FINISHED, STOPPED, HELD, MODEL = "runs", "finished", "stopped", "held", "model"  # states
_PART_OF_RUN = {manager.CHECKPOINTS, manager.VOCABULARY, "tensorboard", nan_policy.BAD_BATCHES, profiling.FOLDER}
_FILE = re.compile(r"\.[a-z]+\d*$")  # extension of a file, where a bucket does not distinguish files from folders


@dataclasses.dataclass(frozen=True)
class RecordedRun:
  """A run as recorded in its workdir.

  Attributes:
    path: of the workdir.
    metrics: name -> step -> value.
    config: of config.json; {} if it is missing.
    history: see `history.read`.
    checkpoints: steps that are kept.
    turns: (checkpoint, step) of each rollback from a step.
    bad_batches: names of files.
    samples: step -> predictions on held-out texts, each a list of (label, text) lines.
    first_rows: first training rows, see `first_batches.read`.
    classes: per-class scores, see `class_files.read`.
    goodput: wall time by phase.
    traces: the latest traces of steps, see `profile.read`.
    damaged: number of invalid lines in metrics.jsonl.
    state: `RUNS`, `FINISHED`, `STOPPED`, `HELD` for a run in a bucket that runs or was killed, or `MODEL` for a
      checkpoint that another command wrote (`t2t prune`, `t2t convert`).
    written: time of the last write of metrics; None if unknown.
    ngrams: losses of n-gram models that `t2t ngram` measured.
  """

  path: epath.Path
  metrics: Mapping[str, Mapping[int, float]]
  config: Mapping[str, Any]
  history: Sequence[Mapping[str, Any]]
  checkpoints: Sequence[int]
  turns: Sequence[tuple[int, int]]
  bad_batches: Sequence[str]
  samples: Mapping[int, Sequence[Sequence[tuple[str, str]]]]
  first_rows: Sequence[Mapping[str, Any]]
  classes: Mapping[str, Any]
  goodput: goodput.WallTime
  traces: Sequence[profile.Trace]
  damaged: int
  state: str
  written: datetime.datetime | None
  ngrams: Sequence[Baseline] = ()

  @property
  def name(self) -> str:
    return self.path.name or str(self.path)

  @property
  def step(self) -> int:
    """The last step with any record."""
    noted = [note["step"] for note in self.history[-1:]]  # earlier notes may belong to a previous run in the workdir
    return max([0, *noted, *self.checkpoints, *(step for values in self.metrics.values() for step in values)])

  @property
  def steps(self) -> int | None:
    """Planned number of steps; None if the config does not set it."""
    num_steps = flat(self.config).get("train.steps")
    return num_steps if isinstance(num_steps, int) else None

  def last(self, name: str) -> float | None:
    """Returns the last value of a metric."""
    values = self.metrics.get(name)
    return next(reversed(values.values())) if values else None

  @functools.cached_property
  def config_name(self) -> str:
    """Config name in the command; "" if unknown."""
    return next((note["config"] for note in reversed(self.history) if note.get("config")), "")

  @functools.cached_property
  def stages(self) -> Sequence[stages.Stage]:
    """Stages of the run; () if this version cannot read the config."""
    try:
      return stages.of(records(saved_config(self.config))) if self.config else ()
    except (UserError, KeyError, TypeError, ValueError, AttributeError):
      return ()

  @functools.cached_property
  def preset(self) -> str:
    """The shipped config of the command, or else the one with the fewest differences.

    A config file of the command is not read, because reading executes it, and the workdir may come from another person.
    """
    if self.config_name in config_names():
      return self.config_name
    if not self.config:
      return ""
    return min(config_names(), key=lambda name: len(differences(self.config, _preset(name) or {})))

  def changes(self) -> dict[str, tuple[Any, Any]]:
    """Returns key -> (value here, value in the preset) for differences; None for a missing key."""
    return differences(self.config, _preset(self.preset) or {}) if self.config else {}


def differences(config: Mapping[str, Any], other_config: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
  """Returns key ("train.steps") -> its values in two configs, for differences."""
  a, b = flat(config), flat(other_config)
  return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}


@functools.cache
def _preset(name: str) -> dict[str, Any] | None:
  """Returns a config by name, in the form of config.json; None if this version cannot read it."""
  try:
    config = load_config(name)
    return json.loads(json.dumps(records(ml_collections.ConfigDict(config)).to_dict()))
  except (UserError, TypeError, ValueError, KeyError):
    return None


def read(path: str, *, state: str = "") -> RecordedRun:
  """Reads the run of a workdir.

  Args:
    path: local or gs://.
    state: overrides the state found in the folder.

  Raises:
    UserError: not a workdir; with the content of the folder.
  """
  gcs.check(path, where="")
  folder = gcs.absolute(path)
  names = gcs.names(folder, where=path)
  if not is_run(names):
    raise UserError(f"{path} {_what_is_there(folder, names)}. Give a folder that `t2t train --workdir` wrote to.")
  try:
    return _read(folder, names, state)
  except OSError as error:
    raise UserError(f"{path} cannot be read ({error}); check the path and its permissions") from error


def _read(folder: epath.Path, names: Sequence[str], state: str) -> RecordedRun:
  content = logs.read(folder / METRICS) if METRICS in names else b""
  try:
    turns = [tuple(turn) for turn in rollback.turns(folder)] if rollback.NAME in names else []
  except UserError:  # a report must not fail because of it
    turns = []
  run = RecordedRun(
    path=folder,
    metrics=metric_writers.parse_metrics(content),
    config=_config(folder) if CONFIG in names else {},
    history=history.read(folder) if history.NAME in names else [],
    checkpoints=verify.steps(folder / manager.CHECKPOINTS) if manager.CHECKPOINTS in names else [],
    turns=turns,
    bad_batches=gcs.names(folder / nan_policy.BAD_BATCHES, where="") if nan_policy.BAD_BATCHES in names else [],
    samples=metric_writers.read_samples(folder / metric_writers.SAMPLES) if metric_writers.SAMPLES in names else {},
    first_rows=first_batches.read(folder) if first_batches.NAME in names else [],
    classes=class_files.read(folder) if class_files.NAME in names else {},
    goodput=goodput.read(folder),
    ngrams=ngram_record.read(folder) if ngram_record.NAME in names else [],
    traces=profile.read(folder) if profiling.FOLDER in names else [],
    damaged=metric_writers.damaged_lines(content),
    state=state,
    written=_written(folder / (METRICS if METRICS in names else CONFIG)),
  )
  return run if state else dataclasses.replace(run, state=_state(run, names))


def _config(folder: epath.Path) -> dict[str, Any]:
  try:
    config = json.loads(gcs.read(folder / CONFIG))
  except ValueError:
    return {}
  return config if isinstance(config, dict) else {}


def _state(run: RecordedRun, names: Sequence[str]) -> str:
  if workdir_lock.NAME in names and workdir_lock.is_held(run.path):
    return HELD if gcs.is_remote(run.path) else RUNS
  if run.history and run.history[-1]["event"] == history.END:
    return STOPPED if run.history[-1]["why"] == history.STOPPED else FINISHED
  if not {METRICS, history.NAME} & set(names):  # a run writes both at its start
    return MODEL
  return FINISHED if run.steps is not None and run.step >= run.steps else STOPPED


def _written(path: epath.Path) -> datetime.datetime | None:
  try:
    return datetime.datetime.fromtimestamp(path.stat().mtime, datetime.UTC)
  except OSError:
    return None


def is_run(names: Sequence[str]) -> bool:
  """Returns True if a folder with these names is a workdir: it has metrics, history, or config and checkpoints."""
  return METRICS in names or history.NAME in names or (CONFIG in names and manager.CHECKPOINTS in names)


def _what_is_there(folder: epath.Path, names: Sequence[str]) -> str:
  if not names:
    return "is empty or does not exist"
  if folder.name == manager.CHECKPOINTS or all(name.isdigit() for name in names):
    return f"is a run's folder of checkpoints; the run is {folder.parent}"
  below = [child.name for child in find(folder, deep=1)]
  if below:
    return f"is not a run, but contains runs: {_some(below)}"
  return f"is not a run: the folder has neither {METRICS} nor {history.NAME}, but {_some(names)}"


def _some(names: Sequence[str], *, most: int = 5) -> str:
  return ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")


def find(folder: epath.Path, *, deep: int = 2) -> Iterator[epath.Path]:
  """Yields workdirs in a folder, including the folder itself, and in its subfolders.

  Args:
    folder: local or gs://.
    deep: levels of subfolders to search.

  Raises:
    UserError: a bucket cannot be listed.
  """
  try:
    names = gcs.names(folder, where=str(folder))
  except OSError:  # a folder without read permission
    return
  if is_run(names):
    yield folder
    return
  for name in names if deep else ():
    inner = folder / name
    passed = name.startswith(".") or name in _PART_OF_RUN
    if not passed and (not _FILE.search(name) if gcs.is_remote(folder) else inner.is_dir()):
      yield from find(inner, deep=deep - 1)
