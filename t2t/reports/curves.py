"""Draws curves as compact inline SVG, with colours from the page's CSS variables (light or dark)."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import html
import io
import itertools
import math
import re
from typing import Any

import numpy as np

from t2t.configuration.stages import Stage
from t2t.losses import Baseline
from t2t.training import loss_curve

POINTS = 500  # per curve
MOST_CURVES = 12  # per picture
_NOISE = 30  # points; shorter curves have markers

# matplotlib's colour -> CSS variable of the page; `COLOURS` are the colours of the series, in order.
COLOURS = ("#1f5fa8", "#c8442e", "#2b7a3d", "#8a4fb0", "#9a6700", "#00767a", "#b0357e", "#5c5c5c")
_DASHES = ("-", "--", ":")
_VARIABLES = {colour: f"var(--c{number})" for number, colour in enumerate(COLOURS)}
_VARIABLES |= {loss_curve.EACH: "var(--each)", loss_curve.QUIET: "var(--quiet)", "#b0b0b0": "var(--quiet)"}
# Ink of text and marks, and the inside of hollow marks.
_VARIABLES |= {"#000000": "currentColor", "#1b1f24": "var(--ink)", "#ffffff": "var(--paper)"}
_STYLE = {
  "svg.fonttype": "none",  # a quarter of the bytes of glyph outlines, and searchable
  "font.size": 9.0,
  "axes.linewidth": 0.8,
  "text.parse_math": False,  # names are not formulas
  "path.simplify": True,
  "path.simplify_threshold": 0.2,
}
_SIZE = (5.0, 2.7)  # inches: 360 points, the width of a phone, on which 9-point text is readable
_MARGINS = (40, 8, 30, 14)  # points: left (7 characters of a number), right, bottom, top (names of stages)
_LABEL = 12  # points, for the label of the axis, if any
_LETTER = 3.5  # points, for a letter of a name beyond a number's width

Series = Mapping[float, float]


@dataclasses.dataclass(frozen=True)
class Picture:
  """A picture with its description and legend.

  Attributes:
    title: of a few words.
    text: description for screen readers.
    svg: the element.
    legend: (name, colour, dashes) of each curve; () for a single curve.
    note: remark below the picture.
    wide: whether it takes the space of two.
  """

  title: str
  text: str
  svg: str
  legend: Sequence[tuple[str, str, str]] = ()
  note: str = ""
  wide: bool = False


def thinned(steps: Sequence[float], values: Sequence[float], *, points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
  """Returns about `points` points of a curve: minimum and maximum of equal parts, and both ends.

  No peak is lost, however narrow. For a mean see `loss_curve.smooth`.

  Args:
    steps, values: of equal length.
    points: maximum, without the two ends.
  """
  steps, values = np.asarray(steps, np.float64), np.asarray(values, np.float64)
  if len(steps) <= points:
    return steps, values
  chosen = {0, len(steps) - 1}
  borders = np.linspace(0, len(steps), max(1, points // 2) + 1).astype(int)
  for begin, end in itertools.pairwise(borders):
    chosen |= {begin + int(np.argmin(values[begin:end])), begin + int(np.argmax(values[begin:end]))}
  index = np.array(sorted(chosen))
  return steps[index], values[index]


def loss(
  train: Mapping[int, float],
  held_out: Mapping[int, float],
  *,
  baselines: Sequence[Baseline],
  unit: str,
  run: Sequence[Stage],
  points: int = POINTS,
) -> Picture:
  """Draws training and held-out loss; see `loss_curve.draw`."""
  thin = lambda steps, values: thinned(steps, values, points=points)
  legend: list[tuple[str, str, str]] = []

  def draw(axes: Any) -> None:
    loss_curve.draw(axes, train, held_out, baselines=baselines, unit=unit, run=run, thin=thin)
    for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
      legend.append((label, _VARIABLES[line.get_color()], line.get_linestyle()))

  svg = _svg(draw, labelled=True)
  descriptions = [
    f"{name} {_course(values)}" for name, values in (("training", train), ("held-out text", held_out)) if values
  ]
  return Picture("Loss", f"Loss over steps: {'; '.join(descriptions)}", svg, legend, wide=True)


def lines(
  title: str,
  series: Mapping[str, Series],
  *,
  across: str = "step",
  run: Sequence[Stage] = (),
  points: int = POINTS,
  noisy: bool = False,
  line_styles: Mapping[str, tuple[str, str]] | None = None,
) -> Picture:
  """Draws curves over a common axis; if there are too many, those with the highest ends.

  Args:
    title: of the picture, with the unit.
    series: name -> x -> y, none of them empty.
    across: label of x.
    run: stages with ends to mark, if x is steps.
    points: of each curve, at most.
    noisy: whether to draw a smoothed curve above a long curve.
    line_styles: see `looks`; for the same style of a name in several pictures.
  """
  last = lambda name: next(reversed(series[name].values()))
  shown = sorted(series, key=last)[-MOST_CURVES:] if len(series) > MOST_CURVES else list(series)
  shown = [name for name in series if name in shown]
  note = f"{MOST_CURVES} of {len(series)} curves: those with the highest ends" if len(series) > MOST_CURVES else ""
  styles = looks(shown) if line_styles is None else {name: line_styles[name] for name in shown}

  def draw(axes: Any) -> None:
    import matplotlib.ticker

    for name, (colour, dashes) in styles.items():
      x, y = list(series[name]), list(series[name].values())
      look = {"color": colour, "linestyle": dashes}
      if noisy and len(x) > _NOISE:
        axes.plot(*thinned(x, y, points=points // 2), linewidth=0.8, alpha=0.3, **look)
        axes.plot(*thinned(x, loss_curve.smooth(y), points=points // 2), linewidth=1.5, **look)
      else:
        marker = "o" if len(x) < _NOISE else ""
        axes.plot(*thinned(x, y, points=points), linewidth=1.3, marker=marker, markersize=2.5, **look)
    loss_curve.mark_stages(axes, run, max(max(series[name]) for name in shown))
    axes.set_xlabel(across)
    if across == "step":
      axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(nbins=6, integer=True))
    else:
      axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
    ends = axes.get_ylim()
    if max(map(abs, ends)) >= 10_000:
      axes.yaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
    loss_curve.frame(axes)

  description = "; ".join(f"{name} {_course(series[name])}" for name in shown)
  legend = (
    [(name, _VARIABLES[colour], dashes) for name, (colour, dashes) in styles.items()]
    if len(series) > 1 or line_styles
    else []
  )
  return Picture(title, f"{title} over {across}: {description}", _svg(draw), legend, note)


def bars(title: str, shares: Mapping[str, float]) -> Picture:
  """Draws a horizontal bar with its percentage for each share.

  Args:
    title: of the picture.
    shares: name -> share, from 0 to 1, from the top down.
  """

  def draw(axes: Any) -> None:
    names = list(shares)[::-1]
    values = [shares[name] for name in names]
    axes.barh(range(len(names)), values, height=0.7, color=COLOURS[0])
    for row, value in enumerate(values):
      axes.text(value + 0.01, row, f"{value:.1%}", va="center")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0, 1.15 * max(values))
    axes.tick_params(left=False)
    axes.xaxis.set_visible(False)
    for side in ("top", "right", "bottom"):
      axes.spines[side].set_visible(False)

  text = ", ".join(f"{name} {value:.1%}" for name, value in shares.items())
  return Picture(title, f"{title}: {text}", _svg(draw, names=max(map(len, shares))))


def looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
  """Returns name -> colour and dashes of its curve, unique for the first two dozen."""
  number = len(COLOURS)
  return {name: (COLOURS[i % number], _DASHES[i // number % len(_DASHES)]) for i, name in enumerate(names)}


def _course(values: Series) -> str:
  """Describes a curve for screen readers."""
  y_values = list(values.values())
  return f"from {y_values[0]:.4g} to {y_values[-1]:.4g}, between {min(y_values):.4g} and {max(y_values):.4g}"


def of_figure(title: str, text: str, draw: Callable[[], Any]) -> Picture:
  """Returns a figure with several panels and its own legend as a wide picture.

  Args:
    title: of a few words.
    text: description for screen readers.
    draw: returns matplotlib's figure.
  """
  import matplotlib

  content = io.StringIO()
  with matplotlib.rc_context(_STYLE | {"svg.hashsalt": f"figure{next(_NUMBERS)}"}):
    draw().savefig(content, format="svg", transparent=True, metadata={"Date": None})
  return Picture(title, text, _small(content.getvalue()), wide=True)


def _svg(draw: Callable[[Any], None], *, labelled: bool = False, names: int = 0) -> str:
  """Returns a drawing as an SVG element; a page may have several.

  Args:
    draw: takes the axes.
    labelled: whether the y axis has a label.
    names: letters of the longest name on the y axis; 0 for an axis of numbers.
  """
  import matplotlib
  import matplotlib.figure
  import matplotlib.ticker

  content = io.StringIO()
  # Ids in an SVG are global in the page, so each picture has its own salt; a fixed one, for reproducible output.
  salt = f"{_svg.__name__}{next(_NUMBERS)}"
  with matplotlib.rc_context(_STYLE | {"svg.hashsalt": salt}):
    width, height = _SIZE
    figure = matplotlib.figure.Figure(figsize=(width, height))
    # Fixed margins, because a layout engine would draw everything twice.
    left, right, bottom, top = (points / 72 for points in _MARGINS)
    left += _LABEL / 72 if labelled else names * _LETTER / 72
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height)
    axes = figure.add_axes(box)
    draw(axes)
    if not names:
      axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(nbins=5))
    figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
  return _small(content.getvalue())


_NUMBERS = itertools.count()
_DROPPED = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", re.DOTALL)
_TAG, _TURNED = re.compile(r"<[^>]*>"), re.compile(r' transform="rotate\(-?0 [^"]*"')
_NUMBER = re.compile(r"(?<![\w#.-])-?\d+\.\d+")


def _small(text: str) -> str:
  """Shortens an SVG for the page, and replaces colours by the page's variables."""
  text = _DROPPED.sub("", text)
  text = text[text.index("<svg") :].strip()
  box = re.search(r'viewBox="[^"]*"', text)[0]
  used = set(re.findall(r"#([\w.-]+)", text))

  def tag(match: re.Match) -> str:
    short = re.sub(r' id="([^"]*)"', lambda name: name[0] if name[1] in used else "", match[0])
    short = re.sub(r"font-family: ?[^;\"]*;?|\bfont: ?(?=[\d.]+px)", "", _TURNED.sub("", short)).replace("xlink:", "")
    for colour, variable in _VARIABLES.items():
      short = re.sub(f"{colour}\\b", variable, short, flags=re.IGNORECASE)
    short = _NUMBER.sub(lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), short)
    return re.sub(r"\s*\n\s*", " ", short)

  text = re.sub(r">\s+<", "><", _TAG.sub(tag, text))
  return re.sub(r"<svg[^>]*>", f"<svg {box} @>", text, count=1)


def element(picture: Picture) -> str:
  """Returns the SVG with its description, for a page."""
  return picture.svg.replace("@>", f'role="img" aria-label="{html.escape(picture.text)}">', 1)


def finite(values: Series) -> dict[float, float]:
  """Returns the finite values."""
  return {x: y for x, y in values.items() if math.isfinite(y)}
