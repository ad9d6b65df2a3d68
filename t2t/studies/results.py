"""Rows of a study, and their statistics: means over seeds, differences paired by seed, order of arms."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import math
from typing import Any

from etils import epath
import numpy as np

from t2t.reports import seed_scores
from t2t.runtime import amounts

FINISHED, DIVERGED = "finished", "diverged"


@dataclasses.dataclass(frozen=True)
class StudyRow:
  """Result of an arm with a seed; a row of study.jsonl.

  study, scale: of the run.
  definition: digest of claim, rule and columns.
  arm, seed: of the run.
  status: `FINISHED`, or `DIVERGED` with `error`.
  figures: column -> value; None if the arm has none.
  curves: name -> step -> value.
  stages: name, digest, config, arguments, steps, tokens, FLOPs and seconds of each stage.
  setting: options of the command that the figures depend on.
  t2t: versions and commit.
  devices: number and kind.
  ended: UTC.
  """

  study: str
  scale: str
  definition: str
  arm: str
  seed: int
  status: str
  figures: Mapping[str, float | None]
  curves: Mapping[str, Mapping[int, float]]
  stages: Sequence[Mapping[str, Any]]
  setting: Mapping[str, Any]
  t2t: str
  devices: str
  ended: str
  error: str = ""


def parsed(row: Any) -> StudyRow:
  """Returns the row of a JSON value.

  Raises:
    ValueError, KeyError, TypeError: it is no row.
  """
  if row["status"] not in (FINISHED, DIVERGED) or not isinstance(row["figures"], dict):
    raise ValueError(f"status={row['status']!r} is not a state of a row")
  curves = {name: {int(step): float(y) for step, y in curve.items()} for name, curve in row["curves"].items()}
  return StudyRow(**{**row, "curves": curves, "seed": int(row["seed"])})


def as_json(row: StudyRow) -> dict[str, Any]:
  """Returns the JSON value of a row; a figure that is not finite is None."""
  finite = {name: None if x is None or not math.isfinite(x) else x for name, x in row.figures.items()}
  return dataclasses.asdict(dataclasses.replace(row, figures=finite))


def read(path: epath.Path) -> list[StudyRow]:
  """Returns the rows of a file; none if the file does not exist.

  Raises:
    UserError: a line is no row.
  """
  return seed_scores.read_rows(path, parsed, kind="study")


def write(path: epath.Path, rows: Iterable[StudyRow]) -> None:
  """Writes one JSON line per row, atomically."""
  seed_scores.write_rows(path, map(as_json, rows))


def arms(rows: Sequence[StudyRow]) -> list[str]:
  """Returns the names of the arms in the order of the rows."""
  return list(dict.fromkeys(row.arm for row in rows))


def by_seed(rows: Sequence[StudyRow], arm: str, column: str) -> dict[int, float]:
  """Returns seed -> value of an arm, without runs that diverged."""
  values = {row.seed: row.figures.get(column) for row in rows if row.arm == arm and row.status == FINISHED}
  return {seed: float(x) for seed, x in sorted(values.items()) if x is not None}


# ---- Statistics ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PairedDifference:
  """Difference of two arms over the seeds that both have.

  seeds: their number.
  mean: of the differences.
  margin: half of the 95 % interval by Student's t; NaN for fewer than two seeds.
  p: two-sided, of a mean of 0; NaN for fewer than two seeds.
  """

  seeds: int
  mean: float
  margin: float
  p: float


def difference(rows: Sequence[StudyRow], arm: str, other: str, column: str) -> PairedDifference:
  """Returns the paired difference `arm` minus `other`.

  In:  60, 70, 80 and 55, 66, 74 with seeds 0, 1, 2
  Out: PairedDifference(seeds=3, mean=5.0, margin=2.484, p=0.0131)
  """
  first, second = by_seed(rows, arm, column), by_seed(rows, other, column)
  deltas = [first[seed] - second[seed] for seed in first if seed in second]
  if not deltas:
    return PairedDifference(0, math.nan, math.nan, math.nan)
  mean, margin = seed_scores.mean_and_margin(deltas)
  return PairedDifference(len(deltas), mean, margin, _p_value(deltas))


def _p_value(deltas: Sequence[float]) -> float:
  if len(deltas) < 2:
    return math.nan
  from scipy import special

  mean, error = float(np.mean(deltas)), float(np.std(deltas, ddof=1)) / math.sqrt(len(deltas))
  if error == 0.0:
    return 1.0 if mean == 0.0 else 0.0
  return 2.0 * float(special.stdtr(len(deltas) - 1, -abs(mean) / error))


def order_p(rows: Sequence[StudyRow], ascending: Sequence[str], column: str) -> tuple[int, float, float]:
  """Returns number of seeds, p value of the order by Page's L, and p value of the reversed order.

  Args:
    rows: of the study.
    ascending: arms, the one with the predicted lowest value first.
    column: of the values.

  Source: Page 1963; each seed ranks the arms.
  """
  values = [by_seed(rows, arm, column) for arm in ascending]
  seeds = sorted(set.intersection(*map(set, values)))
  if len(seeds) < 2 or len(ascending) < 3:  # scipy's test needs two seeds and three arms
    return len(seeds), math.nan, math.nan
  from scipy import stats

  data = np.array([[of_arm[seed] for of_arm in values] for seed in seeds])
  p_values = [float(stats.page_trend_test(matrix).pvalue) for matrix in (data, data[:, ::-1])]
  return len(seeds), p_values[0], p_values[1]


# ---- Table -----------------------------------------------------------------------------------------------------------

_WIDTH = 80


def cell(rows: Sequence[StudyRow], arm: str, column: str) -> str:
  """Returns the mean of an arm with its margin: "71.3 ±2.1"; "-" if it has none, or "diverged"."""
  of_arm = [row for row in rows if row.arm == arm]
  values = list(by_seed(rows, arm, column).values())
  if any(row.status == DIVERGED for row in of_arm):
    return DIVERGED
  if not values:
    return "-"
  mean, margin = seed_scores.mean_and_margin(values)
  return number(mean) if math.isnan(margin) else f"{number(mean)} ±{number(margin)}"


def number(value: float) -> str:
  """Formats three significant digits, or four digits of a thousand: 71.3, 0.0412, 1,234, 36.0k, 2.10e12."""
  if abs(value) < 1_000:
    return f"{value:#.3g}".rstrip(".")
  if abs(value) < 10_000:
    return f"{value:,.0f}"
  return amounts.compact_count(value) if 0 < value < 1e9 else f"{value:.2e}".replace("e+", "e")


def table(rows: Sequence[StudyRow], columns: Sequence[str]) -> list[str]:
  """Returns the arms as lines of at most 80 columns: mean and half of the 95 % interval; wide tables have parts."""
  names = arms(rows)
  first = max([len("arm"), *map(len, names)]) + 2
  first = min(first, 30)
  cells = {column: [cell(rows, arm, column) for arm in names] for column in columns}
  lines: list[str] = []
  part: list[str] = []
  widths = {column: max(map(len, [column, *texts])) + 2 for column, texts in cells.items()}
  parts: list[list[str]] = []
  for column in columns:
    if part and first + sum(widths[name] for name in [*part, column]) > _WIDTH:
      parts.append(part)
      part = []
    part.append(column)
  parts.append(part)
  for part in parts:
    lines += [""] if lines else []
    lines.append(f"{'arm':<{first}}" + "".join(f"{column:>{widths[column]}}" for column in part))
    for index, arm in enumerate(names):
      shown = arm if len(arm) < first else f"{arm[: first - 4]}... "
      lines.append(f"{shown:<{first}}" + "".join(f"{cells[column][index]:>{widths[column]}}" for column in part))
  seeds = sorted({row.seed for row in rows})
  lines += ["", f"mean over {len(seeds)} seed{'s' * (len(seeds) != 1)}" + " ± half of the 95 % interval (Student's t)"]
  return [line.rstrip()[:_WIDTH] for line in lines]
