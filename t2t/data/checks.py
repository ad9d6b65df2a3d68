"""What of the data cannot be used, found before any work on a device."""

from collections.abc import Mapping, Sequence
import itertools

import seqio
import tensorflow as tf

from t2t import UserError, features
from t2t.configuration.schema import DataConfig
from t2t.data import (
  first_examples,
  objectives,
  pipeline,
  rows,
  selection,
  sources,
  vocabularies,
)
from t2t.data.sources import faults, scan, text_files
from t2t.models.architecture import ARCHITECTURES
from t2t.models.config import HeadConfig


class PreprocessorsFail(UserError):
  """What a task's own functions have raised, which is its cause, is told in a line."""


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
  """Finds what is wrong with the data, before any work on a device.

  Args:
    data: what is to be read.
    batch_size: sequences of a global batch.
    model_vocab_size: rows of the embedding.
    architecture: a key of `converters.FEATURE_CONVERTERS`.
    model_max_length: positions that the model has learned; 0: any number.
    heads: see `load_task`.
    trains: whether a model is to be trained on the data, whose first examples are read then.

  Returns:
    Sentences on what of the first examples is cut, unanswered, unknown or of one class.

  Raises:
    UserError: what was wrong, where, and what would be right.
  """
  for key in ("inputs_length", "targets_length", "shuffle_buffer"):
    if getattr(data, key) < 1:
      raise UserError(f"config.data.{key}={getattr(data, key)}: must be 1 or more")
  if batch_size < 1:
    raise UserError(f"config.train.batch_size={batch_size}: must be 1 or more")
  if not 0.0 <= data.malformed <= 1.0:
    raise UserError(f"config.data.malformed={data.malformed}: must be a share, from 0 to 1")
  if data.num_streams < 0:
    raise UserError(f"config.data.num_streams={data.num_streams}: must be 0 (to have it chosen) or more")
  if (data.dictionary or data.switching_rate) and not any(source.files for source in data.source_list):
    raise UserError(
      f"config.data.dictionary={data.dictionary}, config.data.switching_rate={data.switching_rate}: words of files are"
      f" replaced, and {data.named} is of registered tasks, which have `code_switching` among their preprocessors or"
      " not; leave both out"
    )
  own = pipeline.sources_of(data)
  if data.language or data.language_tags:
    from t2t.data import languages

    languages.check_tags(data, own)
    if not own:
      languages.said(data, where="config.data")
  if data.files:
    # Before the files are looked through, which takes longer.
    objectives.check_fits(data.objective, architecture)
    vocabularies.check(pipeline.vocabulary(data), model_vocab_size)
  task = pipeline.load_task(data, architecture, heads=heads)
  for objective in sorted(objectives.of(task)):
    objectives.check_fits(objective, architecture, where=data.named)
  features.check_learned(architecture, pipeline.feature_lengths(data, architecture, task), model_max_length)
  for each, where in [(data, "config.data"), *((x, f"config.data.sources.{name}") for name, x in own.items())]:
    for key in ("files", "eval_files"):
      if patterns := getattr(each, key):
        found = text_files.find_files(patterns, where=f"{where}.{key}")
        scan.scan(found, field=each.field, where=f"{where}.{key}", malformed=data.malformed)
  if not data.files:
    vocabularies.check(selection.vocabulary_of(task), model_vocab_size)
    splits = {key: getattr(data, key) for key in ("train_split", "eval_split")}
    selection.check(task, splits, where=data.named)
  # Builds the graph of the preprocessors, where lengths and sentinels are checked; reads no text.
  try:
    progress = rows.Progress()
    split = pipeline.split_of(data, train=True)
    made = pipeline.task_examples(data, architecture, task, split=split, progress=progress)
    examples = pipeline.model_features(data, architecture, task, made)
  except UserError:
    raise
  except Exception as error:  # whatever a task's own functions raise
    if data.files:
      raise
    raise PreprocessorsFail(
      f"{data.named}: its preprocessors fail: {type(error).__name__}: {_last_line(error)};"
      f" `t2t tasks show {data.mixture or 'NAME'}` says which, and what it is given"
    ) from error
  notes = list(
    itertools.chain.from_iterable(
      _check_documents(each, where=f"config.data.sources.{name}" if name else "config.data")
      for name, each in (own or {"": data}).items()
    )
  )
  _check_fills_a_batch(data, examples, batch_size=batch_size)
  training = pipeline.plan(data, architecture, task, train=True, seed=pipeline.EVAL_SEED)
  if trains:
    of_task = (made, progress) if isinstance(task, seqio.Task) else (None, None)
    notes += _check_first_examples(data, own, training, architecture, *of_task)
  if data.has_tasks:
    from t2t.data import repeatable

    try:
      repeatable.check(training)
    except tf.errors.OpError as error:
      raise sources.user_error(error) or error from None
  return notes


def _check_first_examples(
  data: DataConfig,
  own: Mapping[str, DataConfig],
  training: rows.Plan,
  architecture: str,
  made: tf.data.Dataset | None,
  progress: rows.Progress | None,
) -> list[str]:
  """Reads the first examples of each task that is trained on; what is to be said of them.

  Args:
    data, own, training, architecture: see `check`.
    made, progress: of the one task, see `first_examples.read`; None: there are several.
  """
  writes, notes = ARCHITECTURES[architecture].writes, []
  vocabulary = selection.vocabulary_of(training.task)
  for task in training.tasks:
    if isinstance(training.task, seqio.Mixture) and not training.task.get_rate(task):
      notes.append(f"{data.named}: {task.name} has rate 0, and is never drawn")
      continue
    files = own[task.name].files if task.name in own else data.files
    where = f"config.data.sources.{task.name}" if task.name in own else "config.data"
    try:
      found = first_examples.read(training, task, made, progress)
    except faults.NoExamples as error:
      if not files:
        raise
      objective = own.get(task.name, data).objective
      raise UserError(
        f"{where}.files: config.data.objective={objective} makes no example of this text ({error.num_records:,}"
        " documents were read); give other text" + (", or leave the source out" if task.name in own else "")
      ) from None
    drawn = any(map(objectives.needs_other_documents, objectives.of(task)))
    first_examples.check(found, writes=writes, draws_classes=drawn, vocabulary=vocabulary)
    notes += first_examples.notes(found)
  return notes


def _check_documents(data: DataConfig, *, where: str) -> list[str]:
  """Refuses one document where an objective draws a second text from another; what is to be said of a held-out one.

  Raises:
    UserError: all examples would be of one class.
  """
  if not data.files or not objectives.needs_other_documents(data.objective):
    return []
  look = lambda key: scan.scan(
    text_files.find_files(getattr(data, key)), field=data.field, where=f"{where}.{key}", malformed=data.malformed
  )
  looked = {key: look(key) for key in ("files", "eval_files") if getattr(data, key)}
  if not all(found.complete for found in looked.values()):
    return []
  documents = scan.documents_by_split(looked["files"])
  if data.eval_files:
    documents = {"train": looked["files"].documents, "validation": looked["eval_files"].documents}
  pairs = f"config.data.objective={data.objective} draws some second texts from other documents"
  if documents["train"] < 2:
    held_out = "" if data.eval_files else f" ({documents['validation']:,} more are held out)"
    instead = "more documents" if data.eval_files else f"more documents, or text to evaluate on as {where}.eval_files"
    raise UserError(
      f"{where}.files={data.files}: one document is left to train on{held_out}, and {pairs}: all examples would be of"
      f" one class. Give {instead} (a line of a text file is a document)"
    )
  if documents["validation"] > 1:
    return []
  return [
    f"{where}: one document is held out, and {pairs}: held-out examples are all of one class; give several as"
    f" {where}.eval_files"
  ]


def _last_line(error: Exception) -> str:
  return (str(error).strip().splitlines() or ["no message"])[-1]


def _check_fills_a_batch(data: DataConfig, examples: tf.data.Dataset, *, batch_size: int) -> None:
  if not data.files:
    return
  found = scan.scan(text_files.find_files(data.files), field=data.field, malformed=data.malformed)
  # Four characters a token at most for any sensible vocabulary of English, one for bytes: far more text than a batch
  # takes need not be counted.
  if not found.complete or found.characters > 16 * batch_size * data.inputs_length:
    return
  try:
    count = sum(1 for _ in itertools.islice(examples.with_options(rows.options()), batch_size))
  except tf.errors.OpError as error:
    raise sources.user_error(error) or error from None
  if count < batch_size:
    smaller = f", or set config.train.batch_size={count} or less" if count else ""
    raise UserError(
      f"config.data.files: {found.documents} document(s) with {found.characters:,} characters make {count} example(s),"
      f" fewer than one batch; give more text{smaller}"
    )
