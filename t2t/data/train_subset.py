"""Few training examples: a class-balanced choice of records of a task, drawn by a seed."""

import bisect
from collections.abc import Mapping, Sequence
import functools
from typing import Any
import weakref
import zlib

import numpy as np
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import objectives, task_resolution
from t2t.data.sources import files, named
from t2t.feature_spec import UNKNOWN
from t2t.runtime import hosts

_SIDE_BY_SIDE = 16  # records that are read at the same time
_MOST_NAMED = 12  # classes in the message


def limited(provider: task_resolution.Provider, data: DataConfig) -> task_resolution.Provider:
  """Returns the task or mixture with `data.max_train_examples` records of each task in the training split."""

  def with_few(task: seqio.Task) -> seqio.Task:
    if data.train_split not in task.splits:
      return task
    if names := objectives.of(task):
      raise UserError(
        f"config.data.max_train_examples={data.max_train_examples} is for tasks with answers, but {task.name} has the "
        f"objective {min(names)}. Leave the key out."
      )
    return task.replace(source=SubsetSource(task, data.train_split, data.max_train_examples, seed=data.subset_seed))

  return task_resolution.copy(provider, with_few, lambda rate: rate)


def quotas(counts: Sequence[int], number: int) -> list[int]:
  """Returns the number of examples of each class: as even as possible, and never above a class's count.

  In:  counts [10, 2, 10], number 9
  Out: [4, 2, 3]                            the classes that come first have the remainder

  With more examples no class has fewer.
  """
  limits = np.array(counts, np.int64)
  levels = range(int(limits.max(initial=0)) + 1)
  level = bisect.bisect_right(levels, number, key=lambda level: np.minimum(limits, level).sum()) - 1
  shares = np.minimum(limits, level)
  shares[np.flatnonzero(limits > level)[: number - shares.sum()]] += 1
  return shares.tolist()


def chosen(labels: Sequence[str], number: int, *, seed: Sequence[int]) -> np.ndarray:
  """Returns the ascending indices of `number` examples, balanced over their labels, int64 [number].

  A larger choice with the same seed contains every smaller one.

  Args:
    labels: class of each example, at least `number`.
    number: number of examples.
    seed: integers from which the choice is drawn.
  """
  random = np.random.default_rng(np.random.SeedSequence(list(seed)))
  names, numbers = np.unique(np.array(labels, str), return_inverse=True)
  classes = [np.flatnonzero(numbers == i) for i in range(len(names))]
  # The remainder of a division goes to the same classes for every number.
  classes = [random.permutation(classes[i]) for i in random.permutation(len(classes))]
  shares = quotas([len(indices) for indices in classes], number)
  return np.sort(np.concatenate([indices[:share] for indices, share in zip(classes, shares, strict=True)]))


class SubsetSource(named.NamedSource):
  """Source with a choice of the records of one split; other splits stay whole.

  Args:
    task: task of the source.
    split: split of which records are chosen.
    number: number of records with an answer.
    seed: seed of the choice.
  """

  def __init__(self, task: seqio.Task, split: str, number: int, *, seed: int):
    super().__init__(named.unwrapped(task.source), task.name)
    self.of_task, self.split, self.number, self.seed = task, split, number, seed

  def list_shards(self, split: str) -> Sequence[str]:
    return [f"{self.number} of {split}"] if split == self.split else super().list_shards(split)

  def num_input_examples(self, split: str) -> int | None:
    return len(self.indices) if split == self.split else super().num_input_examples(split)

  def get_dataset(
    self, split: str = "train", shuffle: bool = True, seed: int | None = None, **options: Any
  ) -> tf.data.Dataset:
    """Returns one pass over a split; the chosen records are never shuffled, because the reader shuffles them."""
    if split != self.split:
      return super().get_dataset(split, shuffle, seed, **options)
    kept = tf.constant(self.indices)
    is_kept = lambda index, record: tf.reduce_any(kept == index)
    return self._records().enumerate().filter(is_kept).map(lambda index, record: record)

  def _records(self) -> tf.data.Dataset:
    return super().get_dataset(self.split, shuffle=False, seed=0)

  @property
  def indices(self) -> np.ndarray:
    """Indices of the chosen records in the order of the source; drawn once, and logged.

    Raises:
      UserError: there are fewer records with an answer.
    """
    kept = _kept_choices(self.source)
    key = (self.task, self.split, self.number, self.seed)
    if key not in kept:
      kept[key] = self._choose(kept)
    return kept[key]

  def _choose(self, kept: dict) -> np.ndarray:
    key = (self.task, self.split)
    try:
      kept[key] = labels_by_index = kept.get(key) or {
        int(index): label.decode() for index, label in _labels(self.of_task, self._records())
      }
    except tf.errors.OpError as error:
      raise files.user_error(error) or named.in_pipeline(error, self.task) from error
    indices, labels = list(labels_by_index), list(labels_by_index.values())
    where = f"config.data.max_train_examples={self.number}"
    if self.number > len(indices):
      raise UserError(
        f"{where}: {self.task} has only {len(indices):,} examples with an answer in the split {self.split!r}. Give at "
        f"most {len(indices)}, or -1 for all."
      )
    choice = chosen(labels, self.number, seed=(self.seed, zlib.crc32(self.task.encode())))
    counts = {label: sum(labels[i] == label for i in choice) for label in sorted(set(labels))}
    listed = ", ".join(f"{label} {count}" for label, count in list(counts.items())[:_MOST_NAMED])
    more = f" and {len(counts) - _MOST_NAMED} more classes" if len(counts) > _MOST_NAMED else ""
    of_classes = f": {listed}{more}" if any(counts) else ""
    hosts.log_once(f"{where}: {self.task} keeps {self.number:,} of {len(indices):,} training examples{of_classes}")
    return np.array(indices, np.int64)[choice]


# Choices of a source, which several copies of a task read.
_OF_SOURCES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


@functools.lru_cache(maxsize=32)
def _of_files(description: str, stamps: tuple) -> dict:
  del description, stamps
  return {}


def _kept_choices(source: seqio.DataSource) -> dict:
  """Returns the choices already drawn from a source; released files are the same source in every copy."""
  if isinstance(source, named.FolderSource) and source.folder:
    paths = sorted({path for split in source.splits for path in source.files_of(split)})
    stats = [tf.io.gfile.stat(path) for path in paths]
    return _of_files(str(source), tuple((stat.length, stat.mtime_nsec) for stat in stats))
  return _OF_SOURCES.setdefault(source, {})


def _labels(task: seqio.Task, records: tf.data.Dataset) -> list[tuple[np.int64, bytes]]:
  """Returns index and class of each record with an answer; "" if its examples have no classes."""
  from t2t.data.head_examples import needs

  steps = [step for step in task.preprocessors if not isinstance(step, seqio.CacheDatasetPlaceholder)]
  formats = task.replace(preprocessors=steps)

  def of_record(index: tf.Tensor, record: Any) -> tf.data.Dataset:
    examples = needs.formatted(formats, tf.data.Dataset.from_tensors(record)).take(1)
    labels = examples.map(lambda example: (index, *_class_of(example)))
    return labels.filter(lambda index, label, is_answered: is_answered)

  labelled = records.enumerate().interleave(
    tf.autograph.experimental.do_not_convert(of_record),
    cycle_length=_SIDE_BY_SIDE,
    num_parallel_calls=tf.data.AUTOTUNE,
    deterministic=True,
  )
  return sorted((index, label) for index, label, _ in labelled.as_numpy_iterator())


def _class_of(example: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the class of an example, "" without classes, and whether its answer is known."""
  targets = example.get("targets", tf.constant(""))
  known = targets != UNKNOWN if targets.dtype == tf.string and targets.shape.rank == 0 else tf.constant(True)
  if "words" in example or not {"options", "classes"} & set(example):
    return tf.constant(""), known
  if "label" not in example:  # the options name the class
    is_one = tf.reduce_any(example["options"] == targets)
    return tf.where(is_one, targets, ""), known
  label = tf.cast(example["label"], tf.int32)
  # Names that differ between examples are no classes.
  names = example["options"] if "options" in example else tf.strings.as_string(tf.range(tf.size(example["classes"])))
  return tf.gather(names, tf.maximum(label, 0)), label >= 0
