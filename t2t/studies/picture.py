"""Picture of a study: the curves of its arms with their intervals, or each column's means with their intervals."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

import numpy as np

from t2t.reports import seed_scores
from t2t.studies import results
from t2t.studies.definition import Curve, Setting, Study
from t2t.studies.results import StudyRow

_COLOURS = (
  "#1f5fa8",
  "#c8442e",
  "#3c8d5a",
  "#e39a3b",
  "#7b4fa3",
  "#5ba3cf",
  "#8a6d3b",
  "#c25b9b",
  "#6b6b6b",
  "#2aa198",
)
_PANELS_PER_LINE = 3


def of_study(study: Study, setting: Setting, rows: Sequence[StudyRow]) -> bytes:
  """Returns the PNG of a study's rows of one scale: by the study's own function, or by `draw`."""
  columns = [column.name for column in study.columns(setting)]
  if study.draw is not None:
    return study.draw(rows, columns)
  return draw(rows, columns, title=study.title, curves={curve.name: curve for curve in study.curves(setting)})


def draw(
  rows: Sequence[StudyRow], columns: Sequence[str], *, title: str = "", curves: Mapping[str, Curve] | None = None
) -> bytes:
  """Returns a PNG: a panel for each curve of the rows; without curves a panel for each column.

  Args:
    rows: of one scale.
    columns: those to draw, in order; a column without values has no panel.
    title: of the figure.
    curves: name -> declaration, for labels and scales of the x axes.
  """
  import matplotlib.figure

  names = list(dict.fromkeys(name for row in rows for name, curve in row.curves.items() if curve))
  columns = [column for column in columns if any(row.figures.get(column) is not None for row in rows)]
  arms = results.arms(rows)
  number = max(1, len(names) or len(columns))
  wide = min(_PANELS_PER_LINE, number)
  high = -(-number // wide)
  height = 3.6 if names else 0.7 + 0.28 * len(arms)
  figure = matplotlib.figure.Figure(figsize=(9.6 if wide > 1 else 7.2, high * max(1.8, height)), dpi=110)
  figure.set_layout_engine("constrained")
  axes = figure.subplots(high, wide, squeeze=False, sharey=not names).flatten()
  for panel, axis in zip(names or columns, axes, strict=False):
    if names:
      _draw_curve(axis, rows, arms, panel)
      if curve := (curves or {}).get(panel):
        axis.set_xlabel(curve.x, fontsize=8)
        axis.set_xscale("log" if curve.log_x else "linear")
    else:
      _draw_column(axis, rows, arms, panel)
    axis.set_title(panel, fontsize=9)
    set_style(axis)
  for axis in axes[number:]:
    axis.set_axis_off()
  if names:
    axes[0].legend(frameon=False, fontsize=7)
  figure.suptitle(title, fontsize=9)
  return seed_scores.png(figure)


def set_style(axis: Any) -> None:
  """Sets small labels, a faint grid and two spines, as all panels of studies have."""
  axis.tick_params(labelsize=7)
  axis.grid(alpha=0.25)
  axis.spines[["top", "right"]].set_visible(False)


def _draw_curve(axis: Any, rows: Sequence[StudyRow], arms: Sequence[str], name: str) -> None:
  """Draws the mean of each arm at the steps that all its seeds have, and the 95 % interval as a band."""
  for index, arm in enumerate(arms):
    curves = [row.curves[name] for row in rows if row.arm == arm and row.curves.get(name)]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    if not steps:
      continue
    colour = _COLOURS[index % len(_COLOURS)]
    summaries = [seed_scores.mean_and_margin([curve[step] for curve in curves]) for step in steps]
    means, margins = np.array(summaries).T
    axis.plot(steps, means, color=colour, linewidth=1.5, marker="o", markersize=2.5, label=arm)
    if len(curves) > 1:
      axis.fill_between(steps, means - margins, means + margins, color=colour, alpha=0.15, linewidth=0)
  axis.set_xlabel("step", fontsize=8)


def _draw_column(axis: Any, rows: Sequence[StudyRow], arms: Sequence[str], column: str) -> None:
  """Draws a line for each arm: a dot for each seed, and the mean with its 95 % interval."""
  for index, arm in enumerate(arms):
    values = list(results.by_seed(rows, arm, column).values())
    if not values:
      continue
    mean, margin = seed_scores.mean_and_margin(values)
    colour = _COLOURS[index % len(_COLOURS)]
    axis.plot(values, [index] * len(values), linestyle="", marker="o", markersize=3, color=colour, alpha=0.4)
    axis.errorbar([mean], [index], xerr=[0.0 if math.isnan(margin) else margin], marker="|", capsize=3, color=colour)
  axis.set_yticks(range(len(arms)), arms, fontsize=7)
  axis.set_ylim(len(arms) - 0.5, -0.5)
