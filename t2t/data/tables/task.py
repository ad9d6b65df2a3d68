"""Table as a seqio task, trained, evaluated and reported like a registered task, without registration."""

from collections.abc import Sequence
import functools
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t2t.data import postprocessors, preprocessors
from t2t.data.tables import examples as examples_lib
from t2t.data.tables.spec import TASK, TableSpec
from t2t.evaluation import task_metrics

_SPLITS = ("train", "validation")


def make(spec: TableSpec, *, malformed: float = 0.0) -> seqio.Task:
  """Returns the task of a table with the splits "train" and "validation"; without training files only the latter.

  Args:
    spec: of the table.
    malformed: see `examples.load`.

  Raises:
    UserError: see `examples.load`.
  """
  table = examples_lib.load(spec, malformed=malformed)
  rows_by_split = {split: rows for split, rows in zip(_SPLITS, (table.train, table.held_out), strict=True) if rows}
  constants: dict[str, Any] = {"head": spec.head}
  if spec.kind in ("class", "tags"):
    constants["options"] = list(spec.classes)
  if spec.no_answer:
    constants["no_answer"] = postprocessors.UNANSWERABLE
  return seqio.Task(
    TASK,
    source=seqio.FunctionDataSource(
      functools.partial(_dataset, {split: _columns(rows) for split, rows in rows_by_split.items()}),
      splits=tuple(rows_by_split),
      num_input_examples={split: len(rows) for split, rows in rows_by_split.items()},
    ),
    preprocessors=preprocessors.text_to_text(with_constants, constants=constants),
    output_features=preprocessors.t5_features(),
    postprocess_fn=_postprocess(spec, [*table.train, *table.held_out]),
    metric_fns=metrics(spec),
    shuffle_buffer_size=_SHUFFLE_BUFFER,
  )


_SHUFFLE_BUFFER = 16  # rows are already shuffled as a whole; this separates windows of one context


@seqio.map_over_dataset
def with_constants(features: dict[str, tf.Tensor], *, constants: dict[str, Any]) -> dict[str, tf.Tensor]:
  """Adds the constant features: the name of the head, the classes, the text for "no answer"."""
  return features | {name: tf.constant(value) for name, value in constants.items()}


def metrics(spec: TableSpec) -> list[task_metrics.Metric]:
  """Returns functions (targets, predictions) -> metrics by name, for the kind of the table."""
  return {
    "class": lambda: [task_metrics.accuracy, task_metrics.occurring_class_f1],
    "score": lambda: [task_metrics.pearson, task_metrics.spearman],
    "tags": lambda: [
      task_metrics.entity_f1 if postprocessors.mark_entities(spec.classes) else task_metrics.word_accuracy
    ],
    "span": lambda: [task_metrics.squad_v2 if spec.no_answer else task_metrics.squad],
    "choice": lambda: [task_metrics.accuracy],
    "text": lambda: [task_metrics.accuracy, task_metrics.rouge],
  }[spec.kind]()


def _postprocess(spec: TableSpec, rows: Sequence[examples_lib.Example]) -> postprocessors.Postprocess:
  """Returns the function text -> value that metrics compare; see `postprocessors`."""
  options = max((len(row["candidates"]) for row in rows), default=0) if spec.kind == "choice" else 0
  return {
    "class": lambda: postprocessors.label(spec.classes),
    "score": postprocessors.number,
    "tags": lambda: postprocessors.tagged(spec.classes),
    "span": postprocessors.squad,
    "choice": lambda: postprocessors.label([f"choice{number}" for number in range(1, options + 1)]),
    "text": postprocessors.text,
  }[spec.kind]()


# Features of an example by type: texts, lists of texts, lists of numbers.
_TEXTS = ("inputs", "targets", "row", "id", "question", "context")
_TEXT_LISTS = ("parts", "words", "answers", "answer_texts", "candidates", "options")
_NUMBER_LISTS = ("tags", "answer_starts")


def _columns(rows: Sequence[examples_lib.Example]) -> dict[str, Any]:
  """Returns feature -> NumPy array [rows]; for lists a pair (values, row splits [rows + 1])."""
  arrays: dict[str, Any] = {}
  for name in rows[0]:
    cells = [row[name] for row in rows]
    if name in _TEXTS:
      arrays[name] = np.array([text.encode() for text in cells], object)
    elif name in _TEXT_LISTS:
      arrays[name] = np.array([text.encode() for texts in cells for text in texts], object), _splits(cells)
    elif name in _NUMBER_LISTS:
      arrays[name] = np.array([number for numbers in cells for number in numbers], np.int32), _splits(cells)
    elif name == "label":
      arrays[name] = np.array(cells, np.float32 if isinstance(cells[0], float) else np.int32)
  return arrays


def _splits(lists: Sequence[Sequence[Any]]) -> np.ndarray:
  return np.cumsum([0, *map(len, lists)]).astype(np.int64)


def _dataset(columns: dict[str, dict[str, Any]], split: str, shuffle_files: bool, seed: int | None = None):
  """Returns one pass over a split, in row order; the reader shuffles windows of it."""
  del shuffle_files, seed
  tensors = {
    name: tf.RaggedTensor.from_row_splits(tf.constant(x[0], tf.string if x[0].dtype == object else None), x[1])
    if isinstance(x, tuple)
    else tf.constant(x)
    for name, x in columns[split].items()
  }
  number = len(columns[split]["inputs"])
  return tf.data.Dataset.range(number).map(lambda i: {name: x[i] for name, x in tensors.items()})
