"""Kinds of ids, for printing pieces: sentinels, masks, padding, unknown text."""

from t2t import UserError
from t2t.data import vocabularies
from t2t.param_tree import Vocabulary


def sentinel_ids(vocabulary: Vocabulary) -> dict[int, int]:
  """Returns a dict from the id of each sentinel to its number."""
  number = vocabularies.num_sentinels(vocabulary)
  return {i: number for number, i in enumerate(vocabularies.sentinel_ids(vocabulary, number))}


def mask_id(vocabulary: Vocabulary) -> int | None:
  """Returns the id of the mask token, or None if the vocabulary has none; see `vocabularies.mask_id`."""
  try:
    return vocabularies.mask_id(vocabulary)
  except UserError:
    return None


def unknown_id(vocabulary: Vocabulary) -> int:
  """Returns the id of unknown text; -1 if the vocabulary can encode any text."""
  return -1 if vocabulary.unk_id is None else vocabulary.unk_id


def kinds_of(vocabulary: Vocabulary) -> dict[int, str]:
  """Returns id -> key of `printed._STYLES`, for all ids but ordinary pieces."""
  kinds = dict.fromkeys(sentinel_ids(vocabulary), "sentinel")
  kinds |= dict.fromkeys(vocabularies.framing_ids(vocabulary), "EOS and the like")
  if vocabulary.pad_id != vocabulary.eos_id:
    kinds[vocabulary.pad_id] = "padding"
  kinds[unknown_id(vocabulary)] = "unknown"
  mask = mask_id(vocabulary)
  if mask is not None and mask not in sentinel_ids(vocabulary):
    kinds[mask] = "masked"
  return kinds
