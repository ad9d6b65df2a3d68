"""Report that compares several runs: curves over a common axis, config differences and final metrics."""

from collections.abc import Iterator, Mapping, Sequence
import os
from typing import Any

import numpy as np

from t2t import UserError
from t2t.configuration.loading import flat
from t2t.reports import curves, history, page, single
from t2t.reports import run as runs
from t2t.runtime import amounts
from t2t.training import loss_curve

# Axis of the curves -> its label.
AXES = {"steps": "step", "tokens": "tokens", "flops": "FLOPs", "time": "seconds in steps"}
# Points per curve and number of pictures, reduced until the page is small enough.
_ROOM = ((curves.POINTS, 18), (200, 18), (80, 12), (30, 6))
_SMOOTHED = ("train/loss", "train/tokens_per_second", "train/grad_norm")
# The first pictures, and pictures of speed and optimization, which come last.
_FIRST = ("eval/loss", "train/loss", "eval/accuracy")
_LAST = ("train/tokens_per_second", "train/grad_norm", "train/learning_rate")


def named(run_list: Sequence[runs.RecordedRun]) -> dict[str, runs.RecordedRun]:
  """Returns runs by unique names: their folders', with parent folders where names are equal.

  Raises:
    UserError: a run is given twice.
  """
  paths = [str(run.path) for run in run_list]
  if twice := next((path for path in paths if paths.count(path) > 1), None):
    raise UserError(f"{twice} is given twice; give each run once")
  parts = [path.split("/") for path in paths]
  for deep in range(1, max(map(len, parts)) + 1):
    names = ["/".join(path_parts[-deep:]) for path_parts in parts]
    if len(set(names)) == len(names):
      break
  return dict(zip(names, run_list, strict=True))


def html(run_list: Sequence[runs.RecordedRun], *, over: str) -> str:
  """Returns the page, with fewer points and curves if it would exceed `page.MOST_BYTES`.

  Args:
    run_list: the runs, two at least.
    over: one of `AXES`.

  Raises:
    UserError: a run is given twice, or no run has values for the axis.
  """
  runs_by_name = named(run_list)
  axes = {name: axis(run, over) for name, run in runs_by_name.items()}
  without_axis = [name for name, values in axes.items() if not values]
  if len(without_axis) == len(runs_by_name):
    remedy = "give runs with metrics" if over == "steps" else "give --over steps"
    raise UserError(f"--over {over}: {_WHY[over]}; {remedy}")
  for points, most in _ROOM:
    text = _html(runs_by_name, axes, without_axis, over, points, most)
    if len(text.encode()) < page.MOST_BYTES:
      break
  return text


_WHY = {
  "steps": "none of the runs has metrics",
  "tokens": "none of the runs has train/tokens in its metrics",
  "flops": "none of the runs has recorded the FLOPs of a step (older runs and runs of several stages lack the FLOPs)",
  "time": "none of the runs has train/step_seconds in its metrics",
}


def axis(run: runs.RecordedRun, over: str) -> dict[int, float]:
  """Returns step -> position on an axis, for steps with a known position; {} if the run has none."""
  if over == "tokens":
    return single.running(run, "train/tokens")
  if over == "time":
    return single.running(run, "train/step_seconds")
  steps = sorted({step for values in run.metrics.values() for step in values})
  if over == "steps":
    return {step: step for step in steps}
  costs = [note["flops_per_step"] for note in run.history if note.get("flops_per_step")]
  return {step: step * costs[-1] for step in steps} if costs and isinstance(costs[-1], int | float) else {}


def _moved(values: Mapping[float, float], axis_values: Mapping[int, float]) -> dict[float, float]:
  """Maps steps to axis positions, with linear interpolation from 0."""
  steps, places = [0, *axis_values], [0.0, *axis_values.values()]
  return dict(zip(np.interp(list(values), steps, places).tolist(), values.values(), strict=True))


def _html(
  runs_by_name: Mapping[str, runs.RecordedRun],
  axes: Mapping[str, Mapping[int, float]],
  without_axis: Sequence[str],
  over: str,
  points: int,
  most: int,
) -> str:
  title = f"{len(runs_by_name)} runs: {', '.join(runs_by_name)}"
  shared = _shared(runs_by_name)
  remarks = []
  if not shared:
    remarks.append("These runs have no metric in common: each has its own curves.")
  if (number := len(_metrics(runs_by_name))) > most:
    remarks.append(f"{most} of {number} metrics are drawn; the table has all.")
  if without_axis:
    remarks.append(f"Runs without recorded {AXES[over]} are not drawn: {', '.join(without_axis)}.")
  drawn = {name: run for name, run in runs_by_name.items() if name not in without_axis}
  parts = [
    f"<header><h1>{page.escaped(title if len(title) < 120 else f'{len(runs_by_name)} runs')}</h1>",
    page.table(
      "The runs",
      ("run", "config", "state", "step", "of", "last written (UTC)"),
      map(_row, runs_by_name, runs_by_name.values()),
    ),
    *map(page.paragraph, remarks),
    "</header>",
    page.section("Final numbers", _numbers(runs_by_name)),
    page.section(f"Curves over {AXES[over]}", page.pictures(list(_pictures(drawn, axes, over, points, most)))),
    page.section("Config differences", _configs(runs_by_name)),
    page.section("Hardware and versions", _starts(runs_by_name)),
    single.footer(),
  ]
  return page.whole(title, parts)


def _row(name: str, run: runs.RecordedRun) -> Sequence[Any]:
  written = "" if run.written is None else f"{run.written:%Y-%m-%d %H:%M}"
  return name, run.config_name or run.preset, run.state, run.step, run.steps, written


def _shared(runs_by_name: Mapping[str, runs.RecordedRun]) -> set[str]:
  """Returns the metrics that all runs have."""
  return set.intersection(*(set(run.metrics) for run in runs_by_name.values()))


def _metrics(runs_by_name: Mapping[str, runs.RecordedRun]) -> list[str]:
  """Returns the metrics to compare: losses, then metrics of held-out text, then speed."""
  names = {name for run in runs_by_name.values() for name in run.metrics}
  measured = sorted(name for name in names if name.startswith("eval/") and name not in _FIRST)
  return [name for name in (*_FIRST, *measured, *_LAST) if name in names]


def _pictures(
  runs_by_name: Mapping[str, runs.RecordedRun],
  axes: Mapping[str, Mapping[int, float]],
  over: str,
  points: int,
  most: int,
) -> Iterator[curves.Picture]:
  looks = curves.looks(list(runs_by_name))  # one colour per run in all pictures
  for metric in _metrics(runs_by_name)[:most]:
    series = {}
    for name, run in runs_by_name.items():
      values = curves.finite(run.metrics.get(metric, {}))
      if metric in _SMOOTHED:
        values = dict(zip(values, loss_curve.smooth(list(values.values())).tolist(), strict=True)) if values else {}
      if values:
        series[name] = _moved(values, axes[name])
    if series:
      smoothed = ", smoothed" if metric in _SMOOTHED else ""
      yield curves.lines(f"{metric}{smoothed}", series, across=AXES[over], points=points, line_styles=looks)


def _numbers(runs_by_name: Mapping[str, runs.RecordedRun]) -> str:
  last = {name: [run.last(name) for run in runs_by_name.values()] for name in _metrics(runs_by_name)}
  rows = [(name, *("-" if x is None else float(x) for x in values)) for name, values in last.items()]
  for name, text in (("train/tokens", "tokens, about"), ("train/step_seconds", "time in steps, about")):
    shown = amounts.compact_count if name == "train/tokens" else amounts.duration
    totals = [single.total(run, name) for run in runs_by_name.values()]
    if any(totals):
      rows.append((text, *(shown(x) if x else "-" for x in totals)))
  return page.table("The last value of each metric", ("metric", *runs_by_name), rows, right=True)


def _configs(runs_by_name: Mapping[str, runs.RecordedRun]) -> str:
  saved = [flat(run.config) for run in runs_by_name.values()]
  keys = sorted({key for keys in saved for key in keys})
  rows = []
  for key in keys:
    values = [keys.get(key) for keys in saved]
    if any(value != values[0] for value in values):
      rows.append((f"config.{key}", *map(single.value_of, values)))
  if not rows:
    return page.paragraph("The configs are equal.")
  return page.table("Keys that differ", ("key", *runs_by_name), rows)


def _starts(runs_by_name: Mapping[str, runs.RecordedRun]) -> str:
  rows = []
  for name, run in runs_by_name.items():
    starts = [note for note in run.history if note["event"] == history.START]
    rows += [(name, single.when(x["time"]), x["step"], x["t2t"], x["devices"], x["command"]) for x in starts[-1:]]
  return page.table(
    "The last start of each run", ("run", "start (UTC)", "from step", "versions", "devices", "command"), rows
  )


def shared_folder(run_list: Sequence[runs.RecordedRun]) -> str:
  """Returns the common parent folder, the default place of a comparison; "" if there is none."""
  paths = [str(run.path) for run in run_list]
  if any("://" in path for path in paths):
    above = {path.rpartition("/")[0] for path in paths}
    return above.pop() if len(above) == 1 else ""
  folder = os.path.commonpath([os.path.dirname(path) for path in paths])
  return "" if folder == os.sep else folder
