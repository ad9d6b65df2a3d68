"""Finds the text and label columns of a table, by their names and then by their values."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import re
from typing import Any

from t2t import UserError, did_you_mean
from t2t.data.tables import choices, reading, values
from t2t.data.tables.spec import TableSpec

# Roles in config.data.columns.
ROLES = ("text", "label", "words", "tags", "question", "context", "answers", "start", "candidates", "inputs", "targets")

_LABELS = (
  *("label", "labels", "gold_label", "class", "category", "sentiment", "polarity", "stars", "rating", "score"),
  *("similarity", "similarity_score", "relatedness_score", "grade", "intent", "topic", "emotion", "stance", "toxic"),
  *("is_duplicate", "y"),
)
_TARGETS = ("targets", "target", "output", "summary", "highlights", "translation", "response", "completion")
_INPUTS = ("inputs", "input", "source", "prompt", "instruction", "document", "article", "text")
# Column names of a single text; the first group with a match in the table is used.
_TEXTS = (
  ("text", "sentence"),
  ("review", "comment", "content", "body", "document", "article", "tweet", "message", "utterance", "passage", "post")
  + ("input", "inputs", "source", "prompt", "description"),
  ("title", "question", "query", "headline"),
)
_PAIRS = (
  *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text1", "text2")),
  *(("text_a", "text_b"), ("sentence_a", "sentence_b"), ("question", "passage"), ("question", "sentence")),
  *(("question", "context"), ("query", "document"), ("query", "passage"), ("first", "second")),
)
_WORDS, _TAGS = ("tokens", "words"), ("ner_tags", "pos_tags", "chunk_tags", "upos", "tags", "ner", "labels", "label")
_CANDIDATES = ("candidates", "choices", "options", "endings")
# Columns with one candidate each. A single letter counts in tables such as "question", "A", "B", "C", "D", "answer".
_NUMBERED = re.compile(r"(choice|option|opt|op|ending|candidate|solution|sol|answer|)_?([0-9]+|[a-z])")
_FEWEST_LETTERS = 3  # two may be the texts of a pair
_RIGHT = (
  *(*_LABELS[:4], "answer", "answerkey", "answer_key", "correct", "gold", "target", "cop"),
  *("correct_answer", "correct_option", "correct_choice", "correct_answer_id", "answer_index", "answer_idx"),
)
# Texts in front of candidates, in reading order: first the context, then the question.
_ASKED = (
  *("article", "passage", "story", "paragraph", "document", "premise", "context", "ctx", "question", "sentence"),
  *("question_stem", "stem", "problem", "sent1", "text", "goal", "startphrase", "query"),
)
# Explanations of the correct answer, which would reveal it.
_REASONS = ("exp", "explanation", "rationale", "reasoning", "reason", "cot", "solution", "analysis", "comment")
# Instructions and their inputs, which may be empty.
_GRADES = tuple(name for name in _LABELS if name not in ("category", "topic"))  # labels of a table with instructions
_TASKS = (("instruction", "input"), ("instruction", "context"), ("prompt", "input"), ("prompt", "context"))
_ANSWERS, _STARTS = ("answers", "answer", "answer_text"), ("answer_start", "start")
IMPOSSIBLE = "is_impossible"  # column of a span table: the context has no answer, as in SQuAD 2.0
_IDS = re.compile(r"(.*_)?(id|idx|index|guid|uid|uuid|line|row|unnamed_?\d*)|", re.IGNORECASE)

_KNOWN = {*_LABELS, *_TARGETS, *_INPUTS, *sum((*_TEXTS, *_PAIRS), ()), *_WORDS, *_TAGS, *_CANDIDATES, *_ANSWERS}
_KEY = "--config.data.columns"
_MOST_WORDS_OF_LABEL = 3.0  # on average
_FEWEST_WORDS_OF_TEXT = 3.0


@dataclasses.dataclass(frozen=True)
class _Column:
  name: str
  values: Sequence[Any]  # non-missing values

  @functools.cached_property
  def is_list(self) -> bool:
    return self._mostly(list | tuple)

  @functools.cached_property
  def is_text(self) -> bool:
    return self._mostly(str)

  def _mostly(self, kind: Any) -> bool:
    """Returns whether most of the first values have a type; later errors name the lines of the others."""
    first = self.values[:100]
    return bool(first) and sum(isinstance(x, kind) for x in first) >= 0.8 * len(first)

  @functools.cached_property
  def is_number(self) -> bool:
    if self.is_list:
      return False
    numbers = [values.number(x) is not None for x in self.values if not values.is_no_number(x)]
    return bool(numbers) and all(numbers)

  @functools.cached_property
  def distinct(self) -> int:
    return len({str(x) for x in self.values})

  @functools.cached_property
  def words(self) -> float:
    return sum(len(str(x).split()) for x in self.values[:1000]) / max(len(self.values[:1000]), 1)

  @property
  def is_id(self) -> bool:
    return bool(_IDS.fullmatch(_plain(self.name)))

  @property
  def may_be_text(self) -> bool:
    """True if the values look like texts."""
    return self.is_text and not self.is_number and (self.words >= _FEWEST_WORDS_OF_TEXT or self.distinct > 100)

  @property
  def may_be_label(self) -> bool:
    """True if the values are few and short."""
    few = 1 < self.distinct <= max(2, min(50, len(self.values) // 4))
    return not self.is_list and not self.is_id and few and self.words <= _MOST_WORDS_OF_LABEL


def _plain(name: str) -> str:
  return re.sub(r"[\s.-]+", "_", name.strip().lower())


def parse(columns: str, *, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
  """Parses config.data.columns to role -> columns.

  In:  "text=title+body,label=stars"
  Out: {"text": ("title", "body"), "label": ("stars",)}

  Raises:
    UserError: no such role or column; the message suggests the nearest.
  """
  role_columns: dict[str, tuple[str, ...]] = {}
  for part in filter(None, (part.strip() for part in columns.split(","))):
    role, equals, value = (x.strip() for x in part.partition("="))
    if not equals or not value:
      raise UserError(
        f"config.data.columns={columns}: {part!r} is not ROLE=COLUMN; give, for example, text=review,label=stars"
      )
    if role not in ROLES:
      raise UserError(
        f"config.data.columns={columns}: unknown role {role!r}{did_you_mean(role, ROLES) or '.'} Known roles: "
        f"{', '.join(ROLES)}."
      )
    role_columns[role] = (value,) if value in names else tuple(name.strip() for name in value.split("+"))
    for name in role_columns[role]:
      if name not in names:
        raise UserError(
          f"config.data.columns={columns}: the table has no column {name!r}"
          f"{did_you_mean(name, names) or '.'} Columns of the table: {', '.join(names)}."
        )
  return role_columns


class Finder:
  """Finds the role of each column of a table.

  Args:
    rows: of the table.
    columns: config.data.columns.
    labels: config.data.labels.
    where: config key and files, for messages.
  """

  def __init__(self, rows: Sequence[reading.TableRow], *, columns: str, labels: str, where: str):
    self._names, self._rows, self._where, self._labels = reading.names_of(rows), rows, where, labels
    self._columns_of_role = parse(columns, names=self._names)
    self._columns = {
      name: _Column(name, [x for row in rows if not values.is_missing(x := row.fields.get(name))])
      for name in self._names
    }
    self._plain: dict[str, str] = {}
    for name in self._names:
      self._plain.setdefault(_plain(name), name)

  def spec(self) -> TableSpec:
    """Returns the spec without classes, files and prefix; `kind` "class" means any label.

    Raises:
      UserError: the roles of columns are ambiguous; the message gives a setting.
    """
    given_roles = set(self._columns_of_role)
    if not given_roles and not _KNOWN & set(self._plain):
      self._check_header()
    if given_roles & {"words", "tags"}:
      return self._tags()
    if given_roles & {"answers", "start"} or {"question", "context"} <= given_roles:
      return self._span()
    if "candidates" in given_roles:
      return self._choice()
    if given_roles & {"inputs", "targets"}:
      return self._text()
    if not given_roles:
      if self._answers_are_candidates():
        return self._choice((self._named("answers"),))
      if self._named("question") and self._named("context") and any(map(self._named, _ANSWERS)):
        return self._span()
      if self._looks_tagged():
        return self._tags()
      if any(map(self._named, _RIGHT)) and self._find_candidates():
        return self._choice()
      if self._named("instruction") and any(map(self._named, _TARGETS)) and not any(map(self._named, _GRADES)):
        return self._text()
      if any(map(self._named, _TARGETS)) and not any(map(self._named, _LABELS)):
        return self._text()
    return self._labelled()

  # ---- Kinds -----------------------------------------------------------------

  def _labelled(self) -> TableSpec:
    label = self._one("label", self._find_label)
    texts = self._columns_of_role.get("text") or self._find_texts(label)
    if label in texts or len(set(texts)) < len(texts):
      twice = label if label in texts else next(name for name in texts if texts.count(name) > 1)
      raise UserError(f"config.data.columns: {twice!r} is named twice; give each column once, as text or as label")
    return TableSpec("class", tuple(texts), label)

  def _text(self) -> TableSpec:
    label = self._one("targets", lambda: self._first(_TARGETS, "targets"))
    inputs = self._columns_of_role.get("inputs") or self._columns_of_role.get("text")
    pairs = [[self._named(name) for name in pair] for pair in _TASKS]
    pair = next((pair for pair in pairs if all(pair) and label not in pair), None)
    return TableSpec("text", tuple(inputs or pair or [self._first(_INPUTS, "inputs", but=(label,))]), label)

  def _tags(self) -> TableSpec:
    words = self._one("words", lambda: self._first((*_WORDS, "text", "sentence"), "words"))
    tags = self._one("tags", lambda: self._find_tags(words))
    return TableSpec("tags", (words,), tags)

  def _span(self) -> TableSpec:
    question = self._one("question", lambda: self._first(("question",), "question"))
    context = self._one("context", lambda: self._first(("context", "passage"), "context"))
    answers = self._one("answers", lambda: self._first(_ANSWERS, "answers"))
    start = self._one("start", lambda: next(filter(None, map(self._named, _STARTS)), ""))
    return TableSpec("span", (question, context), answers, start=start)

  def _choice(self, candidates: Sequence[str] = ()) -> TableSpec:
    candidates = candidates or self._columns_of_role.get("candidates") or self._find_candidates()
    label = self._one("label", lambda: self._first(_RIGHT, "label", but=candidates))
    texts = self._columns_of_role.get("text") or self._find_question_texts((*candidates, label))
    return TableSpec("choice", tuple(texts), label, candidates=tuple(candidates))

  def _find_question_texts(self, but: Sequence[str]) -> list[str]:
    """Returns the texts in front of the candidates; refuses a longer text column that may belong to them."""
    named = [name for name in map(self._named, _ASKED) if name and name not in but]
    other_columns = [x for x in self._columns.values() if x.may_be_text and x.name not in (*but, *named)]
    if not named:
      return self._only([x.name for x in other_columns], "text", "text in front of the candidates")
    longest = max(self._columns[name].words for name in named)
    longer = [
      x.name for x in other_columns if x.words > max(longest, _FEWEST_WORDS_OF_TEXT) and not self._tells_why(x.name)
    ]
    if longer:
      both = "+".join([longer[0], *named])
      self._refuse(
        f"the text in front of the candidates may include `{longer[0]}` (text={both}) or not (text={'+'.join(named)})",
        "text",
        ["+".join(named)],
        label=but[-1],
        candidates="+".join(but[:-1]),
      )
    return named

  def _tells_why(self, name: str) -> bool:
    return _plain(name) in _REASONS

  # ---- Columns ---------------------------------------------------------------

  def _named(self, name: str) -> str:
    """Returns the column with this name, ignoring case; "" if there is none."""
    return self._plain.get(name, "")

  def _one(self, role: str, find) -> str:
    if role not in self._columns_of_role:
      return find()
    if len(self._columns_of_role[role]) > 1:
      names = self._columns_of_role[role]
      raise UserError(
        f"config.data.columns: {role}={'+'.join(names)} has {len(names)} columns; give one column as {role}"
      )
    return self._columns_of_role[role][0]

  def _first(self, names: Sequence[str], role: str, but: Sequence[str] = ()) -> str:
    matches = [name for name in map(self._named, names) if name and name not in but]
    return (
      matches[0] if matches else self._refuse(f"no column has a usual name for {role!r} ({', '.join(names[:6])})", role)
    )

  def _only(self, matches: Sequence[str], role: str, description: str) -> list[str]:
    if len(matches) == 1:
      return list(matches)
    if matches:
      self._refuse(f"{description} may be {' or '.join(f'`{name}`' for name in matches[:6])}", role, matches)
    self._refuse(f"no column looks like {description}", role)
    raise AssertionError

  def _find_label(self) -> str:
    texts = self._columns_of_role.get("text", ())
    named = [name for name in map(self._named, _LABELS) if name and name not in texts]
    if named and (_plain(named[0]) in ("label", "labels") or len(named) == 1):
      return named[0]
    if named:
      self._refuse(f"the label may be {' or '.join(f'`{name}`' for name in named)}", "label", named)
    label_columns = [x.name for x in self._columns.values() if x.may_be_label and x.name not in texts]
    if not label_columns:  # a number for each text
      label_columns = [x.name for x in self._columns.values() if x.is_number and not x.is_id and x.name not in texts]
    return self._only(label_columns, "label", "a label")[0]

  def _find_texts(self, label: str) -> list[str]:
    for pair in _PAIRS:
      text_columns = [self._named(name) for name in pair]
      if all(text_columns) and label not in text_columns:
        return text_columns
    for group in _TEXTS:
      text_columns = [
        name for name in map(self._named, group) if name and name != label and self._columns[name].is_text
      ]
      if text_columns:
        return self._only(text_columns, "text", "the text")
    text_columns = [x.name for x in self._columns.values() if x.may_be_text and x.name != label]
    if not text_columns:  # words or short titles
      short = [x for x in self._columns.values() if x.is_text and not x.is_number and not x.is_id and x.name != label]
      text_columns = [x.name for x in short if not x.may_be_label]
    return self._only(text_columns, "text", "text")

  def _find_candidates(self) -> tuple[str, ...]:
    for name in filter(None, map(self._named, _CANDIDATES)):
      if choices.are_listed(self._columns[name].values):
        return (name,)
      if self._columns[name].is_number or not self._columns[name].values:
        continue
      self._refuse(f'the candidates in `{name}` are not lists of at least two texts, ["a", "b"]', "text")
    numbered: dict[tuple[str, bool], dict[int, str]] = {}
    for plain, name in self._plain.items():
      if match := _NUMBERED.fullmatch(plain):
        is_number = match[2].isdigit()
        index = int(match[2]) if is_number else ord(match[2]) - ord("a")
        numbered.setdefault((match[1], is_number), {})[index] = name
    groups = []
    for (prefix, is_number), names in numbered.items():
      places = sorted(names)
      group_columns = tuple(names[index] for index in places)
      is_whole = places[0] <= int(is_number) and places == list(range(places[0], places[-1] + 1))
      if (
        not prefix
        and not (is_whole and len(group_columns) >= _FEWEST_LETTERS and self._named("question"))
        or len(group_columns) < 2
      ):
        continue
      if not is_whole:
        listed = "+".join(group_columns)
        self._refuse(
          f"the candidates may be {' and '.join(f'`{x}`' for x in group_columns[:6])}, but the sequence has a gap",
          "candidates",
          [listed],
        )
      groups.append(group_columns)
    if len(groups) > 1:
      listed = [f"`{'+'.join(group_columns)}`" for group_columns in groups]
      self._refuse(f"the candidates may be {' or '.join(listed)}", "candidates", ["+".join(groups[0])])
    return groups[0] if groups else ()

  def _answers_are_candidates(self) -> bool:
    """Returns whether `answers`, beside a label, contains candidates and not spans of the context."""
    name = self._named("answers")
    is_right = any(self._named(x) for x in _RIGHT if x not in _ANSWERS)
    has_candidates = any(map(self._named, _CANDIDATES))
    if not (name and is_right and self._named("question")) or has_candidates or not self._columns[name].is_list:
      return False
    pairs = [(row.fields.get(self._named("context")), row.fields.get(name)) for row in self._rows[:50]]
    lists = [(str(context), x) for context, x in pairs if isinstance(x, list | tuple) and len(x) > 1]
    return bool(lists) and not all(str(text) in context for context, answer_texts in lists for text in answer_texts)

  def _looks_tagged(self) -> bool:
    """Returns whether the first rows have one tag for each word, and some row has several."""
    words = next(filter(None, map(self._named, (*_WORDS, "text", "sentence"))), "")
    tags = [name for name in map(self._named, _TAGS) if name and name != words]
    if not words:
      return False

    def alike(row: reading.TableRow, name: str) -> bool:
      pair = [values.words(row.fields.get(words)), values.tags(row.fields.get(name))]
      return None not in pair and len(pair[0]) == len(pair[1]) > 0

    first = self._rows[:50]
    several = lambda name: any(len(values.tags(row.fields.get(name)) or ()) > 1 for row in first)
    is_named = _plain(words) in _WORDS
    # A few rows with other counts are errors, which later name their lines.
    most = lambda name: sum(alike(row, name) for row in first) >= 0.8 * len(first)
    return any(several(name) and (is_named and self._columns[name].is_list or most(name)) for name in tags)

  def _find_tags(self, words: str) -> str:
    named = [name for name in map(self._named, _TAGS) if name and name != words]
    return self._only(named, "tags", "a tag for each word")[0]

  # ---- Messages --------------------------------------------------------------

  def _check_header(self) -> None:
    """Refuses a table whose column names are values, because its first line is an example."""
    if values.looks_headerless(self._names, self._rows):
      listed = ", ".join(repr(name[:40]) for name in self._names[:4])
      raise UserError(
        f"{self._where}: the first line looks like an example, not like column names: {listed}. Add a line with column"
        " names above this line, such as text and label, with the separator of the table. If these are names, assign"
        f" the columns: {_KEY}=text=COLUMN,label=COLUMN."
      )

  def _refuse(self, problem: str, role: str, matches: Sequence[str] = (), **known: str) -> str:
    """Raises an error that gives a setting to paste; `known` are columns of other roles."""
    shown = "; ".join(f"`{name}` ({self._example(name)})" for name in self._names[:12])
    example = {role: f"{role}={matches[0] if matches else 'COLUMN'}"}
    if role in ("text", "label"):
      example = {"text": "text=COLUMN", "label": "label=COLUMN"} | example
    if self._columns_of_role:
      example = {
        key: f"{key}={'+'.join(column_names)}" for key, column_names in self._columns_of_role.items()
      } | example
    example |= {key: f"{key}={name}" for key, name in known.items()}
    assignment = f"{_KEY}={','.join(example.values())}"
    raise UserError(f"{self._where}: {problem}. Columns: {shown}. Assign the columns: {assignment}")

  def _example(self, name: str) -> str:
    column: _Column = self._columns[name]
    if not column.values:
      return "empty"
    text = " ".join(str(column.values[0]).split())
    return (
      f"{column.distinct:,} distinct values, such as {text[:30]!r}"
      if not column.is_list
      else f"lists, such as {text[:40]}"
    )


def unread(spec: TableSpec, names: Sequence[str]) -> list[str]:
  """Returns the columns of a table that its task does not read."""
  read = (*spec.columns, spec.label, spec.start, *((IMPOSSIBLE,) if spec.kind == "span" else ()))
  return [name for name in names if name not in read]


def check(spec: TableSpec, fields: Mapping[str, Any], *, where: str, labelled: bool = True) -> None:
  """Refuses a table that lacks a column.

  Args:
    spec: of the training table.
    fields: of a row.
    where: file and line, for messages.
    labelled: whether the label column is required.

  Raises:
    UserError: names the missing column and the existing ones.
  """
  needed = (*spec.columns, *((spec.label,) if labelled else ()))
  for name in needed:
    if name not in fields:
      raise UserError(
        f"{where}: no column {name!r}, but the model was trained on this column"
        f"{did_you_mean(name, list(fields)) or '.'} Columns: {', '.join(fields)}. Rename the right column to {name!r}."
      )
