"""Rows of batches from windows of records: preprocessing, mixing and packing start anew in each window.

Each row stores the position behind it. A position is therefore a few integers, not the state of a buffer or iterator:
for each task (epoch, group, window, examples taken), and for a mixture (window of mixed examples, rows taken) with the
positions of its tasks at the start of that window.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
from typing import Any
import zlib

import numpy as np
import seqio
import tensorflow as tf

# Avoids AutoGraph: it would rewrite a dataset-building function with everything that it calls, seqio included, in 10 s.
# `do_not_convert` would also exclude preprocessors that need it, see `_needs_autograph`.
from tensorflow.python.autograph.impl.api import call_with_unspecified_conversion_status as as_it_stands

from t2t import UserError
from t2t import feature_spec as of_models
from t2t.data import shard_order, sources, task_resolution
from t2t.data.sources import bad_records, named

not_converted = tf.autograph.experimental.do_not_convert

Examples = tf.data.Dataset

# Row features beside those of the model; the second only for training mixtures.
POSITION, EPOCHS = "position", "epochs"
TASK, MIXED = 4, 2  # number of integers in the position of a task and of a mixture

# The end of a window of packed or merged text loses half an example to padding: 0.1 % of this many examples.
_EXAMPLES_OF_WINDOW = 512
_BYTES_OF_TOKEN = 4
# Rows that continue are cut from so many windows at once: 128 rows follow each other in a batch of 64.
_CONTINUOUS_WINDOWS = 16
# Examples of a mixture packed together; without packing a window loses nothing, and may be short.
_MIXED_PACKED, _MIXED_ALONE = 4096, 256
# Examples whose tasks are drawn by one call, because calls take longer than draws.
_BLOCK = 64
# Shuffle buffers have their full size up to this many streams; more streams mix by themselves.
_SHUFFLING_STREAMS = 8


@dataclasses.dataclass(frozen=True)
class DataPlan:
  """Plan of the rows.

  task: a task or a mixture for the architecture. split: split of the task. lengths: tokens of each feature of an
  example. convert: a task's examples -> the model's features. pack: whether `convert` puts several examples in a row.
  seed: seed of the record order and of the preprocessors' noise. train: repeats epochs, shuffled; otherwise one pass in
  order. continuous: whether rows continue, see `continuous_rows`; for plans of one task.
  """

  task: seqio.Task | seqio.Mixture
  split: str
  lengths: Mapping[str, int]
  convert: Callable[[Examples], tf.data.Dataset]
  pack: bool
  seed: int
  train: bool = True
  continuous: bool = False

  @property
  def tasks(self) -> list[seqio.Task]:
    """Tasks with the split; seqio skips the other tasks of a mixture."""
    return [task for task in task_resolution.tasks_of(self.task) if self.split in task.splits]

  @property
  def window_bytes(self) -> int:
    """Bytes of text in a window."""
    windows = _CONTINUOUS_WINDOWS if self.continuous else 1
    return windows * _EXAMPLES_OF_WINDOW * _BYTES_OF_TOKEN * sum(self.lengths.values())


def beginning(plan: DataPlan) -> np.ndarray:
  """Returns the position of a stream before its first row."""
  return np.zeros(MIXED + TASK * len(plan.tasks), np.int64)


def position_to_json(plan: DataPlan, position: np.ndarray) -> dict[str, Any]:
  """Returns a position as JSON values, for people and for other versions.

  In:  [0, 0, 2, 0, 5, 17] of a task "files"
  Out: {"window": 0, "taken": 0, "tasks": {"files": [2, 0, 5, 17]}}
  """
  tasks = position[MIXED:].reshape(-1, TASK)
  return {
    "window": int(position[0]),
    "taken": int(position[1]),
    "tasks": {task.name: row.tolist() for task, row in zip(plan.tasks, tasks, strict=True)},
  }


def epochs(position: np.ndarray) -> np.ndarray:
  """Returns the number of passes over each task; in a mixture at the start of the window."""
  return position[MIXED::TASK]


def position_from_json(plan: DataPlan, saved: Mapping[str, Any]) -> np.ndarray:
  """Inverts `position_to_json`.

  Raises:
    UserError: the position belongs to other tasks.
  """
  names = [task.name for task in plan.tasks]
  if sorted(names) != sorted(saved["tasks"]):
    raise UserError(
      f"config.data.mixture: the checkpoint's data position belongs to {', '.join(sorted(saved['tasks']))}, not "
      f"to {', '.join(sorted(names))}. Restore the earlier value, or start a new workdir from the parameters with "
      "config.init.checkpoint."
    )
  return np.array([saved["window"], saved["taken"], *(n for name in names for n in saved["tasks"][name])], np.int64)


# ---- A window --------------------------------------------------------------------------------------------------------


class _Given(seqio.DataSource):
  """Data source over an existing dataset of records."""

  def __init__(self, dataset: tf.data.Dataset, split: str):
    super().__init__(splits=(split,), num_input_examples={split: None})
    self._dataset = dataset

  @property
  def supports_arbitrary_sharding(self) -> bool:
    return True

  def list_shards(self, split: str) -> Sequence[str]:
    return [split]

  def get_dataset(self, split="train", shuffle=False, seed=None, shard_info=None, **unused) -> tf.data.Dataset:
    del split, shuffle, seed, shard_info, unused
    return self._dataset


@contextlib.contextmanager
def drawn_from(seed: tf.Tensor) -> Iterator[None]:
  """Makes random numbers of preprocessors that are built in this context depend on `seed`, int64 [].

  seqio's `map_over_dataset` draws from `tf.data.Dataset.random`, with seeds that it counts in Python. In a graph that
  is built once for all windows these would repeat in each window.
  """
  plain = tf.data.Dataset.random

  def random(op_seed: Any = None, *arguments, **options) -> tf.data.Dataset:
    op_seed = options.pop("seed", op_seed)
    return plain(op_seed if op_seed is None else tf.cast(op_seed, tf.int64) + seed, *arguments, **options)

  tf.data.Dataset.random = staticmethod(random)
  try:
    yield
  finally:
    tf.data.Dataset.random = staticmethod(plain)


def is_of_library(x: Any) -> bool:
  """Returns whether a function, or the class of an object, is defined in t2t or seqio."""
  return (getattr(x, "__module__", None) or "").split(".")[0] in ("t2t", "seqio")


def _needs_autograph(task: seqio.Task) -> bool:
  """Returns whether a task has a user's preprocessor, which may use Python's `if` and `for` on tensors."""

  def is_known(step: Any) -> bool:
    if isinstance(step, functools.partial):
      bound = (*step.args, *step.keywords.values())
      return is_known(step.func) and all(map(is_known, filter(callable, bound)))
    return is_of_library(step)

  return not all(map(is_known, task.preprocessors))


def examples_of_window(
  plan: DataPlan, task: seqio.Task, records: tf.data.Dataset, seed: tf.Tensor, *, buffer: int = 1, trim: bool = True
) -> Examples:
  """Returns the examples that a task makes from the records of one window."""
  make = task.replace(source=_Given(records, plan.split)).get_dataset
  if not _needs_autograph(task):
    make = not_converted(make)
  with drawn_from(seed):
    examples = make(
      sequence_length={name: length for name, length in plan.lengths.items() if name in task.output_features},
      split=plan.split,
      shuffle=False,
      seed=plan.seed % 2**31,
      num_epochs=1,
      trim_output_features=trim,
      try_in_mem_cache=False,
    )
  if plan.train and buffer > 1:
    examples = examples.shuffle(buffer, seed=seed, reshuffle_each_iteration=False)
  return examples


# Windows read ahead of the returned examples: in the generator, its prefetch, and in preprocessing.
_AHEAD = 3


@dataclasses.dataclass
class Progress:
  """Counts of records and examples of a task, updated while reading; windows read ahead are included.

  records: stream -> records read.
  made: streams with an example since their last window was read.
  yields: streams with an example.
  """

  records: dict[int, int] = dataclasses.field(default_factory=dict)
  made: set[int] = dataclasses.field(default_factory=set)
  yields: set[int] = dataclasses.field(default_factory=set)

  def note(self, stream: int) -> None:
    """Records that a window of a stream has an example."""
    self.made.add(stream)
    self.yields.add(stream)

  @property
  def num_records(self) -> int:
    """Records that all streams have read."""
    return sum(list(self.records.values()))  # copied, because threads add entries meanwhile


@dataclasses.dataclass(frozen=True)
class TaskSource:
  """A task of a plan, and the order in which its records are read."""

  plan: DataPlan
  task: seqio.Task
  records: shard_order.Records
  shares: Sequence[tuple[shard_order.Piece, ...]]
  progress: Progress = dataclasses.field(default_factory=Progress, compare=False)

  def order(self, stream: int) -> shard_order.Order:
    """Returns the order in which a stream reads the records."""
    return self._order(stream, self.shares[stream])

  def _order(self, stream: int, share: tuple[shard_order.Piece, ...]) -> shard_order.Order:
    seed = (self.plan.seed, stream, zlib.crc32(self.task.name.encode()))
    shuffled = self.plan.train and not self.plan.continuous
    return shard_order.Order(share, seed, self.plan.window_bytes, shuffled=shuffled, forever=self.plan.train)

  def _used(
    self, stream: int, order: shard_order.Order, start: shard_order.WindowPosition
  ) -> Iterator[shard_order.Window]:
    """Yields the windows of an order until an epoch has no example, or at the start until `MOST_UNUSED` records have
    none.
    """
    begins, progress = start == shard_order.WindowPosition(), self.progress
    epoch = None if begins else start.epoch
    # Records of each window since the last example, and whether an epoch begins with it. The newest windows are
    # separate, because their examples may not have been read yet.
    newest: collections.deque[tuple[int, bool]] = collections.deque()
    records = epochs = 0
    for window in order.windows(self.records, start):
      if stream in progress.made:
        progress.made.discard(stream)
        newest.clear()
        records = epochs = 0
      # The order of pieces changes with the epoch, so two examples of a share may be nearly two epochs apart.
      if epochs == 2:
        return
      if begins and stream not in progress.yields and records >= bad_records.MOST_UNUSED:
        return
      newest.append((len(window.records), window.position.epoch != epoch))
      epoch = window.position.epoch
      if len(newest) > _AHEAD:
        number, is_first = newest.popleft()
        records, epochs = records + number, epochs + is_first
      progress.records[stream] = progress.records.get(stream, 0) + len(window.records)
      yield window

  def windows(self, stream: int, start: shard_order.WindowPosition) -> Iterator[shard_order.Window]:
    """Yields the windows of a stream; training on a share without examples reads all shares, in a separate order."""
    yield from self._used(stream, self.order(stream), start)
    if self.plan.train:
      (whole_share,) = shard_order.shares(self.records.shards(), 1)
      yield from self._used(stream, self._order(stream, whole_share), start)

  def yields_nothing(self) -> UserError:
    """Returns the error for a split without examples."""
    return bad_records.NoExamples(self.task.name, self.plan.split, self.progress.num_records)

  def dataset(
    self, stream: tf.Tensor, start: Callable[[int], np.ndarray], make: Callable, behind: Callable
  ) -> tf.data.Dataset:
    """Returns the dataset of `make` over all windows, with the task's position behind each element.

    Args:
      stream: int64 [].
      start: stream -> the start position.
      make: (records, seed) -> dataset.
      behind: (element, the task's position behind it, int64 [`TASK`]) -> the yielded element.
    """

    def generate(number: int) -> Iterator[tuple]:
      position = start(int(number))
      window_position, rows_read = shard_order.WindowPosition(*map(int, position[:3])), int(position[3])
      for window in self.windows(int(number), window_position):
        yield (
          window.columns,
          dataclasses.astuple(window.position),
          window.seed,
          rows_read if window.position == window_position else 0,
        )
      if self.plan.train:
        raise UserError(str(self.yields_nothing()))  # tf.data passes on only the class name and the text

    def note(stream: int, number: np.int64) -> np.int64:
      self.progress.note(int(stream))
      return number

    def rows(
      columns: tuple[tf.Tensor, ...], window_position: tf.Tensor, seed: tf.Tensor, skip: tf.Tensor
    ) -> tf.data.Dataset:
      examples = make(self.records.features(columns), seed).enumerate(1).skip(skip)

      def placed(number: tf.Tensor, element: Any) -> Any:
        # Python is called once per window.
        noted = lambda: tf.ensure_shape(tf.numpy_function(note, [stream, number], tf.int64), [])
        number = tf.cond(number == skip + 1, noted, lambda: number)
        return behind(element, tf.concat([window_position, [number]], 0))

      return examples.map(not_converted(placed))

    signature = (
      (tf.TensorSpec([None], tf.string),) * self.records.num_columns,
      tf.TensorSpec([3], tf.int64),
      tf.TensorSpec([], tf.int64),
      tf.TensorSpec([], tf.int64),
    )
    window_tensors = tf.data.Dataset.from_generator(generate, args=(stream,), output_signature=signature)
    return window_tensors.prefetch(1).flat_map(as_it_stands(rows))


def records_of(task: seqio.Task, split: str) -> shard_order.Records:
  """Returns the records of a task's source, as streams read them."""
  source = task.source
  if isinstance(source, sources.FileSource):
    return source.records(split)
  failure = lambda error, where: named.failure(error, task.name, what=f"its source fails in {where}")
  return shard_order.SeqioRecords(source, split, kind=type(named.unwrapped(source)).__name__, failure=failure)


def has_answer(example: Mapping[str, Any]) -> Any:
  """Returns True, or a tensor, if an example has an answer: in a field for heads, in a text for generation.

  `preprocessors` marks a missing label, -1 or NaN, as no answer.
  """
  if "has_answer" in example:
    return example["has_answer"]
  if "label" in example and "targets_pretokenized" in example:
    return example["targets_pretokenized"] != of_models.UNKNOWN.encode()
  return True


def labelled(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the examples with an answer; others can be predicted but not learned from."""
  spec = dataset.element_spec
  if "has_answer" not in spec and not ("label" in spec and "targets_pretokenized" in spec):
    return dataset
  return dataset.filter(has_answer)


def sources_of(plan: DataPlan, num_streams: int) -> list[TaskSource]:
  """Returns the tasks of a plan with the share of each stream."""
  task_sources = []
  for task in plan.tasks:
    records = records_of(task, plan.split)
    task_sources.append(TaskSource(plan, task, records, shard_order.shares(records.shards(), num_streams)))
  return task_sources


def _buffer(task: seqio.Task, num_streams: int) -> int:
  """Returns the size of a stream's shuffle buffer, in examples."""
  most = task.shuffle_buffer_size or 1
  return -(-most * _SHUFFLING_STREAMS // max(num_streams, _SHUFFLING_STREAMS))


# ---- A stream --------------------------------------------------------------------------------------------------------


def _of_task(source: TaskSource, stream: tf.Tensor, start: Callable[[int], np.ndarray], rows: int) -> tf.data.Dataset:
  """Returns the rows of a stream of one task, of which each batch takes `rows`."""
  plan = source.plan
  buffer = 1 if plan.continuous else _buffer(source.task, len(source.shares))
  examples = lambda records, seed: examples_of_window(plan, source.task, records, seed, buffer=buffer)
  make = lambda records, seed: plan.convert(labelled(examples(records, seed)))
  if plan.continuous:
    from t2t.data import continuous_rows

    shuffled = make
    make = lambda records, seed: continuous_rows.arranged(shuffled(records, seed), rows)
  unmixed = [0] * MIXED
  behind = lambda features, position: {**features, POSITION: tf.concat([unmixed, position], 0)}
  return source.dataset(stream, lambda number: start(number)[MIXED:], make, behind)


def _of_mixture(
  task_sources: Sequence[TaskSource], stream: tf.Tensor, start: Callable[[int], np.ndarray]
) -> tf.data.Dataset:
  """Returns the rows of a stream of several tasks; the task of an example is drawn from its number."""
  plan, number = task_sources[0].plan, len(task_sources)
  size = _MIXED_PACKED if plan.pack else _MIXED_ALONE
  start_position = tf.ensure_shape(tf.numpy_function(start, [stream], tf.int64), [MIXED + TASK * number])
  first, rows_read = start_position[0], start_position[1]

  def examples_of(task: int) -> tf.data.Dataset:
    task_slice = slice(MIXED + TASK * task, MIXED + TASK * (task + 1))
    source = task_sources[task]
    buffer = _buffer(source.task, len(source.shares))
    make = lambda records, seed: labelled(examples_of_window(plan, source.task, records, seed, buffer=buffer))
    names = (*plan.task.output_features, of_models.TASK)
    as_drawn = lambda features, position: ({name: features[name] for name in names if name in features}, task, position)
    return source.dataset(stream, lambda number: start(number)[task_slice], make, as_drawn)

  # The held-out examples of a small task may not suffice for all streams, and the others continue without it. A task
  # with rate 0 is excluded, because its end would never be found.
  rates = {task: rate for task, rate in enumerate(mixing_rates(plan)) if rate}
  examples = tf.data.Dataset.choose_from_datasets(
    [examples_of(task) for task in rates],
    drawn_tasks(list(rates.values()), seed=plan.seed, stream=stream, first=first * size),
    stop_on_empty_dataset=plan.train,
  )

  def note(table: tf.Tensor, window: tuple) -> tuple:
    """Returns the positions of the tasks before a window, and before each of its examples."""
    features, *drawn_and_positions = window
    drawn, positions = (tf.data.Dataset.get_single_element(part.batch(size)) for part in drawn_and_positions)
    behind = places_behind(table, drawn, positions)
    return behind[-1], (features, tf.concat([table[None], behind[:-1]], 0))

  def mixed(index: tf.Tensor, window: tuple) -> tf.data.Dataset:
    features, tables = window
    at_start = tf.reshape(tables[0], [-1])
    behind = lambda number: tf.concat([[index, number], at_start], 0)
    converted = plan.convert(tf.data.Dataset.zip(features))
    if not plan.train:
      return converted.enumerate(1).map(lambda number, features: {**features, POSITION: behind(number)})

    def counted(state: tuple, features: Mapping[str, tf.Tensor]) -> tuple:
      """Adds to a row its number, the number of examples up to it, and the passes recorded by the last of them."""
      number, examples = state[0] + 1, state[1] + (_examples_in(features) if plan.pack else 1)
      passes = tables[tf.minimum(examples, tf.shape(tables, tf.int64)[0]) - 1, :, 0]
      return (number, examples), {**features, POSITION: behind(number), EPOCHS: passes}

    zero = tf.constant(0, tf.int64)
    return converted.scan((zero, zero), counted).skip(tf.where(index == first, rows_read, 0))

  tables = tf.reshape(start_position[MIXED:], [number, TASK])
  return examples.window(size).scan(tables, not_converted(note)).enumerate(first).flat_map(as_it_stands(mixed))


def drawn_tasks(rates: Sequence[float], *, seed: int, stream: tf.Tensor, first: tf.Tensor) -> tf.data.Dataset:
  """Returns the task of each example of a stream, int64 [], forever; drawn from the example's number alone.

  Args:
    rates: relative sampling rate of each task.
    seed: seed of the run.
    stream: int64 [].
    first: int64 [], number of the first example.
  """
  ends = tf.constant(np.cumsum(rates), tf.float64)
  key = seed % 2**31 + stream * 2**31

  def block(number: tf.Tensor) -> tf.Tensor:
    indices = tf.unstack(number * _BLOCK + tf.range(_BLOCK, dtype=tf.int64))
    drawn = [tf.random.stateless_uniform([], tf.stack([key, index]), dtype=tf.float64) for index in indices]
    return tf.searchsorted(ends, tf.stack(drawn) * ends[-1], side="right", out_type=tf.int64)

  blocks = tf.data.Dataset.counter(first // _BLOCK)
  return blocks.map(tf.autograph.experimental.do_not_convert(block)).unbatch().skip(first % _BLOCK)


def places_behind(before: tf.Tensor, drawn: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
  """Returns the position of each task behind each example, int64 [examples, tasks, integers].

  Args:
    before: int64 [tasks, integers], positions before the first example.
    drawn: integers [examples], the task of each example.
    positions: int64 [examples, integers], the position of that task behind the example.
  """
  number = tf.shape(drawn)[0]
  is_drawn = tf.equal(drawn[:, None], tf.range(before.shape[0], dtype=drawn.dtype))
  last = tf.where(is_drawn, tf.range(1, number + 1)[:, None], 0)  # 0: none so far

  def wider(last: tf.Tensor, shift: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.maximum(last, tf.pad(last, [[shift, 0], [0, 0]])[:number]), 2 * shift

  last, _ = tf.while_loop(lambda _, shift: shift < number, wider, (last, 1))
  return tf.where(last[..., None] > 0, tf.gather(positions, tf.maximum(last - 1, 0)), before)


def _examples_in(features: Mapping[str, tf.Tensor]) -> tf.Tensor:
  """Returns the number of examples in a packed row, from their numbering."""
  groups = [x for name, x in features.items() if name.endswith("answer_groups")]
  groups = groups or [x for name, x in features.items() if name.endswith("segment_ids")]
  return tf.reduce_max(tf.cast(tf.concat(groups, 0), tf.int64))


def mixing_rates(plan: DataPlan) -> list[float]:
  """Returns the relative sampling rate of each of `plan.tasks`.

  Raises:
    UserError: the mixture has its own sampling function, whose position could not be saved.
  """
  mixture = plan.task
  if not isinstance(mixture, seqio.Mixture):
    return [1.0]
  sample = task_resolution.sample_fn(mixture)
  if getattr(sample, "func", sample) is not tf.data.Dataset.sample_from_datasets:
    raise UserError(
      f"config.data.mixture={mixture.name}: the mixture is registered with a sample_fn, but the position of a "
      "sample_fn cannot be saved. Register the mixture with rates of the tasks instead."
    )
  return [float(mixture.get_rate(task)) for task in plan.tasks]


def in_order(plan: DataPlan, *, trim: bool, progress: Progress | None = None) -> Examples:
  """Returns the examples of a one-task plan before conversion, in the order of one stream of `of_streams`.

  Args:
    plan: plan of one task; training data comes in the order of its first epoch.
    trim: cut to `lengths`.
    progress: counts of records and examples.
  """
  (source,) = sources_of(plan, 1)
  source = dataclasses.replace(source, progress=progress or source.progress)
  make = lambda records, seed: examples_of_window(plan, source.task, records, seed, trim=trim)
  first = lambda _: np.zeros(TASK, np.int64)
  return source.dataset(tf.constant(0, tf.int64), first, make, lambda features, position: features)


# ---- The streams of a host -------------------------------------------------------------------------------------------


def of_streams(
  plan: DataPlan,
  streams: Sequence[int],
  start: Callable[[int], np.ndarray],
  *,
  num_streams: int,
  rows: int,
  parts: int | None = None,
  read: Sequence[TaskSource] = (),
) -> tf.data.Dataset:
  """Returns parts of batches: each feature, and `POSITION`, as [len(streams), rows, ...].

  Args:
    plan: plan of the rows.
    streams: streams of this host.
    start: stream -> the start position, read each time the dataset is iterated.
    num_streams: number of streams on all hosts.
    rows: rows of a batch from one stream.
    parts: number of parts, filled with rows of zeros, whose position is -1; None: endless.
    read: result of `sources_of`, for callers that count records; empty: made here.
  """
  task_sources = read or sources_of(plan, num_streams)
  make = functools.partial(_of_task, rows=rows)
  if len(task_sources) > 1:
    make = lambda source, stream, start: _of_mixture(task_sources, stream, start)

  def stream_rows(stream: tf.Tensor) -> tf.data.Dataset:
    dataset = make(task_sources[0], stream, start)
    if parts is not None:
      blank = {name: tf.zeros([rows, *spec.shape], spec.dtype) for name, spec in dataset.element_spec.items()}
      blank[POSITION] -= 1
      dataset = dataset.take(rows * parts).concatenate(tf.data.Dataset.from_tensors(blank).repeat(parts).unbatch())
      dataset = dataset.take(rows * parts)
    return dataset.batch(rows, drop_remainder=True).prefetch(2)

  numbers = tf.data.Dataset.from_tensor_slices(np.array(streams, np.int64))
  together = numbers.interleave(
    as_it_stands(stream_rows),
    cycle_length=len(streams),
    block_length=1,
    num_parallel_calls=len(streams),
    deterministic=True,
  )
  return together.batch(len(streams), drop_remainder=True).prefetch(2).with_options(options())


def options() -> tf.data.Options:
  """Returns the tf.data options."""
  options = tf.data.Options()
  options.deterministic = True
  # Tuning gains little here, and lets closing take up to 20 s. Threads of the dataset itself would disappear when an
  # iterator is closed, and anything that waits for them would wait forever.
  options.autotune.enabled = False
  return options
