"""The data of a run: what its config says is read, and which heads its tasks need of the model."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
from typing import Any

from etils import epath
import jax
import seqio
import tensorflow as tf

from t2t import UserError, feature_spec
from t2t.configuration import stages
from t2t.configuration.schema import INTERVALS, Config
from t2t.data import (
  batch_iterator,
  objectives,
  pipeline,
  raw_text,
  run_sources,
  sources,
  stage_iterator,
  task_resolution,
  validation,
  vocabularies,
)
from t2t.data.example_windows import labelled
from t2t.data.sources import named
from t2t.losses import answered_by_heads, compares_texts
from t2t.models import adapters as adapters_lib
from t2t.models.config import ASKED_HEADS, HeadConfig
from t2t.runtime import hosts

_COUNTED = 1_000  # records of a task by which epochs count


def resolved(config: Config) -> Config:
  """The run with what its data decides: the loss that it means, the heads that its tasks need, its number of steps.

  An encoder alone answers tasks through heads, and other models do with config.train.loss=heads.

  Raises:
    UserError: a task that no head answers, a model whose heads are others, or epochs of what cannot be counted.
  """
  return _resolved(config)[0]


def _resolved(config: Config) -> tuple[Config, float]:
  """`resolved`, and how many examples an epoch has; 0.0 where nothing is counted."""
  config = _with_table(config)
  data = config.data
  provider = run_sources.of(data).tasks()
  config = _with_heads(_with_vocabulary(config), provider)
  number = _number_of_examples(config, provider)
  return _with_steps(config, number), number


def resolved_stages(config: Config) -> tuple[stages.Stage, ...]:
  """The stages of a run, each `resolved`; of a run without any, one.

  Raises:
    UserError: see `stages.of` and `resolved`.
  """
  if not config.stages:
    run_config, number = _resolved(config)
    _tell_unread(run_config, number)
    return stages.of(run_config)
  run_stages = []
  for stage in stages.of(config):
    with stage.error_context():
      run_stages.append(dataclasses.replace(stage, config=resolved(stage.config)))
  return tuple(run_stages)


def _with_table(config: Config) -> Config:
  """Returns the run with its table as a task; another run as it is.

  Raises:
    UserError: a table is missing, or see `tables.resolved`.
  """
  data = config.data
  if not (data.labels or data.table):
    if not (data.inputs_length or data.is_named):
      raise UserError(
        "config.data.files is empty: --config finetune reads a table; give --config.data.files=train.tsv and"
        " --config.data.labels=auto, or another config for registered tasks, such as finetune_superglue"
      )
    if data.is_text and not (data.inputs_length and data.targets_length):
      raise UserError(
        f"config.data.labels is empty: {data.named} is no table without it; give --config.data.labels=auto; or, of text"
        " to pre-train on, config.data.inputs_length and targets_length"
      )
    return config
  from t2t.data import tables

  return tables.resolved(config, lambda: pipeline.vocabulary(data))


def _is_answered(provider: seqio.Task | seqio.Mixture) -> bool:
  """Returns whether all tasks have answers, and no objective; see `answering.is_answered`."""
  if any(objectives.of(task) for task in task_resolution.tasks_of(provider)):
    return False
  from t2t.data import head_examples

  return head_examples.is_answered(provider)


def _with_vocabulary(config: Config) -> Config:
  """The run whose embedding has the vocabulary's rows, up to a multiple of 128, where its config says 0."""
  if config.model.vocab_size:
    return config
  return config.with_(model={"vocab_size": feature_spec.rows_of(pipeline.vocabulary(config.data).vocab_size)})


def _with_heads(config: Config, provider: seqio.Task | seqio.Mixture | None) -> Config:
  data, model, loss = config.data, config.model, config.train.loss
  answered = provider is not None and _is_answered(provider)
  objective_heads = _asked_by_objectives(config, provider)
  if not loss:
    loss = (
      "tokens_and_heads"
      if objective_heads
      else "heads"
      if answered and not model.kind.is_generative
      else "cross_entropy"
    )
    config = config.with_(train={"loss": loss})
  if objective_heads:
    return _with_asked(config, objective_heads)
  if not answered_by_heads(loss):
    _check_learns(provider, config)
    return config
  if not answered:
    return config
  from t2t.data import head_examples

  needed_heads = head_examples.heads_of(
    task_resolution.tasks_of(pipeline.adapted(data, provider)), model, pipeline.vocabulary(data)
  )
  # Others that could answer would not be asked.
  other_heads = (head for head in model.heads if head.kind not in ASKED_HEADS)
  return config.with_(model={"heads": (*other_heads, *needed_heads)})


def _number_of_examples(config: Config, provider: seqio.Task | seqio.Mixture | None) -> float:
  """Examples of an epoch; 0.0 where the run does not count epochs and has no table.

  Raises:
    UserError: they cannot be counted.
  """
  epochs, data = config.train.epochs, config.data
  if not epochs and (not data.table or data.pack):
    return 0.0
  if provider is None or epochs < 0:
    raise UserError(
      f"config.train.epochs={epochs}: "
      + ("must not be below 0" if epochs < 0 else "counts examples of tasks, and there is no config.data.mixture")
      + "; give config.train.steps, and 0.0 epochs"
    )
  if data.pack:
    raise UserError(
      f"config.train.epochs={epochs}: with config.data.pack=True a row has several examples, nobody knows how many; set"
      " config.data.pack=False, or give config.train.steps, and 0.0 epochs"
    )
  number = 0
  for task in task_resolution.tasks_of(pipeline.adapted(data, provider)):
    if data.train_split in task.splits:
      count = task.num_input_examples(data.train_split)
      if count is None:
        raise UserError(
          f"config.train.epochs={epochs}: {task.name} does not say how many examples it has; give config.train.steps,"
          " and 0.0 epochs"
        )
      number += count * _rows_of_a_record(config, task)
  return number


def _with_steps(config: Config, number: float) -> Config:
  """The run with as many steps as its epochs are; each is evaluated and saved, if nothing else is said.

  Args:
    config: of the run.
    number: see `_number_of_examples`.
  """
  epochs = config.train.epochs
  if not epochs:
    # An epoch of files is not counted; the rows of a table are.
    epoch = round(number / config.train.batch_size) if number else config.train.steps
    return _with_intervals(config, min(epoch, config.train.steps))
  steps = max(1, round(epochs * number / config.train.batch_size))
  return _with_intervals(config.with_(train={"steps": steps}), round(steps / max(epochs, 1.0)))


def _tell_unread(config: Config, number: float) -> None:
  """Reports examples that the steps of a run's epochs leave unread, of which a last batch is not full."""
  unread = config.train.epochs * number - config.train.steps * config.train.batch_size
  if number and unread >= max(1.0, 0.01 * number):
    steps, size = config.train.steps, config.train.batch_size
    hosts.log_once(
      f"config.train.epochs={config.train.epochs:g}: {steps:,} steps of {size} examples leave {unread:,.0f} of"
      f" {number:,.0f} unread in the last epoch"
    )


_MOST_UNREAD = 0.1  # share of a task's examples that an epoch of a mixture may leave unread without a word


def _tell_undrawn(stage: stages.Stage) -> None:
  """Reports tasks of a mixture of which no example is expected in a stage, or of which epochs leave many unread."""
  data, steps = stage.config.data, stage.end - stage.begin
  source = run_sources.of(data)
  provider = source.tasks()
  if not isinstance(provider, seqio.Mixture):
    return
  provider = (
    provider if source.parts else pipeline.adapted(data, provider)
  )  # whose own files say how many examples there are
  rates = {
    task.name: float(provider.get_rate(task))
    for task in task_resolution.tasks_of(provider)
    if data.train_split in task.splits
  }
  total = math.fsum(rates.values())
  # A packed row has at most as many examples as positions.
  rows = steps * stage.config.train.batch_size
  drawn = rows * (data.inputs_length + data.targets_length if data.pack else 1)
  for name, rate in rates.items():
    if drawn * rate < total:
      where = data.source_key(name) or f"{data.named}: {name}"
      hosts.log_once(
        f"{stage.name and f'config.stages, {stage.name}: '}{where} has {rate / total:.2g} of the draws, and"
        f" {steps:,} steps read {rows:,} rows: no example of it is expected; give it a higher rate, or leave it out"
      )
  if stage.config.train.epochs < 1.0:
    return
  for task in task_resolution.tasks_of(provider):
    number = (task.name in rates and task.num_input_examples(data.train_split)) or 0
    read = rows * rates.get(task.name, 0.0) / total
    if read < (1.0 - _MOST_UNREAD) * number:
      hosts.log_once(
        f"config.train.epochs={stage.config.train.epochs:g} counts the examples of all tasks; {data.named} draws them"
        f" at other rates: of {task.name} about {read:,.0f} of {number:,} are read"
      )


def _rows_of_a_record(config: Config, task: seqio.Task) -> float:
  """Examples that a record becomes, by the first ones: of a long context several windows, without an answer none."""
  data, model = config.data, config.model
  if not answered_by_heads(config.train.loss) or not _is_answered(task):
    return 1.0
  from t2t.data import head_examples

  records = task.source.get_dataset(split=data.train_split, shuffle=False, seed=0).take(_COUNTED)
  answered_task = head_examples.for_heads(task, model.architecture, model.heads)
  examples = answered_task.preprocess_postcache(
    answered_task.preprocess_precache(records, seed=0), sequence_length={"inputs": data.inputs_length}, seed=0
  )
  try:
    rows, number = (x.reduce(0, lambda n, _: n + 1) for x in (labelled(examples), records))
  except tf.errors.OpError as error:
    raise named.failure(error, task.name, what="its source or its formats fail") from error
  return int(rows) / max(int(number), 1)


def _with_intervals(config: Config, epoch: int) -> Config:
  """An interval of 0 is an epoch of so many steps."""
  steps = {
    section: {key: getattr(getattr(config, section), key) or max(1, epoch)} for section, key in INTERVALS.items()
  }
  return config.with_(**steps)


def _asked_by_objectives(config: Config, provider: seqio.Task | seqio.Mixture | None) -> tuple[HeadConfig, ...]:
  """The heads that a run's objectives ask, which must be the same.

  Raises:
    UserError: they are not, or there is no such objective.
  """
  made_here = {config.data.objective} if config.data.is_text else set()
  names = made_here if provider is None else objectives.of(provider)
  heads = {name: objectives.heads_of(name) for name in sorted(names)}
  if len(set(heads.values())) > 1:
    listed = "; ".join(
      f"{name}: {', '.join(head.name for head in objective_heads) or 'none'}" for name, objective_heads in heads.items()
    )
    raise UserError(f"{config.data.named}: objectives that ask different heads ({listed})")
  return next(iter(heads.values()), ())


def _with_asked(config: Config, objective_heads: tuple[HeadConfig, ...]) -> Config:
  """The run whose model has the heads of its objective, first of all, in the order in which they are asked."""
  if config.train.loss != "tokens_and_heads":
    raise UserError(
      f"config.train.loss={config.train.loss}: the objective asks a head {objective_heads[0].name!r} besides the"
      " tokens, which tokens_and_heads learns"
    )
  model_heads = {head.name: head for head in config.model.heads}
  for head in objective_heads:
    model_head = model_heads.get(head.name, head)
    if (model_head.kind, model_head.num_classes) != (head.kind, head.num_classes):
      raise UserError(
        f"config.model.heads: {model_head.name} is a {model_head.kind} head with {model_head.num_classes} classes, and"
        f" the objective asks a {head.kind} with {head.num_classes}"
        + (f": {', '.join(head.labels)}" if head.labels else "")
      )
  names = [head.name for head in objective_heads]
  other_heads = (head for head in config.model.heads if head.name not in names and head.kind not in ASKED_HEADS)
  return config.with_(model={"heads": (*(model_heads.get(head.name, head) for head in objective_heads), *other_heads)})


def _check_learns(provider: seqio.Task | seqio.Mixture | None, config: Config) -> None:
  """Refuses a task that is answered in writing to a model that does not write."""
  if provider is None or config.model.kind.is_generative:
    return
  for task in task_resolution.tasks_of(provider):
    if task.metric_fns and not objectives.of(task):
      raise UserError(
        f"{run_sources.of(config.data).key}: {task.name} is answered in writing, which a model with"
        f" config.model.architecture={config.model.architecture} does not learn: leave config.train.loss empty, and a"
        " head answers it; without tasks besides that have a masked-LM objective"
      )


def heads_asked(config: Config) -> tuple[HeadConfig, ...]:
  """The model's heads where they answer the run's tasks; none where an objective asks them.

  Args:
    config: see `resolved`.
  """
  data = config.data
  if not data.has_tasks or not answered_by_heads(config.train.loss):
    return ()
  return config.model.heads if _is_answered(pipeline.registered(data)) else ()


def task_numbers_of(config: Config) -> dict[str, int]:
  """Number of each of seqio's tasks that are read, where the model is told which one a text is of.

  Raises:
    UserError: see `task_ids.check`.
  """
  data = config.data
  if not adapters_lib.tasks(config.adapters):
    return {}
  from t2t.data import task_ids

  provider = pipeline.registered(data) if data.has_tasks else None
  numbers = task_ids.check(data, config.adapters, provider)
  return numbers if len(adapters_lib.tasks(config.adapters)) > 1 else {}


def check_stages(run: Sequence[stages.Stage]) -> None:
  """`check` of each stage, and that all have one vocabulary.

  Raises:
    UserError: see there; names the stage.
  """
  first = pipeline.vocabulary(run[0].config.data)
  notes: dict[str, None] = {}
  for stage in run:
    with stage.error_context():
      notes |= dict.fromkeys(check(stage.config))
      _tell_undrawn(stage)
      if pipeline.vocabulary(stage.config.data) != first:  # which tasks may have themselves
        raise UserError(
          f"{stage.config.data.named}: has another vocabulary than stage {run[0].name}, and there is one embedding;"
          " set config.data.vocabulary, and all stages are read in it"
        )
  for note in notes:
    hosts.log_once(note)


def check(config: Config) -> list[str]:
  """`validation.check` for the data, the model and the batch of a run.

  Returns:
    See there.

  Raises:
    UserError: see there; or examples that the loss makes nothing of.
  """
  _check_loss(config)
  if parts := config.data.parts():
    from t2t.data import languages

    languages.check_model(parts, segment_types=config.model.segment_types)
  _check_sees(config)
  task_numbers_of(config)
  heads = heads_asked(config)
  notes = validation.check(
    config.data,
    architecture=config.model.architecture,
    batch_size=config.train.batch_size,
    model_vocab_size=config.model.vocab_size,
    model_max_length=adapters_lib.as_asked(config.model, config.adapters).most_positions,
    heads=heads,
  )
  return [*notes, *_spelled(config)]


def _spelled(config: Config) -> list[str]:
  """Notes on control tokens that the text to train on spells."""
  data = config.data
  # Malformed records that may be left out are told when they are trained on, and once.
  if not data.is_named or data.cache_dir or data.max_bad_record_fraction or jax.process_index():
    return []
  try:
    spelled_tokens = raw_text.spelled(pipeline.load_task(data), split=pipeline.split_of(data, train=True))
  except tf.errors.OpError as error:
    raise sources.user_error(error) or error from None
  return (
    [f"{data.named}: {raw_text.spelled_note(spelled_tokens, special_tokens=data.special_tokens)}"]
    if spelled_tokens
    else []
  )


def _check_loss(config: Config) -> None:
  """Refuses a loss that compares texts where there are no two, another where there are, and twice the same vector.

  And one of heads where an objective asks none.
  """
  data, model = config.data, config.model
  if not data.is_named:
    return
  names, where, output_features, asks = run_sources.of(data).made()
  if answered_by_heads(config.train.loss) and not asks:
    asking = ", ".join(filter(objectives.heads_of, objectives.OBJECTIVES))
    raise UserError(
      f"{where}: its examples ask no head, and config.train.loss={config.train.loss} is made of what heads answer; the"
      f" objectives {asking} ask them, or set config.train.loss=cross_entropy"
    )
  if feature_spec.are_compared(output_features) != compares_texts(config.train.loss):
    if feature_spec.are_compared(output_features):
      raise UserError(
        f"{where}: its examples are pairs of texts, which config.train.loss=contrastive compares, not"
        f" {config.train.loss}; start from a config such as simcse_base"
      )
    raise UserError(
      f"{where}: config.train.loss=contrastive compares pairs of texts, which its examples are not; the objectives"
      " neighbouring_sentences and same_text_twice make them, and a task's `pairs.preprocessors`"
    )
  if "same_text_twice" in names and (not model.dropout_rate or model.broadcast_dropout):
    # T5's draws are the same for all positions of a row, where both texts stand.
    key = "broadcast_dropout=True" if model.dropout_rate else "dropout_rate=0.0"
    right = "broadcast_dropout=False" if model.dropout_rate else "dropout_rate=0.1"
    raise UserError(
      f"config.model.{key}: with the same text twice only dropout makes two vectors of it, and each text must draw its"
      f" own; set config.model.{right}"
    )


def _check_sees(config: Config) -> None:
  """Refuses hidden tokens that a model would read from left to right alone."""
  if config.model.bidirectional_prefix or not config.model.kind.is_decoder_only or not config.data.is_named:
    return
  source = run_sources.of(config.data)
  for part in source.parts.values() or [source]:
    names, where, *_ = part.made()
    if "masked_next_token" in names:
      raise UserError(
        f"{where}: has tokens read both ways, and config.model.bidirectional_prefix=False lets none see"
        " what is behind it; set config.model.bidirectional_prefix=True"
      )


def vocabulary(config: Config) -> seqio.Vocabulary:
  """`pipeline.vocabulary` of a run."""
  return pipeline.vocabulary(config.data)


def keep_vocabulary(vocabulary: seqio.Vocabulary, folder: epath.Path) -> None:
  """`vocabularies.save`: a run's own copy."""
  vocabularies.save(vocabulary, folder)


def check_vocabulary(
  config: Config, vocabulary: seqio.Vocabulary, copy_folder: epath.Path, saved: Mapping[str, Any] | None
) -> None:
  """Refuses another vocabulary than the run began with, or than the other hosts have.

  Args:
    config: of the run.
    vocabulary: that it names.
    copy_folder: folder of the run's own copy.
    saved: what the last checkpoint's position in the data belongs to; None: there is no checkpoint.

  Raises:
    UserError: it is another.
  """
  spec, digest = config.data.vocabulary, vocabularies.digest(vocabulary)
  if hosts.share(digest) != digest:
    raise UserError(f"config.data.vocabulary={spec}: has another content on this host than on the first; copy it anew")
  if saved is not None:
    noted = batch_iterator.vocabulary_digest(str(saved.get("data.vocabulary", "")))
    vocabularies.check_saved(vocabulary, copy_folder, noted=noted, spec=spec)


def batches(
  run: Sequence[stages.Stage],
  mesh: jax.sharding.Mesh,
  *,
  num_streams: int | None,
  first: int = 0,
  left_out: Callable[[int, int], int] = lambda begin, end: 0,
) -> stage_iterator.StagedBatches:
  """The training batches of a run, stage after stage.

  Args:
    run: its stages.
    mesh: see `pipeline.train_batches`.
    num_streams: a resumed run has as many as it began with; None: they are chosen.
    first: number of the stage that is read first.
    left_out: see `StagedBatches`.
  """
  common = math.gcd(*(stage.config.train.batch_size for stage in run))

  def make(number: int, num_streams: int | None) -> batch_iterator.BatchIterator:
    config = run[number].config
    return pipeline.train_batches(
      config.data,
      config.model.architecture,
      mesh,
      batch_size=config.train.batch_size,
      common_size=common,
      seed=config.train.seed,
      num_streams=num_streams,
      heads=heads_asked(config),
      numbers=task_numbers_of(config),
      evaluated=config.eval.tasks,
    )

  return stage_iterator.StagedBatches(run, make, num_streams=num_streams, first=first, left_out=left_out)


def eval_batches(config: Config, mesh: jax.sharding.Mesh) -> list[dict[str, jax.Array]]:
  """`eval_batches` of a run."""
  return pipeline.eval_batches(
    config.data,
    config.model.architecture,
    mesh,
    batch_size=config.eval.batch_size or config.train.batch_size,
    max_batches=config.eval.batches,
    heads=heads_asked(config),
    numbers=task_numbers_of(config),
  )


def eval_batches_by_source(config: Config, mesh: jax.sharding.Mesh) -> dict[str, list[dict[str, jax.Array]]]:
  """Held-out batches of each source that names its language; of all together about as many as `eval_batches`."""
  heads, architecture = heads_asked(config), config.model.architecture
  if not any(source.name and source.language for source in config.data.source_list):
    return {}
  task = pipeline.load_task(config.data, architecture, heads=heads, numbers=task_numbers_of(config))
  parts = run_sources.of(config.data).by_language(task)
  options = {"batch_size": config.eval.batch_size or config.train.batch_size, "heads": heads}
  options["max_batches"] = -(-config.eval.batches // max(len(parts), 1))
  return {
    name: pipeline.eval_batches(config.data, architecture, mesh, task=part, **options) for name, part in parts.items()
  }
