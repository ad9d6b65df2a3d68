"""Evaluations of vectors: similarity of sentences, retrieval of translations, words in context, nearest neighbours."""

from collections.abc import Sequence
import importlib
from typing import NamedTuple, Protocol

import numpy as np
import rich.console

from t2t import UserError
from t2t.evaluation.results import Result
from t2t.evaluation.vectors.encoding import Sentence


class VectorOptions(NamedTuple):
  """Options of `t2t vectors` that an evaluation may read.

  margin: key of `bitext.MARGINS`.
  """

  margin: str = "absolute"


class VectorEvaluation(Protocol):
  """Evaluation of the vectors of its texts.

  texts: in the order of the vectors.
  """

  texts: Sequence[Sentence]

  def results(self, vectors: np.ndarray) -> list[Result]:
    """Returns the results of vectors, float32 [texts, embed]."""

  def show(self, results: Sequence[Result], console: rich.console.Console, *, layer: str) -> None:
    """Prints figures that are not metrics, under the name of the layer, if there are several."""


# Kind -> module with read(paths, options) -> VectorEvaluation; its docstring describes the files
EVALUATIONS = {
  "sts": "t2t.evaluation.vectors.sts",
  "bitext": "t2t.evaluation.vectors.bitext",
  "words": "t2t.evaluation.vectors.word_pairs",
}


def read(kind: str, paths: Sequence[str], options: VectorOptions) -> VectorEvaluation:
  """Reads the files of an evaluation.

  Args:
    kind: key of `EVALUATIONS`.
    paths: of its files.
    options: of the command.

  Raises:
    UserError: a file is missing or malformed.
  """
  return importlib.import_module(EVALUATIONS[kind]).read(paths, options)


def single(kind: str, paths: Sequence[str]) -> str:
  """Returns the path of an evaluation with one file."""
  if len(paths) != 1:
    raise UserError(f"{kind} {' '.join(paths)}: {len(paths)} files, but {kind} reads one file. Give one file.")
  return paths[0]
