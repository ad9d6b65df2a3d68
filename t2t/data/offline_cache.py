"""Offline cache: the tokens of a task in files, written once by Apache Beam and read by every run.

`t2t cache` (beam_caching.py) runs a task's preprocessors up to the tokens, before any random draw or length, so each
epoch still draws its own noise. The files are seqio's, in a folder per task:

  CACHE/TASK/t2t.json                            what the cache depends on, see `record`
  CACHE/TASK/train.tfrecord-00000-of-00064       tf.train.Examples
  CACHE/TASK/info.train.json, stats.train.json   their features; their number and their tokens
  CACHE/TASK/COMPLETED                           written last: without it the cache is not read
"""

from collections.abc import Mapping, Sequence
import hashlib
import inspect
import json
import os
from typing import Any

from absl import logging
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import preprocessors, raw_text, registry, task_resolution, vocabularies
from t2t.data.objectives import chunking, entity_masking, sentence_pairs

RECORD, COMPLETED = "t2t.json", "COMPLETED"
_TOKENIZERS = (chunking.tokenize, entity_masking.tokenize, sentence_pairs.encode, *preprocessors.TOKENIZERS)


# ---- Content of the cache --------------------------------------------------------------------------------------------


def folder_of(cache_dir: str, task: seqio.Task) -> str:
  """Returns the cache folder of a task."""
  return os.path.join(cache_dir, seqio.get_task_dir_from_name(task.name))


def split_preprocessors(task: seqio.Task) -> tuple[list, list]:
  """Splits a task's preprocessors at the cache: behind the tokens, or at the task's placeholder.

  Raises:
    UserError: the task has no such place, or its source must not be cached.
  """
  steps = list(task.preprocessors)
  if not task.source.caching_permitted:
    raise UserError(
      f"{task.name} cannot be cached, because its source is registered with caching_permitted=False. Leave the task "
      "out, or register the source with caching_permitted=True."
    )
  for step_index, step in enumerate(steps):
    if isinstance(step, seqio.CacheDatasetPlaceholder):
      return steps[:step_index], steps[step_index + 1 :]
  for step_index, step in enumerate(steps):
    # Cached content is the same in each epoch and for any length.
    if {"seed", "seeds", "sequence_length"} & set(inspect.signature(step).parameters):
      break
    if registry.function_of(step) in _TOKENIZERS:
      return steps[: step_index + 1], steps[step_index + 1 :]
  raise UserError(
    f"{task.name} cannot be cached, because its preprocessors do not mark the place of the cache. Put "
    "seqio.CacheDatasetPlaceholder() before the first preprocessor that needs random numbers or sequence_length."
  )


def record(task: seqio.Task) -> dict[str, Any]:
  """Returns what the content of a task's cache depends on; another record means another cache."""
  before, _ = split_preprocessors(task)
  texts = {
    name: feature.vocabulary
    for name, feature in task.output_features.items()
    if not isinstance(feature.vocabulary, seqio.PassThroughVocabulary)
  }
  return {
    "preprocessors": [
      seqio.utils.function_name(function)
      for step in before
      # Older caches without these steps stay valid, because they contain tokens already.
      if (function := registry.function_of(step)) not in raw_text.STEPS
    ],
    "vocabulary": {name: _vocabulary_record(vocabulary) for name, vocabulary in texts.items()},
  }


def _vocabulary_record(vocabulary: seqio.Vocabulary) -> dict[str, Any]:
  try:
    words = "\n".join(vocabularies.token_texts(vocabulary))
  except AttributeError:  # a user's own class
    words = type(vocabulary).__name__
  return {"ids": vocabulary.vocab_size, "sha256": hashlib.sha256(words.encode()).hexdigest()}


def check_record(task: seqio.Task, saved: Mapping[str, Any], *, where: str, remedy: str) -> None:
  """Checks that a task's cache is the one that would be written now.

  Args:
    task: task in the user's vocabulary.
    saved: `record` at the time of writing.
    where: the user's setting, for messages.
    remedy: end of a sentence, how to write the cache anew, for messages.

  Raises:
    UserError: they differ; says how.
  """
  expected_record = record(task)
  for name, vocabulary in expected_record["vocabulary"].items():
    if saved["vocabulary"].get(name) != vocabulary:
      cached = saved["vocabulary"].get(name, {"ids": 0})
      how = f"{cached['ids']:,} ids" if cached["ids"] != vocabulary["ids"] else f"{cached['ids']:,} other ids"
      raise UserError(
        f"{where}: {task.name} was cached with another vocabulary ({how}) than the present vocabulary of its {name} "
        f"({vocabulary['ids']:,} ids). Give the vocabulary of the cache, or {remedy}"
      )
  if saved["preprocessors"] != expected_record["preprocessors"]:
    raise UserError(
      f"{where}: {task.name} was cached behind {', '.join(saved['preprocessors']) or 'no preprocessor'}, but the task "
      f"now begins with {', '.join(expected_record['preprocessors']) or 'no preprocessor'}. Restore the preprocessors, "
      f"or {remedy}"
    )


# ---- Reading ---------------------------------------------------------------------------------------------------------


class CacheSource(seqio.DataSource):
  """Source that reads a task's cache instead of the task's own source.

  A shard has its own files where that balances: the files divide among the shards or are many, and there are enough
  examples. Otherwise each shard reads all files and keeps every num_shards-th example.
  """

  def __init__(self, folder: str):
    """Creates a source with the cached splits.

    Args:
      folder: complete folder of the task.
    """
    self._folder = folder
    self._files: dict[str, seqio.FileDataSource] = {}
    for path in sorted(tf.io.gfile.glob(seqio.get_cached_info_path(folder, "*"))):
      split = os.path.basename(path).removeprefix("info.").removesuffix(".json")
      # A split without an example has no features.
      if "features" in read_json(path):
        # seqio's own reader of caches; its public interface needs a task with the cache folder.
        self._files[split] = seqio.dataset_providers._CachedDataSource(folder, split)
    super().__init__(
      splits=tuple(self._files),
      num_input_examples={split: files.num_input_examples(split) for split, files in self._files.items()},
      performs_internal_shuffling=True,  # examples were shuffled when they were written
    )

  def __str__(self):
    return f"{type(self).__name__}({self._folder})"

  @property
  def supports_arbitrary_sharding(self) -> bool:
    return True

  def list_shards(self, split: str) -> Sequence[str]:
    """Returns the files of a split.

    Raises:
      UserError: a file is missing.
    """
    shard_paths = tf.io.gfile.glob(f"{seqio.get_cached_tfrecord_prefix(self._folder, split)}-*")
    number = read_json(seqio.get_cached_info_path(self._folder, split))["num_shards"]
    if len(shard_paths) != number:
      raise UserError(
        f"{self._folder}: only {len(shard_paths)} of {number} files of split {split} exist. Copy the whole folder "
        "again."
      )
    return shard_paths

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
    """Returns one pass over a shard of a split, with the features of the cache.

    Args:
      split: a cached split.
      shuffle: use another order of files in each pass.
      seed: seed of that order.
      shard_info: index and number of shards; None: all examples.
      sequence_length: unused, like `use_cached` and `num_epochs`; seqio passes them.
      use_cached: see above.
      num_epochs: see above.
    """
    del sequence_length, use_cached, num_epochs
    files, paths = self._files[split], sorted(self.list_shards(split))
    number = len(paths)
    shards = shard_info.num_shards if shard_info else 1
    balanced = number % shards == 0 or number >= 8 * shards
    names = tf.data.Dataset.from_tensor_slices(paths)
    # Files are interleaved sequentially: TensorFlow crashes when a parallel interleave, as in seqio's source, is closed
    # while it reads. Only that source knows how to read one file.
    read = lambda names: names.interleave(files._reader, cycle_length=16, block_length=16)
    if balanced and (shards in (1, number) or self.num_input_examples(split) >= 1_000 * number):
      names = names.shard(shards, shard_info.index) if shard_info else names
      return read(names.shuffle(number, seed=seed) if shuffle else names)
    # One order for all shards, though their seeds differ: each example is in exactly one shard.
    return read(names).shard(shards, shard_info.index)

  def identity(self) -> str:
    """Returns an identity that copies of this cache share; a new cache has another order and another identity."""
    return "".join(_read(path) for path in sorted(tf.io.gfile.glob(os.path.join(self._folder, "*.json"))))


def _read(path: str) -> str:
  with tf.io.gfile.GFile(path) as file:
    return file.read()


def read_json(path: str) -> dict[str, Any]:
  """Returns the content of a JSON file."""
  return json.loads(_read(path))


def read(provider: task_resolution.Provider, cache_dir: str, *, splits: Sequence[str]) -> task_resolution.Provider:
  """Returns the task or mixture reading from its cache; the registry stays unchanged.

  Args:
    provider: task or mixture in the user's vocabulary.
    cache_dir: folder that `t2t cache` wrote.
    splits: required splits, where the task has them.

  Raises:
    UserError: a task is missing or incomplete in the cache, or cached with another vocabulary.
  """
  return task_resolution.copy(provider, lambda task: _cached(task, cache_dir, splits), lambda rate: rate)


def _cached(task: seqio.Task, cache_dir: str, splits: Sequence[str]) -> seqio.Task:
  where, folder = f"config.data.cache_dir={cache_dir}", folder_of(cache_dir, task)
  command = f"t2t cache --mixture {task.name} --output_dir {cache_dir}"
  if not tf.io.gfile.exists(os.path.join(folder, COMPLETED)):
    begun = tf.io.gfile.exists(os.path.join(folder, RECORD))
    raise UserError(
      f"{where}: {task.name} is {'cached only in part' if begun else 'not cached'}, because "
      f"{os.path.join(folder, COMPLETED)} does not exist. Write the cache with `{command}`, or read the task's "
      "source with config.data.cache_dir=''."
    )
  _, after = split_preprocessors(task)
  source = CacheSource(folder)
  if tf.io.gfile.exists(os.path.join(folder, RECORD)):
    remedy = f"write the cache anew with `{command} --overwrite`."
    check_record(task, read_json(os.path.join(folder, RECORD)), where=where, remedy=remedy)
  else:
    logging.warning("%s: seqio alone wrote this cache, without a record of the vocabulary", folder)
  # The source knows its splits, but may have to read for it.
  missing = [split for split in splits if split not in source.splits and split in task.splits]
  if missing:
    raise UserError(
      f"{where}: {task.name} was cached without the split {', '.join(missing)} (cached splits: "
      f"{', '.join(source.splits) or 'none'}). Write the cache anew with `{command} --splits "
      f"{','.join(dict.fromkeys(splits))} --overwrite`."
    )
  return task.replace(source=source, preprocessors=after)


def identity(provider: task_resolution.Provider) -> str:
  """Returns a short identity of the tasks' cache, independent of its folder."""
  content = "".join(f"{task.name} {task.source.identity()}" for task in task_resolution.tasks_of(provider))
  return f"cache {hashlib.sha256(content.encode()).hexdigest()[:12]}"


def num_examples(provider: task_resolution.Provider, split: str) -> int | None:
  """Returns the number of cached examples of the smallest task."""
  tasks = [task for task in task_resolution.tasks_of(provider) if split in task.splits]
  return min((task.num_input_examples(split) for task in tasks), default=None)
