"""Table and picture of early exit: metrics over the mean number of layers."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import json
from typing import Any

from etils import epath

from t2t.evaluation.exit_sweep import SweepPoint
from t2t.reports import seed_scores
from t2t.storage import gcs

ROWS, PICTURE = "exits.jsonl", "exits.png"
_NAMES = {"layer": "after a fixed layer", "entropy": "entropy", "patience": "patience", "majority": "majority class"}
# Each line is thinner than the one below it, so that equal lines stay visible.
_LOOKS: dict[str, dict[str, Any]] = {
  "layer": {"color": "#b8b8b8", "linewidth": 5.0, "marker": "o", "markersize": 11},
  "entropy": {"color": "#1f5fa8", "linewidth": 2.2, "marker": "s", "markersize": 6.5},
  "patience": {"color": "#e08a2e", "linewidth": 1.2, "marker": "^", "markersize": 3.5},
}
_IN_PERCENT = ("accuracy", "f1", "exact_match")
_LEAST_RANGE = 10.0  # percentage points of an axis: fewer make noise look like a difference
_COLUMNS = 4  # metrics of a table of 80 columns


def table(measured: Sequence[SweepPoint], titles: Mapping[str, str]) -> Iterator[str]:
  """Yields the points as lines, with a column for each of the first metrics.

  Args:
    measured: points of all tasks.
    titles: task -> heading; others have the name of the task.
  """
  for task in dict.fromkeys(point.task for point in measured):
    points = [point for point in measured if point.task == task]
    names = list(points[0].metrics)[:_COLUMNS]
    yield titles.get(task, task)
    yield f"{'rule':>19}{'value':>11}{'layers':>8}" + "".join(f"{name:>{_width(name)}}" for name in names)
    for point in points:
      has_value = point.rule != "majority"
      # The value is complete, so that it can be given to --exit_entropy.
      value, layers = (f"{point.value!r}", f"{point.layers:.2f}") if has_value else ("", "")
      metrics = "".join(f"{point.metrics[name]:>{_width(name)}.2f}" for name in names)
      yield f"{_NAMES[point.rule]:>19}{value:>11}{layers:>8}{metrics}"


def _width(name: str) -> int:
  return max(10, len(name) + 2)


def write(measured: Sequence[SweepPoint], folder: epath.Path, titles: Mapping[str, str]) -> None:
  """Writes the points as JSON lines and as a picture; see `table`."""
  gcs.write(folder / ROWS, "".join(json.dumps(dataclasses.asdict(point)) + "\n" for point in measured))
  (folder / PICTURE).write_bytes(draw(measured, titles))


def draw(measured: Sequence[SweepPoint], titles: Mapping[str, str]) -> bytes:
  """Returns a PNG of the first metric over the mean number of layers, with a panel for each task; see `table`."""
  import matplotlib.figure

  tasks = list(dict.fromkeys(point.task for point in measured))
  size = (max(6.4, 3.6 * len(tasks)), 4.0)
  figure = matplotlib.figure.Figure(figsize=size, dpi=120, layout="constrained")
  panels: Any = figure.subplots(1, len(tasks), squeeze=False)[0]
  for axes, task in zip(panels, tasks, strict=True):
    metric = next(iter(next(p.metrics for p in measured if p.task == task)))
    for rule, look in _LOOKS.items():
      line = sorted((p.layers, p.metrics[metric]) for p in measured if p.task == task and p.rule == rule)
      if line:
        axes.plot(*zip(*line, strict=True), label=_NAMES[rule], **look)
    for p in measured:
      if p.task == task and p.rule == "majority":
        axes.axhline(p.metrics[metric], color="#1b1f24", linewidth=1.0, linestyle=":", zorder=3, label=_NAMES[p.rule])
    if metric in _IN_PERCENT:
      low, high = axes.get_ylim()
      extra = max(0.0, _LEAST_RANGE - (high - low)) / 2
      axes.set_ylim(low - extra, high + extra)
    axes.set_xlabel("mean layers of a row")
    axes.set_ylabel(f"{metric} (%)" if metric in _IN_PERCENT else metric)
    axes.set_title(titles.get(task, task), fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
  return seed_scores.png(figure)
