"""Data of a run: its config resolved to tasks, batches, and the heads that the model needs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import math
import re
from typing import Any

from etils import epath
from flax import nnx
import jax
import seqio
import tensorflow as tf

from t2t import UserError, did_you_mean, feature_spec
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
from t2t.losses import answered_by_heads, answered_by_heads_alone, compares_texts
from t2t.models import adapters as adapters_lib
from t2t.models.config import BESIDE_FIRST, EMBEDDINGS
from t2t.models.head_config import ASKED_HEADS, HeadConfig
from t2t.runtime import hosts
from t2t.runtime.lazy_table import load

_COUNTED = 1_000  # number of records that estimate the examples per record


def resolved(config: Config) -> Config:
  """Returns the config with settings that follow from the data: loss, heads of the tasks, number of steps.

  An encoder alone answers tasks with heads; other models do with config.train.loss=heads.

  Raises:
    UserError: no head can answer a task, the model has other heads, or epochs cannot be counted.
  """
  return _resolved(config)[0]


def _resolved(config: Config) -> tuple[Config, float]:
  """Returns the result of `resolved`, and the number of examples per epoch; 0.0 if not counted."""
  config = _with_table(config)
  data = config.data
  provider = run_sources.of(data).tasks()
  config = _with_heads(_with_vocabulary(config), provider)
  number = _number_of_examples(config, provider)
  return _with_steps(config, number), number


def resolved_stages(config: Config) -> tuple[stages.Stage, ...]:
  """Returns the stages of a run, each `resolved`; one for a run without stages.

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
  """Returns the config with its table as a task; other configs unchanged.

  Raises:
    UserError: a table is missing, or see `tables.resolved`.
  """
  data = config.data
  if not (data.labels or data.table):
    if not (data.inputs_length or data.is_named):
      raise UserError(
        "config.data.files is empty, but --config finetune reads a table. Give --config.data.files=train.tsv and "
        "--config.data.labels=auto. For registered tasks, give another config, such as finetune_superglue."
      )
    if data.is_text and not (data.inputs_length and data.targets_length):
      raise UserError(
        f"config.data.labels is empty, so {data.named} is not read as a table. Give --config.data.labels=auto "
        "for a table. For text to pre-train on, give config.data.inputs_length and config.data.targets_length."
      )
    return config
  from t2t.data import tables

  return tables.resolved(config, lambda: pipeline.vocabulary(data))


def _is_answered(provider: seqio.Task | seqio.Mixture) -> bool:
  """Returns whether all tasks have answers and no objective; see `head_examples.is_answered`."""
  if any(objectives.of(task) for task in task_resolution.tasks_of(provider)):
    return False
  from t2t.data import head_examples

  return head_examples.is_answered(provider)


def _with_vocabulary(config: Config) -> Config:
  """Returns the config with an embedding row per token, up to a multiple of 128, where its vocab_size is 0."""
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
      else "diffusion"
      if _objectives_of(config, provider) & set(feature_spec.DIFFUSION)
      else ("early_exit" if model.exits else "heads")
      if answered and not model.kind.is_generative
      else "cross_entropy"
    )
    config = config.with_(train={"loss": loss})
  if objective_heads:
    return _with_asked(config, objective_heads)
  if not answered_by_heads(loss):
    _check_learns(provider, config)
  if not (answered and answered_by_heads(loss)):
    return config
  from t2t.data import head_examples

  tasks, reads = task_resolution.tasks_of(pipeline.adapted(data, provider)), config.train.head_reads
  needed_heads = head_examples.heads_of(tasks, model, pipeline.vocabulary(data), reads=reads)
  other_heads = (head for head in model.heads if head.kind not in ASKED_HEADS)
  names = [head.name for head in needed_heads]
  if unasked := [head.name for head in model.heads if head.kind in ASKED_HEADS and head.name not in names]:
    left_out = f"config.model.heads: no task of this run uses {', '.join(unasked)}; left out. Heads of the tasks: "
    hosts.log_once(f"{left_out}{', '.join(names)}{did_you_mean(unasked[0], names)}")
  return config.with_(model={"heads": (*other_heads, *needed_heads)})


def _number_of_examples(config: Config, provider: seqio.Task | seqio.Mixture | None) -> float:
  """Returns the number of examples per epoch; 0.0 without epochs and without a table.

  Raises:
    UserError: the examples cannot be counted.
  """
  epochs, data = config.train.epochs, config.data
  if not epochs and (not data.table or data.pack):
    return 0.0
  if provider is None or epochs < 0:
    raise UserError(
      f"config.train.epochs={epochs}: "
      + (
        "the number of epochs must not be below 0"
        if epochs < 0
        else "epochs count examples of tasks, but config.data.mixture is empty"
      )
      + ". Set config.train.steps and config.train.epochs=0.0."
    )
  if data.pack:
    raise UserError(
      f"config.train.epochs={epochs}: with config.data.pack=True a row has an unknown number of examples. Set "
      "config.data.pack=False, or set config.train.steps and config.train.epochs=0.0."
    )
  number = 0
  for task in task_resolution.tasks_of(pipeline.adapted(data, provider)):
    if data.train_split in task.splits:
      count = task.num_input_examples(data.train_split)
      if count is None:
        raise UserError(
          f"config.train.epochs={epochs}: the number of examples of {task.name} is unknown. Set "
          "config.train.steps and config.train.epochs=0.0."
        )
      number += count * _rows_of_a_record(config, task)
  return number


def _with_steps(config: Config, number: float) -> Config:
  """Returns the config with the number of steps of its epochs; by default each epoch ends with evaluation and
  checkpoint.

  Args:
    config: config of the run.
    number: see `_number_of_examples`.
  """
  epochs = config.train.epochs
  if not epochs:
    # An epoch of files is not counted; an epoch of a table is.
    epoch = round(number / config.train.batch_size) if number else config.train.steps
    config = _with_rules(config, epoch) if number else config
    return _with_intervals(config, min(epoch, config.train.steps))
  steps = max(1, round(epochs * number / config.train.batch_size))
  config = _with_rules(config, round(number / config.train.batch_size))
  return _with_intervals(config.with_(train={"steps": steps}), round(steps / max(epochs, 1.0)))


def _with_rules(config: Config, epoch: int) -> Config:
  """Replaces `unfreeze_every=epoch` in rules of parameter groups by the number of steps of an epoch."""
  replaced = lambda rule: re.sub(r"(?<=\bunfreeze_every=)epoch\b", str(max(1, epoch)), rule)
  return config.with_(optimizer={"param_groups": tuple(map(replaced, config.optimizer.param_groups))})


def _tell_unread(config: Config, number: float) -> None:
  """Reports examples that the steps of the epochs leave unread, because the last batch would not be full."""
  unread = config.train.epochs * number - config.train.steps * config.train.batch_size
  if number and unread >= max(1.0, 0.01 * number):
    steps, size = config.train.steps, config.train.batch_size
    hosts.log_once(
      f"config.train.epochs={config.train.epochs:g}: {steps:,} steps of {size} examples leave {unread:,.0f} of"
      f" {number:,.0f} unread in the last epoch"
    )


_MOST_UNREAD = 0.1  # share of a task's examples that an epoch of a mixture may leave unread without a message


def _tell_undrawn(stage: stages.Stage) -> None:
  """Reports tasks of a mixture without an expected example in a stage, and tasks that epochs leave largely unread."""
  data, steps = stage.config.data, stage.end - stage.begin
  source = run_sources.of(data)
  provider = source.tasks()
  if not isinstance(provider, seqio.Mixture):
    return
  provider = (
    provider if source.parts else pipeline.adapted(data, provider)
  )  # its own files determine the number of examples
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
        f"{stage.name and f'config.stages, {stage.name}: '}{where} has a share of {rate / total:.2g}, and "
        f"{steps:,} steps read {rows:,} rows, so no example is expected. Give this task a higher rate, or "
        "leave the task out."
      )
  if stage.config.train.epochs < 1.0:
    return
  for task in task_resolution.tasks_of(provider):
    number = (task.name in rates and task.num_input_examples(data.train_split)) or 0
    read = rows * rates.get(task.name, 0.0) / total
    if read < (1.0 - _MOST_UNREAD) * number:
      hosts.log_once(
        f"config.train.epochs={stage.config.train.epochs:g} counts the examples of all tasks, but {data.named} "
        f"samples them at other rates: about {read:,.0f} of {number:,} examples of {task.name} are read"
      )


def _rows_of_a_record(config: Config, task: seqio.Task) -> float:
  """Returns the number of examples per record, from the first records: several windows for a long context, none without
  an answer.
  """
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
    raise named.failure(error, task.name, what="its source or its preprocessors fail") from error
  return int(rows) / max(int(number), 1)


def _with_intervals(config: Config, epoch: int) -> Config:
  """Replaces intervals of 0 by the number of steps of an epoch."""
  steps = {
    section: {key: getattr(getattr(config, section), key) or max(1, epoch)} for section, key in INTERVALS.items()
  }
  return config.with_(**steps)


def _objectives_of(config: Config, provider: seqio.Task | seqio.Mixture | None) -> set[str]:
  made_here = {config.data.objective} if config.data.is_text else set()
  return made_here if provider is None else objectives.of(provider)


def _asked_by_objectives(config: Config, provider: seqio.Task | seqio.Mixture | None) -> tuple[HeadConfig, ...]:
  """Returns the heads that the objectives of a run ask; all objectives must ask the same.

  Raises:
    UserError: they ask different heads, or an objective is unknown.
  """
  heads = {name: objectives.heads_of(name) for name in sorted(_objectives_of(config, provider))}
  if len(set(heads.values())) > 1:
    listed = "; ".join(
      f"{name}: {', '.join(head.name for head in objective_heads) or 'none'}" for name, objective_heads in heads.items()
    )
    raise UserError(
      f"{config.data.named}: the objectives use different heads ({listed}). Choose objectives with the same heads."
    )
  return next(iter(heads.values()), ())


def _with_asked(config: Config, objective_heads: tuple[HeadConfig, ...]) -> Config:
  """Returns the config with the heads of its objective first, in the order in which they are asked."""
  if not answered_by_heads(config.train.loss) or answered_by_heads_alone(config.train.loss):
    raise UserError(
      f"config.train.loss={config.train.loss} does not train both the tokens and the head {objective_heads[0].name!r} "
      "of the objective. Set config.train.loss=tokens_and_heads."
    )
  model_heads = {head.name: head for head in config.model.heads}
  for head in objective_heads:
    model_head = model_heads.get(head.name, head)
    if (model_head.kind, model_head.num_classes) != (head.kind, head.num_classes):
      raise UserError(
        f"config.model.heads: {model_head.name} is a {model_head.kind} head with {model_head.num_classes} "
        f"classes, but the objective needs a {head.kind} head with {head.num_classes} classes"
        + (f" ({', '.join(head.labels)})" if head.labels else "")
        + ". Leave this head out of config.model.heads."
      )
  names = [head.name for head in objective_heads]
  other_heads = (head for head in config.model.heads if head.name not in names and head.kind not in ASKED_HEADS)
  return config.with_(model={"heads": (*(model_heads.get(head.name, head) for head in objective_heads), *other_heads)})


def _check_learns(provider: seqio.Task | seqio.Mixture | None, config: Config) -> None:
  """Refuses a task with generated answers for a model that does not generate."""
  if provider is None or config.model.kind.is_generative or config.data.templates:
    return  # an encoder learns the words of a template as masked tokens
  for task in task_resolution.tasks_of(provider):
    if task.metric_fns and not objectives.of(task):
      raise UserError(
        f"{run_sources.of(config.data).key}: {task.name} has generated answers, but a model with "
        f"config.model.architecture={config.model.architecture} does not generate text. Leave config.train.loss empty "
        "to train a head, and do not mix such tasks with a masked-LM objective."
      )


def heads_asked(config: Config) -> tuple[HeadConfig, ...]:
  """Returns the model's heads if they answer the run's tasks; empty if an objective asks them.

  Args:
    config: see `resolved`.
  """
  data = config.data
  if not data.has_tasks or not answered_by_heads(config.train.loss):
    return ()
  return config.model.heads if _is_answered(pipeline.registered(data)) else ()


def task_numbers_of(config: Config) -> dict[str, int]:
  """Returns the id of each seqio task in the data, if the model has task ids.

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
  """Checks each stage with `check`, and that all stages have one vocabulary.

  Raises:
    UserError: see `check`; names the stage.
  """
  first = pipeline.vocabulary(run[0].config.data)
  notes: dict[str, None] = {}
  for stage in run:
    with stage.error_context():
      notes |= dict.fromkeys(check(stage.config))
      _tell_undrawn(stage)
      if pipeline.vocabulary(stage.config.data) != first:  # tasks may have their own vocabulary
        raise UserError(
          f"{stage.config.data.named}: the vocabulary differs from the vocabulary of stage {run[0].name}, but the "
          "model has only one embedding. Set the same config.data.vocabulary for all stages."
        )
  for note in notes:
    hosts.log_once(note)


def check(config: Config) -> list[str]:
  """Checks the data, the model and the batch of a run with `validation.check`.

  Returns:
    The notes of `validation.check`.

  Raises:
    UserError: see there; or the loss does not fit the examples.
  """
  _check_loss(config)
  if parts := config.data.parts():
    from t2t.data import languages

    languages.check_model(parts, segment_types=config.model.segment_types)
  _check_sees(config)
  _check_directions(config)
  _check_ranks(config)
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
  """Returns notes on control tokens that the training text spells."""
  data = config.data
  # Skipped malformed records are reported once, during training.
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
  """Refuses a loss that does not fit the examples.

  It refuses a contrastive loss without pairs, another loss with pairs, equal vectors of one text, and a loss of heads
  that no objective asks.
  """
  data, model = config.data, config.model
  if not data.is_named:
    return
  names, where, output_features, asks = run_sources.of(data).made()
  if answered_by_heads(config.train.loss) and not asks:
    asking = ", ".join(filter(objectives.heads_of, objectives.OBJECTIVES))
    raise UserError(
      f"{where}: the examples have no answers for heads, but config.train.loss={config.train.loss} needs such answers. "
      f"Choose one of the objectives {asking}, or set config.train.loss=cross_entropy."
    )
  if {config.train.loss, *names} & {"diffusion", *feature_spec.DIFFUSION}:
    load("t2t.losses.diffusion:check_objectives")(names, config.train.loss, where=where)
  if model.block_length and not answered_by_heads(config.train.loss):
    load("t2t.losses.diffusion:check_blocks")(config)
  if {config.train.loss, *names} & {"negative_sampling", "glove", "skip_thought", *feature_spec.STATIC}:
    load("t2t.contrib.data_checks:check")(names, config, where=where)  # few runs have such losses
  if feature_spec.are_compared(output_features) != compares_texts(config.train.loss):
    if feature_spec.are_compared(output_features):
      raise UserError(
        f"{where}: the examples are pairs of texts, but config.train.loss={config.train.loss} does not compare pairs. "
        "Set config.train.loss=contrastive, or start from a config such as simcse_base."
      )
    raise UserError(
      f"{where}: config.train.loss={config.train.loss} compares pairs of texts, but the examples are not pairs. Choose "
      "the objective neighbouring_sentences or same_text_twice, or a task with `sentence_pairs.preprocessors`."
    )
  if "same_text_twice" in names and (not model.dropout_rate or model.broadcast_dropout):
    # T5's dropout is equal for all positions of a row, which has both texts.
    key = "broadcast_dropout=True" if model.dropout_rate else "dropout_rate=0.0"
    right = "broadcast_dropout=False" if model.dropout_rate else "dropout_rate=0.1"
    raise UserError(
      f"config.model.{key}: the two vectors of a text would be equal, but the objective same_text_twice compares "
      f"different vectors. Set config.model.{right}."
    )


def _named_parts(config: Config) -> Iterator[run_sources.Made]:
  """Yields facts of the examples of each source that the config names; none for the data of a Python program."""
  if config.data.is_named:
    source = run_sources.of(config.data)
    yield from (part.made() for part in source.parts.values() or [source])


def _check_sees(config: Config) -> None:
  """Refuses masked tokens for a model that reads from left to right only."""
  if config.model.bidirectional_prefix or not config.model.kind.is_decoder_only:
    return
  for names, where, *_ in _named_parts(config):
    if names & {"masked_next_token", *feature_spec.DIFFUSION}:
      raise UserError(
        f"{where} needs bidirectional attention, but config.model.bidirectional_prefix=False makes attention causal. "
        "Set config.model.bidirectional_prefix=True."
      )


def _check_directions(config: Config) -> None:
  """Refuses too few token types for an objective that marks each direction of reading by token types."""
  given = config.model.segment_types
  if given <= 1 or config.model.kind.is_generative:
    return
  from t2t.data.objectives.unilm import TYPES

  for names, where, *_ in _named_parts(config):
    if "unilm" in names and given < TYPES:
      raise UserError(
        f"{where} has {TYPES} token types, which mark the direction of reading, but config.model.segment_types={given}."
        f" Set config.model.segment_types={TYPES}, or 0 for a model without segment types."
      )


def _check_ranks(config: Config) -> None:
  """Refuses tokens in an order for a model that would read them, and a query stream that nothing trains."""
  model, data, loss = config.model, config.data, config.train.loss
  if model.kind.is_generative or answered_by_heads(loss) or compares_texts(loss):
    return
  for names, where, output_features, *_ in _named_parts(config):
    half = data.inputs_length // 2 if names & set(feature_spec.WITH_OVERLAP) else 0
    if model.memory_reuse != half:
      raise UserError(
        f"config.model.memory_reuse={model.memory_reuse} does not fit {where} and config.data.inputs_length="
        f"{data.inputs_length}: an example begins {half or data.inputs_length} tokens after the one before. Set "
        f"config.model.memory_reuse={half}."
      )
    for key, table in (("beside_first", BESIDE_FIRST), ("embedding", EMBEDDINGS)):
      row = getattr(model, key)
      if feature_spec.RANKS in output_features and row and getattr(table[row], "reads_neighbors", False):
        raise UserError(
          f"{where}: tokens are predicted in an order of ranks, but config.model.{key}={row} lets each position read "
          f"the next token. Set config.model.{key}={getattr(type(model), key)!r}."
        )
    if model.two_streams and feature_spec.RANKS not in output_features:
      raise UserError(
        f"{where}: the examples have no ranks, but config.model.two_streams=True predicts tokens in the order of "
        f"ranks. Give the objective {' or '.join(feature_spec.IN_ORDER)}, or config.model.two_streams=False."
      )
    if not model.two_streams and names & set(feature_spec.IN_ORDER):
      raise UserError(
        f"{where}: the examples have ranks and unmasked tokens, but config.model.two_streams=False lets the model read "
        "the tokens that it predicts. Set config.model.two_streams=True."
      )


def vocabulary(config: Config) -> seqio.Vocabulary:
  """Returns the vocabulary of a run."""
  return pipeline.vocabulary(config.data)


def keep_vocabulary(vocabulary: seqio.Vocabulary, folder: epath.Path) -> None:
  """Saves a run's own copy of the vocabulary."""
  vocabularies.save(vocabulary, folder)


def check_vocabulary(
  config: Config, vocabulary: seqio.Vocabulary, copy_folder: epath.Path, saved: Mapping[str, Any] | None
) -> None:
  """Refuses another vocabulary than at the start of the run, or than on the other hosts.

  Args:
    config: config of the run.
    vocabulary: vocabulary of the config.
    copy_folder: folder of the run's own copy.
    saved: identity of the last checkpoint's data position; None: there is no checkpoint.

  Raises:
    UserError: the vocabularies differ.
  """
  vocabularies.check_run(vocabulary, copy_folder, saved, spec=config.data.vocabulary)


def batches(
  run: Sequence[stages.Stage],
  mesh: jax.sharding.Mesh,
  *,
  num_streams: int | None,
  first: int = 0,
  left_out: Callable[[int, int], int] = lambda begin, end: 0,
) -> stage_iterator.StagedBatches:
  """Returns the training batches of a run, stage by stage.

  Args:
    run: stages of the run.
    mesh: see `pipeline.train_batches`.
    num_streams: number at the start of a resumed run; None: chosen.
    first: number of the first stage.
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
  """Returns the held-out batches of a run."""
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
  """Returns held-out batches of each source with a language; together about as many as `eval_batches`."""
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


def evaluation(config: Config, graphdef: nnx.GraphDef, mesh: jax.sharding.Mesh) -> Any:
  """Returns the evaluation of a run's tasks; see `evaluate.of_training`."""
  return load("t2t.evaluation.evaluate:of_training")(config, graphdef, mesh)
