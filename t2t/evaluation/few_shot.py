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
from t2t.feature_spec import UNKNOWN

POOL = 1_000  # training examples to draw shots from
_SEED = 0  # of a count of records
_FRAME = 3  # most special tokens around a text


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
  seed: int = 0,
) -> list[dict[str, Any]]:
  """Puts `shots` solved examples in front of each input, sampled separately for each (in-context learning).

  In:  {"inputs_pretokenized": "c?"}, shots 2 drawn from "a?" -> "A", "b?" -> "B"
  Out: {"inputs": tokens of "a?\\nA\\n\\nb?\\nB\\n\\nc?\\n", "num_shots": 2, ...}

  Shots of a task with classes have as many examples of each class as possible. A template determines the text of its
  shots. If there are more than `max_inputs` tokens, the first shots are left out.

  Args:
    examples: with "inputs_pretokenized".
    train: with "inputs_pretokenized" and "targets_pretokenized".
    shots: number of solved examples.
    vocabulary: of the inputs.
    max_inputs: maximum number of tokens.
    seed: of the draw; the same seed draws the same shots in every run.

  Source: Brown et al. 2020.

  Raises:
    UserError: there are fewer training examples than shots, or the task is not text to text.
  """
  unknown = UNKNOWN.encode()
  train = [example for example in train if example.get("gold", example.get("targets_pretokenized")) != unknown]
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
  random = np.random.default_rng(seed)
  classes = _classes(train)
  solved = {}

  def encoded(index: int) -> list[int]:
    if index not in solved:
      ids = [i for side in ("inputs", "targets") for i in train[index].get(side, ())]
      solved[index] = raw_text.encode_again(vocabulary, _shown(train[index]), ids)
    return solved[index]

  prompted = []
  for example in examples:
    chosen = _draw(random, classes, shots) if classes else random.choice(len(train), shots, replace=False)
    header, question = _question(example)
    ids = example.get("inputs", ())
    prompt_ids = raw_text.encode_again(vocabulary, question, ids)
    header_ids = raw_text.encode_again(vocabulary, header, ids) if header else []
    room, parts = max_inputs - len(header_ids) - len(prompt_ids) - 1 - _behind(example, vocabulary), []
    for index in reversed(chosen):
      if len(encoded(index)) > room:
        break
      room -= len(encoded(index))
      parts.insert(0, encoded(index))
    # An input that is too long by itself is cut as without shots, with EOS at its end.
    tokens = [*header_ids, *(token for part in parts for token in part), *prompt_ids][: max_inputs - 1]
    tokens = np.array([*tokens, vocabulary.eos_id], np.int32)
    prompted.append({**example, "inputs": tokens, "num_shots": len(parts)})
  return prompted


def _text(example: Mapping[str, Any], side: str) -> str:
  return example[f"{side}_pretokenized"].decode().strip()


def _shown(example: Mapping[str, Any]) -> str:
  """Returns the text of a solved example."""
  if "filled" in example:
    return example["filled"].decode()
  return f"{_text(example, 'inputs')}\n{_text(example, 'targets')}\n\n"


def _question(example: Mapping[str, Any]) -> tuple[str, str]:
  """Returns the text before the first shot, and the text to complete."""
  if "filled" in example:
    header = example["header"].decode()
    return header, example["inputs_pretokenized"].decode()[len(header) :]
  return "", f"{_text(example, 'inputs')}\n"


def _behind(example: Mapping[str, Any], vocabulary: seqio.Vocabulary) -> int:
  """Returns the number of tokens that an encoder reads behind the inputs: an option, a suffix and special tokens."""
  if "suffix" not in example:
    return 0
  options = [len(vocabulary.encode(option.decode())) for option in example.get("options", ())]
  return len(example["suffix"]) + max(options, default=0) + _FRAME


def _classes(train: Sequence[Mapping[str, Any]]) -> list[np.ndarray]:
  """Returns the indices of the examples of each class; [] if the examples do not share a few classes."""
  if not all("options" in example and "tags" not in example for example in train):
    return []
  names = [tuple(example.get("option_labels", example["options"])) for example in train]
  labels = np.array([example.get("gold", example["targets_pretokenized"]) for example in train])
  if len(set(names)) > 1 or not set(labels.tolist()) <= set(names[0]):
    return []
  return [np.flatnonzero(labels == label) for label in sorted(set(labels.tolist()))]


def _draw(random: np.random.Generator, classes: Sequence[np.ndarray], shots: int) -> np.ndarray:
  """Draws shots, as evenly over the classes as their numbers allow, in random order."""
  from t2t.data import train_subset

  order = [classes[i] for i in random.permutation(len(classes))]
  shares = train_subset.quotas([len(indices) for indices in order], shots)
  drawn = [random.choice(indices, share, replace=False) for indices, share in zip(order, shares, strict=True)]
  return random.permutation(np.concatenate(drawn))
