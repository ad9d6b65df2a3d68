"""Results of a sweep: rows of its runs, means of its points over seeds, and the table."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import math
from typing import Any

from etils import epath

from t2t.reports import seed_scores

ROWS = "sweep.jsonl"
# States of a run: trained completely, ended by a rung of the halving, ended by NaN, or by another error.
FINISHED, HALVED, DIVERGED, FAILED = "finished", "halved", "diverged", "failed"
_WIDTH = 80


@dataclasses.dataclass(frozen=True)
class SweepRow:
  """Result of a run; a row of sweep.jsonl.

  point: folder of the point.
  values: key -> value.
  seed: of the run.
  status: `FINISHED`, `HALVED`, `DIVERGED` or `FAILED`.
  metric: name of the score.
  score: of the last evaluation; NaN for a run that diverged or failed.
  step: evaluated step; 0 without an evaluation.
  error: first line of the error of a run that diverged or failed.
  best: "min" or "max" of the metric; "": unknown, because an earlier version wrote the row.
  """

  point: str
  values: Mapping[str, Any]
  seed: int
  status: str
  metric: str
  score: float
  step: int
  error: str = ""
  best: str = ""


@dataclasses.dataclass(frozen=True)
class PointSummary:
  """Mean of a point over its seeds.

  values: key -> value.
  seeds: number of runs with a score.
  mean: of the scores; NaN if a run diverged, or no run has a score.
  margin: half of the 95 % interval of the mean; NaN for fewer than two scores.
  step: the last evaluated step.
  status: the worst of its runs.
  broken: number of runs that diverged or failed.
  runs: number of runs.
  """

  values: Mapping[str, Any]
  seeds: int
  mean: float
  margin: float
  step: int
  status: str
  broken: int
  runs: int


def read(path: epath.Path) -> list[SweepRow]:
  """Returns the rows of sweep.jsonl; none if the file does not exist.

  Raises:
    UserError: a line is no row.
  """
  return seed_scores.read_rows(path, parsed, kind="sweep")


def parsed(row: Any) -> SweepRow:
  """Returns the row of a JSON value; see `as_json`.

  Raises:
    ValueError, KeyError, TypeError: it is no row.
  """
  if not isinstance(row["values"], dict) or row["status"] not in (FINISHED, HALVED, DIVERGED, FAILED):
    raise ValueError(f"values={row['values']!r} must be a mapping, and status={row['status']!r} a state of a run")
  score = math.nan if row["score"] is None else float(row["score"])
  text, step = {name: str(row[name]) for name in ("point", "metric", "error")}, int(row["step"])
  text["best"] = str(row.get("best", ""))
  return SweepRow(values=row["values"], seed=int(row["seed"]), status=row["status"], score=score, step=step, **text)


def as_json(rows: Sequence[SweepRow]) -> list[dict[str, Any]]:
  """Returns the JSON value of each row; a score that is not finite is None."""
  return [dataclasses.asdict(row) | {"score": row.score if math.isfinite(row.score) else None} for row in rows]


def write(path: epath.Path, rows: Sequence[SweepRow]) -> None:
  """Writes one JSON line per row, atomically."""
  seed_scores.write_rows(path, as_json(rows))


def summaries(rows: Sequence[SweepRow]) -> list[PointSummary]:
  """Returns the summary of each point, in the order of the rows."""
  return [_summary(list(group)) for _, group in itertools.groupby(rows, key=lambda row: row.point)]


def _summary(rows: Sequence[SweepRow]) -> PointSummary:
  scores = [row.score for row in rows if math.isfinite(row.score)]
  states = {row.status for row in rows}
  status = next(state for state in (DIVERGED, FAILED, HALVED, FINISHED) if state in states)
  mean, margin = seed_scores.mean_and_margin(scores) if scores else (math.nan, math.nan)
  if status == DIVERGED:
    mean, margin = math.nan, math.nan
  broken = sum(row.status in (DIVERGED, FAILED) for row in rows)
  return PointSummary(
    rows[0].values, len(scores), mean, margin, max(row.step for row in rows), status, broken, len(rows)
  )


def lower_is_better(rows: Sequence[SweepRow]) -> bool:
  """Returns the direction of the metric of some rows."""
  return rows[-1].best == "min" if rows[-1].best else seed_scores.lower_is_better(rows[-1].metric)


def best_of(points: Sequence[PointSummary], *, lower_is_better: bool) -> PointSummary | None:
  """Returns the best point of which every run has finished, the first of equal ones; None without such a point."""
  complete = [point for point in points if point.status == FINISHED and math.isfinite(point.mean)]
  sign = 1.0 if lower_is_better else -1.0
  return min(complete, key=lambda point: sign * point.mean, default=None)


def value_text(value: Any) -> str:
  """Formats a value of a key; the elements of a list are separated by commas."""
  return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def shown(value: Any) -> str:
  """Formats a value for tables and pictures: a float by its shortest exact text.

  In:  100000000.0, 0.1, 1e-05, 1.0
  Out: "1e8", "0.1", "1e-5", "1"
  """
  if not isinstance(value, float):
    return value_text(value)
  mantissa, e, exponent = f"{value:g}".partition("e")
  text = f"{mantissa}e{int(exponent)}" if e else mantissa
  return text if float(text) == value else repr(value)


def is_number(value: Any) -> bool:
  """Returns True for integers and floats, not for bools."""
  return isinstance(value, int | float) and not isinstance(value, bool)


def short_keys(keys: Sequence[str]) -> dict[str, str]:
  """Returns key -> the part after the last dot, or the whole key if two keys end alike."""
  last = [key.rpartition(".")[2] for key in keys]
  return {key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)}


# ---- Table -----------------------------------------------------------------------------------------------------------


def table(rows: Sequence[SweepRow], *, lower_is_better: bool) -> list[str]:
  """Returns the points as lines of at most 80 columns; a star marks the best point."""
  points = summaries(rows)
  if not points:
    return ["no run has finished"]
  best, keys = best_of(points, lower_is_better=lower_is_better), list(points[0].values)
  with_step = len({point.step for point in points if point.status in (FINISHED, HALVED)}) > 1
  cells = [[shown(point.values[key]) for key in keys] for point in points]
  heads = [short_keys(keys)[key] for key in keys]
  widths = [max(map(len, column)) + 2 for column in zip(heads, *cells, strict=True)]
  numbers = lambda point: _numbers(point, with_step=with_step)
  title = f"{'seeds':>7}{'step' if with_step else '':>{9 if with_step else 0}}{'mean':>11}   95 % interval"
  metric = f"{rows[0].metric}, {'lower' if lower_is_better else 'higher'} is better"
  mark = lambda point: "* " if point is best else "  "
  if 2 + sum(widths) + max(len(title), *(len(numbers(point)) for point in points)) <= _WIDTH:
    line = lambda texts: "".join(f"{text:>{width}}" for text, width in zip(texts, widths, strict=True))
    lines = [f"  {line(heads)}{title}"]
    lines += [f"{mark(point)}{line(texts)}{numbers(point)}" for point, texts in zip(points, cells, strict=True)]
  else:
    lines = [f"  {'':10}{title}"]
    for point, texts in zip(points, cells, strict=True):
      named = (f"{mark(point)}{head}={text}" for head, text in zip(heads, texts, strict=True))
      lines += [text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..." for text in named]
      lines.append(f"  {'':10}{numbers(point)}")
  lines += ["", f"metric: {metric}"[:_WIDTH]]
  if any(point.status == HALVED for point in points):
    lines.append("points with fewer steps were ended by the halving")
  lines.append("* the best point" if best is not None else "no point has finished all its runs with a finite score")
  return [line.rstrip() for line in lines]


def _numbers(point: PointSummary, *, with_step: bool) -> str:
  step = f"{point.step:>9,}" if with_step else ""
  mean = point.status if math.isnan(point.mean) else f"{point.mean:.4g}"
  interval = "" if math.isnan(point.mean) else seed_scores.interval_text(point.mean, point.margin)
  broken = f"{point.broken} of {point.runs} {point.status}" if point.broken else ""
  return f"{point.seeds:>7}{step}{mean:>11}   {', '.join(filter(None, (interval, broken)))}"
