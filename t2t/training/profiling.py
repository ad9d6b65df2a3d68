"""Traces of training steps by jax.profiler, for `t2t train --profile` and for requests during a run.

A trace is a folder in WORKDIR/profile/plugins/profile, so that `tensorboard --logdir WORKDIR/profile` and `xprof
--logdir WORKDIR/profile` open all traces of a run. `reports.profile` reads them.
"""

from collections.abc import Sequence
import contextlib
import pathlib
import re
import tempfile
from typing import NamedTuple

from etils import epath
import jax

from t2t import UserError
from t2t.models.architecture import Batch
from t2t.storage import logs
from t2t.training.run import Callback, Run

FOLDER = "profile"  # in the workdir
TRACES = ("plugins", "profile")  # below it, as TensorBoard requires
ENDINGS = (".xplane.pb", ".trace.json.gz")  # of files: for xprof, and for Perfetto
# Names of host events in a trace.
STEP, INPUT = "train", "t2t:input"
_RANGE = re.compile(r"(\d+):(\d+)$", re.ASCII)
_REQUESTED_STEPS = 5  # of a request without a number
_MOST_STEPS = 100  # of a trace, which has all events in memory


class TracedSteps(NamedTuple):
  """TracedSteps of a trace: those after `begin` up to `end`."""

  begin: int
  end: int

  @property
  def name(self) -> str:
    """Folder of the trace."""
    return f"steps_{self.begin + 1}-{self.end}"

  def __str__(self) -> str:
    return f"{self.begin}:{self.end}"


def parse(text: str) -> list[TracedSteps]:
  """Returns the traces of `--profile`, in order.

  In:  "100:105,2000:2010"
  Out: [TracedSteps(100, 105), TracedSteps(2000, 2010)]     steps 101 to 105, and 2001 to 2010

  Raises:
    UserError: a range is not two numbers, is reversed or empty, is too long, or overlaps another.
  """
  ranges = []
  for part in text.split(","):
    match = _RANGE.match(part.strip())
    if match is None:
      raise UserError(
        f"--profile {text}: {part!r} is not a range of steps. Give BEGIN:END, for example --profile 100:105 for the "
        "five steps after step 100."
      )
    steps = TracedSteps(int(match[1]), int(match[2]))
    if steps.end <= steps.begin:
      raise UserError(
        f"--profile {text}: {steps} has no steps, because its end must be above its begin. Give, for example, "
        f"--profile {steps.end}:{max(steps.begin, steps.end + 5)}."
      )
    if steps.end - steps.begin > _MOST_STEPS:
      raise UserError(
        f"--profile {text}: {steps} has {steps.end - steps.begin:,} steps, more than {_MOST_STEPS:,}; the trace of a "
        f"few steps has all operations. Give, for example, --profile {steps.begin}:{steps.begin + 5}."
      )
    ranges.append(steps)
  ranges.sort()
  for earlier, later in zip(ranges, ranges[1:], strict=False):
    if later.begin < earlier.end:
      raise UserError(f"--profile {text}: {earlier} and {later} overlap. Give ranges without a common step.")
  return ranges


def check(ranges: Sequence[TracedSteps], num_steps: int) -> None:
  """Checks that a run has the steps.

  Raises:
    UserError: a range ends after the last step.
  """
  for steps in ranges:
    if steps.end > num_steps:
      raise UserError(
        f"--profile {steps}: the run ends at step {num_steps} (config.train.steps={num_steps}). Give a range up to "
        f"{num_steps}, or raise --config.train.steps."
      )


class Profile(Callback):
  """Traces ranges of steps; a range that a resumed run has partly completed is traced from the resumed step on.

  Args:
    ranges: see `parse`.
    on_all: whether every process writes a trace, and not only the first.
  """

  _active = False  # JAX has one profiler per process

  def __init__(self, ranges: Sequence[TracedSteps], *, on_all: bool = False):
    self._ranges, self._on_all = list(ranges), on_all
    self._current: TracedSteps | None = None
    self._folder: tempfile.TemporaryDirectory | None = None
    self._last = 0  # traced step
    self._event, self._input = contextlib.ExitStack(), contextlib.ExitStack()  # of the current step and its wait

  def on_start(self, run: Run) -> None:
    """Drops completed steps, and begins a trace of the first step.

    Raises:
      UserError: see `check`.
    """
    check(self._ranges, run.config.train.steps)
    remaining = []
    for steps in self._ranges:
      if steps.end <= run.step:
        run.logger.say(f"--profile {steps}: no trace, because the run resumes after step {run.step}")
      elif steps.begin < run.step:
        remaining.append(TracedSteps(run.step, steps.end))
        run.logger.say(
          f"--profile {steps}: traces steps {run.step + 1} to {steps.end}, because the run resumes after step"
          f" {run.step}"
        )
      else:
        remaining.append(steps)
    self._ranges = remaining
    self._begin_due(run)

  def on_batch(self, run: Run, batch: Batch) -> None:
    self._input.close()

  def on_step_end(self, run: Run) -> None:
    if self._current is not None:
      self._last = run.step
      if run.step < self._current.end:
        self._event.close()
        self._annotate(run)
      else:
        jax.block_until_ready(run.state)  # the last step ends when the devices have finished
        self._end(run)
    self._begin_due(run)

  def on_rollback(self, run: Run) -> None:
    self._end(run, "ended early by a rollback")
    self._ranges = [steps for steps in self._ranges if steps.begin >= run.step]

  def on_stop(self, run: Run) -> None:
    self._end(run, "ended early, because the run stopped")

  def on_end(self, run: Run) -> None:
    self._end(run, "ended early, because the run ended")

  def on_close(self, run: Run) -> None:
    self._end(run, "ended early by an error")

  # ---- The profiler --------------------------------------------------------------------------------------------------

  def _begin_due(self, run: Run) -> None:
    self._ranges = [steps for steps in self._ranges if steps.begin >= run.step]  # a rollback may lead into a range
    if self._current is not None or not self._ranges or run.step != self._ranges[0].begin:
      return
    steps = self._ranges.pop(0)
    if jax.process_index() != 0 and not self._on_all:
      return
    if Profile._active:
      run.logger.say(f"--profile {steps}: no trace, because another trace is running")
      return
    with run.paused():
      jax.block_until_ready(run.state)
      options = jax.profiler.ProfileOptions()
      options.python_tracer_level = 0  # calls of Python functions would take most of the time and of the file
      self._folder = tempfile.TemporaryDirectory(prefix="t2t-profile-")
      try:
        jax.profiler.start_trace(self._folder.name, profiler_options=options)
      except Exception as error:  # for example because the user's own trace is running
        run.logger.say(f"--profile {steps}: no trace, because the profiler does not start ({error})")
        return
    self._current, self._last, Profile._active = steps, run.step, True
    self._annotate(run)

  def _annotate(self, run: Run) -> None:
    """Begins the events of a step, which contain its wait for a batch."""
    self._event.enter_context(jax.profiler.StepTraceAnnotation(STEP, step_num=run.step + 1))
    self._input.enter_context(jax.profiler.TraceAnnotation(INPUT))

  def _end(self, run: Run, why: str = "") -> None:
    """Ends the trace and copies it to the workdir; errors are only logged."""
    if self._current is None:
      return
    self._input.close()
    self._event.close()
    steps, folder = TracedSteps(self._current.begin, self._last), self._folder
    self._current, self._folder, Profile._active = None, None, False
    assert folder is not None
    with run.paused(), folder:
      with contextlib.suppress(Exception):  # after an error the state may not exist
        jax.block_until_ready(run.state)
      try:
        jax.profiler.stop_trace()
        target = run.workdir.joinpath(FOLDER, *TRACES, steps.name)
        if steps.end > steps.begin:
          _copy(pathlib.Path(folder.name), target)
      except Exception as error:  # any error: a missing trace must not end the run
        run.logger.say(f"the trace of steps {steps.begin + 1} to {steps.end} could not be written ({error})")
        return
    if steps.end > steps.begin:
      run.logger.say(f"trace of steps {steps.begin + 1} to {steps.end}{why and f' ({why})'}: {target}")


def _copy(folder: pathlib.Path, target: epath.Path) -> None:
  """Copies the files of this process, local or to a bucket."""
  for path in sorted(folder.rglob("*")):
    ending = next((ending for ending in ENDINGS if path.name.endswith(ending)), None)
    if ending is not None:
      content = path.read_bytes()
      name = f"process_{jax.process_index()}{ending}"
      logs.Log(target / name, keep=lambda _, content=content: content, content_type="application/octet-stream").close()


def begin(run: Run, number: str) -> Profile | None:
  """Traces the next steps of this process on request; returns the callback, None if the request cannot be met.

  Args:
    run: after a step.
    number: of steps, as a user wrote it; "" for 5.
  """
  number = number.strip() or str(_REQUESTED_STEPS)
  if not number.isascii() or not number.isdigit() or not 0 < int(number) <= _MOST_STEPS:
    run.logger.say(
      f"profile request: {number[:20]!r} is not a number of steps from 1 to {_MOST_STEPS:,}. Write, for example, 5."
    )
    return None
  if Profile._active:
    run.logger.say("profile request: another trace is running. Send the request again after that trace.")
    return None
  profile = Profile([TracedSteps(run.step, min(run.step + int(number), run.config.train.steps))], on_all=True)
  run.callbacks = [profile, *run.callbacks]  # a new list, because hooks are called while this one is iterated
  profile.on_start(run)
  return profile
