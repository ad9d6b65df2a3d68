"""Statistics of tokenization in a language: tokens per word, and the unknown rate."""

from collections.abc import Iterable
import dataclasses

from t2t.data.vocabularies import control_tokens
from t2t.param_tree import Vocabulary


@dataclasses.dataclass(frozen=True)
class Division:
  """Counts for a tokenized text.

  characters: includes spaces between words.
  words: parts between white space; not meaningful in scripts without it, such as Thai, where a line is one word.
  pieces: ids, without EOS.
  unknown: unknown ids.
  split: words of more than one token.
  """

  lines: int = 0
  characters: int = 0
  words: int = 0
  pieces: int = 0
  unknown: int = 0
  split: int = 0

  @property
  def pieces_per_word(self) -> float:
    """Returns the fertility (Rust et al. 2021): 1 if every word is one token."""
    return self.pieces / max(self.words, 1)

  @property
  def characters_per_piece(self) -> float:
    """Returns the compression relative to a sequence of characters."""
    return self.characters / max(self.pieces, 1)

  @property
  def unknown_rate(self) -> float:
    """Returns the fraction of unknown tokens."""
    return self.unknown / max(self.pieces, 1)

  @property
  def split_rate(self) -> float:
    """Returns the fraction of words with more than one token (Rust et al. 2021, "continued words")."""
    return self.split / max(self.words, 1)


def measure(vocabulary: Vocabulary, lines: Iterable[str]) -> Division:
  """Counts tokens of lines of text without surrounding white space.

  In:  "a bc", in a vocabulary with the tokens " a", " b" and "c"
  Out: 4 characters, 2 words, 3 pieces, 0 unknown, 1 split
  """
  encode = control_tokens.as_text(vocabulary).encode
  sizes: dict[str, int] = {}  # word -> number of its tokens; few distinct words are frequent
  number = characters = words = pieces = unknown = split = 0
  for line in lines:
    ids = encode(line)
    line_words = line.split()
    for word in line_words:
      if word not in sizes:
        # Byte-level BPE encodes a word differently at the beginning of a text and after a space.
        sizes[word] = min(len(encode(text)) for text in (word, f" {word}"))
      split += sizes[word] > 1
    if len(sizes) > _REMEMBERED:
      sizes.clear()
    number, characters, words = number + 1, characters + len(line), words + len(line_words)
    pieces, unknown = pieces + len(ids), unknown + ids.count(vocabulary.unk_id)
  return Division(number, characters, words, pieces, unknown, split)


_REMEMBERED = 200_000  # words
