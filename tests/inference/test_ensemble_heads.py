"""Heads of an ensemble predict with the mean of their members' probabilities."""

import numpy as np
import pytest

from t2t.inference import ensemble_heads, head_predictor
from t2t.models.head_config import HeadConfig

RANDOM = np.random.default_rng(0)


def softmax(logits, axis):
  values = np.exp(logits - logits.max(axis=axis, keepdims=True))
  return values / values.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize(
  ("kind", "shape", "axis"),
  [("class", (1, 3), 1), ("tag", (4, 3), 1), ("choice", (5, 1), 0), ("span", (6, 2), 0)],
)
def test_probabilities_of_two_members_are_their_mean(kind, shape, axis):
  """Over the classes of a position, the candidates of a choice, or the starts and the ends of a span."""
  head = HeadConfig("task", shape[1], kind=kind)
  first, second = (RANDOM.normal(0, 3, shape).astype(np.float32) for _ in range(2))
  found = ensemble_heads.mean_logits(head, [first, second])
  expected = (softmax(first, axis) + softmax(second, axis)) / 2
  np.testing.assert_allclose(np.exp(found), expected, rtol=1e-5)
  np.testing.assert_allclose(softmax(found, axis), expected, rtol=1e-5)
  # The mean of logits is another distribution.
  assert not np.allclose(softmax((first + second) / 2, axis), expected, rtol=1e-2)
  np.testing.assert_allclose(softmax(ensemble_heads.mean_logits(head, [first]), axis), softmax(first, axis), rtol=1e-5)


def test_the_example_of_the_docstring_is_right():
  head = HeadConfig("task", 2, kind="class")
  found = ensemble_heads.mean_logits(head, [np.log([[1.0, 3.0]]), np.zeros((1, 2))])
  np.testing.assert_allclose(np.exp(found), [[0.375, 0.625]])


def test_scores_are_their_mean_and_no_candidate_stays_none():
  score, choice = HeadConfig("task", 1, kind="score"), HeadConfig("task", 1, kind="choice")
  np.testing.assert_allclose(ensemble_heads.mean_logits(score, [np.full((1, 1), 2.0), np.full((1, 1), 5.0)]), [[3.5]])
  assert ensemble_heads.mean_logits(choice, [np.zeros((0, 1))] * 2).shape == (0, 1)


def test_spans_of_one_member_are_those_of_the_single_model():
  """The best span over all windows, and its probability."""
  head = HeadConfig("task", 2, kind="span")
  windows = [
    {"answer_heads": [1] * 4, "context_starts": [-1, 0, 4, 9], "context_ends": [-1, 3, 8, 12]},
    {"answer_heads": [1] * 4, "context_starts": [-1, 4, 9, 13], "context_ends": [-1, 8, 12, 16]},
  ]
  example = {"windows": windows, "context": "one four nine last", "no_answer": ""}
  logits = RANDOM.normal(0, 2, (8, 2)).astype(np.float32)
  text, log_p = head_predictor.answer(head, example, ensemble_heads.mean_logits(head, [logits, logits]))
  expected_text, expected = head_predictor.answer(head, example, logits)
  assert text == expected_text and log_p == pytest.approx(expected, rel=1e-5)
