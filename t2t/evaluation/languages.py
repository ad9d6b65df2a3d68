"""Multilingual benchmarks: results as a table of languages and metrics, with means."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import rich.box
import rich.console
import rich.table

from t2t.data.sources import benchmark_files
from t2t.evaluation import intervals


class LanguageResult(Protocol):
  """Fields of `results.Result` that are used here."""

  task: str
  split: str
  metrics: Mapping[str, float]
  n: int
  intervals: Mapping[str, intervals.Interval]


ByLanguage = Mapping[str, LanguageResult]


def parted(task_results: Sequence[LanguageResult]) -> dict[tuple[str, str], dict[str, LanguageResult]]:
  """Groups results of multilingual benchmarks: (benchmark, split) -> language -> result; at least two languages each.

  In:  results of xnli_sw, xnli_ur and glue_rte on "validation"
  Out: {("xnli", "validation"): {"sw": ..., "ur": ...}}
  """
  tasks = {
    f"{name}_{language}": (name, language)
    for name, languages in benchmark_files.LANGUAGES.items()
    for language in languages
  }
  grouped: dict[tuple[str, str], dict[str, LanguageResult]] = {}
  for result in task_results:
    if result.task in tasks and result.metrics:
      benchmark, language = tasks[result.task]
      grouped.setdefault((benchmark, result.split), {})[language] = result
  return {key: by_language for key, by_language in grouped.items() if len(by_language) > 1}


def means(by_language: ByLanguage) -> dict[str, float]:
  """Returns the unweighted mean of each metric over languages, as in XTREME (Hu et al. 2020)."""
  names = next(iter(by_language.values())).metrics
  return {name: sum(result.metrics[name] for result in by_language.values()) / len(by_language) for name in names}


def print_table(benchmark: str, split: str, by_language: ByLanguage, console: rich.console.Console) -> None:
  """Prints a row for each language, a column for each metric, and the means."""
  mean = means(by_language)
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
  table.add_column(f"{benchmark}, {split}")
  for name in (*mean, "n"):
    table.add_column(name, justify="right")
  for language, result in by_language.items():
    cells = [_cell(result, name) for name in mean]
    table.add_row(language, *cells, f"{result.n:,}")
  table.add_row(f"mean of {len(by_language)}", *(f"{value:.2f}" for value in mean.values()), style="bold")
  console.print(table)


def _cell(result: LanguageResult, name: str) -> str:
  """Returns a metric with its interval, "50.00 (40.1 to 59.9)"."""
  interval = result.intervals.get(name)
  return f"{result.metrics[name]:.2f}" + (f" ({interval.low:.1f} to {interval.high:.1f})" if interval else "")


def record(task_results: Sequence[LanguageResult], *, about: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """Returns the content of languages.json: "BENCHMARK.SPLIT" -> the metrics of each language, and their means.

  Args:
    task_results: of `Evaluation.run`.
    about: further fields of each record.
  """
  return {
    f"{benchmark}.{split}": {
      "languages": {language: dict(result.metrics) for language, result in by_language.items()},
      "n": {language: result.n for language, result in by_language.items()},
      "intervals": {
        language: {name: interval.to_dict() for name, interval in result.intervals.items()}
        for language, result in by_language.items()
      },
      "mean": means(by_language),
      **about,
    }
    for (benchmark, split), by_language in parted(task_results).items()
  }
