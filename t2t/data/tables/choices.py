"""Reads the candidates of a row and its correct candidate; all labels of a column have the same form."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

from t2t import UserError
from t2t.data.tables import reading, values
from t2t.data.tables.spec import TableSpec

_MARKS = ("-1", "-100")  # mark a row without a label; -100 is PyTorch's ignore index
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Candidates(NamedTuple):
  """Candidates of a row.

  texts: text of each candidate; "" for an empty one.
  keys: name of each candidate, as in ARC's `choices.label`, or its column.
  """

  texts: Sequence[str]
  keys: Sequence[str]

  @property
  def filled(self) -> list[str]:
    """Non-empty candidates."""
    return [text for text in self.texts if text]


def read(spec: TableSpec, fields: Mapping[str, Any], *, where: str) -> Candidates:
  """Returns all candidates of a row, including empty ones, because labels count them.

  In:  {"choices": {"text": ["p", "q"], "label": ["A", "B"]}};  {"choices": '["p", "q"]'};  {"choices": {"A": "p", ...}}
  Out: (["p", "q"], ["A", "B"]);  (["p", "q"], []);  (["p", ...], ["A", ...])

  Raises:
    UserError: there are fewer than two candidates, or a candidate is not a text; names file, line and column.
  """
  names = spec.candidates
  first = values.plain(fields.get(names[0]))
  texts_and_keys = _listed(first) if len(names) == 1 else ([values.plain(fields.get(name)) for name in names], names)
  texts = [values.text(x) for x in texts_and_keys[0]] if texts_and_keys else []
  if None in texts or sum(map(bool, texts)) < 2:
    if len(names) > 1:
      name = next(name for name, text in zip(names, texts, strict=True) if not text)
      raise UserError(
        f"{where}: column {name!r} contains {str(fields.get(name))[:40]!r}, but the columns {', '.join(names)} must "
        "contain at least two texts, and only text; correct the row"
      )
    raise UserError(
      f"{where}: column {names[0]!r} contains {str(first)[:40]!r}, not a list of at least two texts; give a list such"
      ' as ["a", "b"]'
    )
  keys = [values.label(key).casefold() for key in texts_and_keys[1]]
  return Candidates(texts, keys if len(keys) == len(texts) else ())


def _listed(cell: Any) -> tuple[Sequence[Any], Sequence[Any]] | None:
  """Returns the candidates and their names in a single cell, or None if the cell has no candidates."""
  cell = values.parsed(cell) if isinstance(cell, str) else cell
  if isinstance(cell, Mapping):
    texts, keys = values.plain(cell.get("text")), values.plain(cell.get("label"))
    if not isinstance(texts, list | tuple):  # {"A": "p", "B": "q"}
      pairs = [(key, text) for key, text in cell.items() if not values.is_missing(text)]
      return [text for _, text in pairs], [key for key, _ in pairs]
    return texts, keys if isinstance(keys, list | tuple) else ()
  if isinstance(cell, list | tuple) and cell and all(isinstance(x, Mapping) for x in cell):  # [{"label", "text"}]
    return [x.get("text") for x in cell], [x.get("label", x.get("key", "")) for x in cell]
  return (cell, ()) if isinstance(cell, list | tuple) else None


def are_listed(cells: Sequence[Any]) -> bool:
  """Returns whether nearly all of the first cells are lists of candidates; later errors name the faulty lines."""
  candidate_lists = [_listed(values.plain(cell)) for cell in cells[:100]]
  number = sum(x is not None and len(x[0]) > 1 and None not in map(values.text, x[0]) for x in candidate_lists)
  return bool(candidate_lists) and number >= 0.8 * len(candidate_lists)


# ---- Correct candidate -----------------------------------------------------------------------------------------------


def _number(name: str, candidates: Candidates, first: int) -> int:
  number = values.number(name) if name.isascii() else None  # pandas writes 1.0 if other labels are missing
  return int(number) - first if number is not None and number.is_integer() else -1


def _letter(name: str, candidates: Candidates, first: int) -> int:
  return _LETTERS.find(name.upper()) if len(name) == 1 else -1


def _text(name: str, candidates: Candidates, first: int) -> int:
  texts = [values.label(text) for text in candidates.texts]
  return texts.index(name) if name in texts else -1


def _key(name: str, candidates: Candidates, first: int) -> int:
  return candidates.keys.index(name.casefold()) if name.casefold() in candidates.keys else -1


_READ = {"key": _key, "number": _number, "letter": _letter, "text": _text}

# (label_is, counts_from) -> description of a label, for messages.
_WAYS = {
  ("key", 0): "the name of a candidate",
  ("number", 0): "the number of a candidate, from 0",
  ("number", 1): "the number of a candidate, from 1",
  ("letter", 0): "the letter of a candidate",
  ("text", 0): "the text of a candidate",
}


def described(spec: TableSpec) -> str:
  """Describes the labels of a column, for the log at the start of a run."""
  if spec.label_is == "number":
    return f"labels count from {spec.counts_from}"
  way = _WAYS.get((spec.label_is, spec.counts_from))
  return f"a label is {way}" if way else "a label is a number, a letter or a text"


def is_missing(spec: TableSpec, value: Any) -> bool:
  """Returns whether a row lacks its label: null, empty, -1 or -100, unless candidates may be -1."""
  return values.is_missing(value) or spec.label_is != "text" and values.label(value) in _MARKS


def right(spec: TableSpec, value: Any, candidates: Candidates, *, where: str) -> int:
  """Returns the index of the correct candidate among the non-empty ones.

  Raises:
    UserError: the label matches no candidate, or an empty one; names file, line and column.
  """
  name = values.label(value)
  # Specs from before `label_is` try every form for each row.
  ways = (spec.label_is,) if spec.label_is else ("text", "number", "letter")
  position = next((x for way in ways if (x := _READ[way](name, candidates, spec.counts_from)) >= 0), -1)
  if not 0 <= position < len(candidates.texts):
    way = _WAYS.get((spec.label_is, spec.counts_from), "a number, a letter or a text")
    raise UserError(
      f"{where}: column {spec.label!r} contains {name[:40]!r}, which matches none of the {len(candidates.texts)}"
      f" candidates. In this column, a label is {way}. Correct the row, or write all labels in the same form."
    )
  if not candidates.texts[position]:
    raise UserError(
      f"{where}: column {spec.label!r} contains {name[:40]!r}, but candidate {position + 1} of"
      f" {len(candidates.texts)} is empty; fill in the candidate, or delete the row"
    )
  return sum(map(bool, candidates.texts[:position]))


def decide(spec: TableSpec, rows: Sequence[reading.TableRow], labels: str, *, where: str) -> TableSpec:
  """Returns the spec with the form of its labels: a number from 0 or 1, a letter, a name, or the candidate itself.

  Args:
    spec: of a choice.
    rows: of the training table.
    labels: config.data.labels: auto, text, or labels in the order of the candidates, 0,1,2 or 1,2,3 or A,B,C.
    where: config key and files, for messages.

  Raises:
    UserError: the labels are ambiguous; the message gives a setting for each reading.
  """
  pairs = [(row, values.plain(row.fields.get(spec.label))) for row in rows]
  read_rows = [
    (row, value, read(spec, row.fields, where=row.where)) for row, value in pairs if not values.is_missing(value)
  ]
  typed = _typed(max((len(candidates.texts) for _, _, candidates in read_rows), default=2))
  if labels != "auto":
    return _replaced(spec, _way_of_labels(labels, typed))
  labelled = [x for x in read_rows if not _lacks_label(x[1], x[2])]
  if not labelled:
    return spec
  fitting: dict[tuple[str, int], list[int]] = {}
  counts: dict[tuple[str, int], int] = {}
  for way in _WAYS:
    positions = [_position(way, value, candidates) for _, value, candidates in labelled]
    counts[way] = sum(x >= 0 for x in positions)
    if counts[way] == len(positions):
      fitting[way] = positions
  if not any(counts.values()):
    row, value, candidates = labelled[0]
    raise UserError(
      f"{row.where}: column {spec.label!r} contains {values.label(value)[:40]!r}, which matches none of the"
      f" {len(candidates.texts)} candidates. Give the number, the letter or the text of a candidate, in the same form"
      " in all rows."
    )
  if not fitting:  # reading the row raises an error with its line
    return _replaced(spec, max(counts, key=lambda way: counts[way]))
  if ("key", 0) in fitting:
    return _replaced(spec, ("key", 0))
  if all(isinstance(value, int | float) for _, value, _ in labelled) and any(way == "number" for way, _ in fitting):
    fitting.pop(("text", 0), None)  # numbers in JSON are not texts
  if not _are_filled(fitting.get(("number", 1)), labelled) and _are_filled(fitting.get(("number", 0)), labelled):
    fitting.pop(("number", 1), None)  # this reading would select empty candidates
  first, *other_ways = fitting
  for other_way in other_ways:
    if fitting[first] != fitting[other_way]:
      _refuse(spec, labelled, fitting, first, other_way, typed, where)
  return _replaced(spec, first)


def _replaced(spec: TableSpec, way: tuple[str, int]) -> TableSpec:
  return dataclasses.replace(spec, label_is=way[0], counts_from=way[1])


def _lacks_label(value: Any, candidates: Candidates) -> bool:
  """Returns whether a row lacks its label, before it is known whether -1 may be a candidate's text."""
  return (name := values.label(value)) in _MARKS and (not isinstance(value, str) or name not in candidates.texts)


def _position(way: tuple[str, int], value: Any, candidates: Candidates) -> int:
  """Returns the index of the candidate, or -1. Empty candidates at the end are padding and do not count."""
  position = _READ[way[0]](values.label(value), candidates, way[1])
  number = max(n for n, text in enumerate(candidates.texts, start=1) if text)
  return position if 0 <= position < number else -1


def _are_filled(positions: Sequence[int] | None, labelled: Sequence[tuple[reading.TableRow, Any, Candidates]]) -> bool:
  """Returns whether a reading exists and selects no empty candidate."""
  return positions is not None and all(x[2].texts[n] for n, x in zip(positions, labelled, strict=True))


def _typed(most: int) -> dict[tuple[str, int], str]:
  """Returns form of label -> value of config.data.labels."""
  values_by_way = {("number", first): ",".join(str(n + first) for n in range(most)) for first in (0, 1)}
  return values_by_way | {("letter", 0): ",".join(_LETTERS[:most]), ("text", 0): "text"}


def _way_of_labels(labels: str, typed: Mapping[tuple[str, int], str]) -> tuple[str, int]:
  names = "".join(labels.split()).upper()
  for way, value in typed.items():
    if names == value.upper():
      return way
  listed = "; ".join(f"{value} ({_WAYS[way]})" for way, value in typed.items())
  raise UserError(
    f"config.data.labels={labels} does not describe the labels of a table with candidates. Give auto, or one of:"
    f" {listed}."
  )


def _refuse(
  spec: TableSpec,
  labelled: Sequence[tuple[reading.TableRow, Any, Candidates]],
  fitting: Mapping[tuple[str, int], Sequence[int]],
  first: tuple[str, int],
  other_way: tuple[str, int],
  typed: Mapping[tuple[str, int], str],
  where: str,
) -> None:
  """Raises an error that names an ambiguous row, and the setting for each of its readings."""
  number = next(
    n
    for n, (first_position, other_position) in enumerate(zip(fitting[first], fitting[other_way], strict=True))
    if first_position != other_position
  )
  row, value, candidates = labelled[number]
  texts = {way: candidates.texts[fitting[way][number]][:40] or "an empty candidate" for way in (first, other_way)}
  ways = ", or ".join(f"{_WAYS[way]}, here {text!r} (--config.data.labels={typed[way]})" for way, text in texts.items())
  raise UserError(
    f"{where}: column {spec.label!r} can be read in two ways. {values.label(value)[:40]!r} ({row.where}) may be "
    f"{ways}. Give one of the two settings."
  )
