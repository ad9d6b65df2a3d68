"""Metrics on unusual inputs, against reimplementations of the benchmarks' scripts."""

import collections
import math
import re
import statistics
import string

import numpy as np
import pytest
from rouge_score import rouge_scorer, tokenizers
import sacrebleu
import seqeval.metrics
import sklearn.metrics

from t2t.data import postprocessors
from t2t.evaluation import benchmarks, classification_report, results, task_metrics

pytestmark = pytest.mark.filterwarnings("error")

ODD = [
  *("", " ", "a", "The", "the an a", "...", "!?", "Paris", "paris.", "  Paris  ", "the Paris", "Paris, France"),
  *(
    "«Paris»",
    "Paris…",
    "“Paris”",
    "PARIS",
    "pâris",
    "Pa ris",
    "İstanbul",
    "ﬁsh",
    "東京",
    "東京。",
    "42",
    "4 2",
    "4,2",
  ),
  *("unanswerable", "Unanswerable", "no answer", "a theater", "an-the-a", "\u00a0", "\n", "\u200b", "O'Neil"),
]


# ---- SQuAD -----------------------------------------------------------------------------------------------------------


def tokens(text):
  """Returns the words of a text in lower case, without ASCII punctuation and articles."""
  text = "".join(character for character in text.lower() if character not in string.punctuation)
  return re.sub(r"\b(a|an|the)\b", " ", text).split()


def overlap(gold, prediction):
  gold, prediction = tokens(gold), tokens(prediction)
  same = sum((collections.Counter(gold) & collections.Counter(prediction)).values())
  if not same:
    return 0.0
  precision, recall = same / len(prediction), same / len(gold)
  return 2 * precision * recall / (precision + recall)


def squad_v1(gold, prediction):
  """Computes the scores of the SQuAD 1.1 script: the best over all gold answers; F1 is 0 without a common word."""
  exact = max(" ".join(tokens(each)) == " ".join(tokens(prediction)) for each in gold)
  return 100 * exact, 100 * max(overlap(each, prediction) for each in gold)


def squad_v2(gold, prediction):
  """Computes the scores of the SQuAD 2.0 script: gold answers that are empty after normalization are dropped.

  Without gold answers the gold text is empty. F1 with an empty side is 1 if both sides are empty, else 0.
  """
  gold = [each for each in gold if tokens(each)] or [""]
  exact = max(tokens(each) == tokens(prediction) for each in gold)
  both = lambda each: tokens(each) and tokens(prediction)
  f1 = max(overlap(each, prediction) if both(each) else float(tokens(each) == tokens(prediction)) for each in gold)
  return 100 * exact, 100 * f1


@pytest.mark.parametrize("prediction", ODD)
def test_squad_is_the_scripts(prediction):
  for gold in (["Paris"], ["The", "Paris, France"], ["a"], ["", "x"], ["東京", "tokyo"], ["4 2"], ["...", "the"]):
    exact, f1 = squad_v1(gold, prediction)
    assert task_metrics.squad([gold], [prediction]) == pytest.approx({"exact_match": exact, "f1": f1}), gold
    query = {"group": 0, "answers": gold}
    assert task_metrics.record([query], [prediction]) == pytest.approx({"exact_match": exact, "f1": f1}), gold
    if prediction != postprocessors.UNANSWERABLE:
      exact, f1 = squad_v2(gold, prediction)
      assert task_metrics.squad_v2([gold], [prediction]) == pytest.approx({"exact_match": exact, "f1": f1}), gold


@pytest.mark.parametrize("prediction", ODD)
def test_a_question_without_an_answer_is_the_scripts(prediction):
  """An empty answer is right, and so is the text that models generate for it."""
  right = 100.0 if prediction == postprocessors.UNANSWERABLE or not tokens(prediction) else 0.0
  assert task_metrics.squad_v2([[]], [prediction]) == {"exact_match": right, "f1": right}


def test_a_question_with_an_answer_is_not_answered_by_withholding_it():
  for prediction in ("", postprocessors.UNANSWERABLE):
    assert task_metrics.squad_v2([["Paris"]], [prediction]) == {"exact_match": 0.0, "f1": 0.0}


# ---- Labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("targets", "predictions"),
  [
    ([1, 1, 1], [1, 1, 1]),  # only one class
    ([0, 0, 0], [0, 0, 0]),
    ([0, 0, 0], [1, 1, 1]),
    ([1, 1, 1], [0, 0, 0]),
    ([0, 1, 1], [1, 1, 1]),
    ([0, 1], [0, 0]),
    ([1], [1]),
    ([0], [0]),
    ([0, 1, 0, 1], [1, 0, 1, 0]),
  ],
)
def test_one_class_and_constant_predictions_are_scikit_learns(targets, predictions):
  """If a denominator is 0, F1 and Matthews' correlation are 0, as in GLUE's scripts."""
  f1 = sklearn.metrics.f1_score(targets, predictions, zero_division=0)
  assert task_metrics.f1(targets, predictions)["f1"] == pytest.approx(100 * f1)
  matrix = sklearn.metrics.confusion_matrix(targets, predictions, labels=[0, 1])
  (tn, fp), (fn, tp) = matrix.tolist()
  product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
  matthews = (tp * tn - fp * fn) / math.sqrt(product) if product else 0.0
  assert task_metrics.matthews(targets, predictions)["matthews_correlation"] == pytest.approx(100 * matthews)


def test_multirc_of_one_answer_and_of_none_right():
  value = lambda group, label: {"group": group, "value": label}
  targets = [value(0, 0), value(0, 0), value(1, 1)]
  assert task_metrics.multirc_f1a(targets, [value(0, 0), value(0, 0), value(1, 0)]) == {"f1a": 0.0}
  assert task_metrics.multirc_exact_match(targets, [value(0, 0), value(0, 0), value(1, 0)]) == {"exact_match": 50.0}
  assert task_metrics.multirc_exact_match(targets, [value(0, 0), value(0, -1), value(1, 1)]) == {"exact_match": 50.0}


# ---- Tags ------------------------------------------------------------------------------------------------------------

SEQUENCES = [
  (["B-PER", "I-PER", "O"], ["B-PER", "I-PER", "O"]),
  (["B-PER", "I-PER", "O"], ["I-PER", "I-PER", "O"]),  # an I- at the beginning
  (["B-PER", "I-PER", "O"], ["B-PER", "B-PER", "O"]),
  (["B-PER", "I-PER", "O"], ["B-PER", "I-LOC", "O"]),  # a type that changes inside
  (["B-PER", "B-PER"], ["B-PER", "I-PER"]),
  (["I-LOC", "O", "I-LOC"], ["I-LOC", "I-LOC", "I-LOC"]),
  (["O", "O"], ["O", "O"]),
  (["O", "O"], ["B-PER", "O"]),
  (["B-PER", "O", "B-LOC"], ["O", "O", "O"]),
  (["B-PER"], ["B-LOC"]),
]


@pytest.mark.parametrize("number", range(1, len(SEQUENCES) + 1))
def test_entities_are_seqevals(number):
  right, found = (list(column) for column in zip(*SEQUENCES[:number], strict=True))
  expected = 100 * seqeval.metrics.f1_score(right, found, zero_division=0)
  assert task_metrics.entity_f1(right, found)["f1"] == pytest.approx(expected)


def test_words_without_a_tag_have_none():
  """There are fewer tags than words, more tags, or no prediction."""
  right = ["B-PER", "I-PER", "O", "B-LOC"]
  short, full, more = ["B-PER", "I-PER"], ["B-PER", "I-PER", "O", "O"], [*right, "B-PER"]
  assert task_metrics.entity_f1([right], [short]) == task_metrics.entity_f1([right], [full])
  assert task_metrics.entity_f1([right], [more]) == {"f1": 100.0}
  assert task_metrics.entity_f1([right], [None]) == {"f1": 0.0} == task_metrics.entity_f1([right], [[]])
  assert task_metrics.word_accuracy([right], [short]) == {"word_accuracy": 50.0}
  assert task_metrics.word_accuracy([right], [None]) == {"word_accuracy": 0.0}


# ---- Text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prediction", ODD)
def test_rouge_and_bleu_are_the_libraries(prediction):
  """ROUGE is the stemmed F-measure for each summary; BLEU is that of the corpus, with mteval's international tokens."""
  gold = "the cats sat . in Paris, 東京"
  scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeLsum"], tokenizer=tokenizers.DefaultTokenizer(True))
  expected = scorer.score(gold.replace(" . ", " .\n"), prediction)
  found = task_metrics.rouge([gold], [prediction])
  assert found == pytest.approx({name: 100 * own.fmeasure for name, own in expected.items()})
  bleu = sacrebleu.corpus_bleu([prediction, gold], [[gold, gold]], tokenize="intl", smooth_method="exp", force=True)
  assert task_metrics.bleu([gold, gold], [prediction, gold])["bleu"] == pytest.approx(min(bleu.score, 100.0))


# ---- Benchmarks ------------------------------------------------------------------------------------------------------


def test_mnli_counts_once_in_the_mean_of_glue():
  scores = {"glue_rte": 60.0, "glue_mnli": 84.0, "glue_mnli_mismatched": 86.0}
  assert benchmarks.mean(scores) == 72.5
  assert benchmarks.mean(scores | {"glue_ax": 30.0}) == 72.5
  (mean,) = benchmarks.means(scores | {"glue_ax": 30.0, "glue_wnli": 56.3})
  assert (mean.name, mean.value) == ("mean of tasks", 72.5)
  assert mean.note == (
    "mean of tasks: glue_mnli_mismatched and glue_mnli count as one task; glue_ax, glue_wnli left out"
  )


def test_the_mean_of_glue_is_over_eight_tasks():
  """The metrics of a task are averaged before the tasks."""
  names = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "mnli_mismatched", "qnli", "rte")
  scores = {f"glue_{name}": float(10 * number) for number, name in enumerate(names)}
  expected = statistics.mean([0, 10, 20, 30, 40, (50 + 60) / 2, 70, 80])
  assert benchmarks.mean(scores) == pytest.approx(expected)
  assert task_metrics.score({"f1": 90.0, "accuracy": 80.0}) == 85.0


def test_diagnostic_sets_are_no_part_of_a_mean():
  scores = {"super_glue_rte": 70.0, "super_glue_cb": 90.0, "super_glue_axb": 10.0, "super_glue_axg": 20.0}
  assert benchmarks.mean(scores) == 80.0
  assert benchmarks.mean({"super_glue_axb": 10.0, "super_glue_axg": 20.0}) is None
  assert benchmarks.means({"super_glue_axb": 10.0, "super_glue_rte": 20.0}) == []


@pytest.mark.parametrize(
  ("published", "scores"),
  [
    (89.3, [(91.2,), (93.9, 96.8), (94.8,), (88.1, 63.3), (94.1, 93.4), (92.5,), (76.9,), (93.8,)]),  # T5 11B
    (89.2, [(91.1,), (95.8, 97.6), (95.6,), (87.9, 61.9), (93.3, 92.4), (92.9,), (75.8,), (93.8,)]),  # SPoT
    (89.8, [(89.0,), (95.8, 98.9), (100.0,), (81.8, 51.9), (91.7, 91.3), (93.6,), (80.0,), (100.0,)]),  # human
  ],
)
def test_rows_of_superglues_leaderboard_have_their_published_means(published, scores):
  """The two metrics of CB and of MultiRC are averaged first."""
  names = ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")
  of_tasks = {
    f"super_glue_{name}": task_metrics.score(dict(enumerate(own))) for name, own in zip(names, scores, strict=True)
  }
  assert benchmarks.mean(of_tasks) == pytest.approx(published, abs=0.0501)  # published with one digit
  assert benchmarks.mean(of_tasks | {"super_glue_axb": 0.0, "super_glue_axg": 0.0}) == benchmarks.mean(of_tasks)


def test_two_benchmarks_have_two_means_and_other_tasks_one():
  scores = {"glue_rte": 60.0, "glue_cola": 40.0, "super_glue_rte": 70.0, "super_glue_cb": 90.0}
  assert [(mean.name, mean.value) for mean in benchmarks.means(scores)] == [
    ("mean of GLUE", 50.0),
    ("mean of SuperGLUE", 80.0),
  ]
  assert [mean.value for mean in benchmarks.means({"mine": 10.0, "other": 30.0})] == [20.0]
  assert [mean.value for mean in benchmarks.means(scores | {"mine": 40.0})] == [60.0]


def test_errors_of_numbers_are_in_the_units_of_the_labels():
  """Errors cover numeric answers; the last one is the error of the mean label."""
  answer = lambda value, target, **facts: results.Answer({}, str(value), value, target, 0.0, **facts)
  rows = [answer(1.0, 2.0), answer(5.0, 2.0), answer(8.0, 8.0), answer(None, 3.0, parseable=False)]
  found = results.Result("stsb", "validation", {"pearson": 1.0}, rows).errors
  assert found == {
    "mean_absolute_error": pytest.approx(4 / 3),
    "root_mean_square_error": pytest.approx((10 / 3) ** 0.5),
    "root_mean_square_error_of_mean": pytest.approx(8**0.5),
  }
  assert not results.Result("cb", "validation", {"accuracy": 1.0}, [answer(1, 1)]).errors
  assert not results.Result("stsb", "test", {}, rows).errors


@pytest.mark.parametrize("seed", range(20))
def test_f1_of_a_table_is_that_of_its_report(seed):
  """Classes that occur in neither labels nor predictions do not count."""
  rng = np.random.default_rng(seed)
  targets, predictions = (rng.choice([0, 2, 3, 5][: 1 + seed % 4], size=9) for _ in range(2))
  predictions = [None if x == 5 else int(x) for x in predictions]
  report = classification_report.classification_report(list(map(int, targets)), predictions, list("abcdef"))
  wrong = [-1 if x is None else x for x in predictions]
  assert task_metrics.occurring_class_f1(list(map(int, targets)), wrong)["f1"] == pytest.approx(report.macro_f1)
