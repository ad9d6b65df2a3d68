"""Parsers of the released files of benchmarks; records have the fields of TensorFlow Datasets.

Fields that no format uses are left out. Classes are numbered as in TFDS; -1 means that the label is missing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import concurrent.futures
import csv
import json
import re
import string
from typing import Any

from absl import logging
from etils import epath
import numpy as np
import tensorflow as tf

from t2t import UserError
from t2t.storage import encoding

Record = dict[str, Any]

_REMEDY = "Correct the file, or download the file again."


# ---- Fields of a record ----------------------------------------------------------------------------------------------


def _kind(value: Any) -> str:
  names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
  return names.get(type(value), "an object")


def _field(row: Mapping[str, Any], name: str, kind: type, location: str) -> Any:
  """Returns a field of a JSON object after checking its type."""
  if not isinstance(row, Mapping):
    raise UserError(f"{location}: expected an object with a field {name!r}, not {_kind(row)}. {_REMEDY}")
  if name not in row:
    raise UserError(f"{location}: no field {name!r} (fields: {', '.join(map(repr, row)) or 'none'}). {_REMEDY}")
  value = row[name]
  if kind is int and isinstance(value, str) and value.isdecimal():
    value = int(value)  # AX-b has its numbers as strings
  if not isinstance(value, kind):
    raise UserError(f"{location}: field {name!r} is {_kind(value)}, not {_kind(kind())}. {_REMEDY}")
  if kind is str and (reason := encoding.unpaired_surrogate(value)):
    raise UserError(f"{location}: field {name!r} {reason}")
  return value


def _check_columns(columns: Iterable[str], header: Sequence[str], location: str) -> None:
  for column in columns:
    if column not in header:
      raise UserError(f"{location}: no column {column!r} (columns: {', '.join(map(repr, header))}). {_REMEDY}")


def _row_length(cells: Sequence[str], header: Sequence[str], location: str, remedy: str = _REMEDY) -> UserError:
  number = f"{len(cells)} column(s), not {len(header)} ({', '.join(header)})"
  return UserError(f"{location}: the row has {number}. {remedy}")


def _label(value: Any, labels: Sequence[str], location: str) -> int:
  """Returns the index of a class that is given by name or number; -1 if it is missing."""
  if value is None:
    return -1
  if value in labels:
    return labels.index(value)
  if isinstance(value, str) and value.isdecimal():
    value = int(value)
  if isinstance(value, int) and 0 <= value < len(labels):
    return int(value)
  raise UserError(
    f"{location}: label {value!r} is not valid. Give one of {', '.join(labels)}, or a number from 0 to"
    f" {len(labels) - 1}."
  )


def _number(value: str | None, location: str) -> float:
  try:
    return -1.0 if value is None else float(value)
  except ValueError as error:
    raise UserError(f"{location}: label {value!r} is not a number. {_REMEDY}") from error


# ---- Files -----------------------------------------------------------------------------------------------------------


def _lines(path: str, where: str) -> list[str]:
  try:
    text = epath.Path(path).read_bytes().decode("utf-8-sig")
  except UnicodeDecodeError as error:
    number = error.object[: error.start].count(b"\n") + 1
    raise UserError(
      f"{where}: {path}, line {number}: not valid UTF-8 ({error.reason}); {encoding.remedy(error.object)}"
    ) from error
  except (OSError, tf.errors.OpError) as error:
    reason = getattr(error, "strerror", None) or error
    raise UserError(f"{where}: {path} cannot be read ({reason}); check the path and permissions of the file") from error
  return [line.removesuffix("\r") for line in text.split("\n")]


def _not_json(error: ValueError | RecursionError, text: str, location: str) -> UserError:
  reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
  return UserError(f"{location}: {text if len(text) <= 60 else text[:60] + '...'!r} is not JSON ({reason}). {_REMEDY}")


def _json_lines(path: str, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
  """Yields each object of a file, with its location for messages."""
  for number, line in enumerate(_lines(path, where), 1):
    if line.strip():
      location = f"{where}: {path}, line {number}"
      try:
        row = json.loads(line)
      except (ValueError, RecursionError) as error:
        raise _not_json(error, line, location) from error
      yield location, row


# ---- SuperGLUE -------------------------------------------------------------------------------------------------------


def objects(path: str, where: str, labels: Sequence[str], *, texts: Sequence[str]) -> Iterator[Record]:
  """Yields records of lines with some texts, a label and an index.

  Args:
    path: of the file.
    where: config key of the folder, for messages.
    labels: names of the classes.
    texts: fields.

  Raises:
    UserError: a record is malformed; names file and line. The same holds for all parsers of this module.
  """
  for location, row in _json_lines(path, where):
    record = {name: _field(row, name, str, location) for name in texts}
    yield record | {"label": _label(row.get("label"), labels, location), "idx": _field(row, "idx", int, location)}


def labelled_texts(path: str, where: str, labels: Sequence[str], *, texts: Mapping[str, str]) -> Iterator[Record]:
  """Yields records of lines with a label, numbered as in the file.

  Args:
    path, where, labels: see `objects`.
    texts: field of the record -> its text, with fields of the line in braces: "Question: {question}".
  """
  needed = {name for text in texts.values() for _, name, *_ in string.Formatter().parse(text) if name}
  for number, (location, row) in enumerate(_json_lines(path, where)):
    values = {name: _field(row, name, str, location) for name in sorted(needed)}
    record = {name: text.format_map(values) for name, text in texts.items()}
    yield record | {"label": _label(row.get("label"), labels, location), "idx": number}


def multirc(path: str, where: str, labels: Sequence[str]) -> Iterator[Record]:
  """Yields one record for each answer to each question on each paragraph."""
  for location, row in _json_lines(path, where):
    passage = _field(row, "passage", dict, location)
    for question in _field(passage, "questions", list, location):
      for answer in _field(question, "answers", list, location):
        numbered = {"paragraph": row, "question": question, "answer": answer}
        yield {
          "paragraph": _field(passage, "text", str, location),
          "question": _field(question, "question", str, location),
          "answer": _field(answer, "text", str, location),
          "label": _label(answer.get("label"), labels, location),
          "idx": {name: _field(part, "idx", int, location) for name, part in numbered.items()},
        }


def record(path: str, where: str, labels: Sequence[str]) -> Iterator[Record]:
  """Yields one record for each query on each passage, with sorted, unique entities and answers."""
  del labels
  for location, row in _json_lines(path, where):
    passage = _field(row, "passage", dict, location)
    text = _field(passage, "text", str, location)
    spans = [
      (_field(entity, "start", int, location), _field(entity, "end", int, location))
      for entity in _field(passage, "entities", list, location)
    ]
    for query in _field(row, "qas", list, location):
      answers = _field(query, "answers", list, location) if "answers" in query else []
      yield {
        "passage": text,
        "query": _field(query, "query", str, location),
        "entities": sorted({text[start : end + 1] for start, end in spans}),
        "answers": sorted({_field(answer, "text", str, location) for answer in answers}),
        "idx": {"passage": _field(row, "idx", int, location), "query": _field(query, "idx", int, location)},
      }


def wsc(path: str, where: str, labels: Sequence[str]) -> Iterator[Record]:
  """Yields the records of TFDS's "wsc.fixed": the noun is spelled as in the text."""
  for location, row in _json_lines(path, where):
    text, spans = _field(row, "text", str, location), _field(row, "target", dict, location)
    words, index, noun = (
      text.split(),
      _field(spans, "span1_index", int, location),
      _field(spans, "span1_text", str, location),
    )
    if noun not in text and noun and index < len(words):
      first = noun[0].lower() if words[index][0].islower() else noun[0].upper()
      noun = (first + noun[1:]).rstrip(".").replace("\n", " ")
    yield {
      "text": text,
      "span1_text": noun,
      "span1_index": index,
      "span2_text": _field(spans, "span2_text", str, location),
      "span2_index": _field(spans, "span2_index", int, location),
      "label": _label(row.get("label"), labels, location),
      "idx": _field(row, "idx", int, location),
    }


# ---- Other benchmarks ------------------------------------------------------------------------------------------------


def messages(path: str, where: str, labels: Sequence[str]) -> Iterator[Record]:
  """Yields conversations: the role and the text of each message.

  In:  {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
  Out: {"roles": ["user", "assistant"], "contents": ["Hi", "Hello"]}
  """
  del labels
  for location, row in _json_lines(path, where):
    turns = _field(row, "messages", list, location)
    for number, turn in enumerate(turns):
      if not isinstance(turn, Mapping) or not all(isinstance(turn.get(name), str) for name in ("role", "content")):
        raise UserError(
          f"{location}: message {number} of 'messages' is {turn!r}, not an object with the texts 'role' and 'content'. "
          "Correct the line."
        )
    yield {"roles": [turn["role"] for turn in turns], "contents": [turn["content"] for turn in turns]}


def hellaswag(path: str, where: str, labels: Sequence[str]) -> Iterator[Record]:
  """Yields one record for each context, with all of its endings."""
  for location, row in _json_lines(path, where):
    endings = _field(row, "endings", list, location)
    yield {
      "context": _field(row, "ctx", str, location),
      "endings": [_field({"ending": ending}, "ending", str, location) for ending in endings],
      "label": _label(row.get("label"), labels, location),
    }


def xnli(path: str, where: str, labels: Sequence[str], *, language: str) -> Iterator[Record]:
  """Yields one record for each sentence pair of a language, in the format of TFDS, which joins all languages."""
  lines = _lines(path, where)
  header = lines[0].split("\t")
  _check_columns(("language", "gold_label", "sentence1", "sentence2"), header, f"{where}: {path}, line 1")
  for number, line in enumerate(lines[1:], 2):
    cells = line.split("\t")
    location = f"{where}: {path}, line {number}"
    if not line.strip():
      continue
    if len(cells) != len(header):
      raise _row_length(cells, header, location)
    row = dict(zip(header, cells, strict=True))
    if row["language"] == language:
      yield {
        "premise": {language: row["sentence1"]},
        "hypothesis": {"language": [language], "translation": [row["sentence2"]]},
        "label": _label(row["gold_label"], labels, location),
      }


def quoted(
  path: str,
  where: str,
  labels: Sequence[str],
  *,
  texts: Sequence[str],
  delimiter: str,
  columns: Sequence[str] = (),
  first_label: int = 0,
  left_out: bool = False,
) -> Iterator[Record]:
  """Yields the rows of a table whose cells may be quoted.

  Args:
    path: of the file.
    where: config key of the folder, for messages.
    labels: names of the classes.
    texts: columns of a record, beside "label".
    delimiter: between columns.
    columns: names, for files without a header.
    first_label: number of the first class.
    left_out: whether to skip rows whose label is not a class, as TFDS does.
  """
  rows = csv.reader(_lines(path, where), delimiter=delimiter)
  header = list(columns) or next(rows, [])
  _check_columns((*texts, "label"), header, f"{where}: {path}, line 1")
  for cells in rows:
    location = f"{where}: {path}, line {rows.line_num}"
    if not cells:
      continue
    if len(cells) != len(header):
      raise _row_length(cells, header, location)
    row = dict(zip(header, cells, strict=True))
    number = int(row["label"]) - first_label if row["label"].isdecimal() else -1
    if 0 <= number < len(labels):
      yield {name: row[name] for name in texts} | {"label": number}
    elif not left_out:
      raise UserError(
        f"{location}: label {row['label']!r} is not valid. Give a number from {first_label} to"
        f" {first_label + len(labels) - 1} ({', '.join(labels)})."
      )


def reviews(path: str, where: str, labels: Sequence[str]) -> Iterator[Record]:
  """Yields one record for each file of the folders neg (class 0) and pos (class 1)."""
  del labels
  review_files = []
  for name in ("neg", "pos"):
    folder = epath.Path(path) / name
    if not folder.is_dir():
      raise UserError(
        f"{where}: {path} has no folder {name!r}. Unpack the released files again: neg and pos contain a file for each"
        " review."
      )
    review_files += [(file.name, file, name) for file in folder.iterdir() if file.suffix == ".txt"]
  read = lambda file: "\n".join(_lines(str(file), where)).strip()
  review_files.sort()
  # Read in parallel, because a bucket would take half an hour for 25,000 files one after another.
  with concurrent.futures.ThreadPoolExecutor(32) as pool:
    for text, (_, _, name) in zip(pool.map(read, (file for _, file, _ in review_files)), review_files, strict=True):
      yield {"text": text, "label": ("neg", "pos").index(name)}


def columns(
  path: str,
  where: str,
  labels: Sequence[str],
  *,
  words: str,
  tags: str,
  names: Sequence[str],
  delimiter: str | None = None,
  begins: str = "",
  untagged: str = "",
) -> Iterator[Record]:
  """Yields one record for each sentence; a line has a word and its tags, and empty lines separate sentences.

  Args:
    path: of the file.
    where: config key of the folder, for messages.
    labels: names of the tags.
    words: column of the words.
    tags: column of the tags.
    names: of all columns.
    delimiter: between columns; None: any white space.
    begins: prefix of each word, which is removed.
    untagged: tag of a word without a tag, as in test sets; "": each word needs a tag.
  """
  sentence: tuple[list[str], list[int]] = ([], [])
  for number, line in enumerate([*_lines(path, where), ""], 1):
    cells = line.rstrip().split(delimiter) if line.strip() else []
    if cells and cells[0] != "-DOCSTART-":
      location = f"{where}: {path}, line {number}"
      cells += [untagged] if untagged and len(cells) == 1 else []
      if len(cells) != len(names):
        is_filled = delimiter is None and len(cells) < len(names)
        raise _row_length(cells, names, location, "Write - for missing columns." if is_filled else _REMEDY)
      tag = cells[names.index(tags)]
      sentence[0].append(cells[names.index(words)].removeprefix(begins))
      sentence[1].append(_number_of_tag(tag, labels, location))
    elif sentence[0]:
      yield {words: sentence[0], tags: np.array(sentence[1], np.int32)}
      sentence = ([], [])


def _number_of_tag(tag: str, labels: Sequence[str], location: str) -> int:
  if tag not in labels:
    raise UserError(f"{location}: unknown tag {tag!r}. Known tags: {', '.join(labels)}.")
  return labels.index(tag)


def conllu(path: str, where: str, labels: Sequence[str]) -> Iterator[Record]:
  """Yields one record for each sentence of a CoNLL-U file: its "tokens", and the indices of its universal tags, "upos".

  Words are syntactic words: of "1-2  vámonos", "1  vamos", "2  nos" the last two. Empty words such as 8.1 are left out.

  Args:
    path: of the file.
    where: config key of the folder, for messages.
    labels: names of the tags.

  Source: universaldependencies.org/format.html.
  """
  tokens: list[str] = []
  tags: list[int] = []
  for number, line in enumerate([*_lines(path, where), ""], 1):
    if line.startswith("#"):
      continue
    if line.strip():
      cells = line.rstrip("\r\n").split("\t")
      if len(cells) != _CONLLU_COLUMNS:
        remedy = "Separate columns by tabs." if len(cells) == 1 else _REMEDY
        raise UserError(
          f"{where}: {path}, line {number}: the row has {len(cells)} column(s), not {_CONLLU_COLUMNS}. {remedy}"
        )
      word_number, form, tag = cells[0], cells[1], cells[3]
      if re.fullmatch(r"\d+[-.]\d+", word_number):
        continue
      if not re.fullmatch(r"\d+", word_number) or int(word_number) != len(tokens) + 1:
        raise UserError(
          f"{where}: {path}, line {number}: the word number is {word_number!r}, not {len(tokens) + 1}. Number the words"
          " of each sentence from 1, and end each sentence with an empty line."
        )
      tokens.append(form)
      tags.append(_number_of_tag(tag, labels, f"{where}: {path}, line {number}"))
    elif tokens:
      yield {"tokens": tokens, "upos": np.array(tags, np.int32)}
      tokens, tags = [], []


_CONLLU_COLUMNS = 10


# ---- GLUE ------------------------------------------------------------------------------------------------------------


def table(
  path: str,
  where: str,
  labels: Sequence[str],
  *,
  columns: Mapping[str, str],
  label: str = "label",
  no_header: Sequence[str] = (),
  broken_rows: bool = False,
) -> Iterator[Record]:
  """Yields the rows of tab-separated columns; quotes have no meaning.

  Rows are numbered from 0 below the header, as in TFDS and on the leaderboard.

  Args:
    path: of the file.
    where: config key of the folder, for messages.
    labels: names of the classes; without any, a label is a real number.
    columns: text of a record -> its column.
    label: column of the label; test sets have none.
    no_header: column names of files without a header.
    broken_rows: whether to skip rows that lack columns.
  """
  lines = _lines(path, where)
  header = lines[0].split("\t")
  if no_header and len(header) == len(no_header):
    header, first = list(no_header), 0
  else:
    first = 1
  _check_columns(columns.values(), header, f"{where}: {path}, line 1")
  needed = {name: header.index(column) for name, column in columns.items()}
  label_column = header.index(label) if label in header else None
  most, left_out = max(*needed.values(), label_column or 0), 0
  for number, line in enumerate(lines[first:]):
    location = f"{where}: {path}, line {number + first + 1}"
    cells = line.split("\t")
    if not line.strip():
      continue
    if len(cells) <= most:
      if broken_rows:
        left_out += 1
        continue
      raise _row_length(cells, header, location)
    value = None if label_column is None else cells[label_column]
    yield {name: cells[column] for name, column in needed.items()} | {
      "label": _label(value, labels, location) if labels else _number(value, location),
      "idx": number,
    }
  if left_out:
    logging.info("%s: left out %d row(s) that are split by a line break", path, left_out)


# ---- SQuAD -----------------------------------------------------------------------------------------------------------


def squad(path: str, where: str, labels: Sequence[str], *, begins: str = "") -> Iterator[Record]:
  """Yields one record for each question whose id begins with `begins`, on each paragraph of each article."""
  del labels
  lines = _lines(path, where)
  try:
    content = json.loads("\n".join(lines))
  except json.JSONDecodeError as error:
    raise _not_json(error, lines[error.lineno - 1], f"{where}: {path}, line {error.lineno}") from error
  except (ValueError, RecursionError) as error:
    raise _not_json(error, lines[0], f"{where}: {path}") from error
  articles = _field(content, "data", list, f"{where}: {path}")
  for i, article in enumerate(articles, 1):
    for j, paragraph in enumerate(_field(article, "paragraphs", list, f"{where}: {path}, article {i}"), 1):
      location = f"{where}: {path}, article {i}, paragraph {j}"
      for question in _field(paragraph, "qas", list, location):
        if not _field(question, "id", str, location).startswith(begins):
          continue
        answers = _field(question, "answers", list, location) if "answers" in question else []
        yield {
          "id": _field(question, "id", str, location),
          "question": _field(question, "question", str, location),
          "context": _field(paragraph, "context", str, location),
          "answers": {
            "text": [_field(answer, "text", str, location) for answer in answers],
            "answer_start": np.array([_field(answer, "answer_start", int, location) for answer in answers], np.int32),
          },
        }
