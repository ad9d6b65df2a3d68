"""Successive halving (Jamieson & Talwalkar 2016): steps of the rungs, and the points that continue."""

from collections.abc import Sequence
import math
from typing import TypeVar

from t2t import UserError

T = TypeVar("T")


def rungs(steps: int, eta: int, num_points: int) -> list[int]:
  """Returns the step at which each rung ends, in ascending order; the last is `steps`.

  In:  steps 90, eta 3, 9 points
  Out: [10, 30, 90]; of 9 points 3 continue after step 10, and 1 after step 30

  Args:
    steps: of a complete run.
    eta: 1/eta of the points of a rung continue.
    num_points: of the first rung.

  Raises:
    UserError: the points or steps are too few for a second rung.
  """
  number = 0
  while eta ** (number + 1) <= num_points:
    number += 1
  if not number:
    raise UserError(
      f"--halving {eta}: {num_points} point{'s' * (num_points != 1)} cannot be reduced to 1/{eta}. Give at least {eta} "
      "points, a smaller number, or leave out --halving."
    )
  if steps < eta**number:
    raise UserError(
      f"--halving {eta}: {steps} steps are too few for {number + 1} rungs of {num_points} points. Give "
      f"--config.train.steps={eta**number} or more."
    )
  return [steps // eta**k for k in range(number, -1, -1)]


def ranked(points: Sequence[T], scores: Sequence[float], *, lower_is_better: bool) -> list[T]:
  """Returns the points from best to worst; NaN and infinities come last, and ties keep their order."""
  sign = 1.0 if lower_is_better else -1.0
  worth = lambda score: (0, sign * score) if math.isfinite(score) else (1, 0.0)
  return [points[i] for i in sorted(range(len(points)), key=lambda i: worth(scores[i]))]


def kept(points: Sequence[T], scores: Sequence[float], eta: int, *, lower_is_better: bool) -> list[T]:
  """Returns the points that continue after a rung, in their order: the best 1/eta, and at least one.

  Args:
    points: of the rung.
    scores: of the points; a point without a finite score never continues.
    eta: see `rungs`.
    lower_is_better: direction of the scores.
  """
  finite = [point for point, score in zip(points, scores, strict=True) if math.isfinite(score)]
  number = max(1, len(points) // eta)
  best = ranked(points, scores, lower_is_better=lower_is_better)[: min(number, len(finite))]
  return [point for point in points if point in best]
