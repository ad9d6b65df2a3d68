"""Learning curves: rows, intervals, the picture, and scores of runs."""

import io
import json
import math
import os

from etils import epath
from matplotlib import image
import numpy as np
import pytest
from scipy import stats

from t2t import UserError
from t2t.reports import learning_curve
from t2t.reports.learning_curve import Cell, Point


def cells_of(**scores):
  numbers = {int(name.removeprefix("n")): values for name, values in scores.items()}
  return [
    Cell(examples, seed, "rte/accuracy", score, 40)
    for examples, values in numbers.items()
    for seed, score in enumerate(values)
  ]


def test_the_interval_is_students():
  """It equals scipy.stats.t.interval; one seed has none. The docstring's numbers."""
  random = np.random.default_rng(0).normal(70, 5, 6).tolist()
  first, second, third = learning_curve.points(cells_of(n16=[60.0, 70.0, 80.0], n64=random, n256=[81.0]))
  assert (first.examples, first.seeds, first.mean) == (16, 3, 70.0)
  assert first.margin == pytest.approx(24.84, abs=0.005)
  low, high = stats.t.interval(0.95, 5, loc=np.mean(random), scale=stats.sem(random))
  assert (second.mean - second.margin, second.mean + second.margin) == pytest.approx((low, high))
  assert third.seeds == 1 and math.isnan(third.margin)
  assert isinstance(first, Point)


def test_intervals_contain_the_mean_as_often_as_said():
  """In 95 % of draws, within three standard deviations of this share."""
  random, draws = np.random.default_rng(1), 3_000
  contained = 0
  for scores in random.normal(70, 5, (draws, 4)):
    (point,) = learning_curve.points(cells_of(n8=scores.tolist()))
    contained += abs(point.mean - 70) <= point.margin
  assert abs(contained / draws - 0.95) < 3 * math.sqrt(0.95 * 0.05 / draws)


def test_rows_are_read_as_written(tmp_path):
  """Ordered by number and seed; a broken line names file and line."""
  path, cells = epath.Path(tmp_path / "curve.jsonl"), cells_of(n64=[75.0], n16=[60.0, 61.5])
  assert learning_curve.read(path) == []
  learning_curve.write(path, cells)
  assert learning_curve.read(path) == [*cells[1:], cells[0]]
  assert json.loads(path.read_text().splitlines()[0]) == {
    "examples": 16,
    "seed": 0,
    "metric": "rte/accuracy",
    "score": 60.0,
    "step": 40,
  }
  path.write_text(path.read_text() + '{"examples": 16}\n')
  with pytest.raises(UserError, match=r"curve.jsonl:4: .* is no row of a learning curve"):
    learning_curve.read(path)


def test_a_failed_write_leaves_the_earlier_rows(tmp_path, monkeypatch):
  """Runs are not repeated after a failure in the middle of a write."""
  path, cells = epath.Path(tmp_path / "curve.jsonl"), cells_of(n64=[75.0], n16=[60.0, 61.5])
  learning_curve.write(path, cells)

  def fails(*arguments, **options):
    raise OSError(28, "No space left on device")

  with monkeypatch.context() as patch:
    patch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="No space"):
      learning_curve.write(path, cells[:1])
  assert len(learning_curve.read(path)) == 3


def metrics(tmp_path, *rows):
  (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  return epath.Path(tmp_path)


ROWS = (
  {
    "step": 10,
    "eval/loss": 0.5,
    "eval/bits_per_byte": 1.1,
    "eval/a/score": 60.0,
    "eval/a/accuracy": 62.0,
    "eval/b/score": 40.0,
  },
  {
    "step": 20,
    "eval/loss": 0.7,
    "eval/bits_per_byte": 1.3,
    "eval/a/score": 58.0,
    "eval/a/accuracy": 63.0,
    "eval/b/score": 50.0,
  },
  {
    "step": 30,
    "eval/loss": 0.6,
    "eval/bits_per_byte": 1.2,
    "eval/a/score": 50.0,
    "eval/a/accuracy": 61.0,
    "eval/b/score": 45.0,
  },
)


@pytest.mark.parametrize(
  ("metric", "best", "expected"),
  [
    ("", False, ("score", 47.5, 30)),
    ("", True, ("score", 54.0, 20)),
    ("a/accuracy", False, ("a/accuracy", 61.0, 30)),
    ("a/accuracy", True, ("a/accuracy", 63.0, 20)),
    ("loss", True, ("loss", 0.5, 10)),
    ("bits_per_byte", True, ("bits_per_byte", 1.1, 10)),
  ],
)
def test_the_score_of_a_run(metric, best, expected, tmp_path):
  """The last evaluation or the best, where a loss is best at its lowest; by default the mean over tasks."""
  found = learning_curve.of_run(metrics(tmp_path, *ROWS), 16, 2, metric=metric, best=best)
  assert (found.metric, found.score, found.step) == expected and (found.examples, found.seed) == (16, 2)


def test_runs_of_one_task_and_of_none(tmp_path):
  """The task's own score, or the held-out loss; an unknown metric is an error with the nearest."""
  one = [{name: x for name, x in row.items() if "/b/" not in name} for row in ROWS]
  assert learning_curve.of_run(metrics(tmp_path, *one), 8, 0, metric="", best=False).metric == "a/score"
  none = [{name: row[name] for name in ("step", "eval/loss")} for row in ROWS]
  assert learning_curve.of_run(metrics(tmp_path, *none), 8, 0, metric="", best=False).metric == "loss"
  with pytest.raises(UserError, match="--metric a/acuracy: .*did you mean a/accuracy.* Give one of a/accuracy, a/"):
    learning_curve.of_run(metrics(tmp_path, *ROWS), 8, 0, metric="a/acuracy", best=False)


def test_the_table_fits_eighty_columns():
  lines = learning_curve.table(cells_of(n16=[60.0, 70.0, 80.0], n1048576=[91.25]))
  assert all(len(line) <= 80 for line in lines) and "rte/accuracy" in lines[0]
  assert lines[1].split() == ["16", "3", "70", "45.16", "to", "94.84"]
  assert lines[2].split() == ["1,048,576", "1", "91.25", "one", "seed:", "none"]


@pytest.mark.slow
def test_the_picture_is_a_png_of_its_cells():
  """Another score changes the picture; the same cells do not."""
  cells = cells_of(n16=[60.0, 70.0, 80.0], n64=[75.0, 77.0, 76.0], n256=[81.0])
  picture = learning_curve.draw(cells, title="rte")
  assert image.imread(io.BytesIO(picture)).shape == (480, 864, 4)
  assert picture == learning_curve.draw(cells, title="rte") != learning_curve.draw(cells[1:], title="rte")
