"""Pairs of texts for a contrastive loss: neighbouring sentences, the same text twice, or two texts of a record.

Both texts of a pair share one row without attention between them: the feature converter gives each a segment id, and
restarts positions.
"""

from collections.abc import Callable, Mapping, Sequence
import functools

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import vocabularies
from t2t.data.objectives import chunking, masking

Features = dict[str, tf.Tensor]

# Per-token features: the token's part of its text, and the index of its text.
FEATURES = ("inputs", "token_types", "texts")

_SHORTEST = 4  # minimum tokens of a sentence; excludes abbreviations and list numbers, which look like sentence ends


def sentences(tokens: tf.Tensor, sentence_ends: tf.Tensor) -> tf.RaggedTensor:
  """Splits a text into sentences; the last one may be unfinished.

  In:  [3, 4, 9, 5, 9, 9, 6, 7]             where 9 ends a sentence
  Out: [[3, 4, 9], [5, 9, 9], [6, 7]]

  Args:
    tokens: int32 [length].
    sentence_ends: bool [vocab_size]; the last of several consecutive ends counts, as in `permute_sentences`.
  """
  ends = tf.gather(sentence_ends, tokens)
  last = ends & ~tf.concat([ends[1:], [False]], 0)
  sentence = tf.cumsum(tf.cast(last, tf.int32), exclusive=True)
  return tf.RaggedTensor.from_value_rowids(tokens, sentence, validate=False)


def together(
  dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Mapping[str, seqio.Feature]
) -> tf.data.Dataset:
  """Joins two texts in one row, each with special tokens, and cut to half of the row.

  In:  {"first": [3, 4, 5], "second": [6, 7]}                 with [CLS] 101 and [SEP] 102
  Out: {"inputs": [101, 3, 4, 5, 102, 101, 6, 7, 102], "token_types": [0, 0, 0, 0, 0, 0, 0, 0, 0],
        "texts": [0, 0, 0, 0, 0, 1, 1, 1, 1]}

  In a vocabulary without [CLS] and [SEP], EOS follows each text.

  Raises:
    UserError: the length is too short for two texts.
  """
  begin, end = masking.special_ids(output_features["inputs"].vocabulary)
  most = chunking.room(sequence_length, {"inputs": 2 * (len(begin) + len(end))}, shortest=2) // 2

  def joined(features: Features) -> Features:
    around = [tf.constant(ids, tf.int32) for ids in (begin, end)]
    first, second = (tf.concat([around[0], features[name][:most], around[1]], 0) for name in ("first", "second"))
    inputs = tf.concat([first, second], 0)
    texts = tf.concat([tf.zeros_like(first), tf.ones_like(second)], 0)
    return {"inputs": inputs, "token_types": tf.zeros_like(inputs), "texts": texts}

  return dataset.map(joined, num_parallel_calls=tf.data.AUTOTUNE)


def _of_sentences(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  pair: Callable[[tf.RaggedTensor], tuple[tf.RaggedTensor, tf.RaggedTensor]],
) -> tf.data.Dataset:
  """Returns pairs of sentences of a document, without pairs that have a short sentence."""
  ends = tf.constant(vocabularies.ends_sentence(output_features["inputs"].vocabulary))

  def paired(features: Features) -> Features:
    first, second = pair(sentences(features["targets"], ends))
    long_enough = tf.minimum(first.row_lengths(), second.row_lengths()) >= _SHORTEST
    return {"first": tf.ragged.boolean_mask(first, long_enough), "second": tf.ragged.boolean_mask(second, long_enough)}

  pairs = dataset.map(paired, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
  return together(pairs, sequence_length, output_features)


def neighbouring_sentences(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Pairs each sentence of a document with the next one.

  In:  {"targets": [3, 4, 5, 9, 6, 7, 8, 9, 2, 9, 5, 6, 7, 8]}          where 9 ends a sentence, with EOS 1
  Out: {"inputs": [3, 4, 5, 9, 1, 6, 7, 8, 9, 1], "token_types": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "texts": [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]}              sentences of two tokens are dropped

  Args:
    dataset: {"targets": int32 [n]} without EOS.
    sequence_length: maximum length of "inputs", for both sentences.
    output_features: "inputs" has the vocabulary.
    merge_documents: no effect; a pair never crosses documents.

  Source: Logeswaran & Lee 2018 (Quick-Thought), section 3, which also predicts the previous sentence.
  """
  del merge_documents
  return _of_sentences(dataset, sequence_length, output_features, lambda texts: (texts[:-1], texts[1:]))


def same_text_twice(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Pairs each sentence of a document with itself; dropout gives two different vectors in training.

  In:  {"targets": [3, 4, 5, 9, 6, 7]}      where 9 ends a sentence, with EOS 1
  Out: {"inputs": [3, 4, 5, 9, 1, 3, 4, 5, 9, 1], "token_types": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "texts": [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]}              sentences of two tokens are dropped

  Args: see `neighbouring_sentences`.

  Source: Gao et al. 2021 (SimCSE), section 3.
  """
  del merge_documents
  return _of_sentences(dataset, sequence_length, output_features, lambda texts: (texts, texts))


# ---- Two texts of a record -------------------------------------------------------------------------------------------


def directed(
  dataset: tf.data.Dataset, *, tags: Sequence[str] = ("", ""), both_directions: bool = False
) -> tf.data.Dataset:
  """Prepends tags to first texts; with `both_directions` adds each pair in reverse order.

  In:  {"first": "Red.", "second": "Rouge."}          tags "<2fr>" and "<2en>", both directions
  Out: {"first": "<2fr> Red.", "second": "Rouge.", "swapped": 0}
       {"first": "<2en> Rouge.", "second": "Red.", "swapped": 1}

  Args:
    dataset: {"first", "second": string}; pairs with a blank text are dropped.
    tags: tags of original and of reversed pairs; "": none.
    both_directions: whether to add reversed pairs.

  Source: tags as in Johnson et al. 2017, section 3.
  """
  table = tf.constant([f"{tag.strip()} " if tag.strip() else "" for tag in tags])
  names = ("first", "second")

  def turned(features: Features) -> tf.data.Dataset:
    texts = tf.stack([features[name] for name in names])
    swapped = tf.range(2 if both_directions else 1)
    first, second = tf.gather(texts, swapped), tf.gather(texts, 1 - swapped)
    directions = {"first": tf.strings.join([tf.gather(table, swapped), first]), "second": second, "swapped": swapped}
    return tf.data.Dataset.from_tensor_slices(directions)

  has_both_texts = lambda features: tf.reduce_all(
    [tf.strings.length(tf.strings.strip(features[name])) > 0 for name in names]
  )
  return dataset.filter(has_both_texts).flat_map(turned)


def encode(dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
  """Tokenizes two texts; drops pairs with an empty text.

  In:  {"first": "a b", "second": "c"}, {"first": "a", "second": ""}    with a vocabulary of "a" 5, "b" 6 and "c" 7
  Out: {"first": [5, 6], "second": [7]}
  """
  vocabulary = output_features["inputs"].vocabulary
  names = ("first", "second")
  if missing := [name for name in names if name not in dataset.element_spec]:
    field_names = ", ".join(dataset.element_spec)
    raise UserError(
      f"records of the source have no field {missing[0]!r}, only the fields {field_names}. Pairs of texts need the "
      "fields 'first' and 'second'. To make these of two other fields, add `preprocessors.pairs` to the task."
    )
  ids = lambda features: {
    name: x if name == "swapped" else tf.cast(vocabulary.encode_tf(x), tf.int32)
    for name, x in features.items()
    if name in (*names, "swapped")
  }
  dataset = dataset.map(ids, num_parallel_calls=tf.data.AUTOTUNE)
  return dataset.filter(lambda features: (tf.size(features["first"]) > 0) & (tf.size(features["second"]) > 0))


def preprocessors(*formats: Callable[..., tf.data.Dataset], **options) -> list[Callable[..., tf.data.Dataset]]:
  """Returns the preprocessors of a seqio task of text pairs: formats, tokenization, and `together`.

  Args:
    *formats: `preprocessors.pairs`, or functions that yield "first" and "second".
    **options: arguments of the first format.
  """
  first, *other_formats = formats
  return [functools.partial(first, **options), *other_formats, encode, together]


def output_features(vocabulary: seqio.Vocabulary) -> dict[str, seqio.Feature]:
  """Returns the output features for registering a task of text pairs."""
  plain = seqio.Feature(seqio.PassThroughVocabulary(2), add_eos=False)
  return {"inputs": seqio.Feature(vocabulary, add_eos=True)} | dict.fromkeys(FEATURES[1:], plain)
