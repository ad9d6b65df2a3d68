"""Similarity of sentences: correlation of cosines with scores of people."""

from collections.abc import Sequence
import pathlib

import numpy as np
import rich.console

from t2t.evaluation import intervals, item_statistics
from t2t.evaluation.item_statistics import Statistics
from t2t.evaluation.results import Answer, Result
from t2t.evaluation.vectors import VectorOptions, encoding, files, single

# Columns of sts-train.csv, sts-dev.csv and sts-test.csv of the STS benchmark, which have no header
_HEADLESS = {"score": 4, "sentence1": 5, "sentence2": 6}
CORRELATIONS = ("spearman", "pearson")


class SentencePairs:
  """Pairs of sentences with scores; see `VectorEvaluation`."""

  def __init__(self, path: str, rows: Sequence[files.Row]):
    self._split = pathlib.PurePath(path).name.partition(".")[0]
    self._scores = [files.number(row, "score") for row in rows]
    self.texts = [
      encoding.Sentence(files.text_of(row, name), where=row.where)
      for row in rows
      for name in ("sentence1", "sentence2")
    ]

  def results(self, vectors: np.ndarray) -> list[Result]:
    return [correlated("sts", self._split, self.texts, cosines(vectors), self._scores)]

  def show(self, results: Sequence[Result], console: rich.console.Console, *, layer: str) -> None:
    """Prints nothing, because all figures are metrics."""


def read(paths: Sequence[str], options: VectorOptions) -> SentencePairs:
  """Reads FILE: a tab-separated table with the columns sentence1, sentence2 and score; or the benchmark's sts-*.csv."""
  del options
  path = single("sts", paths)
  return SentencePairs(path, files.rows(path, tuple(_HEADLESS), headless=_HEADLESS))


def cosines(vectors: np.ndarray) -> np.ndarray:
  """Returns the cosine of each pair of consecutive vectors, float64 [pairs]."""
  one, other = (encoding.unit(vectors[start::2]).astype(np.float64) for start in (0, 1))
  return np.sum(one * other, axis=-1)


def answers_of(
  texts: Sequence[encoding.Sentence], similarity: np.ndarray, scores: Sequence[float] | None
) -> list[Answer]:
  """Returns an answer for each pair of consecutive texts; without scores, none has a gold answer."""
  # An item has one text: the pair, separated by a tab.
  pairs = [f"{one.text}\t{other.text}" for one, other in zip(texts[::2], texts[1::2], strict=True)]
  return [
    Answer(
      {"inputs_pretokenized": pair},
      f"{similarity[index]:.6f}",
      {"cosine": float(similarity[index])},
      None if scores is None else scores[index],
      float(similarity[index]),
      has_gold=scores is not None,
    )
    for index, pair in enumerate(pairs)
  ]


def correlated(
  task: str, split: str, texts: Sequence[encoding.Sentence], similarity: np.ndarray, scores: Sequence[float]
) -> Result:
  """Returns the rank and the linear correlation of similarities with scores, in percent, as GLUE has them."""
  rows = np.stack([np.asarray(scores, np.float64), similarity], axis=1)
  statistics = {f"{name}_correlation": Statistics(name, rows) for name in CORRELATIONS}
  units = [str(index) for index in range(len(rows))]
  of_metrics = {name: intervals.of_metric(name, x, units) for name, x in statistics.items()}
  return Result(
    task,
    split,
    {name: item_statistics.value_of(x) for name, x in statistics.items()},
    answers_of(texts, similarity, scores),
    intervals={name: interval for name, interval in of_metrics.items() if interval is not None},
    statistics=statistics,
    units=units,
  )
