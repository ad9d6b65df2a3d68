"""Words in two sentences: the cosine of their vectors, and its correlation with scores of people."""

from collections.abc import Sequence
import pathlib

import numpy as np
import rich.box
import rich.console
import rich.table
import rich.text

from t2t import UserError
from t2t.evaluation.results import Result
from t2t.evaluation.vectors import VectorOptions, encoding, files, single, sts, words

_MOST_SHOWN = 20  # pairs in the table


class WordPairs:
  """A word in each of two sentences, with a score or without; see `VectorEvaluation`."""

  def __init__(self, path: str, rows: Sequence[files.Row]):
    self._split = pathlib.PurePath(path).name.partition(".")[0]
    has_score = "score" in rows[0].fields
    self._scores = [files.number(row, "score") for row in rows] if has_score else None
    self.texts = [_text(row, side) for row in rows for side in (1, 2)]

  def results(self, vectors: np.ndarray) -> list[Result]:
    similarity = sts.cosines(vectors)
    texts = [encoding.Sentence(shown(text)) for text in self.texts]
    if self._scores is not None:
      return [sts.correlated("words", self._split, texts, similarity, self._scores)]
    return [Result("words", self._split, {}, sts.answers_of(texts, similarity, None))]

  def show(self, results: Sequence[Result], console: rich.console.Console, *, layer: str) -> None:
    """Prints the cosines of the first pairs, if no scores summarize them."""
    if self._scores is not None:
      return
    if layer:
      console.print(layer)
    for result in results:
      table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
      table.add_column("cosine", justify="right", no_wrap=True)
      for number in (1, 2):
        table.add_column(f"sentence {number}", ratio=1)
      for answer in result.answers[:_MOST_SHOWN]:
        sentences = answer.example["inputs_pretokenized"].split("\t")
        table.add_row(f"{answer.score:.4f}", *map(rich.text.Text, sentences))
      console.print(table)
      if len(result.answers) > _MOST_SHOWN:
        console.print(f"{len(result.answers) - _MOST_SHOWN:,} further pairs are in the file of predictions")


def read(paths: Sequence[str], options: VectorOptions) -> WordPairs:
  """Reads FILE: a tab-separated table with sentence1, sentence2, and either word or marks: Kids [[play]] outside.

  The column word2 has the word of sentence2 if it differs, and the column score is correlated with the cosines.
  """
  del options
  path = single("words", paths)
  return WordPairs(path, files.rows(path, ("sentence1", "sentence2")))


def shown(text: encoding.Sentence) -> str:
  """Returns a sentence with marks around its word."""
  ((start, end),) = text.words or ()
  return f"{text.text[:start]}{words.BEGIN}{text.text[start:end]}{words.END}{text.text[end:]}"


def _text(row: files.Row, side: int) -> encoding.Sentence:
  """Returns one sentence of a row with its word."""
  where = f"{row.where}, sentence{side}"
  text, span = words.marked(files.text_of(row, f"sentence{side}"), where)
  if span is None:
    names = ("word2", "word")[2 - side :]
    word = next((row.fields[name] for name in names if row.fields.get(name)), "")
    if not word:
      raise UserError(f"{where}: neither a column 'word' nor marks select a word. Mark it: Kids [[play]] outside.")
    span = words.place(word, text, where)
  return encoding.Sentence(text, (span,), where)
