"""Which task of a mixture each example is of, and where its tasks stand behind it; a call for many examples at once."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

# Examples whose tasks are drawn by one call: calls take longer than draws.
_BLOCK = 64


def tasks(rates: Sequence[float], *, seed: int, stream: tf.Tensor, first: tf.Tensor) -> tf.data.Dataset:
  """The task of each example of a stream, int64 [], for ever; drawn from the example's number alone.

  Args:
    rates: how often each task is drawn, relative to the others.
    seed: of the run.
    stream: int64 [].
    first: int64 [], number of the example to begin at.
  """
  ends = tf.constant(np.cumsum(rates), tf.float64)
  key = seed % 2**31 + stream * 2**31

  def block(number: tf.Tensor) -> tf.Tensor:
    indices = tf.unstack(number * _BLOCK + tf.range(_BLOCK, dtype=tf.int64))
    drawn = [tf.random.stateless_uniform([], tf.stack([key, index]), dtype=tf.float64) for index in indices]
    return tf.searchsorted(ends, tf.stack(drawn) * ends[-1], side="right", out_type=tf.int64)

  blocks = tf.data.Dataset.counter(first // _BLOCK)
  return blocks.map(tf.autograph.experimental.do_not_convert(block)).unbatch().skip(first % _BLOCK)


def behind(before: tf.Tensor, drawn: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
  """Where each task stands behind each of some examples, int64 [examples, tasks, integers].

  Args:
    before: int64 [tasks, integers], where each stood before the first.
    drawn: integers [examples], the task of each.
    positions: int64 [examples, integers], where that task stands behind it.
  """
  number = tf.shape(drawn)[0]
  own = tf.equal(drawn[:, None], tf.range(before.shape[0], dtype=drawn.dtype))
  last = tf.where(own, tf.range(1, number + 1)[:, None], 0)  # 0: none up to here

  def wider(last: tf.Tensor, shift: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.maximum(last, tf.pad(last, [[shift, 0], [0, 0]])[:number]), 2 * shift

  last, _ = tf.while_loop(lambda _, shift: shift < number, wider, (last, 1))
  return tf.where(last[..., None] > 0, tf.gather(positions, tf.maximum(last - 1, 0)), before)
