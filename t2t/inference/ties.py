"""Tied answers: options with scores that differ from the best by less than rounding."""

import math

import numpy as np

# Relative to the best score, or absolute if that is below 1. Float32 sums of one model differ by less between batch
# sizes, and distinct options differ by more.
TOLERANCE = 1e-5

MOST = 1_000  # maximum alternatives of one answer


def best(scores: np.ndarray) -> np.ndarray:
  """Returns the indices of all scores equal to the highest up to `TOLERANCE`, in ascending order.

  In:  [1.0, 3.0, 3.000001, 2.0]
  Out: [1, 2]

  Args:
    scores: [options], at least one, all finite.
  """
  scores = np.asarray(scores, np.float64)
  most = float(np.max(scores))
  return np.flatnonzero(scores >= most - TOLERANCE * max(1.0, abs(most)))


def rounds(numbers: list[int], *, most: int) -> list[int]:
  """Returns round numbers in which each tied item uses each of its alternatives equally often, if `most` allows.

  In round r an item takes its alternative r modulo the number of its alternatives.

  In:  numbers [2, 3], most 10
  Out: [0, 1, 2, 3, 4, 5]

  Args:
    numbers: of alternatives of each tied item.
    most: maximum number of rounds; if more are needed, the rounds are evenly spaced.
  """
  needed = 1
  for number in numbers:
    needed = math.lcm(needed, number)
  num_rounds = max(1, min(needed, most))
  return [index * needed // num_rounds for index in range(num_rounds)]
