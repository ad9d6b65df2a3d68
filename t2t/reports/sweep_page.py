"""The page of a sweep: table, picture, and a link to the report of each run."""

from collections.abc import Iterator, Sequence
import math
import urllib.parse

from etils import epath

from t2t import UserError
from t2t.reports import page, seed_scores, single, sweep_picture, sweep_table, written
from t2t.reports.sweep_table import PointSummary, SweepRow

# Runs that ended without an error, so that they have a report.
_WITH_REPORT = (sweep_table.FINISHED, sweep_table.HALVED)


def write(folder: epath.Path, rows: Sequence[SweepRow]) -> epath.Path:
  """Writes report.html of a sweep; returns the path.

  Args:
    folder: of the sweep.
    rows: of all runs, at least one.

  Raises:
    OSError: it cannot be written.
  """
  written.write(folder / written.NAME, html(folder.name, rows))
  return folder / written.NAME


def read(folder: epath.Path) -> list[SweepRow]:
  """Returns the rows of a sweep; [] if a folder has none.

  Raises:
    UserError: a line of sweep.jsonl is no row, or there is no line.
  """
  path = folder / sweep_table.ROWS
  rows = sweep_table.read(path)
  if not rows and path.exists():
    raise UserError(f"{path}: no run of this sweep has finished. Give a folder with results.")
  return rows


def html(name: str, rows: Sequence[SweepRow]) -> str:
  """Returns the page of a sweep.

  Args:
    name: of the sweep.
    rows: of all runs, at least one.
  """
  lower = sweep_table.lower_is_better(rows)
  points = sweep_table.summaries(rows)
  best = sweep_table.best_of(points, lower_is_better=lower)
  count = f"{len(points)} point{'s' * (len(points) != 1)}, {len(rows)} run{'s' * (len(rows) != 1)}"
  facts = [
    ("metric", f"{rows[-1].metric}, {'lower' if lower else 'higher'} is better"),
    ("best point", None if best is None else _described(best)),
    ("mean", None if best is None else f"{best.mean:.4g}"),
    ("95 % interval", None if best is None else seed_scores.interval_text(best.mean, best.margin)),
  ]
  remarks = [] if best is not None else ["No point has finished all its runs with a finite score."]
  parts = [
    f"<header><h1>{page.escaped(f'{name}: {count}')}</h1>",
    page.pairs(facts),
    *map(page.paragraph, remarks),
    "</header>",
    page.section("Points", page.pictures([sweep_picture.picture(rows, lower_is_better=lower)]), _points(points)),
    page.section("Runs", _runs(rows)),
    single.footer(),
  ]
  return page.whole(name, parts)


def _described(point: PointSummary) -> str:
  return ", ".join(f"{key}={sweep_table.shown(value)}" for key, value in point.values.items())


def _points(points: Sequence[PointSummary]) -> str:
  short = sweep_table.short_keys(list(points[0].values))
  rows = []
  for point in points:
    interval = "" if math.isnan(point.mean) else seed_scores.interval_text(point.mean, point.margin)
    broken = f"{point.broken} of {point.runs} {point.status}" if point.broken else point.status
    mean = None if math.isnan(point.mean) else point.mean
    rows.append([*_values(point.values, short), point.seeds, point.step, mean, interval, broken])
  columns = [*short.values(), "seeds", "step", "mean", "95 % interval", "state"]
  return page.table("Means over the seeds of each point", columns, rows)


def _values(values, short) -> Iterator[str]:
  for key in short:
    yield sweep_table.shown(values[key]) if key in values else ""


def _runs(rows: Sequence[SweepRow]) -> str:
  lines = []
  for row in rows:
    place = f"{row.point}/seed-{row.seed}"
    address = f"{urllib.parse.quote(place)}/{written.NAME}"
    name = page.PageLink(place, address) if row.status in _WITH_REPORT else place
    lines.append([name, row.score if math.isfinite(row.score) else None, row.step, row.status, row.error])
  return page.table("Each run, with its report", ["run", rows[-1].metric, "step", "state", "error"], lines)
