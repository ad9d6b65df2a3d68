"""Spec of a table as a task, stored in the checkpoint's config, where every command reads it."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from t2t import UserError

TASK = "table"  # name of the task, and of config.data.mixture in a resolved config

KINDS = ("class", "score", "tags", "span", "choice", "text")


@dataclasses.dataclass(frozen=True)
class TableSpec:
  """Spec of a table as a task.

  kind: one of `KINDS`: a class, a number, a tag for each word, a span of a context, one of several candidates, a text.
  texts: text columns, in reading order; for a span the question and the context.
  label: label column; "" in a table without labels.
  candidates: for a choice the column with a list of candidates, or a column for each.
  classes: names of the classes or tags, by index.
  prefix: text in front of the inputs of a generative model.
  start: for a span the column with the start character of the answer; "": it is in the answers, or searched.
  no_answer: for a span, whether a context may have no answer.
  counts_from: for a choice the number of the first candidate in the label, 0 or 1.
  label_is: for a choice "number", "letter", "key" (name of a candidate) or "text"; "": any of them, row by row.
  files, eval_files: as in config.data; "examples:DIGEST" names rows that a Python program has passed.
  """

  kind: str
  texts: tuple[str, ...]
  label: str
  candidates: tuple[str, ...] = ()
  classes: tuple[str, ...] = ()
  prefix: str = ""
  start: str = ""
  no_answer: bool = False
  counts_from: int = 0
  label_is: str = ""
  files: str = ""
  eval_files: str = ""

  def to_dict(self) -> dict[str, Any]:
    """Returns the spec as a JSON object."""
    return {name: list(x) if isinstance(x, tuple) else x for name, x in dataclasses.asdict(self).items()}

  @property
  def columns(self) -> tuple[str, ...]:
    """Columns that a model reads: all except the label."""
    return (*self.texts, *self.candidates)

  @property
  def head(self) -> str:
    """Name of the task head; it may be part of a parameter path."""
    return TASK

  def inputs(self, texts: Sequence[str], candidates: Sequence[str] = ()) -> str:
    """Returns the input text of a generative model; a prefix that the text already has is not repeated.

    In:  ["It is great."], prefix "review: "
    Out: "review: It is great."

    In:  ["It rained.", "It is wet."], columns "premise" and "hypothesis", prefix "premise: "
    Out: "premise: It rained. hypothesis: It is wet."

    Args:
      texts: one for each of the columns `texts`; a single text may be the whole input.
      candidates: of a choice.
    """
    words = [texts[0] if texts[0].startswith(self.prefix) else f"{self.prefix}{texts[0]}"]
    named_texts = zip(self.texts[1:], texts[1:], strict=False)
    words += [f"{shown(name)}: {text}" for name, text in named_texts if text or self.kind != "text"]
    words += [f"choice{number}: {text}" for number, text in enumerate(candidates, start=1)]
    return " ".join(words)


def from_dict(saved: Mapping[str, Any], *, where: str = "config.data.table") -> TableSpec:
  """Reads a spec written by `TableSpec.to_dict`.

  Raises:
    UserError: a newer version of t2t has written it, or a value has the wrong type.
  """
  if not isinstance(saved, Mapping):
    raise UserError(f"{where}={str(saved)[:40]!r} must be a mapping; copy the checkpoint again")
  fields_by_name = {field.name: field for field in dataclasses.fields(TableSpec)}
  if unknown := sorted(set(saved) - set(fields_by_name)):
    raise UserError(f"{where} has the key {unknown[0]!r}, which this version of t2t cannot read; upgrade t2t")
  values = {name: tuple(x) if isinstance(x, list | tuple) else x for name, x in saved.items()}
  for name, field in fields_by_name.items():
    expected_type = field.type if field.type in (str, bool, int) else tuple
    value = values.get(name, field.default)
    if type(value) is not expected_type or (expected_type is tuple and not all(isinstance(x, str) for x in value)):
      raise UserError(
        f"{where}.{name}={str(value)[:40]!r} must have type {expected_type.__name__}; copy the checkpoint again"
      )
  return TableSpec(**values)


def shown(column: str) -> str:
  """Returns a column name as the text in front of the column's text.

  In:  "text_a"
  Out: "text a"
  """
  return " ".join(column.replace("_", " ").split())


def default_prefix(kind: str, texts: Sequence[str], typed_prefix: str) -> str:
  """Returns the prefix of inputs: T5's format without a task name, which a table does not have.

  In:  "class", ["premise", "hypothesis"], ""         Out: "premise: "
  In:  "class", ["premise", "hypothesis"], "cb"       Out: "cb premise: "
  In:  "class", ["review"], ""                        Out: "review: "
  In:  "class", ["review"], "sst2 sentence:"          Out: "sst2 sentence: "
  In:  "text", ["inputs"], ""                         Out: ""

  Args:
    kind: of the table.
    texts: its text columns.
    typed_prefix: config.data.prefix; "": choose a prefix; "none": no prefix.
  """
  typed_prefix = typed_prefix.strip()
  if typed_prefix == "none":
    return f"{shown(texts[0])}: " if len(texts) > 1 else ""
  if len(texts) > 1 or not (typed_prefix or kind == "text"):
    return " ".join(filter(None, (typed_prefix, f"{shown(texts[0])}: "))).rstrip() + " "
  return f"{typed_prefix} " if typed_prefix else ""
