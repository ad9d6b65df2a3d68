"""Draws the loss curve of a run with matplotlib, for loss.png and reports."""

from collections.abc import Callable, Mapping, Sequence
import io
import itertools
import math
from typing import TYPE_CHECKING

from etils import epath
import numpy as np

from t2t.configuration.stages import Stage
from t2t.losses import Baseline
from t2t.training import metric_writers

if TYPE_CHECKING:
  from matplotlib.axes import Axes

EACH, TRAINING, HELD_OUT, QUIET = "#9bb8d3", "#1f5fa8", "#c8442e", "#6b6b6b"  # colours

Thin = Callable[[Sequence[float], Sequence[float]], tuple[Sequence[float], Sequence[float]]]


def draw(
  axes: "Axes",
  train: Mapping[int, float],
  held_out: Mapping[int, float],
  *,
  baselines: Sequence[Baseline] = (),
  unit: str = "nats per target token",
  run: Sequence[Stage] = (),
  thin: Thin = lambda steps, values: (steps, values),
) -> None:
  """Draws training and held-out loss over steps; the caller adds the legend.

  Args:
    axes: matplotlib's.
    train, held_out: step -> loss.
    baselines: losses of models that have learned nothing.
    unit: of the loss.
    run: its stages; if there are several, vertical lines mark their ends.
    thin: reduces the points of a long curve.
  """
  import matplotlib.ticker

  if train:
    steps, values = list(train), list(train.values())
    label = f"training, {logged_steps(steps)}"
    if _window(values) > 1:
      axes.plot(*thin(steps, values), color=EACH, linewidth=0.8, label=label)
      axes.plot(*thin(steps, smooth(values).tolist()), color=TRAINING, linewidth=1.6, label="training, smoothed")
    else:  # both lines would be the same
      marker = "" if len(values) > 1 else "o"
      axes.plot(*thin(steps, values), color=TRAINING, linewidth=1.6, marker=marker, markersize=4, label=label)
  # Each stage has its own held-out text, so no line joins two stages.
  # infinity: an earlier start may have trained beyond the last stage
  ends = [*(stage.end for stage in run[:-1]), math.inf]
  parts = [{step: x for step, x in held_out.items() if a < step <= b} for a, b in itertools.pairwise([-1, *ends])]
  for number, part in enumerate(filter(None, parts)):
    label = None if number else "held-out text"
    axes.plot(*thin(list(part), list(part.values())), "o-", color=HELD_OUT, markersize=4, label=label)
  for baseline in baselines:
    axes.axhline(baseline.loss, color=QUIET, linestyle="--", linewidth=1.0, label=f"{baseline.name}, held-out text")
  mark_stages(axes, run, max([0, *train, *held_out]))
  axes.set_xlabel("step")
  axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
  axes.set_ylabel(f"loss ({unit.partition(',')[0]})")
  frame(axes)


def logged_steps(steps: Sequence[int]) -> str:
  """Returns which steps are logged, in words.

  In:  10, 20, 30, 36
  Out: "every 10 steps"
  """
  gaps = np.diff(steps).tolist()
  regular = set(gaps[:-1] or gaps)  # the last step of a run is always logged
  if len(regular) != 1:
    return "logged steps" if regular else "one step"
  (gap,) = regular
  return "each step" if gap == 1 else f"every {gap} steps"


def mark_stages(axes: "Axes", run: Sequence[Stage], last: float) -> None:
  """Draws a line at the end of each stage, with the stages' names above.

  Args:
    axes: matplotlib's, over steps.
    run: its stages.
    last: last step reached.
  """
  for stage in (stage for stage in run if len(run) > 1 and stage.begin < last):
    axes.set_xlim(left=0)
    if stage.begin:
      axes.axvline(stage.begin + 0.5, color=QUIET, linestyle=":", linewidth=1.0)
    middle = (stage.begin + min(stage.end, last)) / 2
    axes.annotate(stage.name, (middle, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom")


def frame(axes: "Axes") -> None:
  """Adds a faint grid, and hides the top and right spines."""
  axes.grid(alpha=0.25)
  axes.spines[["top", "right"]].set_visible(False)


def _window(values: Sequence[float]) -> int:
  return max(1, len(values) // 50)


def smooth(values: Sequence[float]) -> np.ndarray:
  """Returns the mean over a centered window of 2 % of the run, so that the smoothed curve does not lag."""
  window = np.ones(_window(values))
  return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")


def save(
  workdir: epath.Path,
  *,
  baselines: Sequence[Baseline] = (),
  unit: str = "nats per target token",
  run: Sequence[Stage] = (),
) -> epath.Path:
  """Draws training and held-out loss from `workdir`/metrics.jsonl; returns the path of the PNG.

  Args:
    workdir: of the run.
    baselines: losses of models that have learned nothing.
    unit: of the loss.
    run: its stages; if there are several, vertical lines mark their ends.
  """
  import matplotlib.figure

  metrics = metric_writers.read_all_metrics(workdir / "metrics.jsonl")
  train, held_out = metrics.get("train/loss", {}), metrics.get("eval/loss", {})
  figure = matplotlib.figure.Figure(figsize=(7.2, 4.0), dpi=120, layout="constrained")
  axes = figure.subplots()
  draw(axes, train, held_out, baselines=baselines, unit=unit, run=run)
  if train or held_out:
    axes.legend(frameon=False)
  content = io.BytesIO()
  figure.savefig(content, format="png")
  path = workdir / "loss.png"
  path.write_bytes(content.getvalue())
  return path
