"""The report of one run."""

from collections.abc import Iterator, Mapping, Sequence
import datetime
import json
from typing import Any

from t2t.losses import Baseline
from t2t.reports import confusion, curves, history, page, samples
from t2t.reports import run as runs
from t2t.runtime import amounts, versions

UNIT = "nats per target token"
NOT_TASKS = ("loss", "accuracy", "z_loss")  # what else than tasks is measured of held-out text
# Title, with its unit -> the metrics that it shows, by what they begin with or are.
_OTHERS = {
  "Accuracy": ("train/accuracy", "eval/accuracy"),
  "Tokens a second": ("train/tokens_per_second",),
  "Share of the time spent waiting for input": ("train/input_wait_average",),
  "Norm of the gradient": ("train/grad_norm",),
  "Learning rate": ("train/learning_rate",),
  "Norm of the parameters": ("train/param_norm",),
  "Share of the peak FLOPs (MFU)": ("train/mfu",),
  "Updates left out": ("train/skipped",),
  "Memory of a device, the most so far, bytes": ("train/device_memory_peak",),
  "Memory of the host, bytes": ("train/host_memory",),
}
_EXACT = (
  "Learning rate",
  "Updates left out",
  "Memory of a device, the most so far, bytes",
  "Memory of the host, bytes",
)
_HIDDEN = {
  "train/loss",
  "eval/loss",
  "train/tokens",
  "train/step_seconds",
  "train/steps_per_second",
  "train/input_wait",
}
# Points of a curve and number of pictures, until a page is small enough.
_ROOM = ((curves.POINTS, 40), (200, 40), (80, 24), (30, 12))
_MOST_TASKS, _MOST_OTHERS = 12, 8  # pictures; the tables have all


def html(run: runs.RecordedRun) -> str:
  """The page, of at most `page.MOST_BYTES`: where it would be larger, with fewer points and fewer curves."""
  for points, most in _ROOM:
    text = _html(run, points, most)
    if len(text.encode()) < page.MOST_BYTES:
      break
  return text


def _html(run: runs.RecordedRun, points: int, most: int) -> str:
  title = headline(run)
  pictures = curves_of(run, points)[:most]
  parts = [
    f"<header><h1>{page.escaped(title)}</h1>",
    page.pairs(_facts(run)),
    *(page.paragraph(text) for text in _remarks(run)),
    "</header>",
    page.section("Curves", page.pictures(pictures)),
    page.section("Held-out loss by source", _by_source(run)),
    page.section("Tasks", _tasks(run), *confusion.parts(run.classes)),
    page.section("Examples, held out", *samples.examples(run, most=points // 25)),
    page.section("What the model is given", *samples.first_rows(run)),
    page.section("Config", _config(run)),
    page.section("History", _history(run), _starts(run)),
    footer(),
  ]
  return page.whole(title, parts)


def headline(run: runs.RecordedRun) -> str:
  """'tiny: step 40 of 40, held-out loss 5.449'."""
  of = f" of {run.steps:,}" if run.steps else ""
  loss = run.last("eval/loss")
  loss_text = "no held-out loss yet" if loss is None else f"held-out loss {loss:.4f}"
  name = run.config_name if run.config_name in ("", run.name) else f" ({run.config_name})"
  return f"{run.name}{name if name != run.name else ''}: step {run.step:,}{of}, {loss_text}"


def footer() -> str:
  """When the page was written, and by what."""
  now = datetime.datetime.now(datetime.UTC)
  return f"<footer>{page.paragraph(f'Written {now:%Y-%m-%d %H:%M} UTC by {versions.line()}.', soft=True)}</footer>"


def _facts(run: runs.RecordedRun) -> Iterator[tuple[str, Any]]:
  yield "state", {runs.HELD: "runs, or was killed", runs.RUNS: "runs"}.get(run.state, run.state)
  yield "config", run.config_name
  loss, unit = run.last("eval/loss"), unit_of(run)
  if loss is not None:
    best = min(run.metrics["eval/loss"].items(), key=lambda pair: pair[1])
    least = f"; lowest {best[1]:.4f} at step {best[0]:,}" if best[1] < loss else ""
    yield "held-out loss", f"{loss:.4f} {unit}{least}"
  for baseline in baselines(run):
    yield baseline.name, f"{baseline.loss:.4f} ({baseline.knows})"
  train = run.last("train/loss")
  yield "training loss", None if train is None else f"{train:.4f}"
  tokens, seconds = total(run, "train/tokens"), total(run, "train/step_seconds")
  yield "tokens", f"about {amounts.compact_count(tokens)}" if tokens else None
  yield "time in steps", f"about {amounts.duration(seconds)}" if seconds else None
  waited = run.last("train/input_wait_average")
  yield "waiting for input", None if waited is None else f"{waited:.1%} of the time, of the last steps"
  peak = run.last("train/device_memory_peak")
  yield "memory", None if peak is None else f"{amounts.nbytes(peak)} of a device at most"
  host_memory = run.metrics.get("train/host_memory", {}).values()
  yield "memory", f"{amounts.nbytes(max(host_memory))} of the host at most" if host_memory else None
  yield "checkpoints", ", ".join(map(str, run.checkpoints))
  yield "folder", str(run.path)


def _remarks(run: runs.RecordedRun) -> Iterator[str]:
  if not run.metrics:
    yield f"Nothing has been measured yet: {runs.METRICS} has no rows, or is not there."
  yield from _notes(run)
  if run.damaged:
    yield f"{run.damaged} lines of {runs.METRICS} are damaged, and left out."
  if not run.config:
    yield f"There is no {runs.CONFIG} that can be read."


def _notes(run: runs.RecordedRun) -> list[str]:
  """Returns the notes of the run since its last fresh start."""
  notes: list[str] = []
  for note in run.history:
    if note["event"] == history.START and not note["step"]:
      notes = []
    if note["event"] == history.NOTE:
      notes.append(note["why"][:1].upper() + note["why"][1:])
  return list(dict.fromkeys(notes))


def unit_of(run: runs.RecordedRun) -> str:
  """What its loss is in."""
  unit = next((note["unit"] for note in reversed(run.history) if isinstance(note.get("unit"), str)), UNIT)
  return unit or UNIT


def baselines(run: runs.RecordedRun) -> list[Baseline]:
  """Losses of who has learned nothing, as the last end has noted them."""
  noted = next((note["baselines"] for note in reversed(run.history) if note.get("baselines")), [])
  try:
    return [Baseline(str(name), float(loss), str(knows)) for name, loss, knows in noted]
  except (TypeError, ValueError):
    return []


def total(run: runs.RecordedRun, name: str) -> float:
  """About the sum over all steps of what is measured of some."""
  return next(reversed(running(run, name).values()), 0.0)


def running(run: runs.RecordedRun, name: str) -> dict[int, float]:
  """Step -> about the sum over the steps up to it of what is measured of some: each stands for those before it."""
  sums, sum_, before = {}, 0.0, 0
  for step, value in run.metrics.get(name, {}).items():
    sum_ += value * (step - before)
    sums[step], before = sum_, step
  return sums


def _of(run: runs.RecordedRun, prefix: str) -> dict[str, dict[float, float]]:
  """Metrics that begin so, by the rest of their names."""
  by_name = {name.removeprefix(prefix): curves.finite(x) for name, x in run.metrics.items() if name.startswith(prefix)}
  return {name: values for name, values in by_name.items() if values}


def by_source(run: runs.RecordedRun) -> dict[str, dict[float, float]]:
  """Source -> step -> held-out loss."""
  return _of(run, "eval/loss/")


def by_task(run: runs.RecordedRun) -> dict[str, dict[str, dict[float, float]]]:
  """Task -> metric -> step -> value."""
  tasks: dict[str, dict[str, dict[float, float]]] = {}
  for name, values in _of(run, "eval/").items():
    task, slash, metric = name.rpartition("/")
    if slash and not name.startswith("loss/"):
      tasks.setdefault(task, {})[metric] = values
  for metrics in tasks.values():
    if len(metrics) == 2:  # the score is the mean of the others, and here it is the other
      metrics.pop("score", None)
  return tasks


def curves_of(run: runs.RecordedRun, points: int) -> list[curves.Picture]:
  """All that has been measured, the loss first."""
  pictures = []
  line = lambda title, series, noisy=False: curves.lines(title, series, run=run.stages, points=points, noisy=noisy)
  train, held_out = (curves.finite(run.metrics.get(name, {})) for name in ("train/loss", "eval/loss"))
  if train or held_out:
    kinds = {"baselines": baselines(run), "unit": unit_of(run), "run": run.stages}
    pictures.append(curves.loss(train, held_out, **kinds, points=points))
  if sources := by_source(run):
    pictures.append(line("Held-out loss by source", sources))
  tasks = list(by_task(run).items())
  pictures += [line(f"Task {task}", metrics) for task, metrics in tasks[:_MOST_TASKS]]
  if epochs := _of(run, "train/epoch/"):
    pictures.append(line("Passes over each source", epochs))
  if distances := _of(run, "train/distance/"):
    pictures.append(line("Distance to where parameters began", distances))
  shown = set(_HIDDEN)
  for title, names in _OTHERS.items():
    series = {_PLACES[name.partition("/")[0]]: curves.finite(run.metrics.get(name, {})) for name in names}
    shown |= set(names)
    if series := {name: values for name, values in series.items() if values}:
      pictures.append(line(title, series, noisy=title not in _EXACT))
  other_metrics = {name.partition("/")[2]: 0 for name in run.metrics if name not in shown and not _is_grouped(name)}
  for metric in list(other_metrics)[:_MOST_OTHERS]:
    series = {
      series_name: curves.finite(run.metrics.get(f"{prefix}/{metric}", {})) for prefix, series_name in _PLACES.items()
    }
    if series := {name: values for name, values in series.items() if values}:
      pictures.append(line(metric, series, noisy=True))
  return pictures


def _is_grouped(name: str) -> bool:
  """Whether a metric is in a picture of several, of sources or of a task."""
  prefix, _, metric = name.partition("/")
  return prefix not in _PLACES or ("/" in metric and (prefix == "eval" or metric.startswith(("epoch/", "distance/"))))


_PLACES = {"train": "training", "eval": "held-out text"}


def _by_source(run: runs.RecordedRun) -> str:
  rows = [(name, *_last_and_best(values)) for name, values in by_source(run).items()]
  return page.table("Held-out loss of each source", ("source", "last", "lowest", "at step"), rows)


def _last_and_best(values: Mapping[float, float], *, best=min) -> tuple[float, float, int]:
  step = best(values, key=values.get)
  return next(reversed(values.values())), values[step], int(step)


def _tasks(run: runs.RecordedRun) -> str:
  rows = [
    (task, metric, *_last_and_best(values, best=max))
    for task, metrics in by_task(run).items()
    for metric, values in metrics.items()
  ]
  return page.table("Metrics of each task", ("task", "metric", "last", "highest", "at step"), rows)


def value_of(value: Any) -> str:
  """A config's value as it is typed."""
  return "-" if value is None else value if isinstance(value, str) and value else json.dumps(value)


def _config(run: runs.RecordedRun) -> str:
  changes = run.changes()
  if not changes:
    return page.paragraph(f"As {run.preset} has it.") if run.preset else ""
  rows = [(f"config.{key}", value_of(here), value_of(there)) for key, (here, there) in changes.items()]
  preset = run.preset if run.preset == run.config_name else f"{run.preset}, the nearest of those that come with t2t"
  return page.table(f"What differs from {preset}", ("key", "this run", run.preset), rows)


def _history(run: runs.RecordedRun) -> str:
  rows: list[tuple[str, str, int | None]] = []
  for number, note in enumerate(note for note in run.history):
    if note["event"] == history.START:
      event = "started" if number == 0 and not note["step"] else "started again" if note["step"] == 0 else "resumed"
    else:
      event = note["why"]
    rows.append((when(note["time"]), event, note["step"]))
  for begin, end in run.turns:
    rows.append(("", f"went back to step {begin}, and passed over {end - begin} batches", end))
  rows += [("", f"a batch went wrong, and is in bad_batches/{name}", None) for name in run.bad_batches]
  skipped = run.last("train/skipped")
  if skipped:
    rows.append(("", f"{skipped:.0f} updates were left out so far", None))
  rows += [("", "saved, and kept", step) for step in run.checkpoints]
  return page.table("What happened", ("time (UTC)", "what", "step"), rows)


def when(time: str) -> str:
  """An ISO time as people read it."""
  return time.partition("+")[0].replace("T", " ")


def _starts(run: runs.RecordedRun) -> str:
  starts = [note for note in run.history if note["event"] == history.START]
  rows: Sequence = [
    (when(start["time"]), start["t2t"], start["devices"], str(start.get("hosts", "")), start["command"])
    for start in starts
  ]
  return page.table("On what it ran", ("start (UTC)", "versions", "devices", "hosts", "command"), rows)
