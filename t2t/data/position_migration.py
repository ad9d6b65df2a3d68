"""Migration of data positions: from an older checkpoint, and from one stage to the next."""

import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from t2t.data import example_windows, shard_order


def proportional(plan: example_windows.DataPlan, stream: int, *, num_streams: int, taken: int) -> np.ndarray:
  """Estimates the position of a stream after `taken` rows, from the number of rows of its first window."""
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
  """Returns the start of a stream with another plan, so that a task continues with unread text.

  A window counts as read if one of its rows was taken. A task that only `after` has, or that reads other files there,
  starts anew.

  Args:
    before, after: the plans.
    stream: stream of both plans.
    position: position of the stream in `before`.
    num_streams: number of streams on all hosts.
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
    new_position[0] = position[0] + 1  # repeats no draw
  return new_position


def _same_text(
  old: example_windows.TaskSource,
  new: example_windows.TaskSource,
  stream: int,
  window_position: shard_order.WindowPosition,
) -> shard_order.WindowPosition:
  """Returns the first position of `new` behind all records that `old` has read at a position.

  Records are counted, because their number in a window depends on their lengths, which a file's weight does not show.
  """
  before, after = old.order(stream), new.order(stream)
  if before.size == after.size:
    return window_position
  if max(before.epochs_together, after.epochs_together) > 1:  # such a small text has nothing left
    return shard_order.WindowPosition(
      window_position.epoch + (before.epochs_together if window_position.group or window_position.window else 0)
    )
  groups = before.groups(window_position.epoch)
  # Both read the pieces in the same order: count the whole pieces, and the records of the piece that follows.
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
