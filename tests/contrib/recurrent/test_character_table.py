"""The characters of each id of a vocabulary."""

import numpy as np
import pytest

from t2t.contrib.recurrent import character_table
from t2t.data import vocabularies

LONGEST = 12
PADDED = 261


def texts_of(table: np.ndarray) -> list[bytes | int | None]:
  """Returns the bytes of each row, the number of a single character that is no byte, or None."""
  found = []
  for row in table:
    inner = [x - 1 for x in row if x not in (259, 260, PADDED)]
    found.append(None if not row.any() else inner[0] if inner[0] > 255 else bytes(inner))
  return found


def test_a_row_has_the_characters_between_marks():
  """Numbers are those of `ELMoCharacterMapper`, plus one; longer tokens are cut."""
  assert character_table.row(b"at", 6) == [259, 98, 117, 260, 261, 261]
  assert character_table.row(b"character", 6) == [259, *(x + 1 for x in b"char"), 260]
  assert character_table.row("é".encode(), 6) == [259, 0xC3 + 1, 0xA9 + 1, 260, 261, 261]


def test_bytes_and_special_ids():
  """Each byte is its own character, padding is 0, and special ids have characters that no text has."""
  vocabulary = vocabularies.load("bytes", extra_ids=3)
  made = character_table.table(vocabulary, rows=384, longest=LONGEST)
  assert made.shape == (384, LONGEST) and made.dtype == np.int32
  found = texts_of(made)
  assert found[0] is None and found[1] == character_table.END_TEXT and found[2] == b"\xc0"
  assert found[3:259] == [bytes([i]) for i in range(256)]
  assert found[259:262] == [b"<extra_id_", b"<extra_id_", b"<extra_id_"]  # cut
  assert found[262:] == [None] * 122


@pytest.fixture(scope="module")
def words(tmp_path_factory):
  """Returns a vocabulary of words, as `t2t vocab train --type word` makes it."""
  from t2t.data.vocabularies import training

  folder = tmp_path_factory.mktemp("words")
  texts = ["the cat sat on the mat because it was antidisestablishmentarianism"] * 3
  training.train_words(texts, size=20, output_dir=folder, min_count=1)
  return vocabularies.load(str(folder), extra_ids=2)


def test_words_have_their_bytes(words):
  """Special ids have distinct rows, also of sentinels; the longest word is cut."""
  made = character_table.table(words, rows=128, longest=20)
  found, texts = texts_of(made), vocabularies.token_texts(words)
  assert found[texts.index("cat")] == b"cat"
  assert found[texts.index("antidisestablishmentarianism")] == b"antidisestablishme"
  ids = range(1, words.vocab_size)
  assert len({tuple(made[i]) for i in ids}) == len(ids)


def test_pieces_of_one_byte_are_that_byte(tmp_path):
  """A character without a token is spelled by its bytes, not by the names <0xC3> of their pieces."""
  from t2t.data.vocabularies import training

  training.train_sentencepiece(["a cat sat on a mat"] * 3, size=268, output_dir=tmp_path, byte_fallback=True)
  vocabulary = vocabularies.load(str(tmp_path), extra_ids=2)
  found = texts_of(character_table.table(vocabulary, rows=384, longest=20))
  assert b"".join(found[i] for i in vocabulary.encode("é")[-2:]) == "é".encode()
