"""Statistics of items, and 95 % intervals."""

import numpy as np
import pytest
import scipy.stats

from t2t.evaluation import intervals, item_statistics, results, task_metrics
from t2t.evaluation.item_statistics import Statistics

RANDOM = np.random.default_rng(7)
BINARY = RANDOM.integers(0, 2, 40).tolist()
GUESSES = [value if RANDOM.random() < 0.7 else -1 if RANDOM.random() < 0.3 else 1 - value for value in BINARY]
CLASSES = RANDOM.integers(0, 3, 40).tolist()
CLASS_GUESSES = [value if RANDOM.random() < 0.6 else int(RANDOM.integers(-1, 3)) for value in CLASSES]
NUMBERS = RANDOM.normal(size=40).round(1).tolist()
NUMBER_GUESSES = [None if RANDOM.random() < 0.1 else value + RANDOM.normal() for value in NUMBERS]
TEXTS = ["a cat sat on the mat today", "the dogs run fast in the park", "it rains . we stay in", "no"] * 5
WRITTEN = ["a cat sat on a mat", "dogs run in the park fast", "it rains today . we stay", "yes"] * 5
TAGS = [["B-X", "I-X", "O", "B-Y"], ["O", "B-X", "O"], ["O"]] * 4
TAGGED = [["B-X", "I-X", "O", "O"], ["B-X", "O", "O"], None] * 4
GROUPED = [{"group": index // 4, "value": value} for index, value in enumerate(BINARY)]
GROUP_GUESSES = [{"group": index // 4, "value": value} for index, value in enumerate(GUESSES)]
PAIRS = [{"pair": index // 2, "label": value} for index, value in enumerate(BINARY[:-1])]  # the last is incomplete
QUERIES = [{"group": index // 2, "answers": [text, "x"]} for index, text in enumerate(TEXTS)]
ANSWERS = [[text, text[:5]] for text in TEXTS]
METRICS = [
  (task_metrics.accuracy, BINARY, GUESSES),
  (task_metrics.accuracy, PAIRS, GUESSES[:-1]),
  (task_metrics.f1, BINARY, GUESSES),
  (task_metrics.matthews, BINARY, GUESSES),
  (task_metrics.cb_f1, CLASSES, CLASS_GUESSES),
  (task_metrics.occurring_class_f1, CLASSES, CLASS_GUESSES),
  (task_metrics.multirc_f1a, GROUPED, GROUP_GUESSES),
  (task_metrics.multirc_exact_match, GROUPED, GROUP_GUESSES),
  (task_metrics.axg_parity, PAIRS, GUESSES[:-1]),
  (task_metrics.record, QUERIES, WRITTEN),
  (task_metrics.squad, ANSWERS, WRITTEN),
  (task_metrics.squad_v2, ANSWERS, WRITTEN),
  (task_metrics.entity_f1, TAGS, TAGGED),
  (task_metrics.word_accuracy, TAGS, TAGGED),
  (task_metrics.pearson, NUMBERS, NUMBER_GUESSES),
  (task_metrics.spearman, NUMBERS, NUMBER_GUESSES),
  (task_metrics.bleu, TEXTS, WRITTEN),
  (task_metrics.rouge, TEXTS, WRITTEN),
]


@pytest.mark.parametrize(("metric", "targets", "predictions"), METRICS)
def test_statistics_give_the_metric(metric, targets, predictions):
  """The metric of all items, and of a sample in which items repeat."""
  values = metric(targets, predictions)
  statistics = item_statistics.of_metric(metric, targets, predictions)
  assert statistics.keys() == values.keys()
  for name, value in values.items():
    assert item_statistics.value_of(statistics[name]) == pytest.approx(value), name
  if any(isinstance(target, dict) for target in targets):
    return  # repeated items of a group would be one group
  # A sample without unparseable numbers, because these depend on the extremes of the sample's targets.
  sample = RANDOM.choice([i for i, x in enumerate(predictions) if x is not None or targets is TAGS], len(targets))
  expected = metric([targets[i] for i in sample], [predictions[i] for i in sample])
  for name, value in expected.items():
    sampled = statistics[name]._replace(rows=statistics[name].rows[sample])
    assert item_statistics.value_of(sampled) == pytest.approx(value), name


@pytest.mark.parametrize(("right", "number"), [(8, 16), (0, 5), (5, 5), (137, 500)])
def test_the_exact_interval(right, number):
  """Ends by the quantiles of beta distributions (Clopper & Pearson 1934), and by scipy's binomial test."""
  interval = intervals.exact(right, number)
  of_scipy = scipy.stats.binomtest(right, number).proportion_ci(0.95, method="exact")
  assert (interval.low, interval.high) == pytest.approx((100 * of_scipy.low, 100 * of_scipy.high))
  low = scipy.stats.beta.ppf(0.025, right, number - right + 1) if right else 0.0
  high = scipy.stats.beta.ppf(0.975, right + 1, number - right) if right < number else 1.0
  assert (interval.low, interval.high) == pytest.approx((100 * low, 100 * high))
  assert (interval.method, interval.units) == ("exact", number)


def test_a_fraction_of_an_item_widens_the_interval():
  """7.5 of 16 right items, because of ties: from the low end of 7 to the high end of 8."""
  interval = intervals.exact(7.5, 16)
  assert interval.low == intervals.exact(7, 16).low and interval.high == intervals.exact(8, 16).high
  assert intervals.exact(sum([0.1] * 10), 16) == intervals.exact(1, 16)


def test_independent_items_have_the_exact_interval():
  """Accuracy of items; accuracy of pairs and F1 by bootstrap."""
  of = lambda metric, targets, guesses, name: intervals.of_metric(
    name, item_statistics.of_metric(metric, targets, guesses)[name], item_statistics.units(targets)
  )
  right = sum(map(lambda a, b: a == b, BINARY, GUESSES))
  assert of(task_metrics.accuracy, BINARY, GUESSES, "accuracy") == intervals.exact(right, 40)
  pairs = of(task_metrics.accuracy, PAIRS, GUESSES[:-1], "accuracy")
  assert (pairs.method, pairs.units) == ("bootstrap", 20)
  f1 = of(task_metrics.f1, BINARY, GUESSES, "f1")
  assert (f1.method, f1.units) == ("bootstrap", 40) and f1.low < task_metrics.f1(BINARY, GUESSES)["f1"] < f1.high
  assert of(task_metrics.multirc_exact_match, GROUPED, GROUP_GUESSES, "exact_match").units == 10


def test_the_bootstrap_of_a_mean_is_that_of_scipy():
  """The percentiles of scipy.stats.bootstrap of the items' scores by the same seed; nearly those of more resamples."""
  scores = RANDOM.random(30)
  statistics = Statistics("mean", np.stack([scores, np.ones(30)], axis=1))
  interval = intervals.of_metric("f1", statistics, item_statistics.units([0] * 30))
  by_unit = scores[np.argsort(item_statistics.units([0] * 30))]  # units are resampled in the order of their names
  for resamples, seed, tolerance in ((intervals.RESAMPLES, intervals.SEED, 1e-9), (20_000, 1, 1.5)):
    expected = scipy.stats.bootstrap(
      (100 * by_unit,), np.mean, n_resamples=resamples, method="percentile", random_state=np.random.default_rng(seed)
    ).confidence_interval
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=tolerance)
  assert intervals.of_metric("f1", statistics, item_statistics.units([0] * 30)) == interval


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_a_correlation_with_nan_is_nan(name):
  """It has no interval; a constant still has the correlation 0."""
  rows = np.array([[np.nan, 0.2], [0.1, 0.5], [0.9, 0.7]])
  assert np.isnan(item_statistics.value_of(Statistics(name, rows)))
  assert intervals.of_metric(f"{name}_correlation", Statistics(name, rows), ["0", "1", "2"]) is None
  assert item_statistics.value_of(Statistics(name, np.array([[1.0, 0.2], [1.0, 0.5]]))) == 0.0
  result = results.Result("task", "test", {}, [], statistics={name: Statistics(name, rows)})
  assert np.isnan(results._statistics(result, 0)[name][1]) and results._statistics(result, 1)[name][1:] == [0.1, 0.5]


def test_groups_are_resampled_together():
  """Ten groups of four equal items have the interval of ten items."""
  alone = np.stack([RANDOM.integers(0, 2, 10).astype(float), np.ones(10)], axis=1)
  together, units = np.repeat(alone, 4, axis=0), [f"g{index // 4}" for index in range(40)]
  grouped = intervals.of_metric("accuracy", Statistics("mean", together), units)
  single = intervals.of_metric("f1", Statistics("mean", alone), [f"g{index}" for index in range(10)])
  assert (grouped.low, grouped.high, grouped.units) == pytest.approx((single.low, single.high, 10))


def test_metrics_of_users():
  """The function is called for each resample; a failure gives no interval."""
  ratio = lambda targets, predictions: {"ratio": float(np.mean(np.array(targets) == np.array(predictions)))}
  interval = intervals.of_function(ratio, "ratio", BINARY, GUESSES)
  assert interval.low < ratio(BINARY, GUESSES)["ratio"] < interval.high and interval.method == "bootstrap"

  def fragile(targets, predictions):
    raise ZeroDivisionError

  assert intervals.of_function(fragile, "ratio", BINARY, GUESSES) is None
  assert intervals.of_function(ratio, "ratio", BINARY[:1], GUESSES[:1]) is None
  assert item_statistics.of_metric(ratio, BINARY, GUESSES) == {}
