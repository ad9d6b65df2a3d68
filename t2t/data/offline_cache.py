"""The offline cache: the tokens of a task in files, written once by Apache Beam and read by every run.

`t2t cache` (beam_caching.py) writes what a task's preprocessors make of its text up to the tokens, before anything is
drawn at random or depends on a length: each epoch still draws its own noise.  The files are seqio's, in a folder for
each task:

  CACHE/TASK/t2t.json                            of what it was made, see `record`
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


# ---- What is cached --------------------------------------------------------------------------------------------------


def folder_of(cache_dir: str, task: seqio.Task) -> str:
  """Where a task is cached."""
  return os.path.join(cache_dir, seqio.get_task_dir_from_name(task.name))


def split_preprocessors(task: seqio.Task) -> tuple[list, list]:
  """A task's preprocessors before and after the cache: it lies behind the tokens, or where the task says.

  Raises:
    UserError: the task has no such place, or its source must not be cached.
  """
  steps = list(task.preprocessors)
  if not task.source.caching_permitted:
    raise UserError(f"{task.name}: its source was registered with caching_permitted=False")
  for step_index, step in enumerate(steps):
    if isinstance(step, seqio.CacheDatasetPlaceholder):
      return steps[:step_index], steps[step_index + 1 :]
  for step_index, step in enumerate(steps):
    # What is cached is the same in each epoch and for any length.
    if {"seed", "seeds", "sequence_length"} & set(inspect.signature(step).parameters):
      break
    if registry.function_of(step) in _TOKENIZERS:
      return steps[: step_index + 1], steps[step_index + 1 :]
  raise UserError(
    f"{task.name}: cannot be cached, for its preprocessors do not say where; put seqio.CacheDatasetPlaceholder() among"
    " them, behind the last that neither draws at random nor needs sequence_length"
  )


def record(task: seqio.Task) -> dict[str, Any]:
  """What the content of a task's cache depends on; another record is another cache."""
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
      # An older cache, without these, is read: what it holds are tokens already.
      if (function := registry.function_of(step)) not in raw_text.STEPS
    ],
    "vocabulary": {name: _vocabulary_record(vocabulary) for name, vocabulary in texts.items()},
  }


def _vocabulary_record(vocabulary: seqio.Vocabulary) -> dict[str, Any]:
  try:
    words = "\n".join(vocabularies.token_texts(vocabulary))
  except AttributeError:  # of the user's own class
    words = type(vocabulary).__name__
  return {"ids": vocabulary.vocab_size, "sha256": hashlib.sha256(words.encode()).hexdigest()}


def check_record(task: seqio.Task, saved: Mapping[str, Any], *, where: str, remedy: str) -> None:
  """Whether a task's cache is what would be written now.

  Args:
    task: in the user's vocabulary.
    saved: what `record` was when the cache was written.
    where: what the user set, for messages.
    remedy: what would be right, for messages.

  Raises:
    UserError: it is not; says what differs.
  """
  expected_record = record(task)
  for name, vocabulary in expected_record["vocabulary"].items():
    if saved["vocabulary"].get(name) != vocabulary:
      cached = saved["vocabulary"].get(name, {"ids": 0})
      how = f"{cached['ids']:,} ids" if cached["ids"] != vocabulary["ids"] else f"{cached['ids']:,} ids, but others"
      raise UserError(
        f"{where}: {task.name} was cached in another vocabulary ({how}) than that of its {name}"
        f" ({vocabulary['ids']:,} ids); {remedy}"
      )
  if saved["preprocessors"] != expected_record["preprocessors"]:
    raise UserError(
      f"{where}: {task.name} was cached behind {', '.join(saved['preprocessors']) or 'no preprocessor'}, and now begins"
      f" with {', '.join(expected_record['preprocessors']) or 'none'}; {remedy}"
    )


# ---- Reading ---------------------------------------------------------------------------------------------------------


class CacheSource(seqio.DataSource):
  """What a task's cache holds, as a source in place of the task's own.

  Shards: files of their own where that balances, which needs files that divide among the shards or many of them, and
  enough examples; else each shard reads all files and keeps every num_shards-th example.
  """

  def __init__(self, folder: str):
    """A source with the splits that were cached.

    Args:
      folder: of the task, complete.
    """
    self._folder = folder
    self._files: dict[str, seqio.FileDataSource] = {}
    for path in sorted(tf.io.gfile.glob(seqio.get_cached_info_path(folder, "*"))):
      split = os.path.basename(path).removeprefix("info.").removesuffix(".json")
      # A split without an example says nothing of its features.
      if "features" in read_json(path):
        # What seqio itself reads a cache with; its public ways to it need a task with the folder it lies in.
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
    """True: see the class."""
    return True

  def list_shards(self, split: str) -> Sequence[str]:
    """The files of a split.

    Raises:
      UserError: one is missing.
    """
    shard_paths = tf.io.gfile.glob(f"{seqio.get_cached_tfrecord_prefix(self._folder, split)}-*")
    number = read_json(seqio.get_cached_info_path(self._folder, split))["num_shards"]
    if len(shard_paths) != number:
      raise UserError(f"{self._folder}: of {number} files of split {split} there are {len(shard_paths)}; copy it whole")
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
    """One pass over a shard of a split: the features of the cache.

    Args:
      split: one of those that were cached.
      shuffle: files in another order each pass.
      seed: of that order.
      shard_info: which shard of how many; all examples without it.
      sequence_length: not used, as `use_cached` and `num_epochs`; seqio passes them.
      use_cached: see above.
      num_epochs: see above.
    """
    del sequence_length, use_cached, num_epochs
    files, paths = self._files[split], sorted(self.list_shards(split))
    number = len(paths)
    shards = shard_info.num_shards if shard_info else 1
    balanced = number % shards == 0 or number >= 8 * shards
    names = tf.data.Dataset.from_tensor_slices(paths)
    # One file after another, in turns: TensorFlow crashes where what interleaves them in parallel, as seqio's source
    # does, is closed while it reads.  How one file is read, that source alone knows.
    read = lambda names: names.interleave(files._reader, cycle_length=16, block_length=16)
    if balanced and (shards in (1, number) or self.num_input_examples(split) >= 1_000 * number):
      names = names.shard(shards, shard_info.index) if shard_info else names
      return read(names.shuffle(number, seed=seed) if shuffle else names)
    # In one order for all shards, whose seeds differ: each example is in exactly one of them.
    return read(names).shard(shards, shard_info.index)

  def identity(self) -> str:
    """The same for copies of this cache, and for no other: one that is made anew has another order."""
    return "".join(_read(path) for path in sorted(tf.io.gfile.glob(os.path.join(self._folder, "*.json"))))


def _read(path: str) -> str:
  with tf.io.gfile.GFile(path) as file:
    return file.read()


def read_json(path: str) -> dict[str, Any]:
  """The content of a JSON file."""
  return json.loads(_read(path))


def read(provider: task_resolution.Provider, cache_dir: str, *, splits: Sequence[str]) -> task_resolution.Provider:
  """The task or mixture as it is read from its cache; the registry stays as it was.

  Args:
    provider: in the user's vocabulary.
    cache_dir: that `t2t cache` wrote.
    splits: that are needed, where the task has them.

  Raises:
    UserError: a task that is not in the cache, or not all of it, or made in another vocabulary.
  """
  return task_resolution.copy(provider, lambda task: _cached(task, cache_dir, splits), lambda rate: rate)


def _cached(task: seqio.Task, cache_dir: str, splits: Sequence[str]) -> seqio.Task:
  where, folder = f"config.data.cache_dir={cache_dir}", folder_of(cache_dir, task)
  command = f"t2t cache --mixture {task.name} --output_dir {cache_dir}"
  if not tf.io.gfile.exists(os.path.join(folder, COMPLETED)):
    begun = tf.io.gfile.exists(os.path.join(folder, RECORD))
    raise UserError(
      f"{where}: {task.name} is {'cached only in part' if begun else 'not cached'}: there is no"
      f" {os.path.join(folder, COMPLETED)}; `{command}` writes it, and with config.data.cache_dir= the task's source"
      " is read"
    )
  _, after = split_preprocessors(task)
  source = CacheSource(folder)
  if tf.io.gfile.exists(os.path.join(folder, RECORD)):
    remedy = f"set config.data.vocabulary to that one, or have `{command} --overwrite` make it anew"
    check_record(task, read_json(os.path.join(folder, RECORD)), where=where, remedy=remedy)
  else:
    logging.warning("%s: written by seqio alone, which does not say in which vocabulary", folder)
  # The source knows which splits it has, but may have to read for it.
  missing = [split for split in splits if split not in source.splits and split in task.splits]
  if missing:
    raise UserError(
      f"{where}: {task.name} was cached without {', '.join(missing)} (it has {', '.join(source.splits) or 'nothing'});"
      f" `{command} --splits {','.join(dict.fromkeys(splits))} --overwrite` makes it anew"
    )
  return task.replace(source=source, preprocessors=after)


def identity(provider: task_resolution.Provider) -> str:
  """Which cache the tasks are read from, in a few characters; it may move."""
  content = "".join(f"{task.name} {task.source.identity()}" for task in task_resolution.tasks_of(provider))
  return f"cache {hashlib.sha256(content.encode()).hexdigest()[:12]}"


def num_examples(provider: task_resolution.Provider, split: str) -> int | None:
  """Cached examples of the smallest task."""
  tasks = [task for task in task_resolution.tasks_of(provider) if split in task.splits]
  return min((task.num_input_examples(split) for task in tasks), default=None)
