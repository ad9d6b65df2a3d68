"""SVG drawings: boxes with words, grids, and the colours of all pictures."""

from collections.abc import Callable, Iterable, Sequence
import html
import pathlib

INK, SOFT, LINE, PAPER = "#1b1f24", "#57606a", "#8c959f", "#ffffff"
# Boxes also differ by border, so that pictures do not rely on colour.
TINTS = ("#dbeafe", "#dcfce7", "#fef3c7", "#f3e8ff", "#ffe4e6", "#ccfbf1", "#ffedd5", "#e2e8f0")
HIDDEN, SPECIAL, STRANGE = "#fdba74", "#d0d7de", "#fda4af"
_FONT = "ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif"
_WIDTH = 7.4  # of a letter at 13 pixels


def picture(width: float, height: float, parts: Iterable[str], *, title: str, about: str) -> str:
  """Returns a complete SVG file with its own background, readable on any page."""
  body = "\n".join(parts)
  return (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    f' role="img" font-family="{_FONT}" font-size="13">\n<title>{html.escape(title)}</title>\n'
    f"<desc>{html.escape(about)}</desc>\n"
    f'<rect width="{width:g}" height="{height:g}" rx="6" fill="{PAPER}"/>\n{body}\n</svg>\n'
  )


def write(folder: pathlib.Path, names: Iterable[str], draw: Callable[[str], str]) -> int:
  """Draws each name into NAME.svg; returns the exit code of a script."""
  folder.mkdir(parents=True, exist_ok=True)
  for name in names:
    (folder / f"{name}.svg").write_text(draw(name))
  return 0


def text(x: float, y: float, words: str, *, colour: str = INK, anchor: str = "start", size: float = 13) -> str:
  """Returns a line of text with its baseline at y."""
  return (
    f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="{anchor}" font-size="{size:g}">{html.escape(words)}</text>'
  )


def box(
  x: float, y: float, width: float, height: float, *, fill: str, border: str = LINE, thick: bool = False, dashed=False
) -> str:
  """Returns a rectangle."""
  look = ' stroke-width="2.5"' if thick else ' stroke-dasharray="3 2"' if dashed else ""
  return (
    f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}" stroke="{border}"{look}/>'
  )


def words_wide(words: str) -> float:
  """Returns the approximate width of a box around words."""
  return round(max(len(words), 1) * _WIDTH + 10, 1)


def row(
  y: float, label: str, pieces: Sequence[tuple[str, str, bool, bool]], *, width: float, left: float = 74
) -> tuple[list[str], float]:
  """Returns a row of words in boxes, wrapped to the width, and its lower end.

  Args:
    y: upper end.
    label: text before the boxes.
    pieces: words, fill, whether the border is thick, whether it is dashed.
    width: of the picture.
    left: start of the boxes.
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
