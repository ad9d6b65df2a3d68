"""The report of several runs: their curves over the same axis, how their configs differ, where they came to."""

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

# What the curves may be drawn over -> what the axis says.
AXES = {"steps": "step", "tokens": "tokens", "flops": "FLOPs", "time": "seconds in steps"}
# Points of a curve and number of pictures, until a page is small enough.
_ROOM = ((curves.POINTS, 18), (200, 18), (80, 12), (30, 6))
_SMOOTHED = ("train/loss", "train/tokens_per_second", "train/grad_norm")
# The first pictures, and those that show how a run goes and not what it learns.
_FIRST = ("eval/loss", "train/loss", "eval/accuracy")
_LAST = ("train/tokens_per_second", "train/grad_norm", "train/learning_rate")


def named(run_list: Sequence[runs.RecordedRun]) -> dict[str, runs.RecordedRun]:
  """Runs by names that tell them apart: their folders', with those above where two are alike.

  Raises:
    UserError: a run is given twice.
  """
  paths = [str(run.path) for run in run_list]
  if twice := next((path for path in paths if paths.count(path) > 1), None):
    raise UserError(f"{twice}: is given twice; a run is compared with others")
  parts = [path.split("/") for path in paths]
  for deep in range(1, max(map(len, parts)) + 1):
    names = ["/".join(path_parts[-deep:]) for path_parts in parts]
    if len(set(names)) == len(names):
      break
  return dict(zip(names, run_list, strict=True))


def html(run_list: Sequence[runs.RecordedRun], *, over: str) -> str:
  """The page, of at most `page.MOST_BYTES`: where it would be larger, with fewer points and fewer curves.

  Args:
    run_list: the runs, two at least.
    over: one of `AXES`.

  Raises:
    UserError: a run is given twice, or none has what the axis is of.
  """
  runs_by_name = named(run_list)
  axes = {name: axis(run, over) for name, run in runs_by_name.items()}
  without_axis = [name for name, values in axes.items() if not values]
  if len(without_axis) == len(runs_by_name):
    raise UserError(f"--over {over}: {_WHY[over]}; give --over steps")
  for points, most in _ROOM:
    text = _html(runs_by_name, axes, without_axis, over, points, most)
    if len(text.encode()) < page.MOST_BYTES:
      break
  return text


_WHY = {
  "steps": "none of the runs has measured anything",
  "tokens": "none of the runs has train/tokens in its metrics",
  "flops": "none of the runs has noted what a step costs (older runs, and those of several stages, have not)",
  "time": "none of the runs has train/step_seconds in its metrics",
}


def axis(run: runs.RecordedRun, over: str) -> dict[int, float]:
  """Step -> where it lies on an axis, of steps at which that is known; nothing where the run does not say."""
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
  """Values over an axis, of which some places are known: between them it is a line that begins at 0."""
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
    remarks.append("These runs have no metric in common: what each has is shown by itself.")
  if (number := len(_metrics(runs_by_name))) > most:
    remarks.append(f"{most} of {number} metrics are drawn; the table has all.")
  if without_axis:
    remarks.append(f"Not drawn over {AXES[over]}, which they have not noted: {', '.join(without_axis)}.")
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
    page.section("How their configs differ", _configs(runs_by_name)),
    page.section("On what they ran", _starts(runs_by_name)),
    single.footer(),
  ]
  return page.whole(title, parts)


def _row(name: str, run: runs.RecordedRun) -> Sequence[Any]:
  written = "" if run.written is None else f"{run.written:%Y-%m-%d %H:%M}"
  return name, run.config_name or run.preset, run.state, run.step, run.steps, written


def _shared(runs_by_name: Mapping[str, runs.RecordedRun]) -> set[str]:
  """Metrics that all have."""
  return set.intersection(*(set(run.metrics) for run in runs_by_name.values()))


def _metrics(runs_by_name: Mapping[str, runs.RecordedRun]) -> list[str]:
  """What is compared: first the losses, then what was measured of held-out text, then how fast it went."""
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
  looks = curves.looks(list(runs_by_name))  # a run has one colour in all pictures
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
    return page.paragraph("They are the same.")
  return page.table("Keys that differ", ("key", *runs_by_name), rows)


def _starts(runs_by_name: Mapping[str, runs.RecordedRun]) -> str:
  rows = []
  for name, run in runs_by_name.items():
    starts = [note for note in run.history if note["event"] == history.START]
    rows += [(name, single.when(x["time"]), x["step"], x["t2t"], x["devices"], x["command"]) for x in starts[-1:]]
  return page.table(
    "The last start of each", ("run", "start (UTC)", "from step", "versions", "devices", "command"), rows
  )


def shared_folder(run_list: Sequence[runs.RecordedRun]) -> str:
  """The folder that all lie in, where a comparison is written by default; "" where they share none."""
  paths = [str(run.path) for run in run_list]
  if any("://" in path for path in paths):
    above = {path.rpartition("/")[0] for path in paths}
    return above.pop() if len(above) == 1 else ""
  folder = os.path.commonpath([os.path.dirname(path) for path in paths])
  return "" if folder == os.sep else folder
