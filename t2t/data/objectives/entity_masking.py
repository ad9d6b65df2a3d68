"""Entity-level masked language modelling: masks annotated phrases as a whole (ERNIE)."""

from collections.abc import Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import vocabularies
from t2t.data.objectives import masking
from t2t.data.vocabularies import offsets

Features = dict[str, tf.Tensor]

_SHOWN = 40  # characters of a text in messages


def checked(ranges: Sequence[Sequence[int]], length: int, *, location: str) -> np.ndarray:
  """Sorts and checks character ranges; returns int32 [n, 2] of nonempty ranges without overlaps.

  In:  [[7, 12], [0, 3]], length 12
  Out: [[0, 3], [7, 12]]

  Args:
    ranges: [start, end) of each phrase.
    length: characters of the text.
    location: description of the record, for messages.

  Raises:
    UserError: a range is malformed, outside the text, or overlaps another.
  """
  for marked_range in ranges:
    is_range = (
      isinstance(marked_range, Sequence | np.ndarray) and len(marked_range) == 2 and not isinstance(marked_range, str)
    )
    if not is_range or not all(isinstance(x, int | np.integer) and not isinstance(x, bool) for x in marked_range):
      raise UserError(
        f"{location}: {marked_range!r} is not a range; give [start, end] of each phrase, counted in characters"
      )
  sorted_ranges = np.array(sorted(tuple(map(int, marked_range)) for marked_range in ranges), np.int64).reshape(-1, 2)
  for start, end in sorted_ranges.tolist():
    if not 0 <= start < end <= length:
      raise UserError(
        f"{location}: [{start}, {end}] is not a range in the text of {length} characters. Correct the range."
      )
  for (first, behind), (start, end) in zip(sorted_ranges[:-1].tolist(), sorted_ranges[1:].tolist(), strict=True):
    if start < behind:
      raise UserError(f"{location}: [{first}, {behind}] and [{start}, {end}] overlap. Remove one of these ranges.")
  return sorted_ranges.astype(np.int32)


def unit_starts(starts: np.ndarray, ends: np.ndarray, ranges: np.ndarray, starts_word: np.ndarray) -> np.ndarray:
  """Returns where units start, bool [tokens]: phrases, and words outside phrases. The first token always starts a unit.

  In:  starts [0, 4, 8, 12], ends [3, 7, 11, 14] of "the New Yorker" in four tokens, ranges [[4, 14]],
       starts_word [T, T, T, F]
  Out: [T, T, F, F]

  Args:
    starts, ends: int [tokens], character range of each token.
    ranges: ranges of phrases, see `checked`. A token belongs to the first phrase with which it shares a character; an
      empty range (white space) belongs to the phrase around it.
    starts_word: bool [tokens].
  """
  phrase = np.searchsorted(ranges[:, 1], starts, side="right")  # the first phrase that ends after the token's start
  begins = np.append(ranges[:, 0], np.iinfo(np.int32).max)[phrase]
  phrase = np.where(begins < ends, phrase, -1)
  before = np.concatenate([[-2], phrase[:-1]])
  return np.where(phrase >= 0, phrase != before, starts_word | (before != -1))


def tokenize(dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
  """Tokenizes text without EOS, with 1 at starts of phrases and of words outside phrases; drops empty documents.

  In:  {"text": "a bc d", "entities": [[2, 6]]}           with "a" 5, " bc" 6 and " d" 7
  Out: {"targets": [5, 6, 7], "starts": [1, 1, 0]}

  Raises:
    UserError: the source has no annotations, the vocabulary gives no token offsets, or ranges of a record are outside
      its text or overlap.
  """
  vocabulary = output_features["targets"].vocabulary
  if "entities" not in dataset.element_spec:
    field_names = ", ".join(dataset.element_spec)
    raise UserError(
      "config.data.objective=annotated_masked_lm: records of the source have no field 'entities' with [start, end] of "
      f"each phrase. Set config.data.annotations to the name of such a field. Fields of the records: {field_names}."
    )
  starts_word = vocabularies.starts_word(vocabulary)

  def encode(text: bytes, ranges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    text = text.decode()
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    ranges = checked(ranges, len(text), location=f"entities of the text {shown!r}")
    ids, *places = offsets.tokens_of(vocabulary, text)
    starts = unit_starts(*places, ranges, starts_word[ids])
    return ids, starts.astype(np.int32)

  def encoded(features: Features) -> Features:
    ranges = features["entities"]
    ranges = ranges.to_tensor(shape=[None, 2]) if isinstance(ranges, tf.RaggedTensor) else ranges
    ranges = tf.reshape(tf.cast(ranges, tf.int64), [-1, 2])
    outputs = tf.numpy_function(encode, [features["text"], ranges], [tf.int32] * 2, stateful=False)
    ids, starts = (tf.ensure_shape(x, [None]) for x in outputs)
    return {"targets": ids, "starts": starts}

  return dataset.map(encoded, num_parallel_calls=tf.data.AUTOTUNE).filter(
    lambda features: tf.size(features["targets"]) > 0
  )


def whole_units(
  candidates: tf.Tensor, starts: tf.Tensor, seed: tf.Tensor, *, noise_density: float = 0.15
) -> tuple[tf.Tensor, tf.Tensor]:
  """Chooses phrases and words as `masking.whole_words` does; each unit is masked, replaced or kept as a whole.

  In:  candidates [F, T, T, T, T, T, F], starts [T, T, F, T, T, F, T], noise_density 0.5
  Out: ([F, T, T, F, F, F, F], [0, 1, 1, 2, 3, 3, 4])       the unit of tokens 1 and 2
  """
  chosen, _ = masking.whole_words(candidates, starts, seed, noise_density=noise_density)
  return chosen, masking.words(candidates, starts)


def annotated_masked_lm(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  noise_density: float = 0.15,
  mask_rate: float = 0.8,
  random_rate: float = 0.1,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Masks annotated phrases and entities as a whole, and other text by words.

  In:  {"targets": [3, 4, 5, 6, 7], "starts": [1, 1, 0, 0, 1]}          with 99 as mask and EOS 1
  Out: {"inputs": [3, 99, 99, 99, 7, 1], "targets": [3, 4, 5, 6, 7, 1], "loss_weights": [0, 1, 1, 1, 0, 0]}

  Phrases and words are equally likely, as long as they fit in the number of tokens to mask. A phrase at a chunk
  boundary is split in two. A phrase longer than this number is masked only if nothing else is.

  Args: see `masking.masked_lm`; `tokenize` yields the dataset.

  Source: Sun et al. 2019 (ERNIE), section 3.2; its three training stages are one here, determined by the annotations.
  """
  options = {"noise_density": noise_density, "mask_rate": mask_rate, "random_rate": random_rate}
  options |= {"merge_documents": merge_documents}
  return masking.masked_lm(dataset, sequence_length, output_features, choose=whole_units, **options)
