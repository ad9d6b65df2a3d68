"""Early exit by entropy and by patience, against PyTorch's entropy and argmax."""

import numpy as np
from parity import torch

from t2t.inference import early_exit


def test_rules_equal_those_of_torch():
  """DeeBERT's entropy is that of a categorical distribution; PABEE counts equal predictions of consecutive layers."""
  logits = np.random.default_rng(0).normal(scale=2.0, size=(200, 6, 4)).astype(np.float32)
  of_torch = torch.from_numpy(logits)
  entropies, predictions = torch.distributions.Categorical(logits=of_torch).entropy(), of_torch.argmax(dim=-1)
  for threshold in (0.4, 0.8, 1.2):
    below = torch.cat([entropies[:, :-1] < threshold, torch.ones(200, 1, dtype=torch.bool)], dim=1)
    expected = 1 + below.int().argmax(dim=1).numpy()
    found, left_with = early_exit.replayed(early_exit.ExitRule(entropy=threshold), logits)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(left_with, logits[np.arange(200), expected - 1])
  for patience in (1, 2, 3):
    expected = []
    for row in predictions:
      equal, count, layers = torch.diff(row) == 0, 0, 6
      for number, is_equal in enumerate(equal[:-1].tolist(), start=2):
        count = count + 1 if is_equal else 0
        if count == patience:
          layers = number
          break
      expected.append(layers)
    assert early_exit.replayed(early_exit.ExitRule(patience=patience), logits)[0].tolist() == expected
    assert len(set(expected)) > 2
