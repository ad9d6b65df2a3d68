"""The classification report: scores against scikit-learn, and the layout of its text."""

import json

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest
from rich import cells
import sklearn.metrics

from t2t.evaluation import classification_report as report_lib

LABELS = ("cat", "dog", "eel", "fox")
report_of = report_lib.classification_report
items = strategies.lists(strategies.tuples(strategies.integers(0, 3), strategies.integers(-1, 4)), max_size=30)


@pytest.mark.slow
@hypothesis.given(items)
def test_scores_are_scikit_learns(pairs):
  """For scikit-learn a prediction outside the classes is a further class, which is never right."""
  targets, predictions = ([pair[side] for pair in pairs] for side in (0, 1))
  found = report_of(targets, predictions, LABELS)
  stray = [4 if prediction in (-1, 4) else prediction for prediction in predictions]
  confusion = sklearn.metrics.confusion_matrix(targets, stray, labels=range(5)) if pairs else np.zeros((5, 5))
  np.testing.assert_array_equal(found.confusion, confusion[:4])
  if pairs:
    assert found.accuracy == pytest.approx(100 * sklearn.metrics.accuracy_score(targets, stray))
    scores = sklearn.metrics.precision_recall_fscore_support(targets, stray, labels=range(4), zero_division=0)
    ours = [(each.precision / 100, each.recall / 100, each.f1 / 100, each.gold) for each in found.classes]
    np.testing.assert_allclose(np.array(ours).T, scores)
    assert found.majority[1] == pytest.approx(100 * np.bincount(targets).max() / len(targets))
  assert report_lib.from_dict(json.loads(json.dumps(found.to_dict()))).to_dict() == found.to_dict()


def test_labels_and_their_numbers_are_the_same():
  assert report_of(["cat", 1, np.int64(2)], [0, "dog", "eel"], LABELS).accuracy == 100
  assert report_of(["cat"], [True], LABELS).not_a_label == 1


def test_items_without_a_gold_label_are_left_out_and_counted():
  found = report_of([0, None, -1, float("nan"), 1], [0, 0, 1, 2, None], LABELS)
  assert (found.n, found.without_gold, found.accuracy, found.not_a_label) == (2, 3, 50.0, 1)
  assert "left out, no gold label: 3" in found.to_text()
  assert "not a label: 1 of 2 predictions match no class" in found.to_text()


def test_what_cannot_be_compared_is_refused():
  with pytest.raises(ValueError, match="2 targets and 1 predictions"):
    report_of([0, 1], [0], LABELS)
  with pytest.raises(ValueError, match="target 1: 'cow' is not a label; give one of cat"):
    report_of(["cat", "cow"], [0, 0], LABELS)
  with pytest.raises(ValueError, match="'a' occurs twice"):
    report_of([0], [0], ("a", "a"))


def test_a_small_matrix_is_all_there():
  assert report_of([0, 1, 1], [0, 0, "cow"], ("cat", "dog")).to_text().splitlines()[-3:] == [
    "            cat         dog not a label",
    "cat           1           .           .",
    "dog           1           .           1",
  ]


@pytest.mark.exhaustive_from(11)
@pytest.mark.parametrize("classes", [1, 2, 9, 20, 77, 150])
@pytest.mark.parametrize("number", [0, 300, 200_000])
def test_the_text_fits_into_80_columns(classes, number):
  """Classes that do not fit are merged without losing an item, and the most frequent confusions are listed."""
  random = np.random.default_rng(0)
  names = [f"a class with a name that is long {i}" for i in range(classes)]
  targets = random.integers(0, classes, number)
  predictions = np.where(random.random(number) < 0.8, targets, random.integers(0, classes + 1, number))
  found = report_of(targets.tolist(), predictions.tolist(), names)
  lines = found.to_text().splitlines()
  assert max(map(len, lines)) <= 80
  start = next(i for i, line in enumerate(lines) if line.startswith("confusion matrix")) + 2
  end = next((i for i, line in enumerate(lines) if line.startswith("most frequent confusions")), len(lines))
  rows, _, counts = report_lib._fitted(found, 80)
  assert counts.sum() == number and end - start == len(rows)
  assert (end < len(lines)) == (len(rows) < classes)


def test_long_labels_that_begin_alike_differ_in_the_text():
  labels = [f"Department of Transport and Energy, section {i}" for i in (1, 2, 3)]
  text = report_of(labels, [*labels[1:], labels[0]], labels).to_text(width=80)
  for i in (1, 2, 3):
    # once more as the majority class
    assert sum(f"…, section {i}" in line for line in text.splitlines()) == 2 + (i == 1)


def test_labels_whose_characters_are_wide_are_aligned():
  """Chinese characters take two terminal columns."""
  labels = ["好评", "差", "一般般的评价"]
  lines = report_of([0, 1, 2, 2], [0, 1, 2, 0], labels).to_text().splitlines()
  for number in (4, len(lines) - 3):
    assert len({cells.cell_len(line) for line in lines[number - 1 : number + 3]}) == 1
