"""Rows that continue: row i of a batch goes on where row i of the batch before ended, for models with a memory.

Each window of a stream's examples, in the order of its text, is cut into as many parts as the stream has rows in a
batch. Part j yields row j of successive batches. The order depends on the window alone, so a position stays a few
integers, and a run resumes at the same row.
"""

from collections.abc import Mapping

import tensorflow as tf

Features = Mapping[str, tf.Tensor]
_MOST_ROWS = 2**20  # of a window


def order(number: tf.Tensor, rows: int) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the example of each row of a window, int64 [number], and whether it follows the example `rows` before it.

  In:  number 7, rows 3
  Out: [0, 3, 5, 1, 4, 6, 2], [F, F, F, T, T, T, T]         parts [0, 1, 2], [3, 4], [5, 6]

  Every example occurs once. The first parts are longer by one, so that the parts of the next window begin in turn.
  """
  index = tf.range(number)
  part, place = index % rows, index // rows
  size, longer = number // rows, number % rows
  return part * size + tf.minimum(part, longer) + place, place > 0


def arranged(dataset: tf.data.Dataset, rows: int) -> tf.data.Dataset:
  """Returns the rows of a window in the order of `order`, with "SIDE_continues", int32 [1].

  A row continues the one before in its part unless that one is not full: a text ends there. A decoder's first input is
  then the last target of the row before, instead of BOS.

  Args:
    dataset: model features of the rows of one window.
    rows: rows of a batch from this stream.
  """
  spec = dataset.element_spec
  side = "decoder" if "decoder_input_tokens" in spec else "encoder"
  real = f"{side}_segment_ids" if f"{side}_segment_ids" in spec else f"{side}_target_tokens"

  def arrange(window: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    examples, follows = order(tf.shape(window[real], tf.int64)[0], rows)
    before = tf.maximum(examples - 1, 0)
    continues = follows & (tf.gather(window[real][:, -1], before) > 0)
    features = {name: tf.gather(x, examples) for name, x in window.items()}
    if side == "decoder":
      tokens, last = features["decoder_input_tokens"], tf.gather(window["decoder_target_tokens"][:, -1], before)
      first = tf.where(continues, tf.cast(last, tokens.dtype), tokens[:, 0])
      features["decoder_input_tokens"] = tf.concat([first[:, None], tokens[:, 1:]], axis=1)
    return features | {f"{side}_continues": tf.cast(continues, tf.int32)[:, None]}

  # The filter keeps TensorFlow from fusing a map with the batch, which would allocate memory for the most rows.
  return (
    dataset.filter(lambda _: True).batch(_MOST_ROWS).map(tf.autograph.experimental.do_not_convert(arrange)).unbatch()
  )
