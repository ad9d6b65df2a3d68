"""Pipeline from a seqio task to global batches: source, preprocessors, feature converter and streams.

Training calls `train_batches` and `eval_batches`, after the checks of validation.py. batch_iterator.py splits the data
over streams and hosts.
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
from t2t.models.architecture import architecture_of
from t2t.models.head_config import HeadConfig
from t2t.runtime import console

EVAL_SEED = 0  # held-out batches are the same in every run
EVAL_STREAMS = 16  # maximum number of parts, which hosts make side by side


# ---- Tasks -----------------------------------------------------------------------------------------------------------


def vocabulary(data: DataConfig) -> seqio.Vocabulary:
  """Returns the vocabulary: `data.vocabulary`, or that of the registered task or mixture.

  Raises:
    UserError: the vocabulary cannot be loaded, or `files` are given without one.
  """
  return run_sources.of(data).vocabulary()


def load_task(
  data: DataConfig,
  architecture: str = "",
  *,
  heads: Sequence[HeadConfig] = (),
  numbers: Mapping[str, int] | None = None,
) -> seqio.Task | seqio.Mixture:
  """Returns the registered task or mixture, the task of the user's files, or all sources as a mixture.

  The registry stays unchanged.

  Args:
    data: config of the data.
    architecture: architecture of the model, if heads answer.
    heads: heads of the model, which examples are made for.
    numbers: task name -> task id of the model, see `task_ids`; None or empty: no task ids.
  """
  provider = run_sources.of(data).load_task(architecture, heads=heads)
  if not numbers:
    return provider
  from t2t.data import task_ids

  return task_ids.tell(provider, numbers)


def registered(data: DataConfig) -> seqio.Task | seqio.Mixture:
  """Returns the named task or mixture, or all sources, with folders as registered."""
  return run_sources.of(data).registered()


adapted = run_sources.adapted


def find_tasks(data: DataConfig, architecture: str, names: Sequence[str] = ()) -> list[seqio.Task]:
  """Returns the training tasks of `data.mixture`, or the named ones; see `task_resolution.select`.

  A task with several templates becomes one task for each, TASK.TEMPLATE.

  Args:
    data: config of the data.
    architecture: a key of `feature_converters.FEATURE_CONVERTERS`.
    names: names or suffixes: "cb" is super_glue_cb.

  Raises:
    UserError: no mixture is given, or a name matches no task.
  """
  if not data.has_tasks:
    raise UserError("config.data.mixture is empty. Give a task or a mixture to evaluate.")
  tasks = [adapted(data, run_sources.templated(data, task)) for task in task_resolution.select(registered(data), names)]
  if data.templates:
    from t2t.data import templates

    tasks = [variant for task in tasks for variant in templates.variants(task)]
  return [task_resolution.for_architecture(task, architecture) for task in tasks]


def split_of(data: DataConfig, *, train: bool) -> str:
  """Returns the name of the training split, or of the held-out one."""
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
  """Returns the examples of a task in the source's order, before a feature converter.

  Args:
    data: config of the data.
    architecture: a key of `feature_converters.FEATURE_CONVERTERS`.
    task: see `load_task`.
    split: split of the task.
    seed: seed of the preprocessors' noise.
    trim: cut to `feature_lengths`, as in training. A task may also cut texts itself and record their lengths
      (`untruncated_lengths.measured`).
    progress: counts of records and examples; for a task, not a mixture.
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
  """Returns the model features of a task's examples, one example or packed sequence at a time."""
  return feature_converters.convert(
    examples,
    architecture,
    feature_lengths(data, architecture, task),
    vocabulary=task_resolution.vocabulary_of(task),
    pack=data.pack,
  )


def feature_lengths(data: DataConfig, architecture: str, task: seqio.Task | seqio.Mixture) -> dict[str, int]:
  """Returns the maximum length of each feature of the task."""
  return feature_converters.feature_lengths(
    architecture, tuple(task.output_features), inputs_length=data.inputs_length, targets_length=data.targets_length
  )


def model_lengths(data: DataConfig, architecture: str) -> dict[str, int]:
  """Returns the number of positions of the model's "encoder" and "decoder" for this data, for generated answers."""
  return feature_converters.model_lengths(architecture, feature_lengths(data, architecture, load_task(data)))


def plan(
  data: DataConfig, architecture: str, task: seqio.Task | seqio.Mixture, *, train: bool, seed: int
) -> example_windows.DataPlan:
  """Returns the plan of a task's rows: the training split, repeated, if `train`; otherwise the held-out split.

  Raises:
    UserError: rows cannot continue, see `_check_continues`.
  """
  planned_task = task_resolution.for_architecture(task, architecture)
  if data.continuous_rows:
    _check_continues(data, architecture, planned_task)
  return example_windows.DataPlan(
    planned_task,
    split=split_of(data, train=train),
    lengths=feature_lengths(data, architecture, task),
    convert=functools.partial(model_features, data, architecture, task),
    pack=data.pack,
    seed=seed,
    train=train,
    continuous=data.continuous_rows,
  )


def _check_continues(data: DataConfig, architecture: str, task: seqio.Task | seqio.Mixture) -> None:
  """Checks that rows of a task may continue.

  Raises:
    UserError: the rows are of several tasks, or begin with inputs.
  """
  tasks, where = task_resolution.tasks_of(task), f"config.data.continuous_rows=True, but {data.named}"
  off = "--config.data.continuous_rows=False with --config.model.memory_length=0"
  if len(tasks) > 1:
    raise UserError(
      f"{where} mixes {len(tasks)} tasks, whose rows do not continue each other. Give one task of plain text, or {off}."
    )
  if architecture_of(architecture).is_decoder_only and "inputs" in task.output_features:
    raise UserError(
      f"{where}: the task {task.name} has inputs, so each row begins a text. Give a task of plain text, such as "
      f"config.data.objective=causal_lm of files, or {off}."
    )


# ---- Batches ---------------------------------------------------------------------------------------------------------


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
  """Returns endless training batches on the mesh, from the beginning of the data.

  Args:
    data: config of the data.
    architecture: a key of `feature_converters.FEATURE_CONVERTERS`.
    mesh: mesh whose axes data and fsdp split a batch.
    batch_size: sequences of a global batch.
    seed: seed of shuffling and of the preprocessors' noise.
    common_size: common divisor of the batch sizes of all stages that read these streams; 0: `batch_size`.
    num_streams: number in the checkpoint, if there is one; otherwise `data.num_streams` or a chosen number.
    heads, numbers: see `load_task`.
    evaluated: names of evaluated tasks, see `find_tasks`, whose files must stay unchanged as well.

  Raises:
    UserError: the user's input cannot be used.
  """
  source, task = run_sources.of(data), load_task(data, architecture, heads=heads, numbers=numbers)
  batch_sharding = sharding.batch_sharding(mesh)
  host_rows = batch_iterator.host_rows(batch_sharding, batch_size)
  common = common_size or batch_size
  total = batch_iterator.choose_num_streams(
    batch_iterator.host_rows(batch_sharding, common),
    batch_size=common,
    wanted=num_streams or data.num_streams,
    # One stream keeps the order of the text. Several would deal the records of a small file among themselves.
    documents=1 if data.continuous_rows else source.num_documents(task),
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
  """Returns the count of file records, which all sources share; None: there are no files."""
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
  """Returns the held-out batches as whole NumPy batches on this host; see `eval_batches`."""
  number = _eval_streams(batch_size, continuous=data.continuous_rows)
  task = load_task(data, architecture, heads=heads)
  parts = _eval_parts(data, architecture, task, range(number), batch_size=batch_size, max_batches=max_batches)
  return [{name: array.reshape(-1, *array.shape[2:]) for name, array in batch.items()} for batch in parts]


def _eval_streams(batch_size: int, *, continuous: bool = False) -> int:
  """Returns the number of parts of held-out batches; it depends on nothing else, so that batches are always the same.

  One part keeps the order of the text, for rows that continue.
  """
  return 1 if continuous else max(number for number in range(1, EVAL_STREAMS + 1) if batch_size % number == 0)


def _eval_parts(
  data: DataConfig,
  architecture: str,
  task: seqio.Task | seqio.Mixture,
  local_streams: Sequence[int],
  *,
  batch_size: int,
  max_batches: int,
) -> list[dict[str, np.ndarray]]:
  """Returns the part of held-out batches that these streams make: each feature as [streams, rows, length]."""
  number = _eval_streams(batch_size, continuous=data.continuous_rows)
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
        break  # only rows of zeros follow
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
    why = f"{names} makes no example from {number:,} records" if number else f"{names} has no record"
    raise run_sources.of(data).no_held_out(task.name, why)
  for source, number, has_example in zip(read, read_of, yields, strict=True):
    if number and not has_example and jax.process_index() == 0:
      console.tell(
        f"{source.task.name}: split {of_task.split!r} has no held-out example in {number:,} records; the "
        "held-out loss covers the other tasks"
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
  """Returns the held-out batches: equal for each call, run and number of hosts, with the same number on every host.

  Rows of zeros with loss weight 0 fill them up. Each host reads the data of its own rows.

  Args:
    data: config of the data.
    architecture: a key of `feature_converters.FEATURE_CONVERTERS`.
    mesh: mesh whose axes data and fsdp split a batch.
    batch_size: sequences of a global batch.
    max_batches: maximum number of batches.
    heads, numbers: see `load_task`.
    task: a part of the result of `load_task`; None: all of it.

  Raises:
    UserError: no held-out text, or a record cannot be used.
  """
  batch_sharding = sharding.batch_sharding(mesh)
  host_rows = batch_iterator.host_rows(batch_sharding, batch_size)
  number = _eval_streams(batch_size, continuous=data.continuous_rows)
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
