"""Converts table rows to examples of a task, and holds out rows for evaluation."""

import collections
from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import functools
import os
import re
from typing import Any
import zlib

import numpy as np

from t2t import UserError
from t2t.data import postprocessors
from t2t.data.tables import choices, columns, labels, reading, values
from t2t.data.tables.spec import TableSpec
from t2t.storage import encoding

Example = dict[str, Any]

_HELD_OUT = 10  # one row in ten
_MOST_HELD_OUT = 2_000  # rows; more would improve the estimate little and take long
_SHOWN = 8  # classes in a log line
_ROWS_OF_INFER = ".rows.jsonl"  # see inference/table_output.py: `t2t infer` keeps its rows beside the file it writes
_WORDS_OF_ROUGE = re.compile("[a-z0-9]")
_LARGE = 10.0  # larger numbers are far from the initial outputs of a head, which are near 0


@dataclasses.dataclass(frozen=True)
class Table:
  """Examples of a table.

  train, held_out: see `read_example`.
  notes: lines on the examples, for the log at the start of a run.
  """

  train: Sequence[Example]
  held_out: Sequence[Example]
  notes: Sequence[str]


# ---- Rows ------------------------------------------------------------------------------------------------------------


class _Missing(Exception):
  """Row without a text or a label, which is left out."""


def _text(row: reading.TableRow, name: str, may_be_empty: bool = False) -> str:
  value = values.plain(row.fields.get(name))
  text = values.text(value)
  if text is None:
    raise UserError(
      f"{row.where}: column {name!r} contains {str(value)[:40]!r}, not text; correct the row, or name another column in"
      " config.data.columns"
    )
  if not (text or may_be_empty):
    raise _Missing(f"without a text in {name!r}")
  return text


def texts_of(spec: TableSpec, fields: Mapping[str, Any], *, where: str) -> list[str]:
  """Returns the texts of a row, in reading order.

  Raises:
    UserError: a text is missing, empty, or not a text.
  """
  columns.check(spec, fields, where=where, labelled=False)
  try:
    return [_text(reading.TableRow(fields, where), name) for name in spec.texts]
  except _Missing as error:
    raise UserError(f"{where}: the row is {error}; give a text") from error


def candidates_of(spec: TableSpec, fields: Mapping[str, Any], *, where: str) -> list[str]:
  """Returns the candidates of a row.

  Raises:
    UserError: there are fewer than two candidates, or one is not a text.
  """
  return choices.read(spec, fields, where=where).filled


def read_example(spec: TableSpec, row: reading.TableRow) -> Example:
  """Converts a row to an example, or raises `_Missing`.

  In:  a class, {"review": "It is great.", "stars": 5}, classes 1 to 5, prefix "review: "
  Out: {"inputs": "review: It is great.", "targets": "5", "label": 4, "parts": ["It is great."],
        "row": "train.tsv, line 2", "key": "It is great."}

  Raises:
    UserError: a value cannot be used; names file, line and column.
  """
  value = values.plain(row.fields.get(spec.label))
  if spec.kind == "tags":
    example = _tags(spec, row, value)
  else:
    texts = [_text(row, spec.texts[0]), *(_text(row, name, spec.kind == "text") for name in spec.texts[1:])]
    example = _KINDS[spec.kind](spec, row, value, texts)
    # Rows with one question and different candidates are different rows; the order of candidates does not count.
    sorted_candidates = sorted(example["candidates"]) if spec.label_is else ()
    example["key"] = "\n".join([*texts, *sorted_candidates])
  for text in (example["inputs"], example["targets"]):
    if reason := encoding.unpaired_surrogate(text):  # JSON may contain escaped surrogates
      raise UserError(f"{row.where}: {text[:40]!r} {reason}")
  return example | {"row": row.where}


def _check_labelled(spec: TableSpec, value: Any) -> None:
  if labels.is_missing(value, spec):
    raise _Missing(f"without a label in {spec.label!r}")


def _class(spec: TableSpec, row: reading.TableRow, value: Any, texts: list[str]) -> Example:
  _check_labelled(spec, value)
  number = labels.class_number(value, spec, where=row.where)
  return {"inputs": spec.inputs(texts), "targets": spec.classes[number], "label": number, "parts": texts}


def _score(spec: TableSpec, row: reading.TableRow, value: Any, texts: list[str]) -> Example:
  _check_labelled(spec, value)
  number = values.number(value)
  if number is None:
    remedy = "write a decimal point (0.5, not 0,5)" if labels.has_comma(str(value)) else "correct the row"
    raise UserError(
      f"{row.where}: column {spec.label!r} contains {str(value)[:40]!r}, not a number; {remedy}, or leave the row out"
    )
  if abs(number) > float(np.finfo(np.float32).max):
    raise UserError(
      f"{row.where}: column {spec.label!r} contains {str(value)[:40]}, too large for float32; divide the column by a"
      " constant"
    )
  written = np.format_float_positional(number, trim="-")  # the shortest text that identifies the number
  return {"inputs": spec.inputs(texts), "targets": written, "label": number, "parts": texts}


def _target(spec: TableSpec, row: reading.TableRow, value: Any, texts: list[str]) -> Example:
  _check_labelled(spec, value)
  target = values.text(value)
  if target is None:
    raise UserError(
      f"{row.where}: column {spec.label!r} contains {str(value)[:40]!r}, not text; name another column in"
      " config.data.columns"
    )
  return {"inputs": spec.inputs(texts), "targets": target}


def _choice(spec: TableSpec, row: reading.TableRow, value: Any, texts: list[str]) -> Example:
  _check_labelled(spec, value)
  listed = choices.read(spec, row.fields, where=row.where)
  number, candidates = choices.right(spec, value, listed, where=row.where), listed.filled
  options = [f"choice{n}" for n in range(1, len(candidates) + 1)]
  example = {"inputs": spec.inputs(texts, candidates), "targets": options[number], "label": number, "parts": texts}
  return example | {"candidates": candidates, "options": options}


def _tags(spec: TableSpec, row: reading.TableRow, value: Any) -> Example:
  of_words = values.plain(row.fields.get(spec.texts[0]))
  if values.is_missing(of_words):
    raise _Missing(f"without words in {spec.texts[0]!r}")
  if values.is_missing(value):
    raise _Missing(f"without tags in {spec.label!r}")
  words, tags = values.words(of_words), values.tags(value)
  if words is None or tags is None:
    name = spec.texts[0] if words is None else spec.label
    raise UserError(
      f"{row.where}: column {name!r} contains {str(row.fields[name])[:40]!r}, which is not a list of words; give a list"
      " without null, or words separated by spaces"
    )
  if not words:
    raise _Missing(f"without words in {spec.texts[0]!r}")
  unscored = [(word, tag) for word, tag in zip(words, tags, strict=False) if labels.is_mark(tag, spec)]
  if len(unscored) == len(tags):
    raise _Missing(f"without tags in {spec.label!r}")
  if len(words) != len(tags):
    raise UserError(
      f"{row.where}: the row has {len(words)} words in {spec.texts[0]!r} and {len(tags)} tags in {spec.label!r}; give"
      " one tag for each word"
    )
  if unscored:
    word, tag = unscored[0]
    raise UserError(
      f"{row.where}: the word {word[:40]!r} has the tag null or {tag} in {spec.label!r}, which marks padding. Remove"
      f" the word, or give a tag for the word. If {tag} is a tag, list all tags in config.data.labels."
    )
  numbers = [labels.class_number(tag, spec, where=row.where) for tag in tags]
  names = [spec.classes[number] for number in numbers]
  inputs, targets = spec.inputs([" ".join(words)]), postprocessors.written_tags(words, names, spec.classes)
  return {"inputs": inputs, "targets": targets, "words": words, "tags": numbers, "key": " ".join(words)}


def _span(spec: TableSpec, row: reading.TableRow, value: Any, texts: list[str]) -> Example:
  question, context = texts[0], values.plain(row.fields[spec.texts[1]])
  context = context if isinstance(context, str) else texts[1]  # unstripped, because answers count its characters
  try:
    answer_texts, starts = _answers(spec, row.fields, value)
  except values.UnreadableCell as error:
    raise UserError(f"{row.where}: {spec.label}: {error}") from error
  placed = []
  for text, start in zip(answer_texts, starts, strict=True):
    offset = context.find(text) if start is None else start
    if not text or offset < 0 or context[offset : offset + len(text)] != text:
      where = "" if start is None else f" at character {start}"
      raise UserError(
        f"{row.where}: the answer {text[:40]!r} is not in {spec.texts[1]!r}{where}; copy the answer exactly from "
        "the context"
      )
    placed.append(offset)
  if not answer_texts and not spec.no_answer:
    raise _Missing(f"without an answer in {spec.label!r}")
  target = answer_texts[0] if answer_texts else postprocessors.UNANSWERABLE
  answer_fields = {
    "question": question,
    "context": context,
    "answer_texts": answer_texts,
    "answer_starts": placed,
    "answers": answer_texts,
  }
  return {"inputs": spec.inputs([question, context.strip()]), "targets": target, "id": row.where} | answer_fields


def _answers(spec: TableSpec, fields: Mapping[str, Any], value: Any) -> tuple[list[str], list[int | None]]:
  """Returns the answers of a row; a question marked as impossible has none, even if plausible answers are given."""
  if values.label(values.plain(fields.get(columns.IMPOSSIBLE))).lower() in ("true", "1"):
    return [], []
  return values.answers(value, fields.get(spec.start))


_KINDS = {"class": _class, "score": _score, "text": _target, "choice": _choice, "span": _span}


# ---- Tables ----------------------------------------------------------------------------------------------------------


def begin(spec: TableSpec, rows: Sequence[reading.TableRow]) -> TableSpec:
  """Adds to the spec what only all rows can show: whether answers may be missing."""
  if spec.kind == "span":
    num_unanswerable = 0
    for row in rows:
      value = values.plain(row.fields.get(spec.label))
      with contextlib.suppress(values.UnreadableCell):  # raised again with its line when the row is read
        num_unanswerable += not _answers(spec, row.fields, value)[0]
    return dataclasses.replace(spec, no_answer=0 < num_unanswerable < len(rows))
  return spec


def _read(
  spec: TableSpec, rows: Sequence[reading.TableRow], *, where: str, most_missing: float
) -> tuple[list[Example], list[str]]:
  """Returns the examples of rows, and notes on the rows left out."""
  examples, left_out = [], collections.Counter()
  first: dict[str, str] = {}
  for row in rows:
    try:
      examples.append(read_example(spec, row))
    except _Missing as error:
      left_out[str(error)] += 1
      first.setdefault(str(error), row.where)
  number = sum(left_out.values())
  listed = "; ".join(f"{count:,} {why} (the first: {first[why]})" for why, count in left_out.items())
  if number > most_missing * len(rows):
    raise UserError(
      f"{where}: {number:,} of {len(rows):,} rows cannot be used: {listed}. At most {most_missing:.0%} of"
      " the rows may be incomplete. Correct or delete these rows, or allow a larger share with"
      " --config.data.max_bad_record_fraction=0.5."
    )
  return examples, [f"left out: {listed}"] if number else []


def load(spec: TableSpec, *, malformed: float = 0.0) -> Table:
  """Reads the examples of a table.

  Args:
    spec: of the table; its files are read.
    malformed: share of the rows that may lack a label or a text; at least `labels.MOST_MISSING` applies.

  Raises:
    UserError: a row cannot be used; names file, line and column.
  """
  keys = ("files", "eval_files")
  stamps = tuple(reading.stamp(getattr(spec, key), where=f"config.data.{key}") for key in keys)
  return _load(spec, max(malformed, labels.MOST_MISSING), stamps)


@functools.lru_cache(maxsize=4)
def _load(spec: TableSpec, most_missing: float, stamps: Any) -> Table:
  del stamps  # cache key: changes with the files
  notes: list[str] = []
  examples_by_key: dict[str, list[Example]] = {"files": [], "eval_files": []}
  for key, patterns in (("files", spec.files), ("eval_files", spec.eval_files)):
    if patterns:
      where = f"config.data.{key}"
      rows = reading.read(patterns, where=where)
      fields = rows[0].fields
      if any(name not in fields for name in (*spec.columns, spec.label)):
        # JSON objects may lack columns that other objects have.
        fields = dict.fromkeys(reading.names_of(rows))
      columns.check(spec, fields, where=rows[0].where)
      examples_by_key[key], left_out_notes = _read(
        spec, rows, where=reading.described(patterns, key=f"{where}="), most_missing=most_missing
      )
      notes += left_out_notes + _contradicting(examples_by_key[key])
  train, held_out = examples_by_key["files"], examples_by_key["eval_files"]
  if spec.files and not spec.eval_files:
    train, held_out = split(train, where=reading.described(spec.files))
    notes.append(f"held out: {len(held_out):,} of {len(train) + len(held_out):,} rows, chosen by a hash of their text")
  elif train:
    notes += _repeated(train, held_out)
  notes += _predicted(spec, held_out)
  return Table(train, held_out, [*_described(spec, train or held_out), *notes, *_majority(spec, train, held_out)])


def _group(example: Example) -> Any:
  """Returns the class of an example, to hold out examples of each; "" for other kinds."""
  return example["targets"] if "label" in example and isinstance(example["label"], int) else ""


def split(examples: Sequence[Example], *, where: str) -> tuple[list[Example], list[Example]]:
  """Holds out about a tenth of the examples by a hash of their text, with at least one of each class that has two.

  Rows with the same text go to the same side.

  Raises:
    UserError: there are fewer than two distinct texts.
  """
  order = sorted({example["key"] for example in examples}, key=lambda key: (zlib.crc32(key.encode()), key))
  group_of = {example["key"]: _group(example) for example in reversed(examples)}
  groups: dict[Any, list[str]] = {}
  for key in order:
    groups.setdefault(group_of[key], []).append(key)
  share = min(1 / _HELD_OUT, _MOST_HELD_OUT / max(len(order), 1))
  chosen = {key for keys in groups.values() for key in keys[: min(max(1, round(share * len(keys))), len(keys) - 1)]}
  if not chosen:
    chosen = set(order[:1])
  if len(order) < 2:
    raise UserError(
      f"{where} has {len(order)} distinct text(s), too few to hold out one text for evaluation; give at least two rows"
      " with different texts"
    )
  return [x for x in examples if x["key"] not in chosen], [x for x in examples if x["key"] in chosen]


def _answer(example: Example) -> str:
  """Returns the class of an example, or the text of its correct candidate."""
  return example["candidates"][example["label"]] if "candidates" in example else example["targets"]


def _contradicting(examples: Sequence[Example]) -> list[str]:
  """Returns a note on repeated texts with different classes."""
  first: dict[str, Example] = {}
  pairs = [(first.setdefault(x["key"], x), x) for x in examples if _group(x)]
  differ = [(earlier, later) for earlier, later in pairs if _answer(earlier) != _answer(later)]
  if not differ:
    return []
  earlier, later = differ[0]
  texts = len({earlier["key"] for earlier, _ in differ})
  return [
    f"warning: {texts:,} texts occur with different labels ({earlier['row']}: {_answer(earlier)}; "
    f"{later['row']}: {_answer(later)})"
  ]


def _repeated(train: Sequence[Example], held_out: Sequence[Example]) -> list[str]:
  """Returns a note on texts that are in both training and evaluation data."""
  first = {example["key"]: example["row"] for example in reversed(train)}
  both = [example for example in held_out if example["key"] in first]
  if not both:
    return []
  example_note = f"{both[0]['row']} equals {first[both[0]['key']]}"
  return [
    f"warning: {len(both):,} of {len(held_out):,} texts of config.data.eval_files are also training texts "
    f"({example_note}): their metrics are too good"
  ]


def _predicted(spec: TableSpec, held_out: Sequence[Example]) -> list[str]:
  """Returns a note on held-out rows of JSON lines that `t2t infer --min_confidence` has labelled."""
  key = "eval_files" if spec.eval_files else "files"
  paths = reading.find(getattr(spec, key), where=f"config.data.{key}")
  written = [path for path in paths if path.endswith(".jsonl") and os.path.exists(path + _ROWS_OF_INFER)]
  number = sum(example["row"].startswith(tuple(f"{path}, " for path in written)) for example in held_out)
  if not number:
    return []
  return [
    f"warning: {number:,} of {len(held_out):,} held-out rows have labels that a model predicted "
    f"({', '.join(written)}): their metrics compare predictions with predictions. "
    "Give --config.data.eval_files=FILE with human labels."
  ]


def _described(spec: TableSpec, examples: Sequence[Example]) -> list[str]:
  """Describes the classes and their frequencies, or the range of the values."""
  if spec.kind == "class":
    counts = collections.Counter(example["targets"] for example in examples)
    names = list(spec.classes[:_SHOWN])
    listed = ", ".join(f"{name} ({counts[name] / max(len(examples), 1):.0%})" for name in names)
    more = f", and {len(spec.classes) - _SHOWN} more" if len(spec.classes) > _SHOWN else ""
    return [f"{len(spec.classes)} classes: {listed}{more}"]
  if spec.kind == "score":
    scores = [example["label"] for example in examples]
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    if scores and low == high:
      return [f"warning: the number is {low:g} in all {len(scores):,} rows; there is nothing to learn"]
    wide = f"; a head learns numbers up to {_LARGE:g} best: divide the column" if max(-low, high) > _LARGE else ""
    return [f"a number from {low:g} to {high:g}{wide}"]
  if spec.kind == "tags":
    return [f"{len(spec.classes)} tags: {', '.join(spec.classes[:20])}"]
  if spec.kind == "choice":
    numbers = [len(example["candidates"]) for example in examples]
    return [f"one of {min(numbers, default=0)} to {max(numbers, default=0)} candidates; {choices.described(spec)}"]
  if spec.kind == "text":
    return ["a text that the model generates", *_outside_rouge(examples)]
  no_answer_note = " or none" if spec.no_answer else ""
  return [f"a part of the context{no_answer_note}"]


def _outside_rouge(examples: Sequence[Example]) -> list[str]:
  """Returns a note on targets without a word for ROUGE, such as those in non-Latin scripts."""
  num_wordless = sum(not _WORDS_OF_ROUGE.search(example["targets"].lower()) for example in examples)
  if not num_wordless:
    return []
  return [
    f"warning: {num_wordless:,} of {len(examples):,} targets have no letter a to z and no digit. ROUGE reads "
    "nothing else, so these targets score 0. Use the loss and the accuracy instead."
  ]


def _majority(spec: TableSpec, train: Sequence[Example], held_out: Sequence[Example]) -> list[str]:
  """Returns notes on the majority baseline, and on classes that one side lacks."""
  if spec.kind != "class" or not train or not held_out:
    return []
  counts = collections.Counter(example["targets"] for example in train)
  (best, _), held_out_counts = counts.most_common(1)[0], collections.Counter(example["targets"] for example in held_out)
  notes = [
    f'majority baseline: "{best}" is correct for {held_out_counts[best] / len(held_out):.1%} of the '
    f"{len(held_out):,} held-out rows"
  ]
  if lacking := [name for name in spec.classes if not counts[name]]:
    notes.append(f"warning: no training row has the class {', '.join(lacking[:_SHOWN])}")
  if lacking := [name for name in spec.classes if counts[name] and not held_out_counts[name]]:
    notes.append(f"no held-out row has the class {', '.join(lacking[:_SHOWN])}")
  return notes
