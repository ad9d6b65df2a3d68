"""Scores of runs that differ in their seed: score of a run, mean with its interval, rows of a file, picture."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import io
import json
import math
from typing import TYPE_CHECKING, Any, TypeVar

from etils import epath
import numpy as np

from t2t import UserError, did_you_mean
from t2t.storage import encoding, gcs
from t2t.training import metric_writers

if TYPE_CHECKING:
  from matplotlib.figure import Figure

T = TypeVar("T")

_PROBABILITY = 0.95
_LOWER_IS_BETTER = ("loss", "perplexity", "bits_per_byte")


@dataclasses.dataclass(frozen=True)
class RunScore:
  """Score of a run.

  metric: its name.
  score: value at `step`.
  step: evaluated step.
  """

  metric: str
  score: float
  step: int


def lower_is_better(metric: str) -> bool:
  """Returns True for losses, also of a source ("loss/en"), perplexity and bits per byte."""
  return metric.split("/")[-1] in _LOWER_IS_BETTER or metric.startswith("loss/")


def evaluations(workdir: epath.Path) -> dict[str, dict[int, float]]:
  """Returns the name after "eval/" -> step -> value in the metrics.jsonl of a run; {} without the file."""
  rows = metric_writers.read_all_metrics(workdir / "metrics.jsonl")
  return {name.removeprefix("eval/"): values for name, values in rows.items() if name.startswith("eval/")}


def of_run(workdir: epath.Path, *, metric: str, best: bool = False) -> RunScore:
  """Returns the score of a finished run.

  Args:
    workdir: of the run.
    metric: name after "eval/" in metrics.jsonl; "": the mean of all tasks' scores, or the held-out loss.
    best: whether to take the best evaluation instead of the last one.

  Raises:
    UserError: no evaluation has the metric.
  """
  measured = evaluations(workdir)
  scores = [name for name in sorted(measured) if name.endswith("/score")]
  name = metric or (scores[0] if len(scores) == 1 else "score" if scores else "loss")
  if metric:
    check_metric(metric, measured)
  values = _mean([measured[task] for task in scores]) if name == "score" else dict(measured.get(name, {}))
  if not values:
    raise UserError(f"{workdir / 'metrics.jsonl'}: no evaluation has the metric {name}. Give --metric NAME.")
  key = (lambda step: -values[step]) if lower_is_better(name) else values.__getitem__
  step = max(values, key=key) if best else max(values)
  return RunScore(name, float(values[step]), int(step))


def check_metric(metric: str, measured: Iterable[str]) -> None:
  """Checks that evaluations have a metric.

  Raises:
    UserError: with the metrics and the nearest name.
  """
  names = sorted(measured)
  if metric not in names:
    raise UserError(
      f"--metric {metric}: the runs have no such metric{did_you_mean(metric, names) or '.'} Give one of "
      f"{', '.join(names)}."
    )


def _mean(of_tasks: Sequence[Mapping[int, float]]) -> dict[int, float]:
  """Returns the mean over tasks at the steps that all of them have."""
  steps = set.intersection(*map(set, of_tasks))
  return {step: math.fsum(values[step] for values in of_tasks) / len(of_tasks) for step in steps}


def mean_and_margin(scores: Sequence[float]) -> tuple[float, float]:
  """Returns the mean, and half of its 95 % interval by Student's t; the margin of one score is NaN.

  In:  60, 70 and 80
  Out: 70.0, 24.84
  """
  from scipy import special

  number = len(scores)
  if number < 2:
    return float(np.mean(scores)), math.nan
  quantile = float(special.stdtrit(number - 1, (1 + _PROBABILITY) / 2))
  return float(np.mean(scores)), quantile * float(np.std(scores, ddof=1)) / math.sqrt(number)


def interval_text(mean: float, margin: float) -> str:
  """Formats the 95 % interval as "low to high"."""
  return "one seed: none" if math.isnan(margin) else f"{mean - margin:.4g} to {mean + margin:.4g}"


def read_rows(path: epath.Path, parse: Callable[[Any], T], *, kind: str) -> list[T]:
  """Returns the parsed rows of a file of JSON lines; none if the file does not exist.

  Args:
    path: of the file.
    parse: JSON value -> row; raises ValueError, KeyError or TypeError for an invalid value.
    kind: of the file, for the message: "learning curve".

  Raises:
    UserError: a line is no such row.
  """
  if not path.exists():
    return []
  rows = []
  for number, line in enumerate(encoding.lines(path.read_text()), start=1):
    try:
      rows.append(parse(json.loads(line)))
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(f"{path}:{number}: {line[:60]!r} is no row of a {kind}. Remove this line.") from error
  return rows


def write_rows(path: epath.Path, rows: Iterable[Mapping[str, Any]]) -> None:
  """Writes one JSON line per row, atomically."""
  gcs.write(path, "".join(json.dumps(row) + "\n" for row in rows))


def png(figure: "Figure") -> bytes:
  """Returns a figure as PNG."""
  content = io.BytesIO()
  figure.savefig(content, format="png")
  return content.getvalue()
