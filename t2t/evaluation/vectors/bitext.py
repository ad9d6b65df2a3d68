"""Bitext retrieval: the nearest sentence of another language should be the translation (Tatoeba)."""

from collections.abc import Callable, Sequence
import pathlib
import re

import numpy as np
import rich.console

from t2t import UserError
from t2t.evaluation import intervals, item_statistics
from t2t.evaluation.item_statistics import Statistics
from t2t.evaluation.results import Answer, Result
from t2t.evaluation.vectors import VectorOptions, encoding, files, nearest
from t2t.inference import ties
from t2t.storage import gcs

NEIGHBOURS = 4  # of each sentence, whose mean cosine is the scale of a margin (Artetxe & Schwenk 2019)
_BLOCK = 1_024  # queries whose scores are in memory at one time
_TATOEBA = re.compile(r"tatoeba\.(\w+)-(\w+)\.\1")  # tatoeba.fra-eng.fra beside tatoeba.fra-eng.eng

# Name -> score from cosines [queries, candidates] and the mean cosine of both with their neighbours, in the same shape
MARGINS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
  "absolute": lambda cosine, mean: cosine,
  "distance": lambda cosine, mean: cosine - mean,
  "ratio": lambda cosine, mean: cosine / mean,
}


class ParallelFile:
  """Lines of two languages in the same order.

  Args:
    paths: of the files.
    languages: names of the languages.

  Raises:
    UserError: the files have different numbers of lines, or an empty line.
  """

  def __init__(self, paths: Sequence[str], languages: Sequence[str]):
    self.languages = tuple(languages)
    self.sentences = [files.lines(path) for path in paths]
    numbers = [len(sentences) for sentences in self.sentences]
    if numbers[0] != numbers[1]:
      raise UserError(
        f"FILE {paths[0]} has {numbers[0]:,} lines, and {paths[1]} has {numbers[1]:,}. Line n of one file must be the "
        "translation of line n of the other. Give files of the same length."
      )
    for path, sentences in zip(paths, self.sentences, strict=True):
      for number, sentence in enumerate(sentences, 1):
        if not sentence.strip():
          raise UserError(
            f"FILE {path}, line {number} is empty. Remove this line from both files, or add the sentence."
          )


class Bitext:
  """Pairs of languages; see `VectorEvaluation`."""

  def __init__(self, pairs: Sequence[ParallelFile], margin: str):
    self._pairs, self._margin = pairs, margin
    self.texts = [encoding.Sentence(text) for pair in pairs for sentences in pair.sentences for text in sentences]

  def results(self, vectors: np.ndarray) -> list[Result]:
    results, units, start = [], encoding.unit(vectors), 0
    for pair in self._pairs:
      number = len(pair.sentences[0])
      sides = units[start : start + number], units[start + number : start + 2 * number]
      start += 2 * number
      for source, target in ((0, 1), (1, 0)):
        retrieved = retrieve(sides[source], sides[target], margin=self._margin)
        results.append(_result(pair, source, target, retrieved))
    return results

  def show(self, results: Sequence[Result], console: rich.console.Console, *, layer: str) -> None:
    """Prints the score, and the mean accuracy of several pairs of languages in each direction."""
    if layer:
      console.print(layer)
    rule = "cosine" if self._margin == "absolute" else f"{self._margin} margin of the cosine, {NEIGHBOURS} neighbours"
    console.print(f"score of a pair: {rule}")
    if len(self._pairs) > 1:
      accuracy = np.array([result.metrics["accuracy"] for result in results]).reshape(-1, 2).mean(axis=0)
      console.print(
        f"mean of {len(self._pairs)} pairs of languages: {accuracy[0]:.2f} % as in the names of the files, "
        f"{accuracy[1]:.2f} % in the other direction"
      )


def read(paths: Sequence[str], options: VectorOptions) -> Bitext:
  """Reads FILE FILE: sentences and their translations; or FOLDER with tatoeba.xxx-yyy.xxx and tatoeba.xxx-yyy.yyy."""
  if len(paths) == 2:
    return Bitext([ParallelFile(paths, _languages(paths))], options.margin)
  if len(paths) != 1 or not gcs.absolute(paths[0]).is_dir():
    raise UserError(
      f"bitext {' '.join(paths)}: give two files with a sentence on each line, or a folder with files such as "
      "tatoeba.fra-eng.fra and tatoeba.fra-eng.eng."
    )
  folder = gcs.absolute(paths[0])
  named = [match for path in sorted(folder.iterdir()) if (match := _TATOEBA.fullmatch(path.name))]
  if not named:
    raise UserError(f"bitext {paths[0]}: no file in this folder is named like tatoeba.fra-eng.fra. Check the folder.")
  pairs = []
  for match in named:
    of_pair = [str(folder / match[0]), str(folder / f"tatoeba.{match[1]}-{match[2]}.{match[2]}")]
    pairs.append(ParallelFile(of_pair, match.groups()))
  return Bitext(pairs, options.margin)


def _languages(paths: Sequence[str]) -> tuple[str, str]:
  """Returns the endings of two file names, or their numbers if the endings are equal or missing."""
  one, other = (pathlib.PurePath(path).suffix.removeprefix(".") for path in paths)
  return (one, other) if one and other and one != other else ("1", "2")


def retrieve(queries: np.ndarray, candidates: np.ndarray, *, margin: str) -> list[tuple[np.ndarray, float]]:
  """Returns the indices of the best candidates of each query, several if they tie, with their score.

  All candidates are scored; Artetxe & Schwenk (2019) score the nearest neighbours alone.

  Args:
    queries, candidates: float32 [sentences, embed], of length 1.
    margin: key of `MARGINS`.

  Raises:
    UserError: a ratio would divide by a mean cosine that is not positive.
  """
  means = [np.zeros(len(queries)), np.zeros(len(candidates))]
  if margin != "absolute":
    sides = ((queries, candidates), (candidates, queries))
    means = [nearest.nearest(one, other, NEIGHBOURS)[0].mean(axis=1, dtype=np.float64) / 2 for one, other in sides]
  if margin == "ratio" and min(means[0]) + min(means[1]) <= 0:
    raise UserError(
      "--margin ratio: the mean cosine of a sentence with its neighbours is not positive. Use --margin distance."
    )
  retrieved = []
  for start in range(0, len(queries), _BLOCK):
    cosines = (queries[start : start + _BLOCK] @ candidates.T).astype(np.float64)
    scores = MARGINS[margin](cosines, means[0][start : start + _BLOCK, None] + means[1])
    retrieved += [(best, float(row[best[0]])) for row in scores for best in [ties.best(row)]]
  return retrieved


def _result(pair: ParallelFile, source: int, target: int, retrieved: Sequence[tuple[np.ndarray, float]]) -> Result:
  """Returns the accuracy of one direction; each of k tied translations counts 1/k."""
  rows = [[np.isin(index, best) / len(best), 1.0] for index, (best, _) in enumerate(retrieved)]
  statistics = Statistics("mean", np.array(rows, np.float64))
  answers = [
    Answer(
      {"inputs_pretokenized": pair.sentences[source][index]},
      pair.sentences[target][best[0]],
      int(best[0]),
      index,
      score,
      tied=best.tolist() if len(best) > 1 else (),
    )
    for index, (best, score) in enumerate(retrieved)
  ]
  units = [str(index) for index in range(len(rows))]
  interval = intervals.of_metric("accuracy", statistics, units)
  one, other = pair.languages[source], pair.languages[target]
  return Result(
    f"bitext_{'-'.join(pair.languages)}",
    f"{one}_to_{other}",
    {"accuracy": item_statistics.value_of(statistics)},
    answers,
    percentages=("accuracy",),
    intervals={} if interval is None else {"accuracy": interval},
    statistics={"accuracy": statistics},
    units=units,
  )
