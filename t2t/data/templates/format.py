"""Format of templates: TOML files with one table for each task and template; read as data, never executed."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import pathlib
import re
import string
import tomllib
from typing import Any, NamedTuple

from t2t import UserError, did_you_mean
from t2t.data.templates import chat

BLANK = "\x1ablank\x1a"  # stands for the blank in a rendered text
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_FIELD = re.compile(r"(\w+(?:\.\w+)*)(?:\[(\d+)\])?((?:\|\w+)*)")
_KEYS = ("text", "words", "header", "separator", "values", "turns")
_FRAME = 3  # most special tokens around one text

Fields = Mapping[str, Any]  # name -> str, or a list of str


def _lower_first(text: str) -> str:
  return text[:1].lower() + text[1:]


def _no_final_punctuation(text: str) -> str:
  return text.rstrip(string.punctuation)


def _no_markup(text: str) -> str:
  return re.sub("</?b>", "", text.replace("<br>", " "))


def _bullets(text: str) -> str:
  return text.replace("@highlight\n", "- ")


def _placeholder(text: str) -> str:
  return text.replace("@placeholder", BLANK)


# {FIELD|NAME} -> conversion of the field's text.
FILTERS: dict[str, Callable[[str], str]] = {
  "bullets": _bullets,  # ReCoRD: highlights as a list
  "lower_first": _lower_first,
  "no_final_punctuation": _no_final_punctuation,
  "no_markup": _no_markup,  # MultiRC: without <b> and <br>
  "placeholder": _placeholder,  # ReCoRD: the blank is at @placeholder
}


class TemplateField(NamedTuple):
  """Field of a record in a template: {name}, {name[index]}, {name|filter}."""

  name: str
  index: int | None
  filters: tuple[str, ...]

  def of(self, fields: Fields, values: Mapping[str, Mapping[str, str]]) -> str:
    """Returns the text of the field in a record, with the template's `values` and the filters."""
    value = fields[self.name]
    text = str(value if self.index is None else value[self.index])
    text = values.get(self.name, {}).get(text, text)
    for name in self.filters:
      text = FILTERS[name](text)
    return text


class Rendered(NamedTuple):
  """Text of a record before and after the blank, and the size that it had before it was cut."""

  before: str
  after: str
  uncut: int


class Filled(NamedTuple):
  """A template with the fields of a record.

  before, after: text around the blank.
  space: between `before` and the blank, " " or "".
  header: text before the first example of a prompt, with the separator.
  words: each word that may fill the blank, with its label.
  uncut: size before it was cut, with room for a word and for special tokens.
  cut: size that was removed.
  """

  before: str
  after: str
  space: str
  header: str
  words: Sequence[tuple[str, str]]
  uncut: int
  cut: int

  def read_by(self, form: str, blank: str) -> tuple[str, str, Callable[[str], str]]:
    """Returns the text of the input, the text behind it, and word -> text to predict; see `task_steps.compose`."""
    if form == "cloze":
      return f"{self.header}{self.before}", self.after, lambda word: f"{self.space}{word}"
    if form == "continuation":
      return f"{self.header}{self.before}", "", lambda word: f"{self.space}{word}{self.after}"
    if blank != "sentinel" and not self.after.strip():
      return f"{self.header}{self.before}", "", lambda word: word
    # As in T5's pre-training, where the next sentinel ends the span (Raffel et al. 2020, section 3.1.4).
    inputs = f"{self.header}{self.before}{self.space}<extra_id_0>{self.after}"
    return inputs, "", lambda word: f"<extra_id_0> {word} <extra_id_1>"


@dataclasses.dataclass(frozen=True)
class Template:
  """A template of a task.

  name: unique for its task. text: with fields, and at most one {blank}; without one the blank is at the end. words:
  label -> texts that fill the blank, possibly with fields; empty: the options of each example, or a free text.
  header: text before the first example of a prompt. separator: text between the examples of a prompt. values: field ->
  its value -> another text. turns: role -> text of a message; of conversations, which have no `text`. where: "FILE:
  [TASK.NAME]", for messages.
  """

  name: str
  text: str
  words: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
  header: str = ""
  separator: str = "\n\n"
  values: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
  turns: Mapping[str, str] = dataclasses.field(default_factory=dict)
  where: str = dataclasses.field(default="", repr=False, compare=False)  # a file may move

  def __post_init__(self) -> None:
    for text in (self.text, *(word for words in self.words.values() for word in words)):
      pieces(text, where=self.where)
    blanks = sum(piece == BLANK for piece in pieces(self.text, where=self.where))
    if blanks > 1:
      raise UserError(f"{self.where} text={self.text!r} has {blanks} blanks; keep one {{blank}}")
    labels: dict[str, str] = {}
    for label, words in self.words.items():
      for word in words:
        if labels.setdefault(word, label) != label:
          raise UserError(
            f"{self.where} words: {word!r} stands for {labels[word]} and for {label}; give each label other words"
          )

  @property
  def has_blank(self) -> bool:
    """Returns True if the text says where the blank is."""
    return any(
      piece == BLANK or isinstance(piece, TemplateField) and "placeholder" in piece.filters
      for piece in pieces(self.text)
    )

  @property
  def has_text_behind(self) -> bool:
    """Returns True if text may follow the blank."""
    parts = pieces(self.text)
    ends = [BLANK] if BLANK in parts else []
    return self.has_blank and not (ends and "".join(str(part) for part in parts).rstrip().endswith(BLANK))

  @property
  def fields(self) -> list[TemplateField]:
    """Lists the fields of the text and of the words."""
    texts = (self.text, *(word for words in self.words.values() for word in words))
    return [piece for text in texts for piece in pieces(text) if isinstance(piece, TemplateField)]

  def render(self, fields: Fields, *, size: Callable[[str], int] = len, room: int | None = None) -> Rendered:
    """Returns the text of a record around the blank; the longest field is cut at a space until the text fits.

    Args:
      fields: of the record.
      size: measures a text, in tokens for example.
      room: maximum size; None: no limit.

    Raises:
      UserError: the record's text has no blank, or several, because of the filter "placeholder".
    """
    parts = [
      piece.of(fields, self.values) if isinstance(piece, TemplateField) else piece for piece in pieces(self.text)
    ]
    if not self.has_blank:
      parts.append(BLANK)
    number = "".join(parts).count(BLANK)
    if number != 1:
      raise UserError(
        f"{self.where} text={self.text!r}: a record gives it {number} blanks, not one. Correct the record or the text."
      )
    measure = lambda: size("".join(parts).replace(BLANK, ""))
    uncut = total = measure()
    can_cut = [
      i for i, piece in enumerate(pieces(self.text)) if isinstance(piece, TemplateField) and BLANK not in parts[i]
    ]
    while room is not None and total > room and any(parts[i] for i in can_cut):
      longest = max(can_cut, key=lambda i: len(parts[i]))
      # As many characters as the excess of tokens has on average, back to a space.
      excess = max(1, len("".join(parts)) * (total - room) // total)
      kept = parts[longest][: max(0, len(parts[longest]) - excess)]
      parts[longest] = kept.rpartition(" ")[0] if " " in kept else kept
      total = measure()
    before, _, after = "".join(parts).partition(BLANK)
    return Rendered(before, after, uncut)

  def fill(
    self, fields: Fields, words: Sequence[tuple[str, str]], *, size: Callable[[str], int], limit: int | None
  ) -> Filled:
    """Returns the template with a record; the longest field is cut until the text fits.

    Args:
      fields: of the record.
      words: each word that may fill the blank, with its label.
      size: measures a text, in tokens for example.
      limit: maximum size with a word and special tokens; None: no limit.

    Raises:
      UserError: see `render`.
    """
    header = f"{self.header}{self.separator}" if self.header else ""
    # Beside the text are special tokens, and a word or a sentinel.
    beside = _FRAME + max((size(word) for word, _ in words), default=1) + (size(header) if header else 0)
    rendered = self.render(fields, size=size, room=None if limit is None else max(0, limit - beside))
    before = rendered.before.rstrip(" ")
    space = " " if before != rendered.before else ""
    cut = rendered.uncut - size(rendered.before + rendered.after)
    return Filled(before, rendered.after, space, header, words, rendered.uncut + beside, max(0, cut))

  def filled(self, word: str, fields: Fields) -> str:
    """Returns a word of the verbaliser with the fields of a record."""
    return "".join(
      piece.of(fields, self.values) if isinstance(piece, TemplateField) else piece for piece in pieces(word)
    )


def has_fields(text: str) -> bool:
  """Returns True if a text depends on the record."""
  return any(isinstance(piece, TemplateField) for piece in pieces(text))


@functools.lru_cache(maxsize=1_024)  # each record reads the pieces of its template
def pieces(text: str, *, where: str = "") -> list[str | TemplateField]:
  """Splits the text of a template into literals, fields and `BLANK`; callers must not change the list.

  In:  "{premise}? {blank}, {hypothesis}"
  Out: [TemplateField("premise"), "? ", BLANK, ", ", TemplateField("hypothesis")]; {{ and }} are braces

  Raises:
    UserError: a field is spelled wrongly.
  """
  parts: list[str | TemplateField] = []
  end = 0
  for match in _PIECE.finditer(text):
    parts += [text[end : match.start()]]
    end = match.end()
    if match[1] is None:
      parts.append(match[0][0])
    elif match[1] == "blank":
      parts.append(BLANK)
    else:
      parts.append(_field(match[1], where))
  parts.append(text[end:])
  literals = [part for part in parts if isinstance(part, str)]
  if any(brace in part for part in literals for brace in "{}" if part not in "{}"):
    raise UserError(f"{where} text={text!r} has a brace without its pair; write {{{{ or }}}} for a brace")
  return [part for part in parts if part]


def _field(text: str, where: str) -> TemplateField:
  match = _FIELD.fullmatch(text)
  if match is None:
    raise UserError(f"{where}: {{{text}}} is not a field; write {{name}}, {{name[0]}}, {{name|filter}} or {{blank}}")
  filters = tuple(match[3].split("|")[1:])
  for name in filters:
    if name not in FILTERS:
      raise UserError(
        f"{where}: {{{text}}} has the unknown filter {name}; known filters: {', '.join(FILTERS)}"
        f"{did_you_mean(name, FILTERS)}"
      )
  return TemplateField(match[1], None if match[2] is None else int(match[2]), filters)


# ---- Files -----------------------------------------------------------------------------------------------------------


def shipped() -> dict[str, pathlib.Path]:
  """Returns the files of templates that t2t has, by name."""
  return {path.stem: path for path in sorted(pathlib.Path(__file__).parent.glob("*.toml"))}


def load(
  spec: str, *, names: Sequence[str] = (), key: str = "config.data.templates="
) -> dict[str, tuple[Template, ...]]:
  """Reads a file of templates.

  Args:
    spec: path of a TOML file, or the name of a shipped file.
    names: names of the templates to keep; empty: all.
    key: of `spec`, for messages.

  Returns:
    Task name -> its templates, in the order of the file.

  Raises:
    UserError: the file is missing or malformed, or no template has one of the names.
  """
  where = f"{key}{spec}"
  path = shipped().get(spec, pathlib.Path(spec).expanduser())
  try:
    tables = tomllib.loads(path.read_text())
  except (OSError, UnicodeDecodeError) as error:
    known = ", ".join(shipped())
    problem = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({type(error).__name__})"
    near = did_you_mean(spec, shipped())
    raise UserError(f"{where}: {problem}; give a TOML file, or one of {known}{near}") from error
  except (tomllib.TOMLDecodeError, RecursionError) as error:
    raise UserError(f"{where}: not a TOML file ({error}); correct the file") from error
  templates = {task: _of_task(task, rows, where) for task, rows in tables.items()}
  known_names = sorted({template.name for rows in templates.values() for template in rows})
  for name in names:
    if name not in known_names:
      raise UserError(
        f"config.data.template_names: {name} is not a template of {where}; known names: {', '.join(known_names)}"
        f"{did_you_mean(name, known_names)}"
      )
  kept = {task: tuple(row for row in rows if not names or row.name in names) for task, rows in templates.items()}
  return {task: rows for task, rows in kept.items() if rows}


def _of_task(task: str, rows: Any, where: str) -> tuple[Template, ...]:
  if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
    raise UserError(f"{where}: {task} must be a table of templates; write [{task}.NAME] before text=...")
  return tuple(_template(name, row, f"{where}: [{task}.{name}]") for name, row in rows.items())


def _template(name: str, row: dict[str, Any], where: str) -> Template:
  if not re.fullmatch(r"\w+", name):
    raise UserError(f"{where}: a name has letters, digits and _ only")
  for key in row:
    if key not in _KEYS:
      raise UserError(f"{where}: unknown key {key}; known keys: {', '.join(_KEYS)}{did_you_mean(key, _KEYS)}")
  turns = _mapping(row, "turns", where)
  if turns:
    chat.check(turns, where=where)
    if len(row) > 1:
      raise UserError(f"{where}: turns are of conversations, without {', '.join(sorted(row.keys() - {'turns'}))}")
    return Template(name, "", turns=turns, where=where)
  for key in ("text", "header", "separator"):
    if not isinstance(row.get(key, "" if key != "text" else None), str):
      raise UserError(f"{where}: {key}={row.get(key)!r} must be a text")
  words = _mapping(row, "words", where)
  verbaliser = {label: (texts,) if isinstance(texts, str) else texts for label, texts in words.items()}
  for label, texts in verbaliser.items():
    if not (isinstance(texts, list | tuple) and texts and all(isinstance(text, str) and text for text in texts)):
      raise UserError(f"{where} words.{label}={texts!r} must be a word or a list of words")
  values = {field: _mapping(_mapping(row, "values", where), field, where) for field in row.get("values", {})}
  return Template(
    name,
    row["text"],
    words={label: tuple(texts) for label, texts in verbaliser.items()},
    values={field: {value: str(text) for value, text in texts.items()} for field, texts in values.items()},
    where=where,
    **{key: row[key] for key in ("header", "separator") if key in row},
  )


def _mapping(row: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
  value = row.get(key, {})
  if not isinstance(value, dict):
    raise UserError(f"{where}: {key}={value!r} must be a table, {key} = {{label = [words]}}")
  return value
