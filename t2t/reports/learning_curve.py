"""Scores of fine-tuning runs against the number of training examples: rows, intervals and a picture."""

from collections.abc import Iterable, Sequence
import dataclasses
import math
from typing import Any

from etils import epath

from t2t.reports import seed_scores
from t2t.training import loss_curve

ROWS, PICTURE = "curve.jsonl", "curve.png"


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
  parse = lambda row: Cell(int(row["examples"]), int(row["seed"]), str(row["metric"]), float(row["score"]), row["step"])
  return seed_scores.read_rows(path, parse, kind="learning curve")


def write(path: epath.Path, cells: Iterable[Cell]) -> None:
  """Writes one JSON line per cell, by number of examples and seed, atomically."""
  ordered = sorted(cells, key=lambda cell: (cell.examples, cell.seed))
  seed_scores.write_rows(path, map(dataclasses.asdict, ordered))


def of_run(workdir: epath.Path, examples: int, seed: int, *, metric: str, best: bool) -> Cell:
  """Returns the cell of a finished run; see `seed_scores.of_run`."""
  score = seed_scores.of_run(workdir, metric=metric, best=best)
  return Cell(examples, seed, score.metric, score.score, score.step)


def points(cells: Sequence[Cell]) -> list[Point]:
  """Returns the mean and the interval of each number of examples, in ascending order.

  In:  scores 60, 70 and 80 of 16 examples
  Out: Point(16, 3, 70.0, 24.84)
  """
  curve = []
  for examples in sorted({cell.examples for cell in cells}):
    scores = [cell.score for cell in cells if cell.examples == examples]
    curve.append(Point(examples, len(scores), *seed_scores.mean_and_margin(scores)))
  return curve


def table(cells: Sequence[Cell]) -> list[str]:
  """Returns the curve as lines of at most 80 columns."""
  metric = cells[0].metric if cells else "score"
  lines = [f"{'examples':>10}{'seeds':>7}{'mean':>11}   95 % interval   {metric}"[:80]]
  for point in points(cells):
    interval = seed_scores.interval_text(point.mean, point.margin)
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
  return seed_scores.png(figure)
