"""Ties: each of k tied answers counts 1/k in every accuracy, and the number of ties is reported."""

import jax.numpy as jnp
import numpy as np
import pytest

from t2t import losses
from t2t.evaluation import evaluate, probes, results, task_metrics
from t2t.inference import head_predictor, ties
from t2t.losses import head_losses
from t2t.models.head_config import HeadConfig


def asked(targets, groups=None, at=None):
  targets = jnp.array([targets], jnp.int32)
  groups = jnp.ones_like(targets) if groups is None else jnp.array([groups], jnp.int32)
  return head_losses.HeadTargets(jnp.ones(targets.shape, bool) if at is None else jnp.array([at]), targets, groups)


# ---- Losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_of_1000_equal_tokens_each_is_right_by_a_thousandth():
  logits = jnp.full((2, 1000), 3.0, jnp.bfloat16)
  _, _, right = losses.token_cross_entropy(logits, jnp.array([0, 999]))
  np.testing.assert_allclose(right, 1e-3, rtol=1e-6)


@pytest.mark.slow
def test_of_two_tokens_that_tie_each_is_right_by_half():
  logits = jnp.array([[5.0, 5.0, 1.0]] * 3 + [[0.0, 1.0, 2.0]])
  _, _, right = losses.token_cross_entropy(logits, jnp.array([0, 1, 2, 2]))
  np.testing.assert_allclose(right, [0.5, 0.5, 0.0, 1.0])


@pytest.mark.slow
def test_nan_is_no_right_answer():
  _, _, right = losses.token_cross_entropy(jnp.full((1, 4), jnp.nan), jnp.array([1]))
  assert right.tolist() == [0.0]
  assert head_losses._class(jnp.full((1, 1, 4), jnp.nan), asked([1])).right.tolist() == [[0.0]]


@pytest.mark.slow
def test_classes_and_tags():
  found = head_losses._class(jnp.zeros((1, 3, 4)).at[0, 1, 2].set(1.0).at[0, 2, :2].set(1.0), asked([0, 2, 1]))
  np.testing.assert_allclose(found.right, [[0.25, 1.0, 0.5]])


@pytest.mark.slow
def test_choices_count_by_the_share_of_the_best_that_is_right():
  """Two examples in a row: three tied with two right, and two tied with one right."""
  scores = jnp.array([1.0, 1.0, 1.0, 0.0, 2.0, 2.0])[None, :, None]
  found = head_losses._choice(scores, asked([1, 1, 0, 0, 1, 0], groups=[1, 1, 1, 1, 2, 2]))
  assert float(jnp.sum(found.right[0, :4])) == pytest.approx(2 / 3)
  assert float(jnp.sum(found.right[0, 4:])) == pytest.approx(1 / 2)


@pytest.mark.slow
def test_bounds_of_spans():
  """Ten tied starts and ten tied ends have one right pair."""
  targets = [0] * 10
  targets[3], targets[5] = 1, 2
  found = head_losses._span(jnp.zeros((1, 10, 2)), asked(targets))
  assert float(jnp.sum(found.right)) == pytest.approx(1 / 100)


# ---- Answers ---------------------------------------------------------------------------------------------------------


def test_the_best_are_those_within_the_tolerance():
  assert ties.best(np.array([1.0, 3.0, 3.0 + 1e-6, 2.0])).tolist() == [1, 2]
  assert ties.best(np.array([-200.0, -200.001, -201.0])).tolist() == [0, 1]
  assert ties.best(np.array([0.5, 0.5001])).tolist() == [1]
  assert ties.best(np.array([7.0])).tolist() == [0]


def test_rounds_break_every_tie_in_all_ways_equally_often():
  assert ties.rounds([2, 3], most=100) == list(range(6))
  assert ties.rounds([], most=100) == [0]
  spread = ties.rounds([7, 11, 13], most=10)
  assert len(spread) == 10 and spread == sorted(set(spread)) and spread[-1] < 7 * 11 * 13


@pytest.mark.parametrize(
  ("head", "example", "logits", "first", "tied"),
  [
    (HeadConfig("h", 3, "class", ("a", "b", "c")), {}, [[0.0, 1.0, 1.0]], "b", ("b", "c")),
    (HeadConfig("h", 3, "class", ("a", "b", "c")), {}, [[0.0, 1.0, 2.0]], "c", ()),
    (HeadConfig("h", 1, "choice"), {"options": ["x", "y"]}, [[2.0], [2.0]], "x", ("x", "y")),
    (HeadConfig("h", 1, "choice"), {"options": ["x", "x"]}, [[2.0], [2.0]], "x", ()),
    (HeadConfig("h", 1, "choice"), {"options": []}, np.zeros((0, 1)), "", ()),
    (
      HeadConfig("h", 2, "tag", ("O", "B-X")),
      {"words": ["a", "b", "c"], "asked_words": [0, 2]},
      [[1.0, 1.0], [0.0, 1.0]],
      "O O B-X",
      ("O O B-X", "B-X O B-X"),
    ),
    (HeadConfig("h", 1, "score"), {}, [[0.5]], "0.5", ()),
  ],
)
def test_what_heads_say_that_tie(head, example, logits, first, tied):
  logits = np.array(logits, np.float32)
  assert head_predictor.answer(head, example, logits)[0] == first
  assert head_predictor.tied(head, example, logits) == tied


def test_spans_that_tie_are_told():
  window = {
    "answer_heads": np.array([1, 0, 1, 1]),
    "context_starts": np.array([-1, -1, 0, 4]),
    "context_ends": np.array([-1, -1, 3, 7]),
  }
  example = {"context": "Ann Bob", "windows": [window]}
  head = HeadConfig("h", 2, "span")
  logits = np.array([[0.0, 0.0], [1.0, 1.0], [1.0 + 1e-6, 1.0]], np.float32)
  assert head_predictor.answer(head, example, logits)[0] == "Ann"  # the first of the tied spans, not by rounding
  assert head_predictor.tied(head, example, logits) == ("Ann", "Ann Bob", "Bob")
  assert "none" in head_predictor.tied(head, example | {"no_answer": "none"}, np.zeros((3, 2), np.float32))


# ---- Metrics of tasks ------------------------------------------------------------------------------------------------


class Task:
  """The attributes of a seqio task that evaluation needs."""

  name = "t"
  score_metric_fns = ()

  def __init__(self, *metrics):
    self.predict_metric_fns = metrics


def measured(given, *metrics):
  """Returns the metrics of pairs of a target and its tied predictions."""
  found = [
    results.Answer({}, "", tied[0], target, 0.0, tied=tuple(tied) if len(tied) > 1 else ()) for target, tied in given
  ]
  return evaluate.Evaluation._measure(object.__new__(evaluate.Evaluation), Task(*metrics), found, None)[0]


def test_a_model_that_cannot_tell_classes_apart_is_at_chance():
  """The result does not depend on the right class, even if np.argmax selects it."""
  every = list(range(1000))
  assert measured([(0, every)] * 4, task_metrics.accuracy)["accuracy"] == pytest.approx(0.1)
  assert measured([(999, every)] * 4, task_metrics.accuracy)["accuracy"] == pytest.approx(0.1)


def test_ties_of_different_sizes_count_each_by_its_own_share():
  given = [(0, [0, 1]), (2, [0, 1, 2]), (1, [1]), (1, [0]), (4, [0, 1])]
  expected = 100 * (1 / 2 + 1 / 3 + 1 + 0 + 0) / 5
  assert measured(given, task_metrics.accuracy)["accuracy"] == pytest.approx(expected)


def test_any_metric_is_the_mean_over_ways_to_break_ties():
  given = [([answer], ["Rome", "Paris"]) for answer in ("Paris", "Rome", "Oslo")]
  assert measured(given, task_metrics.squad)["exact_match"] == pytest.approx(100 / 3)
  both = [task_metrics.f1([1, 0, 1], [value] * 3)["f1"] for value in (0, 1)]
  assert measured([(1, [0, 1]), (0, [0, 1]), (1, [0, 1])], task_metrics.f1)["f1"] == pytest.approx(np.mean(both))


def test_a_probe_of_equal_vectors_is_at_chance():
  classifier = probes.fit(np.zeros((6, 2)), np.array([0, 1, 2] * 2))
  share, tied = probes.share_right(classifier, np.zeros((4, 2)), np.array([0, 0, 0, 0]))
  assert share == pytest.approx(1 / 3) and tied == 4
  two = probes.fit(np.array([[-1.0], [1.0]] * 3), np.array([0, 1] * 3))
  share, tied = probes.share_right(two, np.array([[-1.0], [1.0], [0.0]]), np.array([0, 1, 1]))
  assert share == pytest.approx(2.5 / 3) and tied == 1


def test_how_many_tied_and_have_no_gold_answer_is_told(capsys):
  import rich.console

  odd = results.Answer({}, "a", 0, 0, 0.0, tied=(0, 1))
  without = results.Answer({}, "a", 0, -1, 0.0, has_gold=False)
  result = results.Result("t", "validation", {"accuracy": 50.0}, [odd, without, without])
  assert (result.tied, result.without_gold) == (1, 2)
  results.note_items([result], rich.console.Console(width=80))
  out = capsys.readouterr().out
  assert "t: 1 of 3 answers are tied" in out and "t: 2 of 3 examples have no gold answer" in out
