"""A training run as its callbacks see it, and the hooks that a callback may implement."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from etils import epath
import jax

from t2t.configuration.schema import Config
from t2t.configuration.stages import Stage
from t2t.metrics import Metrics
from t2t.models.architecture import Batch
from t2t.param_tree import Vocabulary
from t2t.runtime import preemption, watchdog
from t2t.training.throughput import Throughput
from t2t.training.train_logger import TrainLogger
from t2t.training.train_state import TrainState

if TYPE_CHECKING:
  from t2t.data.stage_iterator import StagedBatches


class Rollback(Exception):
  """Raised by a callback in `on_step` or `on_metrics`: the run restores its last checkpoint and skips batches.

  Attributes:
    step: whose batch, and all since the checkpoint, are skipped.
    why: reason, for messages.
  """

  def __init__(self, step: int, why: str):
    super().__init__(why)
    self.step, self.why = step, why


@dataclasses.dataclass(frozen=True)
class DispatchedStep:
  """A step that has been dispatched to the devices and may still be running.

  wait_seconds: spent waiting for its batch.
  epochs: task of a mixture -> how often its examples have been read.
  """

  step: int
  metrics: Metrics
  wait_seconds: float
  batch: Batch
  epochs: Mapping[str, int] = dataclasses.field(default_factory=dict)


class Callback:
  """Hooks of a training run; a subclass implements those that it needs.

  Every process calls each hook, in the order of the run's callbacks, in the thread that trains.  A hook that computes
  on `run.state` must do so on every process.

  Attributes:
    end_reason: a sentence if the run is to end, with a checkpoint, after the current step, or after the next one if it
      is set later than in `on_step`; "": it continues.
  """

  end_reason: str = ""

  def on_start(self, run: "Run") -> None:
    """Runs before the first step, when the state has been restored or initialized."""

  def on_resume(self, run: "Run") -> None:
    """Runs after `on_start` of all callbacks, if the run continues from a checkpoint of its own."""

  def on_stage(self, run: "Run") -> None:
    """Runs when a stage begins, before its first batch is read."""

  def on_batch(self, run: "Run", batch: Batch) -> None:
    """Runs before each step; `run.step` is the number of steps so far."""

  def on_step(self, run: "Run") -> None:
    """Runs after each step has been dispatched; `run.step` is its number.

    Raises:
      Rollback: the run is to restore its last checkpoint.
    """

  def on_step_end(self, run: "Run") -> None:
    """Runs after `on_step` of all callbacks: what was due after the step has been evaluated, and is being saved."""

  def on_metrics(self, run: "Run", step: DispatchedStep, metrics: dict[str, float]) -> None:
    """Runs for each step in order, when its metrics have been read: up to one step later than `on_step`.

    Args:
      run: the run.
      step: whose metrics these are.
      metrics: name -> value; a callback may add to them.

    Raises:
      Rollback: the run is to restore its last checkpoint.
    """

  def on_log(self, run: "Run", step: int, row: Mapping[str, float]) -> None:
    """Runs for each row that was written to metrics.jsonl; on the first process alone."""

  def on_evaluation(self, run: "Run", step: int, metrics: Mapping[str, float]) -> None:
    """Runs after each evaluation; `metrics` has "loss" and "TASK/METRIC" of each task."""

  def on_remark(self, run: "Run", step: int, text: str) -> None:
    """Runs for each sentence that `Run.remark` reports."""

  def on_before_save(self, run: "Run") -> None:
    """Runs before a checkpoint of `run.step` is made; the metrics of all steps so far have been read after it.

    Raises:
      Rollback: the run is to restore its last checkpoint.
    """

  def on_save(self, run: "Run") -> Mapping[str, bytes]:
    """Returns files that a checkpoint of `run.step` contains beside the state, by name; of the first process."""
    return {}

  def on_rollback(self, run: "Run") -> None:
    """Runs after a rollback to `run.step`; `run.saved` has the files of `on_save`."""

  def on_stop(self, run: "Run") -> None:
    """Runs if a signal stops the run before its last step, when all is saved."""

  def on_end(self, run: "Run") -> None:
    """Runs after the last step, when all is saved."""

  def on_close(self, run: "Run") -> None:
    """Runs last, also after an error."""


@dataclasses.dataclass
class Run:
  """State of a training run between two steps.

  config: of the last stage, with what the data decides.
  resolved: JSON of the config of each stage.
  programs, program: of all stages and of the current one (`training.stage_program`).
  batches: training batches of all stages (`data.staged.StagedBatches`).
  checkpoints: of the workdir (`checkpoints.store.Checkpoints`).
  lock: holds the workdir (`checkpoints.writer`).
  vocabulary: seqio's, of the ids in the batches; None: not known.
  key: of dropout and whatever else a step draws; the step folds its number into it.
  state: after step `step`.
  first_step: that the run started from.
  saved: files that callbacks saved beside the checkpoint that the run continues from.
  measured: metrics of the evaluation of step `measured_step`.
  saves, evaluates: whether a checkpoint, an evaluation is due after this step.
  samples: predictions on the first held-out examples, each of lines (label, text), of step `samples_step`.
  finished: whether no step follows.
  """

  config: Config
  workdir: epath.Path
  mesh: jax.sharding.Mesh
  stages: Sequence[Stage]
  resolved: Sequence[Mapping[str, object]]
  programs: Any
  batches: "StagedBatches"
  checkpoints: Any
  lock: Any
  vocabulary: Vocabulary | None
  stop: preemption.Steps
  watchdog: watchdog.Watchdog
  throughput: Throughput
  logger: TrainLogger
  callbacks: Sequence[Callback]
  key: jax.Array
  state: TrainState
  step: int
  saved: Mapping[str, bytes]
  first_step: int = 0
  saved_step: int | None = None
  measured: Mapping[str, float] | None = None
  measured_step: int | None = None
  saves: bool = False
  evaluates: bool = False
  samples: Sequence[Sequence[tuple[str, str]]] = ()
  samples_step: int | None = None
  finished: bool = False
  program: Any = dataclasses.field(init=False)
  dispatched: DispatchedStep = dataclasses.field(init=False)

  def __post_init__(self):
    self.program = self.programs[self.batches.stage]
    self.first_step, self.saved_step = self.step, self.step or None

  def call(self, hook: str, *arguments: object) -> None:
    """Calls a hook of all callbacks in order."""
    for callback in self.callbacks:
      getattr(callback, hook)(self, *arguments)

  @property
  def end_reason(self) -> str:
    """Reason that the run ends after this step before train.steps; "": it continues, or has all its steps."""
    if self.step >= self.config.train.steps:
      return ""
    return next((callback.end_reason for callback in self.callbacks if callback.end_reason), "") or self.batches.ended

  def goes_on(self) -> bool:
    """Returns whether another step follows: a run that a callback ends is saved first."""
    ends = self.end_reason and self.saved_step == (self.step or None)
    return self.step < self.config.train.steps and not self.stop.stops and not ends

  def is_due(self, every: int) -> bool:
    """Returns whether this step is a multiple of `every`, or the last of its stage."""
    return self.step % every == 0 or self.step == self.program.stage.end

  def enter_stage(self) -> None:
    """Prepares the stage that the next step is of, if it is not that of the last step."""
    begins = self.batches.begins_stage
    if begins:
      self.watchdog.pause()
      self.stop.saving()  # opening the data takes longer than a step, and all is saved
      self.batches.begin_stage()
    program = self.programs[self.batches.stage]
    if program is not self.program:  # also after a rollback to an earlier stage
      self.program = program
      self.throughput.begin(program.prepare())
    if begins:
      self.call("on_stage")
      self.watchdog.resume()

  def train_step(self, state: TrainState, batch: Batch, key: jax.Array) -> tuple[TrainState, Metrics]:
    """The compiled step of the current stage; compiling the next stage's begins behind it."""
    return self.programs.step(self.batches.stage, state, batch, key)

  def advance(self, metrics: Metrics, batch: Batch) -> None:
    """Counts a step and decides what is due after it."""
    self.step += 1
    self.dispatched = DispatchedStep(self.step, metrics, self.batches.wait_seconds, batch, self.batches.epochs)
    # A save that failed is repeated with the state of this step.
    self.saves = self.stop.reached() or self.checkpoints.overdue() or bool(self.end_reason)
    self.saves = self.saves or self.is_due(self.program.stage.config.checkpoint.save_interval_steps)
    self.evaluates = self.is_due(self.program.stage.config.eval.every) and not self.stop.stops

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Excludes what the block does from step times, of the throughput and of the watchdog."""
    self.throughput.pause()
    self.watchdog.pause()
    yield
    self.watchdog.resume()

  def remark(self, step: int, text: str) -> None:
    """Reports a sentence on the terminal and, through callbacks, in the report of the run."""
    self.logger.say(text)
    self.call("on_remark", step, text)

  def finish(self) -> None:
    """Waits until all is saved.

    Raises:
      Stopped: a signal asked for it.
    """
    self.finished = True
    self.watchdog.pause()
    self.stop.saving()
    self.checkpoints.wait()
    self.stop.finish(lambda: self.call("on_stop"))
