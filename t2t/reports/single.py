"""The report of one run."""

from collections.abc import Iterator, Mapping, Sequence
import datetime
import json
from typing import Any

from t2t.losses import Baseline
from t2t.reports import confusion, curves, goodput, history, page, profile, samples
from t2t.reports import run as runs
from t2t.runtime import amounts, versions

UNIT = "nats per target token"
NOT_TASKS = ("loss", "accuracy", "z_loss")  # metrics of held-out text that are not tasks
# Title with its unit -> the metrics of the picture, by name or prefix.
_OTHERS = {
  "Accuracy": ("train/accuracy", "eval/accuracy"),
  "Tokens per second": ("train/tokens_per_second",),
  "Fraction of time waiting for input": ("train/input_wait_average",),
  "Gradient norm": ("train/grad_norm",),
  "Learning rate": ("train/learning_rate",),
  "Parameter norm": ("train/param_norm",),
  "Fraction of peak FLOPs (MFU)": ("train/mfu",),
  "Skipped updates": ("train/skipped",),
  "Peak device memory, bytes": ("train/device_memory_peak",),
  "Host memory, bytes": ("train/host_memory",),
}
# Metric of a loss -> title; the metric of a head or of a side has its name before it: "table_soft_targets".
_TITLES = {
  # Distillation (`losses.teacher_student`).
  "agreement": "Agreement with the teacher",
  "soft_targets": "Soft targets (T² KL from the teacher)",
  "hidden_states": "Hidden states, difference from the teacher's",
  "hidden_means": "Means of hidden states, difference from the teacher's",
  "hidden_variances": "Variances of hidden states, difference from the teacher's",
  "embeddings": "Embeddings, difference from the teacher's",
  "attention": "Attention, difference from the teacher's",
  "relations": "Relations, difference from the teacher's",
  "cosine": "Cosine distance of hidden states from the teacher's",
  "sparsity": "Fraction of zeros in pruned parameters",
  "z_loss": "z-loss (part of the loss of the data)",
  "replaced": "Fraction of replaced tokens",
  "mlm_loss": "Loss of masked tokens",
  "lm_loss": "Loss of next tokens",
  "lm_accuracy": "Accuracy of next tokens",
  "causal_loss": "Loss of causal rows",
  "causal_accuracy": "Accuracy of causal rows",
  "masked_loss": "Loss of masked rows",
  "masked_accuracy": "Accuracy of masked rows",
}
_EXACT = (
  "Learning rate",
  "Skipped updates",
  "Peak device memory, bytes",
  "Host memory, bytes",
)
_HIDDEN = {
  "train/loss",
  "eval/loss",
  "train/tokens",
  "train/step_seconds",
  "train/steps_per_second",
  "train/input_wait",
}
# Points per curve and number of pictures, reduced until the page is small enough.
_ROOM = ((curves.POINTS, 40), (200, 40), (80, 24), (30, 12))
_MOST_TASKS, _MOST_OTHERS = 12, 8  # pictures; the tables have all


def html(run: runs.RecordedRun) -> str:
  """Returns the page, with fewer points and curves if it would exceed `page.MOST_BYTES`."""
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
    page.section("Held-out examples", *samples.examples(run, most=points // 25)),
    page.section("First training rows", *samples.first_rows(run)),
    page.section("Goodput", *goodput.parts(run.goodput)),
    page.section("Profile", *profile.parts(run.traces, str(run.path))),
    page.section("Config", _config(run)),
    page.section("History", _history(run), _starts(run)),
    footer(),
  ]
  return page.whole(title, parts)


def headline(run: runs.RecordedRun) -> str:
  """Returns a title such as "tiny: step 40 of 40, held-out loss 5.449"."""
  of = f" of {run.steps:,}" if run.steps else ""
  loss = run.last("eval/loss")
  loss_text = "no held-out loss yet" if loss is None else f"held-out loss {loss:.4f}"
  name = run.config_name if run.config_name in ("", run.name) else f" ({run.config_name})"
  return f"{run.name}{name if name != run.name else ''}: step {run.step:,}{of}, {loss_text}"


def footer() -> str:
  """Returns the time of writing and the versions."""
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
  yield "waiting for input", None if waited is None else f"{waited:.1%} of the time, in the last steps"
  peak = run.last("train/device_memory_peak")
  yield "memory", None if peak is None else f"{amounts.nbytes(peak)} of a device at most"
  host_memory = run.metrics.get("train/host_memory", {}).values()
  yield "memory", f"{amounts.nbytes(max(host_memory))} of the host at most" if host_memory else None
  yield "checkpoints", ", ".join(map(str, run.checkpoints))
  yield "folder", str(run.path)


def _remarks(run: runs.RecordedRun) -> Iterator[str]:
  if not run.metrics:
    yield f"No metrics yet: {runs.METRICS} is empty or missing."
  yield from _notes(run)
  if run.damaged:
    yield f"{run.damaged} lines of {runs.METRICS} are damaged and left out."
  if not run.config:
    yield f"{runs.CONFIG} is missing or cannot be read."


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
  """Returns the unit of the loss."""
  unit = next((note["unit"] for note in reversed(run.history) if isinstance(note.get("unit"), str)), UNIT)
  return unit or UNIT


def baselines(run: runs.RecordedRun) -> list[Baseline]:
  """Returns the losses of models that have learned nothing, from the last end of the run, and of n-gram models."""
  noted = next((note["baselines"] for note in reversed(run.history) if note.get("baselines")), [])
  try:
    return [*(Baseline(str(name), float(loss), str(knows)) for name, loss, knows in noted), *run.ngrams]
  except (TypeError, ValueError):
    return list(run.ngrams)


def total(run: runs.RecordedRun, name: str) -> float:
  """Estimates the sum of a metric over all steps from the logged steps."""
  return next(reversed(running(run, name).values()), 0.0)


def running(run: runs.RecordedRun, name: str) -> dict[int, float]:
  """Returns step -> estimated sum of a metric up to it; a logged value counts for the steps since the previous one."""
  sums, sum_, before = {}, 0.0, 0
  for step, value in run.metrics.get(name, {}).items():
    sum_ += value * (step - before)
    sums[step], before = sum_, step
  return sums


def _of(run: runs.RecordedRun, prefix: str) -> dict[str, dict[float, float]]:
  """Returns metrics with a prefix, by the rest of their names."""
  by_name = {name.removeprefix(prefix): curves.finite(x) for name, x in run.metrics.items() if name.startswith(prefix)}
  return {name: values for name, values in by_name.items() if values}


def by_source(run: runs.RecordedRun) -> dict[str, dict[float, float]]:
  """Returns source -> step -> held-out loss."""
  return _of(run, "eval/loss/")


def by_task(run: runs.RecordedRun) -> dict[str, dict[str, dict[float, float]]]:
  """Returns task -> metric -> step -> value."""
  tasks: dict[str, dict[str, dict[float, float]]] = {}
  for name, values in _of(run, "eval/").items():
    task, slash, metric = name.rpartition("/")
    if slash and not name.startswith("loss/"):
      tasks.setdefault(task, {})[metric] = values
  for metrics in tasks.values():
    if len(metrics) == 2:  # with a single other metric, the score repeats it
      metrics.pop("score", None)
  return tasks


def curves_of(run: runs.RecordedRun, points: int) -> list[curves.Picture]:
  """Returns step -> estimated sum of a metric up to it; logged values also count for the steps before them."""
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
    pictures.append(line("Epochs of each source", epochs))
  if distances := _of(run, "train/distance/"):
    pictures.append(line("Distance from initial parameters", distances))
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
      pictures.append(line(title_of(metric), series, noisy=True))
  return pictures


def title_of(metric: str) -> str:
  """Returns the title of a metric's curve.

  In:  "table_soft_targets", "table_exit_2_accuracy"
  Out: "Soft targets (T² KL from the teacher): table", "Table exit 2 accuracy"
  """
  for name in sorted(_TITLES, key=len, reverse=True):
    if metric == name or metric.endswith(f"_{name}"):
      owner = metric.removesuffix(name).strip("_")
      return f"{_TITLES[name]}: {owner}" if owner else _TITLES[name]
  words = metric.replace("_", " ")
  return words[:1].upper() + words[1:]


def _is_grouped(name: str) -> bool:
  """Returns True for a metric that is part of a picture of sources or of a task."""
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
  """Formats a config value as on the command line."""
  return "-" if value is None else value if isinstance(value, str) and value else json.dumps(value)


def _config(run: runs.RecordedRun) -> str:
  changes = run.changes()
  if not changes:
    return page.paragraph(f"As in {run.preset}.") if run.preset else ""
  rows = [(f"config.{key}", value_of(here), value_of(there)) for key, (here, there) in changes.items()]
  preset = run.preset if run.preset == run.config_name else f"{run.preset}, the nearest shipped config"
  return page.table(f"Differences from {preset}", ("key", "this run", run.preset), rows)


def _history(run: runs.RecordedRun) -> str:
  rows: list[tuple[str, str, int | None]] = []
  for number, note in enumerate(note for note in run.history):
    if note["event"] == history.START:
      event = "started" if number == 0 and not note["step"] else "started again" if note["step"] == 0 else "resumed"
    else:
      event = note["why"]
    rows.append((when(note["time"]), event, note["step"]))
  for begin, end in run.turns:
    rows.append(("", f"rolled back to step {begin} and skipped {end - begin} batches", end))
  rows += [("", f"a bad batch was saved to bad_batches/{name}", None) for name in run.bad_batches]
  skipped = run.last("train/skipped")
  if skipped:
    rows.append(("", f"{skipped:.0f} updates were skipped so far", None))
  rows += [("", "checkpoint saved and kept", step) for step in run.checkpoints]
  return page.table("What happened", ("time (UTC)", "what", "step"), rows)


def when(time: str) -> str:
  """Formats an ISO time for people."""
  return time.partition("+")[0].replace("T", " ")


def _starts(run: runs.RecordedRun) -> str:
  starts = [note for note in run.history if note["event"] == history.START]
  rows: Sequence = [
    (when(start["time"]), start["t2t"], start["devices"], str(start.get("hosts", "")), start["command"])
    for start in starts
  ]
  return page.table("Hardware and versions", ("start (UTC)", "versions", "devices", "hosts", "command"), rows)
