"""Reads and counts the first examples of a split; if a task fails, finds the record and the line of code."""

from collections.abc import Mapping, Sequence
import dataclasses
import inspect
import itertools
import os
import pathlib
import re
import traceback
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import (
  batch_iterator,
  example_windows,
  pipeline,
  raw_text,
  sources,
  task_resolution,
  untruncated_lengths,
  vocabularies,
)
from t2t.data.preview import token_kinds
from t2t.data.sources import files
from t2t.models.architecture import ARCHITECTURES, real_positions, sides
from t2t.models.head_config import HeadConfig
from t2t.runtime import quiet

Features = Mapping[str, Any]  # arrays, numbers and bytes


@dataclasses.dataclass(frozen=True)
class Preview:
  """The first examples of a split, in the order of the source and with the seed of evaluation."""

  task: seqio.Task | seqio.Mixture
  architecture: str
  split: str
  lengths: Mapping[str, int]  # feature -> maximum number of tokens
  # Task -> the first records of its source.
  records: Mapping[str, list[Features]]
  # Whether example i comes from record i.
  one_to_one: bool
  # Output of the preprocessors before trimming to `lengths`, with the features of `untruncated_lengths`.
  examples: list[Features]
  # Whether the split has no more examples.
  complete: bool
  # Model features of `examples`; there are fewer sequences if examples are packed.
  sequences: list[dict[str, np.ndarray]]
  # Heads of the model; the feature "answer_heads" has their indices plus 1.
  heads: tuple[HeadConfig, ...] = ()

  @property
  def vocabulary(self) -> seqio.Vocabulary:
    """Vocabulary of the targets."""
    return task_resolution.vocabulary_of(self.task)

  def trimmed(self, number: int) -> dict[str, Any]:
    """Returns an example trimmed to `lengths`, as in training."""
    example = dict(self.examples[number])
    for name in self.task.output_features:
      if name in example and name in self.lengths:
        example[name] = example[name][: self.lengths[name]]
    return example


def preview(
  data: DataConfig,
  architecture: str,
  task: seqio.Task | seqio.Mixture,
  *,
  split: str,
  num_records: int,
  num_examples: int,
  heads: Sequence[HeadConfig] = (),
) -> Preview:
  """Reads the first examples of a split.

  Args:
    data: config that `validation.check` has accepted.
    architecture: key of `feature_converters.FEATURE_CONVERTERS`.
    task: task or mixture from `pipeline.load_task`.
    split: a split of the task.
    num_records: number of records to keep of each source.
    num_examples: maximum number of examples.
    heads: heads of the model.

  Raises:
    UserError: the task fails (the message has the step and the record), or the split has no example.
  """
  lengths = pipeline.feature_lengths(data, architecture, task)
  try:
    # TensorFlow prints a failure on standard error once per thread; `explain` reports it once.
    with quiet.stderr():
      previewed = _preview(
        data, architecture, task, lengths, split=split, num_records=num_records, num_examples=num_examples
      )
      return dataclasses.replace(previewed, heads=tuple(heads))
  except UserError:
    raise
  except Exception as error:  # any error of the user's preprocessors
    raise explain(error, task, split=split, lengths=lengths) from error


def _preview(
  data: DataConfig,
  architecture: str,
  task: seqio.Task | seqio.Mixture,
  lengths: Mapping[str, int],
  *,
  split: str,
  num_records: int,
  num_examples: int,
) -> Preview:
  records = {subtask.name: _read(subtask, split, num_records) for subtask in tasks_of(task, split)}
  dataset = pipeline.task_examples(data, architecture, task, split=split, trim=False)
  examples = _take(dataset, num_examples + 1)
  complete = len(examples) <= num_examples
  examples = examples[:num_examples]
  if isinstance(task, seqio.Mixture):
    examples = [untruncated_lengths.trimmed(example, lengths, task.output_features) for example in examples]
  one_to_one = isinstance(task, seqio.Task) and _is_one_to_one(task, split, lengths, examples[:num_records])
  if not examples:
    read = any(_read(subtask, split, 1) for subtask in tasks_of(task, split))
    reason = (
      "its preprocessors drop all records of the source. Check the preprocessors that filter records."
      if read
      else "its source has no record. Check the files of the split."
    )
    raise UserError(f"{task.name}, split {split}: no example, because {reason}")
  # Takes the examples from memory, so that the preprocessors do not run again.
  as_dataset = tf.data.Dataset.from_tensor_slices(
    {
      name: tf.ragged.stack([tf.constant(example[name]) for example in examples])
      for name in task.output_features
      if name in examples[0]
    }
  )
  trimmed = seqio.utils.trim_dataset(as_dataset, lengths, task.output_features)
  model_features = pipeline.model_features(data, architecture, task, trimmed)
  return Preview(
    task=task,
    architecture=architecture,
    split=split,
    lengths=lengths,
    records=records,
    one_to_one=one_to_one,
    examples=examples,
    complete=complete,
    sequences=[batch_iterator.arrays(features) for features in model_features.with_options(_options())],
  )


def tasks_of(task: seqio.Task | seqio.Mixture, split: str | None = None) -> list[seqio.Task]:
  """Returns the task, or the tasks of a mixture; if `split` is given, only tasks that have it."""
  tasks = task.tasks if isinstance(task, seqio.Mixture) else [task]
  return [subtask for subtask in tasks if split is None or split in subtask.splits]


def _options() -> tf.data.Options:
  options = example_windows.options()
  # A preview is not resumed; with this option, Python functions in a task cause many lines of warnings.
  options.experimental_symbolic_checkpoint = False
  return options


def _take(dataset: tf.data.Dataset, number: int) -> list[Features]:
  iterator = dataset.with_options(_options()).as_numpy_iterator()
  return list(itertools.islice(iterator, number))


def _records(task: seqio.Task, split: str) -> tf.data.Dataset:
  return task.source.get_dataset(split=split, shuffle=False, seed=pipeline.EVAL_SEED)


def _read(task: seqio.Task, split: str, number: int) -> list[Features]:
  """Returns the first records; a record without named features is returned as {"record": value}."""
  records = _take(_records(task, split), number)
  return [record if isinstance(record, Mapping) else {"record": record} for record in records]


def _preprocessed(task: seqio.Task, records: tf.data.Dataset, lengths: Mapping[str, int]) -> tf.data.Dataset:
  """Applies the preprocessors of a task to records, as `task.get_dataset` does."""
  lengths = {name: length for name, length in lengths.items() if name in task.output_features}
  seed = pipeline.EVAL_SEED
  return task.preprocess_postcache(task.preprocess_precache(records, seed=seed), sequence_length=lengths, seed=seed)


def _is_one_to_one(task: seqio.Task, split: str, lengths: Mapping[str, int], examples: list[Features]) -> bool:
  """Returns True if the first records alone give the same examples: no record is dropped, joined or split."""
  alone = _take(_preprocessed(task, _records(task, split).take(len(examples)), lengths), len(examples) + 1)
  return len(alone) == len(examples) and all(
    np.array_equal(mine[name], theirs[name])
    for mine, theirs in zip(alone, examples, strict=True)
    for name in task.output_features
    if name in mine
  )


# ---- Counts ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PreviewSummary:
  """Counts over a preview's examples; shares are between 0 and 1."""

  lengths: dict[str, np.ndarray]  # feature -> number of tokens of each example before trimming
  truncated: dict[str, int]  # feature -> number of trimmed examples
  padding: dict[str, float]  # "encoder" or "decoder" -> share of padding positions
  tokens: float  # positions per example that are not padding, encoder plus decoder
  loss_tokens: float  # positions per example that count in the loss
  hidden: tuple[str, float] | None  # description of the text that the task hides, and its share
  unknown: float  # share of unknown tokens


def summarize(preview: Preview) -> PreviewSummary:
  """Computes the counts of a preview."""
  task = preview.task
  of_ids = [name for name in task.output_features if is_text(task.output_features[name])]
  lengths = {
    name: np.array([untruncated_lengths.length(example, name) for example in preview.examples])
    for name in of_ids
    if all(np.ndim(example.get(name, 0)) == 1 for example in preview.examples)
  }
  # The last packed sequence is only partly filled because the preview ends there; training would fill it.
  sequences = preview.sequences[:-1] if 1 < len(preview.sequences) < len(preview.examples) else preview.sequences
  real = {
    side: np.concatenate([real_positions(sequence, side) for sequence in sequences]) for side in sides(sequences[0])
  }
  everything = preview.sequences
  positions = sum(real_positions(sequence, side).sum() for sequence in everything for side in real)
  losses = sum(loss_positions(sequence, side).sum() for sequence in everything for side in real)
  ids = {name: np.concatenate([preview.trimmed(i)[name] for i in range(len(preview.examples))]) for name in lengths}
  all_ids = np.concatenate([np.zeros(0, np.int32), *ids.values()])
  return PreviewSummary(
    lengths=lengths,
    truncated={name: int(np.sum(x > preview.lengths.get(name, np.inf))) for name, x in lengths.items()},
    padding={side: 1.0 - float(np.mean(x)) for side, x in real.items()},
    tokens=float(positions) / len(preview.examples),
    loss_tokens=float(losses) / len(preview.examples),
    hidden=_hidden(preview, ids),
    unknown=float(np.mean(all_ids == token_kinds.unknown_id(preview.vocabulary))) if all_ids.size else 0.0,
  )


def _hidden(preview: Preview, ids: Mapping[str, np.ndarray]) -> tuple[str, float] | None:
  """Returns a description of the text that the model has to predict, and its share; None if examples do not show it."""
  vocabulary = preview.vocabulary
  framing = list(vocabularies.framing_ids(vocabulary))
  if "targets" not in preview.task.output_features:
    return None  # pairs of texts
  if not ARCHITECTURES[preview.architecture].is_generative:
    losses = sum(loss_positions(sequence, "encoder").sum() for sequence in preview.sequences)
    text = sum(
      (~np.isin(sequence["encoder_target_tokens"], framing) & real_positions(sequence, "encoder")).sum()
      for sequence in preview.sequences
    )
    return ("of the text is predicted: masked, replaced or kept", float(losses) / max(int(text), 1))
  if "inputs" not in ids or "targets" not in ids:
    return None
  sentinels = token_kinds.sentinel_ids(vocabulary)
  hides = {name: np.isin(x, list(sentinels)) for name, x in ids.items()}
  if hides["inputs"].any() and hides["targets"].any():
    text = {name: (~np.isin(x, framing) & ~hides[name]).sum() for name, x in ids.items()}
    return ("of the text is removed from the inputs", float(text["targets"]) / max(int(sum(text.values())), 1))
  masks = hides["inputs"] | (ids["inputs"] == token_kinds.mask_id(vocabulary))
  return ("of the inputs are masks", float(np.mean(masks))) if masks.any() else None


def loss_positions(sequence: Features, side: str) -> np.ndarray:
  """Returns which positions of a side count in the loss, bool [length]; empty if the side has no loss.

  If the side predicts no tokens, the positions at which a head answers count.
  """
  return sequence.get(f"{side}_loss_weights", sequence.get(f"{side}_answer_heads", np.zeros(0))) > 0


# ---- Ids -------------------------------------------------------------------------------------------------------------


def is_text(feature: seqio.Feature) -> bool:
  """Returns True if a feature contains ids of a vocabulary."""
  return not isinstance(feature.vocabulary, seqio.PassThroughVocabulary)


# ---- Failures --------------------------------------------------------------------------------------------------------

_MOST_RECORDS = 2**16  # a failure in a later record is reported without the record


def explain(error: Exception, task: seqio.Task | seqio.Mixture, *, split: str, lengths: Mapping[str, int]) -> UserError:
  """Returns an error with the record, the preprocessor, and its file and line for a failure in a task.

  Runs the task again, with fewer and fewer records and preprocessors.

  Args:
    error: error that was raised.
    task: task or mixture that raised it.
    split: split of the task.
    lengths: feature -> maximum number of tokens.
  """
  if isinstance(error, tf.errors.OpError) and files.is_sentence(error):
    return sources.user_error(error)
  for subtask in tasks_of(task, split):
    with quiet.stderr():
      failure = _failure(subtask, split, lengths)
    if failure is not None:
      return UserError(f"{subtask.name}, split {split}{failure}")
  # Each step works, but the output of the last does not match the features of the task.
  first = tasks_of(task, split)[0]
  yielded = _yielded(first, split, lengths, len(first.preprocessors))
  return UserError(f"{task.name}, split {split}: {_reason(error)}; its preprocessors yield {yielded}")


def _failure(task: seqio.Task, split: str, lengths: Mapping[str, int]) -> str | None:
  """Returns the part of the message after the task's name; None if nothing fails."""
  number = len(task.preprocessors)

  def failure(num_preprocessors: int, num_records: int) -> Exception | None:
    part = task.replace(preprocessors=task.preprocessors[:num_preprocessors])
    try:
      dataset = _preprocessed(part, _records(part, split).take(num_records), lengths)
      for _ in dataset.with_options(_options()):
        pass
    except Exception as error:  # any error is reported
      return error
    return None

  # With no records, only an error in the combination of the preprocessors is raised.
  for step in range(number + 1):
    error = failure(step, 0)
    if error is not None:
      return f"{_step(task, step, error)}: {_reason(error)}{_step_inputs(task, split, lengths, step)}"
  fails = next((n for n in (2**power for power in range(_MOST_RECORDS.bit_length())) if failure(number, n)), None)
  if fails is None:
    return None
  works = fails // 2
  while fails - works > 1:
    middle = (works + fails) // 2
    works, fails = (works, middle) if failure(number, middle) else (middle, fails)
  step, error = next((step, error) for step in range(number + 1) if (error := failure(step, fails)) is not None)
  return f", record {fails}{_step(task, step, error)}: {_reason(error)}{_record(task, split, fails) if step else ''}"


def _step(task: seqio.Task, step: int, error: Exception) -> str:
  if not step:
    return ": its source fails"
  function = task.preprocessors[step - 1]
  code_location = _own_line(error) or _definition(function)
  name = seqio.utils.function_name(function) or type(function).__name__
  # Only registered steps count, because `raw_text` adds steps that protect the records.
  is_own_step = [raw_text.is_own(preprocessor) for preprocessor in task.preprocessors]
  at_location = f" ({code_location})" if code_location else ""
  return f": preprocessor {sum(is_own_step[:step])} of {sum(is_own_step)}, {name}{at_location}"


def _step_inputs(task: seqio.Task, split: str, lengths: Mapping[str, int], step: int) -> str:
  """Describes the input of the failing preprocessor."""
  if not step:
    return ""
  return f"; its input is {_yielded(task, split, lengths, step - 1)}"


def _yielded(task: seqio.Task, split: str, lengths: Mapping[str, int], step: int) -> str:
  """Describes the output of the first `step` preprocessors."""
  part = task.replace(preprocessors=task.preprocessors[:step])
  spec = _preprocessed(part, _records(part, split), lengths).element_spec
  if not isinstance(spec, Mapping):
    return f"{spec!r}, not a dict of features"
  return ", ".join(f"{name} ({x.dtype.name}, rank {x.shape.rank})" for name, x in spec.items()) or "no feature"


def _record(task: seqio.Task, split: str, number: int) -> str:
  text = str(_take(_records(task, split).skip(number - 1), 1)[0])
  return f"; the record is {text if len(text) <= 200 else text[:200] + ' ...'}"


def _reason(error: Exception) -> str:
  """Returns the line of an error with the reason."""
  message = error.message if isinstance(error, tf.errors.OpError) else str(error)
  lines = [line.strip() for line in (message or "").splitlines() if line.strip()] or [""]
  # Autograph prints the user's code first and the error last.
  line = lines[-1] if lines[0].startswith("in user code") else lines[0]
  line = files.without_graph(line).strip()
  return line if re.match(r"\w*(Error|Exception)\b", line) else f"{type(error).__name__}: {line}"


def _own_line(error: Exception) -> str | None:
  """Returns file and line of the last frame of the user's code in an error's traceback."""
  frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
  # Errors of autograph and tf.py_function have the user's lines only in their text.
  frames += [(path, int(line)) for path, line in re.findall(r'File "(.+?)", line (\d+)', str(error))]
  this_file = pathlib.Path(__file__)
  skipped = (
    "site-packages",
    "autograph_generated_file",
    "<",
    str(this_file),
    *(str(this_file.parents[1] / name) for name in ("pipeline.py", "raw_text.py")),
  )
  user_frames = [(path, line) for path, line in frames if not any(part in path for part in skipped)]
  return f"{_shown_path(user_frames[-1][0])}, line {user_frames[-1][1]}" if user_frames else None


def _definition(function) -> str | None:
  while hasattr(function, "func"):  # functools.partial
    function = function.func
  code = getattr(inspect.unwrap(function), "__code__", None)
  return f"{_shown_path(code.co_filename)}, line {code.co_firstlineno}" if code else None


def _shown_path(path: str) -> str:
  relative = os.path.relpath(path)
  return path if relative.startswith("..") else relative
