"""Postprocess functions of seqio tasks: turn generated text into values that metrics compare.

Each function returns a `postprocess(text, example=None, is_target=False)`. The value of a prediction comes from its
text. The value of a target comes from the fields of the example, because a vocabulary need not reproduce its text.

Text without an answer is `UNPARSEABLE`, None or "": never correct, and counted by `is_unparseable`.
"""

from collections.abc import Callable, Mapping, Sequence
import math
import re
from typing import Any

import numpy as np

from t2t import UserError

UNPARSEABLE = -1  # label of a text that names none
UNANSWERABLE = "unanswerable"  # output for a question that the text does not answer

Postprocess = Callable[..., Any]

# Words without content: articles, possessives, demonstratives, quantifiers.
_DETERMINER = re.compile(
  "a|an|the|her|his|its|my|our|their|whose|your|that|these|this|those|which|each|every|few|many|much|some"
)
_WORD = re.compile(r"\w[\w']*")


def is_unparseable(value: Any) -> bool:
  """Returns whether a prediction's value marks text without an answer; empty text has none."""
  if isinstance(value, Mapping) and "value" in value:
    value = value["value"]
  # A model may well write -1.0 as a number; only a label is never -1.
  return value is None or (isinstance(value, str | int | np.integer) and value in ("", UNPARSEABLE))


def field(example: Mapping[str, Any] | None, name: str) -> Any:
  """Returns a field of an example.

  Raises:
    UserError: the example lacks the field; lists its fields.
  """
  if example is None or name not in example:
    names = ", ".join(sorted(example)) if example else "none"
    raise UserError(
      f"an example has no field {name!r} (fields of the example: {names}). Keep the field in the task's preprocessors."
    )
  return example[name]


def indices(example: Mapping[str, Any] | None) -> tuple[int, ...]:
  """Returns the "idx" of an example: one number, three for MultiRC and two for ReCoRD."""
  return tuple(int(part) for part in np.ravel(field(example, "idx")))


def texts(example: Mapping[str, Any] | None, name: str) -> list[str]:
  """Returns a field that is a list of strings."""
  return [_text(value) for value in field(example, name)]


# ---- Postprocess functions -------------------------------------------------------------------------------------------


def label(labels: Sequence[str]) -> Postprocess:
  """Returns the function from a text to the index of its label.

  "neutral"       -> 2       labels ("entailment", "contradiction", "neutral")
  "it is neutral" -> -1
  target          -> the example's "label"
  """
  return _postprocess(lambda text, _: _index(text, labels), _label)


def number() -> Postprocess:
  """Returns the function from a text to its number.

  "2.8"  -> 2.8
  "high" -> None
  target -> the example's "label"
  """

  def parse(text: str, _) -> float | None:
    try:
      value = float(text)
    except ValueError:
      return None
    return value if math.isfinite(value) else None

  return _postprocess(parse, lambda example: float(field(example, "label")))


def multirc() -> Postprocess:
  """Returns the function from a text to the correctness of an answer, with the group of its question.

  "True" -> {"group": (3, 14), "value": 1}      the example's "idx" is [3, 14, 15]: paragraph, question, answer
  target -> the same, from the example's "label"

  The group contains the paragraph, because questions may be numbered within a paragraph.
  """

  def group(example: Mapping[str, Any]) -> tuple[int, int]:
    paragraph, question, _ = indices(example)
    return paragraph, question

  return _postprocess(
    lambda text, example: {"group": group(example), "value": _index(text, ("False", "True"))},
    lambda example: {"group": group(example), "value": _label(example)},
  )


def axg() -> Postprocess:
  """Returns the function from a text to its label, for pairs of sentences that differ in a pronoun's gender.

  "not_entailment" -> 1
  target           -> {"label": 1, "pair": 7}      the example's "label" and "pair"
  """
  return _postprocess(
    lambda text, _: _index(text, ("entailment", "not_entailment")),
    lambda example: {"label": _label(example), "pair": int(field(example, "pair"))},
  )


def record() -> Postprocess:
  """Returns the function that strips a text; for a target, all correct answers with their query.

  " Bhutto" -> "Bhutto"
  target    -> {"group": (0, 7), "answers": ["Benazir Bhutto", "Bhutto"]}      "idx" is [0, 7]: passage, query
  """
  return _postprocess(
    lambda text, _: text, lambda example: {"group": indices(example), "answers": texts(example, "answers")}
  )


def wsc() -> Postprocess:
  """Returns the function that compares a text with "targets_pretokenized": 1 or 0, and `UNPARSEABLE` without words.

  "the councilmen" -> 1      for "The city councilmen"
  "demonstrators"  -> 0
  target           -> the example's "label"

  Ignoring case, punctuation and determiners, one text contains all words of the other, and both have a possessive or
  neither: "Bob" is not "Bob's hat". A model can rate a candidate this way without having learned to reject one (Raffel
  et al. 2020, section 2.4; Kocijan et al. 2019).
  """

  def refers(text: str, example: Mapping[str, Any] | None) -> int:
    written, target_words = (_content_words(noun) for noun in (text, _text(field(example, "targets_pretokenized"))))
    if not written:
      return UNPARSEABLE
    possessive = [any("'" in word for word in words) for words in (written, target_words)]
    return int(
      bool(target_words) and possessive[0] == possessive[1] and (written <= target_words or target_words <= written)
    )

  return _postprocess(refers, _label)


def squad() -> Postprocess:
  """Returns the function that strips a text; for a target, the list of correct "answers"."""
  return _postprocess(lambda text, _: text, lambda example: texts(example, "answers"))


def tagged(names: Sequence[str]) -> Postprocess:
  """Returns the function from tags with spaces, or from entities, to a tag per word; for a target, its "tags".

  "B-PER I-PER O"              -> ["B-PER", "I-PER", "O"]      the example's "words" are ["Ann", "Lee", "won"]
  "PER: Ann Lee"               -> ["B-PER", "I-PER", "O"]
  "none"                       -> ["O", "O", "O"]
  "I do not know"              -> None

  Args:
    names: names of the tags, by number, see `mark_entities`.

  Raises:
    UserError: see `mark_entities`.
  """
  mark_entities(names)
  return _postprocess(
    lambda text, example: tags_of(text, texts(example, "words"), names),
    lambda example: [names[int(tag)] for tag in field(example, "tags")],
  )


def text() -> Postprocess:
  """Returns the function that strips a text; for a target, the example's "targets_pretokenized"."""
  return _postprocess(lambda text, _: text, lambda example: _text(field(example, "targets_pretokenized")).strip())


# ---- Entities --------------------------------------------------------------------------------------------------------


def mark_entities(names: Sequence[str]) -> bool:
  """Returns whether tags mark entities (B- and I- with a type, O elsewhere) rather than a class per word (DET, NOUN).

  Raises:
    UserError: the tags mix both forms, or one contains white space.
  """
  marks = [name for name in names if _is_mark(name)]
  if unmarked := [name for name in names if name != "O" and name not in marks and marks]:
    raise UserError(
      f"tags {', '.join(names)}: {unmarked[0]} does not begin with B- or I-, but {marks[0]} does. Begin all tags "
      "except O with B- or I-."
    )
  if spaced := [name for name in names if name.split() != [name]]:
    raise UserError(f"tag {spaced[0]!r} contains white space, but white space separates tags. Rename the tag.")
  return bool(marks)


def _is_mark(tag: str) -> bool:
  return tag.startswith(("B-", "I-"))


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
  """Returns type, first word and end of each entity or tag.

  In:  ["B-PER", "I-PER", "O", "I-LOC", "B-LOC"]
  Out: [("PER", 0, 2), ("LOC", 3, 4), ("LOC", 4, 5)]                  an I- without a preceding entity begins one
  In:  ["DET", "NOUN"]
  Out: [("DET", 0, 1), ("NOUN", 1, 2)]
  """
  spans: list[tuple[str, int, int]] = []
  for index, tag in enumerate(tags):
    kind = tag[2:] if _is_mark(tag) else tag
    if tag.startswith("I-") and spans and spans[-1][0] == kind and spans[-1][2] == index:
      spans[-1] = (kind, spans[-1][1], index + 1)
    elif tag != "O":
      spans.append((kind, index, index + 1))
  return spans


def written_tags(words: Sequence[str], tags: Sequence[str], names: Sequence[str]) -> str:
  """Returns the target text of tags: the entities, or the tags themselves if they mark none.

  In:  ["Ann", "Lee", "saw", "Rome"], ["B-PER", "I-PER", "O", "B-LOC"]
  Out: "PER: Ann Lee; LOC: Rome"                                      "none" without an entity
  In:  ["the", "cat"], ["DET", "NOUN"]
  Out: "DET NOUN"

  Args:
    words: words of the text.
    tags: tag of each word.
    names: names of all tags, see `mark_entities`.
  """
  if not mark_entities(names):
    return " ".join(tags)
  return "; ".join(f"{kind}: {' '.join(words[start:end])}" for kind, start, end in entities(tags)) or _NO_ENTITY


_NO_ENTITY = "none"


def tags_of(text: str, words: Sequence[str], names: Sequence[str]) -> list[str] | None:
  """Parses the text of `tagged` to a tag per word; None if it contains neither tags nor entities.

  Each entity is searched in the words behind the previous one; an entity that is not found marks nothing.
  """
  text_tags = text.split()
  if text_tags and set(text_tags) <= {*names, "O"}:  # O is also the tag of words that were not asked
    return [*text_tags, *["O"] * len(words)][: len(words)]
  if not mark_entities(names):
    return None
  tags, behind = ["O"] * len(words), 0
  if text == _NO_ENTITY:
    return tags
  kinds = "|".join(sorted({re.escape(name[2:]) for name in names if _is_mark(name)}))
  parts = [re.fullmatch(rf"({kinds}):\s+(.*)", part) for part in re.split(rf";\s+(?=(?:{kinds}):\s)", text)]
  for match in filter(None, parts):
    start, end = _place_of(match[2].split(), words, behind)
    if end:
      behind = end
      tags[start:end] = [f"B-{match[1]}"] + [f"I-{match[1]}"] * (end - start - 1)
  return tags if any(parts) else None


def _place_of(entity_words: Sequence[str], words: Sequence[str], behind: int) -> tuple[int, int]:
  """Returns the range of the first words from `behind` on that match an entity; (0, 0) without a match.

  In:  ["Ann", "Lee"], ["saw", "Ann", "Lee"], 0
  Out: (1, 3)

  Words may contain white space, as in WikiANN: ["Ann Lee"] matches like ["Ann", "Lee"].
  """
  for start in range(behind, len(words) if entity_words else 0):
    if words[start].split()[:1] == entity_words[:1]:
      for end in range(start + 1, min(start + len(entity_words), len(words)) + 1):
        if " ".join(words[start:end]).split() == list(entity_words):
          return start, end
  return 0, 0


# ---- Helper functions ------------------------------------------------------------------------------------------------


def _postprocess(prediction: Callable[[str, Mapping | None], Any], target: Callable[[Mapping | None], Any]):
  def postprocess(text: str, example: Mapping[str, Any] | None = None, is_target: bool = False) -> Any:
    return target(example) if is_target else prediction(text.strip(), example)

  return postprocess


def _index(text: str, labels: Sequence[str]) -> int:
  return labels.index(text) if text in labels else UNPARSEABLE


def _label(example: Mapping[str, Any] | None) -> int:
  return int(field(example, "label"))


def _text(value: Any) -> str:
  if isinstance(value, np.ndarray):
    value = value.item()
  return value.decode("utf-8") if isinstance(value, bytes) else value


def _content_words(noun: str) -> set[str]:
  words = _WORD.findall(noun.lower().replace("’", "'"))
  return {word for word in words if not _DETERMINER.fullmatch(word)}
