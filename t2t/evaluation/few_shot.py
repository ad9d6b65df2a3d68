"""Examples of a task for evaluation, optionally with solved examples in front (few-shot)."""

from collections.abc import Mapping, Sequence
import itertools
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t2t import UserError, did_you_mean
from t2t.configuration.schema import DataConfig
from t2t.data import head_examples, pipeline, raw_text, sources
from t2t.data.sources import bad_records

POOL = 1_000  # training examples to draw shots from
_SEED = 0  # fixed, so that every run uses the same shots


def read(data: DataConfig, architecture: str, task: seqio.Task, split: str, *, limit: int = 0) -> list[dict[str, Any]]:
  """Reads the examples of a task in order: NumPy values and bytes; windows of one context are one example.

  Args:
    data: lengths of inputs and targets.
    architecture: of the model.
    task: see `pipeline.find_tasks`.
    split: of the task.
    limit: maximum number of examples; 0: all.

  Raises:
    UserError: the split is missing or empty, or a record cannot be used.
  """
  if split not in task.splits:
    key = "train_split" if split == data.train_split else "eval_split"
    raise UserError(
      f"{task.name} has no split {split!r}{did_you_mean(split, task.splits) or '.'} Known splits: "
      f"{', '.join(task.splits)}. Set config.data.{key} to a known split, or name only other tasks in "
      "config.eval.tasks."
    )
  dataset = pipeline.task_examples(data, architecture, task, split=split)
  try:
    examples = list(itertools.islice(head_examples.gathered(dataset.as_numpy_iterator()), limit or None))
  except tf.errors.OpError as error:
    raise sources.user_error(error) or error from None
  if not examples:
    raise bad_records.NoExamples(task.name, split, _num_records(task, split))
  return examples


def _num_records(task: seqio.Task, split: str) -> int:
  """Counts the records of a split that yields no examples, up to a limit."""
  records = task.source.get_dataset(split=split, shuffle=False, seed=_SEED).take(bad_records.MOST_UNUSED)
  return int(records.reduce(0, lambda number, _: number + 1))


def with_shots(
  examples: Sequence[Mapping[str, Any]],
  train: Sequence[Mapping[str, Any]],
  shots: int,
  *,
  vocabulary: seqio.Vocabulary,
  max_inputs: int,
) -> list[dict[str, Any]]:
  """Puts `shots` solved examples in front of each input, sampled separately for each (in-context learning).

  In:  {"inputs_pretokenized": "c?"}, shots 2 drawn from "a?" -> "A", "b?" -> "B"
  Out: {"inputs": tokens of "a?\\nA\\n\\nb?\\nB\\n\\nc?\\n", "num_shots": 2, ...}

  If there are more than `max_inputs` tokens, the first shots are left out.

  Args:
    examples: with "inputs_pretokenized".
    train: with "inputs_pretokenized" and "targets_pretokenized".
    shots: number of solved examples.
    vocabulary: of the inputs.
    max_inputs: maximum number of tokens.

  Source: Brown et al. 2020.

  Raises:
    UserError: there are fewer training examples than shots, or the task is not text to text.
  """
  if not train or len(train) < shots:
    raise UserError(
      f"config.eval.num_shots={shots}: the training split has only {len(train)} example(s); give {len(train)} or less"
    )
  for field in ("inputs_pretokenized", "targets_pretokenized"):
    if field not in train[0]:
      raise UserError(
        f"config.eval.num_shots={shots}: the examples of the task have no field {field!r}; add "
        "seqio.preprocessors.tokenize to the preprocessors of the task"
      )
  random = np.random.default_rng(_SEED)
  text = lambda example, side: example[f"{side}_pretokenized"].decode().strip()
  solved = {}

  def encoded(index: int) -> list[int]:
    if index not in solved:
      ids = [i for side in ("inputs", "targets") for i in train[index].get(side, ())]
      shown = f"{text(train[index], 'inputs')}\n{text(train[index], 'targets')}\n\n"
      solved[index] = raw_text.encode_again(vocabulary, shown, ids)
    return solved[index]

  prompted = []
  for example in examples:
    chosen = random.choice(len(train), shots, replace=False)
    prompt_ids = raw_text.encode_again(vocabulary, f"{text(example, 'inputs')}\n", example.get("inputs", ()))
    room, parts = max_inputs - len(prompt_ids) - 1, []
    for index in reversed(chosen):
      if len(encoded(index)) > room:
        break
      room -= len(encoded(index))
      parts.insert(0, encoded(index))
    # An input that is too long by itself is cut as without shots, with EOS at its end.
    tokens = [*(token for part in parts for token in part), *prompt_ids][: max_inputs - 1] + [vocabulary.eos_id]
    prompted.append({**example, "inputs": np.array(tokens, np.int32), "num_shots": len(parts)})
  return prompted
