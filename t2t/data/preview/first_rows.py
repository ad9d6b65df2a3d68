"""Describes the first rows of a batch as `t2t tasks show` prints them: pieces, their kinds, and the loss positions."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t2t.data import vocabularies
from t2t.data.preview import token_kinds
from t2t.models.architecture import real_positions, sides
from t2t.param_tree import Vocabulary

Piece = tuple[str, str, bool]  # text, kind ("" for an ordinary piece), whether its loss counts
BORDER = "next example"  # separator of two examples in a packed row


def described(
  batch: Mapping[str, np.ndarray], vocabulary: Vocabulary, *, number: int = 3, most: int = 96
) -> list[dict[str, Any]]:
  """Returns feature -> pieces, with the number of further pieces, for each of the first rows that has text.

  In:  rows "the <extra_id_0> sat </s>" and "<extra_id_0> cat </s>"
  Out: {"encoder_input_tokens": {"pieces": [("the", "", False), ("<extra_id_0>", "sentinel", False), ...], "more": 0,
        "padding": 12}, "decoder_target_tokens": {...}}

  Args:
    batch: model features, [batch, length] each.
    vocabulary: vocabulary of the run.
    number: maximum number of rows.
    most: maximum number of pieces of a feature.
  """
  texts, kinds = vocabularies.token_texts(vocabulary), token_kinds.kinds_of(vocabulary)
  described_rows = []
  for row in range(min(number, len(next(iter(batch.values()))))):
    row_features = {name: values[row] for name, values in batch.items()}
    described_rows.append({name: _feature(row_features, name, texts, kinds, most) for name in _shown(row_features)})
  return [row for row in described_rows if any(feature["pieces"] for feature in row.values())]


def _shown(row: Mapping[str, np.ndarray]) -> Iterator[str]:
  """Yields the inputs of the encoder and the targets of each side; a decoder's inputs are its shifted targets."""
  for side in sides(row):
    names = (f"{side}_input_tokens",) if side == "encoder" else ()
    yield from (name for name in (*names, f"{side}_target_tokens") if name in row)


def _feature(
  row: Mapping[str, np.ndarray], name: str, texts: list[str], kinds: Mapping[int, str], most: int
) -> dict[str, Any]:
  side = name.partition("_")[0]
  real = real_positions(row, side)
  counted = next((row[key] > 0 for key in (f"{side}_loss_weights", f"{side}_answer_heads") if key in row), None)
  counted = np.zeros_like(real) if counted is None else counted
  segments = row.get(f"{side}_segment_ids", real)
  places = np.flatnonzero(real)
  pieces: list[Piece] = []
  for before, position in zip([None, *places[:most]], places[:most], strict=False):
    if before is not None and segments[position] != segments[before]:
      pieces.append(("|", BORDER, False))
    token = int(row[name][position])
    text = texts[token] if 0 <= token < len(texts) else "?"
    text = "".join(x if x.isprintable() else repr(x)[1:-1] for x in text)
    pieces.append((text, kinds.get(token, ""), bool(counted[position])))
  return {"pieces": pieces, "more": max(0, places.size - most), "padding": int(real.size - places.size)}
