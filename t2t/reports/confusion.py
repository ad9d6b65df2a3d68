"""Tables of per-class scores and confusion matrices of a run's tasks."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t2t.evaluation import classification_report
from t2t.reports import page
from t2t.training import class_files

_WIDTH = 120  # characters of a matrix; classes beyond it are merged
_MOST_TASKS = 12
_MOST_BYTES = 100_000  # of all tables


def parts(class_records: Mapping[str, Any]) -> Iterator[str]:
  """Yields HTML for each task with classes.

  Args:
    class_records: see `class_files.read`.
  """
  room = _MOST_BYTES
  for task, record in list(class_records.get("tasks", {}).items())[:_MOST_TASKS]:
    try:
      report = classification_report.from_dict(record)
    except (KeyError, TypeError, ValueError):  # written by another version, or edited
      continue
    task_parts = list(_of_task(f"{task}, step {class_records['step']:,}", report)) if report.n else []
    room -= sum(len(part.encode()) for part in task_parts)
    if room < 0:
      yield page.paragraph(f"{task}: its table is too large for this page; see {class_files.NAME}.", soft=True)
      return
    yield from task_parts


def _interval(report: classification_report.ClassificationReport) -> str:
  from t2t.evaluation import intervals

  interval = intervals.exact(float(np.trace(report.confusion)), report.n)
  return f" (95 % interval {interval.low:.1f} to {interval.high:.1f}, Clopper-Pearson)"


def _of_task(name: str, report: classification_report.ClassificationReport) -> Iterator[str]:
  label, share = report.majority
  facts = [
    f"{report.n:,} items",
    f"accuracy {report.accuracy:.2f} %{_interval(report)}",
    f"macro F1 {report.macro_f1:.2f} %",
  ]
  facts.append(f'majority baseline {share:.2f} % (always "{label}")')
  if report.not_a_label:
    facts.append(f"{report.not_a_label:,} predictions are not a label and count as wrong")
  if report.without_gold:
    facts.append(f"{report.without_gold:,} items without a gold label are left out")
  yield page.paragraph(f"{name}: {'; '.join(facts)}.")
  rows = [
    (class_name, f"{scores.precision:.2f}", f"{scores.recall:.2f}", f"{scores.f1:.2f}", scores.gold, scores.predicted)
    for class_name, scores in zip(report.labels, report.classes, strict=True)
  ]
  columns = ("class", "precision", "recall", "F1", "gold", "predicted")
  yield page.table(f"{name}: scores of each class, in percent", columns, rows, right=True)
  names, columns, counts = report.matrix(_WIDTH)
  if sum(map(len, columns)) > _WIDTH:
    numbers = [str(row_index + 1) for row_index in range(len(names))]
    columns = [*numbers, *columns[len(numbers) :]]
    names = [f"{number} {class_name}" for number, class_name in zip(numbers, names, strict=True)]
  heat = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
  yield page.heat_table(
    f"{name}: confusion matrix (rows: gold, columns: predicted)",
    ("", *columns),
    [(class_name, *row.tolist()) for class_name, row in zip(names, counts, strict=True)],
    heat.tolist(),
  )
