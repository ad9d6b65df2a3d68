"""Normalization of the scores of options."""

import numpy as np
import pytest

from t2t import UserError
from t2t.inference import option_scores
from t2t.inference.option_scores import Option
from t2t.inference.text_scores import TextScore

INPUTS = [[7, 8], [9]]
OPTIONS = [[Option("no", (1,)), Option("é!", (2, 3))], [Option("é!", (2, 3)), Option("no", (1,))]]
LOG_P = {((7, 8), (1,)): -2.0, ((7, 8), (2, 3)): -3.0, ((9,), (2, 3)): -8.0, ((9,), (1,)): -3.5}
LOG_P |= {((5,), (1,)): -1.0, ((5,), (2, 3)): -6.0}  # after the neutral context


class FakeScorer:
  """Returns the scores of `LOG_P`, and records what was scored."""

  def __call__(self, params, items, *, on_batch=None):
    self.keys = [(tuple(item.prefix), tuple(item.continuation)) for item in items]
    if on_batch is not None:
      on_batch(len(items), 0)
    return [
      TextScore(LOG_P[key], len(key[1]), item.num_bytes, False) for key, item in zip(self.keys, items, strict=True)
    ]

  def long_note(self, scores):
    return ""


@pytest.mark.parametrize(
  ("normalize", "expected"),
  [
    ("sum", [[-2.0, -3.0], [-8.0, -3.5]]),
    ("mean", [[-2.0, -1.5], [-4.0, -3.5]]),
    ("bytes", [[-1.0, -1.0], [-8 / 3, -1.75]]),
    ("unconditional", [[-1.0, 3.0], [-2.0, -2.5]]),
  ],
)
def test_each_normalization(normalize, expected):
  """Options of 1 and 2 tokens, of 2 and 3 bytes; each distinct option is scored once after the neutral context."""
  scorer, progress = FakeScorer(), []
  ranker = option_scores.Ranker(scorer, normalize=normalize, neutral=[5])
  scores = ranker(None, INPUTS, OPTIONS, on_batch=lambda number, tokens: progress.append(number))
  np.testing.assert_allclose(np.array(scores), expected)
  assert len(scorer.keys) == (6 if normalize == "unconditional" else 4) and sum(progress) == 2


def test_the_best_options():
  """Ties up to rounding; NaN is never better than a number."""
  assert option_scores.best(np.array([-3.0, -1.0, -1.0 - 1e-7])) == [1, 2]
  assert option_scores.best(np.array([np.nan, -1.0])) == [1]
  assert option_scores.best(np.array([np.nan, np.nan])) == [0, 1]


def test_defaults_and_errors():
  """Sums for generative models, means for encoders."""
  assert [option_scores.choose("", is_generative=value) for value in (True, False)] == ["sum", "mean"]
  assert option_scores.choose("bytes", is_generative=False) == "bytes"
  with pytest.raises(UserError, match=r"config.eval.normalize=byte: unknown value. Known.*did you mean bytes"):
    option_scores.choose("byte", is_generative=True)
  option_scores.check_neutral("unconditional", "Answer:")
  with pytest.raises(UserError, match="neutral_context='Answer:': the normalization 'mean' reads no neutral context"):
    option_scores.check_neutral("mean", "Answer:")
