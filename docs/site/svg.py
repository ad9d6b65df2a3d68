"""Drawings as SVG text: boxes with words in them, grids, and the colours that all pictures share."""

from collections.abc import Callable, Iterable, Sequence
import html
import pathlib

INK, SOFT, LINE, PAPER = "#1b1f24", "#57606a", "#8c959f", "#ffffff"
# Told by more than colour: each kind of box has a border of its own, too.
TINTS = ("#dbeafe", "#dcfce7", "#fef3c7", "#f3e8ff", "#ffe4e6", "#ccfbf1", "#ffedd5", "#e2e8f0")
HIDDEN, SPECIAL, STRANGE = "#fdba74", "#d0d7de", "#fda4af"
_FONT = "ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif"
_WIDTH = 7.4  # of a letter of 13 pixels


def picture(width: float, height: float, parts: Iterable[str], *, title: str, about: str) -> str:
  """A whole file, on a ground of its own, so that it reads on any page."""
  body = "\n".join(parts)
  return (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    f' role="img" font-family="{_FONT}" font-size="13">\n<title>{html.escape(title)}</title>\n'
    f"<desc>{html.escape(about)}</desc>\n"
    f'<rect width="{width:g}" height="{height:g}" rx="6" fill="{PAPER}"/>\n{body}\n</svg>\n'
  )


def write(folder: pathlib.Path, names: Iterable[str], draw: Callable[[str], str]) -> int:
  """Draws each into NAME.svg; what a script ends with."""
  folder.mkdir(parents=True, exist_ok=True)
  for name in names:
    (folder / f"{name}.svg").write_text(draw(name))
  return 0


def text(x: float, y: float, words: str, *, colour: str = INK, anchor: str = "start", size: float = 13) -> str:
  """A line of text, whose baseline is at y."""
  return (
    f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="{anchor}" font-size="{size:g}">{html.escape(words)}</text>'
  )


def box(
  x: float, y: float, width: float, height: float, *, fill: str, border: str = LINE, thick: bool = False, dashed=False
) -> str:
  """A rectangle."""
  look = ' stroke-width="2.5"' if thick else ' stroke-dasharray="3 2"' if dashed else ""
  return (
    f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}" stroke="{border}"{look}/>'
  )


def words_wide(words: str) -> float:
  """About how wide a box around them is."""
  return round(max(len(words), 1) * _WIDTH + 10, 1)


def row(
  y: float, label: str, pieces: Sequence[tuple[str, str, bool, bool]], *, width: float, left: float = 74
) -> tuple[list[str], float]:
  """A row of words in boxes, broken where it is full, and where it ends.

  Args:
    y: its top.
    label: what stands in front.
    pieces: words, fill, whether the border is thick, whether it is dashed.
    width: of the picture.
    left: where the boxes begin.
  """
  parts, x = [text(8, y + 17, label, colour=SOFT)], left
  for words, fill, thick, dashed in pieces:
    wide = words_wide(words)
    if x + wide > width - 6 and x > left:
      x, y = left, y + 30
    parts.append(box(x, y, wide, 24, fill=fill, border=INK if thick else LINE, thick=thick, dashed=dashed))
    parts.append(text(x + wide / 2, y + 17, words, anchor="middle"))
    x += wide + 4
  return parts, y + 30
