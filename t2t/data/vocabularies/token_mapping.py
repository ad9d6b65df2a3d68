"""Maps the tokens of one vocabulary to tokens of another, for transferring embeddings."""

import collections

from t2t.data.vocabularies import reserved_ids
from t2t.param_tree import Vocabulary


def old_pieces(trained: Vocabulary, configured: Vocabulary) -> list[list[int]]:
  """Maps each id of `configured` to ids of `trained`: the same token, else the tokens that spell it, else [].

  In:  trained "[UNK]", "heart", "card", "##io", "##logy"; configured the same and "cardiology", "##iology", "[MASK]"
  Out: [0], [1], [2], [3], [4], [2, 3, 4], [3, 4], []

  A token that starts a word is tokenized as text. A token inside a word is split into the longest tokens from the left,
  as in WordPiece and nearly as in other vocabularies. Special tokens and sentinels are matched by name.

  Source: Gee et al. 2022 (Fast Vocabulary Transfer), section 3.
  """
  ours, theirs = (
    reserved_ids.token_texts(vocabulary, errors="surrogateescape") for vocabulary in (configured, trained)
  )
  # Ids with the same text are matched in order.
  places: dict[str, collections.deque[int]] = collections.defaultdict(collections.deque)
  for old, text in enumerate(theirs):
    places[text].append(old)
  special, unusable = reserved_ids.special_ids(configured), reserved_ids.special_ids(trained)
  inner = {text: old for old, text in enumerate(theirs) if old not in unusable and text[:1].strip()}
  old_ids = []
  for new, text in enumerate(ours):
    if places[text]:
      old_ids.append([places[text].popleft()])
    elif new in special or not text.strip() or _has_parts(text):
      old_ids.append([])
    else:
      spelled = trained.encode(text) if text[:1].isspace() else _longest_first(text, inner)
      old_ids.append([old for old in spelled if old not in unusable])
  return old_ids


def _has_parts(text: str) -> bool:
  """Returns True if a text contains parts of characters."""
  return any("\udc80" <= character <= "\udcff" for character in text)


def _longest_first(text: str, pieces: dict[str, int]) -> list[int]:
  """Splits a text into the longest tokens from the left; [] if a character has no token.

  In:  "iology", {"io": 3, "i": 5, "logy": 4}
  Out: [3, 4]
  """
  piece_ids: list[int] = []
  while text:
    end = next((end for end in range(len(text), 0, -1) if text[:end] in pieces), 0)
    if not end:
      return []
    piece_ids.append(pieces[text[:end]])
    text = text[end:]
  return piece_ids
