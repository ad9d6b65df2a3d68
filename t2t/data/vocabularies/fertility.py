"""How a vocabulary divides the text of a language: into how many pieces, and what of it is unknown."""

from collections.abc import Iterable
import dataclasses

import seqio

from t2t.data.vocabularies import control_tokens


@dataclasses.dataclass(frozen=True)
class Division:
  """What text became.

  characters: spaces between words included.
  words: what white space parts; of a script without it, as Thai's, a word is a line, and says little.
  pieces: ids, without EOS.
  unknown: of them.
  split: words of more than one piece.
  """

  lines: int = 0
  characters: int = 0
  words: int = 0
  pieces: int = 0
  unknown: int = 0
  split: int = 0

  @property
  def pieces_per_word(self) -> float:
    """Fertility (Rust et al. 2021): 1 where every word is a piece."""
    return self.pieces / max(self.words, 1)

  @property
  def characters_per_piece(self) -> float:
    """By how much a sequence of pieces is shorter than one of characters."""
    return self.characters / max(self.pieces, 1)

  @property
  def unknown_rate(self) -> float:
    """Share of the pieces."""
    return self.unknown / max(self.pieces, 1)

  @property
  def split_rate(self) -> float:
    """Share of the words that are more than one piece (Rust et al. 2021, "continued words")."""
    return self.split / max(self.words, 1)


def measure(vocabulary: seqio.Vocabulary, lines: Iterable[str]) -> Division:
  """Divides lines of text, without white space around them.

  In:  "a bc", of a vocabulary of the pieces " a", " b" and "c"
  Out: 4 characters, 2 words, 3 pieces, 0 unknown, 1 split
  """
  encode = control_tokens.as_text(vocabulary).encode
  sizes: dict[str, int] = {}  # word -> its pieces: a text has few of many
  number = characters = words = pieces = unknown = split = 0
  for line in lines:
    ids = encode(line)
    line_words = line.split()
    for word in line_words:
      if word not in sizes:
        # Of byte-level BPE a word is another at the beginning of a text than behind a space, where most words stand.
        sizes[word] = min(len(encode(text)) for text in (word, f" {word}"))
      split += sizes[word] > 1
    if len(sizes) > _REMEMBERED:
      sizes.clear()
    number, characters, words = number + 1, characters + len(line), words + len(line_words)
    pieces, unknown = pieces + len(ids), unknown + ids.count(vocabulary.unk_id)
  return Division(number, characters, words, pieces, unknown, split)


_REMEMBERED = 200_000  # words
