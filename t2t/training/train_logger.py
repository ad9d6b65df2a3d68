"""Terminal output and metric files of a run: progress line, metrics.jsonl, TensorBoard, samples."""

from collections.abc import Callable, Mapping, Sequence
import sys

from etils import epath
import jax

from t2t.runtime import console
from t2t.training import metric_writers
from t2t.training.metric_writers import Histogram


class TrainLogger:
  """Writes metrics to the terminal and the files of a workdir, on the first process.

  Args:
    workdir: where metrics are written.
    num_steps: of the run.
    start: step that training resumes from.
    unwritten: see `metric_writers.MetricWriter`.

  Attributes:
    on_row: called with the step and values of each row that was written.
  """

  def __init__(self, workdir: epath.Path, *, num_steps: int, start: int, unwritten: Mapping[str, bytes]):
    self._workdir, self._num_steps = workdir, num_steps
    self._writer = self._line = None
    self.on_row: Callable[[int, Mapping[str, float]], None] = lambda step, values: None
    if jax.process_index() == 0:
      self._writer = metric_writers.MetricWriter(workdir, start=start, unwritten=unwritten)
      self._line = metric_writers.ProgressLine(start, num_steps)

  @property
  def is_first(self) -> bool:
    return self._writer is not None

  def say(self, text: str) -> None:
    """Prints a line above the progress line."""
    if self._line is not None:
      self._line.say(text)

  def progress(
    self, step: int, *, loss: float, tokens_per_second: float | None, steps_per_second: float | None
  ) -> None:
    """Updates the progress line."""
    if self._line is not None:
      left = None if steps_per_second is None else (self._num_steps - step) / steps_per_second
      self._line.update(step, loss=loss, tokens_per_second=tokens_per_second, seconds_left=left)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Writes a row of metrics; a row that the file already has, from before a resume, is kept."""
    if self._writer is not None and self._writer.write(step, values):
      self.on_row(step, values)

  def samples(self, step: int, shown: Sequence[Sequence[tuple[str, str]]]) -> None:
    """Writes predictions on held-out text."""
    if self._writer is not None:
      self._writer.samples(step, shown)

  def histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
    """Writes histograms of parameters and updates to TensorBoard."""
    if self._writer is not None:
      self._writer.histograms(step, histograms)

  def truncate_to(self, start: int, saved: Mapping[str, bytes]) -> None:
    """Removes rows after a step.

    Args:
      start: the step.
      saved: files of its checkpoint.
    """
    if self._writer is not None:
      self._writer.close()
      self._writer = metric_writers.MetricWriter(self._workdir, start=start, unwritten=saved)

  def flush(self) -> dict[str, bytes]:
    """Writes everything; returns the bytes to save in a checkpoint because they could not be written; see
    `MetricWriter.flush`.
    """
    return {} if self._writer is None else self._writer.flush()

  def end(self) -> None:
    """Writes everything and ends the progress line."""
    self.flush()
    if self._line is not None:
      self._line.close()

  def stopped(self, step: int) -> None:
    """Ends the progress line of a run that a signal stopped."""
    self.end()
    if self._line is not None:
      console.tell(
        f"stopped after step {step} of {self._num_steps}, saved; run the same command again to resume",
        file=sys.stdout,
      )

  def close(self) -> None:
    """Closes the files."""
    if self._line is not None:
      self._line.close()
      assert self._writer is not None
      self._writer.close()
