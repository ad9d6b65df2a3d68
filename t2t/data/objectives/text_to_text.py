"""Two texts of a record, a prompt and its answer: the loss is on the answer alone."""

import tensorflow as tf


def text_to_text(dataset: tf.data.Dataset, *, merge_documents: bool = True) -> tf.data.Dataset:
  """The second text is what is to be written, given the first: an answer, a translation, a summary.

  In:  {"first": [3, 4, 5], "second": [6, 7]}
  Out: {"inputs": [3, 4, 5], "targets": [6, 7]}             EOS is added by the next preprocessor

  A decoder alone reads both in one row, and its loss counts the second.  What is longer than config.data.inputs_length
  or targets_length is cut.

  Args:
    dataset: {"first", "second": int32 [n]} without EOS.
    merge_documents: changes nothing; an example is one pair.

  Source: Raffel et al. 2020, section 2.4; Radford et al. 2018, section 3.3, of a decoder alone.
  """
  del merge_documents
  rename = lambda pair: {"inputs": pair["first"], "targets": pair["second"]}
  return dataset.map(rename, num_parallel_calls=tf.data.AUTOTUNE)
