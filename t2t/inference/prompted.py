"""Lines with the fields of a template: its words are ranked or classified at the blank, or a text is generated."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from t2t import UserError, did_you_mean
from t2t.checkpoints import pretrained
from t2t.inference import (
  batch_inference,
  classification,
  head_predictor,
  jsonl_io,
  option_scores,
  prompt_builder,
  ranking,
  text_generation,
)
from t2t.models.head_config import HeadConfig
from t2t.param_tree import Params

if TYPE_CHECKING:
  from t2t.data.templates import Filled, Template

_OPTION = "--template "


def choose(source: pretrained.Source, spec: str) -> "Template | None":
  """Returns the template of the lines; None: lines are texts.

  Args:
    source: the checkpoint.
    spec: FILE, FILE:NAME or FILE:TASK.NAME, with a TOML file or a shipped one, or NAME of a template of the training;
      "": the template of the training, unless it is of conversations.

  Raises:
    UserError: the file cannot be read, has no such template, or has several.
  """
  data: Any = source.run["data"]
  trained = data.get("templates", "")
  if not spec and not trained:
    return None
  from t2t.data import templates

  file, names = trained, tuple(data.get("template_names", ()))
  if spec:
    of_training = templates.load(trained, key="--checkpoint: config.data.templates=") if trained else {}
    if any(row.name == spec for rows in of_training.values() for row in rows):
      names = (spec,)
    else:
      file, _, name = spec.rpartition(":") if ":" in spec else (spec, "", "")
      names = (name,) if name else ()
  tables = templates.load(file, key=_OPTION)
  rows = {f"{task}.{row.name}": row for task, of_task in tables.items() for row in of_task}
  task = source.task or source.prefix_task or data.get("mixture", "")
  of_task = {name: row for name, row in rows.items() if name.partition(".")[0] == task} or rows
  kept = {name: row for name, row in of_task.items() if not names or {name, row.name} & set(names)}
  kept = kept or {name: row for name, row in rows.items() if name in names}
  if not spec and kept and all(row.turns for row in kept.values()):
    return None
  if len(kept) != 1:
    wrong = f"has {len(kept)} templates that fit" if kept else f"has no template {names[0] if names else ''}"
    known = kept or rows
    near = did_you_mean(names[0], [*known, *(row.name for row in rows.values())]) if names and not kept else ""
    raise UserError(
      f"{_OPTION}{spec or file}: the file {wrong}. Give one of them as --template {file}:TASK.NAME: "
      f"{', '.join(known)}{near}"
    )
  (row,) = kept.values()
  if row.turns:
    raise UserError(
      f"{row.where}: turns are of conversations, but a line has fields. Give --template with a text, or a .txt file "
      "with the turns as text."
    )
  return row


class LineFields:
  """Reads the fields of a template from lines.

  Args:
    template: of the lines.
    size: measures a text in tokens.
    limit: maximum tokens of a line, with a word and special tokens.
  """

  def __init__(self, template: "Template", *, size: Callable[[str], int], limit: int):
    self._template, self._size, self._limit = template, size, limit
    self._indices: dict[str, int | None] = {}
    for field in template.fields:  # of a list, the last item that is read
      before = self._indices.get(field.name)
      self._indices[field.name] = field.index if before is None else max(before, field.index or 0)
    self.names = tuple(self._indices)

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """Refuses a line without a field, or with a field of another kind than the template reads."""
    fields = self._of(line)
    for name, index in self._indices.items():
      value = fields.get(name)
      good = (
        isinstance(value, list) and index < len(value) if index is not None else isinstance(value, str | int | float)
      )
      if not good and line.text:
        needed = "a text" if index is None else f"a list of {index + 1} or more texts"
        shown = f"is {str(value)[:40]!r}" if name in fields else "is missing"
        raise UserError(
          f"{where}: field {name!r} {shown}, but {self._template.where} reads {needed}. Give lines with the fields "
          f"{', '.join(self.names)}."
        )

  def fill(self, line: jsonl_io.Line) -> "Filled":
    """Returns the template with the fields of a line that `check` accepts, and with its words."""
    fields = {
      name: [str(x) for x in value] if isinstance(value, list) else str(value) for name, value in self._of(line).items()
    }
    words = [
      (self._template.filled(word, fields), label) for label, texts in self._template.words.items() for word in texts
    ] or [(text, text) for text in line.others.get("candidates", ())]
    return self._template.fill(fields, words, size=self._size, limit=self._limit)

  def _of(self, line: jsonl_io.Line) -> Mapping[str, Any]:
    # A line of plain text is the only field.
    return line.others if line.others or len(self.names) != 1 else {self.names[0]: line.text}


def line_form(template: "Template", **fields: Any) -> jsonl_io.Form:
  """Returns the form of lines with the fields of a template; `fields` are further fields of the form."""
  names = tuple(dict.fromkeys(field.name for field in template.fields))
  return jsonl_io.Form(columns=names, reads=template.where, **fields)


def _as_options(template: "Template") -> dict[str, Any]:
  """Returns the content of a template, because rows of an edited file do not fit those of the old one."""
  content = dataclasses.asdict(template) | {"where": ""}
  # As the file of the run has them: lists.
  return {"template": json.loads(json.dumps({name: value for name, value in content.items() if value}))}


class Ranked:
  """The way that ranks the words of a template, or the candidates of each line; see `batch_inference.Way`.

  Args:
    source: the checkpoint.
    mesh: on which its parameters are loaded.
    template: of the lines.
    longest: maximum number of tokens of a line, special tokens included.
    ends_prompts: whether EOS ends a prompt.
    batch_size: pairs of a line and a word in a batch, over all devices.
    normalize: key of `option_scores.NORMALIZATIONS`; "": the default.
    neutral_context: text of the neutral context of normalize="unconditional".

  Raises:
    UserError: the vocabulary has no sentinel for the blank, or a template for an encoder has no blank.
  """

  unit, pairs = "tokens", False
  nothing: Mapping[str, Any] = {"prediction": None, "score": None}

  def __init__(
    self,
    source: pretrained.Source,
    mesh: jax.sharding.Mesh,
    *,
    template: "Template",
    longest: int,
    ends_prompts: bool,
    batch_size: int,
    normalize: str = "",
    neutral_context: str = "",
  ):
    self._template, self.remarks = template, ()
    self.asks = "class" if template.words else "choice"
    self.form = line_form(template, needs=() if template.words else ("candidates",))
    self.longest, self.cut_to = longest, f"{longest:,} tokens"
    self._read_by = reader_of(source, template)
    special_tokens = "blanks" if source.model.kind.has_encoder_and_decoder else "none"
    self._prompts = prompt_builder.Prompts(
      pretrained.vocabulary(source), ends=ends_prompts, longest=longest, special_tokens=special_tokens
    )
    self._fields = LineFields(template, size=lambda text: len(self._prompts.encode(text)), limit=longest)
    scoring = {"normalize": normalize, "neutral_context": neutral_context}
    self._ranker = ranking.LineRanker(source, mesh, self._prompts, longest=longest, batch_size=batch_size, **scoring)
    self.options = {"inputs_length": longest} | _as_options(template) | self._ranker.options

  def check(self, line: jsonl_io.Line, where: str) -> None:
    self._fields.check(line, where)
    if not self._template.words and line.text:
      if "candidates" not in line.others:
        raise UserError(
          f"{where} has no field 'candidates', and {self._template.where} has no words. Give a list: "
          '{"candidates": ["...", "..."]}'
        )
      jsonl_io.texts(line.others, "candidates", where)

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    filled = self._fields.fill(line)
    text, behind, complete = self._read_by(filled)
    tokens, cut = self._prompts(text)
    encoded = {
      "inputs": tokens,
      "suffix": self._prompts.encode(behind),
      "options": [[complete(word), label] for word, label in filled.words],
    }
    cut += filled.cut
    return batch_inference.EncodedLine(encoded, len(tokens) + len(encoded["suffix"]) + cut, cut)

  def answer(
    self, params: Params, inputs: Sequence[Any], *, numbers: Sequence[int], done: batch_inference.Done | None
  ) -> list[dict[str, Any]]:
    """Returns the likeliest label and the probabilities of all labels, or of all candidates."""
    del numbers
    ranked = self._ranker(
      params,
      [example["inputs"] for example in inputs],
      [[text for text, _ in example["options"]] for example in inputs],
      suffixes=[example["suffix"] for example in inputs],
      done=done,
    )
    self.remarks = (self._ranker.note,) if self._ranker.note else self.remarks
    return [self._row(example, scores) for example, scores in zip(inputs, ranked, strict=True)]

  def _row(self, example: Mapping[str, Any], scores: np.ndarray) -> dict[str, Any]:
    labels = [label for _, label in example["options"]]
    if not self._template.words:
      head = HeadConfig("choice", 1, "choice")
      return head_predictor.fields(head, {"candidates": labels}, scores[:, None])
    _, of_labels = option_scores.of_labels(scores, labels)
    head = HeadConfig("class", len(of_labels), "class", tuple(dict.fromkeys(labels)))
    return head_predictor.fields(head, {}, of_labels[None])


class Classified(classification.HeadWay):
  """The way of an encoder that was trained on templates: its head classifies the masked word; see `HeadWay`.

  Raises:
    UserError: the words of the template are not those of the head.
  """

  pairs = False
  nothing: Mapping[str, Any] = {"prediction": None, "score": None}

  def __init__(
    self, source: pretrained.Source, mesh: jax.sharding.Mesh, *, template: "Template", head: HeadConfig, **options: Any
  ):
    from t2t.data import vocabularies
    from t2t.data.head_examples import kinds

    reader_of(source, template)
    super().__init__(source, mesh, head=head, **options)
    vocabulary = vocabularies.as_text(pretrained.vocabulary(source))
    space = " " if kinds.joins_space(vocabulary) else ""
    for label, ids in zip(head.labels, head.words, strict=True):
      encoded = [vocabulary.encode(text) for word in template.words.get(label, ()) for text in (word, space + word)]
      if not template.words.get(label) or not all([token] in encoded for token in ids):
        raise UserError(
          f"{template.where}: the head {head.name} was trained with other words for {label}. Give a template with the "
          "words of the training."
        )
    self.form = line_form(template)
    self._fields = LineFields(template, size=lambda text: len(vocabulary.encode(text)), limit=self.longest)
    self.check = self._fields.check
    self.options = {**self.options} | _as_options(template)

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    filled = self._fields.fill(line)
    example = {"header": filled.header, "blank_before": filled.before, "blank_space": filled.space}
    example |= {"blank_after": filled.after, "inputs_uncut": np.array(filled.uncut, np.int32)}
    encoded = self._encoded(example, {})
    # The size of a filled template has room for more special tokens than a text may have.
    cut = filled.cut
    return batch_inference.EncodedLine(encoded.given, len(encoded.given["inputs"]) + cut, cut)


class Generated:
  """The way that generates the text in the blank of a template without words; see `batch_inference.Way`.

  Args:
    way: of the model for a text.
    template: of the lines.
    source: the checkpoint.

  Raises:
    UserError: see `Ranked`.
  """

  pairs = False

  def __init__(self, way: text_generation.Writing, template: "Template", source: pretrained.Source):
    self._way, self._read_by = way, reader_of(source, template)
    self._can_generate = not (source.model.kind.is_decoder_only and template.has_text_behind)
    vocabulary = pretrained.vocabulary(source)
    self._fields = LineFields(template, size=lambda text: len(vocabulary.encode(text)), limit=way.longest)
    self.asks, self.unit, self.nothing = way.asks, way.unit, way.nothing
    self.longest, self.cut_to, self._template = way.longest, way.cut_to, template
    self.form, self.options = line_form(template), {**way.options} | _as_options(template)

  @property
  def remarks(self) -> Sequence[str]:
    return self._way.remarks

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """Refuses a line that has no fields for the template, or no candidates where a decoder cannot generate."""
    self._fields.check(line, where)
    if not self._can_generate and line.text:
      raise UserError(
        f"{where} has no field 'candidates', and {self._template.where} has text={self._template.text!r}: a decoder "
        "generates before it reads the text behind the blank. Give candidates, put {blank} at the end, or give words, "
        "which are ranked."
      )

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    filled = self._fields.fill(line)
    text, _, _ = self._read_by(filled)
    encoded = self._way.without_prefix(text)
    return batch_inference.EncodedLine(encoded.given, encoded.tokens + filled.cut, encoded.cut + filled.cut)

  def answer(
    self, params: Params, inputs: Sequence[Any], *, numbers: Sequence[int], done: batch_inference.Done | None
  ) -> list[dict[str, Any]]:
    """Returns the generated texts, without sentinels."""
    rows = self._way.answer(params, inputs, numbers=numbers, done=done)
    return [row | {"prediction": text_generation.BLANK.sub("", row["prediction"]).strip()} for row in rows]


class RankedOrGenerated:
  """The way of a generative model with a template without words; see `batch_inference.Way`.

  Lines with candidates are ranked, and a text is generated for the others.

  Args:
    ranked: way of lines with candidates.
    generated: way of other lines.
    template: of the lines; if its own text has the field "candidates", all texts are generated.
  """

  pairs = False

  def __init__(self, ranked: Ranked, generated: Generated, template: "Template"):
    self._ranked, self._generated = ranked, generated
    self._reads_candidates = any(field.name == "candidates" for field in template.fields)
    self.asks, self.unit, self.nothing = generated.asks, generated.unit, generated.nothing
    self.longest, self.cut_to, self.form = generated.longest, generated.cut_to, generated.form
    self.options = {**ranked.options} | generated.options

  @property
  def remarks(self) -> Sequence[str]:
    return tuple(dict.fromkeys([*self._ranked.remarks, *self._generated.remarks]))

  def _is_ranked(self, line: jsonl_io.Line) -> bool:
    return "candidates" in line.others and not self._reads_candidates

  def check(self, line: jsonl_io.Line, where: str) -> None:
    (self._ranked if self._is_ranked(line) else self._generated).check(line, where)

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    is_ranked = self._is_ranked(line)
    encoded = (self._ranked if is_ranked else self._generated).read(line)
    return encoded if encoded.error else dataclasses.replace(encoded, given=[is_ranked, encoded.given])

  def answer(
    self, params: Params, inputs: Sequence[Any], *, numbers: Sequence[int], done: batch_inference.Done | None
  ) -> list[dict[str, Any]]:
    """Returns the rows of `Ranked` for lines with candidates, and of `Generated` for others."""
    rows: list[dict[str, Any]] = [{}] * len(inputs)
    for is_ranked, way in ((True, self._ranked), (False, self._generated)):
      mine = [index for index, (ranks, _) in enumerate(inputs) if ranks == is_ranked]
      if mine:
        given, of_lines = [inputs[index][1] for index in mine], [numbers[index] for index in mine]
        for index, row in zip(mine, way.answer(params, given, numbers=of_lines, done=done), strict=True):
          rows[index] = row
    return rows


def reader_of(source: pretrained.Source, template: "Template") -> "Callable[[Filled], tuple[str, str, Callable]]":
  """Returns the function that writes a filled template as the model reads it: see `Filled.read_by`.

  Raises:
    UserError: the template has no blank for an encoder, or the vocabulary has no sentinel.
  """
  from t2t.data import templates

  form = templates.form_of(source.model.architecture, (template,))
  data: Any = source.run["data"]
  blank = data.get("template_blank") or "auto"
  templates.check_sentinel(pretrained.vocabulary(source), (template,), form=form, blank=blank)
  return lambda filled: filled.read_by(form, blank)
