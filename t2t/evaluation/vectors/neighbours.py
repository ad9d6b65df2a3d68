"""Nearest neighbours of sentences among lines, or of words in context among the words of lines."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import rich.box
import rich.console
import rich.table
import rich.text

from t2t import UserError
from t2t.evaluation.vectors import encoding, nearest, words
from t2t.evaluation.vectors.encoding import Sentence
from t2t.inference import jsonl_io
from t2t.param_tree import Params

_WINDOW = 32  # batches of lines whose vectors are in memory at one time
_BEFORE, _SHOWN = 24, 160  # characters of a line before a word, and in total, that the table may show


class Neighbour(NamedTuple):
  """Line, or word of a line, with the cosine between its vector and the query's."""

  score: float
  line: jsonl_io.Line
  word: tuple[int, int] | None

  def to_dict(self) -> dict[str, Any]:
    """Returns the record for JSON."""
    record: dict[str, Any] = {"score": round(self.score, 6), "line": self.line.number, "text": self.line.text}
    if self.word is not None:
      start, end = self.word
      record |= {"word": self.line.text[start:end], "start": start, "end": end}
    return record


@dataclasses.dataclass
class ReadCounts:
  """Numbers of lines, of their words, and of the parts that have no vector.

  candidates: lines or words that were compared.
  empty: lines without text.
  cut: lines that were truncated.
  left_out: words that truncation removed, or that have no token.
  """

  candidates: int = 0
  empty: int = 0
  cut: int = 0
  left_out: int = 0


def queries_of(texts: Sequence[tuple[str, str]]) -> list[Sentence]:
  """Returns the queries: sentences, or words that are marked like Kids [[play]] outside.

  Args:
    texts: each with its location.

  Raises:
    UserError: a text is empty or badly marked, or some texts have marks and others have none.
  """
  queries = []
  for text, where in texts:
    if not text.strip():
      raise UserError(f"{where}: an empty text has no vector. Give a sentence.")
    sentence, span = words.marked(text, where)
    queries.append(Sentence(sentence, None if span is None else (span,), where))
  of_words = [query.words is not None for query in queries]
  if any(of_words) and not all(of_words):
    query = queries[of_words.index(False)]
    raise UserError(
      f"{query.where}: {query.text!r} has no marked word, but other queries do. Mark a word in each query, or in none."
    )
  return queries


class Corpus:
  """Lines among which neighbours are searched.

  Args:
    lines: of a file.
    queries: see `queries_of`.
    same_word: whether a word is compared with occurrences of the same word alone, in any case.
    where: location of the lines, for messages.

  Raises:
    UserError: no line has a text, or the word of a query.
  """

  def __init__(self, lines: Sequence[jsonl_io.Line], queries: Sequence[Sentence], *, same_word: bool, where: str):
    self.lines, self._queries = lines, queries
    self._of_words = queries[0].words is not None
    if same_word and not self._of_words:
      raise UserError("--same_word: no query has a marked word. Mark it, as in 'Kids [[play]] outside'.")
    if not any(line.text for line in lines):
      raise UserError(f"{where}: all lines are empty. Give at least one line with text.")
    # Queries with one key are compared with the same candidates.
    self.members: dict[str, list[int]] = {}
    for index, query in enumerate(queries):
      key = _word(query.text, query.words[0]) if same_word and query.words else ""
      self.members.setdefault(key, []).append(index)
    self._texts = [self._text(line) for line in lines]
    missing = [key for key in self.members if key and not any(key in self._keys(text) for text in self._texts)]
    if missing:
      raise UserError(f"{where}: no line has the word {missing[0]!r}. Give other lines, or leave out --same_word.")
    if self._of_words and not any(text.words for text in self._texts):
      raise UserError(f"{where}: no line has a word. Give lines with words.")

  def _text(self, line: jsonl_io.Line) -> Sentence:
    if not self._of_words:
      return Sentence(line.text)
    spans = words.of_text(line.text)
    return Sentence(
      line.text, spans if "" in self.members else [x for x in spans if _word(line.text, x) in self.members]
    )

  def _keys(self, text: Sentence) -> list[str]:
    return [_word(text.text, span) for span in text.words or ()]

  def search(
    self,
    encoder: encoding.TextEncoder,
    params: Params,
    queries: Sequence[encoding.EncodedSentence],
    *,
    top: int,
    search: str = "exact",
    index: np.ndarray | None = None,
    on_batch: Callable[[int, int], None] | None = None,
    window: int = 1_024,
  ) -> tuple[list[list[Neighbour]], ReadCounts]:
    """Returns the nearest neighbours of each query, best first, and what was compared.

    Every host calls it with the same arguments, and gets all neighbours.

    Args:
      encoder: of the model, with one layer.
      params: nested dict.
      queries: encoded.
      top: number of neighbours of each query.
      search: key of `nearest.SEARCHES`.
      index: vectors of the lines, float32 [lines, embed]; None: they are computed.
      on_batch: see `TextEncoder.vectors`.
      window: lines whose vectors are in memory at one time.
    """
    vectors, counts = encoding.unit(encoder.vectors(params, queries)[:, 0]), ReadCounts()
    searches = {key: nearest.SEARCHES[search](vectors[rows], top) for key, rows in self.members.items()}
    candidates: dict[str, list[tuple[int, tuple[int, int] | None]]] = {key: [] for key in searches}
    counts.empty = sum(not line.text for line in self.lines)
    for start in range(0, len(self.lines), window):
      numbers = [i for i in range(start, min(start + window, len(self.lines))) if self.lines[i].text]
      if index is not None:
        block, places = np.asarray(index[numbers]), [(i, None) for i in numbers]
      else:
        block, places = self._encoded(encoder, params, numbers, counts, on_batch)
      counts.candidates += len(places)
      block = encoding.unit(block)
      for key, of_key in searches.items():
        rows = [row for row, (i, span) in enumerate(places) if not key or _word(self.lines[i].text, span) == key]
        if rows:
          of_key.add(block[rows])
          candidates[key] += [places[row] for row in rows]
    neighbours: list[list[Neighbour]] = [[] for _ in queries]
    for key, of_key in searches.items():
      if candidates[key]:
        for query, scores, best in zip(self.members[key], *of_key.result(), strict=True):
          chosen = [(float(score), *candidates[key][number]) for score, number in zip(scores, best, strict=True)]
          neighbours[query] = [Neighbour(score, self.lines[i], span) for score, i, span in chosen]
    return neighbours, counts

  def _encoded(
    self,
    encoder: encoding.TextEncoder,
    params: Params,
    numbers: Sequence[int],
    counts: ReadCounts,
    on_batch: Callable[[int, int], None] | None,
  ) -> tuple[np.ndarray, list[tuple[int, tuple[int, int] | None]]]:
    """Returns the vectors of lines or of their words, [candidates, embed], each with its line and word."""
    encoded = [encoder.encode(self._texts[i]) for i in numbers]
    counts.cut += sum(text.cut > 0 for text in encoded)
    if self._of_words:
      counts.left_out += sum(len(self._texts[i].words or ()) for i in numbers) - sum(len(x.read) for x in encoded)
      read = [(i, text) for i, text in zip(numbers, encoded, strict=True) if text.read]
      places = [(i, (self._texts[i].words or ())[word]) for i, text in read for word in text.read]
      encoded = [text for _, text in read]
    else:
      places = [(i, None) for i in numbers]
    if not encoded:
      return np.zeros((0, 1), np.float32), []
    return encoder.vectors(params, encoded, on_batch=on_batch)[:, 0], places


def _word(text: str, span: tuple[int, int] | None) -> str:
  return text[slice(*span)].casefold() if span is not None else ""


# ---- Output ----------------------------------------------------------------------------------------------------------


def record(query: Sentence, encoded: encoding.EncodedSentence, neighbours: Sequence[Neighbour]) -> Mapping[str, Any]:
  """Returns the JSON object of a query."""
  fields: dict[str, Any] = {"query": query.text}
  if query.words:
    start, end = query.words[0]
    fields |= {"word": query.text[start:end], "start": start, "end": end}
  fields |= {"cut": encoded.cut} if encoded.cut else {}
  return fields | {"neighbours": [neighbour.to_dict() for neighbour in neighbours]}


def print_table(query: Sentence, neighbours: Sequence[Neighbour], console: rich.console.Console) -> None:
  """Prints a query and its neighbours, with marks around words; a long line is shortened."""
  console.print(rich.text.Text("query: ").append(shown(query.text, query.words[0] if query.words else None)))
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
  for heading, width in (("cosine", 7), ("line", 1 + len(f"{max((x.line.number for x in neighbours), default=0):,}"))):
    table.add_column(heading, justify="right", no_wrap=True, min_width=width)
  table.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
  for neighbour in neighbours:
    text = rich.text.Text(shown(neighbour.line.text, neighbour.word))
    table.add_row(f"{neighbour.score:.4f}", f"{neighbour.line.number:,}", text)
  console.print(table)


def shown(text: str, span: tuple[int, int] | None) -> str:
  """Returns a line for the table: from a few words before the marked word on.

  In:  "It was late, and after the long day kids play outside.", (41, 45)
  Out: "…the long day kids [[play]] outside."
  """
  if span is None:
    return text[:_SHOWN]
  start, end = span
  first = 0 if start <= _BEFORE else text.find(" ", start - _BEFORE, start) + 1 or start
  word = f"{words.BEGIN}{text[start:end]}{words.END}"
  return f"{'…' if first else ''}{text[first:start]}{word}{text[end : end + _SHOWN]}"
