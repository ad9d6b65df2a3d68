"""Evaluates word vectors: analogies by section, and correlation with people's judgements of similarity."""

import csv
import dataclasses
import io

from etils import epath
import numpy as np
import scipy.stats

from t2t import UserError
from t2t.contrib.static.word_vectors import WordVectors
from t2t.storage import encoding, gcs

_BLOCK = 512  # analogies whose cosines with all words are in memory at one time


@dataclasses.dataclass(frozen=True)
class Section:
  """Analogies of a section: right ones, answered ones, and ones with an unknown word."""

  name: str
  right: int
  answered: int
  unknown: int

  @property
  def accuracy(self) -> float:
    """Fraction of right answers, nan without answers."""
    return self.right / self.answered if self.answered else float("nan")


def read_analogies(path: epath.Path) -> dict[str, list[tuple[str, str, str, str]]]:
  """Reads Google's format: ": SECTION", then lines of four words, "Athens Greece Oslo Norway".

  Raises:
    UserError: a line has another number of words, or there is no line; gives file and line.
  """
  sections: dict[str, list[tuple[str, str, str, str]]] = {}
  section = ""
  for number, line in enumerate(encoding.lines(gcs.read(path).decode("utf-8", errors="replace")), 1):
    words = line.split()
    if not words:
      continue
    if words[0] == ":" or words[0].startswith(":"):
      section = line.strip().removeprefix(":").strip()
      sections.setdefault(section, [])
      continue
    if len(words) != 4:
      raise UserError(
        f"{path}, line {number}: an analogy has four words, but {line.strip()[:60]!r} has {len(words)}. Correct the "
        "line."
      )
    sections.setdefault(section, []).append((words[0], words[1], words[2], words[3]))
  if not any(sections.values()):
    raise UserError(f"{path} has no analogies. Give a file with four words in each line.")
  return sections


def analogies(table: WordVectors, sections: dict[str, list[tuple[str, str, str, str]]]) -> list[Section]:
  """Answers each "a is to b as c is to ?" by the word nearest to b - a + c; a, b and c are no answers.

  Analogies with a word that has no vector are skipped and counted, as in word2vec's compute-accuracy.

  Source: Mikolov et al. 2013a, section 4.1; 2013c, equation 1 (3CosAdd).
  """
  results = []
  for name, items in sections.items():
    rows = [[table.row(word) for word in item] for item in items]
    known = np.array([row for row in rows if None not in row], np.int64).reshape(-1, 4)
    right = 0
    for start in range(0, len(known), _BLOCK):
      a, b, c, d = known[start : start + _BLOCK].T
      cosines = (table.unit[b] - table.unit[a] + table.unit[c]) @ table.unit.T
      for given in (a, b, c):
        cosines[np.arange(len(a)), given] = -np.inf
      right += int(np.sum(np.argmax(cosines, axis=1) == d))
    results.append(Section(name, right, len(known), len(items) - len(known)))
  return results


def total(sections: list[Section]) -> Section:
  """Returns all sections as one."""
  right, answered, unknown = (sum(getattr(x, key) for x in sections) for key in ("right", "answered", "unknown"))
  return Section("total", right, answered, unknown)


def read_similarities(path: epath.Path) -> list[tuple[str, str, float]]:
  """Reads lines of two words and a score, separated by tabs, commas or spaces, as WordSim-353 and SimLex have them.

  A first line whose third field is no number is a header.

  Raises:
    UserError: a line has fewer fields or no score; gives file and line.
  """
  rows: list[tuple[str, str, float]] = []
  for number, line in enumerate(encoding.lines(gcs.read(path).decode("utf-8-sig", errors="replace")), 1):
    if not line.strip() or line.startswith("#"):
      continue
    if "\t" in line:
      fields = line.split("\t")
    elif "," in line:
      fields = next(csv.reader(io.StringIO(line)))
    else:
      fields = line.split()
    try:
      first, second, score = fields[0].strip(), fields[1].strip(), float(fields[2])
      if not (first and second and abs(score) < float("inf")):
        raise ValueError
    except (ValueError, IndexError) as error:
      if not rows and len(fields) > 2 and number == 1:
        continue
      raise UserError(
        f"{path}, line {number}: {line.strip()[:60]!r} is not two words and a score. Correct the line."
      ) from error
    rows.append((first, second, score))
  if not rows:
    raise UserError(f"{path} has no pairs. Give a file with two words and a score in each line.")
  return rows


@dataclasses.dataclass(frozen=True)
class Similarity:
  """Spearman's correlation of cosines with scores, from -1 to 1; pairs, and pairs with an unknown word."""

  spearman: float
  pairs: int
  unknown: int


def similarities(table: WordVectors, pairs: list[tuple[str, str, float]]) -> Similarity:
  """Correlates the cosines of pairs with scores; pairs with an unknown word are skipped and counted.

  Raises:
    UserError: fewer than two pairs are known.
  """
  known = [(table.row(a), table.row(b), score) for a, b, score in pairs]
  known = [pair for pair in known if None not in pair]
  if len(known) < 2:
    raise UserError(
      f"{table.where}: both words of {len(known)} of {len(pairs)} pairs have vectors, but a correlation needs 2. Give "
      "vectors of more words."
    )
  cosines = [float(table.unit[a] @ table.unit[b]) for a, b, _ in known]
  value = scipy.stats.spearmanr([score for *_, score in known], cosines).statistic
  return Similarity(float(value), len(known), len(pairs) - len(known))
