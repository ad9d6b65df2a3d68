"""Metrics against numbers worked out by hand and against independent formulas."""

import collections
import math
import re
import string

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from t2t.data import postprocessors
from t2t.evaluation import task_metrics

# Warnings are errors here, because a metric is defined for any prediction.
pytestmark = pytest.mark.filterwarnings("error")


def questions(*groups):
  """Returns MultiRC values: (group, value) pairs."""
  return [{"group": group, "value": value} for group, value in groups]


def pairs(*labels):
  """Returns AX-g targets, two of each pair in turn."""
  return [{"label": label, "pair": index // 2} for index, label in enumerate(labels)]


ON_LABELS = {
  "accuracy": task_metrics.accuracy,
  "f1": task_metrics.f1,
  "matthews": task_metrics.matthews,
  "cb_f1": task_metrics.cb_f1,
}
ON_TEXT = {"rouge": task_metrics.rouge, "bleu": task_metrics.bleu}

labels = strategies.integers(0, 1)
several = strategies.lists(strategies.tuples(labels, strategies.sampled_from([0, 1, -1])), min_size=1, max_size=12)
similarities = strategies.sampled_from([0.0, 0.4, 1.0, 2.5, 3.8, 5.0])
words = strategies.lists(strategies.sampled_from(["the", "A", "cat", "cats", "Sat", ".", "œuf", "it's"]), max_size=6)
texts = words.map(" ".join)


# ---- Labels ----------------------------------------------------------------------------------------------------------


def test_accuracy():
  """Two of four are right; an unparseable prediction does not match an unlabelled target."""
  assert task_metrics.accuracy([0, 1, 2, -1], [0, 1, 1, -1]) == {"accuracy": 50.0}
  assert task_metrics.accuracy(pairs(0, 1, 1), [0, 1, -1])["accuracy"] == pytest.approx(200 / 3)


@pytest.mark.slow
@hypothesis.given(several)
def test_labels_against_scikit_learn(examples):
  """Unparseable predictions count as the other class."""
  targets, predictions = (list(values) for values in zip(*examples, strict=True))
  filled = [1 - target if prediction == -1 else prediction for target, prediction in examples]
  accuracy = sklearn.metrics.accuracy_score(targets, filled)
  assert task_metrics.accuracy(targets, predictions)["accuracy"] == pytest.approx(100 * accuracy)
  confusion = sklearn.metrics.confusion_matrix(targets, filled, labels=[0, 1])
  (true_negative, false_positive), (false_negative, true_positive) = confusion.tolist()
  denominator = 2 * true_positive + false_positive + false_negative
  f1 = 2 * true_positive / denominator if denominator else 0.0
  assert task_metrics.f1(targets, predictions)["f1"] == pytest.approx(100 * f1)
  product = math.prod([sum(targets), len(targets) - sum(targets), sum(filled), len(filled) - sum(filled)])
  matthews = true_positive * true_negative - false_positive * false_negative
  matthews = matthews / math.sqrt(product) if product else 0.0
  assert task_metrics.matthews(targets, predictions)["matthews_correlation"] == pytest.approx(100 * matthews)


def test_matthews():
  """2 hits, 2 rejections, 1 false alarm, 1 miss: (4 - 1) / 9. A constant has no correlation."""
  assert task_metrics.matthews([1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 1])["matthews_correlation"] == pytest.approx(100 / 3)
  assert task_metrics.matthews([1, 0], [0, 1]) == {"matthews_correlation": -100.0}
  assert task_metrics.matthews([1, 0, 1], [1, 1, 1]) == {"matthews_correlation": 0.0}
  assert task_metrics.matthews([1, 1], [1, 1]) == {"matthews_correlation": 0.0}
  assert task_metrics.matthews([1, 0, 0], [-1, 1, -1]) == {"matthews_correlation": -100.0}


def test_f1_without_a_positive():
  """Without positive targets and predictions F1 is 0, without a division by zero."""
  assert task_metrics.f1([0, 0], [0, 0]) == {"f1": 0.0}
  assert task_metrics.f1([0, 0], [1, -1]) == {"f1": 0.0}
  assert task_metrics.f1([1, 1, 0], [1, -1, -1])["f1"] == pytest.approx(50.0)


def test_mean_of_classes():
  """F1 scores are 1, 0 (a false alarm and a miss) and 2/3 (one of two found)."""
  assert task_metrics.cb_f1([0, 1, 2, 2], [0, -1, 2, 1])["f1"] == pytest.approx(100 * (1 + 0 + 2 / 3) / 3)
  # An unparseable prediction is no false alarm for class 0.
  assert task_metrics.cb_f1([0, 1, 2], [0, -1, 2])["f1"] == pytest.approx(200 / 3)
  # Classes that do not occur count, because the mean is over the benchmark's classes.
  assert task_metrics.cb_f1([0, 1], [0, 1])["f1"] == pytest.approx(200 / 3)
  assert task_metrics.mean_multiclass_f1(2)([0, 1], [0, 1]) == {"f1": 100.0}


@pytest.mark.exhaustive
@hypothesis.given(several)
def test_an_answer_withheld_never_helps(examples):
  """Replacing a right prediction by an unparseable one never raises a metric."""
  targets, predictions = (list(values) for values in zip(*examples, strict=True))
  for metric in ON_LABELS.values():
    (before,) = metric(targets, predictions).values()
    for index, target in enumerate(targets):
      if predictions[index] == target:
        without = predictions[:index] + [postprocessors.UNPARSEABLE] + predictions[index + 1 :]
        (after,) = metric(targets, without).values()
        assert after <= before + 1e-9


@pytest.mark.exhaustive
@hypothesis.given(several, strategies.randoms())
def test_the_order_of_examples_does_not_matter(examples, random):
  shuffled = list(examples)
  random.shuffle(shuffled)
  for metric in ON_LABELS.values():
    first, second = (metric(*map(list, zip(*order, strict=True))) for order in (examples, shuffled))
    assert first == pytest.approx(second)


# ---- MultiRC and AX-g ------------------------------------------------------------------------------------------------


def test_multirc_counts_whole_questions():
  """Paragraphs 0 and 1 both have a question 0; only the second is fully right, in any order of the answers."""
  targets = questions(((0, 0), 1), ((1, 0), 1), ((0, 0), 0), ((1, 0), 0))
  predictions = questions(((0, 0), 1), ((1, 0), 1), ((0, 0), 1), ((1, 0), 0))
  assert task_metrics.multirc_exact_match(targets, predictions) == {"exact_match": 50.0}
  # 2 hits, 1 false alarm
  assert task_metrics.multirc_f1a(targets, predictions)["f1a"] == pytest.approx(80.0)


def test_multirc_unparseable():
  """An unparseable prediction fails its question, and counts as the other label in F1."""
  targets = questions(((0, 0), 1), ((0, 1), 0), ((0, 2), 1))
  predictions = questions(((0, 0), -1), ((0, 1), -1), ((0, 2), 1))
  assert task_metrics.multirc_exact_match(targets, predictions)["exact_match"] == pytest.approx(100 / 3)
  assert task_metrics.multirc_f1a(targets, predictions)["f1a"] == pytest.approx(100 * 2 / (2 + 1 + 1))


def test_parity_asks_for_the_same_not_for_the_right():
  """Right, equally wrong, different, equally unparseable: two of four; incomplete pairs do not count."""
  targets = pairs(0, 0, 1, 1, 0, 0, 1, 1, 0)
  assert task_metrics.axg_parity(targets, [0, 0, 0, 0, 0, 1, -1, -1, 0]) == {"gender_parity": 50.0}
  assert task_metrics.axg_parity(pairs(1), [1]) == {"gender_parity": 0.0}
  order = [0, 2, 4, 6, 8, 1, 3, 5, 7]
  predictions = np.array([0, 0, 0, 0, 0, 1, -1, -1, 0])[order].tolist()
  assert task_metrics.axg_parity([targets[i] for i in order], predictions) == {"gender_parity": 50.0}


# ---- Numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@hypothesis.given(strategies.lists(strategies.tuples(similarities, similarities), min_size=2, max_size=9))
def test_correlations_against_their_definitions(examples):
  """Pearson is the covariance over the deviations; Spearman is that of the ranks, with mean ranks for ties."""
  targets, predictions = (np.array(values) for values in zip(*examples, strict=True))
  if np.ptp(targets) == 0 or np.ptp(predictions) == 0:
    expected = {"pearson_correlation": 0.0}, {"spearman_correlation": 0.0}
  else:
    ranks = [
      [(np.sum(values < value) + np.sum(values <= value) + 1) / 2 for value in values]
      for values in (targets, predictions)
    ]
    expected = (
      {"pearson_correlation": 100 * np.corrcoef(targets, predictions)[0, 1]},
      {"spearman_correlation": 100 * np.corrcoef(*ranks)[0, 1]},
    )
  lists = targets.tolist(), predictions.tolist()
  assert task_metrics.pearson(*lists) == pytest.approx(expected[0], abs=1e-6)
  assert task_metrics.spearman(*lists) == pytest.approx(expected[1], abs=1e-6)


def test_ties():
  """Ranks 1.5, 1.5, 3.5, 3.5 against 1, 2, 3, 4 give 4 / sqrt(5 x 4)."""
  found = task_metrics.spearman([1.0, 2.0, 3.0, 4.0], [0.2, 0.2, 4.8, 4.8])
  assert found["spearman_correlation"] == pytest.approx(100 * 4 / math.sqrt(20))


def test_an_unparseable_number_is_the_far_end():
  """2.0 is farther from 5.0 than from 0.0; 4.0 is farther from 0.0."""
  targets = [0.0, 5.0, 2.0, 4.0]
  found = task_metrics.pearson(targets, [0.0, 5.0, None, None])["pearson_correlation"]
  assert found == pytest.approx(100 * scipy.stats.pearsonr(targets, [0.0, 5.0, 5.0, 0.0])[0])
  assert task_metrics.spearman(targets, [None] * 4)["spearman_correlation"] < -50


@pytest.mark.parametrize("metric", [task_metrics.pearson, task_metrics.spearman])
@pytest.mark.parametrize(
  "targets, predictions",
  [
    ([1.0, 2.0], [3.0, 3.0]),
    ([2.0, 2.0], [1.0, 3.0]),
    ([2.0], [2.0]),
    ([2.0, 2.0], [None, None]),
  ],
)
def test_no_correlation_with_a_constant(metric, targets, predictions):
  assert list(metric(targets, predictions).values()) == [0.0]


@hypothesis.given(strategies.lists(strategies.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=5))
@hypothesis.example([1e308, -1e308, 1e308])
@hypothesis.example([3.0, 3.0, float(np.nextafter(3, 4))])
def test_correlations_of_any_numbers(predictions):
  """Predictions may be 1e308, or differ only by rounding errors."""
  targets = [float(index) for index in range(len(predictions))]
  for metric in (task_metrics.pearson, task_metrics.spearman):
    (found,) = metric(targets, predictions).values()
    assert -100 <= found <= 100


# ---- Questions and answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  "right, written, exact_match, f1",
  [
    (["The Norse Vikings", "Norse"], "norse vikings!", 100, 100),
    (["Norse Vikings"], "Vikings of the Norse", 0, 80),  # 2 of 2 and of 3 words
    (["very very old"], "very old old", 0, 200 / 3),  # repeated words count as often as both sides have them
    (["1066", "1066", "in 1066"], "in the year 1066", 0, 80),  # the best answer is not the first
    (["Paris", "Paris"], "paris", 100, 100),
    (["U.S."], "us", 100, 100),
    (["twenty-one"], "twentyone", 100, 100),
    (["twenty one"], "twenty-one", 0, 0),  # removed punctuation leaves no space
    (["the-end"], "end", 0, 0),  # so "the" is not an article here
    (["Athens"], "a thens", 0, 0),
    (["Beyoncé"], "beyoncé.", 100, 100),
    (["Beyoncé"], "Beyonce", 0, 0),
    (["Paris"], "«Paris»", 0, 0),  # only ASCII punctuation is removed
    (["İstanbul"], "İSTANBUL", 100, 100),
    (["Paris"], "", 0, 0),
    (["The"], "a", 100, 0),  # both are empty after normalization
    (["The"], "", 100, 0),
    (["The", "Paris"], "Paris", 100, 100),
    ([], "Paris", 0, 0),
    ([], "", 0, 0),
  ],
)
def test_squad(right, written, exact_match, f1):
  """Expected scores of the SQuAD 1.1 script, which knows no empty answers."""
  found = task_metrics.squad([right], [written])
  assert found == pytest.approx({"exact_match": exact_match, "f1": f1})


def test_squad_is_a_mean_over_questions():
  found = task_metrics.squad([["Paris"], ["Norse Vikings"]], ["Rome", "Vikings of Norse"])
  assert found == pytest.approx({"exact_match": 0, "f1": 40})


@hypothesis.given(strategies.lists(texts, max_size=3), texts)
def test_squad_against_precision_and_recall(right, written):
  """F1 follows its definition; words are separated by anything except letters, digits and apostrophes in ASCII."""

  def tokens(text):
    kept = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return [word for word in kept.split() if not re.fullmatch("a|an|the", word)]

  def f1(answer):
    remaining, hits = collections.Counter(tokens(answer)), 0
    for word in tokens(written):
      hits += remaining[word] > 0
      remaining[word] -= 1
    if not hits:
      return 0.0
    return scipy.stats.hmean([hits / len(tokens(written)), hits / len(tokens(answer))])

  found = task_metrics.squad([right], [written])
  assert found["f1"] == pytest.approx(100 * max(map(f1, right), default=0.0))
  assert found["exact_match"] == 100 * any(tokens(answer) == tokens(written) for answer in right)


def test_a_query_of_record_counts_once():
  """Query 7 of two passages counts twice; the second row of (0, 7) is the same query."""
  targets = [
    {"group": (0, 7), "answers": ["Benazir Bhutto", "Bhutto"]},
    {"group": (0, 7), "answers": ["Benazir Bhutto", "Bhutto"]},
    {"group": (1, 7), "answers": ["CNN"]},
  ]
  found = task_metrics.record(targets, ["the Bhutto", "the Bhutto", "BBC"])
  assert found == {"exact_match": 50.0, "f1": 50.0}


# ---- Summaries and translations --------------------------------------------------------------------------------------


def test_rouge():
  """Overlap is 3 of 3 and of 6 words, and 2 of 2 and of 5 pairs."""
  found = task_metrics.rouge(["the cat sat on the mat"], ["the cat sat"])
  assert found == pytest.approx({"rouge1": 200 / 3, "rouge2": 400 / 7, "rougeLsum": 200 / 3})


def test_rouge_compares_stems():
  assert task_metrics.rouge(["the cat runs"], ["the cats running"])["rouge1"] == pytest.approx(100)


@pytest.mark.parametrize("end", [" . ", " .\n", "\n"])
def test_rouge_of_sentences_in_another_order(end):
  """ROUGE-L matches sentences one by one; over the whole text it would be 50."""
  found = task_metrics.rouge([f"alpha beta{end}gamma delta"], [f"gamma delta{end}alpha beta"])
  assert found["rougeLsum"] == pytest.approx(100)


def test_rouge_is_a_mean_over_summaries():
  found = task_metrics.rouge(["alpha beta", "gamma", ""], ["alpha beta", "delta", ""])
  assert found == pytest.approx({"rouge1": 100 / 3, "rouge2": 100 / 3, "rougeLsum": 100 / 3})


def test_bleu():
  """All n-grams are right and 5 of 6 words are given: only the brevity penalty counts, exp(1 - 6/5)."""
  assert task_metrics.bleu(["the cat sat on the mat"], ["the cat sat on the"])["bleu"] == pytest.approx(
    100 * math.exp(-1 / 5)
  )
  # Over the split, not a mean over sentences: 10 of 11 words, all n-grams right.
  found = task_metrics.bleu(
    ["the cat sat on the mat", "he is at home now"], ["the cat sat on the", "he is at home now"]
  )
  assert found["bleu"] == pytest.approx(100 * math.exp(-1 / 10))


def test_bleu_splits_off_punctuation_of_any_script():
  """The mteval tokenizer for English would keep German quotation marks attached to words."""
  assert task_metrics.bleu(["Er sagte „wir gehen heim“"], ["Er sagte „ wir gehen heim “"])["bleu"] == pytest.approx(100)
  assert task_metrics.bleu(["Wir gehen jetzt heim"], ["wir gehen jetzt heim"])["bleu"] < 100


def test_bleu_is_reported_with_its_settings():
  pattern = r"nrefs:1\|case:mixed\|eff:no\|tok:intl\|smooth:exp\|version:[\d.]+"
  assert re.fullmatch(pattern, task_metrics.bleu_signature())


@hypothesis.settings(deadline=None)
@hypothesis.given(strategies.lists(strategies.tuples(texts, texts), min_size=1, max_size=4))
def test_text_metrics_are_percentages(examples):
  """Metrics are percentages for empty texts too."""
  targets, predictions = (list(values) for values in zip(*examples, strict=True))
  for metric in ON_TEXT.values():
    for value in metric(targets, predictions).values():
      assert 0 <= value <= 100


# ---- All metrics -----------------------------------------------------------------------------------------------------

ALL = {
  **ON_LABELS,
  **ON_TEXT,
  "multirc_f1a": task_metrics.multirc_f1a,
  "multirc_exact_match": task_metrics.multirc_exact_match,
  "axg_parity": task_metrics.axg_parity,
  "pearson": task_metrics.pearson,
  "spearman": task_metrics.spearman,
  "squad": task_metrics.squad,
  "record": task_metrics.record,
}


@pytest.mark.parametrize("name", ALL)
def test_no_examples(name):
  """Metrics are 0.0, under their usual names."""
  for value in ALL[name]([], []).values():
    assert isinstance(value, float) and value == 0.0


@pytest.mark.parametrize("name", ALL)
def test_what_is_right_scores_100(name):
  sentences = ["the cat sat on the mat", "it ran off to the old house"]
  right = {
    "multirc_f1a": [questions(((0, 0), 1), ((0, 1), 0))] * 2,
    "multirc_exact_match": [questions(((0, 0), 1), ((0, 1), 0))] * 2,
    "axg_parity": [pairs(0, 0, 1, 1), [0, 0, 1, 1]],
    "pearson": [[0.0, 2.8, 5.0]] * 2,
    "spearman": [[0.0, 2.8, 5.0]] * 2,
    "squad": [[[sentence] for sentence in sentences], sentences],
    "record": [[{"group": (0, i), "answers": [s]} for i, s in enumerate(sentences)], sentences],
    "cb_f1": [[0, 1, 2]] * 2,
    "rouge": [sentences] * 2,
    "bleu": [sentences] * 2,
  }
  targets, predictions = right.get(name, [[0, 1, 1]] * 2)
  found = ALL[name](targets, predictions)
  assert list(found.values()) == pytest.approx([100.0] * len(found))
  assert max(found.values()) <= 100.0


@pytest.mark.parametrize("name", ALL)
def test_lists_that_do_not_match(name):
  """A missing prediction is an error, not another score."""
  two = {
    "multirc_f1a": questions(((0, 0), 1), ((0, 1), 0)),
    "multirc_exact_match": questions(((0, 0), 1), ((0, 1), 0)),
    "axg_parity": pairs(0, 0),
    "squad": [["a b"], ["c d"]],
    "record": [{"group": (0, 0), "answers": ["a"]}, {"group": (0, 1), "answers": ["b"]}],
    "rouge": ["a b", "c d"],
    "bleu": ["a b", "c d"],
  }.get(name, [0, 1])
  one = {"squad": ["a b"], "record": ["a"]}.get(name, two[:1])
  with pytest.raises(ValueError):
    ALL[name](two, one)


def test_score_is_the_mean_of_a_tasks_metrics():
  """CB has 80 and 60; without metrics the score is 0."""
  assert task_metrics.score({"accuracy": 80.0, "f1": 60.0}) == 70.0
  assert task_metrics.score({"accuracy": 80.0}) == 80.0
  assert task_metrics.score({}) == 0.0
