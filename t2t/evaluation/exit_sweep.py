"""Scores of early exit against the layers used: one pass with all exits, on whose logits each rule is replayed."""

import dataclasses
from typing import Any

import numpy as np

from t2t import UserError
from t2t.evaluation import evaluate, results
from t2t.inference import early_exit
from t2t.param_tree import Params


@dataclasses.dataclass(frozen=True)
class SweepPoint:
  """Result of one rule on one task.

  rule: layer (all rows leave after it), entropy, patience, or majority (always the most frequent class).
  value: layer, threshold in nats, or number of layers; 0 for the majority.
  layers: mean number of layers of a row; 0 for the majority.
  score: mean of the task's metrics.
  metrics: name -> value.
  """

  task: str
  rule: str
  value: float
  layers: float
  score: float
  metrics: dict[str, float]


def measure(evaluation: evaluate.Evaluation, params: Params, *, points: int) -> list[SweepPoint]:
  """Returns the result of every layer, every patience, some entropy thresholds, and the majority, for each task.

  Args:
    evaluation: of a model with exits.
    params: of the model.
    points: entropy thresholds, see `thresholds`.

  Raises:
    UserError: the model does not predict with heads, or the split has no labels.
  """
  measured = []
  for task, logits in evaluation.exit_logits(params).items():
    num_layers = logits.shape[1]
    for layer in range(1, num_layers + 1):
      measured.append(_point(evaluation, task, "layer", layer, float(layer), logits[:, layer - 1]))
    rules = [("patience", p, early_exit.ExitRule(patience=p)) for p in range(1, num_layers)]
    if logits.shape[-1] > 1:
      rules += [("entropy", e, early_exit.ExitRule(entropy=e)) for e in thresholds(logits[:, :-1], points)]
    for name, value, rule in rules:
      layers, rows = early_exit.replayed(rule, logits)
      measured.append(_point(evaluation, task, name, value, float(np.mean(layers)), rows))
    if logits.shape[-1] > 1:
      measured.append(_of_result(evaluation.of_majority(task), "majority", 0, 0.0))
  return measured


def thresholds(logits: np.ndarray, points: int) -> list[float]:
  """Returns entropy thresholds at equal distances in the sorted entropies of all rows and inner layers.

  Each lies between two entropies and has the fewest digits, so that the printed number selects the same rows.

  Args:
    logits: of the inner layers, float32 [rows, layers, classes].
    points: most thresholds; entropies that differ by less than 1e-6 nats are not distinguished.
  """
  log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
  entropies = -np.sum(np.exp(log_p) * log_p, axis=-1).ravel()
  entropies = np.round(entropies.astype(np.float64), 6)
  steps = np.unique(entropies)
  quantiles = np.quantile(entropies, (np.arange(points) + 0.5) / points, method="lower")
  lower = {int(np.searchsorted(steps, x)) for x in quantiles}
  return [_between(steps[i], steps[i + 1]) for i in sorted(lower) if i + 1 < len(steps)]


def _between(low: float, high: float) -> float:
  """Returns a number with few digits above `low` and below `high`, near their middle."""
  middle = (low + high) / 2
  rounded = (float(f"{middle:.{digits}g}") for digits in range(3, 17))
  return next((x for x in rounded if low < x < high), middle)


def _point(
  evaluation: evaluate.Evaluation, task: Any, rule: str, value: float, layers: float, rows: np.ndarray
) -> SweepPoint:
  return _of_result(evaluation.of_logits(task, [row[None] for row in rows]), rule, value, layers)


def _of_result(result: results.Result, rule: str, value: float, layers: float) -> SweepPoint:
  if result.score is None:
    raise UserError(
      f"{result.task}: the split {result.split} has no labels. Give a labelled one, config.data.eval_split."
    )
  return SweepPoint(result.task, rule, value, layers, result.score, dict(result.metrics))
