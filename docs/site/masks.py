"""Draws pictures of attention masks from `AttentionMask.allowed`, which attention itself uses.

.venv/bin/python docs/site/masks.py            # writes docs/pictures/masks/NAME.svg
"""

from collections.abc import Mapping, Sequence
import pathlib
import sys

import jax.numpy as jnp
import numpy as np
import svg

from t2t.models.masks import AttentionMask

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "pictures" / "masks"
_LENGTH, _CELL = 8, 20


def _row(*numbers: int) -> jnp.ndarray:
  return jnp.array([numbers], jnp.int32)


_TWO_TEXTS = _row(1, 1, 1, 1, 2, 2, 2, 0)

# Name -> title, the mask, queries and keys.
MASKS: Mapping[str, tuple[str, AttentionMask, int, int]] = {
  "both_ways": ("encoder: bidirectional attention", AttentionMask(_row(*[1] * 8), _row(*[1] * 8)), 8, 8),
  "padding": (
    "encoder with two padding positions",
    AttentionMask(_row(1, 1, 1, 1, 1, 1, 0, 0), _row(1, 1, 1, 1, 1, 1, 0, 0)),
    8,
    8,
  ),
  "causal": ("causal: no query sees later keys", AttentionMask(causal=True), 8, 8),
  "cross": (
    "cross-attention: targets see all inputs",
    AttentionMask(_row(*[1] * 5), _row(1, 1, 1, 1, 1, 1, 0, 0)),
    5,
    8,
  ),
  "prefix": (
    "prefix LM with a prefix of four",
    AttentionMask(prefix=_row(1, 1, 1, 1, 0, 0, 0, 0), causal=True),
    8,
    8,
  ),
  "window": ("bidirectional window of two", AttentionMask(window=2), 8, 8),
  "causal_window": ("causal window of two", AttentionMask(causal=True, window=2), 8, 8),
  "packed": (
    "two texts packed in a causal row",
    AttentionMask(_TWO_TEXTS, _TWO_TEXTS, causal=True),
    8,
    8,
  ),
  "ranks": (
    "ranks: the order 3 0 5 1 7 2 6 4",
    AttentionMask(ranks=_row(3, 0, 5, 1, 7, 2, 6, 4)),
    8,
    8,
  ),
  "front": ("learned prefix of two", AttentionMask(causal=True, front=2), 6, 8),
}


def allowed(name: str) -> np.ndarray:
  """Returns the mask, bool [query, key]."""
  _, mask, queries, keys = MASKS[name]
  return np.broadcast_to(np.asarray(mask.allowed(queries, keys)), (1, 1, queries, keys))[0, 0]


def draw(name: str) -> str:
  """Returns the picture of a mask."""
  title, mask, queries, keys = MASKS[name]
  seen, left, top = allowed(name), 34, 44
  front = mask.front
  numbers = ["+"] * front + [str(i) for i in range(keys - front)]
  parts = [svg.text(8, 18, title)]
  parts += [
    svg.text(left + _CELL * (i + 0.5), top - 6, n, colour=svg.SOFT, anchor="middle", size=11)
    for i, n in enumerate(numbers)
  ]
  for query in range(queries):
    y = top + query * _CELL
    parts.append(svg.text(left - 8, y + 14, str(query), colour=svg.SOFT, anchor="end", size=11))
    for key in range(keys):
      x, sees = left + key * _CELL, seen[query, key]
      parts.append(svg.box(x, y, _CELL, _CELL, fill="#1f5fa8" if sees else "#f6f8fa", border="#d0d7de"))
      if sees:
        parts.append(f'<circle cx="{x + _CELL / 2:g}" cy="{y + _CELL / 2:g}" r="3" fill="#fff"/>')
  height = top + queries * _CELL
  parts.append(svg.text(left, height + 18, "rows: queries; columns: keys", colour=svg.SOFT, size=11))
  return svg.picture(270, height + 28, parts, title=title, about=_said(seen))


def _said(seen: np.ndarray) -> str:
  said: Sequence[str] = [
    f"query {query} sees keys {', '.join(map(str, np.flatnonzero(row))) or 'none'}" for query, row in enumerate(seen)
  ]
  return "; ".join(said)


def main() -> int:
  """Draws all pictures."""
  return svg.write(FOLDER, MASKS, draw)


if __name__ == "__main__":
  sys.exit(main())
