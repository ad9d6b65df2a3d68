"""What an evaluation found: answers and metrics; the table, the files and the zips that are made of them."""

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

from t2t.evaluation import benchmarks, classification_report

_SECONDS = 10.0  # between lines on how far it is, where these are not drawn over one another


@dataclasses.dataclass(frozen=True)
class Answer:
  """One example and what the model said.

  example: fields of the task, NumPy values and bytes.
  text: what was written or chosen; "" where a task only scores.
  value: what the task's postprocessor made of the text.
  target: the value that was right; None where the split has no labels.
  score: log-probability of what was written or chosen, or of the target where a task only scores.
  parseable: whether the text is a value of the task; what is not counts as wrong.
  tied: values of all answers that are as good as this one, this one among them; empty where no other is.
  has_gold: whether the example has a gold answer; without one it is left out of the metrics.
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
  """One task on one split.

  metrics: name -> value; empty where the split has no labels.
  percentages: names of those that are known to be such; of a function of the user's own nobody knows.
  classes: how well each class is predicted; None: the task has no classes, or the split no labels.
  """

  task: str
  split: str
  metrics: Mapping[str, float]
  answers: Sequence[Answer]
  percentages: Collection[str] = ()
  classes: classification_report.ClassificationReport | None = None

  @property
  def tied(self) -> int:
    """Number of answers that tie with another one; in a metric each of k that tie counts 1/k."""
    return sum(bool(answer.tied) for answer in self.answers)

  @property
  def without_gold(self) -> int:
    """Number of answers that the metrics leave out because there is no gold answer; 0 where no answer has one."""
    return sum(not answer.has_gold for answer in self.answers) if self.metrics else 0

  @property
  def unparseable(self) -> int:
    """How many answers are no value of the task."""
    return sum(not answer.parseable for answer in self.answers)

  @property
  def errors(self) -> dict[str, float]:
    """Errors of a task whose gold answers are numbers, over the answers that are numbers; {} of another task.

    mean_absolute_error and root_mean_square_error are in the units of the labels, and root_mean_square_error_of_mean is
    that of the labels' mean as the answer to all.
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
    """The mean of the metrics, as GLUE and SuperGLUE average them; None without labels."""
    return sum(self.metrics.values()) / len(self.metrics) if self.metrics else None


def _text(value: bytes | str) -> str:
  return value.decode() if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
  """As JSON has it."""
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
  """How BLEU was computed, without which the number says nothing (Post 2018)."""
  from t2t.evaluation import task_metrics

  return {"bleu_signature": task_metrics.bleu_signature()} if "bleu" in metrics else {}


_NOT_WRITTEN = (
  *("inputs", "targets", "inputs_pretokenized", "targets_pretokenized", "options", "answers"),
  # What is there for heads: the same texts, apart, and what is asked of each token.
  *("head", "parts", "candidates", "classes", "token_types", "texts", "answer_heads", "answer_targets", "has_answer"),
  *("passage", "query", "training", "words", "tags", "asked_words"),
  *("inputs_uncut", "targets_uncut"),
  *("context", "answer_texts", "answer_starts", "no_answer", "windows", "window", "context_starts", "context_ends"),
)


def write(results: Sequence[Result], folder: epath.Path, *, about: Mapping[str, Any]) -> epath.Path:
  """Writes every answer to FOLDER/predictions/TASK.SPLIT.jsonl, and the metrics to FOLDER/results.json, its path.

  Results of other tasks and splits that stand in the folder already stay.

  Args:
    results: of `Evaluation.run`.
    folder: local or gs://.
    about: what else is to stand beside the metrics: checkpoint, method, ...
  """
  (folder / "predictions").mkdir(parents=True, exist_ok=True)
  path = folder / "results.json"
  record = json.loads(path.read_text()) if path.exists() else {}
  for result in results:
    lines = []
    for answer in result.answers:
      fields = {key: _plain(value) for key, value in answer.example.items() if key not in _NOT_WRITTEN}
      fields["inputs"] = _text(answer.example.get("inputs_pretokenized", b""))
      fields |= {"target": _plain(answer.target), "prediction": answer.text, "value": _plain(answer.value)}
      lines.append(json.dumps(fields | {"score": answer.score, "parseable": answer.parseable}, ensure_ascii=False))
    _replace(folder / "predictions" / f"{result.task}.{result.split}.jsonl", "\n".join(lines) + "\n")
    record[f"{result.task}.{result.split}"] = {
      "metrics": dict(result.metrics),
      **_signature(result.metrics),
      "score": result.score,
      "examples": len(result.answers),
      "unparseable": result.unparseable,
      **({"tied": result.tied} if result.tied else {}),
      **({"without_gold": result.without_gold} if result.without_gold else {}),
      **({"errors": result.errors} if result.errors else {}),
      **({"classes": result.classes.to_dict()} if result.classes is not None else {}),
      **about,
    }
  _replace(path, json.dumps(record, indent=2) + "\n")
  return path


def _replace(path: epath.Path, text: str) -> None:
  """What stood there stays until the new text is whole."""
  part = path.parent / f"{path.name}.part"
  part.write_text(text)
  part.replace(path)


def print_table(
  results: Sequence[Result], console: rich.console.Console, *, steps: Mapping[str, int] | None = None
) -> None:
  """A line for each metric of each task, and the mean over tasks that benchmarks call their score, see `benchmarks`.

  Args:
    results: one of each task.
    console: where it is printed.
    steps: of training, by task, where they differ.
  """
  splits = list(dict.fromkeys(result.split for result in results))
  # A split that all have stands in the heading: the names of tasks and metrics need its room.
  texts = [f"task ({splits[0]})", "metric"] if len(splits) == 1 else ["task", "split", "metric"]
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
  for heading in texts:
    table.add_column(heading, overflow="fold")  # a name that is cut off might be another's
  for heading in ("value", "examples", "unparseable", *(["step"] if steps else [])):
    table.add_column(heading, justify="right", no_wrap=True)
  for result in results:
    facts = [f"{len(result.answers):,}", f"{result.unparseable:,}", *([f"{steps[result.task]:,}"] if steps else [])]
    task = [result.task, result.split][: len(texts) - 1]
    for name, value in result.metrics.items() or [("no labels", None)]:
      unit = " %" if name in result.percentages else ""
      table.add_row(*task, name, "" if value is None else f"{value:.2f}{unit}", *facts)
      task, facts = [""] * len(task), []
  means = benchmarks.means({scored.task: scored.score for scored in results if scored.score is not None})
  for mean in means:
    table.add_row(mean.name, *[""] * (len(texts) - 1), f"{mean.value:.2f}", style="bold")
  console.print(table)
  for note in filter(None, (mean.note for mean in means)):
    console.print(note)
  note_items(results, console)


def note_items(results: Sequence[Result], console: rich.console.Console) -> None:
  """Prints ties, examples without a gold answer, errors of numbers, and tasks with mostly unparseable answers."""
  for result in results:
    if result.tied:
      console.print(
        f"{result.task}: {result.tied:,} of {len(result.answers):,} answers tie with others; each of k that tie counts"
        " 1/k, and the classes below count the first"
      )
    if result.without_gold:
      console.print(
        f"{result.task}: {result.without_gold:,} of {len(result.answers):,} examples have no gold answer, and are left"
        " out of its metrics"
      )
    if errors := result.errors:
      absolute, square, of_mean = errors.values()
      console.print(
        f"{result.task}: mean absolute error {absolute:.4g}, root mean square error {square:.4g}, and"
        f" {of_mean:.4g} if the answer is always the mean of the labels"
      )
  _note_unparseable(results, console)


def print_classes(results: Sequence[Result], console: rich.console.Console) -> None:
  """Prints accuracy, the scores of each class and the confusion matrix of tasks that have classes, at 80 columns."""
  for result in results:
    if result.classes is not None and result.classes.n:
      console.print(f"{result.task}, {result.split}", style="bold")
      print(result.classes.to_text(width=80), end="\n\n")


def _note_unparseable(results: Sequence[Result], console: rich.console.Console) -> None:
  lost = [result.task for result in results if 2 * result.unparseable > len(result.answers)]
  if lost:
    console.print(
      f"unparseable: most answers to {', '.join(lost)} are none that the task knows, and count as wrong;"
      " was the model fine-tuned on it? With --config.eval.method=rank it chooses among the options"
    )


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[str, float, int], None]]:
  """A line on standard error that says how far `Evaluation.run` is, of one process; gives its `on_batch`.

  Where that is no terminal, a line every so many seconds.
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


def write_leaderboards(results: Sequence[Result], folder: epath.Path) -> list[tuple[str, list[str]]]:
  """The zips for the leaderboards of test sets among `results`: file name, and which of its tasks are missing."""
  from t2t.evaluation import leaderboards

  tests = {result.task: result for result in results if result.split == "test"}
  zips = []
  for benchmark, files in leaderboards.LEADERBOARDS.items():
    rows = {task: [(answer.example, answer.value) for answer in tests[task].answers] for task in files if task in tests}
    if rows:
      zips.append((f"{benchmark}.zip", leaderboards.write(folder / f"{benchmark}.zip", rows)))
  return zips


def publish(
  results: Sequence[Result],
  folder: epath.Path,
  *,
  about: Mapping[str, Any],
  steps: Mapping[str, int] | None = None,
  whole: bool = True,
) -> None:
  """Writes everything, and prints the table and where everything is; of a benchmark in several languages its own.

  Args:
    results, folder, about: see `write`.
    steps: see `print_table`.
    whole: whether all examples were asked: leaderboards take no less.
  """
  from t2t.evaluation import languages

  path = write(results, folder, about=about)
  console = rich.console.Console()
  by_benchmark = languages.parted(results)
  for (benchmark, split), by_language in by_benchmark.items():
    languages.print_table(benchmark, split, by_language, console)
    note_items(list(by_language.values()), console)
  tabled = {id(result) for by_language in by_benchmark.values() for result in by_language.values()}
  # A benchmark's score is a mean over tasks of one split; its diagnostic sets, which are tests, are no part of it.
  other_results = [result for result in results if id(result) not in tabled]
  for split in dict.fromkeys(result.split for result in other_results):
    print_table([result for result in other_results if result.split == split], console, steps=steps)
  print_classes(other_results, console)
  if by_benchmark:
    together = folder / "languages.json"
    earlier_record = json.loads(together.read_text()) if together.exists() else {}
    _replace(together, json.dumps(earlier_record | languages.record(results, about=about), indent=2) + "\n")
    print(f"languages      {together}")
  print(f"results        {path}\npredictions    {folder / 'predictions'}")
  for name, missing in write_leaderboards(results, folder) if whole else ():
    print(f"leaderboard    {folder / name}" + (f" (without {', '.join(missing)})" if missing else ""))
