"""Where metrics go: a progress line on the terminal, metrics.jsonl, TensorBoard events, a loss curve as a picture."""

from collections.abc import Mapping
import io
import json
import sys
import textwrap
import time

from etils import epath
import numpy as np
import rich.console
import rich.progress


def duration(seconds: float) -> str:
  """Seconds as m:ss or h:mm:ss."""
  minutes, seconds = divmod(int(seconds + 0.5), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def short(number: float) -> str:
  """A count in at most five characters: 950, 12.3k, 4.56M."""
  for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
    if number >= 0.9995 * limit:  # what three digits round up to the next unit is shown in it
      return f"{number / limit:#.3g}".rstrip(".") + unit
  return f"{number:.0f}"


def wrapped(label: str, text: str, *, width: int = 80) -> str:
  """`text` behind a label, in lines of at most `width` characters."""
  indent = " " * 15
  return textwrap.fill(text, width, initial_indent=f"  {label:<13}", subsequent_indent=indent)


class ProgressLine:
  """Step, loss, tokens per second and time left: one line that changes on a terminal, a line now and then elsewhere."""

  def __init__(self, first_step: int, num_steps: int, *, every_seconds: float = 10.0):
    self._num_steps = num_steps
    self._every_seconds = every_seconds
    self._started = self._printed = time.monotonic()
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

  def update(self, step: int, *, loss: float, tokens_per_second: float | None, seconds_left: float | None) -> None:
    """Shows that `step` steps are done."""
    speed = "" if tokens_per_second is None else f"  {short(tokens_per_second)} tokens/s"
    left = "" if seconds_left is None else f"  {duration(seconds_left)} left"
    text = f"loss {loss:.3f}{speed}{left}"
    if self._progress is not None:
      self._progress.update(self._task, completed=step, text=text)
      return
    now = time.monotonic()
    if step in (self._first_step + 1, self._num_steps) or now - self._printed >= self._every_seconds:
      self._printed = now
      self.say(f"step {step}/{self._num_steps}  {text}")

  def say(self, text: str) -> None:
    """Prints a line of its own, above the one that changes."""
    if self._progress is not None:
      self._progress.console.print(text, highlight=False, markup=False)
    else:
      print(text, file=sys.stderr, flush=True)

  def close(self) -> None:
    """Leaves the line as it stands."""
    if self._progress is not None:
      self._progress.stop()


class MetricsFile:
  """metrics.jsonl: one JSON object a line, {"step": ..., "train/loss": ...}; a resumed run appends."""

  def __init__(self, path: epath.Path):
    self._path = path
    self._remote = "://" in str(path)
    # A bucket cannot append: there the file is written anew, with what it held.
    self._lines = path.read_text().splitlines() if self._remote and path.exists() else []
    self._pending: list[str] = []

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Adds a line; it reaches the disk with `flush`."""
    self._pending.append(json.dumps({"step": step, **values}))

  def flush(self) -> None:
    """Brings what was added to the disk."""
    if not self._pending:
      return
    if self._remote:
      self._lines += self._pending
      self._path.write_text("\n".join(self._lines) + "\n")
    else:
      with open(self._path, "a") as file:
        file.write("\n".join(self._pending) + "\n")
    self._pending = []


def read_metrics(path: epath.Path, name: str) -> dict[int, float]:
  """Step -> value of one metric in a metrics.jsonl; of a step that was done twice, the later."""
  values = {}
  for line in path.read_text().splitlines() if path.exists() else []:
    try:
      record = json.loads(line)
    except json.JSONDecodeError:
      continue  # a line that was being written when the run was killed
    if name in record:
      values[record["step"]] = record[name]
  return values


class Writer:
  """metrics.jsonl and TensorBoard events in one call; only the first host writes."""

  def __init__(self, workdir: epath.Path):
    # tensorboardX writes the same event files as TensorBoard's own writer, which would import TensorFlow.
    import tensorboardX

    self._file = MetricsFile(workdir / "metrics.jsonl")
    self._events = tensorboardX.SummaryWriter(str(workdir / "tensorboard"), flush_secs=30)
    self._flushed = time.monotonic()

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Records scalars under names such as "train/loss"."""
    self._file.write(step, values)
    for name, value in values.items():
      self._events.add_scalar(name, value, step)
    if time.monotonic() - self._flushed > 5.0:
      self.flush()

  def flush(self) -> None:
    """Brings everything to the disk."""
    self._file.flush()
    self._events.flush()
    self._flushed = time.monotonic()

  def close(self) -> None:
    """Flushes and closes."""
    self.flush()
    self._events.close()


def plot_loss(workdir: epath.Path, *, unigram_loss: float | None = None) -> epath.Path:
  """Draws training and held-out loss of `workdir`/metrics.jsonl; returns the PNG's path."""
  import matplotlib.figure
  import matplotlib.ticker

  train = read_metrics(workdir / "metrics.jsonl", "train/loss")
  held_out = read_metrics(workdir / "metrics.jsonl", "eval/loss")
  figure = matplotlib.figure.Figure(figsize=(7.2, 4.0), dpi=120, layout="constrained")
  axes = figure.subplots()
  if train:
    axes.plot(list(train), list(train.values()), color="#9bb8d3", linewidth=0.8, label="training, each step")
    axes.plot(list(train), _smooth(list(train.values())), color="#1f5fa8", linewidth=1.6, label="training, smoothed")
  if held_out:
    axes.plot(list(held_out), list(held_out.values()), "o-", color="#c8442e", markersize=4, label="held-out text")
  if unigram_loss is not None:
    axes.axhline(unigram_loss, color="#6b6b6b", linestyle="--", linewidth=1.0, label="unigram model, held-out text")
  axes.set_xlabel("step")
  axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
  axes.set_ylabel("loss (nats per target token)")
  axes.grid(alpha=0.25)
  axes.spines[["top", "right"]].set_visible(False)
  if train or held_out:
    axes.legend(frameon=False)
  content = io.BytesIO()
  figure.savefig(content, format="png")
  path = workdir / "loss.png"
  path.write_bytes(content.getvalue())
  return path


def _smooth(values: list[float]) -> np.ndarray:
  """A mean over the fiftieth of the run around each step, so that it lags behind neither fall nor rise."""
  window = np.ones(max(1, len(values) // 50))
  return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")
