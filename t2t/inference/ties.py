"""Answers that are as good as the best one: scores that differ by less than their rounding are tied."""

import math

import numpy as np

# Of the best score, or of 1 where that is smaller: float32 sums of one model differ by less between batch sizes, and
# options that a model tells apart by more.
TOLERANCE = 1e-5

MOST = 1_000  # alternatives of one answer


def best(scores: np.ndarray) -> np.ndarray:
  """Indices of all scores that are as high as the highest, up to `TOLERANCE`, in rising order.

  In:  [1.0, 3.0, 3.000001, 2.0]
  Out: [1, 2]

  Args:
    scores: [options], one at least, all finite.
  """
  scores = np.asarray(scores, np.float64)
  most = float(np.max(scores))
  return np.flatnonzero(scores >= most - TOLERANCE * max(1.0, abs(most)))


def rounds(numbers: list[int], *, most: int) -> list[int]:
  """Rounds in which every one of several ties is broken in each of its ways equally often, if so many are allowed.

  In round r an item takes its alternative r modulo the number of its alternatives.

  In:  numbers [2, 3], most 10
  Out: [0, 1, 2, 3, 4, 5]

  Args:
    numbers: of alternatives of each item that is tied.
    most: number of rounds at most; where more are needed they are spread evenly.
  """
  needed = 1
  for number in numbers:
    needed = math.lcm(needed, number)
  num_rounds = max(1, min(needed, most))
  return [index * needed // num_rounds for index in range(num_rounds)]
