"""Self-contained HTML pages: no scripts, no external resources, light or dark by the reader's preference."""

from collections.abc import Iterable, Sequence
import dataclasses
import html
import math
from typing import Any

from t2t.reports import curves

MOST_BYTES = 300_000
_MOST_ROWS, _MOST_LETTERS, _MOST_OF_TABLE = 200, 1_000, 30_000  # rows of a table, letters of a cell, letters of a table
# Contrast to the background is at least 4.5 for text and 3 for graphics (WCAG 2.2).
_CSS = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--stripe:#f6f8fa;
--c0:#1f5fa8;--c1:#c8442e;--c2:#2b7a3d;--c3:#8a4fb0;--c4:#9a6700;--c5:#00767a;--c6:#b0357e;--c7:#5c5c5c;
--each:#9bb8d3;--quiet:#6b6b6b}
@media screen and (prefers-color-scheme:dark){:root{--paper:#14181d;--ink:#e6e9ec;--soft:#a3adb8;--line:#3a434d;
--stripe:#1c2229;--c0:#7ab3ee;--c1:#f08a75;--c2:#7fc98f;--c3:#c9a0e8;--c4:#dcb25c;--c5:#5cc4c4;--c6:#f08cc0;
--c7:#b5b5b5;--each:#41607f;--quiet:#9aa4ae}}
@media print{:root{color-scheme:light}figure,tr{break-inside:avoid}h2{break-after:avoid}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1200px;padding:1rem;background:var(--paper);color:var(--ink);
font:1rem/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}h2{font-size:1.2rem;margin:2rem 0 .5rem;
border-bottom:1px solid var(--line)}h3{font-size:1rem;margin:0 0 .25rem}
p{margin:.5rem 0;max-width:75ch}.soft,figcaption p{color:var(--soft)}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,350px),1fr));gap:1.25rem}
figure{margin:0;min-width:0}
@media(min-width:780px){.wide{grid-area:span 2/span 2}.wide>svg{max-width:720px}}
svg{display:block;width:100%;height:auto;fill:currentColor;stroke-linejoin:round;overflow:visible}
svg text{font-family:system-ui,sans-serif}
.legend{list-style:none;margin:.25rem 0 0;padding:0;display:flex;flex-wrap:wrap;gap:.1rem .9rem;font-size:.85rem}
.legend svg{display:inline-block;width:1.6em;height:.7em;margin-right:.35em}
.scroll{overflow-x:auto;margin-bottom:1rem}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);padding-bottom:.25rem}
th,td{text-align:left;vertical-align:top;padding:.2rem .9rem .2rem .3rem;border-bottom:1px solid var(--line)}
tbody tr:nth-child(even){background:var(--stripe)}.n{text-align:right}td.n{white-space:nowrap}
th,td{overflow-wrap:break-word;max-width:60ch}tbody th{font-weight:600}
dl{display:grid;grid-template-columns:minmax(7rem,max-content) 1fr;gap:.15rem 1rem;margin:.5rem 0}
dt{color:var(--soft)}dd{margin:0;white-space:pre-wrap}
.pieces{max-width:none;line-height:1.9;white-space:pre-wrap}
.pieces span{border-left:1px solid var(--line);padding:0 1px}
.pieces b{border-left:1px solid var(--line);padding:0 1px;font-weight:400;text-decoration:underline 2px;
text-underline-offset:.25em}
.h1{--part:8%}.h2{--part:20%}.h3{--part:32%}.h4{--part:44%}.h5{--part:56%}
td[class*=" h"]{background:color-mix(in srgb,var(--c0) var(--part),var(--paper))}
.k0{color:var(--c3)}.k1{color:var(--c5)}.k2{color:var(--c4)}.k3{color:var(--c1)}.k4{color:var(--soft)}
a{color:var(--c0)}
details{margin:.25rem 0}summary{cursor:pointer}
code{font:.9em ui-monospace,monospace}
footer{margin-top:2rem;border-top:1px solid var(--line);font-size:.85rem}
"""
_SOFT, _WIDE, _NUMBER = ' class="soft"', ' class="wide"', ' class="n"'
_LEVELS = 5  # of colour in a cell of `heat_table`, classes h1 to h5
_DASHED = {"-": "", "--": ' stroke-dasharray="5 2.5"', ":": ' stroke-dasharray="1.5 2.5"'}

escaped = html.escape


@dataclasses.dataclass(frozen=True)
class PageLink:
  """Cell of a table with a link: its text, and a relative address."""

  text: str
  address: str


def whole(title: str, parts: Iterable[str]) -> str:
  """Returns the page of HTML parts."""
  return (
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width,initial-scale=1">'
    # Blocks all external requests, whatever a name may contain.
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    f"<title>{escaped(title)}</title><style>{_CSS.strip()}</style></head>\n<body><main>\n"
    + "\n".join(filter(None, parts))
    + "\n</main></body></html>\n"
  )


def section(title: str, *parts: str) -> str:
  """Returns a heading with its content; "" if the content is empty."""
  filled_parts = [part for part in parts if part]
  return f"<section><h2>{escaped(title)}</h2>\n" + "\n".join(filled_parts) + "</section>" if filled_parts else ""


def paragraph(text: str, *, soft: bool = False) -> str:
  """Returns a paragraph of plain text."""
  return f"<p{_SOFT if soft else ''}>{escaped(text)}</p>"


def pictures(figures: Sequence[curves.Picture]) -> str:
  """Returns pictures in a grid, as many side by side as fit."""
  return f'<div class="grid">{"".join(map(_figure, figures))}</div>' if figures else ""


def _figure(picture: curves.Picture) -> str:
  entries = "".join(f"<li>{_swatch(colour, dashes)}{escaped(name)}</li>" for name, colour, dashes in picture.legend)
  legend = f'<ul class="legend">{entries}</ul>' if entries else ""
  note = paragraph(picture.note) if picture.note else ""
  return (
    f"<figure{_WIDE if picture.wide else ''}><h3>{escaped(picture.title)}</h3>{curves.element(picture)}"
    + (f"<figcaption>{legend}{note}</figcaption>" if legend or note else "")
    + "</figure>"
  )


def _swatch(colour: str, dashes: str) -> str:
  line = f'<path d="M0 4H20" style="stroke:{colour};stroke-width:2.5"{_DASHED[dashes]}/>'
  return f'<svg viewBox="0 0 20 8" aria-hidden="true">{line}</svg>'


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: bool = False) -> str:
  """Returns a table with row names in the first column; "" if it has no rows.

  Args:
    caption: of the table.
    columns: their heads.
    rows: a cell for each column.
    right: whether to right-align all cells; numbers always are.
  """
  lines, numeric = [], [True] * (len(columns) - 1)
  for name, *cells in rows:
    numeric = [was and (right or _is_number(x)) for was, x in zip(numeric, cells, strict=True)]
    cells_html = "".join(f"<td{_NUMBER if right or _is_number(x) else ''}>{_cell(x)}</td>" for x in cells)
    lines.append(f'<tr><th scope="row">{_cell(name)}</th>{cells_html}</tr>')
  if not lines:
    return ""
  heads = _heads(columns, numeric)
  # As many rows as fit, at the average length.
  half = max(1, min(_MOST_ROWS, int(_MOST_OF_TABLE * len(lines) / len("".join(lines)))) // 2)
  if len(lines) > 2 * half:
    caption += f" (the first and the last {half} of {len(lines):,})"
    lines = [*lines[:half], *lines[-half:]]
  head = f"<caption>{escaped(caption)}</caption><thead><tr>{heads}</tr></thead>"
  # Scrollable regions must be reachable by keyboard.
  where = f'role="region" aria-label="{escaped(caption)}" tabindex="0"'
  return f'<div class="scroll" {where}><table>{head}<tbody>{"".join(lines)}</tbody></table></div>'


def _heads(columns: Sequence[str], numeric: Sequence[bool]) -> str:
  """Returns the heads of columns, right-aligned above numbers."""
  return "".join(
    f'<th scope="col"{_NUMBER if right else ""}>{escaped(column)}</th>'
    for column, right in zip(columns, (False, *numeric), strict=True)
  )


def heat_table(
  caption: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], heat: Sequence[Sequence[float]]
) -> str:
  """Returns a table of numbers with coloured cells; the colours only repeat the numbers.

  Args:
    caption: of the table.
    columns: their heads.
    rows: a name, and a number for each further column.
    heat: colour of each number's cell, from 0 to 1.
  """
  heads = _heads(columns, [True] * (len(columns) - 1))
  lines = []
  for (name, *cells), shares in zip(rows, heat, strict=True):
    levels = [f" h{math.ceil(_LEVELS * share)}" if share > 0 else "" for share in shares]
    cells_html = "".join(f'<td class="n{level}">{_cell(x)}</td>' for x, level in zip(cells, levels, strict=True))
    lines.append(f'<tr><th scope="row">{_cell(name)}</th>{cells_html}</tr>')
  head = f"<caption>{escaped(caption)}</caption><thead><tr>{heads}</tr></thead>"
  where = f'role="region" aria-label="{escaped(caption)}" tabindex="0"'
  return f'<div class="scroll" {where}><table>{head}<tbody>{"".join(lines)}</tbody></table></div>'


def pairs(items: Iterable[tuple[str, Any]]) -> str:
  """Returns a list of names with values, without values "" and None; "" if it is empty."""
  lines = [f"<dt>{escaped(name)}</dt><dd>{_cell(x)}</dd>" for name, x in items if x not in ("", None)]
  return f"<dl>{''.join(lines)}</dl>" if lines else ""


# Kind of token -> its CSS class.
KINDS = {"sentinel": "k0", "EOS and the like": "k1", "masked": "k2", "unknown": "k3", "next example": "k4"}


def pieces(text_pieces: Iterable[tuple[str, str, bool]]) -> str:
  """Returns tokens of a text, separated by lines; tokens that count in the loss are underlined.

  Args:
    text_pieces: text, kind (a key of `KINDS` or ""), and whether the token counts.
  """
  parts = []
  for text, kind, counts in text_pieces:
    tag, colour = "b" if counts else "span", KINDS.get(kind, "")
    parts.append(f"<{tag}{f' class={colour}' if colour else ''}>{escaped(text)}</{tag}>")
  return f'<p class="pieces">{"".join(parts)}</p>' if parts else ""


def folded(title: str, *parts: str) -> str:
  """Returns a collapsible section; "" if the content is empty."""
  content = "".join(parts)
  return f"<details><summary>{escaped(title)}</summary>{content}</details>" if content else ""


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: float) -> str:
  """Formats a number with as many digits as are useful."""
  return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.4g}"


def _cell(value: Any) -> str:
  if isinstance(value, PageLink):
    return f'<a href="{escaped(value.address)}">{_cell(value.text)}</a>'
  text = "" if value is None else number(value) if _is_number(value) else str(value)
  return escaped(text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]} ...")
