"""Input lines for models fine-tuned on a table: finds their columns and formats them as in training."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import TYPE_CHECKING, Any

import jax

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.inference import batch_inference, jsonl_io
from t2t.param_tree import Params

if TYPE_CHECKING:
  from t2t.data import tables


def spec_of(source: pretrained.Source) -> "tables.TableSpec | None":
  """Returns the table that a checkpoint was fine-tuned on, or None.

  Raises:
    UserError: the table was saved by another version of t2t.
  """
  saved = source.run["data"].get("table")
  if not saved:
    return None
  from t2t.data import tables

  return tables.from_dict(saved)


def around(
  source: pretrained.Source, make_way: Callable[[jax.sharding.Mesh], batch_inference.Way]
) -> Callable[[jax.sharding.Mesh], batch_inference.Way]:
  """Wraps a way to accept the columns of the checkpoint's table; returns it unchanged if there is no table."""
  spec = spec_of(source)
  if spec is None:
    return make_way
  return lambda mesh: Tabled(make_way(mesh), spec, writes=source.model.is_generative)


class Tabled:
  """The way of a model fine-tuned on a table; see `batch_inference.Way`.

  Args:
    way: of the model for a formatted text.
    spec: of the table.
    writes: whether the model is generative, and therefore reads several texts joined in one.
  """

  def __init__(self, way: batch_inference.Way, spec: "tables.TableSpec", *, writes: bool):
    self._way, self._spec, self._writes = way, spec, writes
    several = len(spec.texts) > 1 and spec.kind in ("class", "score", "text")
    self.asks, self.unit, self.nothing = way.asks, way.unit, way.nothing
    self.pairs = way.pairs or several
    self.longest, self.cut_to = way.longest, way.cut_to
    self.options = dict(way.options)
    tag_fields = ("tags", "words") if spec.kind == "tags" else ()
    lists = tuple(dict.fromkeys((*way.form.lists, *(("parts",) if several else ()))))
    self.form = dataclasses.replace(
      way.form, columns=spec.columns, row_fields=(*way.form.row_fields, *tag_fields), lists=lists
    )
    self._is_tagged = spec.kind == "tags" and way.asks == "write"

  @property
  def remarks(self) -> Sequence[str]:
    return self._way.remarks

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """Checks that the columns are texts, and then the formatted line."""
    self._way.check(self._inner(line, where), where)

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    inner = self._inner(line, f"line {line.number}")
    encoded_line = self._way.read(inner)
    if self._is_tagged and not encoded_line.error:
      return dataclasses.replace(
        encoded_line, given=[words_of(self._spec, line, f"line {line.number}"), encoded_line.given]
      )
    return encoded_line

  def answer(
    self, params: Params, inputs: Sequence[Any], *, numbers: Sequence[int], done: batch_inference.Done | None
  ) -> list[dict[str, Any]]:
    """Returns the rows of the inner way; parses generated numbers and tags."""
    inner = [words_and_input[1] for words_and_input in inputs] if self._is_tagged else inputs
    rows = self._way.answer(params, inner, numbers=numbers, done=done)
    if self._way.asks != "write":
      return rows
    if self._is_tagged:
      return [self._with_tags(row, words_and_input[0]) for row, words_and_input in zip(rows, inputs, strict=True)]
    return [self._with_number(row) for row in rows] if self._spec.kind == "score" else rows

  def _with_tags(self, row: dict[str, Any], words: list[str]) -> dict[str, Any]:
    from t2t.data import postprocessors

    tags = postprocessors.tags_of(row["prediction"].strip(), words, self._spec.classes) or ["O"] * len(words)
    return row | {"words": words, "tags": tags}

  def _with_number(self, row: dict[str, Any]) -> dict[str, Any]:
    from t2t.data import postprocessors

    return row | {"prediction": postprocessors.number()(row["prediction"])}

  def _inner(self, line: jsonl_io.Line, where: str) -> jsonl_io.Line:
    """Formats the line for the inner way: one text, or parts."""
    spec, other_fields = self._spec, line.others
    if not line.text:
      return line
    if spec.kind == "tags":
      words = words_of(self._spec, line, where)
      if self._way.asks == "tag":
        word_fields = {"words": words} if spec.texts[0] in other_fields or "words" in other_fields else {}
        return jsonl_io.Line(line.number, " ".join(words) if word_fields else line.text, word_fields)
      return jsonl_io.Line(line.number, spec.inputs([" ".join(words)]), {})
    has_columns = all(name in other_fields for name in spec.columns)
    if spec.kind == "choice":
      candidates = self._candidates(other_fields, where)
      texts = self._texts(other_fields, where) if has_columns else list(other_fields.get("parts", [line.text]))
      if self._way.asks == "choice" and "candidates" in self._way.form.needs and not self._ranks:
        return jsonl_io.Line(line.number, " ".join(texts), {"parts": texts, "candidates": candidates})
      return jsonl_io.Line(line.number, spec.inputs(texts, candidates), {"candidates": candidates})
    texts = self._texts(other_fields, where) if has_columns else list(other_fields.get("parts", [line.text]))
    if spec.kind == "span":
      return self._question(line, texts, where)
    if len(texts) != len(spec.texts) and not (self._writes and line.text.startswith(spec.prefix)):
      number = len(spec.texts)
      raise UserError(
        f"{where} has {len(texts)} text(s), but the model reads {number} column{'s' * (number > 1)}: "
        f"{' and '.join(map(repr, spec.texts))}. Give a .tsv, .csv, .jsonl or .parquet file with the "
        f"column{'s' * (number > 1)}."
      )
    if self._writes:
      return jsonl_io.Line(line.number, spec.inputs(texts), {})
    return jsonl_io.Line(line.number, " ".join(texts), {"parts": texts})

  @property
  def _ranks(self) -> bool:
    return self._way.options.get("method") == "rank"

  def _question(self, line: jsonl_io.Line, texts: list[str], where: str) -> jsonl_io.Line:
    """Formats a question and its context; a head reads them separately."""
    if len(texts) < 2 and "context" in line.others:
      texts = [line.text, line.others["context"]]
    if len(texts) < 2 and not line.text.startswith(self._spec.prefix):
      raise UserError(
        f"{where} has no column {self._spec.texts[1]!r}; give the columns {' and '.join(map(repr, self._spec.texts))}"
      )
    if self._way.asks == "span":
      return jsonl_io.Line(line.number, texts[0], {"context": context_of(self._spec, line, texts[1])})
    return jsonl_io.Line(line.number, self._spec.inputs(texts), {})

  def _texts(self, fields: Mapping[str, Any], where: str) -> list[str]:
    """Returns the texts of a row; one of several may be empty."""
    from t2t.data import tables

    texts = [tables.text(fields[name]) for name in self._spec.texts]
    for name, text in zip(self._spec.texts, texts, strict=True):
      if text is None:
        raise UserError(f"{where}: column {name!r} is {str(fields[name])[:40]!r}, not text; give a text")
    return texts

  def _candidates(self, fields: Mapping[str, Any], where: str) -> list[str]:
    from t2t.data import tables

    if "candidates" in fields and "candidates" not in self._spec.candidates:
      return jsonl_io.texts(fields, "candidates", where)
    return tables.candidates_of(self._spec, fields, where=where)


def context_of(spec: "tables.TableSpec", line: jsonl_io.Line, text: str) -> str:
  """Returns the unmodified context column, because answers count its characters; `text` if the line has no column."""
  context = line.others.get(spec.texts[1])
  return context if isinstance(context, str) else text


def words_of(spec: "tables.TableSpec", line: jsonl_io.Line, where: str) -> list[str]:
  """Returns the words of a line's column, or of its text.

  Raises:
    UserError: the column has other values than words, such as null; the message begins with `where`.
  """
  from t2t.data import tables
  from t2t.data.head_examples import tags

  value = line.others.get(spec.texts[0], line.others.get("words"))
  if value is None:
    return tags.split(line.text)
  words = tables.words(value)
  if words is None:
    raise UserError(
      f"{where}: column {spec.texts[0]!r} is {str(value)[:40]!r}, not a list of words; give a list of words without "
      "null, or words separated by spaces"
    )
  return words
