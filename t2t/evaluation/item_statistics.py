"""Statistics of single items, from whose sums or rows a metric of any sample of the items is computed.

Intervals and comparisons resample items. The statistics make this fast, and independent of tasks and their texts: the
predictions file has them in each line.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from t2t.data import postprocessors
from t2t.evaluation import task_metrics

# scikit-learn, SciPy, seqeval and sacreBLEU take long to import, so functions import them when called.


class Value(NamedTuple):
  """Computes a metric of a sample.

  function: sums over the sample [..., k] -> values [...]; or rows of the sample [..., items, k] -> values [...].
  of_rows: whether the function takes the rows.
  is_percentage: whether values are percentages.
  """

  function: Callable[[np.ndarray], np.ndarray]
  of_rows: bool = False
  is_percentage: bool = True


class Statistics(NamedTuple):
  """Statistics of the items of one metric.

  value: key of `VALUES`.
  rows: float64 [items, k].
  """

  value: str
  rows: np.ndarray


def value_of(statistics: Statistics) -> float:
  """Returns the metric of all items."""
  row = VALUES[statistics.value]
  return float(row.function(statistics.rows if row.of_rows else statistics.rows.sum(axis=0)))


# ---- Values ----------------------------------------------------------------------------------------------------------


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
  """Returns the quotient; 0 if the denominator is 0, and NaN if it is NaN."""
  is_empty = np.less_equal(denominator, 0)
  return np.divide(numerator, denominator, out=np.zeros(np.shape(numerator)), where=~is_empty)


def _mean(sums: np.ndarray) -> np.ndarray:
  return 100 * _ratio(sums[..., 0], sums[..., 1])


def _quotient(sums: np.ndarray) -> np.ndarray:
  return _ratio(sums[..., 0], sums[..., 1])


def _perplexity(sums: np.ndarray) -> np.ndarray:
  """Returns the perplexity of nats and numbers of tokens or words."""
  return np.exp(np.minimum(_quotient(sums), 700.0))


def _f1(sums: np.ndarray) -> np.ndarray:
  """Returns the F1 of counts of right, predicted and gold items."""
  return 200 * _ratio(sums[..., 0], sums[..., 1] + sums[..., 2])


def _macro_f1(sums: np.ndarray) -> np.ndarray:
  return _f1(sums.reshape(*sums.shape[:-1], -1, 3)).mean(axis=-1)


def _occurring_f1(sums: np.ndarray) -> np.ndarray:
  """Returns the mean F1 of the classes that occur in the sample."""
  counts = sums.reshape(*sums.shape[:-1], -1, 3)
  occurs = counts[..., 1] + counts[..., 2] > 0
  return _ratio((_f1(counts) * occurs).sum(axis=-1), occurs.sum(axis=-1))


def _matthews(sums: np.ndarray) -> np.ndarray:
  """Returns the correlation of counts of right positives, false positives, false negatives and right negatives."""
  tp, fp, fn, tn = np.moveaxis(sums, -1, 0)
  return 100 * _ratio(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


def _pearson(rows: np.ndarray) -> np.ndarray:
  x, y = np.moveaxis(rows - rows.mean(axis=-2, keepdims=True), -1, 0)
  scale = np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
  return 100 * _ratio((x * y).sum(axis=-1), scale)


def _spearman(rows: np.ndarray) -> np.ndarray:
  import scipy.stats

  return _pearson(scipy.stats.rankdata(rows, axis=-2))


def _bleu(sums: np.ndarray) -> np.ndarray:
  """Returns BLEU of matches and totals of 1- to 4-grams, and lengths of predictions and references."""
  import sacrebleu

  def one(row: np.ndarray) -> float:
    counts = [int(count) for count in row]
    score = sacrebleu.BLEU.compute_bleu(counts[:4], counts[4:8], *counts[8:], smooth_method="exp")
    return min(score.score, 100.0)

  return np.array([one(row) for row in sums.reshape(-1, sums.shape[-1])]).reshape(sums.shape[:-1])


VALUES: dict[str, Value] = {
  "mean": Value(_mean),
  "quotient": Value(_quotient, is_percentage=False),
  "perplexity": Value(_perplexity, is_percentage=False),
  "f1": Value(_f1),
  "macro_f1": Value(_macro_f1),
  "occurring_f1": Value(_occurring_f1),
  "matthews": Value(_matthews),
  "bleu": Value(_bleu),
  "pearson": Value(_pearson, of_rows=True),
  "spearman": Value(_spearman, of_rows=True),
}


# ---- Rows of each metric ---------------------------------------------------------------------------------------------

Rows = Callable[[Callable, Sequence[Any], Sequence[Any]], dict[str, Statistics]]


def _mean_of_items(function: Callable, targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, Statistics]:
  """Returns the metrics of each item by itself, for metrics that are means over items."""
  scores = [function([target], [prediction]) for target, prediction in zip(targets, predictions, strict=True)]
  return {
    name: Statistics("mean", np.array([[item_scores[name] / 100, 1.0] for item_scores in scores])) for name in scores[0]
  }


def _mean_of_units(function: Callable, targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, Statistics]:
  """Returns the metrics of each unit in the row of its first item, for metrics that are means over units."""
  members: dict[str, list[int]] = {}
  for index, unit in enumerate(units(targets)):
    members.setdefault(unit, []).append(index)
  columns: dict[str, np.ndarray] = {}
  for indices in members.values():
    if function is task_metrics.axg_parity and len(indices) < 2:
      continue  # an incomplete pair does not count
    scores = function([targets[index] for index in indices], [predictions[index] for index in indices])
    for name, score in scores.items():
      columns.setdefault(name, np.zeros((len(targets), 2)))[indices[0]] = (score / 100, 1.0)
  return {name: Statistics("mean", rows) for name, rows in columns.items()}


def _counts(targets: Sequence[Any], predictions: Sequence[Any], classes: Sequence[Any]) -> np.ndarray:
  """Returns whether each item is right, predicted and gold, for each class: [items, 3 x classes]."""
  gold = np.array([[target == label for label in classes] for target in targets], float)
  predicted = np.array(
    [
      [not postprocessors.is_unparseable(prediction) and prediction == label for label in classes]
      for prediction in predictions
    ],
    float,
  )
  return np.stack([gold * predicted, predicted, gold], axis=-1).reshape(len(targets), -1)


def _binary(function: Callable, targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, Statistics]:
  name = "f1"
  if function is task_metrics.multirc_f1a:
    name = "f1a"
    targets, predictions = ([value["value"] for value in values] for values in (targets, predictions))
  predictions = task_metrics.wrong_where_unparseable(targets, predictions)
  return {name: Statistics("f1", _counts(targets, predictions, [1]))}


def _correlation_of_classes(function, targets: Sequence[int], predictions: Sequence[int]) -> dict[str, Statistics]:
  predictions = task_metrics.wrong_where_unparseable(targets, predictions)
  pairs = zip(targets, predictions, strict=True)
  rows = [
    [target and value, not target and value, target and not value, not target and not value] for target, value in pairs
  ]
  return {"matthews_correlation": Statistics("matthews", np.array(rows, float))}


def _multiclass(function, targets: Sequence[int], predictions: Sequence[int]) -> dict[str, Statistics]:
  return {"f1": Statistics("macro_f1", _counts(targets, predictions, range(function.num_classes)))}


def _occurring(function, targets: Sequence[int], predictions: Sequence[int]) -> dict[str, Statistics]:
  known = [prediction for prediction in predictions if not postprocessors.is_unparseable(prediction)]
  classes = range(max([*targets, *known]) + 1)  # from 0, so that two checkpoints have the same first classes
  return {"f1": Statistics("occurring_f1", _counts(targets, predictions, classes))}


def _entities(function, targets: Sequence[Sequence[str]], predictions: Sequence[Any]) -> dict[str, Statistics]:
  from seqeval.metrics import sequence_labeling

  rows = []
  for tags, prediction in zip(targets, predictions, strict=True):
    shown = [*(prediction or ()), *["O"] * len(tags)][: len(tags)]
    gold, predicted = (set(sequence_labeling.get_entities(list(sequence))) for sequence in (tags, shown))
    rows.append([len(gold & predicted), len(predicted), len(gold)])
  return {"f1": Statistics("f1", np.array(rows, float))}


def _words(function, targets: Sequence[Sequence[str]], predictions: Sequence[Any]) -> dict[str, Statistics]:
  pairs = zip(targets, predictions, strict=True)
  rows = [[len(tags) * function([tags], [prediction])["word_accuracy"] / 100, len(tags)] for tags, prediction in pairs]
  return {"word_accuracy": Statistics("mean", np.array(rows, float))}


def _numbers(function, targets: Sequence[float], predictions: Sequence[float | None]) -> dict[str, Statistics]:
  value = function.__name__
  rows = np.array([*zip(targets, task_metrics.farthest_where_unparseable(targets, predictions), strict=True)], float)
  return {f"{value}_correlation": Statistics(value, rows)}


def _ngrams(function, targets: Sequence[str], predictions: Sequence[str]) -> dict[str, Statistics]:
  import sacrebleu

  # Counts of n-grams do not depend on the effective order, without which sacreBLEU warns at each sentence.
  scorer = sacrebleu.BLEU(tokenize="intl", smooth_method="exp", lowercase=False, force=True, effective_order=True)
  scores = [
    scorer.sentence_score(prediction, [target]) for target, prediction in zip(targets, predictions, strict=True)
  ]
  rows = [[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores]
  return {"bleu": Statistics("bleu", np.array(rows, float))}


_ROWS: dict[Callable, Rows] = {
  **dict.fromkeys(
    (task_metrics.accuracy, task_metrics.squad, task_metrics.squad_v2, task_metrics.rouge), _mean_of_items
  ),
  **dict.fromkeys((task_metrics.multirc_exact_match, task_metrics.record, task_metrics.axg_parity), _mean_of_units),
  **dict.fromkeys((task_metrics.f1, task_metrics.multirc_f1a), _binary),
  **dict.fromkeys((task_metrics.pearson, task_metrics.spearman), _numbers),
  task_metrics.matthews: _correlation_of_classes,
  task_metrics.occurring_class_f1: _occurring,
  task_metrics.entity_f1: _entities,
  task_metrics.word_accuracy: _words,
  task_metrics.bleu: _ngrams,
}


def of_metric(function: Callable, targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, Statistics]:
  """Returns the statistics of each metric that a function computes; {} for a user-defined metric.

  Args:
    function: of `task_metrics`.
    targets, predictions: postprocessed values, at least one.
  """
  rows = _multiclass if hasattr(function, "num_classes") else _ROWS.get(function)
  return rows(function, targets, predictions) if rows else {}


def units(targets: Sequence[Any]) -> list[str]:
  """Returns the unit of each item: its question or pair, or the item itself; different units are independent."""
  names = []
  for index, target in enumerate(targets):
    group = target.get("group", target.get("pair")) if isinstance(target, Mapping) else None
    names.append(str(index) if group is None else f"group {group}")
  return names
