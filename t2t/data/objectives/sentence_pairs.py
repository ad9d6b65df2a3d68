"""Pairs of texts for a contrastive loss: neighbouring sentences, the same text twice, and two texts of a record.

Both texts of a pair stand in one row, as two that do not see each other: the feature converter gives each its own
segment and positions that start anew.
"""

from collections.abc import Callable, Mapping, Sequence
import functools

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import vocabularies
from t2t.data.objectives import chunking, masking

Features = dict[str, tf.Tensor]

# Of each token: which part of its text it belongs to, and which text it is of.
FEATURES = ("inputs", "token_types", "texts")

_SHORTEST = 4  # tokens of a sentence: abbreviations and the numbers of lists end as sentences do


def sentences(tokens: tf.Tensor, sentence_ends: tf.Tensor) -> tf.RaggedTensor:
  """The sentences of a text; a single one that is not ended, too.

  In:  [3, 4, 9, 5, 9, 9, 6, 7]             where 9 ends a sentence
  Out: [[3, 4, 9], [5, 9, 9], [6, 7]]

  Args:
    tokens: int32 [length].
    sentence_ends: bool [vocab_size]; of several ends in a row the last one counts, as in `permute_sentences`.
  """
  ends = tf.gather(sentence_ends, tokens)
  last = ends & ~tf.concat([ends[1:], [False]], 0)
  sentence = tf.cumsum(tf.cast(last, tf.int32), exclusive=True)
  return tf.RaggedTensor.from_value_rowids(tokens, sentence, validate=False)


def together(
  dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Mapping[str, seqio.Feature]
) -> tf.data.Dataset:
  """Two texts in one row, each framed as one that is read alone, and cut to half of the row where it is longer.

  In:  {"first": [3, 4, 5], "second": [6, 7]}                 with [CLS] 101 and [SEP] 102
  Out: {"inputs": [101, 3, 4, 5, 102, 101, 6, 7, 102], "token_types": [0, 0, 0, 0, 0, 0, 0, 0, 0],
        "texts": [0, 0, 0, 0, 0, 1, 1, 1, 1]}

  In a vocabulary without these EOS stands behind each.

  Raises:
    UserError: no room for two texts.
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
  """Pairs of the sentences of documents, without those of which one is too short to say anything."""
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
  """Each sentence of a document and the one behind it.

  In:  {"targets": [3, 4, 5, 9, 6, 7, 8, 9, 2, 9, 5, 6, 7, 8]}          where 9 ends a sentence, with EOS 1
  Out: {"inputs": [3, 4, 5, 9, 1, 6, 7, 8, 9, 1], "token_types": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "texts": [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]}              a sentence of two tokens says nothing

  Args:
    dataset: {"targets": int32 [n]} without EOS.
    sequence_length: maximum length of "inputs", of both sentences.
    output_features: its "inputs" has the vocabulary.
    merge_documents: changes nothing; no pair is of two documents.

  Source: Logeswaran & Lee 2018 (Quick-Thought), section 3; it looks for the sentence before as well.
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
  """Each sentence of a document twice: in training dropout makes two vectors of it.

  In:  {"targets": [3, 4, 5, 9, 6, 7]}      where 9 ends a sentence, with EOS 1
  Out: {"inputs": [3, 4, 5, 9, 1, 3, 4, 5, 9, 1], "token_types": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "texts": [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]}              a sentence of two tokens says nothing

  Args: as in `neighbouring_sentences`.

  Source: Gao et al. 2021 (SimCSE), section 3.
  """
  del merge_documents
  return _of_sentences(dataset, sequence_length, output_features, lambda texts: (texts, texts))


# ---- Two texts of a record -------------------------------------------------------------------------------------------


def directed(
  dataset: tf.data.Dataset, *, tags: Sequence[str] = ("", ""), both_directions: bool = False
) -> tf.data.Dataset:
  """Tags in front of the first text; with `both_directions` each pair also the other way round.

  In:  {"first": "Red.", "second": "Rouge."}          tags "<2fr>" and "<2en>", both directions
  Out: {"first": "<2fr> Red.", "second": "Rouge.", "swapped": 0}
       {"first": "<2en> Rouge.", "second": "Red.", "swapped": 1}

  Args:
    dataset: {"first", "second": string}; pairs of which one is blank are left out.
    tags: of pairs as they are, and of swapped ones; "": none.
    both_directions: see above.

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
  """Two texts to ids; a pair is left out of which one has none.

  In:  {"first": "a b", "second": "c"}, {"first": "a", "second": ""}    with a vocabulary of "a" 5, "b" 6 and "c" 7
  Out: {"first": [5, 6], "second": [7]}
  """
  vocabulary = output_features["inputs"].vocabulary
  names = ("first", "second")
  if missing := [name for name in names if name not in dataset.element_spec]:
    field_names = ", ".join(dataset.element_spec)
    raise UserError(
      f'the source\'s records have no field {missing[0]!r}; pairs of texts are "first" and "second", which'
      f" `preprocessors.pairs` makes of two fields; there are: {field_names}"
    )
  ids = lambda features: {
    name: x if name == "swapped" else tf.cast(vocabulary.encode_tf(x), tf.int32)
    for name, x in features.items()
    if name in (*names, "swapped")
  }
  dataset = dataset.map(ids, num_parallel_calls=tf.data.AUTOTUNE)
  return dataset.filter(lambda features: (tf.size(features["first"]) > 0) & (tf.size(features["second"]) > 0))


def preprocessors(*formats: Callable[..., tf.data.Dataset], **options) -> list[Callable[..., tf.data.Dataset]]:
  """The preprocessors of a seqio task whose pairs are of two texts: the formats, one after another, then tokens.

  Args:
    *formats: `preprocessors.pairs`, or your own that yield "first" and "second".
    **options: arguments of the first.
  """
  first, *other_formats = formats
  return [functools.partial(first, **options), *other_formats, encode, together]


def output_features(vocabulary: seqio.Vocabulary) -> dict[str, seqio.Feature]:
  """The output features that a task of pairs is registered with."""
  plain = seqio.Feature(seqio.PassThroughVocabulary(2), add_eos=False)
  return {"inputs": seqio.Feature(vocabulary, add_eos=True)} | dict.fromkeys(FEATURES[1:], plain)
