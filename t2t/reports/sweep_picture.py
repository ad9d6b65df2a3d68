"""Picture of a sweep: the metric against one key, lines for a second key, and panels for the others."""

from collections.abc import Iterator, Sequence
import itertools
import math
import textwrap
from typing import TYPE_CHECKING, Any

from t2t.reports import curves, seed_scores, sweep_table
from t2t.reports.sweep_table import PointSummary, SweepRow, is_number, shown, value_text
from t2t.training import loss_curve

if TYPE_CHECKING:
  from matplotlib.figure import Figure

NAME = "sweep.png"

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_INK, _GREY = "#1b1f24", "#5c5c5c"
# Entries of the legend after the lines.
_EACH, _INTERVAL, _CUT, _BEST, _ENDED, _WITHOUT_MEAN = (
  "each run",
  "95 % interval",
  "95 % interval, some longer than shown",
  "best point",
  "ended by the halving, at an earlier step",
  "diverged or failed",
)
_MOST_PANELS, _PANELS_IN_ROW = 9, 3
_DECADE = 10.0
_BESIDE = 5.0  # points (1/72 inch) between the marks of two lines at the same value
_WORSE_EDGE = 0.97  # height of crosses, if lower is better
_BORDER = 0.12  # of the range of values, at the left and at the right
_ROOM, _MOST_ROOM = 0.1, 1.0  # of the range of scores, above and below it; the second is the most for intervals
_LONGEST_TICK, _LONGEST_LABEL = 16, 40  # characters
_FONT = 9  # points, of the legend and of titles of panels
_CHARACTER, _HANDLE = 0.55, 5.5  # widths in the legend, relative to the font


def draw(rows: Sequence[SweepRow], *, lower_is_better: bool, title: str = "") -> bytes:
  """Returns a PNG of the metric against the numeric key with most values; see `drawn`."""
  return seed_scores.png(drawn(rows, lower_is_better=lower_is_better, title=title))


def picture(rows: Sequence[SweepRow], *, lower_is_better: bool) -> curves.Picture:
  """Returns the picture for a page; see `drawn`."""
  points = sweep_table.summaries(rows)
  means = [f"{value_text(tuple(x.values.values()))}: {x.mean:.4g}" for x in points if math.isfinite(x.mean)]
  text = f"{rows[-1].metric} of {'; '.join(means) or 'no point'}"
  return curves.of_figure(f"{_metric(rows)} of each point", text, lambda: drawn(rows, lower_is_better=lower_is_better))


def _metric(rows: Sequence[SweepRow]) -> str:
  return "held-out loss" if rows[-1].metric == "loss" else rows[-1].metric


def drawn(rows: Sequence[SweepRow], *, lower_is_better: bool, title: str = "") -> "Figure":
  """Draws the metric against the numeric key with most values.

  The axis is logarithmic if the values are positive and span more than a decade. Without a numeric key, the values of
  one key are at equal distances. Hollow marks are points that the halving ended, at an earlier step. A cross is a point
  that diverged or failed. Far wider intervals than the range of the runs exceed the picture, as the legend then says.

  Args:
    rows: of all runs, at least one.
    lower_is_better: direction of the metric.
    title: above the picture.
  """
  import matplotlib.figure

  points = sweep_table.summaries(rows)
  across, along, others = roles(points)
  panels = [*_groups(points, others)][:_MOST_PANELS]
  columns = 2 if len(panels) == 4 else min(len(panels), _PANELS_IN_ROW)
  lines = math.ceil(len(panels) / columns)
  size = (7.2, 4.0) if columns == 1 else (max(3.4 * columns, 7.2), 2.9 * lines + 0.5)
  figure = matplotlib.figure.Figure(figsize=size, dpi=120, layout="constrained")
  grid: Any = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
  short = sweep_table.short_keys(list(points[0].values))
  best = sweep_table.best_of(points, lower_is_better=lower_is_better)
  along_values = [None] if along is None else _values(points, along)
  has_interval = any(math.isfinite(point.margin) for point in points)
  mean = "mean, 95 % interval" if has_interval else "mean" if len(rows) > len(points) else "one seed"
  handles: dict[str, Any] = {}
  for axes, (values, of_panel) in zip(grid.flat, panels, strict=False):
    for of_line_values, of_line in _groups(of_panel, [] if along is None else [along]):
      number = along_values.index(of_line_values[0]) if of_line_values else 0
      label = mean if along is None else _cut(f"{short[along]} {shown(of_line_values[0])}", _LONGEST_LABEL)
      runs = [row for row in rows if any(row.values == point.values for point in of_line)]
      beside = _BESIDE * (number - (len(along_values) - 1) / 2)
      _draw_line(
        figure,
        axes,
        of_line,
        runs,
        across,
        _values(points, across),
        number,
        beside,
        label,
        best=best,
        lower_is_better=lower_is_better,
      )
    _set_axis(axes, _values(points, across))
    axes.set_xlabel(short[across])
    axes.set_ylabel(_metric(rows))
    axes.label_outer()
    named = ", ".join(f"{short[key]} {shown(x)}" for key, x in zip(others, values, strict=True))
    axes.set_title(textwrap.fill(named, _LONGEST_LABEL), fontsize=_FONT)
    handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
  for number, axes in enumerate(grid.flat[len(panels) :], start=len(panels)):
    axes.set_visible(False)
    above = grid.flat[number - columns]
    above.tick_params(labelbottom=True)
    above.set_xlabel(short[across])
  is_cut = _limit(grid.flat[0], points, [row.score for row in rows if math.isfinite(row.score)])
  if has_interval and (is_cut or along is not None):
    (handles[_CUT if is_cut else _INTERVAL],) = grid.flat[0].plot([], [], "|", color=_GREY, markersize=12)
  tail = (_EACH, _INTERVAL, _CUT, _BEST, _ENDED, _WITHOUT_MEAN)
  labels = sorted(handles, key=lambda label: tail.index(label) if label in tail else -1)
  entries = {"handles": [handles[label] for label in labels], "labels": labels}
  widest = _FONT * (_CHARACTER * max(map(len, labels), default=0) + _HANDLE)
  fitting = max(1, min(len(labels), 4, int(72 * size[0] / widest)))
  figure.legend(**entries, frameon=False, fontsize=_FONT, loc="outside lower center", ncols=fitting)
  if title:
    figure.suptitle(title, fontsize=10)
  return figure


def roles(points: Sequence[PointSummary]) -> tuple[str, str | None, list[str]]:
  """Returns the key of the horizontal axis, of the lines, and of the panels; a key with one value has no role."""
  keys = list(points[0].values)
  sizes = {key: len(_values(points, key)) for key in keys}
  numeric = [key for key in keys if all(is_number(point.values[key]) for point in points) and sizes[key] > 1]
  across = max(numeric or keys, key=lambda key: sizes[key])
  rest = [key for key in keys if key != across and sizes[key] > 1]
  along = max(rest, key=lambda key: (sizes[key] <= len(curves.COLOURS), sizes[key]), default=None)
  return across, along, [key for key in rest if key != along]


def _values(points: Sequence[PointSummary], key: str) -> list[Any]:
  """Returns the distinct values of a key; numbers in ascending order."""
  values = [point.values[key] for point in points]
  distinct = [value for number, value in enumerate(values) if value not in values[:number]]
  return sorted(distinct) if all(map(is_number, distinct)) else distinct


def _groups(
  points: Sequence[PointSummary], keys: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], list[PointSummary]]]:
  """Yields the values of some keys, and the points with these values."""
  values_of = lambda point: tuple(point.values[key] for key in keys)
  for values in itertools.product(*(_values(points, key) for key in keys)):
    if group := [point for point in points if values_of(point) == values]:
      yield values, group


def _position(value: Any, values: Sequence[Any]) -> float:
  return value if all(map(is_number, values)) else values.index(value)


def _draw_line(
  figure: Any,
  axes: Any,
  points: Sequence[PointSummary],
  rows: Sequence[SweepRow],
  across: str,
  values: Sequence[Any],
  number: int,
  beside: float,
  label: str,
  *,
  best: PointSummary | None,
  lower_is_better: bool,
) -> None:
  """Draws the runs, means and intervals of a line, shifted by `beside` points; a cross for a point without a mean."""
  from matplotlib.transforms import ScaledTranslation

  aside = ScaledTranslation(beside / 72, 0, figure.dpi_scale_trans)
  shift = axes.transData + aside
  look = {
    "color": curves.COLOURS[number % len(curves.COLOURS)],
    "marker": _MARKERS[number % len(_MARKERS)],
    "transform": shift,
  }
  runs = [(_position(row.values[across], values), row.score) for row in rows if math.isfinite(row.score)]
  if runs:
    axes.plot(*zip(*runs, strict=True), linestyle="", markersize=3.5, alpha=0.35, zorder=2, **look)
  if len(runs) > len(points):
    axes.plot([], [], linestyle="", marker="o", markersize=3.5, color=_GREY, alpha=0.6, label=_EACH)
  of_state = lambda *states: [x for x in points if x.status in states and math.isfinite(x.mean)]
  _draw_means(axes, of_state(sweep_table.FINISHED, sweep_table.FAILED), across, values, label=label, **look)
  halved = of_state(sweep_table.HALVED)
  _draw_means(axes, halved, across, values, connected=False, markerfacecolor="white", **look)
  if halved:  # an entry of the legend for all lines
    axes.plot([], [], linestyle="", marker="o", color=_GREY, markerfacecolor="white", label=_ENDED)
  broken = [_position(point.values[across], values) for point in points if math.isnan(point.mean)]
  if broken:
    edge = _WORSE_EDGE if lower_is_better else 1 - _WORSE_EDGE
    cross = {"linestyle": "", "marker": "x", "markersize": 8, "markeredgewidth": 2, "zorder": 4}
    at_edge = axes.get_xaxis_transform() + aside
    axes.plot(broken, [edge] * len(broken), transform=at_edge, color=look["color"], **cross)
    axes.plot([], [], color=_GREY, label=_WITHOUT_MEAN, **cross)
  if best in points:
    _mark_best(axes, _position(best.values[across], values), best.mean, shift)


def _draw_means(
  axes: Any,
  points: Sequence[PointSummary],
  across: str,
  values: Sequence[Any],
  *,
  connected: bool = True,
  **look: Any,
) -> None:
  if not points:
    return
  # A line between classes would suggest values between them.
  style = {} if connected and all(map(is_number, values)) else {"linestyle": ""}
  ordered = sorted(points, key=lambda point: _position(point.values[across], values))
  margins = [0.0 if math.isnan(point.margin) else point.margin for point in ordered]
  axes.errorbar(
    [_position(point.values[across], values) for point in ordered],
    [point.mean for point in ordered],
    yerr=margins if any(margins) else None,
    linewidth=1.6,
    capsize=3,
    zorder=3,
    **look,
    **style,
  )


def _mark_best(axes: Any, position: float, mean: float, transform: Any) -> None:
  axes.plot(
    [position],
    [mean],
    transform=transform,
    linestyle="",
    marker="o",
    markersize=14,
    fillstyle="none",
    markeredgewidth=1.2,
    color=_INK,
    label=_BEST,
    zorder=5,
  )


def _set_axis(axes: Any, values: Sequence[Any]) -> None:
  import matplotlib.ticker

  positions = [_position(value, values) for value in values]
  low, high = min(positions), max(positions)
  if all(map(is_number, values)) and low > 0 and high / low > _DECADE:
    axes.set_xscale("log")
    room = (high / low) ** _BORDER
    axes.set_xlim(low / room, high * room)
  else:
    room = (_BORDER * (high - low) if all(map(is_number, values)) else 0.5) or 1.0
    axes.set_xlim(low - room, high + room)
  axes.xaxis.set_major_locator(matplotlib.ticker.FixedLocator(positions))
  axes.xaxis.set_major_formatter(
    matplotlib.ticker.FixedFormatter([_cut(shown(value), _LONGEST_TICK) for value in values])
  )
  axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
  loss_curve.frame(axes)


def _limit(axes: Any, points: Sequence[PointSummary], scores: Sequence[float]) -> bool:
  """Limits the vertical axis to the scores and intervals near them; an interval of two seeds may be far wider.

  Returns:
    True if an interval exceeds the axis.
  """
  if not scores:
    return False
  low, high = min(scores), max(scores)
  most = _MOST_ROOM * (high - low) or 0.05 * abs(high) or 1.0
  ends = [point.mean + sign * point.margin for point in points for sign in (-1, 1) if math.isfinite(point.margin)]
  low = min([low, *(end for end in ends if end >= low - most)])
  high = max([high, *(end for end in ends if end <= high + most)])
  room = _ROOM * (high - low) or most
  axes.set_ylim(low - room, high + room)
  return any(not low - room <= end <= high + room for end in ends)


def _cut(text: str, most: int) -> str:
  return text if len(text) <= most else f"{text[: most - 1]}…"
