"""Decides whether labels are classes, numbers or texts, and lists the classes in an order that the values determine."""

import collections
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import re
from typing import Any
import unicodedata

from t2t import UserError, did_you_mean
from t2t.data import postprocessors
from t2t.data.tables import choices, columns, reading, values
from t2t.data.tables.spec import TableSpec

NUMBER, TEXT, AUTO = "number", "text", "auto"
MOST_MISSING = 0.1  # share of the rows that may lack a label or a text

_MOST_CLASSES, _MOST_WHOLE_NUMBERS, _MOST_TAGS = 100, 20, 200
_SCORES = ("score", "similarity", "similarity_score", "relatedness_score", "rating")


def given(labels: str) -> tuple[str, ...]:
  """Returns the class names in config.data.labels, or () if the table decides.

  Raises:
    UserError: there is a single class, or a class is listed twice.
  """
  if labels in (AUTO, NUMBER, TEXT):
    return ()
  classes = tuple(values.label(name) for name in labels.split(",") if name.strip())
  if len(classes) < 2:
    raise UserError(
      f"config.data.labels={labels} is not valid. Give {AUTO}, {NUMBER} (a score), {TEXT} (a text that the model"
      " generates), or at least two classes in order, such as negative,positive."
    )
  if twice := [name for name, number in collections.Counter(classes).items() if number > 1]:
    raise UserError(f"config.data.labels={labels}: {twice[0]!r} is listed twice; give each class once")
  return classes


def decide(spec: TableSpec, rows: Sequence[reading.TableRow], labels: str, *, files: str, where: str) -> TableSpec:
  """Returns the spec with its kind, and the names of its classes or tags.

  Args:
    spec: see `columns.Finder.spec`.
    rows: of the training table.
    labels: config.data.labels.
    files: config.data.files.
    where: config key and files, for messages.

  Raises:
    UserError: labels are not classes, there is a single class, or too many rows have no label.
  """
  classes = given(labels) or (reading.class_names(files, spec.label) if labels == AUTO else ())
  if spec.kind == "choice":
    return choices.decide(spec, rows, labels, where=where)
  if spec.kind == "span":
    if labels != AUTO:
      raise UserError(
        f"config.data.labels={labels} does not fit a table whose answers are spans of a context; set config.data.labels"
        f" to {AUTO}"
      )
    return spec
  if spec.kind == "tags":
    return _with_tags(spec, rows, classes, labels, where)
  if labels in (NUMBER, TEXT):
    return dataclasses.replace(spec, kind="score" if labels == NUMBER else "text")
  pairs = [(row, values.plain(row.fields.get(spec.label))) for row in rows]
  for row, value in pairs:
    _check_single(value, spec, where=row.where)
  counts = collections.Counter(values.label(x) for _, x in pairs if not values.is_missing(x))
  if not classes:
    if spec.kind != "text":
      _check_spaces([x for _, x in pairs if isinstance(x, str)], spec, where)
    for mark in _missing_marks(counts, len(rows), where, spec):
      del counts[mark]
  if not counts:
    raise UserError(f"{where}: column {spec.label!r} has no label in any of {len(rows):,} rows; give rows with labels")
  if classes:
    return _with_given(spec, counts, classes, labels, where)
  if spec.kind == "text":  # targets are classes if few values are repeated often
    few = 1 < len(counts) <= 20 and all(len(name.split()) <= 3 for name in counts)
    return _with_classes(spec, counts, where) if few and sum(counts.values()) >= 5 * len(counts) else spec
  return _labelled(spec, counts, rows, where)


def _check_spaces(texts: Sequence[str], spec: TableSpec, where: str) -> None:
  """Refuses labels that differ only in white space, if they are few enough to be classes."""
  written: dict[str, str] = {}
  for text, _ in collections.Counter(text.strip() for text in texts).most_common(1_000):
    first_spelling = written.setdefault(values.label(text), text)
    if first_spelling != text:
      raise UserError(
        f"{where}: column {spec.label!r} has the labels {first_spelling!r} and {text!r}, which differ only in "
        "white space; write them alike, or list the classes in --config.data.labels"
      )


_MARKS = ("-1", "-100")  # mark unscored items; -100 is PyTorch's ignore index
_NO_GOLD = "-"  # in SNLI: annotators disagree


def is_mark(name: str, spec: TableSpec) -> bool:
  """Returns whether a class or tag marks an unscored item: -1 or -100, unless that is a class."""
  return name in _MARKS and name not in spec.classes


def is_missing(value: Any, spec: TableSpec) -> bool:
  """Returns whether a row lacks its label: null, empty, or -1, -100, "-" or NaN as text, unless that is a class."""
  value = values.plain(value)
  if values.is_missing(value):
    return True
  if spec.kind == "choice":
    return choices.is_missing(spec, value)
  name = values.label(value)
  if spec.kind in ("class", "score") and values.is_no_number(value):
    return all(values.number(x) is not None for x in spec.classes)
  if spec.kind == "class" and name == _NO_GOLD:
    return name not in spec.classes
  return spec.kind == "class" and is_mark(name, spec)


def _check_single(value: Any, spec: TableSpec, *, where: str) -> None:
  """Refuses several labels in a row, and bytes that are not UTF-8."""
  if isinstance(value, bytes):
    raise UserError(
      f"{where}: column {spec.label!r} contains bytes that are not UTF-8; give a text or a number as label"
    )
  if isinstance(values.parsed(value) if isinstance(value, str) and spec.kind != "text" else value, _SEVERAL):
    if spec.kind == "text":
      raise UserError(
        f"{where}: column {spec.label!r} contains {str(value)[:40]!r}, not text; name another column in"
        " config.data.columns"
      )
    raise UserError(
      f"{where}: column {spec.label!r} contains {str(value)[:40]!r}, but several labels in a row are not supported."
      " Give one label for each row, or train one model for each label on a column with 0 or 1."
    )


_SEVERAL = (list, tuple, Mapping)


def _missing_marks(counts: "collections.Counter[str]", number: int, where: str, spec: TableSpec) -> list[str]:
  """Returns names that mark rows without a label, of which there may be only few.

  The marks are -1 and -100 if the other labels are 0, 1, ...; "-" if the others are words; NaN as text if the others
  are numbers. In a column of texts to generate, only -1 and -100 are marks.
  """
  nan_marks = [name for name in counts if values.is_no_number(name)]
  remaining = [name for name in counts if name not in nan_marks]
  if spec.kind == "text" or not remaining or any(values.number(name) is None for name in remaining):
    nan_marks, remaining = [], list(counts)
  unmarked = sorted(name for name in remaining if name not in _MARKS)
  words = [name for name in remaining if name != _NO_GOLD]
  marks: list[str] = []
  if "0" in unmarked and all(map(values.is_digits, unmarked)):
    marks = [name for name in remaining if name in _MARKS]
  elif spec.kind != "text" and len(words) > 1 and all(len(name) > 1 and name[0].isalpha() for name in words):
    unmarked, marks = words, [name for name in remaining if name == _NO_GOLD]
  may_be_classes = nan_marks if nan_marks and all(values.number(name).is_integer() for name in unmarked) else []
  for mark in [*marks, *may_be_classes]:
    if counts[mark] > MOST_MISSING * number:
      raise UserError(
        f"{where}: {counts[mark]:,} of {number:,} rows have {mark} in column {spec.label!r}, and {mark} marks a"
        f" row without a label. If {mark} is a class, give --config.data.labels={mark},{','.join(unmarked[:20])}."
        " Otherwise delete these rows."
      )
  return nan_marks + marks


def _are_tags_of_words(counts: "collections.Counter[str]", rows: Sequence[reading.TableRow], spec: TableSpec) -> bool:
  """Returns whether labels are entity tags, each of a text with one word."""
  if "O" not in counts or not all(name == "O" or re.match("[BI]-.", name) for name in counts) or len(spec.texts) > 1:
    return False
  return all(len(str(row.fields.get(spec.texts[0])).split()) <= 1 for row in rows[:1000])


def _labelled(
  spec: TableSpec, counts: "collections.Counter[str]", rows: Sequence[reading.TableRow], where: str
) -> TableSpec:
  """Decides the kind of a label column whose name does not mark it as a target."""
  numbers = {name: x for name in counts if (x := values.number(name)) is not None}
  are_whole = all(x.is_integer() for x in numbers.values())
  commas = [name for name in counts if has_comma(name)]
  if commas and len(commas) + len(numbers) == len(counts):
    raise UserError(
      f"{where}: column {spec.label!r} has {commas[0]!r} ({counts[commas[0]]:,} rows), a number with a comma; write"
      " a decimal point, 0.5 and not 0,5, and no commas between thousands"
    )
  # A few other values are errors, which name their lines when the rows are read.
  mostly = sum(counts[name] for name in numbers) >= (1 - MOST_MISSING) * sum(counts.values())
  if mostly and (not are_whole or spec.label.lower() in _SCORES and len(numbers) > 10):
    return dataclasses.replace(spec, kind="score")
  if len(numbers) == len(counts):
    if len(counts) > _MOST_WHOLE_NUMBERS:
      raise UserError(
        f"{where}: column {spec.label!r} has {len(counts):,} different whole numbers, more than the limit of"
        f" {_MOST_WHOLE_NUMBERS} classes. Give --config.data.labels={NUMBER} to predict a number, or list the classes"
        " in --config.data.labels."
      )
  elif _are_tags_of_words(counts, rows, spec):
    raise UserError(
      f"{where}: column {spec.label!r} has a tag for each row, and column {spec.texts[0]!r} has one word. Give a row"
      ' for each sentence, with lists: {"words": ["Ann", "won"], "tags": ["B-PER", "O"]}. If the tags are classes, list'
      " the classes in --config.data.labels."
    )
  elif len(counts) > _MOST_CLASSES or (total := sum(counts.values())) >= 10 and 2 * len(counts) > total:
    raise UserError(
      f"{where}: column {spec.label!r} has {len(counts):,} different labels in {sum(counts.values()):,} rows, "
      f"too many for classes. Give --config.data.labels={TEXT} to generate the labels, "
      "--config.data.columns=label=COLUMN for another column, or list the classes in --config.data.labels."
    )
  return _with_classes(spec, counts, where)


def has_comma(name: str) -> bool:
  """Returns whether a name is a number with a comma, such as "0,5" or "1,000"."""
  return bool(re.fullmatch(r"[+-]?\d+(,\d+)+(\.\d+)?", name.strip()))


def ordered(names: Iterable[str]) -> tuple[str, ...]:
  """Sorts class names independently of the row order: numbers by value, others alphabetically."""
  names = list(names)
  numeric = all(values.number(name) is not None for name in names)
  return tuple(sorted(names, key=(lambda name: (values.number(name), name)) if numeric else None))


def _with_classes(spec: TableSpec, counts: "collections.Counter[str]", where: str) -> TableSpec:
  names = ordered(counts)
  if len(names) < 2:
    raise UserError(
      f"{where}: all labels in column {spec.label!r} are {names[0]!r}, but a classifier needs at least two classes; add"
      " rows of another class"
    )
  folded: dict[str | float, str] = {}
  for name in names:
    value = values.number(name)
    value = {"false": 0.0, "true": 1.0}.get(name.casefold(), value)
    key = _appearance(name) if value is None else value
    if earlier_name := folded.get(key):
      difference = "have the same value"
      if value is None:
        is_case = earlier_name.casefold() == name.casefold()
        difference = "differ only in case" if is_case else "look alike but contain different characters"
      shown = [ascii(x) if difference.startswith("look") else repr(x) for x in (earlier_name, name)]
      raise UserError(
        f"{where}: column {spec.label!r} has the labels {shown[0]} ({counts[earlier_name]:,} rows) and {shown[1]}"
        f" ({counts[name]:,}), which {difference}; write them alike, or list the classes in --config.data.labels"
      )
    folded[key] = name
  return dataclasses.replace(spec, kind="class", classes=names)


def _appearance(name: str) -> str:
  """Returns a name without invisible differences: case, the composition of accents, zero-width characters.

  In:  "Cafe\\u0301", "caf\\u00e9\\u200b"
  Out: "caf\\u00e9", "caf\\u00e9"
  """
  seen = "".join(x for x in name if unicodedata.category(x) != "Cf")
  return unicodedata.normalize("NFC", seen.casefold())


def _with_given(
  spec: TableSpec, counts: "collections.Counter[str]", classes: tuple[str, ...], labels: str, where: str
) -> TableSpec:
  """Sets the classes that the user lists; labels 0, 1, ... are their indices if no label is a class name."""
  unknown = [name for name in counts if _named(name, classes) is None]
  numbered = len(unknown) == len(counts) and all(_placed(name, classes) is not None for name in counts)
  if unknown and not numbered:
    raise UserError(
      f"{where}: column {spec.label!r} has the label {unknown[0]!r} ({counts[unknown[0]]:,} rows), which"
      f" config.data.labels={labels} does not list. Correct config.data.labels, or the rows."
    )
  if len(counts) < 2:
    raise UserError(
      f"{where}: all labels in column {spec.label!r} are {next(iter(counts))!r}; add rows of another class"
    )
  return dataclasses.replace(spec, kind="class", classes=classes)


def _with_tags(
  spec: TableSpec, rows: Sequence[reading.TableRow], classes: tuple[str, ...], labels: str, where: str
) -> TableSpec:
  if labels in (NUMBER, TEXT):
    raise UserError(
      f"config.data.labels={labels} does not fit a table with a tag for each word; set config.data.labels to {AUTO}, or"
      " list the tags"
    )
  counts: collections.Counter[str] = collections.Counter()
  for row in rows:
    counts.update(values.tags(values.plain(row.fields.get(spec.label))) or ())
  if not classes:
    for mark in _MARKS:
      del counts[mark]
  if classes:
    return dataclasses.replace(spec, classes=classes)
  if len(counts) > _MOST_TAGS or not counts:
    number = f"{len(counts):,} different tags, more than the limit of {_MOST_TAGS}" if counts else "no tags"
    raise UserError(
      f"{where}: column {spec.label!r} has {number}. Name another column:"
      " --config.data.columns=words=COLUMN,tags=COLUMN."
    )
  if len(counts) < 2:
    raise UserError(f"{where}: all tags in column {spec.label!r} are {next(iter(counts))!r}; add rows with other tags")
  names = ordered(counts)
  if "O" in names:  # first, as in most tag sets
    names = ("O", *(name for name in names if name != "O"))
  try:
    postprocessors.mark_entities(names)
  except UserError as error:
    raise UserError(f"{where}: column {spec.label!r}: {error}") from error
  return dataclasses.replace(spec, classes=names)


def class_number(value: object, spec: TableSpec, *, where: str) -> int:
  """Returns the index of a row's class.

  Raises:
    UserError: the label is not a class; the message lists the classes.
  """
  name = values.label(values.plain(value))
  for class_index in (_named(name, spec.classes), _placed(name, spec.classes)):
    if class_index is not None:
      return class_index
  raise UserError(
    f"{where}: column {spec.label!r} contains {name[:60]!r}, which is not a class of the training table"
    f"{did_you_mean(name, spec.classes) or '.'} Known classes: {', '.join(spec.classes[:20])}. Correct the row, or list"
    " all classes in config.data.labels when training."
  )


def _named(name: str, classes: Sequence[str]) -> int | None:
  """Returns the index of the class with this name or numeric value (1 is 1.0), or None unless exactly one matches."""
  if name in classes:
    return classes.index(name)
  value = values.number(name)
  matches = [
    number for number, class_name in enumerate(classes) if value is not None and values.number(class_name) == value
  ]
  return matches[0] if len(matches) == 1 else None


def _placed(name: str, classes: Sequence[str]) -> int | None:
  """Returns the class index that a label is, if no class name is a number; None otherwise."""
  value = values.number(name)
  if value is None or not value.is_integer() or any(values.number(class_name) is not None for class_name in classes):
    return None
  return int(value) if 0 <= value < len(classes) else None


def named(spec: TableSpec, names: Sequence[str]) -> str:
  """Describes the selected columns, for the log at the start of a run."""
  text = " and ".join(f"`{name}`" for name in spec.texts)
  description = f"{'texts' if len(spec.texts) > 1 else 'text'}: {text}"
  if spec.candidates:
    description += f"; candidates: {', '.join(f'`{name}`' for name in spec.candidates)}"
  unread_columns = columns.unread(spec, names)
  return (
    description
    + f"; label: `{spec.label}`"
    + (f"; not read: {', '.join(f'`{x}`' for x in unread_columns[:8])}" if unread_columns else "")
  )
