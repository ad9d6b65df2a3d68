"""Docstrings as tasks: pairs, classes, spans and tags, from the installed documentation.

Benchmarks need downloads; these tasks exist on every machine with t2t. Their splits are those of the pre-training text,
so a model pre-trained on the documentation has seen none of their held-out examples. The formats are in
preprocessors.py.
"""

from collections.abc import Mapping, Sequence
import functools
import itertools
import json
import pathlib
import re
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t2t.data import shard_order
from t2t.data.sources import files as sources

Features = dict[str, tf.Tensor]

# A sentence ends after a word, not after an abbreviation ("e.g."). A colon mostly introduces a list of arguments.
_SUMMARY = re.compile(r"""([A-Z][^:]{8,158}?\w\w['")]?\.) (?=[A-Z])""")
_MIN_BODY = 50  # characters; shorter bodies say little about their summaries


def split(text: str) -> tuple[str, str] | None:
  """Splits a docstring into its first sentence and the rest; None if either is too short or too long.

  In:  "Return the number of days in a month. The month is a number from 1 to 12, and the year has to be given since"
       " February may have 29 days."
  Out: "Return the number of days in a month.",
       "The month is a number from 1 to 12, and the year has to be given since February may have 29 days."
  """
  summary_match = _SUMMARY.match(text)
  if summary_match is None or len(text) - summary_match.end() < _MIN_BODY:
    return None
  return summary_match[1], text[summary_match.end() :]


def records(documents: Sequence[Mapping[str, str]]) -> list[dict[str, str | int]]:
  """Returns the records of the tasks: docstrings in two parts, each with the summary of another docstring.

  In:  {"text": "Adds. All terms ...", "package": "a"}, {"text": "Closes. The file ...", "package": "a"}, ...
  Out: {"summary": "Adds.", "other": "Closes.", "body": "All terms ...", "package": "a", "idx": 0},
       {"summary": "Closes.", "other": "Adds.", "body": "The file ...", "package": "a", "idx": 1}, ...
       if these were long enough

  The other summary is that of the next docstring in the package; the last docstring takes that of the first. So each
  summary has one true and one false use, and a model needs both parts to decide. Of docstrings with the same summary
  the first is kept. Packages with a single summary are left out.
  """
  packages: dict[str, dict[str, str]] = {}
  for document in documents:
    parts = split(document["text"])
    if parts:
      packages.setdefault(document["package"], {}).setdefault(*parts)
  other_summaries = {
    (package, summary): next_summary
    for package, bodies in packages.items()
    if len(bodies) > 1
    for summary, next_summary in itertools.pairwise([*bodies, next(iter(bodies))])
  }
  kept_records = []
  for document in documents:
    summary, body = split(document["text"]) or (None, None)
    other_summary = other_summaries.pop((document["package"], summary), None)
    if other_summary:
      record = {"summary": summary, "other": other_summary, "body": body, "package": document["package"]}
      kept_records.append(record | {"idx": len(kept_records)})
  return kept_records


class DocstringSource(sources.DocumentationSource):
  """Records of the installed documentation, splits "train" and "validation"; read on first use.

  A split is in memory as a whole, a few megabytes, and any number of shards can read it.
  """

  def num_input_examples(self, split: str) -> int:
    return len(_columns(self.list_shards(split)[0])["idx"])

  def records(self, split: str) -> shard_order.SeqioRecords:
    return shard_order.SeqioRecords(self, split)

  def get_dataset(
    self,
    split: str = "train",
    shuffle: bool = True,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    *,
    sequence_length: Mapping[str, int] | None = None,
    use_cached: bool = False,
    num_epochs: int | None = 1,
  ) -> tf.data.Dataset:
    """Returns one pass over a shard of a split: {"summary", "other", "body", "package": string, "idx": int32}.

    Args:
      split: "train" or "validation".
      shuffle: not used: records are in the order of a hash, and the task shuffles its examples.
      seed: not used, see above.
      shard_info: index and number of shards; None: all records.
      sequence_length: not used, like `use_cached` and `num_epochs`; seqio passes them.
      use_cached: see above.
      num_epochs: see above.
    """
    del shuffle, seed, sequence_length, use_cached, num_epochs
    dataset = tf.data.Dataset.from_tensor_slices(_columns(self.list_shards(split)[0]))
    return dataset.shard(shard_info.num_shards, shard_info.index) if shard_info else dataset


@functools.lru_cache(maxsize=4)
def _columns(path: str) -> Mapping[str, tf.Tensor]:
  """Returns a tensor of each field with all records of a file; streams and epochs share the tensors."""
  rows = records([json.loads(line) for line in pathlib.Path(path).read_text().splitlines()])
  types = dict.fromkeys(("summary", "other", "body", "package"), tf.string) | {"idx": tf.int32}
  return {name: tf.constant([record[name] for record in rows], type_) for name, type_ in types.items()}


def match(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Pairs each body with its own summary (label 1) and another one (label 0); for `preprocessors.labelled`.

  In:  {"summary": "Adds.", "other": "Closes.", "body": "All terms are added.", "idx": 3}
  Out: {"summary": "Adds.", "body": "All terms are added.", "label": 1, "idx": 6},
       {"summary": "Closes.", "body": "All terms are added.", "label": 0, "idx": 7}
  """

  def both(features: Features) -> Features:
    return {
      "summary": tf.stack([features["summary"], features["other"]]),
      "body": tf.repeat(features["body"], 2),
      "label": tf.constant([1, 0]),
      "idx": 2 * features["idx"] + tf.constant([0, 1]),
    }

  return dataset.map(both, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def blanked(summary: str, body: str) -> tuple[str, str, list[int]] | None:
  """Replaces a word of a summary that the body repeats; None if no word of five letters or more is in both.

  In:  "Return the calendar of a month.", "The calendar of some month begins on its first day, and ends on its last."
  Out: "Return the @placeholder of a month.", "calendar", [4]

  The longest word is taken, the first of equal ones. The numbers are the first characters of its occurrences.

  Source: questions with a placeholder as in Hermann et al. 2015.
  """
  words = [word for word in re.findall(r"\b[A-Za-z]{5,}\b", summary) if re.search(rf"\b{word}\b", body)]
  if not words:
    return None
  word = max(words, key=len)
  starts = [occurrence.start() for occurrence in re.finditer(rf"\b{word}\b", body)]
  return re.sub(rf"\b{word}\b", "@placeholder", summary), word, starts


def cloze(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Asks for the word of a summary that its body repeats, see `blanked`; for `preprocessors.squad`.

  In:  {"summary": "Return the calendar of a month.", "body": "The calendar of some month begins ...", "idx": 3}
  Out: {"question": "Return the @placeholder of a month.", "context": "The calendar of some month begins ...",
        "answers": {"text": ["calendar"], "answer_start": [4]}, "id": "3"}
  """

  def parts(summary: bytes, body: bytes) -> tuple[bytes, bytes, np.ndarray]:
    question, word, starts = blanked(summary.decode(), body.decode()) or ("", "", [])
    return question.encode(), word.encode(), np.array(starts, np.int32)

  def asked(features: Features) -> dict[str, Any]:
    types = (tf.string, tf.string, tf.int32)
    question, word, starts = tf.numpy_function(parts, [features["summary"], features["body"]], types, stateful=False)
    starts = tf.ensure_shape(starts, [None])
    return {
      "question": tf.ensure_shape(question, []),
      "context": features["body"],
      "answers": {"text": tf.fill(tf.shape(starts), tf.ensure_shape(word, [])), "answer_start": starts},
      "id": tf.strings.as_string(features["idx"]),
    }

  examples = dataset.map(asked, num_parallel_calls=tf.data.AUTOTUNE)
  return examples.filter(lambda example: tf.size(example["answers"]["text"]) > 0)


def shuffled(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Gives each summary as it is (label 1), and with its inner words in another order (label 0).

  In:  {"summary": "Return the calendar of a month.", "idx": 3}
  Out: {"summary": "Return the calendar of a month.", "label": 1, "idx": 6},
       {"summary": "Return of a the calendar month.", "label": 0, "idx": 7}       the order depends on `idx`

  For `preprocessors.labelled`. The first and the last word keep their places, because a capital and a stop would give
  the answer away. Summaries of less than four words are left out.

  Source: tests of word order as in Conneau et al. 2018 (bigram shift), with all inner words instead of two.
  """

  def both(features: Features) -> Features:
    words = tf.strings.split(features["summary"])
    seed = tf.stack([features["idx"], 0])
    inner = tf.random.experimental.stateless_shuffle(words[1:-1], seed=seed)
    changed = tf.concat([words[:1], inner, words[-1:]], 0)
    return {
      "summary": tf.stack([tf.strings.reduce_join(text, separator=" ") for text in (words, changed)]),
      "label": tf.constant([1, 0]),
      "idx": 2 * features["idx"] + tf.constant([0, 1]),
    }

  long_enough = dataset.filter(lambda features: tf.size(tf.strings.split(features["summary"])) >= 4)
  pairs = long_enough.map(both, num_parallel_calls=tf.data.AUTOTUNE)
  return pairs.filter(lambda pair: pair["summary"][0] != pair["summary"][1]).unbatch()


PUNCTUATION = ("O", "B-comma", "B-stop")
_MOST_WORDS = 32


def punctuation(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Removes case and the marks after words, and tags each word with its mark; for `preprocessors.tagged`.

  In:  {"summary": "Adds terms.", "body": "If empty, zero."}
  Out: {"words": ["adds", "terms", "if", "empty", "zero"], "tags": [0, 2, 0, 1, 2]}       numbers of `PUNCTUATION`

  Of each docstring the first 32 words are taken. A comma, semicolon or colon is a comma, the others are stops.

  Source: restoration of punctuation as tags, Tilk & Alumae 2016.
  """

  def tagged(features: Features) -> Features:
    text = tf.strings.join([features["summary"], features["body"]], " ")
    words = tf.strings.split(text)[:_MOST_WORDS]
    is_comma = tf.strings.regex_full_match(words, r".*[,;:]\W*")
    is_stop = tf.strings.regex_full_match(words, r".*[.!?]\W*")
    tags = tf.where(is_stop, 2, tf.where(is_comma, 1, 0))
    bare = tf.strings.lower(tf.strings.regex_replace(words, r"^\W+|\W+$", ""))
    keep = tf.strings.length(bare) > 0
    return {"words": tf.boolean_mask(bare, keep), "tags": tf.boolean_mask(tags, keep)}

  return dataset.map(tagged, num_parallel_calls=tf.data.AUTOTUNE)


def of_package(dataset: tf.data.Dataset, *, packages: Sequence[str]) -> tf.data.Dataset:
  """Labels each docstring with the index of its package; for `preprocessors.labelled`.

  In:  {"summary": "Adds.", "body": "All terms are added.", "package": "b", "idx": 3}, packages ("a", "b")
  Out: the same and "label": 1
  """
  label = lambda features: {"label": tf.argmax(tf.equal(features["package"], packages), output_type=tf.int32)}
  return dataset.map(lambda features: features | label(features), num_parallel_calls=tf.data.AUTOTUNE)
