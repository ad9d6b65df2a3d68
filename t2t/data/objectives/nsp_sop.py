"""Masked language modelling with a sentence-pair task: BERT's NSP, ALBERT's SOP and StructBERT's structure task."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import special_tokens, vocabularies
from t2t.data.objectives import chunking, corruption, masking, registry
from t2t.models.head_config import HeadConfig

Features = dict[str, tf.Tensor]

_GROUP = 1024  # chunks from which a random second text is drawn; a long article has a few hundred
_SENTENCE = 1  # kind of a second text inside a single sentence, up to its end
_OTHER_KIND = 16  # tokens of length difference that outweigh another kind
_SHUFFLED = 0.05  # fraction of trigrams (Wang et al. 2020, section 3.2)


@dataclasses.dataclass(frozen=True)
class SentencePairTask:
  """A classification task on two texts, A and B.

  head: the head, whose classes are the arrangements in order.
  arrangements: "next", B follows A; "swapped", A follows B; "random", B is from another document. All are equally
    likely.
  shuffles_words: whether the model also restores the order of shuffled words.
  """

  head: HeadConfig
  arrangements: tuple[str, ...]
  shuffles_words: bool = False


NEXT = SentencePairTask(registry.NSP, ("next", "random"))  # Devlin et al. 2019, section 3.1
ORDER = SentencePairTask(registry.SOP, ("next", "swapped"))  # Lan et al. 2020, section 3.1
STRUCTURE = SentencePairTask(  # Wang et al. 2020 (StructBERT), section 3
  registry.STRUCTURE, ("next", "swapped", "random"), shuffles_words=True
)


# ---- Two texts -------------------------------------------------------------------------------------------------------


def cuts(ends: tf.Tensor, *, length: int) -> tf.Tensor:
  """Returns the bounds of a document's chunks: each has as many whole sentences as fit, or a part of one sentence.

  In:  [F, F, T, F, T, F, F, F, F, F, F, T, F], length 5
  Out: [0, 5, 10, 13]                       two sentences, the part of a third that fits, and the rest

  Args:
    ends: bool [tokens], True at the end of a sentence.
    length: maximum length of a chunk.
  """
  size = tf.size(ends, tf.int64)
  # Positions after each sentence, and 0.
  behind = tf.concat([tf.zeros([1], tf.int64), tf.where(ends)[:, 0] + 1], 0)

  def step(splits: tf.Tensor) -> tf.Tensor:
    start = splits[-1]
    most = tf.minimum(start + length, size)
    last = behind[tf.searchsorted(behind, most[None], side="right")[0] - 1]
    return tf.concat([splits, tf.where((last > start) & (most < size), last, most)[None]], 0)

  (splits,) = tf.while_loop(
    lambda splits: splits[-1] < size,
    lambda splits: (step(splits),),
    (tf.zeros([1], tf.int64),),
    shape_invariants=(tf.TensorShape([None]),),
  )
  return splits


def _of_documents(dataset: tf.data.Dataset, *, length: int, ends_sentence: tf.Tensor) -> tf.data.Dataset:
  """Cuts documents into chunks of a single document each, with the document's number.

  In:  {"targets": [1, 2, 3]}, {"targets": [4, 5]}          length 2
  Out: {"targets": [1, 2], "document": x}, {"targets": [4, 5], "document": y}        single tokens are dropped

  A chunk ends at a sentence end if it has one, as its first text does; otherwise the ends would reveal the order. The
  number is a fingerprint of the tokens, because several epochs of a small corpus can be mixed here. Copies of a
  document have the same number.
  """

  def cut(features: Features) -> Features:
    tokens = features["targets"]
    fingerprint = tf.bitcast(tf.fingerprint(tokens[None]), tf.int64)
    splits = cuts(tf.gather(ends_sentence, tokens), length=length)
    rows = tf.RaggedTensor.from_row_splits(tokens, splits, validate=False)
    return {"targets": rows, "document": tf.repeat(fingerprint, rows.nrows())}

  segments = dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
  return segments.filter(lambda features: tf.size(features["targets"]) > 1)


def halves(tokens: tf.Tensor, seed: tf.Tensor, *, ends_sentence: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Splits a chunk after a random sentence, or anywhere if no sentence ends in it.

  In:  [3, 4, 9, 5, 6, 9, 7], where 9 ends a sentence
  Out: [3, 4, 9], [5, 6, 9, 7]              or after the second sentence
  """
  ends = tf.gather(ends_sentence, tokens[:-1])
  keys = tf.random.stateless_uniform([tf.size(tokens) - 1], seed) + tf.cast(ends, tf.float32)
  end = tf.argmax(keys, output_type=tf.int32) + 1
  return tokens[:end], tokens[end:]


def with_others(group: Features, seed: tf.Tensor) -> Features:
  """Adds a text of another document to each second text, both cut to the shorter length; empty if there is none.

  In:  {"second": [[5, 5], [6], [7, 7, 7]], "document": [0, 0, 1], "kind": [0, 0, 0]}
  Out: {"second": [[5, 5], [6], [7, 7]], "other": [[7, 7], [7], [5, 5]], and further features}

  The text is drawn among those nearest in length, of the same kind if possible. Therefore neither the length nor the
  end of a text reveals its class.

  Args:
    group: features of several chunks, ragged; "kind" encodes how a second text begins and ends.
    seed: int [2], stateless.
  """
  second, document, kind = group["second"], group["document"], group["kind"]
  number, sizes = tf.size(document), tf.cast(second.row_lengths(), tf.float32)
  is_other = document[:, None] != document[None, :]
  distances = tf.abs(sizes[:, None] - sizes[None, :])
  distances += _OTHER_KIND * tf.cast(kind[:, None] != kind[None, :], tf.float32)
  # The noise is below one token, so it only breaks ties.
  keys = distances + tf.random.stateless_uniform([number, number], seed)
  chosen = tf.argmin(tf.where(is_other, keys, tf.float32.max), axis=1, output_type=tf.int32)
  has_other = tf.reduce_any(is_other, axis=1)
  other_texts = tf.gather(second, chosen)
  shorter = tf.minimum(second.row_lengths(), other_texts.row_lengths())
  return {
    **group,
    "second": _beginnings(second, tf.where(has_other, shorter, second.row_lengths())),
    "other": _beginnings(other_texts, tf.where(has_other, shorter, 0)),
  }


def _beginnings(texts: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
  """Returns the first `lengths` tokens of each text."""
  is_kept = tf.ragged.range(texts.row_lengths()).flat_values < tf.repeat(lengths, texts.row_lengths())
  return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(texts.flat_values, is_kept), lengths)


# ---- Words -----------------------------------------------------------------------------------------------------------


def shuffle_trigrams(tokens: tf.Tensor, may_move: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Shuffles runs of three tokens, 5 % of the movable ones.

  In:  [3, 4, 5, 6, 7, 8], may_move [T, T, T, F, T, T]
  Out: [5, 3, 4, 6, 7, 8], [T, T, T, F, F, F]               tokens, and whether they were in a shuffled run

  Source: Wang et al. 2020 (StructBERT), section 3.2, with K = 3.
  """
  choose_seed, order_seed, start_seed = tf.unstack(tf.random.split(seed, 3))
  length = tf.size(tokens)
  start = tf.random.stateless_uniform([], start_seed, 0, 3, tf.int32)
  run = (tf.range(length) + start) // 3
  runs = length // 3 + 2
  is_movable = tf.math.unsorted_segment_sum(tf.cast(may_move, tf.int32), run, runs) == 3
  number = tf.math.count_nonzero(is_movable, dtype=tf.int32)
  keys = tf.where(is_movable, tf.random.stateless_uniform([runs], choose_seed), 2.0)
  count = tf.minimum(corruption.noise_count(number, _SHUFFLED), number)
  chosen = tf.gather(corruption.lowest(keys, count), run)
  # Random keys in chosen runs, positions elsewhere; keys of a run are between keys of its neighbours.
  drawn = 3.0 * (tf.cast(run, tf.float32) + tf.random.stateless_uniform([length], order_seed))
  order = tf.argsort(tf.where(chosen, drawn, tf.cast(tf.range(length) + start, tf.float32)))
  return tf.gather(tokens, order), chosen


# ---- The objective ---------------------------------------------------------------------------------------------------


def masked_pairs(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  task: SentencePairTask,
  choose: Callable[..., tuple[tf.Tensor, tf.Tensor]] = masking.random_tokens,
  noise_density: float = 0.15,
  mask_rate: float = 0.8,
  random_rate: float = 0.1,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Combines two texts of one or two documents, masks some tokens, and labels the arrangement.

  In:  {"targets": [3, 4, 9, 5, 6]}, {"targets": [7, 8]}    with [CLS] 101, [SEP] 102 and [MASK] 103; 9 ends a sentence
  Out: {"inputs": [101, 3, 103, 9, 102, 8, 102], "targets": [101, 3, 4, 9, 102, 8, 102],
        "loss_weights": [0, 0, 1, 0, 0, 0, 0], "token_types": [0, 0, 0, 0, 0, 1, 1], "texts": [0, 0, 0, 0, 0, 0, 0],
        "answer_heads": [1, 0, 0, 0, 0, 0, 0], "answer_targets": [1, 0, 0, 0, 0, 0, 0]}        "random" of NEXT

  A random second text is the second half of a chunk of another document, from the 1,024 neighbouring chunks, with about
  the length of the text that it replaces. If the lengths differ, the longer one is cut in either case; otherwise the
  length would reveal the class. If all chunks are from one document, the class is "next". BERT's code also reuses the
  replaced text and shortens one example in ten; here each chunk is one example.

  Args:
    dataset: {"targets": int32 [n]} without EOS.
    sequence_length: maximum length of "inputs", special tokens included; "targets" must not be shorter.
    output_features: "targets" has the vocabulary.
    task: the sentence-pair task.
    choose: chooses the masked tokens, see `masking`.
    noise_density: fraction of text tokens to predict.
    mask_rate, random_rate: see `masking.replace`.
    merge_documents: unused; a text never crosses documents.

  Raises:
    UserError: lengths do not fit, or the vocabulary has no mask.
  """
  del merge_documents
  vocabulary = output_features["targets"].vocabulary
  if sequence_length["targets"] < sequence_length["inputs"]:
    raise UserError(
      f"config.data.targets_length={sequence_length['targets']} is too short: masked language models need one target "
      f"per input. Set config.data.targets_length={sequence_length['inputs']}."
    )
  around = special_tokens.Framing.of(vocabulary, "encoder_only")
  length = sequence_length["inputs"]
  special = len(around.begin) + len(around.between) + len(around.end)
  room = chunking.room(sequence_length, {"inputs": special}, shortest=2)
  mask_id, ordinary_ids = vocabularies.mask_id(vocabulary), vocabularies.ordinary_ids(vocabulary)
  replacement = {"mask_id": mask_id, "ordinary_ids": ordinary_ids, "mask_rate": mask_rate, "random_rate": random_rate}
  ends_sentence, starts_word = vocabularies.ends_sentence(vocabulary), vocabularies.starts_word(vocabulary)

  has_random = "random" in task.arrangements

  @seqio.map_over_dataset(num_seeds=1)
  def divide(features: Features, seed: tf.Tensor) -> Features:
    first, second = halves(features["targets"], seed, ends_sentence=ends_sentence)
    # Encodes whether the second text begins at a sentence, and whether it ends with one, which a model can see.
    begins, ends = tf.unstack(tf.cast(tf.gather(ends_sentence, tf.stack([first[-1], second[-1]])), tf.int32))
    return {"first": first, "second": second, "document": features["document"], "kind": 2 * begins + ends}

  @seqio.map_over_dataset(num_seeds=1)
  def draw(group: Features, seed: tf.Tensor) -> Features:
    return with_others(group, seed)

  @seqio.map_over_dataset(num_seeds=4)
  def corrupt(features: Features, seeds: Sequence[tf.Tensor]) -> Features:
    first, second = features["first"], features["second"]
    label = tf.random.stateless_uniform([], seeds[0], 0, len(task.arrangements), tf.int32)
    if has_random:
      is_missing = (label == task.arrangements.index("random")) & (tf.size(features["other"]) == 0)
      label = tf.where(is_missing, task.arrangements.index("next"), label)
    arranged = {
      "next": lambda: (first, second),
      "swapped": lambda: (second, first),
      "random": lambda: (first, features["other"]),
    }
    pair = tf.switch_case(label, [arranged[name] for name in task.arrangements])
    tokens, types = special_tokens.framed(tf.ragged.stack(list(pair)), around, length)
    candidates = masking.is_one_of(tokens, ordinary_ids)
    chosen, groups = choose(candidates, tf.gather(starts_word, tokens), seeds[1], noise_density=noise_density)
    inputs = masking.replace(tokens, chosen, groups, seeds[2], **replacement)
    if task.shuffles_words:
      inputs, moved = shuffle_trigrams(inputs, candidates & ~chosen, seeds[3])
      chosen |= moved
    size = tf.size(tokens)
    return {
      "inputs": inputs,
      "targets": tokens,
      "loss_weights": tf.cast(chosen, tf.int32),
      "token_types": types,
      "texts": tf.zeros_like(tokens),
      "answer_heads": special_tokens.one_hot(0, size, 1),
      "answer_targets": special_tokens.one_hot(0, size, label),
    }

  parts = divide(_of_documents(dataset, length=room, ends_sentence=ends_sentence))
  if "swapped" in task.arrangements:
    # Halves of a single sentence are dropped: the sentence end would reveal their order.
    parts = parts.filter(lambda features: features["kind"] != _SENTENCE)
  if has_random:
    parts = draw(parts.ragged_batch(_GROUP)).unbatch()
  return corrupt(parts)
