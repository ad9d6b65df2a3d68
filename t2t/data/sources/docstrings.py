"""Docstrings as tasks: what a summary says of its body, in the installed documentation.

Data sets of benchmarks are downloaded; these tasks are on every machine where t2t runs, and are split as the text of
pre-training is, so that a model that was pre-trained on the documentation has seen none of their held-out examples.
The formats are those of preprocessors.py.
"""

from collections.abc import Mapping, Sequence
import functools
import itertools
import json
import pathlib
import re

import seqio
import tensorflow as tf

from t2t.data import shard_order
from t2t.data.sources import files as sources

Features = dict[str, tf.Tensor]

# A sentence ends behind a word, not behind an abbreviation ("e.g."); with a colon it is most often a list of arguments.
_SUMMARY = re.compile(r"""([A-Z][^:]{8,158}?\w\w['")]?\.) (?=[A-Z])""")
_MIN_BODY = 50  # characters; what is shorter says little about its summary


def split(text: str) -> tuple[str, str] | None:
  """The first sentence of a docstring and what follows it; None where either is too short or too long.

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
  """What the tasks are made of: docstrings in two parts, each with a summary that is another's.

  In:  {"text": "Adds. All terms ...", "package": "a"}, {"text": "Closes. The file ...", "package": "a"}, ...
  Out: {"summary": "Adds.", "other": "Closes.", "body": "All terms ...", "package": "a", "idx": 0},
       {"summary": "Closes.", "other": "Adds.", "body": "The file ...", "package": "a", "idx": 1}, ...
       if these were long enough

  The other summary is that of the next docstring of the same package, and after the last that of the first: of each
  summary there is one true and one false use, so that it takes both parts to tell which it is.  Of docstrings with the
  same summary the first is kept, and none of a package that has only one.
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
  """Records of the installed documentation, splits "train" and "validation"; read when it is first used.

  A split is in memory as a whole, a few megabytes, and any number of shards can read it.
  """

  def num_input_examples(self, split: str) -> int:
    """Records of a split."""
    return len(_columns(self.list_shards(split)[0])["idx"])

  def records(self, split: str) -> shard_order.SeqioRecords:
    """A split as shard_order.py reads it."""
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
    """One pass over a shard of a split: {"summary", "other", "body", "package": string, "idx": int32}.

    Args:
      split: "train" or "validation".
      shuffle: not used: records are in the order of a hash, and the task shuffles what it makes of them.
      seed: not used, see above.
      shard_info: which shard of how many; all records without it.
      sequence_length: not used, as `use_cached` and `num_epochs`; seqio passes them.
      use_cached: see above.
      num_epochs: see above.
    """
    del shuffle, seed, sequence_length, use_cached, num_epochs
    dataset = tf.data.Dataset.from_tensor_slices(_columns(self.list_shards(split)[0]))
    return dataset.shard(shard_info.num_shards, shard_info.index) if shard_info else dataset


@functools.lru_cache(maxsize=4)
def _columns(path: str) -> Mapping[str, tf.Tensor]:
  """A tensor for each field with all records of a file; streams and epochs share these."""
  rows = records([json.loads(line) for line in pathlib.Path(path).read_text().splitlines()])
  types = dict.fromkeys(("summary", "other", "body", "package"), tf.string) | {"idx": tf.int32}
  return {name: tf.constant([record[name] for record in rows], type_) for name, type_ in types.items()}


def match(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Each body twice: with its own summary, label 1, and with another's, label 0; for `preprocessors.labelled`.

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


def of_package(dataset: tf.data.Dataset, *, packages: Sequence[str]) -> tf.data.Dataset:
  """A docstring with the number of its package as the label; for `preprocessors.labelled`.

  In:  {"summary": "Adds.", "body": "All terms are added.", "package": "b", "idx": 3}, packages ("a", "b")
  Out: the same and "label": 1
  """
  label = lambda features: {"label": tf.argmax(tf.equal(features["package"], packages), output_type=tf.int32)}
  return dataset.map(lambda features: features | label(features), num_parallel_calls=tf.data.AUTOTUNE)
