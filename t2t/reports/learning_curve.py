"""Scores of fine-tuning runs against the number of training examples: rows, intervals and a picture."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import io
import json
import math
from typing import Any

from etils import epath
import numpy as np

from t2t import UserError, did_you_mean
from t2t.storage import encoding, logs
from t2t.training import loss_curve, metric_writers

ROWS, PICTURE = "curve.jsonl", "curve.png"
_PROBABILITY = 0.95
_LOWER_IS_BETTER = ("loss", "perplexity", "bits_per_byte")


@dataclasses.dataclass(frozen=True)
class Cell:
  """Score of a finished run; one row of curve.jsonl.

  examples: training examples of each task.
  seed: seed of the run and of the choice of examples.
  metric: name of the score.
  score: value at `step`.
  step: evaluated step.
  """

  examples: int
  seed: int
  metric: str
  score: float
  step: int


@dataclasses.dataclass(frozen=True)
class Point:
  """Mean over the seeds of one number of examples.

  examples, seeds: numbers of both.
  mean: of the scores.
  margin: half of the 95 % interval of the mean, by Student's t; NaN for one seed.
  """

  examples: int
  seeds: int
  mean: float
  margin: float


def read(path: epath.Path) -> list[Cell]:
  """Returns the finished cells of curve.jsonl; none if the file does not exist.

  Raises:
    UserError: a line is no cell.
  """
  if not path.exists():
    return []
  cells = []
  for number, line in enumerate(encoding.lines(path.read_text()), start=1):
    try:
      row = json.loads(line)
      cells.append(Cell(int(row["examples"]), int(row["seed"]), str(row["metric"]), float(row["score"]), row["step"]))
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(f"{path}:{number}: {line[:60]!r} is no row of a learning curve. Remove this line.") from error
  return cells


def write(path: epath.Path, cells: Iterable[Cell]) -> None:
  """Writes one JSON line per cell, by number of examples and seed, atomically."""
  ordered = sorted(cells, key=lambda cell: (cell.examples, cell.seed))
  logs.write(path, "".join(json.dumps(dataclasses.asdict(cell)) + "\n" for cell in ordered).encode())


def of_run(workdir: epath.Path, examples: int, seed: int, *, metric: str, best: bool) -> Cell:
  """Returns the cell of a finished run.

  Args:
    workdir: of the run.
    examples, seed: see `Cell`.
    metric: name after "eval/" in metrics.jsonl; "": the mean of all tasks' scores, or the held-out loss.
    best: whether to take the best evaluation instead of the last one.

  Raises:
    UserError: no evaluation has the metric.
  """
  rows = metric_writers.read_all_metrics(workdir / "metrics.jsonl")
  measured = {name.removeprefix("eval/"): values for name, values in rows.items() if name.startswith("eval/")}
  scores = [name for name in sorted(measured) if name.endswith("/score")]
  name = metric or (scores[0] if len(scores) == 1 else "score" if scores else "loss")
  if metric and metric not in measured:
    raise UserError(
      f"--metric {metric}: the runs have no such metric{did_you_mean(metric, measured) or '.'} Give one of "
      f"{', '.join(sorted(measured))}."
    )
  values = _mean([measured[task] for task in scores]) if name == "score" else dict(measured[name])
  if not values:
    raise UserError(f"{workdir / 'metrics.jsonl'}: no evaluation has the metric {name}. Give --metric NAME.")
  lower_is_better = name.split("/")[-1] in _LOWER_IS_BETTER
  key = (lambda step: -values[step]) if lower_is_better else values.__getitem__
  step = max(values, key=key) if best else max(values)
  return Cell(examples, seed, name, float(values[step]), int(step))


def _mean(of_tasks: Sequence[Mapping[int, float]]) -> dict[int, float]:
  """Returns the mean over tasks at the steps that all of them have."""
  steps = set.intersection(*map(set, of_tasks))
  return {step: math.fsum(values[step] for values in of_tasks) / len(of_tasks) for step in steps}


def points(cells: Sequence[Cell]) -> list[Point]:
  """Returns the mean and the interval of each number of examples, in ascending order.

  In:  scores 60, 70 and 80 of 16 examples
  Out: Point(16, 3, 70.0, 24.84)
  """
  from scipy import special

  curve = []
  for examples in sorted({cell.examples for cell in cells}):
    scores = np.array([cell.score for cell in cells if cell.examples == examples])
    number = len(scores)
    quantile = float(special.stdtrit(number - 1, (1 + _PROBABILITY) / 2)) if number > 1 else math.nan
    margin = quantile * float(np.std(scores, ddof=1)) / math.sqrt(number) if number > 1 else math.nan
    curve.append(Point(examples, number, float(np.mean(scores)), margin))
  return curve


def table(cells: Sequence[Cell]) -> list[str]:
  """Returns the curve as lines of at most 80 columns."""
  metric = cells[0].metric if cells else "score"
  lines = [f"{'examples':>10}{'seeds':>7}{'mean':>11}   95 % interval   {metric}"[:80]]
  for point in points(cells):
    low, high = point.mean - point.margin, point.mean + point.margin
    interval = "one seed: none" if math.isnan(point.margin) else f"{low:.4g} to {high:.4g}"
    lines.append(f"{point.examples:>10,}{point.seeds:>7}{point.mean:>11.4g}   {interval}")
  return lines


def draw(cells: Sequence[Cell], *, title: str = "") -> bytes:
  """Returns a PNG with the mean of each number of examples, its 95 % interval, and a mark for each run."""
  import matplotlib.figure
  import matplotlib.ticker

  curve = points(cells)
  figure = matplotlib.figure.Figure(figsize=(7.2, 4.0), dpi=120, layout="constrained")
  axes: Any = figure.subplots()
  axes.set_xscale("log", base=2)
  numbers = [point.examples for point in curve]
  # A number with one seed has a mean without an interval.
  margins = [0.0 if math.isnan(point.margin) else point.margin for point in curve]
  runs = [(cell.examples, cell.score) for cell in cells]
  axes.plot(*zip(*runs, strict=True), linestyle="", marker="o", markersize=4, color=loss_curve.EACH, label="each run")
  axes.errorbar(
    numbers,
    [point.mean for point in curve],
    yerr=margins,
    marker="o",
    capsize=4,
    linewidth=1.6,
    color="#1f5fa8",
    label="mean, 95 % interval",
  )
  axes.xaxis.set_major_locator(matplotlib.ticker.FixedLocator(numbers))
  axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:,.0f}"))
  axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
  axes.margins(x=0.06)
  axes.set_xlabel("training examples")
  axes.set_ylabel(cells[0].metric)
  axes.set_title(title, fontsize=10)
  axes.grid(alpha=0.25)
  axes.legend(frameon=False)
  content = io.BytesIO()
  figure.savefig(content, format="png")
  return content.getvalue()
