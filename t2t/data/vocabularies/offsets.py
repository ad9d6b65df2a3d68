"""Token offsets: ids of a text with the character range of each."""

from typing import NamedTuple

import numpy as np

from t2t import UserError
from t2t.data import vocabulary_classes
from t2t.data.vocabularies import control_tokens
from t2t.param_tree import Vocabulary


class Tokens(NamedTuple):
  """Ids of a text, with the character range [start, end) of each in the Python string; int32 [tokens].

  Ranges exclude surrounding white space, which some vocabularies include in tokens. A token of white space alone, or of
  nothing, has an empty range.
  """

  ids: np.ndarray
  starts: np.ndarray
  ends: np.ndarray


def tokens_of(vocabulary: Vocabulary, text: str) -> Tokens:
  """Returns the ids of `vocabulary.encode(text)` with their offsets.

  In:  "Où es-tu?" in T5's vocabulary
  Out: [411, 23063, 3, 15, 7, 18, 17, 76, 58], [0, 1, 3, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9]

  Args:
    vocabulary: bytes, SentencePiece, WordPiece or byte-level BPE.
    text: valid Unicode.

  Raises:
    UserError: the vocabulary has a custom class.
  """
  if hasattr(vocabulary, "encode_with_offsets"):
    tokens = vocabulary.encode_with_offsets(text)
  elif vocabulary_classes.is_sentencepiece(vocabulary):
    tokens = control_tokens.sentencepiece_offsets(vocabulary.tokenizer, text)
  elif vocabulary_classes.is_bytes(vocabulary):
    byte_ranges = [(number, number + 1) for number, character in enumerate(text) for _ in character.encode()]
    tokens = [(i, *range_) for i, range_ in zip(vocabulary.encode(text), byte_ranges, strict=True)]
  else:
    raise UserError(
      f"config.data.vocabulary: {type(vocabulary).__name__} has no token offsets, which spans of text need; use "
      "bytes, SentencePiece, WordPiece or byte-level BPE"
    )
  ids, starts, ends = (np.array(column, np.int32) for column in zip(*tokens, strict=True)) if tokens else _NOTHING
  spaces = np.array([*(character.isspace() for character in text), False])
  return Tokens(ids, *_without_spaces(spaces, starts, ends))


_NOTHING = (np.zeros(0, np.int32),) * 3


def _without_spaces(spaces: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Strips white space from both ends of ranges."""
  starts, ends = starts.copy(), ends.copy()
  while (inner := (starts < ends) & spaces[np.minimum(starts, len(spaces) - 1)]).any():
    starts += inner
  while (inner := (starts < ends) & spaces[np.maximum(ends - 1, 0)]).any():
    ends -= inner
  return starts, ends
