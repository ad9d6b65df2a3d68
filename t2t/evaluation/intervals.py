"""95 % intervals of metrics: exact for shares of independent items, by bootstrap for others."""

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any

import numpy as np

from t2t.evaluation import item_statistics
from t2t.evaluation.item_statistics import Statistics

LEVEL = 0.95
RESAMPLES = 1_000
SEED = 0
# Metrics that are shares of right items: binomial if the items are independent.
SHARES = ("accuracy", "exact_match", "gender_parity", "precision_at_10")
_MOST_NUMBERS = 4_000_000  # numbers of resampled statistics in memory at one time
_MOST_CALLS_ITEMS = 5_000_000  # items over all calls of a user-defined metric


@dataclasses.dataclass(frozen=True)
class Interval:
  """95 % interval of a metric.

  low, high: its ends, in the unit of the metric.
  method: "exact" (Clopper-Pearson) or "bootstrap" (percentiles of resampled units).
  units: number of independent units: items, or groups such as the questions of MultiRC.
  """

  low: float
  high: float
  method: str
  units: int

  def to_dict(self) -> dict[str, Any]:
    """Returns the record for results.json; a bootstrap with the settings that repeat it."""
    settings = {"resamples": RESAMPLES, "seed": SEED} if self.method == "bootstrap" else {}
    return {"level": LEVEL, **dataclasses.asdict(self), **settings}


def exact(right: float, number: int) -> Interval:
  """Returns the interval of Clopper and Pearson of a share in percent; a fraction of an item widens it to whole items.

  In:  right 8, number 16
  Out: low 24.65, high 75.35

  Args:
    right: number of right items; tied items count a fraction.
    number: number of items, at least one.
  """
  import scipy.stats

  of = lambda count: scipy.stats.binomtest(count, number).proportion_ci(LEVEL, method="exact")
  # Sums of fractions are inexact.
  low, high = of(math.floor(right + 1e-9)).low, of(math.ceil(right - 1e-9)).high
  return Interval(100 * float(low), 100 * float(high), "exact", number)


def of_metric(name: str, statistics: Statistics, units: Sequence[str]) -> Interval | None:
  """Returns the interval of a metric, or None if a bootstrap has fewer than two units.

  Args:
    name: of the metric.
    statistics: of its items.
    units: unit of each item, see `item_statistics.units`.
  """
  is_grouped = len(set(units)) < len(units)
  if name in SHARES and not is_grouped and statistics.value == "mean" and np.all(statistics.rows[:, 1] == 1):
    return exact(float(statistics.rows[:, 0].sum()), len(units))
  value, rows, number = resampled(statistics, units)
  return _bootstrap(lambda index: value(rows[index]), number, rows[0].size if len(rows) else 1)


def resampled(statistics: Statistics, units: Sequence[str]) -> tuple[Callable, np.ndarray, int]:
  """Returns a function of the rows of sampled units, the rows of all units, and their number.

  The rows of a unit's items are summed. A metric of rows, such as a correlation, takes the items as units.
  """
  row = item_statistics.VALUES[statistics.value]
  if row.of_rows:
    return row.function, statistics.rows, len(statistics.rows)
  index = np.unique(np.asarray(units), return_inverse=True)[1]
  sums = np.zeros((int(index.max(initial=-1)) + 1, statistics.rows.shape[1]))
  np.add.at(sums, index, statistics.rows)
  return (lambda rows: row.function(rows.sum(axis=-2))), sums, len(sums)


def of_function(function: Callable, name: str, targets: Sequence[Any], predictions: Sequence[Any]) -> Interval | None:
  """Returns the interval of a user-defined metric, which is called for each resample; None if it fails for one.

  Args:
    function: (targets, predictions) -> name -> value.
    name: of the metric.
    targets, predictions: of the items, which count as independent.
  """

  def value(index: np.ndarray) -> np.ndarray:
    samples = index.reshape(-1, index.shape[-1])
    values = [function([targets[i] for i in row], [predictions[i] for i in row])[name] for row in samples]
    return np.array(values, float).reshape(index.shape[:-1])

  number = len(targets)
  resamples = max(100, min(RESAMPLES, _MOST_CALLS_ITEMS // max(number, 1)))
  try:
    return _bootstrap(value, number, 1, resamples=resamples)
  except Exception:  # the metric may not be defined for repeated items
    return None


def distribution(value: Callable, number: int, size: int, *, resamples: int = RESAMPLES) -> np.ndarray:
  """Returns the values of a statistic on resampled units, float64 [resamples].

  Args:
    value: indices of sampled units [..., units] -> values [...].
    number: number of units, at least two.
    size: numbers that `value` holds for each unit.
    resamples: number of resamples; the seed is fixed.
  """
  return _scipy(value, number, size, resamples).bootstrap_distribution


def _scipy(value: Callable, number: int, size: int, resamples: int):
  import scipy.stats

  return scipy.stats.bootstrap(
    (np.arange(number),),
    lambda index, axis: value(index),
    n_resamples=resamples,
    batch=max(1, _MOST_NUMBERS // (number * size)),
    vectorized=True,
    axis=-1,
    confidence_level=LEVEL,
    method="percentile",
    random_state=np.random.default_rng(SEED),
  )


def _bootstrap(value: Callable, number: int, size: int, *, resamples: int = RESAMPLES) -> Interval | None:
  if number < 2:
    return None
  ends = _scipy(value, number, size, resamples).confidence_interval
  if not (math.isfinite(ends.low) and math.isfinite(ends.high)):
    return None
  return Interval(float(ends.low), float(ends.high), "bootstrap", number)
