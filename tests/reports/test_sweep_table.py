"""Results of a sweep: rows, means of points, the best point, and the table."""

import json
import math

from etils import epath
import pytest

from t2t import UserError
from t2t.reports import seed_scores, sweep_table
from t2t.reports.sweep_table import SweepRow


def rows_of(scores, **changes):
  """Returns rows of key a.rate; `scores` has a list for each value, NaN for a diverged run."""
  status = lambda score: "diverged" if math.isnan(score) else "finished"
  made = [
    SweepRow(f"a.rate={value}", {"a.rate": value}, seed, status(score), "loss", score, 8)
    for value, listed in scores.items()
    for seed, score in enumerate(listed)
  ]
  return [SweepRow(**vars(row) | changes) for row in made]


def test_rows_are_read_as_written(tmp_path):
  """A score that is not finite is null; a broken line names file and line."""
  path, rows = epath.Path(tmp_path / "sweep.jsonl"), rows_of({0.1: [1.5, math.nan], 2: [3.0]})
  assert sweep_table.read(path) == []
  sweep_table.write(path, rows)
  assert str(sweep_table.read(path)) == str(rows)
  assert json.loads(path.read_text().splitlines()[1])["score"] is None
  path.write_text(path.read_text() + '{"point": "x"}\n')
  with pytest.raises(UserError, match=r"sweep.jsonl:4: .* is no row of a sweep"):
    sweep_table.read(path)


@pytest.mark.parametrize(("lower", "best"), [(True, 2), (False, 4)])
def test_the_best_point(lower, best):
  """The first of equal means; never one that diverged or was ended by the halving."""
  rows = rows_of({1: [math.nan, -9.0, 99.0], 2: [1.0, 3.0], 3: [2.0, 2.0], 4: [5.0, 6.0], 5: [6.0, 5.0]})
  rows += rows_of({6: [-99.0], 7: [99.0]}, status="halved")
  point = sweep_table.best_of(sweep_table.summaries(rows), lower_is_better=lower)
  assert point is not None and point.values == {"a.rate": best}
  assert sweep_table.best_of(sweep_table.summaries(rows[:3]), lower_is_better=lower) is None


def test_the_table():
  """Mean, interval and mark of each point; a diverged seed makes the whole point worst."""
  rows = rows_of({0.001: [60.0, 70.0, 80.0], 0.01: [math.nan, 1.0, 2.0], 0.1: [50.0]})
  lines = sweep_table.table(rows, lower_is_better=False)
  assert lines[0].split() == ["rate", "seeds", "mean", "95", "%", "interval"]
  assert lines[1].split() == ["*", "0.001", "3", "70", "45.16", "to", "94.84"]
  assert lines[2].split() == ["0.01", "2", "diverged", "1", "of", "3", "diverged"]
  assert lines[3].split() == ["0.1", "1", "50", "one", "seed:", "none"]
  assert lines[-2:] == ["metric: loss, higher is better", "* the best point"]


def test_any_table_fits_eighty_columns():
  """With many keys the values have lines of their own."""
  values = {f"section.key_number_{number}": "value" * number for number in range(9)} | {"other.key_number_1": 1}
  rows = rows_of({1: [60.0, 71.0], 2: [75.0, 70.0]}, step=1_000_000)
  rows = [SweepRow(**vars(row) | {"values": values | {"section.rate": row.values["a.rate"]}}) for row in rows]
  rows[2:] = [SweepRow(**vars(row) | {"status": "halved", "step": 3}) for row in rows[2:]]
  lines = sweep_table.table(rows, lower_is_better=True)
  assert all(len(line) <= 80 for line in lines) and "* rate=1" in lines and "  rate=2" in lines
  assert "  section.key_number_1=value" in "\n".join(lines) and "  other.key_number_1=1" in lines
  assert "1,000,000" in "\n".join(lines) and "points with fewer steps were ended by the halving" in lines


@pytest.mark.parametrize(
  ("value", "text"),
  [(1e8, "1e8"), (1e-05, "1e-5"), (0.1, "0.1"), (1.0, "1"), (0.12345678, "0.12345678"), (100, "100"), (True, "True")],
)
def test_a_value_has_its_shortest_exact_text(value, text):
  assert sweep_table.shown(value) == text and type(value)(text) == value


@pytest.mark.parametrize(
  ("metric", "lower"), [("loss", True), ("loss/sw", True), ("bits_per_byte", True), ("rte/accuracy", False)]
)
def test_the_direction_of_a_metric(metric, lower):
  assert seed_scores.lower_is_better(metric) is lower
