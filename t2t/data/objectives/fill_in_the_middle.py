"""Fill in the middle: moves a part of a text to its end."""

from collections.abc import Mapping
import functools

import seqio
import tensorflow as tf

from t2t.data import vocabularies
from t2t.data.objectives import chunking, corruption

Features = dict[str, tf.Tensor]


def fill_in_the_middle(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Keeps half of the chunks as in `causal_lm`; in the others moves a middle part to the end, in two orders.

  In:  {"targets": [3, 4, 5, 6, 7]}         with [99, 98, 97] as marks and EOS 1, kinds drawn 0, 2 and 3
  Out: {"targets": [3, 4, 5, 6, 7]}
       {"targets": [99, 3, 98, 6, 7, 97, 4, 5, 1]}          PSM, a quarter
       {"targets": [99, 98, 6, 7, 97, 3, 4, 5, 1]}          SPM, a quarter

  The marks are the vocabulary's, such as <fim_prefix>, if it has them, else the first three sentinels. Every token of a
  document occurs once per epoch, in addition to the EOS after a middle.

  Args: see `span_corruption`; documents have EOS.

  Raises:
    UserError: a length is too short, or there are fewer than three sentinels.

  Source: Bavarian et al. 2022, section 3, with its default rate of 0.5 and equally likely orders.
  """
  vocabulary = output_features["targets"].vocabulary
  move = functools.partial(corruption.fill_in_the_middle, marks=_middle_marks(vocabulary), eos_id=vocabulary.eos_id)
  marked = chunking.room(sequence_length, {"targets": 4})
  plain = sequence_length["targets"]
  dataset = chunking.cut_into_kinds(
    dataset, lengths=(plain, plain, marked, marked), merge_documents=merge_documents, whole_documents=True
  )

  @seqio.map_over_dataset(num_seeds=1)
  def rearrange(features: Features, seed: tf.Tensor) -> Features:
    tokens = features["targets"]
    kinds = [
      lambda: tokens,
      lambda: tokens,
      lambda: move(tokens, seed),
      lambda: move(tokens, seed, suffix_first=True),
    ]
    return {"targets": tf.switch_case(features["kind"], kinds)}

  return rearrange(dataset)


_MIDDLE_MARKS = (  # StarCoder, Qwen, Code Llama
  ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
  ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
  ("<PRE>", "<SUF>", "<MID>"),
)


def _middle_marks(vocabulary: seqio.Vocabulary) -> tuple[int, ...]:
  ids = {text.strip(): i for i, text in enumerate(vocabularies.token_texts(vocabulary))}
  for marks in _MIDDLE_MARKS:
    if all(mark in ids for mark in marks):
      return tuple(ids[mark] for mark in marks)
  return tuple(vocabularies.sentinel_ids(vocabulary, 3))
