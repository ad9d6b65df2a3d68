"""Thresholds of early exit that `t2t exits` measures."""

from hypothesis import given, settings, strategies
import numpy as np

from t2t.evaluation import exit_sweep


@settings(deadline=None)
@given(strategies.integers(0, 2**32 - 1), strategies.integers(1, 6), strategies.floats(0.1, 8.0))
def test_thresholds_lie_between_entropies(seed, points, scale):
  """At most as many as points, ascending, with equal parts of the entropies below them up to one."""
  logits = scale * np.random.default_rng(seed).normal(size=(20, 2, 4))
  p = np.exp(logits) / np.sum(np.exp(logits), axis=-1, keepdims=True)
  entropies = -np.sum(p * np.log(p), axis=-1).ravel()
  found = exit_sweep.thresholds(logits, points)
  assert found == sorted(set(found)) and len(found) <= points
  assert np.min(np.abs(np.subtract.outer(found, entropies))) > 0
  below = [np.mean(entropies < threshold) for threshold in found]
  if len(np.unique(np.round(entropies, 6))) == len(entropies):
    np.testing.assert_allclose(below, (np.arange(points) + 0.5) / points, atol=1.01 / len(entropies))


def test_equal_entropies_have_no_threshold():
  assert exit_sweep.thresholds(np.zeros((5, 2, 4), np.float32), 3) == []
