"""Page of a sweep: rows, links, and `t2t report` of the folder."""

import math
import re

from etils import epath
import pytest

from t2t import UserError
from t2t.commands import report
from t2t.reports import page, sweep_page, sweep_table
from t2t.reports.sweep_table import SweepRow


def rows_of(best=""):
  """Returns rows of two points with two seeds; a run of the second one diverged."""
  rows = []
  for name, status, score in (("a<b", "finished", 1.5), ("c d", "diverged", math.nan)):
    values = {"data.files": name, "optimizer.learning_rate": 0.1}
    rows += [SweepRow(name, values, 0, "finished", "loss", 2.5, 9, "", best)]
    rows += [SweepRow(name, values, 1, status, "loss", score, 9, "" if status == "finished" else "NaN", best)]
  return rows


def test_a_page_has_points_picture_and_links(tmp_path, capsys):
  """The links are to runs with a report; `t2t report` writes the same page as the sweep."""
  folder = epath.Path(tmp_path)
  sweep_table.write(folder / sweep_table.ROWS, rows_of())
  text = sweep_page.write(folder, rows_of()).read_text()
  assert re.findall('href="([^"#]*)"', text) == [
    "a%3Cb/seed-0/report.html",
    "a%3Cb/seed-1/report.html",
    "c%20d/seed-0/report.html",
  ]
  assert "c d/seed-1" in text and "a<b" not in text and text.count("<svg") == 1 and len(text) < page.MOST_BYTES
  assert "1 of 2 diverged" in text and "lower is better" in text and "data.files=a&lt;b" in text
  (tmp_path / "report.html").unlink()
  report.main([str(tmp_path)])
  assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
  same = lambda page: re.sub(r"Written .* UTC|\b[mp][0-9a-f]{10}\b", "", page)  # without time and ids
  assert same((tmp_path / "report.html").read_text()) == same(text)


def test_the_direction_of_the_sweep_decides():
  """Rows have the one of --best, except those of earlier versions."""
  assert [sweep_table.lower_is_better(rows_of(best)) for best in ("", "min", "max")] == [True, True, False]


def test_a_sweep_without_results_is_named(tmp_path):
  (tmp_path / "sweep.jsonl").write_text("")
  with pytest.raises(UserError, match="sweep.jsonl: no run of this sweep has finished"):
    report.main([str(tmp_path)])
