"""From a seqio task to global batches: which text, which preprocessors, which feature converter, which streams.

`train_batches` and `eval_batches` are what training calls; what it calls first is in validation.py, and how the data is
split over streams and hosts in batch_iterator.py.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools

from absl import logging
import jax
from jax.experimental import multihost_utils
import numpy as np
import seqio
import tensorflow as tf

from t2t import UserError, sharding
from t2t.configuration.schema import DataConfig
from t2t.data import (
  batch_iterator,
  example_windows,
  feature_converters,
  fingerprint,
  raw_text,
  run_sources,
  sources,
  task_resolution,
  untruncated_lengths,
)
from t2t.data.sources import bad_records
from t2t.models.config import HeadConfig
from t2t.runtime import console

EVAL_SEED = 0  # held-out batches are the same in every run
EVAL_STREAMS = 16  # in at most so many parts, which hosts make side by side


# ---- What is read ----------------------------------------------------------------------------------------------------


def vocabulary(data: DataConfig) -> seqio.Vocabulary:
  """The vocabulary of the tokens: `data.vocabulary`, or else what the registered task or mixture has.

  Raises:
    UserError: it cannot be loaded, or `files` are given and it is not.
  """
  return run_sources.of(data).vocabulary()


def load_task(
  data: DataConfig,
  architecture: str = "",
  *,
  heads: Sequence[HeadConfig] = (),
  numbers: Mapping[str, int] | None = None,
) -> seqio.Task | seqio.Mixture:
  """The registered task or mixture, one made for the user's files, or all sources as a mixture.

  The registry stays as it was.

  Args:
    data: what is read.
    architecture: of the model, where heads answer.
    heads: its own: the examples are what they are asked.
    numbers: that it knows tasks by, see `task_ids`; None or none: it is not told of them.
  """
  provider = run_sources.of(data).load_task(architecture, heads=heads)
  if not numbers:
    return provider
  from t2t.data import task_ids

  return task_ids.tell(provider, numbers)


def registered(data: DataConfig) -> seqio.Task | seqio.Mixture:
  """The task or mixture that the user names, or all sources; its folders are as the tasks have it."""
  return run_sources.of(data).registered()


adapted = run_sources.adapted


def find_tasks(data: DataConfig, architecture: str, names: Sequence[str] = ()) -> list[seqio.Task]:
  """The tasks of `data.mixture` as they are trained on, or those that are named; see `task_resolution.select`.

  Args:
    data: what is read.
    architecture: a key of `feature_converters.FEATURE_CONVERTERS`.
    names: whole or what they end in: "cb" is super_glue_cb.

  Raises:
    UserError: no mixture is given, or a name is that of no task.
  """
  if not data.has_tasks:
    raise UserError("config.data.mixture is empty: give a task or a mixture, whose tasks can be evaluated")
  tasks = [adapted(data, task) for task in task_resolution.select(registered(data), names)]
  return [task_resolution.for_architecture(task, architecture) for task in tasks]


def split_of(data: DataConfig, *, train: bool) -> str:
  """The split to train on, or the held-out one; of files they have names of their own."""
  return run_sources.of(data).split(train=train)


def task_examples(
  data: DataConfig,
  architecture: str,
  task: seqio.Task | seqio.Mixture,
  *,
  split: str,
  seed: int = EVAL_SEED,
  trim: bool = True,
  progress: example_windows.Progress | None = None,
) -> tf.data.Dataset:
  """What a task yields, one example after another in the source's order, before a feature converter.

  Args:
    data: what is read.
    architecture: a key of `feature_converters.FEATURE_CONVERTERS`.
    task: see `load_task`.
    split: of the task.
    seed: of the preprocessors' noise.
    trim: cut to `feature_lengths`, as training does; a task alone may cut them itself, and says how long they were
      (`untruncated_lengths.measured`).
    progress: counts what is read of a task, no mixture.
  """
  of_task = dataclasses.replace(plan(data, architecture, task, train=False, seed=seed), split=split)
  if isinstance(task, seqio.Task):
    of_task = dataclasses.replace(of_task, task=untruncated_lengths.measured(of_task.task))
    return example_windows.in_order(of_task, trim=trim, progress=progress)
  untrimmed_task = (
    of_task.task if trim else task_resolution.copy(of_task.task, untruncated_lengths.untrimmed, lambda rate: rate)
  )
  return untrimmed_task.get_dataset(
    sequence_length={name: length for name, length in of_task.lengths.items() if name in task.output_features},
    split=split,
    shuffle=False,
    seed=seed,
    num_epochs=1,
    trim_output_features=trim,
    try_in_mem_cache=False,
  )


def model_features(
  data: DataConfig, architecture: str, task: seqio.Task | seqio.Mixture, examples: tf.data.Dataset
) -> tf.data.Dataset:
  """What the model gets of a task's examples: features of one example, or of one packed sequence, after another."""
  return feature_converters.convert(
    examples,
    architecture,
    feature_lengths(data, architecture, task),
    vocabulary=task_resolution.vocabulary_of(task),
    pack=data.pack,
  )


def feature_lengths(data: DataConfig, architecture: str, task: seqio.Task | seqio.Mixture) -> dict[str, int]:
  """How long each feature of the task may be."""
  return feature_converters.feature_lengths(
    architecture, tuple(task.output_features), inputs_length=data.inputs_length, targets_length=data.targets_length
  )


def model_lengths(data: DataConfig, architecture: str) -> dict[str, int]:
  """Positions of the model's "encoder" and "decoder" for this data, where it is answered in writing."""
  return feature_converters.model_lengths(architecture, feature_lengths(data, architecture, load_task(data)))


def plan(
  data: DataConfig, architecture: str, task: seqio.Task | seqio.Mixture, *, train: bool, seed: int
) -> example_windows.DataPlan:
  """How rows of batches are made of a task; `train`: of the split to train on, for ever, else of the held-out one."""
  return example_windows.DataPlan(
    task_resolution.for_architecture(task, architecture),
    split=split_of(data, train=train),
    lengths=feature_lengths(data, architecture, task),
    convert=functools.partial(model_features, data, architecture, task),
    pack=data.pack,
    seed=seed,
    train=train,
  )


# ---- What training calls ---------------------------------------------------------------------------------------------


def train_batches(
  data: DataConfig,
  architecture: str,
  mesh: jax.sharding.Mesh,
  *,
  batch_size: int,
  seed: int,
  common_size: int = 0,
  num_streams: int | None = None,
  heads: Sequence[HeadConfig] = (),
  numbers: Mapping[str, int] | None = None,
  evaluated: Sequence[str] = (),
) -> batch_iterator.BatchIterator:
  """Training batches on the mesh, for ever, from the beginning of the data.

  Args:
    data: what is read.
    architecture: a key of `feature_converters.FEATURE_CONVERTERS`.
    mesh: over whose axes data and fsdp a batch is split.
    batch_size: sequences of a global batch.
    seed: of shuffling and of the preprocessors' noise.
    common_size: what the batches of all that is read in the same streams are multiples of; 0: `batch_size`.
    num_streams: what the checkpoint recorded, if there is one; else `data.num_streams`, else chosen.
    heads, numbers: see `load_task`.
    evaluated: names of tasks, see `find_tasks`, whose files are to stay as they are, too.

  Raises:
    UserError: what the user gave cannot be used.
  """
  source, task = run_sources.of(data), load_task(data, architecture, heads=heads, numbers=numbers)
  batch_sharding = sharding.batch_sharding(mesh)
  host_rows = batch_iterator.host_rows(batch_sharding, batch_size)
  common = common_size or batch_size
  total = batch_iterator.choose_num_streams(
    batch_iterator.host_rows(batch_sharding, common),
    batch_size=common,
    wanted=num_streams or data.num_streams,
    documents=source.num_documents(task),
    named="config.train.batch_size" + (", the greatest common divisor of all stages" if common != batch_size else ""),
  )
  local_streams = batch_iterator.host_streams(host_rows[jax.process_index()], batch_size=batch_size, num_streams=total)
  logging.info("data: this host reads streams %s of %d", local_streams, total)
  measured = find_tasks(data, architecture, evaluated) if evaluated and source.name else ()
  return batch_iterator.BatchIterator(
    plan(data, architecture, task, train=True, seed=seed),
    local_streams,
    files=fingerprint.files(data, task, evaluated=measured),
    allow_changed_files=data.allow_changed_files,
    tally=_tally(data, task),
    spelled=lambda: raw_text.described(raw_text.spelled(task, split=split_of(data, train=True))),
    num_streams=total,
    batch_size=batch_size,
    batch_sharding=batch_sharding,
    identity=fingerprint.settings(data, vocabulary(data), batch_size=batch_size, seed=seed, num_streams=total)
    | ({"model.heads": [f"{head.name}: {head.kind} of {head.num_classes}" for head in heads]} if heads else {})
    | ({"pals.tasks": [f"{name}: {number}" for name, number in sorted(numbers.items())]} if numbers else {})
    | _cache_identity(data, task),
    saved=[
      stream
      for stream, process in batch_iterator.writers(host_rows, batch_size=batch_size, num_streams=total).items()
      if process == jax.process_index()
    ],
  )


def _tally(data: DataConfig, task: seqio.Task | seqio.Mixture) -> bad_records.Tally | None:
  """Of the records of files, which all that are read together have; None: there are none."""
  file_sources = (
    subtask.source for subtask in task_resolution.tasks_of(task) if isinstance(subtask.source, sources.FileSource)
  )
  source = next(file_sources, None)
  return None if source is None else source.tally(split_of(data, train=True))


def eval_rows(
  data: DataConfig,
  architecture: str,
  *,
  batch_size: int,
  max_batches: int,
  heads: Sequence[HeadConfig] = (),
) -> list[dict[str, np.ndarray]]:
  """The held-out batches in the memory of this host, whole; see `eval_batches`."""
  number = _eval_streams(batch_size)
  task = load_task(data, architecture, heads=heads)
  parts = _eval_parts(data, architecture, task, range(number), batch_size=batch_size, max_batches=max_batches)
  return [{name: array.reshape(-1, *array.shape[2:]) for name, array in batch.items()} for batch in parts]


def _eval_streams(batch_size: int) -> int:
  """In how many parts held-out batches are made: a number that depends on nothing else, so that they are the same."""
  return max(number for number in range(1, EVAL_STREAMS + 1) if batch_size % number == 0)


def _eval_parts(
  data: DataConfig,
  architecture: str,
  task: seqio.Task | seqio.Mixture,
  local_streams: Sequence[int],
  *,
  batch_size: int,
  max_batches: int,
) -> list[dict[str, np.ndarray]]:
  """Held-out batches as far as these streams make them: each feature as [streams, rows, length]."""
  number = _eval_streams(batch_size)
  of_task = plan(data, architecture, task, train=False, seed=EVAL_SEED)
  beginning = example_windows.beginning(of_task)
  read = example_windows.sources_of(of_task, number)
  dataset = example_windows.of_streams(
    of_task,
    local_streams,
    lambda _: beginning,
    num_streams=number,
    rows=batch_size // number,
    parts=max_batches,
    read=read,
  )
  parts = []
  filled = 0
  try:
    for features in dataset:
      part = batch_iterator.arrays(features)
      if (part.pop(example_windows.POSITION)[:, 0, 0] < 0).all():
        break  # nothing but rows of zeros from here on
      filled += 1
      parts.append(part)
  except tf.errors.OpError as error:
    raise sources.user_error(error) or error from None
  blank = {
    name: np.zeros((len(local_streams), batch_size // number, *spec.shape[2:]), spec.dtype.as_numpy_dtype)
    for name, spec in dataset.element_spec.items()
    if name != example_windows.POSITION
  }
  # [host, source, stream]: hosts may read the same streams.
  of_streams = [[[source.progress.records.get(i, 0) for i in range(number)] for source in read]]
  yielding = [[[i in source.progress.yields for i in range(number)] for source in read]]
  counts = np.array([filled]), np.array(of_streams), np.array(yielding)
  if jax.process_count() > 1:
    counts = tuple(multihost_utils.process_allgather(x, tiled=True) for x in counts)
  most, read_of, yields = int(counts[0].max()), counts[1].max(axis=0).sum(axis=1), counts[2].any(axis=(0, 2))
  if not most:
    number = int(read_of.sum())
    names = ", ".join(source.task.name for source in read)
    why = f"{names} makes none of the {number:,} records that were read" if number else f"{names} has no record"
    raise run_sources.of(data).no_held_out(task.name, why)
  for source, number, has_example in zip(read, read_of, yields, strict=True):
    if number and not has_example and jax.process_index() == 0:
      console.tell(
        f"{source.task.name}: split {of_task.split!r} has no held-out example, of {number:,} records that were read;"
        " the held-out loss is of the other tasks"
      )
  return parts + [batch_iterator.as_batch(blank)] * (most - filled)


def eval_batches(
  data: DataConfig,
  architecture: str,
  mesh: jax.sharding.Mesh,
  *,
  batch_size: int,
  max_batches: int,
  heads: Sequence[HeadConfig] = (),
  numbers: Mapping[str, int] | None = None,
  task: task_resolution.Provider | None = None,
) -> list[dict[str, jax.Array]]:
  """Held-out batches: the same on each call, in each run and for any number of hosts; as many on every host.

  They are filled up with rows of zeros, whose loss weights are zero.  Each host reads what its own rows are made of.

  Args:
    data: what is read.
    architecture: a key of `feature_converters.FEATURE_CONVERTERS`.
    mesh: over whose axes data and fsdp a batch is split.
    batch_size: sequences of a global batch.
    max_batches: at most so many.
    heads, numbers: see `load_task`.
    task: a part of what `load_task` gives; None: all of it.

  Raises:
    UserError: no held-out text, or a record that cannot be used.
  """
  batch_sharding = sharding.batch_sharding(mesh)
  host_rows = batch_iterator.host_rows(batch_sharding, batch_size)
  number = _eval_streams(batch_size)
  local_streams = batch_iterator.host_streams(host_rows[jax.process_index()], batch_size=batch_size, num_streams=number)
  task = load_task(data, architecture, heads=heads, numbers=numbers) if task is None else task
  parts = _eval_parts(data, architecture, task, local_streams, batch_size=batch_size, max_batches=max_batches)
  return [
    batch_iterator.global_batch(
      {stream: {name: array[i] for name, array in batch.items()} for i, stream in enumerate(local_streams)},
      batch_sharding,
      batch_size,
    )
    for batch in parts
  ]


def _cache_identity(data: DataConfig, task: seqio.Task | seqio.Mixture) -> dict[str, str]:
  if not data.cache_dir:
    return {}
  from t2t.data import offline_cache

  return {"data.cache_dir": offline_cache.identity(task)}
