"""What a model wrote as a value that can be compared with what is right: seqio's postprocess functions.

Each function here makes a `postprocess(text, example=None, is_target=False)`.  A prediction's value comes from the
text, a target's from the fields of the example, whatever the text is: the text of a target has been through a
vocabulary, which need not give it back unchanged.

Text that names no answer is `UNPARSEABLE`, None or "": never right, and `is_unparseable` counts it.
"""

from collections.abc import Callable, Mapping, Sequence
import math
import re
from typing import Any

import numpy as np

from t2t import UserError

UNPARSEABLE = -1  # as the label that a text names
UNANSWERABLE = "unanswerable"  # what is written where a text does not answer a question

Postprocess = Callable[..., Any]

# Words that say nothing about who is meant: articles, possessives, demonstratives, quantifiers.
_DETERMINER = re.compile(
  "a|an|the|her|his|its|my|our|their|whose|your|that|these|this|those|which|each|every|few|many|much|some"
)
_WORD = re.compile(r"\w[\w']*")


def is_unparseable(value: Any) -> bool:
  """Whether a prediction's value stands for text that names no answer; an empty text names none."""
  if isinstance(value, Mapping) and "value" in value:
    value = value["value"]
  # -1.0 is a number that a model may well write; only a label is never -1.
  return value is None or (isinstance(value, str | int | np.integer) and value in ("", UNPARSEABLE))


def field(example: Mapping[str, Any] | None, name: str) -> Any:
  """A field of an example.

  Raises:
    UserError: the example lacks it, and what it has.
  """
  if example is None or name not in example:
    names = ", ".join(sorted(example)) if example else "no fields at all"
    raise UserError(f"an example has no field {name!r}, which the task's preprocessors must keep; it has {names}")
  return example[name]


def indices(example: Mapping[str, Any] | None) -> tuple[int, ...]:
  """Which example it is: its "idx", one number, of MultiRC three and of ReCoRD two."""
  return tuple(int(part) for part in np.ravel(field(example, "idx")))


def texts(example: Mapping[str, Any] | None, name: str) -> list[str]:
  """A field that is a list of strings."""
  return [_text(value) for value in field(example, name)]


# ---- Postprocess functions -------------------------------------------------------------------------------------------


def label(labels: Sequence[str]) -> Postprocess:
  """The index of the label that a text names.

  "neutral"       -> 2       labels ("entailment", "contradiction", "neutral")
  "it is neutral" -> -1
  target          -> the example's "label"
  """
  return _postprocess(lambda text, _: _index(text, labels), _label)


def number() -> Postprocess:
  """The number that a text is.

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
  """Whether an answer is right, and of which question it is one.

  "True" -> {"group": (3, 14), "value": 1}      the example's "idx" is [3, 14, 15]: paragraph, question, answer
  target -> the same, from the example's "label"

  The paragraph belongs to the group, for questions need not be numbered through all paragraphs.
  """

  def group(example: Mapping[str, Any]) -> tuple[int, int]:
    paragraph, question, _ = indices(example)
    return paragraph, question

  return _postprocess(
    lambda text, example: {"group": group(example), "value": _index(text, ("False", "True"))},
    lambda example: {"group": group(example), "value": _label(example)},
  )


def axg() -> Postprocess:
  """The label that a text names, for sentences that come in pairs which differ in a pronoun's gender.

  "not_entailment" -> 1
  target           -> {"label": 1, "pair": 7}      the example's "label" and "pair"
  """
  return _postprocess(
    lambda text, _: _index(text, ("entailment", "not_entailment")),
    lambda example: {"label": _label(example), "pair": int(field(example, "pair"))},
  )


def record() -> Postprocess:
  """The text, without white space around it; for a target all right answers and of which query they are.

  " Bhutto" -> "Bhutto"
  target    -> {"group": (0, 7), "answers": ["Benazir Bhutto", "Bhutto"]}      "idx" is [0, 7]: passage, query
  """
  return _postprocess(
    lambda text, _: text, lambda example: {"group": indices(example), "answers": texts(example, "answers")}
  )


def wsc() -> Postprocess:
  """Whether a text names what the example's "targets_pretokenized" names: 1 or 0, and `UNPARSEABLE` without words.

  "the councilmen" -> 1      of "The city councilmen"
  "demonstrators"  -> 0
  target           -> the example's "label"

  Case, punctuation and determiners aside, one has all words of the other, and both have a possessive or neither: "Bob"
  is not "Bob's hat".  A model so rates a candidate without ever having learnt to reject one (Raffel et al. 2020,
  section 2.4; Kocijan et al. 2019).
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
  """The text, without white space around it; for a target the list of all right "answers"."""
  return _postprocess(lambda text, _: text, lambda example: texts(example, "answers"))


def tagged(names: Sequence[str]) -> Postprocess:
  """A tag for each word of the example, from tags with spaces between them or from entities; for a target its "tags".

  "B-PER I-PER O"              -> ["B-PER", "I-PER", "O"]      the example's "words" are ["Ann", "Lee", "won"]
  "PER: Ann Lee"               -> ["B-PER", "I-PER", "O"]
  "none"                       -> ["O", "O", "O"]
  "I do not know"              -> None

  Args:
    names: of the tags, by their number, see `mark_entities`.

  Raises:
    UserError: see `mark_entities`.
  """
  mark_entities(names)
  return _postprocess(
    lambda text, example: tags_of(text, texts(example, "words"), names),
    lambda example: [names[int(tag)] for tag in field(example, "tags")],
  )


def text() -> Postprocess:
  """The text, without white space around it; for a target the example's "targets_pretokenized"."""
  return _postprocess(lambda text, _: text, lambda example: _text(field(example, "targets_pretokenized")).strip())


# ---- Entities --------------------------------------------------------------------------------------------------------


def mark_entities(names: Sequence[str]) -> bool:
  """Whether tags mark entities, B- and I- before their type and O elsewhere, and are not each a word's own: DET, NOUN.

  Raises:
    UserError: some do and others do not, or one has white space in it.
  """
  marks = [name for name in names if _is_mark(name)]
  if unmarked := [name for name in names if name != "O" and name not in marks and marks]:
    raise UserError(
      f"tags {', '.join(names)}: {unmarked[0]} begins with neither B- nor I-, as {marks[0]} does, and is not O"
    )
  if spaced := [name for name in names if name.split() != [name]]:
    raise UserError(f"tag {spaced[0]!r}: a tag has no white space, which stands between two of them")
  return bool(marks)


def _is_mark(tag: str) -> bool:
  return tag.startswith(("B-", "I-"))


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
  """Type, first word, and the one behind the last, of what tags mark.

  In:  ["B-PER", "I-PER", "O", "I-LOC", "B-LOC"]
  Out: [("PER", 0, 2), ("LOC", 3, 4), ("LOC", 4, 5)]                  an I- that goes on with nothing begins, too
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
  """The entities of a text as they are written; tags that mark none are written themselves.

  In:  ["Ann", "Lee", "saw", "Rome"], ["B-PER", "I-PER", "O", "B-LOC"]
  Out: "PER: Ann Lee; LOC: Rome"                                      "none" where there is none
  In:  ["the", "cat"], ["DET", "NOUN"]
  Out: "DET NOUN"

  Args:
    words: of the text.
    tags: of each.
    names: of all tags that there are, see `mark_entities`.
  """
  if not mark_entities(names):
    return " ".join(tags)
  return "; ".join(f"{kind}: {' '.join(words[start:end])}" for kind, start, end in entities(tags)) or _NO_ENTITY


_NO_ENTITY = "none"


def tags_of(text: str, words: Sequence[str], names: Sequence[str]) -> list[str] | None:
  """A tag for each word, of what `tagged` says; None where the text is neither tags nor entities.

  Each entity is looked for in the words behind the one before; one that is not there marks nothing.
  """
  text_tags = text.split()
  if text_tags and set(text_tags) <= {*names, "O"}:  # which a word has that was not asked, too
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
  """The first words from `behind` on that are written so, as range; (0, 0) if none are.

  In:  ["Ann", "Lee"], ["saw", "Ann", "Lee"], 0
  Out: (1, 3)

  Words may have white space in them, as some of WikiANN's do: ["Ann Lee"] is written as ["Ann", "Lee"] is.
  """
  for start in range(behind, len(words) if entity_words else 0):
    if words[start].split()[:1] == entity_words[:1]:
      for end in range(start + 1, min(start + len(entity_words), len(words)) + 1):
        if " ".join(words[start:end]).split() == list(entity_words):
          return start, end
  return 0, 0


# ---- Their parts -----------------------------------------------------------------------------------------------------


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
