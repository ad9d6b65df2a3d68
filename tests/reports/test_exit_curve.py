"""The table of `t2t exits`."""

from t2t.evaluation.exit_sweep import SweepPoint
from t2t.reports import exit_curve, seed_scores


def test_the_table_has_a_line_per_point():
  """The first four metrics, complete thresholds, and no value and layers of the majority; in 80 columns."""
  metrics = {name: 50.0 + number for number, name in enumerate(("accuracy", "f1", "precision", "recall", "kappa"))}
  made = lambda rule, value, layers: SweepPoint("table", rule, value, layers, 1.0, metrics)
  rows = [made("layer", 1, 1.0), made("patience", 2, 2.456), made("entropy", 0.85031, 1.5), made("majority", 0, 0.0)]
  title, head, *lines = exit_curve.table(rows, {"table": "test.tsv"})
  assert title == "test.tsv" and head.split() == ["rule", "value", "layers", "accuracy", "f1", "precision", "recall"]
  scores = ["50.00", "51.00", "52.00", "53.00"]
  assert [line.split() for line in lines] == [
    ["after", "a", "fixed", "layer", "1", "1.00", *scores],
    ["patience", "2", "2.46", *scores],
    ["entropy", "0.85031", "1.50", *scores],
    ["majority", "class", *scores],
  ]
  assert {len(line) for line in (head, *lines)} == {len(head)} and len(head) <= 80


def test_equal_lines_and_small_differences_are_drawn_as_such(monkeypatch):
  """An axis of percent spans ten points, and a line on another one is thinner than it."""
  figures = []
  monkeypatch.setattr(seed_scores, "png", lambda figure: figures.append(figure) or b"")
  made = lambda rule, layers, x: SweepPoint("table", rule, 1, layers, x, {"accuracy": x})
  points = [made(rule, layers, 50.0 + layers) for layers in (1.0, 2.0) for rule in ("layer", "entropy", "patience")]
  exit_curve.draw([*points, made("majority", 0.0, 51.0)], {})
  (axes,) = figures[0].axes
  low, high = axes.get_ylim()
  assert axes.get_ylabel() == "accuracy (%)" and high - low >= 10.0 and low < 51.0 and high > 52.0
  widths = [line.get_linewidth() for line in axes.get_lines()]
  assert len(widths) == 4 and widths == sorted(set(widths), reverse=True)
