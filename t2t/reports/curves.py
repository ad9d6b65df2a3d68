"""Curves as SVG that stands within a page: small, and in colours that the page decides, light or dark."""

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

POINTS = 500  # of a curve
MOST_CURVES = 12  # of a picture
_NOISE = 30  # points; of fewer each has a mark

# What matplotlib draws with -> a variable of the page.  Those of `COLOURS` are the series', in order.
COLOURS = ("#1f5fa8", "#c8442e", "#2b7a3d", "#8a4fb0", "#9a6700", "#00767a", "#b0357e", "#5c5c5c")
_DASHES = ("-", "--", ":")
_VARIABLES = {colour: f"var(--c{number})" for number, colour in enumerate(COLOURS)}
_VARIABLES |= {loss_curve.EACH: "var(--each)", loss_curve.QUIET: "var(--quiet)", "#b0b0b0": "var(--quiet)"}
_VARIABLES |= {"#000000": "currentColor"}
_STYLE = {
  "svg.fonttype": "none",  # a quarter of the bytes of glyphs' outlines, and it can be searched
  "font.size": 9.0,
  "axes.linewidth": 0.8,
  "text.parse_math": False,  # a name is what it is
  "path.simplify": True,
  "path.simplify_threshold": 0.2,
}
_SIZE = (5.0, 2.7)  # inches: 360 points, as wide as a telephone, where 9 points are read without a glass
_MARGINS = (40, 8, 30, 14)  # points: left, for 7 characters of a number, right, below, above for stages' names
_LABEL = 12  # points: of the axis, where it has one

Series = Mapping[float, float]


@dataclasses.dataclass(frozen=True)
class Picture:
  """A picture with what is read beside it.

  title: of a few words.
  text: what it shows, for who does not see it.
  svg: the element.
  legend: (name, colour, dashes) of each curve; () where there is but one.
  note: what is to be said of it.
  wide: whether it has the room of two.
  """

  title: str
  text: str
  svg: str
  legend: Sequence[tuple[str, str, str]] = ()
  note: str = ""
  wide: bool = False


def thinned(steps: Sequence[float], values: Sequence[float], *, points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
  """About so many points of a curve: of equal parts of it the least and the greatest, and both of its ends.

  So no peak is lost, however thin; a mean is taken before (`loss_curve.smooth`).

  Args:
    steps, values: of one length.
    points: at most, and two more.
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
  """Training and held-out loss; see `loss_curve.draw`."""
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
  """Curves over the same axis; of very many those with the highest ends.

  Args:
    title: what they show, and in which unit.
    series: name -> x -> y, none of them empty.
    across: what x is.
    run: stages whose ends are marked, where x is steps.
    points: of each curve, at most.
    noisy: whether each step says little: a mean over those around it is drawn above a long curve.
    line_styles: see `looks`; where the same name is to look alike in several pictures.
  """
  last = lambda name: next(reversed(series[name].values()))
  shown = sorted(series, key=last)[-MOST_CURVES:] if len(series) > MOST_CURVES else list(series)
  shown = [name for name in series if name in shown]
  note = f"{MOST_CURVES} of {len(series)}: those that end highest" if len(series) > MOST_CURVES else ""
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


def looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
  """Name -> colour and dashes of its curve, another for each of the first two dozen."""
  number = len(COLOURS)
  return {name: (COLOURS[i % number], _DASHES[i // number % len(_DASHES)]) for i, name in enumerate(names)}


def _course(values: Series) -> str:
  """'from 8.31 to 5.32, least 5.1', for who does not see the curve."""
  y_values = list(values.values())
  return f"from {y_values[0]:.4g} to {y_values[-1]:.4g}, between {min(y_values):.4g} and {max(y_values):.4g}"


def _svg(draw: Callable[[Any], None], *, labelled: bool = False) -> str:
  """What `draw` makes of axes, as an element that a page may hold several of.

  Args:
    draw: is given the axes.
    labelled: whether it names what they go up by.
  """
  import matplotlib
  import matplotlib.figure
  import matplotlib.ticker

  content = io.StringIO()
  # Names within an SVG are of the whole page: each picture has its own, and the same at every time.
  salt = f"{_svg.__name__}{next(_NUMBERS)}"
  with matplotlib.rc_context(_STYLE | {"svg.hashsalt": salt}):
    width, height = _SIZE
    figure = matplotlib.figure.Figure(figsize=(width, height))
    # Fixed, since an engine that finds the margins has all drawn twice.
    left, right, bottom, top = (points / 72 for points in _MARGINS)
    left += _LABEL / 72 if labelled else 0
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height)
    axes = figure.add_axes(box)
    draw(axes)
    axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(nbins=5))
    figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
  return _small(content.getvalue())


_NUMBERS = itertools.count()
_DROPPED = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", re.DOTALL)
_TAG, _TURNED = re.compile(r"<[^>]*>"), re.compile(r' transform="rotate\(-?0 [^"]*"')
_NUMBER = re.compile(r"(?<![\w#.-])-?\d+\.\d+")


def _small(text: str) -> str:
  """An SVG without what a page does not need, its colours those of the page."""
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
  """The SVG with what it shows in words, for a page."""
  return picture.svg.replace("@>", f'role="img" aria-label="{html.escape(picture.text)}">', 1)


def finite(values: Series) -> dict[float, float]:
  """What can be drawn."""
  return {x: y for x, y in values.items() if math.isfinite(y)}
