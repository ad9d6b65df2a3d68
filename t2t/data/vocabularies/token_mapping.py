"""Two vocabularies side by side: which pieces of one the other has, and of what the rest would be made in it."""

import collections

import seqio

from t2t.data.vocabularies import reserved_ids


def old_pieces(trained: seqio.Vocabulary, configured: seqio.Vocabulary) -> list[list[int]]:
  """For each id of `configured`, its piece in `trained`: the same piece, else those that spell it; [] of neither.

  In:  trained "[UNK]", "heart", "card", "##io", "##logy"; configured the same and "cardiology", "##iology", "[MASK]"
  Out: [0], [1], [2], [3], [4], [2, 3, 4], [3, 4], []

  A piece that starts a word is tokenised as text is; one that goes on with it is the longest pieces that do, from the
  left, which is WordPiece's way and near that of others.  Special pieces and sentinels are found by their names.

  Source: Gee et al. 2022 (Fast Vocabulary Transfer), section 3.
  """
  ours, theirs = (
    reserved_ids.token_texts(vocabulary, errors="surrogateescape") for vocabulary in (configured, trained)
  )
  # Several ids may have one text, and are told apart by their order.
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
  """Whether bytes of it are no whole character."""
  return any("\udc80" <= character <= "\udcff" for character in text)


def _longest_first(text: str, pieces: dict[str, int]) -> list[int]:
  """The longest pieces from the left; [] where a character is none.

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
