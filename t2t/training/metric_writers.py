"""Writes metrics: a progress line on the terminal, metrics.jsonl and TensorBoard events."""

from collections.abc import Mapping, Sequence
import concurrent.futures
import contextlib
import dataclasses
import os
import socket
import sys
import textwrap
import time
from typing import Any

from etils import epath
import rich.console
import rich.progress

from t2t import UserError
from t2t.runtime import amounts, console
from t2t.storage import gcs, logs, tfrecord
from t2t.training import jsonl_log

METRICS, SAMPLES = "metrics.jsonl", "samples.jsonl"  # file names in a workdir
EMPTY = "(empty)"  # placeholder for a blank text


def wrapped(label: str, text: str, *, width: int = 80) -> str:
  """Returns `text`, or a placeholder if it is blank, after a label and in lines of at most `width` characters."""
  indent = " " * 15
  text = text if text.strip() else EMPTY
  return textwrap.fill(text, width, initial_indent=f"  {label:<13}", subsequent_indent=indent)


@dataclasses.dataclass(frozen=True)
class Histogram:
  """Counts of an array's values in bins of equal width.

  Attributes:
    limits: of the bins, one more than counts; the first is the minimum, the last the maximum.
    counts: values in each bin.
    sum, sum_squares: of all values.
  """

  limits: list[float]
  counts: list[float]
  sum: float
  sum_squares: float


class ProgressLine:
  """Progress line with step, loss, tokens per second and time left; without a terminal, one line now and then."""

  def __init__(self, first_step: int, num_steps: int, *, every_seconds: float = 10.0):
    self._num_steps = num_steps
    self._every_seconds = every_seconds
    self._printed = time.monotonic()
    self._first_step = first_step
    self._console = rich.console.Console(stderr=True)
    self._progress = None
    if self._console.is_terminal:
      self._progress = rich.progress.Progress(
        rich.progress.TextColumn("step {task.completed}/{task.total}"),
        rich.progress.BarColumn(bar_width=None),
        rich.progress.TextColumn("{task.fields[text]}"),
        console=self._console,
      )
      self._progress.start()
      self._task = self._progress.add_task("", total=num_steps, completed=first_step, text="compiling")
    else:
      console.tell("compiling the first step")

  def update(self, step: int, *, loss: float, tokens_per_second: float | None, seconds_left: float | None) -> None:
    """Shows that `step` steps are done."""
    speed = "" if tokens_per_second is None else f"  {amounts.compact_count(tokens_per_second)} tokens/s"
    left = "" if seconds_left is None else f"  {amounts.duration(seconds_left)} left"
    text = f"loss {loss:.3f}{speed}{left}"
    if self._progress is not None:
      with console.unheeded():
        self._progress.update(self._task, completed=step, text=text)
      return
    now = time.monotonic()
    if step in (self._first_step + 1, self._num_steps) or now - self._printed >= self._every_seconds:
      self._printed = now
      self.say(f"step {step}/{self._num_steps}  {text}")

  def say(self, text: str) -> None:
    """Prints a separate line above the progress line."""
    if self._progress is None:
      console.tell(text)
      return
    with console.unheeded():
      self._progress.console.print(text, highlight=False, markup=False)

  def close(self) -> None:
    """Stops updating the line."""
    if self._progress is not None:
      with console.unheeded():
        self._progress.stop()


def read_metrics(path: epath.Path, name: str) -> dict[int, float]:
  """Returns step -> value of one metric in a metrics.jsonl; invalid lines are skipped."""
  rows: Any = jsonl_log.rows(logs.read(path), jsonl_log.is_metrics)
  return {row["step"]: row[name] for _, row in rows if name in row}


def read_all_metrics(path: epath.Path) -> dict[str, dict[int, float]]:
  """Returns `parse_metrics` of a file; the file may be missing."""
  return parse_metrics(logs.read(path))


def parse_metrics(content: bytes) -> dict[str, dict[int, float]]:
  """Returns name -> step -> value of a metrics.jsonl; invalid lines are skipped."""
  by_name: dict[str, dict[int, float]] = {}
  rows: Any = jsonl_log.rows(content, jsonl_log.is_metrics)
  for _, row in rows:
    for name in (name for name, value in row.items() if name != "step" and _fits(value)):
      by_name.setdefault(name, {})[row["step"]] = row[name]
  return {name: dict(sorted(values.items())) for name, values in sorted(by_name.items())}


def _fits(value: Any) -> bool:
  """Returns True if a JSON number fits 64 bits; JSON integers are unbounded."""
  return type(value) is float or abs(value) < 2**63


def damaged_lines(content: bytes) -> int:
  """Returns the number of invalid lines in a metrics.jsonl."""
  return len(jsonl_log.damaged(content, jsonl_log.is_metrics))


def read_samples(path: epath.Path) -> dict[int, list[list[tuple[str, str]]]]:
  """Returns step -> samples of a samples.jsonl, each a list of (label, text) lines; the file may be missing."""
  sample_rows: Any = jsonl_log.rows(logs.read(path), jsonl_log.is_samples)
  return {row["step"]: [[(label, text) for label, text in lines] for lines in row["samples"]] for _, row in sample_rows}


_BINARY = "application/octet-stream"
_STRING = 7  # in TensorFlow's DataType


# File names in a checkpoint for metrics that could not be written before it was saved.
UNWRITTEN = ("unwritten-metrics.jsonl", "unwritten-events", "unwritten-samples.jsonl")
_UNWRITTEN_ROWS, _UNWRITTEN_EVENTS, _UNWRITTEN_SAMPLES = UNWRITTEN


class MetricWriter:
  """Writes metrics.jsonl, samples.jsonl and TensorBoard events in the background, on the first host.

  A line of metrics.jsonl is a JSON object, {"step": 1, "train/loss": 2.5, ...}; for samples.jsonl see `jsonl_log`. New
  rows are appended every few seconds, also in a bucket (see `gcs.Object`), so the files can be read during the run.
  Rows that cannot be written wait in memory, and training continues.

  Each step appears once, even after a kill. `flush` is called before a checkpoint is saved, so all steps up to it are
  on the disk or, if they could not be written, in the checkpoint. A run that resumes from it removes later rows.
  """

  def __init__(self, workdir: epath.Path, *, start: int = 0, unwritten: Mapping[str, bytes] | None = None):
    """Opens the files of a workdir.

    Args:
      workdir: local or gs://.
      start: the step that training resumes from; later rows are removed.
      unwritten: result of `flush` before that step was saved; rows missing in the files are written now.

    Raises:
      UserError: the files cannot be read or truncated.
    """
    # TensorBoard's record format without its own writer, which would import TensorFlow.
    from tensorboardX.proto import event_pb2

    messages: Any = event_pb2  # protobuf fills this module on import
    self._event = messages.Event
    self._every_seconds = 30.0 if gcs.is_remote(workdir) else 5.0
    self._start = start
    # Steps of events in the files, with the names of their values.
    self._recorded: set[tuple[int, frozenset[str]]] = set()
    folder = self._folder = workdir / "tensorboard"
    try:
      rows = lambda name, fits, waits: jsonl_log.RowFile(
        workdir / name, fits, start=start, unwritten=(unwritten or {}).get(waits, b"")
      )
      self._rows = rows(METRICS, jsonl_log.is_metrics, _UNWRITTEN_ROWS)
      self._samples = rows(SAMPLES, jsonl_log.is_samples, _UNWRITTEN_SAMPLES)
      for name in gcs.names(folder, where="--workdir"):
        if "tfevents" in name and not name.endswith(".part"):
          # Closed at once, because a killed process has left a temporary object in a bucket.
          logs.Log(folder / name, keep=self._kept_events, content_type=_BINARY).close()
      # The process id distinguishes processes that start in the same second.
      name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
      self._events = logs.Log(folder / name, keep=self._kept_events, content_type=_BINARY)
    except OSError as error:
      raise UserError(
        f"--workdir {workdir}: metrics files cannot be read or truncated ({error}). Check the permissions of the "
        "files, or give another --workdir."
      ) from error
    self._events.add(
      tfrecord.frame(self._event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
    )
    self._add_unwritten((unwritten or {}).get(_UNWRITTEN_EVENTS, b""))
    self._logs = dict(zip(UNWRITTEN, (self._rows.log, self._events, self._samples.log), strict=True))
    self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="metrics")
    self._bringing = self._thread.submit(lambda: None)
    self._brought = time.monotonic()
    self._failing: set[epath.Path] = set()

  def _kept_events(self, content: bytes) -> bytes:
    whole_records, damaged = tfrecord.salvage(content)
    kept_records = []
    for record in whole_records:
      try:
        event = self._event.FromString(record)
      except Exception:  # protobuf's own errors: a whole record that is not an event
        damaged.append(tfrecord.frame(record))
        continue
      if event.step <= self._start:
        kept_records.append(tfrecord.frame(record))
        self._recorded.add((event.step, frozenset(value.tag for value in event.summary.value)))
    if damaged:
      beside = jsonl_log.keep_beside(self._folder.parent / "events", "damaged", damaged, end=b"")
      console.tell(f"{self._folder}: {len(damaged)} damaged records were removed; they are kept in {beside}")
    return b"".join(kept_records)

  def _add_unwritten(self, content: bytes) -> None:
    # It may start within a record that was partly written.
    for record in tfrecord.salvage(content)[0]:
      event = self._event.FromString(record)
      names = frozenset(value.tag for value in event.summary.value)
      if names and (event.step, names) not in self._recorded:
        self._events.add(tfrecord.frame(record))

  def write(self, step: int, values: Mapping[str, float]) -> bool:
    """Records scalars with names such as "train/loss"; values of the resumed step that the file already has stay.

    Returns:
      Whether they are new.
    """
    if not self._rows.add({"step": step, **values}):
      return False
    event = self._event(wall_time=time.time(), step=step)
    for name, value in values.items():
      event.summary.value.add(tag=name, simple_value=value)
    self._record(event)
    return True

  def samples(self, step: int, samples: Sequence[Sequence[tuple[str, str]]]) -> None:
    """Records predictions on held-out text, each a list of (label, text) lines."""
    if not samples or not self._samples.add({"step": step, "samples": samples}):
      return
    event = self._event(wall_time=time.time(), step=step)
    for number, lines in enumerate(samples, start=1):
      value = event.summary.value.add(tag=f"examples/{number}")
      value.metadata.plugin_data.plugin_name = "text"
      # Markdown keeps lines with four leading spaces verbatim.
      markdown = "\n".join(f"    {label:<12}{' '.join(text.split())}" for label, text in lines)
      value.tensor.dtype = _STRING
      value.tensor.tensor_shape.dim.add(size=1)
      value.tensor.string_val.append(markdown.encode())
    self._record(event)

  def histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
    """Records histograms, for TensorBoard only."""
    event = self._event(wall_time=time.time(), step=step)
    for name, histogram in histograms.items():
      value = event.summary.value.add(tag=name).histo
      value.min, value.max, value.num = histogram.limits[0], histogram.limits[-1], sum(histogram.counts)
      value.sum, value.sum_squares = histogram.sum, histogram.sum_squares
      value.bucket_limit.extend(histogram.limits[1:])
      value.bucket.extend(histogram.counts)
    if histograms:
      self._record(event)

  def _record(self, event: Any) -> None:
    self._events.add(tfrecord.frame(event.SerializeToString()))
    if time.monotonic() - self._brought > self._every_seconds and self._bringing.done():
      self._brought = time.monotonic()
      self._bringing = self._thread.submit(self._bring)

  def _bring(self) -> None:
    for log in self._logs.values():
      try:
        log.bring()
        self._failing.discard(log.path)
      except Exception as error:  # any error: the rows are kept, and training continues
        if log.path not in self._failing:
          print(
            f"{log.path}: cannot be written ({error}); missing rows are kept in memory and written later",
            file=sys.stderr,
          )
        self._failing.add(log.path)

  def flush(self) -> dict[str, bytes]:
    """Writes everything; returns the bytes that cannot be written now, by name, for the checkpoint."""
    self._thread.submit(self._bring).result()
    waiting = {name: log.waiting for name, log in self._logs.items()}
    return {name: content for name, content in waiting.items() if content}

  def close(self) -> None:
    """Flushes and closes the files."""
    self.flush()
    self._thread.shutdown()
    for log in self._logs.values():
      if log.waiting:
        print(f"{log.path}: could not be written completely; {len(log.waiting)} bytes are lost", file=sys.stderr)
      with contextlib.suppress(OSError):
        log.close()
