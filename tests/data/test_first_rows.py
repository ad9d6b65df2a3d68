"""Preview of the rows that a model receives."""

import numpy as np

from t2t.data import vocabularies
from t2t.data.preview import first_rows

BYTES = vocabularies.load("bytes", extra_ids=4)  # byte ids are offset by 3; sentinels count down from the last id
LAST = BYTES.vocab_size - 1


def ids(text):
  return [byte + 3 for byte in text.encode()]


def padded(*rows, length=8):
  return np.array([[*row, *[0] * (length - len(row))] for row in rows], np.int32)


def test_pieces_are_named_and_counted():
  """Shows encoder inputs, targets, which targets have a loss, and the padding, for rows with text."""
  batch = {
    "encoder_input_tokens": padded([*ids("ab"), LAST, 1], []),
    "decoder_input_tokens": padded([0, LAST, *ids("c")], []),
    "decoder_target_tokens": padded([LAST, *ids("c"), 1], []),
    "decoder_loss_weights": padded([1, 1, 0], []).astype(np.float32),
  }
  (found,) = first_rows.described(batch, BYTES, number=5)
  text = [("a", "", False), ("b", "", False), ("<extra_id_0>", "sentinel", False), ("</s>", "EOS and the like", False)]
  assert found["encoder_input_tokens"] == {"pieces": text, "more": 0, "padding": 4}
  written = [("<extra_id_0>", "sentinel", True), ("c", "", True), ("</s>", "EOS and the like", False)]
  assert found["decoder_target_tokens"] == {"pieces": written, "more": 0, "padding": 5}
  assert set(found) == {"encoder_input_tokens", "decoder_target_tokens"}


def test_packed_rows_have_borders_and_long_ones_are_cut():
  """Control characters are escaped, so that a page or a terminal does not act on them."""
  batch = {
    "encoder_input_tokens": padded([*ids("ab\n"), 1, *ids("cde")]),
    "encoder_target_tokens": padded([*ids("xb\n"), 1, *ids("cde")]),
    "encoder_loss_weights": padded([1, 0, 0, 0, 0, 1]),
    "encoder_segment_ids": padded([1, 1, 1, 1, 2, 2, 2]),
  }
  (found,) = first_rows.described(batch, BYTES, most=6)
  pieces, more, padding = found["encoder_input_tokens"].values()
  assert [text for text, _, _ in pieces] == ["a", "b", "\\n", "</s>", "|", "c", "d"]
  assert pieces[4][1] == first_rows.BORDER and (more, padding) == (1, 1)
  counted = [[text for text, _, counts in feature["pieces"] if counts] for feature in found.values()]
  assert counted == [["a", "d"], ["x", "d"]]
