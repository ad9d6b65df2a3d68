"""Picture of a sweep: roles of keys, and what is drawn."""

import io
import itertools
import math

from matplotlib import image
import pytest

from t2t.reports import sweep_picture, sweep_table
from t2t.reports.sweep_table import SweepRow


def rows_of(**values):
  """Returns a row for each combination and two seeds; the first one diverged."""
  keys = [f"s.{name}" for name in values]
  rows = []
  for number, combination in enumerate(itertools.product(*values.values())):
    for seed in range(2):
      status = "diverged" if number == 0 and seed else "halved" if number == 1 else "finished"
      score = math.nan if status == "diverged" else number + seed / 2
      point = dict(zip(keys, combination, strict=True))
      rows.append(SweepRow(str(combination), point, seed, status, "loss", score, 9))
  return rows


@pytest.mark.parametrize(
  ("values", "roles"),
  [
    ({"rate": (1, 2, 3)}, ("s.rate", None, [])),
    ({"name": ("a", "b", "c"), "rate": (1, 2)}, ("s.rate", "s.name", [])),
    ({"name": ("a", "b"), "flag": (True, False)}, ("s.name", "s.flag", [])),
    ({"size": (1, 2), "rate": (1, 2, 3), "name": ("a",), "flag": (True, False)}, ("s.rate", "s.size", ["s.flag"])),
  ],
)
def test_roles_of_keys(values, roles):
  """The numeric key with most values is the axis; a key with one value has no role."""
  assert sweep_picture.roles(sweep_table.summaries(rows_of(**values))) == roles


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize(
  "values",
  [
    {"rate": (0.001, 0.01, 0.1)},
    {"rate": (0.0, -1.0), "name": ("a", "b"), "size": (1, 2, 3), "flag": (True, False)},
    {"rate": (1, 2), "name": ("a", "b" * 99)},
    {"name": ("a", ("b", "c")), "flag": (True, False)},
  ],
)
def test_the_picture_is_a_png_of_its_rows(values):
  """Another score changes the picture; the same rows do not. Any kinds and numbers of keys are drawn."""
  rows = rows_of(**values)
  picture = sweep_picture.draw(rows, lower_is_better=True, title="rates")
  assert image.imread(io.BytesIO(picture)).shape[1] >= 864
  assert picture == sweep_picture.draw(rows, lower_is_better=True, title="rates")
  rows[-1] = SweepRow(**vars(rows[-1]) | {"score": 0.1})
  assert picture != sweep_picture.draw(rows, lower_is_better=True, title="rates")


@pytest.mark.parametrize(("seeds", "name"), [(1, "one seed"), (2, "mean, 95 % interval")])
def test_the_legend_names_an_interval_that_is_drawn(seeds, name):
  rows = [SweepRow(str(rate), {"s.rate": rate}, seed, "finished", "loss", 1.0, 9) for rate in (1, 2) for seed in (0, 1)]
  figure = sweep_picture.drawn([row for row in rows if row.seed < seeds], lower_is_better=True)
  assert figure.legends[0].get_texts()[0].get_text() == name


def test_the_legend_of_two_keys_names_the_intervals_and_lies_in_the_picture():
  """Also with long values; it says if an interval is longer than the picture. The axis has values as the table."""
  rows = [
    SweepRow(f"{rate}-{name}", {"s.rate": rate, "s.a_long_name_of_a_key": name}, seed, "finished", "loss", score, 9)
    for rate in (1e4, 1e8)
    for name in ("short", "long" * 20, "another long value of this key")
    for seed, score in enumerate((1.0, 1.2))
  ]
  figure = sweep_picture.drawn(rows, lower_is_better=True)
  figure.canvas.draw()
  (legend,) = figure.legends
  box, whole = legend.get_window_extent(), figure.bbox
  assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1
  entries = [text.get_text() for text in legend.get_texts()]
  assert "95 % interval, some longer than shown" in entries
  assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["10000", "1e8"]


@pytest.mark.slow
def test_only_diverged_points_are_drawn_too():
  rows = [SweepRow(**vars(row) | {"status": "diverged", "score": math.nan}) for row in rows_of(rate=(1, 2))]
  assert sweep_picture.draw(rows, lower_is_better=False).startswith(b"\x89PNG")
