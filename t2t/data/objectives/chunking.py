"""seqio preprocessors that tokenize documents, join them and cut them into chunks, for every objective."""

from collections.abc import Mapping, Sequence

import seqio
import tensorflow as tf

from t2t import UserError

Features = dict[str, tf.Tensor]

GROUP = 128  # chunks of documents that are concatenated before splitting, as T5 does with whole documents
MAX_DOCUMENT = 65_536  # tokens; T5 samples one part of a longer document in each epoch


def tokenize(dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
  """Tokenizes text without EOS; drops documents without a token.

  In:  {"text": "a b"}                      with a vocabulary that has "a" 5 and "b" 6
  Out: {"targets": [5, 6]}
  """
  # Pairs of texts have only "inputs".
  vocabulary = output_features["targets" if "targets" in output_features else "inputs"].vocabulary
  dataset = dataset.map(
    lambda document: {"targets": vocabulary.encode_tf(document["text"])}, num_parallel_calls=tf.data.AUTOTUNE
  )
  return dataset.filter(lambda features: tf.size(features["targets"]) > 0)


@seqio.map_over_dataset(num_seeds=1)
def random_chunk(features: Features, seed: tf.Tensor) -> Features:
  """Samples one of the parts of `MAX_DOCUMENT` tokens of a document.

  In:  {"targets": [1, 2, 3, 4, 5]}         if MAX_DOCUMENT were 2
  Out: {"targets": [3, 4]}                  part 1 of [1, 2], [3, 4], [5]
  """
  tokens = features["targets"]
  num_parts = (tf.size(tokens) + MAX_DOCUMENT - 1) // MAX_DOCUMENT
  start = MAX_DOCUMENT * tf.random.stateless_uniform([], seed, 0, num_parts, tf.int32)
  return {"targets": tokens[start : start + MAX_DOCUMENT]}


def concatenate(dataset: tf.data.Dataset, *, group: int = GROUP) -> tf.data.Dataset:
  """Concatenates each `group` of documents, with their per-token features.

  In:  {"targets": [1, 2]}, {"targets": [3]}, {"targets": [4, 5]}        group 2
  Out: {"targets": [1, 2, 3]}, {"targets": [4, 5]}
  """
  return dataset.ragged_batch(group).map(lambda features: {name: x.flat_values for name, x in features.items()})


def split(dataset: tf.data.Dataset, *, length: int, stride: int = 0) -> tf.data.Dataset:
  """Cuts each sequence into chunks of `length`, with its per-token features; the last chunk is the remainder.

  In:  {"targets": [1, 2, 3, 4, 5]}         length 2
  Out: {"targets": [1, 2]}, {"targets": [3, 4]}, {"targets": [5]}

  In:  the same, length 3, stride 1
  Out: {"targets": [1, 2, 3]}, {"targets": [2, 3, 4]}, {"targets": [3, 4, 5]}

  Args:
    dataset: examples with "targets".
    length: tokens of a chunk.
    stride: tokens from the start of a chunk to the start of the next; 0: `length`.
  """
  if stride and stride < length:
    return _overlapping(dataset, length=length, stride=stride)

  def pieces(features: Features) -> Features:
    tokens = features["targets"]
    size = tf.size(tokens, tf.int64)
    splits = tf.concat([tf.range(0, size, length, tf.int64), [size]], 0)
    return {name: tf.RaggedTensor.from_row_splits(x, splits, validate=False) for name, x in features.items()}

  # Unbatching a ragged tensor is fast; a nested dataset would cost milliseconds per document.
  return dataset.map(pieces, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def _overlapping(dataset: tf.data.Dataset, *, length: int, stride: int) -> tf.data.Dataset:
  def pieces(features: Features) -> Features:
    size = tf.size(features["targets"])
    # The last chunk is the first one that reaches the end.
    starts = tf.range(0, tf.maximum(size - (length - stride), 1), stride)
    places = tf.ragged.range(starts, tf.minimum(starts + length, size))
    return {name: tf.gather(x, places) for name, x in features.items()}

  return dataset.map(pieces, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def _merged(dataset: tf.data.Dataset, *, length: int, merge_documents: bool, whole_documents: bool) -> tf.data.Dataset:
  if not merge_documents:
    return dataset
  # Documents are cut before they are joined, so that groups of long and of short documents have the same length.
  return concatenate(split(dataset if whole_documents else random_chunk(dataset), length=length))


def cut(
  dataset: tf.data.Dataset, *, length: int, merge_documents: bool, whole_documents: bool = False, stride: int = 0
) -> tf.data.Dataset:
  """Cuts documents into chunks of `length`, joined in groups or separately.

  In:  {"targets": [1, 2]}, {"targets": [3, 4, 5]}          length 2
  Out: {"targets": [1, 2]}, {"targets": [3, 4]}, {"targets": [5]}

  Args:
    dataset: {"targets": int32 [n]}; further per-token features need `whole_documents` or separate documents.
    length: tokens of a chunk.
    merge_documents: whether to join documents in groups.
    whole_documents: whether joined documents keep every token; False: `random_chunk` of each, as in T5. Separate
      documents always keep every token.
    stride: see `split`.
  """
  merged = _merged(dataset, length=length, merge_documents=merge_documents, whole_documents=whole_documents)
  return split(merged, length=length, stride=stride)


def cut_into_kinds(
  dataset: tf.data.Dataset, *, lengths: Sequence[int], merge_documents: bool, whole_documents: bool = False
) -> tf.data.Dataset:
  """Cuts documents into chunks of random kinds, each with its length; see `cut`.

  In:  {"targets": [1, 2, 3, 4, 5, 6]}      lengths (2, 3)
  Out: {"targets": [1, 2], "kind": 0}, {"targets": [3, 4, 5], "kind": 1}, {"targets": [6], "kind": 1}

  Each chunk fills its example, although the kinds hold different amounts of text.

  Args:
    dataset: {"targets": int32 [n]}.
    lengths: tokens of a chunk of each kind.
    merge_documents, whole_documents: as in `cut`.
  """

  @seqio.map_over_dataset(num_seeds=1)
  def pieces(features: Features, seed: tf.Tensor) -> Features:
    tokens = features["targets"]
    size = tf.size(tokens)
    most = (size + min(lengths) - 1) // min(lengths)  # chunks, if all had the shortest kind
    kinds = tf.random.stateless_uniform([most], seed, 0, len(lengths), tf.int32)
    ends = tf.cumsum(tf.gather(tf.constant(lengths), kinds))
    number = 1 + tf.math.count_nonzero(ends < size, dtype=tf.int32)
    splits = tf.concat([[0], tf.minimum(ends[:number], size)], 0)
    return {"targets": tf.RaggedTensor.from_row_splits(tokens, splits, validate=False), "kind": kinds[:number]}

  merged = _merged(dataset, length=max(lengths), merge_documents=merge_documents, whole_documents=whole_documents)
  return pieces(merged).unbatch()


def room(sequence_length: Mapping[str, int], reserved: Mapping[str, int], *, shortest: int = 1) -> int:
  """Returns the number of text tokens that fit in each feature beside reserved tokens, at least `shortest`."""
  for name, count in reserved.items():
    if sequence_length[name] < count + shortest:
      raise UserError(
        f"config.data.{name}_length={sequence_length[name]} is too short for this objective. Set "
        f"config.data.{name}_length={count + shortest} or more."
      )
  return min(sequence_length[name] - count for name, count in reserved.items())
