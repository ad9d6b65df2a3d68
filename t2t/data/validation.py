"""Validation of the data before any work on a device."""

from collections.abc import Sequence

import seqio
import tensorflow as tf

from t2t import UserError, feature_spec
from t2t.configuration.schema import DataConfig
from t2t.data import example_windows, first_examples, objectives, pipeline, run_sources, sources, task_resolution
from t2t.data.sources import bad_records
from t2t.models.architecture import ARCHITECTURES
from t2t.models.head_config import HeadConfig


class PreprocessorsFail(UserError):
  """Failure of a task's own functions; the message has the cause in one line."""


def check(
  data: DataConfig,
  *,
  batch_size: int,
  model_vocab_size: int,
  architecture: str = "encoder_decoder",
  model_max_length: int = 0,
  heads: Sequence[HeadConfig] = (),
  trains: bool = True,
) -> list[str]:
  """Checks the data before any work on a device.

  Args:
    data: config of the data.
    batch_size: sequences of a global batch.
    model_vocab_size: rows of the embedding.
    architecture: a key of `feature_converters.FEATURE_CONVERTERS`.
    model_max_length: number of learned positions; 0: unlimited.
    heads: see `pipeline.load_task`.
    trains: whether a model is trained on the data; then the first examples are read.

  Returns:
    Sentences on cut, unanswered, unknown or one-class examples among the first.

  Raises:
    UserError: names the problem, its place and the remedy.
  """
  for key in ("inputs_length", "targets_length", "shuffle_buffer"):
    if getattr(data, key) < 1:
      raise UserError(f"config.data.{key}={getattr(data, key)}: the value must be 1 or more")
  if batch_size < 1:
    raise UserError(f"config.train.batch_size={batch_size}: the value must be 1 or more")
  if not 0.0 <= data.max_bad_record_fraction <= 1.0:
    raise UserError(
      f"config.data.max_bad_record_fraction={data.max_bad_record_fraction}: the share must be from 0 to 1"
    )
  if data.num_streams < 0:
    raise UserError(f"config.data.num_streams={data.num_streams}: the value must be 0 (chosen by t2t) or more")
  source = run_sources.of(data)
  source.check_early(architecture, model_vocab_size=model_vocab_size)
  task = pipeline.load_task(data, architecture, heads=heads)
  for objective in sorted(objectives.of(task)):
    objectives.check_fits(objective, architecture, where=data.named)
  feature_spec.check_learned(architecture, pipeline.feature_lengths(data, architecture, task), model_max_length)
  source.check_files()
  source.check_task(task, model_vocab_size=model_vocab_size)
  # Builds the graph of the preprocessors, which checks lengths and sentinels; reads no text.
  try:
    progress = example_windows.Progress()
    split = pipeline.split_of(data, train=True)
    task_examples = pipeline.task_examples(data, architecture, task, split=split, progress=progress)
    examples = pipeline.model_features(data, architecture, task, task_examples)
  except UserError:
    raise
  except Exception as error:  # any error of a task's own functions
    if data.is_text:
      raise
    raise PreprocessorsFail(
      f"{data.named}: the preprocessors fail with {type(error).__name__}: {_last_line(error).rstrip('.')}. Run `t2t "
      f"tasks show {source.name or 'NAME'}` to see which preprocessor fails, and its input."
    ) from error
  notes = source.check_documents()
  source.check_fills_a_batch(examples, batch_size=batch_size)
  training = pipeline.plan(data, architecture, task, train=True, seed=pipeline.EVAL_SEED)
  if trains:
    of_task = (task_examples, progress) if isinstance(task, seqio.Task) else (None, None)
    notes += _check_first_examples(source, training, architecture, *of_task)
  if data.has_tasks:
    from t2t.data import determinism

    try:
      determinism.check(training)
    except tf.errors.OpError as error:
      raise sources.user_error(error) or error from None
  return notes


def _check_first_examples(
  source: run_sources.RunSource,
  training: example_windows.DataPlan,
  architecture: str,
  task_examples: tf.data.Dataset | None,
  progress: example_windows.Progress | None,
) -> list[str]:
  """Reads the first examples of each training task and returns notes on them.

  Args:
    source: source of the run.
    training, architecture: see `check`.
    task_examples, progress: of a single task, see `first_examples.read`; None: several tasks.
  """
  writes, notes = ARCHITECTURES[architecture].is_generative, []
  vocabulary = task_resolution.vocabulary_of(training.task)
  for task in training.tasks:
    if isinstance(training.task, seqio.Mixture) and not training.task.get_rate(task):
      notes.append(f"{source.data.named}: {task.name} has rate 0, and is never sampled")
      continue
    try:
      counts = first_examples.read(training, task, task_examples, progress)
    except bad_records.NoExamples as error:
      raise source.no_examples(task.name, error) from None
    drawn = any(map(objectives.needs_other_documents, objectives.of(task)))
    first_examples.check(counts, writes=writes, draws_classes=drawn, vocabulary=vocabulary)
    notes += first_examples.notes(counts)
  return notes


def _last_line(error: Exception) -> str:
  return (str(error).strip().splitlines() or ["no message"])[-1]
