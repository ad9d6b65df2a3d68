"""Comparison of two evaluations on the same items: paired bootstrap, McNemar's test, and the items that changed.

The files of predictions have statistics of each item, so that no task is loaded and no metric is computed again.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import math
from typing import Any

from etils import epath
import numpy as np
import rich.box
import rich.console
import rich.table

from t2t import UserError
from t2t.evaluation import intervals, item_statistics
from t2t.evaluation.item_statistics import Statistics
from t2t.storage import encoding, gcs

RESAMPLES = 10_000
_FOLDER = "predictions"
_SAME = ("inputs", "target", "idx")  # fields by which items are recognized


@dataclasses.dataclass(frozen=True)
class Predictions:
  """Predictions of one task on one split.

  name: "TASK.SPLIT".
  path: of the file.
  items: the lines of items with a gold answer.
  """

  name: str
  path: epath.Path
  items: Sequence[Mapping[str, Any]]

  @property
  def has_statistics(self) -> bool:
    """Returns True if the file has statistics of items; earlier versions wrote none."""
    return "statistics" in self.items[0]

  def statistics(self, *, of_metrics: bool) -> dict[str, Statistics]:
    """Returns the statistics of each metric, or only those of exact matches of value and target."""
    if not of_metrics:
      rows = [[float(item["value"] == item["target"]), 1.0] for item in self.items]
      return {"exact_match": Statistics("mean", np.array(rows))}
    names = self.items[0]["statistics"]
    return {
      name: Statistics(value, np.array([item["statistics"][name][1:] for item in self.items], float))
      for name, (value, *_) in names.items()
    }

  def right(self) -> np.ndarray | None:
    """Returns the share to which each item is right; None: answers are neither right nor wrong, such as summaries."""
    statistics = self.statistics(of_metrics=self.has_statistics)
    for name in intervals.SHARES:
      if name in statistics and statistics[name].rows[:, 1].all():
        # Items of small groups weigh more than one item.
        return statistics[name].rows[:, 0] / statistics[name].rows[:, 1]
    targets, values = ([_bare(item[field]) for item in self.items] for field in ("target", "value"))
    if not all(isinstance(target, int) for target in targets):  # includes bool
      return None
    return np.array([value == target for value, target in zip(values, targets, strict=True)], float)


def _bare(value: Any) -> Any:
  """Returns the label of a target or value, without its group."""
  return value.get("value", value.get("label")) if isinstance(value, Mapping) else value


@dataclasses.dataclass(frozen=True)
class MetricComparison:
  """Difference of one metric, B minus A.

  a, b: values.
  low, high: 95 % interval of the difference, percentiles of the paired bootstrap; None with fewer than two units.
  p: two-sided p-value of no difference, by the paired bootstrap.
  is_percentage: whether the values are percentages.
  """

  a: float
  b: float
  low: float | None
  high: float | None
  p: float | None
  is_percentage: bool = True


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Comparison of one task on one split.

  name: "TASK.SPLIT".
  metrics: metric -> comparison.
  items, units: numbers of items, and of units that are resampled.
  worse, better: numbers of the items that are right in A alone, and in B alone; None: items are not right or wrong.
  ties: number of items that are left out, because tied options are right in part.
  mcnemar: two-sided p-value of McNemar's exact test; None without `worse` and `better`.
  changed: items whose answers changed between right and wrong, as lines of the output file.
  """

  name: str
  metrics: Mapping[str, MetricComparison]
  items: int
  units: int
  worse: int | None
  better: int | None
  ties: int
  mcnemar: float | None
  changed: Sequence[Mapping[str, Any]]

  def to_dict(self) -> dict[str, Any]:
    """Returns the record without items, as JSON."""
    return {key: value for key, value in dataclasses.asdict(self).items() if key not in ("name", "changed")}


# ---- Files -----------------------------------------------------------------------------------------------------------


def read(path: str, *, where: str) -> dict[str, Predictions]:
  """Reads predictions: "TASK.SPLIT" -> predictions.

  Args:
    path: workdir of `t2t eval` or `t2t superglue`, its results.json, its folder of predictions, or a file there.
    where: option or name of `path`, for messages.

  Raises:
    UserError: there are no predictions, or a file is damaged.
  """
  gcs.check(path, where=where)
  root = gcs.absolute(path)
  if root.name == "results.json":
    root = root.parent
  if root.name.endswith(".jsonl"):
    files = [root] if root.exists() else []
  else:
    folder = root / _FOLDER if (root / _FOLDER).exists() else root
    files = sorted(folder.glob("*.jsonl")) if folder.exists() else []
  # Names contain the split: TASK.SPLIT.jsonl.
  files = [file for file in files if file.name.count(".") >= 2]
  if not files:
    raise UserError(
      f"{where}{path}: no predictions. Give the --workdir of `t2t eval` or `t2t superglue`, or a file "
      "TASK.SPLIT.jsonl of its folder predictions."
    )
  return {file.name.removesuffix(".jsonl"): _read_file(file, where=where) for file in files}


def _read_file(path: epath.Path, *, where: str) -> Predictions:
  items = []
  for number, line in enumerate(encoding.lines(path.read_text()), 1):
    try:
      item = json.loads(line)
      missing = [field for field in ("inputs", "target", "value", "prediction") if field not in item]
    except (ValueError, TypeError) as error:
      raise UserError(f"{where}{path}, line {number}: not a JSON object ({error}). Evaluate again.") from error
    if missing:
      raise UserError(f"{where}{path}, line {number}: the field {missing[0]!r} is missing. Evaluate again.")
    items.append(item)
  if any("statistics" in item for item in items):
    items = [item for item in items if "statistics" in item]  # the others have no gold answer
  elif all(item["target"] is None for item in items):
    items = []
  return Predictions(path.name.removesuffix(".jsonl"), path, items)


def paired(a: Mapping[str, Predictions], b: Mapping[str, Predictions]) -> list[tuple[Predictions, Predictions]]:
  """Returns the predictions of the tasks and splits that both evaluations have.

  Raises:
    UserError: they share no task with gold answers, or items of a task differ.
  """
  shared = [name for name in a if name in b]
  if not shared:
    raise UserError(
      f"A has {', '.join(a)}; B has {', '.join(b)}: no task and split is in both. Evaluate both checkpoints on the "
      "same tasks and config.data.eval_split."
    )
  pairs = [(a[name], b[name]) for name in shared]
  for one, other in pairs:
    check_same_items(one, other)
  pairs = [(one, other) for one, other in pairs if one.items]
  if not pairs:
    raise UserError(f"{', '.join(shared)}: no gold answers. Compare evaluations of a split with labels.")
  return pairs


def check_same_items(a: Predictions, b: Predictions) -> None:
  """Checks that two files have the same items in the same order.

  Raises:
    UserError: names the first difference.
  """
  if _has_windows(a) and _has_windows(b) and _inputs(a) != _inputs(b):
    raise UserError(
      f"{a.name}: A and B read the text in different windows, {len(a.items):,} and {len(b.items):,}. Give both runs of "
      "`t2t suites` the same --max_tokens and --stride. With different vocabularies compare bits_per_byte in both "
      f"results.json ({a.path.parent.parent}; {b.path.parent.parent})."
    )
  for number, (one, other) in enumerate(zip(a.items, b.items, strict=False), 1):
    field = next((field for field in _SAME if one.get(field) != other.get(field)), None)
    if field is not None:
      raise UserError(
        f"{a.name}: item {number} differs in {field!r}: {_short(one.get(field))} in A, {_short(other.get(field))} in "
        f"B ({a.path}; {b.path}). Evaluate both checkpoints on the same data."
      )
  if len(a.items) != len(b.items):
    raise UserError(
      f"{a.name}: A has {len(a.items):,} items, and B has {len(b.items):,}. Evaluate both checkpoints with the same "
      "config.eval.max_examples."
    )


def _has_windows(predictions: Predictions) -> bool:
  """Returns whether the items are windows of a text, which depend on the model."""
  return any(name.endswith("bits_per_byte") for item in predictions.items[:1] for name in item.get("statistics", {}))


def _inputs(predictions: Predictions) -> list[str]:
  return [item["inputs"] for item in predictions.items]


def _short(value: Any, most: int = 60) -> str:
  text = json.dumps(value, ensure_ascii=False)
  return text if len(text) <= most else f"{text[: most - 1]}…"


# ---- Tests -----------------------------------------------------------------------------------------------------------


def compare(a: Predictions, b: Predictions) -> Comparison:
  """Compares two predictions of the same items."""
  number = len(a.items)
  units = [item.get("unit", str(index)) for index, item in enumerate(a.items)]
  of_metrics = a.has_statistics and b.has_statistics
  of_a, of_b = _comparable(a.statistics(of_metrics=of_metrics), b.statistics(of_metrics=of_metrics))
  metrics = {name: _difference(of_a[name], of_b[name], units) for name in of_a}
  right_a, right_b = a.right(), b.right()
  worse = better = mcnemar = None
  ties, changed = 0, []
  if right_a is not None and right_b is not None:
    # Each of k tied options has a share of 1/k.
    is_tied = (right_a > 0) & (right_a < 1) | (right_b > 0) & (right_b < 1)
    clear, ties = ~is_tied, int(is_tied.sum())
    is_right_a, is_right_b = right_a > 0, right_b > 0
    lost, won = is_right_a & ~is_right_b & clear, ~is_right_a & is_right_b & clear
    worse, better = int(lost.sum()), int(won.sum())
    mcnemar = _mcnemar(worse, better)
    rows = [(index, "right -> wrong") for index in np.flatnonzero(lost)]
    rows += [(index, "wrong -> right") for index in np.flatnonzero(won)]
    changed = [_changed(a.name, a.items[index], b.items[index], change) for index, change in rows]
  return Comparison(a.name, metrics, number, len(set(units)), worse, better, ties, mcnemar, changed)


def _comparable(
  a: Mapping[str, Statistics], b: Mapping[str, Statistics]
) -> tuple[dict[str, Statistics], dict[str, Statistics]]:
  """Returns the statistics of the metrics that both have, with the same classes."""
  same = [name for name in a if name in b and a[name].value == b[name].value]
  padded: tuple[dict[str, Statistics], dict[str, Statistics]] = ({}, {})
  for name in same:
    width = max(a[name].rows.shape[1], b[name].rows.shape[1])
    for statistics, rows in ((a[name], padded[0]), (b[name], padded[1])):
      missing = width - statistics.rows.shape[1]  # classes that the other checkpoint predicted
      rows[name] = statistics._replace(rows=np.pad(statistics.rows, ((0, 0), (0, missing))))
  return padded


def _difference(a: Statistics, b: Statistics, units: Sequence[str]) -> MetricComparison:
  """Compares one metric by resampling the same units of both."""
  values = item_statistics.value_of(a), item_statistics.value_of(b)
  value, rows_a, number = intervals.resampled(a, units)
  _, rows_b, _ = intervals.resampled(b, units)
  is_percentage = item_statistics.VALUES[a.value].is_percentage
  if number < 2:
    return MetricComparison(*values, None, None, None, is_percentage)
  if np.array_equal(rows_a, rows_b):
    return MetricComparison(*values, 0.0, 0.0, 1.0, is_percentage)
  difference = lambda index: value(rows_b[index]) - value(rows_a[index])
  sampled = intervals.distribution(difference, number, rows_a[0].size, resamples=RESAMPLES)
  low, high = np.percentile(sampled, [100 * (1 - intervals.LEVEL) / 2, 100 * (1 + intervals.LEVEL) / 2])
  # The observed sample counts as one resample, so that no p-value is 0 (Davison & Hinkley 1997).
  tail = min(np.sum(sampled <= 0), np.sum(sampled >= 0))
  p = min(1.0, 2 * float(tail + 1) / (RESAMPLES + 1))
  return MetricComparison(*values, float(low), float(high), p, is_percentage)


def _mcnemar(worse: int, better: int) -> float:
  """Returns the two-sided p-value of McNemar's exact test: a binomial test of the items that changed."""
  import scipy.stats

  return float(scipy.stats.binomtest(worse, worse + better).pvalue) if worse + better else 1.0


def _changed(name: str, a: Mapping[str, Any], b: Mapping[str, Any], change: str) -> dict[str, Any]:
  shown = {"task": name, "change": change, **{field: a[field] for field in ("idx", "inputs", "target") if field in a}}
  return shown | {"a": a["prediction"], "b": b["prediction"]}


# ---- Output ----------------------------------------------------------------------------------------------------------


def print_table(comparisons: Sequence[Comparison], console: rich.console.Console) -> None:
  """Prints a row for each metric of each task, and the items that changed; at most 80 columns."""
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
  # A split that all tasks share goes into the heading, to leave room for names.
  splits = {comparison.name.rpartition(".")[2] for comparison in comparisons}
  shared = splits.pop() if len(splits) == 1 else ""
  for heading in (f"task ({shared})" if shared else "task", "metric"):
    table.add_column(heading, overflow="fold")
  for heading in ("A", "B", "B - A", "95 % interval", "p", "n"):
    table.add_column(heading, justify="right", no_wrap=True)
  for comparison in comparisons:
    task, number = comparison.name.removesuffix(f".{shared}"), f"{comparison.units:,}"
    for name, row in comparison.metrics.items():
      p = "" if row.p is None else p_text(row.p)
      table.add_row(task, name.replace("_", " "), *_texts(row), p, number)
      task = number = ""
  console.print(table)
  console.print(f"p and interval: paired bootstrap, {RESAMPLES:,} resamples of the n units, seed {intervals.SEED}")
  for comparison in comparisons:
    if comparison.mcnemar is not None:
      ties = f"; {comparison.ties:,} tied items left out" if comparison.ties else ""
      console.print(
        f"{comparison.name}: {comparison.worse:,} right -> wrong, {comparison.better:,} wrong -> right of "
        f"{comparison.items:,} items; McNemar's exact test p {p_text(comparison.mcnemar)}{ties}"
      )
    elif not comparison.metrics:
      console.print(f"{comparison.name}: the metrics have no statistics of items, and are not compared")


def _texts(row: MetricComparison) -> tuple[str, str, str, str]:
  """Returns A, B, B - A and its interval; bits per byte have more digits than percentages."""
  value, change, end = (lambda x: f"{x:.2f}"), (lambda x: f"{x:+.2f}"), (lambda x: f"{x:+.1f}")
  if not row.is_percentage:
    value = lambda x: f"{x:{_format(x, 4)}}"
    change = end = lambda x: f"{x:+{_format(x, 3)}}"
  interval = "" if row.low is None or row.high is None else f"{end(row.low)} to {end(row.high)}"
  return value(row.a), value(row.b), change(row.b - row.a), interval


def _format(number: float, digits: int) -> str:
  """Returns the format of a number with significant digits, without an exponent from 0.0001 to a million."""
  size = abs(number)
  return f".{max(0, digits - 1 - math.floor(math.log10(size)))}f" if 1e-4 <= size < 1e6 else f".{digits}g"


def p_text(p: float) -> str:
  """Returns a p-value with two digits, "< 0.001" below that."""
  return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def write(comparisons: Sequence[Comparison], path: epath.Path) -> None:
  """Writes the items that changed as JSON lines, and the tests to the file with the suffix .json beside it."""
  path.parent.mkdir(parents=True, exist_ok=True)
  lines = [json.dumps(item, ensure_ascii=False) for comparison in comparisons for item in comparison.changed]
  path.write_text("".join(f"{line}\n" for line in lines))
  record = {comparison.name: comparison.to_dict() for comparison in comparisons}
  path.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
