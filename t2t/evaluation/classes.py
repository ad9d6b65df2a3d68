"""Classes of gold labels and predictions, for the classification report of a task."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from t2t.evaluation import classification_report

_MOST = 1_000  # maximum number of classes, if the classes are the numbers or texts that occur


class EvaluatedAnswer(Protocol):
  """Fields of `results.Answer`."""

  example: Mapping[str, Any]
  text: str
  value: Any
  target: Any
  tied: Sequence[Any]


def of_answers(
  task_answers: Sequence[EvaluatedAnswer], *, without_gold: int = 0
) -> classification_report.ClassificationReport | None:
  """Returns the classification report of a task, or None if its answers are not classes.

  Classes are the options if all examples share them. Otherwise they are the numbers of the answers, or the texts if
  each occurs several times.

  Args:
    task_answers: answers with a gold answer.
    without_gold: number of answers that were left out.
  """
  if not task_answers:
    return None
  labels = _options(task_answers)
  if labels:
    pairs = [(_gold(answer, labels), _class(_value(answer), answer.text, labels)) for answer in task_answers]
  else:
    pairs = [(_bare(answer.target), _bare(_value(answer))) for answer in task_answers]
    labels = _numbers(pairs) or _texts(pairs)
  if not labels or any(gold is None for gold, _ in pairs):
    return None
  targets, predictions = zip(*pairs, strict=True)
  report = classification_report.classification_report(targets, predictions, labels)
  return classification_report.ClassificationReport(report.labels, report.confusion, without_gold)


def _options(task_answers: Sequence[EvaluatedAnswer]) -> tuple[str, ...]:
  """Returns the options that all examples share."""
  if any("options" not in answer.example or "tags" in answer.example for answer in task_answers):
    return ()
  # The words of a template stand for labels.
  of_example = lambda example: example.get("option_labels", example["options"])
  first = of_example(task_answers[0].example)
  if not all(np.array_equal(of_example(answer.example), first) for answer in task_answers):
    return ()
  texts = tuple(text.decode() if isinstance(text, bytes) else str(text) for text in first)
  if "option_labels" in task_answers[0].example:
    texts = tuple(dict.fromkeys(texts))
  return texts if len(set(texts)) == len(texts) > 1 else ()


def _value(answer: EvaluatedAnswer) -> Any:
  """Returns the value that counts: the first of tied answers, so that rounding does not decide."""
  return answer.tied[0] if answer.tied else answer.value


def _gold(answer: EvaluatedAnswer, labels: Sequence[str]) -> int | str | None:
  if "label" in answer.example:
    label = int(answer.example["label"])
    return label if 0 <= label < len(labels) else None
  return _class(_bare(answer.target), "", labels)


def _class(value: Any, text: str, labels: Sequence[str]) -> int | str | None:
  """Returns the class of a postprocessed value, or else of the text itself; None: no class."""
  value = _bare(value)
  if isinstance(value, int | np.integer) and not isinstance(value, bool):
    return int(value) if 0 <= value < len(labels) else None
  for name in (value, text.strip()):
    if isinstance(name, str) and name in labels:
      return name
  return None


def _bare(value: Any) -> Any:
  """Returns the value of a grouped target or prediction, without its group."""
  if isinstance(value, Mapping):
    return value.get("value", value.get("label"))
  return value


def _is_number(value: Any) -> bool:
  return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _numbers(pairs: Sequence[tuple[Any, Any]]) -> tuple[str, ...]:
  """Returns class names for numbers from 0; numbers above the count of answers are not classes."""
  if not all(_is_number(gold) and 0 <= gold < _MOST for gold, _ in pairs):
    return ()
  largest = max(max(gold, predicted if _is_number(predicted) and predicted < _MOST else 0) for gold, predicted in pairs)
  return tuple(str(number) for number in range(int(largest) + 1)) if 0 < largest < max(2, len(pairs)) else ()


def _texts(pairs: Sequence[tuple[Any, Any]]) -> tuple[str, ...]:
  """Returns the gold texts if each occurs twice on average; rarer texts are free text, not classes."""
  if not all(isinstance(gold, str) for gold, _ in pairs):
    return ()
  names = sorted({gold for gold, _ in pairs})
  return tuple(names) if 1 < len(names) <= min(_MOST, len(pairs) // 2) else ()
