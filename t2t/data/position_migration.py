"""Positions that are not gone on from as they are: an older checkpoint's, and those of the stage before."""

import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from t2t.data import example_windows, shard_order


def proportional(plan: example_windows.DataPlan, stream: int, *, num_streams: int, taken: int) -> np.ndarray:
  """About where a stream stands that has yielded `taken` rows, by how many its first window makes of its text."""
  task_sources = example_windows.sources_of(plan, num_streams)
  rates = np.array(example_windows.mixing_rates(plan))
  position = example_windows.beginning(plan)
  for number, (source, rate) in enumerate(zip(task_sources, rates / rates.sum(), strict=True)):
    order = source.order(stream)
    window = next(order.windows(source.records, shard_order.WindowPosition()), None)
    if window is None:
      continue
    columns = tuple(map(tf.constant, window.columns))
    seed = tf.constant(window.seed, tf.int64)
    converted = plan.convert(
      example_windows.examples_of_window(plan, source.task, source.records.features(columns), seed)
    )
    number_made = sum(1 for _ in converted.with_options(example_windows.options()))
    read = sum(shard_order.RECORD_COST + sum(map(len, record)) for record in window.records)
    total = sum(piece.weight for piece in source.shares[stream])
    epochs = taken * rate * read / max(number_made, 1) / max(total * order.epochs_together, 1.0)
    epoch = int(epochs) * order.epochs_together
    weights = np.cumsum([sum(piece.weight for piece in group) for group in order.groups(epoch)])
    group = int(np.searchsorted(weights, (epochs - int(epochs)) * weights[-1], side="right"))
    position[example_windows.MIXED + example_windows.TASK * number :][:2] = epoch, min(group, len(weights) - 1)
  return position


def carried(
  before: example_windows.DataPlan,
  after: example_windows.DataPlan,
  stream: int,
  position: np.ndarray,
  *,
  num_streams: int,
) -> np.ndarray:
  """Where a stream begins with the rows of another plan, so that a task goes on with what it has not read before.

  A window of which rows were taken counts as read.  A task that only `after` has, or that reads other files there,
  begins anew.

  Args:
    before, after: the plans.
    stream: of both.
    position: of it, by `before`.
    num_streams: of all hosts.
  """
  new_position = example_windows.beginning(after)
  then = {
    source.task.name: (number, source) for number, source in enumerate(example_windows.sources_of(before, num_streams))
  }
  for number, new in enumerate(example_windows.sources_of(after, num_streams)):
    old_number, old = then.get(new.task.name, (0, None))
    if old is None or old.shares != new.shares or before.seed != after.seed:
      continue
    if old.task.source.list_shards(before.split) != new.task.source.list_shards(after.split):
      continue
    epoch, group, window, rows_read = map(
      int, position[example_windows.MIXED + example_windows.TASK * old_number :][: example_windows.TASK]
    )
    window_position = _same_text(old, new, stream, shard_order.WindowPosition(epoch, group, window + (rows_read > 0)))
    new_position[example_windows.MIXED + example_windows.TASK * number :][:3] = dataclasses.astuple(window_position)
  if len(after.tasks) > 1:
    new_position[0] = position[0] + 1  # none of its draws again
  return new_position


def _same_text(
  old: example_windows.TaskSource,
  new: example_windows.TaskSource,
  stream: int,
  window_position: shard_order.WindowPosition,
) -> shard_order.WindowPosition:
  """The first place of `new` whose records are all behind those that `old` has before a place.

  Records are counted: how many a window has depends on how long they are, and a file's weight says little of that.
  """
  before, after = old.order(stream), new.order(stream)
  if before.size == after.size:
    return window_position
  if max(before.epochs_together, after.epochs_together) > 1:  # of so little text nothing is left over
    return shard_order.WindowPosition(
      window_position.epoch + (before.epochs_together if window_position.group or window_position.window else 0)
    )
  groups = before.groups(window_position.epoch)
  # Both go through the pieces in the same order: so many whole ones are read, and so many records of what follows.
  pieces, read = sum(map(len, groups[: window_position.group])), 0
  if window_position.group < len(groups):
    read = sum(
      map(len, itertools.islice(before.cut(old.records, groups[window_position.group]), window_position.window))
    )
  for number, group in enumerate(after.groups(window_position.epoch)):
    if pieces >= len(group):
      pieces -= len(group)
      continue
    read += sum(1 for piece in group[:pieces] for _ in new.records.read(piece))
    pieces = 0
    for index, window in enumerate(after.cut(new.records, group)):
      if read <= 0:
        return shard_order.WindowPosition(window_position.epoch, number, index)
      read -= len(window)
    read = max(read, 0)
  return shard_order.WindowPosition(window_position.epoch + 1)
