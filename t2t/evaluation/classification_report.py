"""Classification report: accuracy, per-class scores, confusion matrix and majority baseline, as JSON and as text."""

import collections
from collections.abc import Hashable, Sequence
import dataclasses
from typing import Any

import numpy as np
from rich import cells

NOT_A_LABEL = "not a label"  # column of predictions that match no class
_OTHERS = "(others)"  # row and column of the classes that a narrow matrix merges
_LONGEST_LABEL = 24  # characters in the first column
_LABEL_LENGTHS = (_LONGEST_LABEL, 12, 8)  # tried in turn if the matrix is too wide
_SHORTEST_HEADING = 4  # characters of a column heading; below this, classes are numbered
_MOST_CONFUSIONS = 5  # pairs listed below a matrix that merges classes
_MOST_CLASSES = 40  # rows of the table of classes


@dataclasses.dataclass(frozen=True)
class ClassScores:
  """Scores of one class.

  precision, recall, f1: percentages; 0 if the denominator is 0, like `zero_division=0` of scikit-learn.
  gold: number of items with this gold label.
  predicted: number of items with this prediction.
  """

  precision: float
  recall: float
  f1: float
  gold: int
  predicted: int


@dataclasses.dataclass(frozen=True)
class ClassificationReport:
  """Agreement of predicted classes with gold labels.

  labels: names of the classes.
  confusion: int64 [classes, classes + 1], gold by predicted; the last column counts predictions that are not a label.
  without_gold: number of items that were left out because they have no gold label.
  """

  labels: tuple[str, ...]
  confusion: np.ndarray
  without_gold: int = 0

  @property
  def n(self) -> int:
    """Number of items with a gold label."""
    return int(self.confusion.sum())

  @property
  def not_a_label(self) -> int:
    """Number of predictions that match no class; all count as wrong."""
    return int(self.confusion[:, -1].sum())

  @property
  def accuracy(self) -> float:
    """Percentage of correct predictions; 0 without items."""
    return 100.0 * float(np.trace(self.confusion)) / self.n if self.n else 0.0

  @property
  def classes(self) -> tuple[ClassScores, ...]:
    """Scores of each class, in the order of `labels`."""
    right = np.diagonal(self.confusion).astype(float)
    gold, predicted = self.confusion.sum(axis=1), self.confusion[:, :-1].sum(axis=0)
    share = lambda of: 100.0 * right / np.maximum(of, 1)
    f1 = 200.0 * right / np.maximum(gold + predicted, 1)
    columns = (share(predicted), share(gold), f1, gold, predicted)
    return tuple(
      ClassScores(float(p), float(r), float(f), int(g), int(q)) for p, r, f, g, q in zip(*columns, strict=True)
    )

  @property
  def macro_f1(self) -> float:
    """Unweighted mean F1 of the classes that occur in gold labels or predictions; 0 without items."""
    f1_scores = [scores.f1 for scores in self.classes if scores.gold or scores.predicted]
    return float(np.mean(f1_scores)) if f1_scores else 0.0

  @property
  def majority(self) -> tuple[str, float]:
    """Most frequent gold label, and the accuracy in percent of always predicting it."""
    if not self.n:
      return "", 0.0
    gold = self.confusion.sum(axis=1)
    return self.labels[int(np.argmax(gold))], 100.0 * float(np.max(gold)) / self.n

  def matrix(self, width: int) -> tuple[list[str], list[str], np.ndarray]:
    """Returns row names, column names and counts of a confusion matrix whose lines have at most `width` characters.

    If the matrix is too wide, its least frequent classes are merged. The last column counts predictions that are not a
    label; it is omitted if there are none.
    """
    return _fitted(self, width)

  def to_dict(self) -> dict[str, Any]:
    """Returns the report as JSON; the confusion matrix is a list of rows, gold by predicted."""
    label, share = self.majority
    return {
      "n": self.n,
      "accuracy": self.accuracy,
      "macro_f1": self.macro_f1,
      "majority": {"label": label, "accuracy": share},
      "not_a_label": self.not_a_label,
      "without_gold": self.without_gold,
      "labels": list(self.labels),
      "classes": {label: dataclasses.asdict(scores) for label, scores in zip(self.labels, self.classes, strict=True)},
      "confusion": self.confusion.tolist(),
    }

  def to_text(self, *, width: int = 80) -> str:
    """Returns lines of at most `width` characters: a summary, a line for each class, the confusion matrix.

    A matrix that is too wide keeps the most frequent classes, merges the others and lists the most frequent confusions.
    """
    return "\n".join([*_summary(self, width), "", *_class_lines(self), "", *_matrix_lines(self, width)])


def from_dict(record: dict[str, Any]) -> ClassificationReport:
  """Reads a report written by `ClassificationReport.to_dict`."""
  labels = tuple(record["labels"])
  confusion = np.array(record["confusion"], np.int64).reshape(len(labels), len(labels) + 1)
  return ClassificationReport(labels, confusion, int(record.get("without_gold", 0)))


def classification_report(
  targets: Sequence[Any], predictions: Sequence[Any], labels: Sequence[str]
) -> ClassificationReport:
  """Compares predicted classes with gold classes.

  Args:
    targets: gold class of each item, a label or its index; items with None, -1 or NaN are left out.
    predictions: predicted class of each item; a value that is neither a label nor an index is "not a label" and wrong.
    labels: unique names of all classes.

  Raises:
    ValueError: the numbers of targets and predictions differ, a target is not a label, or labels repeat.
  """
  if len(targets) != len(predictions):
    raise ValueError(f"{len(targets)} targets and {len(predictions)} predictions; give one prediction for each target")
  names = tuple(labels)
  if len(set(names)) != len(names):
    repeated = next(name for position, name in enumerate(names) if name in names[:position])
    raise ValueError(f"labels: {repeated!r} occurs twice; give each label once")
  index = {name: position for position, name in enumerate(names)}
  confusion, without_gold = np.zeros((len(names), len(names) + 1), np.int64), 0
  for position, (target, prediction) in enumerate(zip(targets, predictions, strict=True)):
    if _is_missing(target):
      without_gold += 1
      continue
    row = _index(target, index)
    if row is None:
      raise ValueError(f"target {position}: {target!r} is not a label; give one of {', '.join(names)}")
    column = _index(prediction, index)
    confusion[row, len(names) if column is None else column] += 1
  return ClassificationReport(names, confusion, without_gold)


def _is_missing(target: Any) -> bool:
  if target is None:
    return True
  return isinstance(target, int | float | np.number) and bool(target == -1 or target != target)  # noqa: PLR0124 - NaN


def _index(value: Any, index: dict[str, int]) -> int | None:
  """Returns the index of a class, or None if the value is not a class."""
  if isinstance(value, Hashable) and not isinstance(value, bool | np.bool_) and value in index:
    return index[value]
  if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
    return None
  return int(value) if 0 <= value < len(index) else None


# ---- Text ------------------------------------------------------------------------------------------------------------


# Terminal columns: Chinese, Japanese and Korean characters take two.
_width = cells.cell_len


def _cut(text: str, width: int) -> str:
  text = " ".join(text.split())
  return text if _width(text) <= width else f"{cells.set_cell_size(text, max(width - 1, 0)).rstrip()}…"


def _cut_all(labels: Sequence[str], width: int) -> list[str]:
  """Shortens labels to `width` characters; labels with a common beginning keep their ends, so that they differ."""
  labels = [" ".join(label.split()) for label in labels]
  short = [_cut(label, width) for label in labels]
  ambiguous = {name for name, number in collections.Counter(short).items() if number > 1}
  return [
    _without_middle(label, width) if name in ambiguous and _width(label) > width else name
    for label, name in zip(labels, short, strict=True)
  ]


def _without_middle(text: str, width: int) -> str:
  end = (width - 1) // 2
  return f"{_cut(text, width - end)}{cells.set_cell_size(text[::-1], end)[::-1].lstrip()}"


def _left(text: str, width: int) -> str:
  return text + " " * (width - _width(text))


def _right(text: str, width: int) -> str:
  return " " * (width - _width(text)) + text


def _summary(report: ClassificationReport, width: int) -> list[str]:
  label, share = report.majority
  names = dict(zip(report.labels, _cut_all(report.labels, _LONGEST_LABEL), strict=True))
  items = "item" if report.n == 1 else "items"
  facts = [
    f"{report.n:,} {items}",
    f"accuracy {report.accuracy:.2f} %",
    f"macro F1 {report.macro_f1:.2f} %",
    f'majority baseline {share:.2f} % of these (always "{names.get(label, label)}")',
  ]
  lines = [facts[0]]
  for fact in facts[1:]:
    if _width(f"{lines[-1]}, {fact}") > width:
      lines.append(fact)
    else:
      lines[-1] += f", {fact}"
  if report.not_a_label:
    lines.append(f"{NOT_A_LABEL}: {report.not_a_label:,} of {report.n:,} predictions match no class and count as wrong")
  if report.without_gold:
    lines.append(f"left out, no gold label: {report.without_gold:,}")
  return lines


def _class_lines(report: ClassificationReport) -> list[str]:
  heads = ("precision", "recall", "F1", "gold", "predicted")
  # Shows only the most frequent of many classes; the JSON report has all.
  order = np.argsort(-report.confusion.sum(axis=1), kind="stable")[:_MOST_CLASSES]
  shown = sorted(order.tolist())
  names = _cut_all(report.labels, _LONGEST_LABEL)
  first = max(map(_width, ["class", *names]))
  lines = ["class".ljust(first) + "".join(f"  {head:>9}" for head in heads)]
  for class_index in shown:
    scores = report.classes[class_index]
    cells = [f"{scores.precision:.2f}", f"{scores.recall:.2f}", f"{scores.f1:.2f}"]
    cells += [f"{scores.gold:,}", f"{scores.predicted:,}"]
    lines.append(_left(names[class_index], first) + "".join(f"  {cell:>9}" for cell in cells))
  if num_hidden := len(report.labels) - len(shown):
    lines.append(f"... and {num_hidden:,} less frequent classes")
  return lines


def _matrix_lines(report: ClassificationReport, width: int) -> list[str]:
  """Returns the confusion matrix as lines of at most `width` characters."""
  rows, columns, counts = _fitted(report, width)
  size, legend = _cell(counts), ""
  names = [_cut(name, max(_room(rows, columns, width), size)) for name in columns]
  if names != columns and (max(map(_width, names)) < _SHORTEST_HEADING or len(set(names)) < len(names)):
    numbers = [str(row_index + 1) for row_index in range(len(rows))]
    rows = [f"{number:>{len(numbers[-1])}} {name}" for number, name in zip(numbers, rows, strict=True)]
    names = numbers + ["?"] * (len(columns) - len(rows))
    legend = f"; ?: {NOT_A_LABEL}" if "?" in names else ""
  first, size = max(map(_width, rows)), max(size, *map(_width, names)) + 1
  lines = [f"confusion matrix (rows: gold, columns: predicted{legend})"]
  lines.append(" " * first + "".join(_right(name, size) for name in names))
  lines += [
    _left(name, first) + "".join(f"{count or '.':>{size}}" for count in row.tolist())
    for name, row in zip(rows, counts, strict=True)
  ]
  if len(rows) < len(report.labels):
    lines += ["most frequent confusions (gold -> predicted)", *_confusions(report, width)]
  return lines


def _cell(counts: np.ndarray) -> int:
  """Returns the width of the largest count in characters."""
  return max(len(str(count)) for count in [0, *counts.ravel()])


def _room(rows: Sequence[str], columns: Sequence[str], width: int) -> int:
  """Returns the width of each column in characters, without the space before it."""
  return (width - max(map(_width, rows))) // max(len(columns), 1) - 1


def _fitted(report: ClassificationReport, width: int) -> tuple[list[str], list[str], np.ndarray]:
  """Returns row names, column names and counts of a matrix that fits into `width`."""
  stray = [NOT_A_LABEL] if report.not_a_label else []
  counts = report.confusion if stray else report.confusion[:, :-1]
  for length in _LABEL_LENGTHS:
    names = _cut_all(report.labels, length)
    if _numbered_width(names, counts) <= width:
      return names, [*names, *stray], counts
  frequency = report.confusion.sum(axis=1) + report.confusion[:, :-1].sum(axis=0)
  order, short = np.argsort(-frequency, kind="stable"), _cut_all(report.labels, _LONGEST_LABEL)
  for number in range(len(report.labels) - 1, 0, -1):
    shown_classes = np.sort(order[:number])
    group = np.full(len(report.labels), number)
    group[shown_classes] = np.arange(number)
    merged = np.zeros((number + 1, number + 2), np.int64)
    np.add.at(merged, (group[:, None], np.append(group, number + 1)[None, :]), report.confusion)
    merged = merged if stray else merged[:, :-1]
    names = [*(short[class_index] for class_index in shown_classes), _OTHERS]
    if _numbered_width(names, merged) <= width:
      break
  return names, [*names, *stray], merged


def _numbered_width(rows: Sequence[str], counts: np.ndarray) -> int:
  """Returns the width of a line of the matrix with numbered classes."""
  number = len(str(len(rows)))
  return number + 1 + max(map(_width, rows)) + (max(number, _cell(counts)) + 1) * counts.shape[1]


def _confusions(report: ClassificationReport, width: int) -> list[str]:
  wrong = report.confusion.copy()
  np.fill_diagonal(wrong, 0)
  flat = wrong.ravel()
  names = [*_cut_all(report.labels, (width - 14) // 2), NOT_A_LABEL]
  lines = []
  for cell_index in np.argsort(-flat, kind="stable")[:_MOST_CONFUSIONS].tolist():
    if flat[cell_index] == 0:
      break
    gold, predicted = divmod(cell_index, len(names))
    lines.append(f"  {flat[cell_index]:>6,}  {names[gold]} -> {names[predicted]}")
  return lines
