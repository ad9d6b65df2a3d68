"""Successive halving: rungs, and the points that continue."""

import math

import numpy as np
import pytest

from t2t import UserError
from t2t.commands import sweep_halving


def test_rungs_end_at_steps_divided_by_powers_of_eta():
  """The docstring's numbers; the last rung has fewer points than eta, and the whole length."""
  assert sweep_halving.rungs(90, 3, 9) == [10, 30, 90]
  assert sweep_halving.rungs(100, 3, 8) == [33, 100]
  for steps in range(64, 200, 17):
    for eta in (2, 3, 4):
      for number in range(eta, 30):
        steps_of_rungs = sweep_halving.rungs(steps, eta, number)
        assert steps_of_rungs[-1] == steps and steps_of_rungs == sorted(set(steps_of_rungs)) and steps_of_rungs[0] > 0
        for _ in steps_of_rungs[1:]:
          number = len(sweep_halving.kept(range(number), [1.0] * number, eta, lower_is_better=True))
        assert 1 <= number < eta


@pytest.mark.parametrize(
  ("steps", "number", "message"),
  [(90, 2, "--halving 3: 2 points cannot be reduced to 1/3. Give at least 3 points"), (8, 9, "steps=9 or more")],
)
def test_too_few_points_or_steps(steps, number, message):
  with pytest.raises(UserError, match=message):
    sweep_halving.rungs(steps, 3, number)


@pytest.mark.parametrize("lower_is_better", [True, False])
def test_the_best_continue_in_either_direction(lower_is_better):
  """No point that ends is better than one that continues; points without a finite score always end."""
  random = np.random.default_rng(0)
  for number in range(1, 40):
    scores = random.choice([0.0, 0.5, 1.0, 2.0, math.nan, math.inf, -math.inf], number, p=[0.2] * 4 + [0.1, 0.05, 0.05])
    scores = scores.tolist()
    kept = sweep_halving.kept(range(number), scores, 3, lower_is_better=lower_is_better)
    finite = [i for i in range(number) if math.isfinite(scores[i])]
    assert len(kept) == min(len(finite), max(1, number // 3)) and kept == sorted(kept) and set(kept) <= set(finite)
    sign = 1 if lower_is_better else -1
    ended = [i for i in finite if i not in kept]
    assert all((sign * scores[i], i) < (sign * scores[j], j) for i in kept for j in ended)  # ties by their order


def test_ranks_put_nan_last():
  assert sweep_halving.ranked("abcd", [math.nan, 2.0, 1.0, 2.0], lower_is_better=True) == [*"cbda"]
  assert sweep_halving.ranked("abcd", [math.nan, 2.0, 1.0, 2.0], lower_is_better=False) == [*"bdca"]
