"""Words in sentences: marks in a text, and the place of a word."""

from collections.abc import Sequence
import re

from t2t import UserError

BEGIN, END = "[[", "]]"
_MARKS = re.compile(r"\[\[|\]\]")


def marked(text: str, where: str) -> tuple[str, tuple[int, int] | None]:
  """Returns a text without marks, and the first character and the end of the marked word; None without marks.

  In:  "Kids [[play]] outside"
  Out: "Kids play outside", (5, 9)

  Args:
    text: has at most one marked word.
    where: location of the text, for messages.

  Raises:
    UserError: marks do not surround one word.
  """
  marks = [(match[0], match.start()) for match in _MARKS.finditer(text)]
  if not marks:
    return text, None
  if [mark for mark, _ in marks] != [BEGIN, END]:
    raise UserError(
      f"{where}: {text!r} must have one {BEGIN} and one {END} behind it. Mark one word, as in 'Kids [[play]] outside', "
      "or none."
    )
  start, end = (position for _, position in marks)
  before, word, after = text[:start], text[start + len(BEGIN) : end], text[end + len(END) :]
  if not word.strip():
    raise UserError(f"{where}: the marks of {text!r} have no word between them. Put them around a word.")
  first = len(before) + len(word) - len(word.lstrip())
  return before + word + after, (first, first + len(word.strip()))


def place(word: str, text: str, where: str) -> tuple[int, int]:
  """Returns the first character and the end of the only occurrence of a word, whose case may differ.

  Raises:
    UserError: the word does not occur, or occurs several times.
  """
  spans = [match.span() for match in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE)]
  if not spans:
    raise UserError(f"{where}: the word {word!r} does not occur in {text!r}. Correct the word or the sentence.")
  if len(spans) > 1:
    raise UserError(
      f"{where}: the word {word!r} occurs {len(spans)} times in {text!r}. Mark one of them: {BEGIN}{word}{END}."
    )
  return spans[0]


def of_text(text: str) -> list[tuple[int, int]]:
  """Returns the first character and the end of each word; punctuation is no word.

  In:  "Ann, 58, saw Rome."
  Out: [(0, 3), (5, 7), (9, 12), (13, 17)]
  """
  from t2t.data.head_examples import tags

  places: Sequence[tuple[int, int]] = tags.places(tags.split(text), text) or ()
  return [(start, end) for start, end in places if any(character.isalnum() for character in text[start:end])]
