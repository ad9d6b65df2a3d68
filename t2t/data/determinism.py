"""Detects sources and preprocessors that cannot resume, because they keep state or draw random numbers, before
training.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import inspect
import itertools
import typing
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import example_windows, shard_order, sources

_COMPARED_RECORDS = 64
# TensorFlow operations that draw different numbers each time they run.
_DRAWING = frozenset(
  ("Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoissonV2", "RandomShuffle")
  + ("RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal")
)


def check(plan: example_windows.DataPlan) -> None:
  """Checks that each task with user code makes equal examples from equal records, on the first few records.

  Building a task twice takes a seventh of the start of a run; tests cover the code of t2t and seqio.

  Raises:
    UserError: the examples differ; names the source, or the first preprocessor whose result depends on more than its
      input and seed, or that takes only part of its input.
  """
  for task in filter(_has_user_code, plan.tasks):
    first, second = (_first_records(plan, task) for _ in range(2))
    if first is None:
      continue
    records, columns = first
    if not all(map(np.array_equal, columns, second[1])):
      raise UserError(
        f"{task.name}: its source yields different records, or another order, each time it is read with "
        "shuffle=False. A stopped run could not resume with the same data. Yield the same records in the same order; "
        "t2t shuffles them."
      )
    make_examples = functools.partial(_examples_twice, plan, task, records, columns)
    examples = _repeated(make_examples)
    if examples is None:
      steps = task.preprocessors
      shortest = next(
        number
        for number in range(1, len(steps) + 1)
        if _repeated(functools.partial(make_examples, steps=number)) is None or number == len(steps)
      )
      raise UserError(
        f"{task.name}: its preprocessor {_name(steps[shortest - 1])} returns different results for the same "
        "records. A stopped run could not resume with the same data. Draw random numbers with the seeds of "
        "@seqio.map_over_dataset(num_seeds=...), and keep no state between records."
      )
    _check_takes_all(task, make_examples, records=len(columns[0]), examples=examples)


def _has_user_code(task: seqio.Task) -> bool:
  """Returns whether a task has a source other than t2t's files, or code from outside of t2t and seqio."""
  objects = [task.source, *(feature.vocabulary for feature in task.output_features.values())]
  if not isinstance(task.source, sources.FileSource) or not all(map(example_windows.is_of_library, objects)):
    return True
  return _reaches_user_code((*task.preprocessors, vars(task.source)))


def _reaches_user_code(x: Any) -> bool:
  """Returns whether a preprocessor, or a function in it at any depth, is defined outside of t2t and seqio."""
  if isinstance(x, functools.partial):
    inner_values = (x.func, *x.args, *x.keywords.values())
  elif isinstance(x, Mapping):
    inner_values = x.values()
  elif isinstance(x, list | tuple | set | frozenset):
    inner_values = x
  elif not callable(x):
    return False
  elif not example_windows.is_of_library(x):
    return True
  elif inspect.isfunction(x):
    inner_values = inspect.getclosurevars(x).nonlocals.values()
  else:
    inner_values = getattr(x, "__dict__", {}).values()
  return any(map(_reaches_user_code, inner_values))


def _first_records(
  plan: example_windows.DataPlan, task: seqio.Task
) -> tuple[shard_order.Records, tuple[np.ndarray, ...]] | None:
  """Returns the records of a task's source and a few of them; None if it has none."""
  records = example_windows.records_of(task, plan.split)
  (share,) = shard_order.shares(records.shards(), 1)
  order = shard_order.Order(share, (0,), plan.window_bytes, shuffled=False)
  first = next(order.windows(records, shard_order.WindowPosition()), None)
  if first is None:
    return None
  return records, tuple(column[:_COMPARED_RECORDS] for column in first.columns)


def _examples_twice(
  plan: example_windows.DataPlan,
  task: seqio.Task,
  records: shard_order.Records,
  columns: Sequence[np.ndarray],
  part: slice = slice(None),
  *,
  steps: int | None = None,
) -> tf.data.Dataset:
  """Returns (0 or 1, example) pairs: a task, or its first steps, applied twice to some records in one iterator."""

  def of_window(time: tf.Tensor) -> tf.data.Dataset:
    features = records.features(tuple(tf.constant(column[part]) for column in columns))
    seed = tf.constant(1, tf.int64)
    if steps is None:
      dataset = example_windows.examples_of_window(plan, task, features, seed)
    else:
      with example_windows.drawn_from(seed), seqio.map_seed_manager(0):
        dataset = features
        for step in task.preprocessors[:steps]:
          step = seqio.add_kwargs_to_transform(step, sequence_length=plan.lengths, output_features=task.output_features)
          dataset = step(dataset)
    return dataset.map(lambda example: (time, example))

  return (
    tf.data.Dataset.range(2).flat_map(example_windows.as_it_stands(of_window)).with_options(example_windows.options())
  )


def _repeated(make: Callable[[], tf.data.Dataset]) -> int | None:
  """Returns the number of examples if two iterations and two builds agree; None if they differ.

  Random operations make them differ. Building a dataset takes most of the time.
  """
  datasets = (make(), make())
  example_pairs = [_twice(dataset) for dataset in datasets]
  first = example_pairs[0][0]
  repeats = all(_same(first, examples) for pair in example_pairs for examples in pair) and not _draws(datasets[0])
  return len(first) if repeats else None


def _draws(dataset: tf.data.Dataset) -> bool:
  # TensorFlow's own serialization; the public functions write to a folder.
  graph = tf.compat.v1.GraphDef.FromString(dataset._as_serialized_graph().numpy())
  nodes = itertools.chain(graph.node, *(function.node_def for function in graph.library.function))
  return any(node.op in _DRAWING for node in nodes)


def _twice(dataset: tf.data.Dataset) -> tuple[list, list]:
  passes: tuple[list, list] = ([], [])
  for time, example in dataset:
    passes[int(time)].append([np.asarray(x.numpy()) for x in tf.nest.flatten(example, expand_composites=True)])
  return passes


def _same(left: list, right: list) -> bool:
  return len(left) == len(right) and all(
    a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    for left_example, right_example in zip(left, right, strict=True)
    for a, b in zip(left_example, right_example, strict=True)
  )


def _check_takes_all(
  task: seqio.Task, make_examples: Callable[..., tf.data.Dataset], *, records: int, examples: int
) -> None:
  """Checks that more records make more examples, unless all records make a single one: joined text may be that short.

  Raises:
    UserError: all records make no more examples than half of them.
  """
  count = lambda part: len(_twice(make_examples(part))[0])
  half = records // 2
  if half >= 8 and 1 < examples < half and examples == count(slice(half)) == count(slice(half, None)):
    raise UserError(
      f"{task.name}: its preprocessors make {examples} examples of {half} records and of {records}, as if they "
      "took only the first few records. Preprocessors run on each part of the data, not on the whole. Select records "
      "in the task's source instead, for example with the split train[:32]."
    )


def _name(step: Any) -> str:
  return seqio.utils.function_name(typing.cast(Any, step).func if hasattr(step, "func") else step)
