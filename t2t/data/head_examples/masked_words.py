"""Templates for an encoder that learns the words of the blank as masked tokens, one mask for each token of a word."""

from collections.abc import Mapping

import seqio
import tensorflow as tf

from t2t import feature_spec
from t2t.data import raw_text, task_resolution, vocabularies
from t2t.data.head_examples import kinds, needs
from t2t.data.head_examples.reading import Features
from t2t.data.special_tokens import Framing, encode


def for_tokens(provider: task_resolution.Provider, architecture: str) -> task_resolution.Provider:
  """Returns a task or mixture with templates as masked language modeling of the right words.

  Unlike a cloze head, words may have several tokens and differ between examples (PET with multiple masks, Schick &
  Schuetze 2020, "It's Not Just Size That Matters"; the loss is the cross-entropy of the right words, as there for WSC).
  Tasks without templates are unchanged.

  Args:
    provider: the task or mixture, in the model's vocabulary and with the user's files as its source.
    architecture: of an encoder.
  """
  from t2t.data import templates

  def masked(task: seqio.Task) -> seqio.Task:
    if not templates.is_templated(task):
      return task
    vocabulary = task.output_features["inputs"].vocabulary
    framing = Framing.of(vocabulary, architecture)

    def convert(dataset: tf.data.Dataset, sequence_length: Mapping[str, int]) -> tf.data.Dataset:
      make = lambda example: masked_word(example, vocabulary, framing, sequence_length["inputs"])
      return dataset.map(make, num_parallel_calls=tf.data.AUTOTUNE)

    as_it_is = seqio.Feature(seqio.PassThroughVocabulary(0), add_eos=False)
    features = dict.fromkeys(feature_spec.ENCODER, as_it_is)
    features |= dict.fromkeys(("inputs", "targets"), seqio.Feature(vocabulary, add_eos=False))
    task = task.replace(preprocessors=[*needs.formats_of(task), convert], output_features=features)
    return raw_text.guarded(task) if raw_text.is_guarded(task) else task

  return task_resolution.copy(provider, masked, lambda rate: rate)


def masked_word(example: Features, vocabulary: seqio.Vocabulary, framing: Framing, length: int) -> Features:
  """Masks the right word in a filled template.

  In:  {"header": "", "blank_before": "a", "blank_space": " ", "blank_word": "c d", "blank_after": "b"}
  Out: {"inputs": [101, 5, 103, 103, 6, 102], "targets": [101, 5, 7, 8, 6, 102], "loss_weights": [0, 0, 1, 1, 0, 0],
        "token_types": [0, 0, 0, 0, 0, 0], "has_answer": True}

  A text that is too long loses the tokens farthest from the blank.
  """
  space = "" if kinds.joins_space(vocabulary) else example["blank_space"]
  before = tf.strings.join([example["header"], example["blank_before"]])
  word = tf.strings.join([space, example["blank_word"]])
  parts = encode(vocabulary, tf.stack([before, word, example["blank_after"]]))
  begin, end = (tf.constant(ids, tf.int32) for ids in (framing.begin, framing.end))
  number = tf.size(parts[1])
  room = tf.maximum(length - tf.size(begin) - tf.size(end) - number, 0)
  behind = tf.minimum(tf.size(parts[2]), tf.maximum(room - tf.size(parts[0]), room // 2))
  first = tf.maximum(tf.size(parts[0]) - (room - behind), 0)
  targets = tf.concat([begin, parts[0][first:], parts[1], parts[2][:behind], end], 0)
  start = tf.size(begin) + tf.size(parts[0]) - first
  at = tf.range(tf.size(targets))
  is_word = (at >= start) & (at < start + number)
  return {
    "inputs": tf.where(is_word, vocabularies.mask_id(vocabulary), targets),
    "targets": targets,
    "loss_weights": tf.cast(is_word, tf.int32),
    "token_types": tf.zeros_like(targets),
    "has_answer": example["blank_word"] != feature_spec.UNKNOWN,
  }
