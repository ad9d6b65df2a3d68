"""Nearest neighbours by cosine: exact search in blocks, or faiss."""

import importlib.util
from typing import Protocol

import numpy as np

from t2t import UserError
from t2t.runtime import versions

_BLOCK = 4_096  # candidates whose scores are in memory at one time


class Search(Protocol):
  """Search for the nearest of candidates, which are added in blocks.

  Candidates are numbered in the order in which they are added.
  """

  def __init__(self, queries: np.ndarray, top: int):
    """Takes queries, float32 [queries, embed], and the number of neighbours."""

  def add(self, vectors: np.ndarray) -> None:
    """Adds candidates, float32 [candidates, embed], of length 1."""

  def result(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores and numbers of the neighbours of each query, best first: [queries, min(top, candidates)]."""


class ExactSearch:
  """Compares all pairs; equal scores are in the order of the candidates. See `Search`."""

  def __init__(self, queries: np.ndarray, top: int):
    self._queries, self._top, self._added = queries, top, 0
    self._scores = np.zeros((len(queries), 0), np.float32)
    self._numbers = np.zeros((len(queries), 0), np.int64)

  def add(self, vectors: np.ndarray) -> None:
    for start in range(0, len(vectors), _BLOCK):
      self._add_block(vectors[start : start + _BLOCK])

  def _add_block(self, vectors: np.ndarray) -> None:
    scores = self._queries @ vectors.T
    numbers = np.arange(self._added, self._added + len(vectors))
    self._added += len(vectors)
    # A later candidate needs a higher score than the last neighbour, so few queries of a late block are sorted.
    is_full = self._scores.shape[1] == self._top
    changed = np.flatnonzero((scores > self._scores[:, -1:]).any(axis=1)) if is_full else np.arange(len(scores))
    all_scores = np.concatenate([self._scores[changed], scores[changed]], axis=1)
    all_numbers = np.concatenate([self._numbers[changed], np.tile(numbers, (len(changed), 1))], axis=1)
    order = np.argsort(-all_scores, axis=1, kind="stable")[:, : self._top]
    best = np.take_along_axis(all_scores, order, axis=1), np.take_along_axis(all_numbers, order, axis=1)
    if is_full:
      self._scores[changed], self._numbers[changed] = best
    else:
      self._scores, self._numbers = best

  def result(self) -> tuple[np.ndarray, np.ndarray]:
    return self._scores, self._numbers


class FaissSearch:
  """Searches with `faiss.IndexFlatIP`, which compares all pairs, too. See `Search`."""

  def __init__(self, queries: np.ndarray, top: int):
    import faiss

    self._queries, self._top = np.ascontiguousarray(queries), top
    self._index = faiss.IndexFlatIP(queries.shape[1])

  def add(self, vectors: np.ndarray) -> None:
    self._index.add(np.ascontiguousarray(vectors))

  def result(self) -> tuple[np.ndarray, np.ndarray]:
    return self._index.search(self._queries, min(self._top, self._index.ntotal))


SEARCHES: dict[str, type[Search]] = {"exact": ExactSearch, "faiss": FaissSearch}


def check(name: str) -> None:
  """Checks that a search can run.

  Args:
    name: key of `SEARCHES`.

  Raises:
    UserError: its library is not installed.
  """
  if name == "faiss" and importlib.util.find_spec("faiss") is None:
    raise UserError(
      f"--search faiss: faiss is not installed. Run: {versions.install_command('faiss')}, or leave out --search for "
      "the exact search, which has the same neighbours."
    )


def nearest(queries: np.ndarray, candidates: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns scores and indices of the nearest candidates of each query, by exact search; see `Search`."""
  search = ExactSearch(queries, top)
  search.add(candidates)
  return search.result()
