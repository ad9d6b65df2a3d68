"""Decides what a label is: a class, a number or a text; and which classes there are, in an order that files decide."""

import collections
from collections.abc import Iterable, Sequence
import dataclasses

from t2t import UserError, did_you_mean
from t2t.data import answers
from t2t.data.tables import choices, columns, reading, values
from t2t.data.tables.spec import TableSpec

NUMBER, TEXT, AUTO = "number", "text", "auto"
MOST_MISSING = 0.1  # share of the rows that may lack a label or a text

_MOST_CLASSES, _MOST_WHOLE_NUMBERS = 100, 20
_SCORES = ("score", "similarity", "similarity_score", "relatedness_score", "rating")


def given(labels: str) -> tuple[str, ...]:
  """Names of the classes that config.data.labels lists; none where it leaves them to the table.

  Raises:
    UserError: a single class, or one that is there twice.
  """
  if labels in (AUTO, NUMBER, TEXT):
    return ()
  found = tuple(values.label(name) for name in labels.split(",") if name.strip())
  if len(found) < 2:
    raise UserError(
      f"config.data.labels={labels}: give {AUTO}, {NUMBER} (a score), {TEXT} (a text that the model writes), or the"
      " classes in their order, such as negative,positive"
    )
  if twice := [name for name, number in collections.Counter(found).items() if number > 1]:
    raise UserError(f"config.data.labels={labels}: {twice[0]!r} is there twice; give each class once")
  return found


def decide(spec: TableSpec, rows: Sequence[reading.Row], labels: str, *, files: str, where: str) -> TableSpec:
  """The specification with its kind, and with the names of its classes or tags.

  Args:
    spec: see `columns.Finder.spec`.
    rows: of the table that is trained on.
    labels: config.data.labels.
    files: config.data.files.
    where: the key that names the files, and the files, for messages.

  Raises:
    UserError: labels that are no classes, a single class, or too many rows without a label.
  """
  classes = given(labels) or (reading.class_names(files, spec.label) if labels == AUTO else ())
  if spec.kind == "choice":
    return choices.decide(spec, rows, labels, where=where)
  if spec.kind == "span":
    if labels != AUTO:
      raise UserError(f"config.data.labels={labels}: the table has answers in a context; leave it {AUTO}")
    return spec
  if spec.kind == "tags":
    return _with_tags(spec, rows, classes, labels, where)
  if labels in (NUMBER, TEXT):
    return dataclasses.replace(spec, kind="score" if labels == NUMBER else "text")
  found = [(row, values.plain(row.fields.get(spec.label))) for row in rows]
  counts = collections.Counter(values.label(x) for _, x in found if not values.is_missing(x))
  if not classes and _has_missing_mark(counts, len(rows), where, spec.label):
    del counts["-1"]
  if not counts:
    raise UserError(f"{where}: column {spec.label!r} has no label in any of {len(rows):,} rows; give rows with labels")
  if classes:
    return _with_given(spec, counts, classes, labels, where)
  if spec.kind == "text":  # targets: classes where a few are there again and again
    few = 1 < len(counts) <= 20 and all(len(name.split()) <= 3 for name in counts)
    return _with_classes(spec, counts, where) if few and sum(counts.values()) >= 5 * len(counts) else spec
  return _labelled(spec, counts, where)


def is_missing(value: object, spec: TableSpec) -> bool:
  """Returns whether a row lacks its label: null, empty, or -1 where that is no class."""
  value = values.plain(value)
  if values.is_missing(value):
    return True
  if spec.kind == "choice":
    return choices.is_missing(spec, value)
  return spec.kind == "class" and values.label(value) == "-1" and "-1" not in spec.classes


def _has_missing_mark(counts: "collections.Counter[str]", number: int, where: str, column: str) -> bool:
  """Returns whether -1 marks rows without a label: the others are 0, 1, ..., and few are without."""
  others = sorted(name for name in counts if name != "-1")
  if "-1" not in counts or "0" not in others or not all(name.isdigit() for name in others):
    return False
  if counts["-1"] > MOST_MISSING * number:
    raise UserError(
      f"{where}: {counts['-1']:,} of {number:,} rows have the {column} -1, which marks a row without a label; if it is"
      f" a class, give --config.data.labels=-1,{','.join(others[:20])}; else leave these rows out"
    )
  return True


def _labelled(spec: TableSpec, counts: "collections.Counter[str]", where: str) -> TableSpec:
  """A label that no name says to be a target."""
  numbers = [values.number(name) for name in counts]
  if all(x is not None for x in numbers):
    whole = all(float(x).is_integer() for x in numbers)
    if not whole or spec.label.lower() in _SCORES and len(counts) > 10:
      return dataclasses.replace(spec, kind="score")
    if len(counts) > _MOST_WHOLE_NUMBERS:
      raise UserError(
        f"{where}: column {spec.label!r} has {len(counts):,} different whole numbers; give"
        f" --config.data.labels={NUMBER} to have the model tell a number, or list the classes"
      )
  elif len(counts) > _MOST_CLASSES or (total := sum(counts.values())) >= 10 and 2 * len(counts) > total:
    raise UserError(
      f"{where}: column {spec.label!r} has {len(counts):,} different labels in {sum(counts.values()):,} rows, too many"
      f" for classes; give --config.data.labels={TEXT} to have the model write them, --config.data.columns=label=COLUMN"
      " for another column, or list the classes in --config.data.labels"
    )
  return _with_classes(spec, counts, where)


def ordered(names: Iterable[str]) -> tuple[str, ...]:
  """Names of classes in an order that does not depend on that of the rows: numbers by value, others by alphabet."""
  names = list(names)
  numeric = all(values.number(name) is not None for name in names)
  return tuple(sorted(names, key=(lambda name: (values.number(name), name)) if numeric else None))


def _with_classes(spec: TableSpec, counts: "collections.Counter[str]", where: str) -> TableSpec:
  names = ordered(counts)
  if len(names) < 2:
    raise UserError(
      f"{where}: all labels in column {spec.label!r} are {names[0]!r}; a classifier needs rows of two classes at least"
    )
  folded: dict[str, str] = {}
  for name in names:
    if other := folded.get(name.casefold()):
      raise UserError(
        f"{where}: column {spec.label!r} has the labels {other!r} ({counts[other]:,} rows) and {name!r}"
        f" ({counts[name]:,}), which differ in upper case alone; write them alike, or list the classes in"
        " --config.data.labels"
      )
    folded[name.casefold()] = name
  return dataclasses.replace(spec, kind="class", classes=names)


def _with_given(
  spec: TableSpec, counts: "collections.Counter[str]", classes: tuple[str, ...], labels: str, where: str
) -> TableSpec:
  """The classes that the user lists; labels 0, 1, ... are their numbers where none of their names is there."""
  unknown = [name for name in counts if name not in classes]
  numbered = len(unknown) == len(counts) and all(x.isdigit() and int(x) < len(classes) for x in counts)
  if unknown and not numbered:
    raise UserError(
      f"{where}: column {spec.label!r} has the label {unknown[0]!r} ({counts[unknown[0]]:,} rows), which"
      f" config.data.labels={labels} does not list{did_you_mean(unknown[0], classes)}; add it, or correct the rows"
    )
  if len(counts) < 2:
    raise UserError(
      f"{where}: all labels in column {spec.label!r} are {next(iter(counts))!r}; give rows of two classes"
    )
  return dataclasses.replace(spec, kind="class", classes=classes)


def _with_tags(
  spec: TableSpec, rows: Sequence[reading.Row], classes: tuple[str, ...], labels: str, where: str
) -> TableSpec:
  if labels in (NUMBER, TEXT):
    raise UserError(
      f"config.data.labels={labels}: the table has a tag for each word; leave it {AUTO}, or list the tags"
    )
  counts: collections.Counter[str] = collections.Counter()
  for row in rows:
    counts.update(values.words(values.plain(row.fields.get(spec.label))) or ())
  if classes:
    return dataclasses.replace(spec, classes=classes)
  if len(counts) > 200 or not counts:
    raise UserError(
      f"{where}: column {spec.label!r} has {len(counts):,} different tags; give another,"
      " --config.data.columns=words=COLUMN,tags=COLUMN"
    )
  if len(counts) < 2:
    raise UserError(f"{where}: all tags in column {spec.label!r} are {next(iter(counts))!r}; give rows with others")
  names = ordered(counts)
  if "O" in names:  # first, as in most sets of tags
    names = ("O", *(name for name in names if name != "O"))
  try:
    answers.mark_entities(names)
  except UserError as error:
    raise UserError(f"{where}: column {spec.label!r}: {error}") from error
  return dataclasses.replace(spec, classes=names)


def class_number(value: object, spec: TableSpec, *, where: str) -> int:
  """The number of a row's class.

  Raises:
    UserError: it is none of the classes; lists them.
  """
  name = values.label(values.plain(value))
  if name in spec.classes:
    return spec.classes.index(name)
  if name.isdigit() and int(name) < len(spec.classes) and not any(x.isdigit() for x in spec.classes):
    return int(name)
  raise UserError(
    f"{where}: {spec.label} is {name[:60]!r}, which is no class of the table that is trained on:"
    f" {', '.join(spec.classes[:20])}{did_you_mean(name, spec.classes)}; correct the row, or list all classes in"
    " config.data.labels when training"
  )


def named(spec: TableSpec, names: Sequence[str]) -> str:
  """Describes the columns that were taken, for the start of a run."""
  text = " and ".join(f"`{name}`" for name in spec.texts)
  found = f"{'texts' if len(spec.texts) > 1 else 'text'}: {text}"
  if spec.candidates:
    found += f"; candidates: {', '.join(f'`{name}`' for name in spec.candidates)}"
  others = columns.unread(spec, names)
  return (
    found + f"; label: `{spec.label}`" + (f"; not read: {', '.join(f'`{x}`' for x in others[:8])}" if others else "")
  )
