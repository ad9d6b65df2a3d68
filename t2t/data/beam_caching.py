"""Writes the offline cache of a task with Apache Beam, locally or on a cluster."""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import json
import logging as python_logging
import os
import re
import shlex
import threading
import time
from typing import Any
import uuid

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import offline_cache, raw_text, registry, task_resolution, vocabularies
from t2t.runtime import amounts, versions


@dataclasses.dataclass(frozen=True)
class CacheJob:
  """Settings of a cache job; workers on other machines receive them as well."""

  mixture: str
  modules: tuple[str, ...]
  output_dir: str
  splits: tuple[str, ...]  # empty: all splits
  num_shards: int  # 0: chosen
  vocabulary: str  # empty: the task's vocabulary
  extra_ids: int
  runner: str
  beam_options: tuple[str, ...]
  overwrite: bool

  def folder(self, task: seqio.Task) -> str:
    """Returns the folder of a task in the output folder."""
    return offline_cache.folder_of(self.output_dir, task)

  def splits_of(self, task: seqio.Task) -> list[str]:
    """Returns the selected splits of a task."""
    return [split for split in task.splits if not self.splits or split in self.splits]

  @property
  def is_local(self) -> bool:
    """True if the pipeline runs on this machine."""
    return self.runner.lower().removesuffix("runner") == "direct"


def load_beam():
  """Imports Apache Beam and seqio's modules for it."""
  python_logging.disable(python_logging.WARNING)  # Beam warns about a missing BigQuery client
  try:
    import apache_beam as beam
    from seqio import beam_utils
  except ImportError as error:
    raise UserError(
      f"Apache Beam cannot be imported ({error}). Run {versions.install_command('cache')}. If this environment has "
      "newer packages than Beam allows, use a separate environment."
    ) from error
  finally:
    python_logging.disable(python_logging.NOTSET)
  return beam, beam_utils


def _runner(job: CacheJob) -> Any:
  beam, _ = load_beam()
  # Beam's DirectRunner would first download a program; this is what it falls back to.
  name = "apache_beam.runners.portability.fn_api_runner.FnApiRunner" if job.is_local else job.runner
  try:
    return beam.runners.create_runner(name)
  except ImportError as error:
    raise UserError(
      f"--runner {job.runner} cannot be imported ({error}). Run pip install 'apache-beam[gcp]'."
    ) from error
  except ValueError as error:
    raise UserError(f"--runner {job.runner}: {error}") from error


# ---- Tasks -----------------------------------------------------------------------------------------------------------


def _task_or_mixture(name: str, job: CacheJob) -> task_resolution.Provider:
  """Returns a task or mixture with the user's vocabulary."""
  provider = registry.task_or_mixture(name, modules=job.modules, where="--mixture ", modules_where="--task_modules")
  if not job.vocabulary:
    return raw_text.guarded(provider)
  try:
    vocabulary = vocabularies.load(job.vocabulary, extra_ids=job.extra_ids)
    return raw_text.guarded(task_resolution.adapt(provider, vocabulary=vocabulary))
  except UserError as error:
    raise UserError(str(error).replace("config.data.vocabulary=", "--vocabulary ")) from error


_REGISTERING = threading.Lock()


def _registered_name(name: str) -> str:
  return f"{name}.cached"


def _register(name: str, job: CacheJob) -> None:
  """Registers the task to cache, because seqio's workers look it up by name."""
  with _REGISTERING:
    if _registered_name(name) in seqio.TaskRegistry.names():
      return
    task = _task_or_mixture(name, job)
    before, after = offline_cache.split_preprocessors(task)
    steps = [*before, seqio.CacheDatasetPlaceholder(), *after]
    registered = task.replace(name=_registered_name(name), preprocessors=steps)
    seqio.TaskRegistry.add_provider(registered.name, registered)


# ---- Running ---------------------------------------------------------------------------------------------------------


class _ExampleCounter:
  """Counts examples and prints the count every ten seconds."""

  def __init__(self, label: str):
    self._label, self._count, self._last_printed = label, 0, time.monotonic()

  def __call__(self, example):
    self._count += 1
    if time.monotonic() - self._last_printed >= 10:
      self._last_printed = time.monotonic()
      print(f"  {self._label}: {self._count:,} examples", flush=True)
    return example


def _add_to_pipeline(pipeline, task: seqio.Task, job: CacheJob) -> None:
  """Adds the steps that cache a task, as in seqio's scripts/cache_tasks_main.py."""
  beam, beam_utils = load_beam()
  folder = job.folder(task)
  _register(task.name, job)
  registered = seqio.TaskRegistry.get(_registered_name(task.name))
  written = []
  for split in job.splits_of(task):
    label = f"{task.name} {split}"
    preprocess = beam_utils.PreprocessTask(registered, split, setup_fn=functools.partial(_register, task.name, job))
    if registered.source.supports_arbitrary_sharding:
      # With eight files per shard t2t's sources give each shard its own files; with fewer each shard reads all files.
      preprocess.shards = preprocess.shards[: max(1, len(preprocess.shards) // 8)]
    # At least seqio's number, which divides by the number of streams of most runs.
    num_shards = job.num_shards or max(64, len(preprocess.shards))
    examples = (
      pipeline
      | f"{label}: preprocess" >> preprocess
      | f"{label}: count" >> beam.Map(_ExampleCounter(label))
      | f"{label}: shuffle" >> beam.Reshuffle()
    )
    prefix = seqio.get_cached_tfrecord_prefix(folder, split)
    info, stats = seqio.get_cached_info_path(folder, split), seqio.get_cached_stats_path(folder, split)
    written += [
      examples | f"{label}: write" >> beam_utils.WriteExampleTfRecord(prefix, num_shards=num_shards),
      examples
      | f"{label}: info" >> beam_utils.GetInfo(num_shards)
      | f"{label}: write info" >> beam_utils.WriteJson(info),
      examples
      | f"{label}: stats" >> beam_utils.GetStats(task.output_features)
      | f"{label}: write stats" >> beam_utils.WriteJson(stats),
    ]
  # Waits for all files, and writes an empty one.
  _ = (
    written
    | f"{task.name}: all splits" >> beam.Flatten()
    | f"{task.name}: nothing of them" >> beam.Filter(lambda _: False)
    | f"{task.name}: completed"
    >> beam.io.WriteToText(
      os.path.join(folder, offline_cache.COMPLETED),
      append_trailing_newlines=False,
      num_shards=1,
      shard_name_template="",
    )
  )


def _run(tasks: Sequence[seqio.Task], job: CacheJob) -> None:
  """Runs one pipeline for these tasks to its end, after removing their earlier files."""
  beam, _ = load_beam()
  states = beam.runners.runner.PipelineState
  names = ", ".join(task.name for task in tasks)
  try:
    options = beam.options.pipeline_options.PipelineOptions(list(job.beam_options))
    pipeline = beam.Pipeline(_runner(job), options)  # raises where an option is missing
    for task in tasks:
      _add_to_pipeline(pipeline, task, job)
    for task in tasks:
      _begin(task, job.folder(task))
    result = pipeline.run()
    state = result.state
    while not states.is_terminal(state):
      state = result.wait_until_finish(duration=60_000)  # milliseconds
      for counter in result.metrics().query(beam.metrics.MetricsFilter().with_name("examples"))["counters"]:
        print(f"  {counter.key.metric.namespace}: {counter.result:,} examples", flush=True)
    if state != states.DONE:
      raise UserError(
        f"caching {names}: the pipeline ended in state {state}. Read the reason in the log of the runner."
      )
  except UserError:
    raise
  except Exception as error:  # any error of a source, preprocessor or runner
    raise UserError(
      f"caching {names} failed: {_reason(error).rstrip('.')}. Correct the cause, and run the command again. Unfinished "
      "tasks are cached from the beginning."
    ) from error
  finally:
    for task in tasks:
      if _registered_name(task.name) in seqio.TaskRegistry.names():
        seqio.TaskRegistry.remove(_registered_name(task.name))


def _begin(task: seqio.Task, folder: str) -> None:
  """Makes a new, incomplete folder with a record of its future content."""
  if tf.io.gfile.exists(folder):
    tf.io.gfile.rmtree(folder)
  tf.io.gfile.makedirs(folder)
  record = offline_cache.record(task) | {"id": uuid.uuid4().hex}
  with tf.io.gfile.GFile(os.path.join(folder, offline_cache.RECORD), "w") as file:
    file.write(json.dumps(record, indent=2))


def _reason(error: Exception) -> str:
  """Returns the reason of an error in a few words; in Beam's errors it is the last line of a worker's traceback."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b.*:", line)]
  return (raised or lines or [type(error).__name__])[-1]


def _tasks(job: CacheJob) -> list[seqio.Task]:
  """Returns the tasks of the mixture with one of the splits."""
  parts = [_task_or_mixture(name.strip(), job) for name in job.mixture.split(",")]
  tasks = {task.name: task for part in parts for task in task_resolution.tasks_of(part)}.values()
  known_splits = sorted({split for task in tasks for split in task.splits})
  for split in job.splits:
    if split not in known_splits:
      raise UserError(f"--splits {split}: {job.mixture} has no such split; choose from {', '.join(known_splits)}")
  return [task for task in tasks if job.splits_of(task)]


def _is_complete(task: seqio.Task, job: CacheJob) -> bool:
  """Returns true if a task is cached completely.

  Raises:
    UserError: the task cannot be cached, or its folder contains other files or a different cache.
  """
  offline_cache.record(task)
  folder, where = job.folder(task), f"--output_dir {job.output_dir}"
  record = os.path.join(folder, offline_cache.RECORD)
  if not tf.io.gfile.exists(record):
    if tf.io.gfile.exists(folder) and tf.io.gfile.listdir(folder):
      raise UserError(f"{where}: {folder} contains files that `t2t cache` did not write. Give another --output_dir.")
    return False
  if job.overwrite or not tf.io.gfile.exists(os.path.join(folder, offline_cache.COMPLETED)):
    return False
  remedy = "give --overwrite or another --output_dir."
  offline_cache.check_record(task, offline_cache.read_json(record), where=where, remedy=remedy)
  for split in job.splits_of(task):
    if not tf.io.gfile.exists(seqio.get_cached_info_path(folder, split)):
      raise UserError(f"{where}: {task.name} is cached without split {split}. To cache this split, {remedy}")
  return True


def run(job: CacheJob) -> None:
  """Caches the tasks that are not cached yet, and prints progress and a summary.

  Raises:
    UserError: a task cannot be cached, or the pipeline fails.
  """
  beam, _ = load_beam()
  _runner(job)
  try:
    beam.io.filesystems.FileSystems.get_filesystem(job.output_dir)
  except ValueError as error:
    raise UserError(f"--output_dir {job.output_dir}: {error}") from error
  tasks = _tasks(job)
  todo = [task for task in tasks if not _is_complete(task, job)]
  started = time.monotonic()
  # A local run handles one task at a time: memory holds its data, and finished tasks stay when the next one fails.
  groups = [[task] for task in todo] if job.is_local else [todo] if todo else []
  for number, group in enumerate(groups, 1):
    names = ", ".join(f"{task.name} ({', '.join(job.splits_of(task))})" for task in group)
    print(f"caching with {job.runner}, {number} of {len(groups)}: {names}", flush=True)
    _run(group, job)
    for task in group:
      print("\n".join(_summary(task, job)), flush=True)
  for task in tasks:
    if task not in todo:
      print("\n".join([f"{task.name} is cached already:", *_summary(task, job)]))
  print(f"{len(todo)} of {len(tasks)} tasks written to {job.output_dir} in {time.monotonic() - started:.0f} s")
  print(f"next:\n  {_next_command(job)}")


def _summary(task: seqio.Task, job: CacheJob) -> Iterator[str]:
  """Yields a line for each split."""
  folder = job.folder(task)
  for split in job.splits_of(task):
    stats = offline_cache.read_json(seqio.get_cached_stats_path(folder, split))
    tokens = sum(stats[key] for key in (f"{name}_tokens" for name in task.output_features) if key in stats)
    files = tf.io.gfile.glob(f"{seqio.get_cached_tfrecord_prefix(folder, split)}-*")
    size = sum(tf.io.gfile.stat(path).length for path in files)
    counted = f"{stats['examples']:,} examples, {tokens:,} tokens, {amounts.nbytes(size)} in {len(files)} files"
    yield f"  {task.name} {split}: {counted}"


def _next_command(job: CacheJob) -> str:
  options = {
    "mixture": job.mixture,
    "cache_dir": job.output_dir,
    "vocabulary": job.vocabulary,
    "task_modules": ",".join(job.modules),
  }
  keys = " ".join(f"--config.data.{key}={shlex.quote(value)}" for key, value in options.items() if value)
  return f"t2t train --config CONFIG --workdir WORKDIR {keys}"
