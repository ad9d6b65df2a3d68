"""Training files of confident predictions: `t2t infer --min_confidence` labels lines for the next fine-tuning."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
import json
from typing import TYPE_CHECKING, Any

from t2t import UserError
from t2t.inference import batch_inference, jsonl_io, table_output

if TYPE_CHECKING:  # imports TensorFlow
  from t2t.data import tables

EQUAL = "equal"  # value of --per_class
_SHOWN = 8  # classes in a note
_UNBALANCED = 2  # ratio of the largest class to the smallest from which a note says so


class TrainingFile:
  """The training file that a run of `t2t infer` writes; see `write`.

  Args:
    output, input_path: paths of the file, and of the lines.
    least, per_class: see `write`; `least` may be missing on the command line.

  Raises:
    UserError: the output is not a new .jsonl file, an option is missing, or --per_class is not a number.
  """

  def __init__(self, output: str, input_path: str, least: float | None, per_class: str):
    if least is None:
      raise UserError(f"--per_class {per_class} needs --min_confidence. Give --min_confidence P, or leave it out.")
    check(output, input_path, per_class)
    self._output, self._limits = output, {"least": least, "per_class": per_class}
    self._spec: tables.TableSpec | None = None

  def check(self, way: batch_inference.Way, spec: "tables.TableSpec | None") -> None:
    """Checks that the model predicts one of several classes, and keeps the table of its fine-tuning.

    Raises:
      UserError: it predicts something else.
    """
    self._spec = spec
    if way.asks != "class" or (spec is not None and spec.kind != "class"):
      raise UserError(
        f"--min_confidence needs a model that predicts one of several classes (kind of prediction: {way.asks}). Leave "
        "out --min_confidence, or give another checkpoint."
      )

  def write(self, inputs: Callable[[], Iterator[jsonl_io.Line]]) -> list[str]:
    """Writes the file, and returns the lines of the summary."""
    limits: Any = self._limits
    return [*write(self._output, inputs, spec=self._spec, **limits), f"{'training file':<14} {self._output}"]


def check(output: str, input_path: str, per_class: str) -> None:
  """Checks the options of a training file; uses no device.

  Raises:
    UserError: the output is not a new .jsonl file, or --per_class is not a number.
  """
  if not output.endswith(".jsonl"):
    raise UserError(f"--output {output}: --min_confidence writes JSON lines. Give a path that ends in .jsonl.")
  if per_class not in ("", EQUAL) and not (per_class.isdigit() and int(per_class)):
    raise UserError(f"--per_class {per_class} is not valid. Give a whole number of at least 1, or {EQUAL}.")
  table_output.check_new(output, input_path)


def write(
  output: str,
  inputs: Callable[[], Iterator[jsonl_io.Line]],
  *,
  spec: "tables.TableSpec | None",
  least: float,
  per_class: str = "",
) -> list[str]:
  """Writes the lines with a confident prediction, with this label, after all rows are complete.

  In:  {"review": "Superb!", "id": 3} with the prediction yes, probability 0.97, least 0.9
  Out: {"review": "Superb!", "sentiment": "yes"}; without a table {"inputs": "Superb!", "label": "yes"}

  Args:
    output: path of the file; an existing one is replaced.
    inputs: returns the lines of the input, in order.
    spec: the table of the model's fine-tuning, if any; it names the columns.
    least: smallest probability of a kept prediction.
    per_class: most lines of a class, the most confident first, or `EQUAL`: as many of each class as of the rarest kept
      one; "": all.

  Returns:
    Lines of the summary, with the kept and the read number of each class.

  Raises:
    UserError: the file cannot be written.
  """
  confidences, labels = [], []
  classes: set[str] = set()
  num_classes = 0
  for _, row in table_output.pairs(output, inputs):
    probabilities: Any = row.get("probabilities")
    labels.append(None if probabilities is None else row["prediction"])
    confidences.append(0.0 if probabilities is None else _confidence(probabilities))
    num_classes = max(num_classes, len(probabilities or ()))
    classes |= probabilities.keys() if isinstance(probabilities, Mapping) else set()
  kept = _chosen(labels, confidences, least, per_class)
  with table_output.replacing(output) as part, open(part, "w", encoding="utf-8") as file:
    for number, (line, row) in enumerate(table_output.pairs(output, inputs)):
      if number in kept:
        file.write(json.dumps(_example(line, row["prediction"], spec), ensure_ascii=True) + "\n")
  taken = Counter({name: 0 for name in classes})
  taken.update(labels[number] for number in kept)
  return [*_summary(labels, kept, least), *_notes(taken, num_classes, least, per_class)]


def _confidence(probabilities: Mapping[str, float] | Sequence[float]) -> float:
  return max(probabilities.values() if isinstance(probabilities, Mapping) else probabilities)


def _chosen(labels: Sequence[str | None], confidences: Sequence[float], least: float, per_class: str) -> set[int]:
  """Returns the numbers of the kept lines; of equally confident lines the first are kept."""
  by_class: dict[str, list[int]] = {}
  for number, (label, confidence) in enumerate(zip(labels, confidences, strict=True)):
    if label is not None and confidence >= least:
      by_class.setdefault(label, []).append(number)
  limit = min(map(len, by_class.values()), default=0) if per_class == EQUAL else int(per_class or len(labels))
  ordered = (sorted(numbers, key=lambda number: -confidences[number])[:limit] for numbers in by_class.values())
  return {number for numbers in ordered for number in numbers}


def _example(line: jsonl_io.Line, label: str, spec: "tables.TableSpec | None") -> dict[str, Any]:
  if spec is not None and all(name in line.others for name in spec.texts):
    return {name: line.others[name] for name in spec.texts} | {spec.label or "label": label}
  parts = line.others.get("parts", [line.text])
  names = spec.texts if spec is not None else ("inputs",) if len(parts) == 1 else ("sentence1", "sentence2")
  return dict(zip(names, parts, strict=True)) | {(spec.label if spec is not None else "") or "label": label}


def _summary(labels: Sequence[str | None], kept: set[int], least: float) -> Iterator[str]:
  """Yields the number of kept lines, in all and of each class."""
  predicted, taken = Counter(labels), Counter(labels[number] for number in kept)
  yield f"{'kept':<14} {len(kept):,} of {len(labels):,} lines with a confidence of at least {least:g}"
  for label in sorted(filter(None, predicted)):
    yield f"  {label:<12} {taken[label]:,} of {predicted[label]:,}"


def _notes(taken: Mapping[str, int], num_classes: int, least: float, per_class: str) -> Iterator[str]:
  """Yields notes on a threshold that all lines pass, on classes without a line, and on unequal classes.

  Args:
    taken: number of kept lines of each class of the model.
    num_classes: of the model.
    least, per_class: see `write`.
  """
  if num_classes and least <= 1 / num_classes:
    yield (
      f"note: --min_confidence {least:g} keeps every line, because the likeliest of {num_classes} classes always has "
      f"at least {1 / num_classes:.3g}. Give a larger value."
    )
  if lacking := sorted(name for name, number in taken.items() if not number):
    more = f", and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    yield (
      f"note: unbalanced: no line is kept of the class {', '.join(lacking[:_SHOWN])}{more}. Give a smaller "
      "--min_confidence or more lines; --per_class equal balances only classes with lines."
    )
  present = sorted(filter(None, taken.values()))
  if not per_class and len(present) > 1 and present[-1] >= _UNBALANCED * present[0]:
    yield (
      f"note: unbalanced: {present[0]:,} to {present[-1]:,} lines of a class. --per_class equal keeps {present[0]:,} "
      "of each."
    )
