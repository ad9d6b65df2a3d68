"""Training labels from a file: other labels, or a teacher's logits, for records of any split of a task."""

from collections.abc import Mapping
import functools
import json
from typing import Any, NamedTuple

import numpy as np
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import task_resolution
from t2t.data.sources import named
from t2t.storage import encoding, gcs, safe_read

SOFT = "soft_labels"  # field of a record with a teacher's logits
# Logit of the right class where a record has a label and no teacher: its softmax is 1 at any common temperature.
_CERTAIN = 1e3


class Labels(NamedTuple):
  """Labels of a file.

  rows: split -> index of a record, in the order of the source -> its class.
  logits: split -> index -> logits; empty: the file has classes alone.
  """

  rows: Mapping[str, Mapping[int, int]]
  logits: Mapping[str, Mapping[int, list[float]]]

  @property
  def number(self) -> int:
    """Number of labeled records."""
    return sum(map(len, self.rows.values()))

  @property
  def classes(self) -> int:
    """Number of logits of a record; 0: none."""
    return next((len(x) for of_split in self.logits.values() for x in of_split.values()), 0)


def read(path: str) -> Labels:
  """Reads a file of labels: JSON lines {"split": "test", "index": 3, "label": 1}, or "logits": [0.5, -0.5] as label.

  Raises:
    UserError: the file cannot be read; names the line.
  """
  where = f"config.data.train_labels={path}"
  gcs.check(path, where="config.data.train_labels=")
  lines = encoding.lines(safe_read.read_text(gcs.absolute(path), where=where))
  rows: dict[str, dict[int, int]] = {}
  logits: dict[str, dict[int, list[float]]] = {}
  sizes = set()
  for number, line in enumerate(lines, start=1):
    try:
      row = json.loads(line)
      split, index = str(row["split"]), int(row["index"])
      values = [float(x) for x in row.get("logits", ())]
      label = int(np.argmax(values)) if values else int(row["label"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
      raise UserError(
        f'{where}, line {number}: {error!r}; write {{"split": "train", "index": 0, "label": 1}}, or "logits": [...] '
        "instead of the label"
      ) from error
    if not np.all(np.isfinite(values)) or label < 0 or index < 0:
      raise UserError(f"{where}, line {number}: {line} has a value out of range; correct the line")
    sizes.add(len(values))
    rows.setdefault(split, {})[index] = label
    if values:
      logits.setdefault(split, {})[index] = values
  if not rows or len(sizes) > 1:
    wrong = "no labels" if not rows else f"lines with {' and '.join(map(str, sorted(sizes)))} logits"
    raise UserError(f"{where}: the file has {wrong}; give each line a label, or each the logits of all classes")
  return Labels(rows, logits)


class LabelledSource(named.NamedSource):
  """Source whose training split has the records and labels of a file; other splits stay.

  Args:
    source: of the task.
    task: name of the task.
    split: the training split.
    path: of the file.
  """

  def __init__(self, source: seqio.DataSource, task: str, split: str, path: str):
    super().__init__(source, task)
    self.split, self.path, self.labels = split, path, read(path)
    for known in self.labels.rows:
      if known not in source.splits:
        raise UserError(
          f"config.data.train_labels={path}: {task} has no split {known!r}; known splits: {', '.join(source.splits)}"
        )

  def list_shards(self, split: str) -> list[str]:
    return [self.path] if split == self.split else list(super().list_shards(split))

  def num_input_examples(self, split: str) -> int | None:
    return self.labels.number if split == self.split else super().num_input_examples(split)

  def get_dataset(
    self, split: str = "train", shuffle: bool = True, seed: int | None = None, **options: Any
  ) -> tf.data.Dataset:
    """Returns one pass over a split; the labeled records are never shuffled, because the reader shuffles them."""
    if split != self.split:
      return super().get_dataset(split, shuffle, seed, **options).map(self._certain)
    parts = [self._of(known) for known in sorted(self.labels.rows)]
    return functools.reduce(lambda joined, part: joined.concatenate(part), parts)

  def _of(self, split: str) -> tf.data.Dataset:
    rows, classes = self.labels.rows[split], self.labels.classes
    indices = tf.constant(sorted(rows), tf.int64)
    labels = tf.constant([rows[index] for index in sorted(rows)], tf.int64)
    logits = tf.constant([self.labels.logits.get(split, {}).get(index, []) for index in sorted(rows)], tf.float32)

    def labelled(index: tf.Tensor, record: Mapping[str, Any]) -> Mapping[str, Any]:
      row = tf.searchsorted(indices, [index])[0]
      soft = {SOFT: logits[row]} if classes else {}
      return {**record, "label": tf.cast(labels[row], record["label"].dtype), **soft}

    records = super().get_dataset(split, shuffle=False, seed=0)
    if "label" not in records.element_spec:
      raise UserError(f"config.data.train_labels: the records of {self.task} have no field 'label'; name other tasks")
    is_labelled = lambda index, record: tf.reduce_any(indices == index)
    return records.enumerate().filter(is_labelled).map(labelled)

  def _certain(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
    if not self.labels.classes:
      return record
    return {**record, SOFT: _CERTAIN * tf.one_hot(tf.cast(record["label"], tf.int32), self.labels.classes)}


def keep(dataset: tf.data.Dataset, *, task: seqio.Task) -> tf.data.Dataset:
  """Applies the preprocessors of a task, and keeps the field `SOFT` of the records beside their examples."""

  def examples_of(record: Mapping[str, Any]) -> tf.data.Dataset:
    one = tf.data.Dataset.from_tensors(record)
    part = task.preprocess_postcache(task.preprocess_precache(one, seed=0), sequence_length={}, seed=0)
    return part.map(lambda example: {**example, SOFT: record[SOFT]})

  return dataset.flat_map(tf.autograph.experimental.do_not_convert(examples_of))


def labelled(provider: task_resolution.Provider, data: DataConfig) -> task_resolution.Provider:
  """Returns the task with the training labels of `data.train_labels`.

  Raises:
    UserError: there are several tasks, or the file does not fit.
  """
  tasks = task_resolution.tasks_of(provider)
  if len(tasks) > 1:
    raise UserError(
      f"config.data.train_labels={data.train_labels} labels records of one task, but config.data.mixture has "
      f"{', '.join(task.name for task in tasks)}. Name one task."
    )

  def with_labels(task: seqio.Task) -> seqio.Task:
    from t2t.data.head_examples import needs

    source = LabelledSource(named.unwrapped(task.source), task.name, data.train_split, data.train_labels)
    task = task.replace(source=source)
    if not source.labels.classes:
      return task
    formats = needs.formats_of(task)
    rest = [step for step in task.preprocessors if step not in formats]
    return task.replace(preprocessors=[functools.partial(keep, task=task.replace(preprocessors=formats)), *rest])

  return task_resolution.copy(provider, with_labels, lambda rate: rate)
