"""Evaluation results: answers and metrics, and the table, files and leaderboard zips written from them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import json
import sys
import time
from typing import Any

from etils import epath
import jax
import numpy as np
import rich.box
import rich.console
import rich.progress
import rich.table

from t2t.evaluation import benchmarks, classification_report, item_statistics
from t2t.evaluation import intervals as intervals_lib
from t2t.inference import option_scores
from t2t.storage import gcs

_SECONDS = 10.0  # between progress lines, if standard error is not a terminal


@dataclasses.dataclass(frozen=True)
class Answer:
  """Example of a task, with the model's answer.

  example: fields of the task, NumPy values and bytes.
  text: generated or chosen text; "" if the task only scores.
  value: result of the task's postprocess function.
  target: gold value; None if the split has no labels.
  score: log-probability of the answer, or of the target if the task only scores.
  parseable: whether the text is a valid value of the task; invalid texts count as wrong.
  tied: values of all answers with the same best score, including this one; empty without a tie.
  has_gold: whether the example has a gold answer; metrics leave out examples without one.
  """

  example: Mapping[str, Any]
  text: str
  value: Any
  target: Any
  score: float
  parseable: bool = True
  tied: Sequence[Any] = ()
  has_gold: bool = True


@dataclasses.dataclass(frozen=True)
class Result:
  """Results of one task on one split.

  metrics: name -> value; empty if the split has no labels.
  percentages: names of the metrics known to be percentages; user-defined metrics are not.
  classes: classification report; None: the task has no classes, or the split has no labels.
  rule: settings of config.eval that the scores of answers depend on, such as normalize, with their defaults.
  intervals: metric -> its 95 % interval.
  statistics: metric -> statistics of the answers with a gold answer.
  units: independent unit of each answer with a gold answer, see `item_statistics.units`.
  details: further fields of its record in results.json.
  base: name of the task without the names of a template and of a draw of shots; "": `task`.
  """

  task: str
  split: str
  metrics: Mapping[str, float]
  answers: Sequence[Answer]
  percentages: Collection[str] = ()
  classes: classification_report.ClassificationReport | None = None
  rule: Mapping[str, str] = dataclasses.field(default_factory=dict)
  intervals: Mapping[str, intervals_lib.Interval] = dataclasses.field(default_factory=dict)
  statistics: Mapping[str, item_statistics.Statistics] = dataclasses.field(default_factory=dict)
  units: Sequence[str] = ()
  details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  base: str = ""

  @property
  def of_task(self) -> str:
    """Name of the task without the names of a template and of a draw of shots."""
    return self.base or self.task

  @property
  def n(self) -> int:
    """Number of answers that the metrics count."""
    return sum(answer.has_gold for answer in self.answers)

  @property
  def tied(self) -> int:
    """Number of tied answers; in a metric each of k tied answers counts 1/k."""
    return sum(bool(answer.tied) for answer in self.answers)

  @property
  def without_gold(self) -> int:
    """Number of answers left out of the metrics because there is no gold answer; 0 if no example has one."""
    return sum(not answer.has_gold for answer in self.answers) if self.metrics else 0

  @property
  def unparseable(self) -> int:
    """Number of answers that are not a valid value of the task."""
    return sum(not answer.parseable for answer in self.answers)

  @property
  def errors(self) -> dict[str, float]:
    """Error statistics of a task with numeric gold answers, over numeric answers; {} for other tasks.

    mean_absolute_error and root_mean_square_error are in the units of the labels. root_mean_square_error_of_mean is the
    error of always predicting the mean of the labels.
    """
    gold = [answer for answer in self.answers if answer.has_gold]
    if not (self.metrics and gold) or not all(isinstance(answer.target, float | np.floating) for answer in gold):
      return {}
    parsed = [answer for answer in gold if answer.parseable and isinstance(answer.value, int | float | np.number)]
    differences = np.array([answer.value - answer.target for answer in parsed], np.float64)
    if not parsed or not np.isfinite(differences).all():
      return {}
    return {
      "mean_absolute_error": float(np.mean(np.abs(differences))),
      "root_mean_square_error": float(np.sqrt(np.mean(differences**2))),
      "root_mean_square_error_of_mean": float(np.std([answer.target for answer in parsed], dtype=np.float64)),
    }

  @property
  def score(self) -> float | None:
    """Mean of the metrics, as GLUE and SuperGLUE average them; None without labels."""
    return sum(self.metrics.values()) / len(self.metrics) if self.metrics else None


def _text(value: bytes | str) -> str:
  return value.decode() if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
  """Returns a value that JSON can encode."""
  if isinstance(value, bytes):
    return value.decode()
  if isinstance(value, np.ndarray | np.generic):
    return _plain(value.tolist())
  if isinstance(value, Mapping):
    return {str(key): _plain(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(item) for item in value]
  return value


def _signature(metrics: Mapping[str, float]) -> dict[str, str]:
  """Returns the BLEU signature, without which the score cannot be compared (Post 2018)."""
  from t2t.evaluation import task_metrics

  return {"bleu_signature": task_metrics.bleu_signature()} if "bleu" in metrics else {}


_NOT_WRITTEN = (
  *("inputs", "targets", "inputs_pretokenized", "targets_pretokenized", "options", "answers"),
  # Fields for heads: the same texts as segments, and per-token targets.
  *("head", "parts", "candidates", "classes", "token_types", "texts", "answer_heads", "answer_targets", "has_answer"),
  *("passage", "query", "training", "words", "tags", "asked_words"),
  *("filled", "header", "suffix", "gold", "option_labels"),
  *("inputs_uncut", "targets_uncut"),
  *("context", "answer_texts", "answer_starts", "no_answer", "windows", "window", "context_starts", "context_ends"),
)


def write(
  results: Sequence[Result],
  folder: epath.Path,
  *,
  about: Mapping[str, Any],
  checkpoints: Mapping[str, str] | None = None,
) -> epath.Path:
  """Writes answers to FOLDER/predictions/TASK.SPLIT.jsonl and metrics to FOLDER/results.json; returns its path.

  Earlier results of other tasks and splits in the folder are kept.

  Args:
    results: of `Evaluation.run`.
    folder: local or gs://.
    about: further fields beside the metrics: checkpoint, method, ...
    checkpoints: task -> checkpoint, if they differ.
  """
  (folder / "predictions").mkdir(parents=True, exist_ok=True)
  path = folder / "results.json"
  record = json.loads(path.read_text()) if path.exists() else {}
  for result in results:
    lines, gold = [], -1
    for answer in result.answers:
      fields = {key: _plain(value) for key, value in answer.example.items() if key not in _NOT_WRITTEN}
      fields["inputs"] = _text(answer.example.get("inputs_pretokenized", b""))
      fields |= {"target": _plain(answer.target), "prediction": answer.text, "value": _plain(answer.value)}
      fields |= {"score": answer.score, "parseable": answer.parseable}
      gold += answer.has_gold
      if result.statistics and answer.has_gold:
        fields |= {"unit": result.units[gold], "statistics": _statistics(result, gold)}
      lines.append(json.dumps(fields, ensure_ascii=False))
    gcs.write(folder / "predictions" / f"{result.task}.{result.split}.jsonl", "\n".join(lines) + "\n")
    record[f"{result.task}.{result.split}"] = {
      "metrics": dict(result.metrics),
      "n": result.n,
      "intervals": {name: interval.to_dict() for name, interval in result.intervals.items()},
      **_signature(result.metrics),
      "score": result.score,
      "examples": len(result.answers),
      "unparseable": result.unparseable,
      **({"tied": result.tied} if result.tied else {}),
      **({"without_gold": result.without_gold} if result.without_gold else {}),
      **({"errors": result.errors} if result.errors else {}),
      **({"classes": result.classes.to_dict()} if result.classes is not None else {}),
      **result.rule,
      **result.details,
      **about,
      **({"checkpoint": checkpoints[result.of_task]} if checkpoints else {}),
    }
  for spread in spreads(results):
    record[f"{spread.task}.{spread.split}"] = {
      "metrics": dict(spread.metrics),
      "standard_deviations": dict(spread.deviations),
      "score": spread.score,
      "variants": list(spread.variants),
      **about,
      **({"checkpoint": checkpoints[spread.task]} if checkpoints else {}),
    }
  gcs.write(path, json.dumps(record, indent=2) + "\n")
  return path


@dataclasses.dataclass(frozen=True)
class Spread:
  """Metrics of one task over its templates and draws of shots.

  task, split: of the results. variants: names of the results. metrics: name -> mean over the variants. deviations: name
  -> standard deviation over the variants (n - 1). percentages: see `Result`.
  """

  task: str
  split: str
  variants: Sequence[str]
  metrics: Mapping[str, float]
  deviations: Mapping[str, float]
  percentages: Collection[str] = ()

  @property
  def score(self) -> float:
    """Mean of the metrics."""
    return sum(self.metrics.values()) / len(self.metrics)


def spreads(results: Sequence[Result]) -> list[Spread]:
  """Returns mean and standard deviation of each task with several templates or draws of shots."""
  groups: dict[tuple[str, str], list[Result]] = {}
  for result in results:
    if result.metrics:
      groups.setdefault((result.of_task, result.split), []).append(result)
  return [
    Spread(
      *(task, split, [result.task for result in group]),
      {name: float(np.mean([result.metrics[name] for result in group])) for name in group[0].metrics},
      {name: float(np.std([result.metrics[name] for result in group], ddof=1)) for name in group[0].metrics},
      group[0].percentages,
    )
    for (task, split), group in groups.items()
    if len(group) > 1
  ]


def _statistics(result: Result, number: int) -> dict[str, list[Any]]:
  """Returns the statistics of an answer as JSON: metric -> key of `item_statistics.VALUES` and numbers."""
  row_of = lambda rows: [int(x) if float(x).is_integer() else float(x) for x in rows[number].tolist()]
  return {name: [value, *row_of(rows)] for name, (value, rows) in result.statistics.items()}


def print_table(
  results: Sequence[Result],
  console: rich.console.Console,
  *,
  steps: Mapping[str, int] | None = None,
  has_means: bool = True,
) -> None:
  """Prints a row for each metric of each task, and the benchmark means, see `benchmarks`.

  Results with the detail "most_frequent", see `most_frequent.beside`, get a column with this baseline.

  Args:
    results: one for each task.
    console: output.
    steps: task -> training step, if they differ; the templates of a task have one.
    has_means: whether the means of tasks are printed.
  """
  splits = list(dict.fromkeys(result.split for result in results))
  # A split that all results share goes into the heading, to leave room for task and metric names.
  texts = [f"task ({splits[0]})", "metric"] if len(splits) == 1 else ["task", "split", "metric"]
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
  for heading in texts:
    table.add_column(heading, overflow="fold")  # names that are cut off would be ambiguous
  baselines = {result.task: result.details["most_frequent"] for result in results if "most_frequent" in result.details}
  beside = ["baseline"] if baselines else []
  for heading in ("value", "95 % interval", "n", *(["step"] if steps else []), *beside):
    table.add_column(heading, justify="right", no_wrap=True)
  for result in results:
    number = result.n if result.metrics else len(result.answers)
    facts = [f"{number:,}", *([f"{steps[result.of_task]:,}"] if steps else [])]
    task = [result.task, result.split][: len(texts) - 1]
    for name, value in result.metrics.items() or [("no labels", None)]:
      unit = " %" if name in result.percentages else ""
      interval = interval_text(result.intervals.get(name))
      row = [*task, name, "" if value is None else f"{value:.2f}{unit}", interval, *facts]
      always = baselines[result.task]["metrics"].get(name) if result.task in baselines else None
      table.add_row(*row, *([] if always is None else [f"{always:.2f}{unit}"]))
      task, facts = [""] * len(task), [""] * len(facts)
  by_task = spreads(results)
  for spread in by_task:
    task = [spread.task, spread.split][: len(texts) - 1]
    for name, value in spread.metrics.items():
      unit = " %" if name in spread.percentages else ""
      deviation = f"sd {spread.deviations[name]:.2f}"
      facts = [f"{len(spread.variants)} runs", *([f"{steps[spread.task]:,}"] if steps else [])]
      table.add_row(*task, name, f"{value:.2f}{unit}", deviation, *facts, style="bold")
      task = [""] * len(task)
  merged = {name for spread in by_task for name in spread.variants}
  scored = {each.task: each.score for each in results if each.score is not None and each.task not in merged}
  means = benchmarks.means(scored | {spread.task: spread.score for spread in by_task}) if has_means else []
  # A mean of the baseline is over the same tasks.
  always = {mean.name: mean.value for mean in benchmarks.means({name: x["score"] for name, x in baselines.items()})}
  always = always if baselines.keys() == scored.keys() and not by_task else {}
  for mean in means:
    row = [mean.name, *[""] * (len(texts) - 1), f"{mean.value:.2f}"]
    row += [*[""] * (len(table.columns) - len(row) - 1), f"{always[mean.name]:.2f}"] if mean.name in always else []
    table.add_row(*row, style="bold")
  console.print(table)
  if baselines:
    console.print("baseline: always the most frequent class of the training examples")
  for note in filter(None, (mean.note for mean in means)):
    console.print(note)
  note_items(results, console)


def interval_text(interval: intervals_lib.Interval | None) -> str:
  """Returns an interval for a table, "24.7 to 75.3"; "" for none."""
  return "" if interval is None else f"{interval.low:.1f} to {interval.high:.1f}"


def note_items(results: Sequence[Result], console: rich.console.Console) -> None:
  """Prints the rules of intervals and scores, ties, examples without gold, numeric errors, unparseable answers."""
  note_intervals({interval.method for result in results for interval in result.intervals.values()}, console)
  for rule in dict.fromkeys(tuple(result.rule.items()) for result in results if result.rule):
    console.print(rule_text(dict(rule)))
  for result in results:
    if result.tied:
      console.print(
        f"{result.task}: {result.tied:,} of {len(result.answers):,} answers are tied; each of k tied answers "
        "counts 1/k, and the class report counts the first"
      )
    if result.unparseable:
      console.print(
        f"{result.task}: {result.unparseable:,} of {len(result.answers):,} answers are unparseable and count as wrong"
      )
    if result.without_gold:
      console.print(
        f"{result.task}: {result.without_gold:,} of {len(result.answers):,} examples have no gold answer and are "
        "left out of its metrics"
      )
    if errors := result.errors:
      absolute, square, of_mean = errors.values()
      console.print(
        f"{result.task}: mean absolute error {absolute:.4g}, root mean square error {square:.4g}; always "
        f"predicting the mean of the labels gives {of_mean:.4g}"
      )
  _note_unparseable(results, console)


def note_intervals(methods: Collection[str], console: rich.console.Console) -> None:
  """Prints the methods of the intervals of a table, if there are any."""
  if methods:
    console.print("95 % intervals: " + "; ".join(text for method, text in _INTERVALS.items() if method in methods))


def rule_text(rule: Mapping[str, str]) -> str:
  """Returns the scoring rule of ranked options in words.

  In:  {"normalize": "mean", "pseudo_likelihood": "pll"}
  Out: "score of an option: log p(option | input) / tokens (normalize=mean, pseudo_likelihood=pll)"
  """
  keys = ", ".join(f"{name}={value or repr(value)}" for name, value in rule.items())
  if "normalize" not in rule:
    return f"score of a target: its pseudo-log-likelihood ({keys})"
  return f"score of an option: {option_scores.NORMALIZATIONS[rule['normalize']].text} ({keys})"


_INTERVALS = {
  "exact": "Clopper-Pearson for shares of independent items",
  "bootstrap": f"bootstrap percentiles ({intervals_lib.RESAMPLES:,} resamples, seed {intervals_lib.SEED}) for others",
}


def print_classes(results: Sequence[Result], console: rich.console.Console) -> None:
  """Prints the classification report of each task with classes, at 80 columns."""
  for result in results:
    if result.classes is not None and result.classes.n:
      console.print(f"{result.task}, {result.split}", style="bold")
      print(result.classes.to_text(width=80), end="\n\n")


def _note_unparseable(results: Sequence[Result], console: rich.console.Console) -> None:
  lost = [result.task for result in results if 2 * result.unparseable > len(result.answers)]
  if lost:
    console.print(
      f"unparseable: most answers to {', '.join(lost)} are not valid for the task and count as wrong; check that "
      "the model was fine-tuned on it, or rank the options with --config.eval.method=rank"
    )


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[str, float, int], None]]:
  """Shows the progress of `Evaluation.run` on standard error of the first process; yields its `on_batch`.

  If standard error is not a terminal, it prints a line every `_SECONDS`.
  """
  columns = (
    rich.progress.TextColumn("{task.description}"),
    rich.progress.BarColumn(),
    rich.progress.TextColumn("{task.completed:,.0f}/{task.total:,} examples, {task.fields[speed]}"),
    rich.progress.TimeRemainingColumn(),
  )
  console, is_silent = rich.console.Console(stderr=True), jax.process_index() != 0
  with rich.progress.Progress(*columns, console=console, transient=True, disable=is_silent) as bar:
    line = bar.add_task("compiling", total=total, speed="")
    start, tokens = time.monotonic(), 0
    last_printed = start

    def on_batch(task: str, number: float, written: int) -> None:
      nonlocal tokens, last_printed
      tokens, now = tokens + written, time.monotonic()
      speed = f"{tokens / (now - start):,.0f} tokens/s"
      bar.update(line, advance=number, description=task, speed=speed)
      if now - last_printed >= _SECONDS and not console.is_terminal and not is_silent:
        print(f"{bar.tasks[line].completed:,.0f}/{total:,} examples, {speed}; at {task}", file=sys.stderr, flush=True)
        last_printed = now

    yield on_batch


def _of(checkpoints: Mapping[str, str], path: str) -> list[str]:
  """Returns the tasks of a checkpoint."""
  return [task for task, checkpoint in checkpoints.items() if checkpoint == path]


def majority(results: Sequence[Result]) -> list[Answer]:
  """Returns the answer of most results to each example; between equally frequent ones that of the first result.

  In:  values ["no", "yes"], ["yes", "yes"], ["yes", "no"] of three templates
  Out: answers with ["yes", "yes"]

  Unparseable answers count only if there are no others.

  Args:
    results: of the same examples, from several templates or draws of shots.
  """
  chosen = []
  for of_example in zip(*(result.answers for result in results), strict=True):
    answers = [answer for answer in of_example if answer.parseable] or of_example
    values = [json.dumps(_plain(answer.value), sort_keys=True) for answer in answers]
    chosen.append(answers[values.index(max(values, key=values.count))])
  return chosen


def by_task(results: Sequence[Result]) -> dict[str, list[Result]]:
  """Returns the test results of each task, those with the highest score on labeled splits first."""
  scores = {
    result.task: result.score
    for result in results
    if result.split != "test" and result.score is not None and np.isfinite(result.score)
  }
  groups: dict[str, list[Result]] = {}
  for result in sorted(results, key=lambda result: -scores.get(result.task, 0.0)):
    if result.split == "test":
      groups.setdefault(result.of_task, []).append(result)
  return groups


def write_leaderboards(results: Sequence[Result], folder: epath.Path) -> list[tuple[str, list[str], list[str]]]:
  """Writes the zip of each leaderboard with test results.

  Returns:
    For each zip its name, the missing tasks, and the results that vote, see `majority`, "TASK.FIRST, TASK.SECOND".
  """
  from t2t.evaluation import leaderboards

  groups, zips = by_task(results), []
  for benchmark, files in leaderboards.LEADERBOARDS.items():
    tests = {task: groups[task] for task in files if task in groups}
    rows = {task: [(x.example, x.value) for x in majority(of_task)] for task, of_task in tests.items()}
    if rows:
      missing = leaderboards.write(folder / f"{benchmark}.zip", rows)
      votes = [", ".join(result.task for result in of_task) for of_task in tests.values() if len(of_task) > 1]
      zips.append((f"{benchmark}.zip", missing, votes))
  return zips


def publish(
  results: Sequence[Result],
  folder: epath.Path,
  *,
  about: Mapping[str, Any],
  steps: Mapping[str, int] | None = None,
  checkpoints: Mapping[str, str] | None = None,
  whole: bool = True,
) -> None:
  """Writes all results, and prints tables and paths; multilingual benchmarks get their own table.

  Args:
    results, folder, about: see `write`.
    steps: see `print_table`.
    checkpoints: see `write`.
    whole: whether all examples were evaluated; leaderboard files are written only then.
  """
  from t2t.evaluation import languages

  path = write(results, folder, about=about, checkpoints=checkpoints)
  console = rich.console.Console()
  by_benchmark = languages.parted(results)
  for (benchmark, split), by_language in by_benchmark.items():
    languages.print_table(benchmark, split, by_language, console)
    note_items(list(by_language.values()), console)
  tabled = {id(result) for by_language in by_benchmark.values() for result in by_language.values()}
  # A benchmark score is a mean over tasks of one split; diagnostic sets, which are test sets, are not part of it.
  other_results = [result for result in results if id(result) not in tabled]
  for split in dict.fromkeys(result.split for result in other_results):
    print_table([result for result in other_results if result.split == split], console, steps=steps)
  print_classes(other_results, console)
  if by_benchmark:
    together = folder / "languages.json"
    earlier_record = json.loads(together.read_text()) if together.exists() else {}
    gcs.write(together, json.dumps(earlier_record | languages.record(results, about=about), indent=2) + "\n")
    print(f"languages      {together}")
  print(f"results        {path}\npredictions    {folder / 'predictions'}")
  for checkpoint in dict.fromkeys((checkpoints or {}).values()):
    print(f"checkpoint     {checkpoint}\n               {', '.join(_of(checkpoints, checkpoint))}")
  for name, missing, votes in write_leaderboards(results, folder) if whole else ():
    print(f"leaderboard    {folder / name}" + (f" (without {', '.join(missing)})" if missing else ""))
    for voters in votes:
      print(f"majority       {voters}\n               (the first wins a tie; sorted by validation score, if known)")
