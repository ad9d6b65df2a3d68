"""State of a training run, and the hooks of callbacks."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from etils import epath
import jax

from t2t import UserError
from t2t.configuration.schema import Config
from t2t.configuration.stages import Stage
from t2t.metrics import Metrics
from t2t.models.architecture import Batch
from t2t.param_tree import Vocabulary
from t2t.runtime import preemption, watchdog
from t2t.training import session_clock
from t2t.training.throughput import Throughput
from t2t.training.train_logger import TrainLogger
from t2t.training.train_state import TrainState

if TYPE_CHECKING:
  from t2t.data.stage_iterator import StagedBatches


PAUSED = "t2t:paused"  # name of the event in a trace of what is no training step


class Rollback(Exception):
  """Raised by a callback in `on_step`, `on_metrics` or `on_before_save`: restore the last checkpoint and skip batches.

  Attributes:
    step: last step of the skipped batches; they start after the checkpoint.
    why: reason, for messages.
  """

  def __init__(self, step: int, why: str):
    super().__init__(why)
    self.step, self.why = step, why


class Diverged(UserError):
  """Raised on all processes alike when values that are not finite, or a loss spike, end a run."""


@dataclasses.dataclass(frozen=True)
class DispatchedStep:
  """A step that has been dispatched to the devices and may still be running.

  Attributes:
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

  Every process calls each hook, in the order of the run's callbacks, in the training thread. A hook that computes on
  `run.state` must do so on every process.

  Attributes:
    end_reason: a sentence to end the run, with a checkpoint, after the current step; "" to continue. If it is set later
      than in `on_step`, the run ends after the next step.
  """

  end_reason: str = ""

  def on_start(self, run: "Run") -> None:
    """Runs before the first step, when the state has been restored or initialized."""

  def on_resume(self, run: "Run") -> None:
    """Runs after `on_start` of all callbacks, if the run resumes from its own checkpoint."""

  def on_stage(self, run: "Run") -> None:
    """Runs when a stage begins, before its first batch is read."""

  def on_batch(self, run: "Run", batch: Batch) -> None:
    """Runs before each step; `run.step` is the number of steps so far."""

  def on_step(self, run: "Run") -> None:
    """Runs after each step has been dispatched; `run.step` is its number.

    Raises:
      Rollback: the run must restore its last checkpoint.
    """

  def on_step_end(self, run: "Run") -> None:
    """Runs after `on_step` of all callbacks: a due evaluation is done, and a due save has started."""

  def on_metrics(self, run: "Run", step: DispatchedStep, metrics: dict[str, float]) -> None:
    """Runs for each step in order, when its metrics have been read: up to one step later than `on_step`.

    Args:
      run: the run.
      step: the step of these metrics.
      metrics: name -> value; a callback may add to them.

    Raises:
      Rollback: the run must restore its last checkpoint.
    """

  def on_log(self, run: "Run", step: int, row: Mapping[str, float]) -> None:
    """Runs for each row that was written to metrics.jsonl; only on the first process."""

  def on_evaluation(self, run: "Run", step: int, metrics: Mapping[str, float]) -> None:
    """Runs after each evaluation; `metrics` has "loss" and "TASK/METRIC" of each task."""

  def on_remark(self, run: "Run", step: int, text: str) -> None:
    """Runs for each sentence that `Run.remark` reports."""

  def on_before_save(self, run: "Run") -> None:
    """Runs before a checkpoint of `run.step` is made; afterwards the metrics of all steps so far have been read.

    Raises:
      Rollback: the run must restore its last checkpoint.
    """

  def on_save(self, run: "Run") -> Mapping[str, bytes]:
    """Returns additional files for a checkpoint of `run.step`, by name; those of the first process are saved."""
    return {}

  def on_rollback(self, run: "Run") -> None:
    """Runs after a rollback to `run.step`; `run.saved` has the files of `on_save`."""

  def on_stop(self, run: "Run") -> None:
    """Runs if a signal stops the run before its last step, after the save."""

  def on_end(self, run: "Run") -> None:
    """Runs after the last step, when everything is saved."""

  def on_close(self, run: "Run") -> None:
    """Runs last, also after an error."""


@dataclasses.dataclass
class Run:
  """State of a training run between two steps.

  Attributes:
    config: of the last stage, resolved with the data.
    resolved: JSON of the config of each stage.
    programs, program: of all stages and of the current one (`training.stage_program`).
    batches: training batches of all stages (`data.stage_iterator.StagedBatches`).
    checkpoints: of the workdir (`checkpoints.manager.Checkpoints`).
    lock: on the workdir (`checkpoints.workdir_lock`).
    clock: wall time of this process by phase.
    vocabulary: seqio's, for the ids in the batches; None if unknown.
    key: for dropout and other random choices; each step folds in its number.
    state: after step `step`.
    first_step: step that the run started from.
    saved: callback files of the checkpoint that the run resumes from.
    measured: metrics of the evaluation at step `measured_step`.
    saves, evaluates: whether a checkpoint, an evaluation is due after this step.
    samples: predictions on the first held-out examples at step `samples_step`, each a list of (label, text) lines.
    finished: whether this is the last step.
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
  clock: session_clock.SessionClock
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
    """Reason for ending after this step, before train.steps; "" if the run continues or has all its steps."""
    if self.step >= self.config.train.steps:
      return ""
    return next((callback.end_reason for callback in self.callbacks if callback.end_reason), "") or self.batches.ended

  def goes_on(self) -> bool:
    """Returns whether another step follows; a run that a callback ends is saved first."""
    ends = self.end_reason and self.saved_step == (self.step or None)
    return self.step < self.config.train.steps and not self.stop.stops and not ends

  def is_due(self, every: int) -> bool:
    """Returns whether this step is a multiple of `every`, or the last of its stage."""
    return self.step % every == 0 or self.step == self.program.stage.end

  def enter_stage(self) -> None:
    """Prepares the stage of the next step, if it differs from that of the last step."""
    begins = self.batches.begins_stage
    if begins:
      self.watchdog.pause()
      self.clock.enter(session_clock.STARTUP)
      self.stop.saving()  # opening the data takes longer than a step, and everything is saved
      self.batches.begin_stage()
    program = self.programs[self.batches.stage]
    if program is not self.program:  # also after a rollback to an earlier stage
      self.program = program
      self.throughput.begin(program.prepare())
    if begins:
      self.call("on_stage")
      self.watchdog.resume()

  def train_step(self, state: TrainState, batch: Batch, key: jax.Array) -> tuple[TrainState, Metrics]:
    """Runs the compiled step of the current stage, and starts compiling the next stage's step."""
    return self.programs.step(self.batches.stage, state, batch, key)

  def advance(self, metrics: Metrics, batch: Batch) -> None:
    """Counts a step and decides what is due after it."""
    self.step += 1
    self.dispatched = DispatchedStep(self.step, metrics, self.batches.wait_seconds, batch, self.batches.epochs)
    # A failed save is repeated with the state of this step.
    self.saves = self.stop.reached() or self.checkpoints.overdue() or bool(self.end_reason)
    self.saves = self.saves or self.is_due(self.program.stage.config.checkpoint.save_interval_steps)
    self.evaluates = self.is_due(self.program.stage.config.eval.every) and not self.stop.stops

  @contextlib.contextmanager
  def paused(self, phase: str = session_clock.OTHER) -> Iterator[None]:
    """Excludes the block from the step times of throughput and watchdog; `phase` is one of `session_clock.PHASES`."""
    self.throughput.pause()
    self.watchdog.pause()
    with self.clock.phase(phase), jax.profiler.TraceAnnotation(PAUSED):
      yield
    self.watchdog.resume()

  def remark(self, step: int, text: str) -> None:
    """Reports a sentence on the terminal and, through callbacks, in the report of the run."""
    self.logger.say(text)
    self.call("on_remark", step, text)

  def finish(self) -> None:
    """Waits until everything is saved.

    Raises:
      Stopped: a signal stopped the run.
    """
    self.finished = True
    self.watchdog.pause()
    self.stop.saving()
    with self.clock.phase(session_clock.SAVE):
      self.checkpoints.wait()
    self.clock.enter(session_clock.OTHER)
    self.stop.finish(lambda: self.call("on_stop"))
