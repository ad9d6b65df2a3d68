"""Special tokens around texts: several texts in one sequence, cut to fit."""

from __future__ import annotations

import dataclasses

from t2t.data import vocabularies, vocabulary_classes
from t2t.models.architecture import ARCHITECTURES
from t2t.param_tree import Vocabulary
from t2t.runtime import data_packages

tf = data_packages.lazy_module("tensorflow")


@dataclasses.dataclass(frozen=True)
class Framing:
  """Ids around texts: `begin` a `between` b `end`."""

  begin: tuple[int, ...]
  between: tuple[int, ...]
  end: tuple[int, ...]

  def size(self, number: tf.Tensor | int) -> tf.Tensor | int:
    """Returns the number of ids around several texts."""
    return len(self.begin) + len(self.between) * (number - 1) + len(self.end)

  @classmethod
  def of(cls, vocabulary: Vocabulary, architecture: str) -> Framing:
    """Returns the ids around texts in the pre-training of an architecture.

    An encoder has [CLS] a [SEP] b [SEP] (BERT), or <s> a </s></s> b </s> with BOS as [CLS] (RoBERTa). In a vocabulary
    without these, and in an encoder-decoder, the encoder has a EOS b EOS. A decoder has BOS a EOS b.
    """
    kind = ARCHITECTURES[architecture]
    cls_id, sep_id = vocabularies.cls_id(vocabulary), vocabularies.sep_id(vocabulary)
    if kind.is_decoder_only:
      return cls((vocabularies.bos_id(vocabulary),), (vocabulary.eos_id,), ())
    if kind.is_generative or cls_id is None or sep_id is None:
      return cls((), (vocabulary.eos_id,), (vocabulary.eos_id,))
    return cls((cls_id,), (sep_id,) * (2 if vocabularies.starts_with_bos(vocabulary) else 1), (sep_id,))


def encode(vocabulary: Vocabulary, texts: tf.Tensor) -> tf.RaggedTensor:
  """Returns the ids of each text, int32 [texts, (tokens)], without EOS."""
  spec = tf.RaggedTensorSpec([None], tf.int32, ragged_rank=0)
  if vocabulary_classes.is_bytes(vocabulary):  # its own function takes only texts of one length
    return tf.map_fn(lambda text: tf.cast(vocabulary.encode_tf(text), tf.int32), texts, fn_output_signature=spec)
  return tf.cast(vocabulary.encode_tf(texts), tf.int32)


def shortened(lengths: tf.Tensor, room: tf.Tensor | int) -> tf.Tensor:
  """Returns the kept length of each text if all do not fit: the longest are cut first.

  In:  lengths [3, 9, 7], room 14
  Out: [3, 6, 5]                            the first cut text gets the remainder

  Source: "longest first", as transformers cuts the pairs of GLUE.
  """
  limits = tf.range(tf.maximum(room, 0) + 1)
  totals = tf.reduce_sum(tf.minimum(lengths[None, :], limits[:, None]), axis=1)
  limit = tf.reduce_sum(tf.cast(totals <= room, tf.int32)) - 1
  kept_lengths = tf.minimum(lengths, limit)
  cut = tf.cast(lengths > limit, tf.int32)
  spare = tf.minimum(room - tf.reduce_sum(kept_lengths), tf.reduce_sum(cut))
  return kept_lengths + cut * tf.cast(tf.cumsum(cut) <= spare, tf.int32)


def framed(texts: tf.RaggedTensor, framing: Framing, length: int) -> tuple[tf.Tensor, tf.Tensor]:
  """Joins several texts into one sequence, with token types: 0 for the first text, 1 for the others.

  In:  [[7, 8], [9]], framing ((101,), (102,), (102,)), length 8
  Out: [101, 7, 8, 102, 9, 102], [0, 0, 0, 0, 1, 1]

  Args:
    texts: int32 [texts, (tokens)], at least one.
    framing: ids around the texts.
    length: maximum length of the sequence; the longest texts are cut.
  """
  number = texts.nrows(out_type=tf.int32)
  between, end, begin = (tf.constant(ids, tf.int32) for ids in (framing.between, framing.end, framing.begin))
  room = length - tf.size(begin) - tf.size(between) * (number - 1) - tf.size(end)
  lengths = tf.cast(texts.row_lengths(), tf.int32)
  kept_lengths = tf.cond(tf.reduce_sum(lengths) > room, lambda: shortened(lengths, room), lambda: lengths)
  token_index = tf.ragged.range(lengths).flat_values
  texts = tf.RaggedTensor.from_row_lengths(
    tf.boolean_mask(texts.flat_values, token_index < tf.repeat(kept_lengths, lengths)), tf.cast(kept_lengths, tf.int64)
  )
  behind = tf.RaggedTensor.from_row_lengths(
    tf.concat([tf.tile(between, [number - 1]), end], 0),
    tf.concat([tf.repeat(tf.size(between, tf.int64), number - 1), [tf.size(end, tf.int64)]], 0),
  )
  rows = tf.concat([texts, tf.cast(behind, tf.int32)], axis=1)
  types = tf.minimum(tf.cast(rows.value_rowids(), tf.int32), 1)
  zeros = tf.zeros_like(begin)
  return tf.concat([begin, rows.flat_values], 0), tf.concat([zeros, types], 0)


def one_hot(index: tf.Tensor | int, length: tf.Tensor, value: tf.Tensor | int) -> tf.Tensor:
  """Returns int32 [length]: `value` at one position, 0 elsewhere."""
  return tf.where(tf.range(length) == index, tf.cast(value, tf.int32), 0)
