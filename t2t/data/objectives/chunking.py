"""From documents to pieces of text: seqio preprocessors that tokenize, join and cut, whatever the objective."""

from collections.abc import Mapping, Sequence

import seqio
import tensorflow as tf

from t2t import UserError

Features = dict[str, tf.Tensor]

GROUP = 128  # pieces of documents that are concatenated before they are split, as T5 does with whole documents
MAX_DOCUMENT = 65_536  # tokens; of a longer document T5 draws one part in each epoch


def tokenize(dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
  """Text to ids, without EOS; documents without a token are left out.

  In:  {"text": "a b"}                      with a vocabulary that has "a" 5 and "b" 6
  Out: {"targets": [5, 6]}
  """
  # Pairs of texts have inputs alone.
  vocabulary = output_features["targets" if "targets" in output_features else "inputs"].vocabulary
  dataset = dataset.map(
    lambda document: {"targets": vocabulary.encode_tf(document["text"])}, num_parallel_calls=tf.data.AUTOTUNE
  )
  return dataset.filter(lambda features: tf.size(features["targets"]) > 0)


@seqio.map_over_dataset(num_seeds=1)
def random_chunk(features: Features, seed: tf.Tensor) -> Features:
  """Draws one of the parts of `MAX_DOCUMENT` tokens that a document consists of.

  In:  {"targets": [1, 2, 3, 4, 5]}         if MAX_DOCUMENT were 2
  Out: {"targets": [3, 4]}                  part 1 of [1, 2], [3, 4], [5]
  """
  tokens = features["targets"]
  num_parts = (tf.size(tokens) + MAX_DOCUMENT - 1) // MAX_DOCUMENT
  start = MAX_DOCUMENT * tf.random.stateless_uniform([], seed, 0, num_parts, tf.int32)
  return {"targets": tokens[start : start + MAX_DOCUMENT]}


def concatenate(dataset: tf.data.Dataset, *, group: int = GROUP) -> tf.data.Dataset:
  """Joins each `group` documents into one sequence, and what they say of their tokens.

  In:  {"targets": [1, 2]}, {"targets": [3]}, {"targets": [4, 5]}        group 2
  Out: {"targets": [1, 2, 3]}, {"targets": [4, 5]}
  """
  return dataset.ragged_batch(group).map(lambda features: {name: x.flat_values for name, x in features.items()})


def split(dataset: tf.data.Dataset, *, length: int) -> tf.data.Dataset:
  """Cuts each sequence into pieces of `length`, and what it says of its tokens; the last one is what is left.

  In:  {"targets": [1, 2, 3, 4, 5]}         length 2
  Out: {"targets": [1, 2]}, {"targets": [3, 4]}, {"targets": [5]}
  """

  def pieces(features: Features) -> Features:
    tokens = features["targets"]
    size = tf.size(tokens, tf.int64)
    splits = tf.concat([tf.range(0, size, length, tf.int64), [size]], 0)
    return {name: tf.RaggedTensor.from_row_splits(x, splits, validate=False) for name, x in features.items()}

  # A ragged tensor that is taken apart: a dataset inside the dataset for each document would cost milliseconds each.
  return dataset.map(pieces, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def _merged(dataset: tf.data.Dataset, *, length: int, merge_documents: bool, whole_documents: bool) -> tf.data.Dataset:
  if not merge_documents:
    return dataset
  # In pieces before they are joined, so that a group of long documents is no longer than one of short ones.
  return concatenate(split(dataset if whole_documents else random_chunk(dataset), length=length))


def cut(
  dataset: tf.data.Dataset, *, length: int, merge_documents: bool, whole_documents: bool = False
) -> tf.data.Dataset:
  """Cuts documents into pieces of `length`, joined in groups or each on its own.

  In:  {"targets": [1, 2]}, {"targets": [3, 4, 5]}          length 2
  Out: {"targets": [1, 2]}, {"targets": [3, 4]}, {"targets": [5]}

  Args:
    dataset: {"targets": int32 [n]}, with `whole_documents` or apart also other features of each token.
    length: tokens of a piece.
    merge_documents: joined in groups.
    whole_documents: of those that are joined every token comes out; else `random_chunk` of each, as T5.  Documents that
      stay apart come out whole in any case.
  """
  merged = _merged(dataset, length=length, merge_documents=merge_documents, whole_documents=whole_documents)
  return split(merged, length=length)


def cut_into_kinds(
  dataset: tf.data.Dataset, *, lengths: Sequence[int], merge_documents: bool, whole_documents: bool = False
) -> tf.data.Dataset:
  """Cuts documents as `cut`, into pieces of kinds that are drawn one after another, each with its own length.

  In:  {"targets": [1, 2, 3, 4, 5, 6]}      lengths (2, 3)
  Out: {"targets": [1, 2], "kind": 0}, {"targets": [3, 4, 5], "kind": 1}, {"targets": [6], "kind": 1}

  So each piece fills its example, though the kinds hold different amounts of text.

  Args:
    dataset: {"targets": int32 [n]}.
    lengths: tokens of a piece of each kind.
    merge_documents, whole_documents: as in `cut`.
  """

  @seqio.map_over_dataset(num_seeds=1)
  def pieces(features: Features, seed: tf.Tensor) -> Features:
    tokens = features["targets"]
    size = tf.size(tokens)
    most = (size + min(lengths) - 1) // min(lengths)  # pieces, if all were of the shortest kind
    kinds = tf.random.stateless_uniform([most], seed, 0, len(lengths), tf.int32)
    ends = tf.cumsum(tf.gather(tf.constant(lengths), kinds))
    number = 1 + tf.math.count_nonzero(ends < size, dtype=tf.int32)
    splits = tf.concat([[0], tf.minimum(ends[:number], size)], 0)
    return {"targets": tf.RaggedTensor.from_row_splits(tokens, splits, validate=False), "kind": kinds[:number]}

  merged = _merged(dataset, length=max(lengths), merge_documents=merge_documents, whole_documents=whole_documents)
  return pieces(merged).unbatch()


def room(sequence_length: Mapping[str, int], reserved: Mapping[str, int], *, shortest: int = 1) -> int:
  """Tokens of text that fit in each of the features beside what is reserved there, at least `shortest`."""
  for name, count in reserved.items():
    if sequence_length[name] < count + shortest:
      raise UserError(
        f"config.data.{name}_length={sequence_length[name]}: too short for this objective;"
        f" set config.data.{name}_length={count + shortest} or more"
      )
  return min(sequence_length[name] - count for name, count in reserved.items())
