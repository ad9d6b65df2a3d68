"""Reports settings that cannot take effect in a run, before any device is used."""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import math
from typing import Any

from t2t import UserError, losses
from t2t.configs import default
from t2t.configuration import stages
from t2t.configuration.loading import records
from t2t.configuration.schema import INTERVALS, OF_FILES, Config, DataConfig, OptimizerConfig
from t2t.configuration.stages import Stage
from t2t.training import param_groups, schedules

# Keys of config.optimizer -> the optimizers that read them; every optimizer reads all other keys.
_BY_OPTIMIZER: dict[str, tuple[str, ...]] = {
  "adafactor_decay_rate": ("adafactor",),
  "adafactor_clip": ("adafactor",),
  "b1": ("adamw", "lamb", "lion", "muon", "schedule_free_adamw", "stable_adamw"),
  "b2": ("adamw", "lamb", "lion", "muon", "schedule_free_adamw", "stable_adamw"),
  "epsilon": ("adagrad", "adamw", "lamb", "muon", "schedule_free_adamw", "stable_adamw"),
  "muon_momentum": ("muon",),
  "muon_iterations": ("muon",),
}
# Keys of config.optimizer -> the schedules that read them.
_BY_SCHEDULE: dict[str, tuple[str, ...]] = {
  "warmup_steps": ("t5_inverse_sqrt", "inverse_sqrt", "cosine", "linear", "constant", "wsd"),
  "warmup_ratio": ("t5_inverse_sqrt", "inverse_sqrt", "cosine", "linear", "constant", "wsd"),
  "end_lr_fraction": ("cosine", "linear", "wsd", "one_cycle"),
  "decay_fraction": ("wsd",),
  "decay_shape": ("wsd",),
  "warmup_fraction": ("slanted_triangle", "one_cycle"),
  "init_lr_divisor": ("slanted_triangle", "one_cycle"),
}
_RATIO = "config.optimizer.warmup_ratio"
# Losses without token predictions, which read neither config.train.z_loss nor label_smoothing.
_WITHOUT_TOKENS = ("contrastive", "heads")


@functools.cache
def _defaults() -> Config:
  return records(default.get_config())


def check(config: Config, run: Sequence[Stage], *, begins: bool) -> list[str]:
  """Returns one sentence for each setting without effect, with its key.

  Args:
    config: of the run, as the user gave it.
    run: its stages, with resolved configs.
    begins: whether the run starts at step 0; for a resumed run the error below is a note.

  Raises:
    UserError: the warm-up is as long as the run or a stage, so the learning rate never reaches its peak.
  """
  notes = [*_replaced(config, run[-1].end), *_data(config), *_sections(run[-1].config)]
  for stage, optimizer in _schedules(run):
    where = f"config.stages, {stage.name}: " if stage.name else ""
    if why := _long_warmup(optimizer, stage):
      if begins:
        raise UserError(where + why)
      notes.append(where + why)
    notes += [where + note for note in _phases(optimizer, stage.end - stage.begin)]
    notes += [where + note for note in _unread(optimizer, _BY_SCHEDULE, "schedule")]
  notes += _unread(run[-1].config.optimizer, _BY_OPTIMIZER, "name")
  for stage in run:
    where = f"config.stages, {stage.name}: " if stage.name else ""
    notes += [where + note for note in (*_cadence(stage), *_loss(stage.config))]
  return list(dict.fromkeys(notes))


# ---- Learning rate ---------------------------------------------------------------------------------------------------


def _schedules(run: Sequence[Stage]) -> Iterator[tuple[Stage, OptimizerConfig]]:
  """Yields each schedule of a run with its steps: the run's, and the schedules of stages with their own rate."""
  last = run[-1]
  rates: dict[str, Any] = {stage.name: stages.own_rate(stage) for stage in last.config.stages}
  if not all(rates.values()) or not rates:
    yield Stage("", 0, last.end, last.config), last.config.optimizer
  for stage in run:
    if rate := rates.get(stage.name):
      rate = {"warmup_ratio": 0.0} | rate if "warmup_steps" in rate else rate
      yield stage, dataclasses.replace(stage.config.optimizer, **rate)


def _read(optimizer: OptimizerConfig, key: str) -> bool:
  return optimizer.schedule in _BY_SCHEDULE[key]


def _warmup_key(optimizer: OptimizerConfig) -> str:
  key = "warmup_ratio" if optimizer.warmup_ratio else "warmup_steps"
  return f"config.optimizer.{key}={getattr(optimizer, key)}"


def _long_warmup(optimizer: OptimizerConfig, stage: Stage) -> str:
  """Returns why the learning rate never reaches its peak; "" if it does."""
  steps = stage.end - stage.begin
  warmup = schedules.warmup(optimizer, steps)
  if warmup < max(steps, 2) or not _read(optimizer, "warmup_steps") or optimizer.schedule == "t5_inverse_sqrt":
    return ""
  of_run = "stage" if stage.name else "run"
  top = optimizer.learning_rate
  share = top * steps / warmup
  reached = f"the learning rate would not pass {share:.3g} of {top:g}"
  if warmup == steps:
    reached = f"the learning rate would rise to {top:g} at the last step and never fall"
  example = 0.1 if steps >= 10 else 0.0
  shorter = f"{_RATIO}={example} ({round(example * steps)} steps)" if example else "config.optimizer.warmup_steps=0"
  key = _warmup_key(optimizer)
  if stage.name:
    shorter, key = shorter.removeprefix("config."), key.removeprefix("config.")
  length = f" (config.train.{'epochs' if stage.config.train.epochs else 'steps'})"
  return (
    f"{key} is a warm-up of {warmup} steps, but the {of_run} has {steps}: {reached}. Give "
    f"{'' if stage.name else '--'}{shorter}, or a longer {of_run}{'' if stage.name else length}"
  )


def _phases(optimizer: OptimizerConfig, steps: int) -> Iterator[str]:
  """Yields notes on phases of a schedule that have no step."""
  name, warmup = optimizer.schedule, schedules.warmup(optimizer, steps)
  if not optimizer.learning_rate:
    yield "config.optimizer.learning_rate=0.0: no parameter changes"
  if steps < 2:
    return
  if _read(optimizer, "warmup_ratio") and optimizer.warmup_ratio and not warmup:
    yield f"{_RATIO}={optimizer.warmup_ratio:g} of {steps} steps is less than one step: there is no warm-up"
  if name == "t5_inverse_sqrt" and warmup >= steps:
    yield (
      f"{_warmup_key(optimizer)}: t5_inverse_sqrt keeps the rate constant for {warmup} steps, and the run has {steps}:"
      f" the learning rate stays at {optimizer.learning_rate:g}"
    )
  if name in ("cosine", "linear") and warmup == steps - 1 and optimizer.end_lr_fraction < 1.0:
    yield (
      f"config.optimizer.schedule={name}: the warm-up leaves one of {steps} steps, so the learning rate does not fall"
    )
  if name == "wsd" and (decay := round(optimizer.decay_fraction * steps)) < 2:
    yield (
      f"config.optimizer.decay_fraction={optimizer.decay_fraction:g} of {steps} steps is {decay}"
      f" step{'' if decay else 's'}:"
      f" the learning rate does not fall; give at least {math.ceil(200 / steps) / 100:g}"
    )
  if name in ("slanted_triangle", "one_cycle"):
    rise = int(optimizer.warmup_fraction * steps)
    key = f"config.optimizer.warmup_fraction={optimizer.warmup_fraction:g} of {steps} steps"
    if rise < 1:
      yield f"{key} is less than one step: the learning rate rises in one step"
    if rise >= steps:
      yield f"{key} leaves no step in which the learning rate falls"
    if optimizer.init_lr_divisor == 1.0:
      yield (
        "config.optimizer.init_lr_divisor=1.0: the rate does not rise, and config.optimizer.warmup_fraction has no"
        " effect"
      )


def _unread(optimizer: OptimizerConfig, readers: dict[str, tuple[str, ...]], by: str) -> Iterator[str]:
  """Yields notes on changed keys that the optimizer or the schedule does not read."""
  chosen, plain = getattr(optimizer, by), _defaults().optimizer
  for key, names in readers.items():
    value = getattr(optimizer, key)
    if chosen in names or value == getattr(plain, key) or (key == "warmup_steps" and not value):
      continue
    yield f"config.optimizer.{key}={value} has no effect: config.optimizer.{by}={chosen} does not read it" + (
      f"; {', '.join(names)} do" if len(names) > 1 else f"; {names[0]} does"
    )


# ---- Intervals -------------------------------------------------------------------------------------------------------


def _cadence(stage: Stage) -> Iterator[str]:
  """Yields notes on intervals that are longer than the remaining steps."""
  config, steps = stage.config, stage.end - stage.begin
  length = f"the stage's {steps} steps" if stage.name else f"the run's {steps} steps"
  at_end = [f"config.{section}.{key}={getattr(getattr(config, section), key)}" for section, key in INTERVALS.items()]
  at_end = [key for key in at_end if int(key.partition("=")[2]) > steps]
  if at_end:
    done = " and ".join({"eval": "evaluated", "checkpoint": "saved"}[key.split(".")[1]] for key in at_end)
    yield f"{', '.join(at_end)}: more than {length}; only the last step is {done}"
  if config.train.log_every > stage.end and not stage.begin:
    log_every = f"config.train.log_every={config.train.log_every}"
    yield f"{log_every}: more than {length}; only the last step of the run is logged"
  if config.logging.histograms > stage.end:
    yield f"config.logging.histograms={config.logging.histograms}: more than {length}; no histogram is written"
  evaluations = len([step for step in range(1, steps) if not (stage.begin + step) % config.eval.every])
  if config.eval.patience and evaluations <= config.eval.patience:
    yield (
      f"config.eval.patience={config.eval.patience} has no effect: {length} have {evaluations}"
      f" evaluation{'s' * (evaluations != 1)} before the last (config.eval.every={config.eval.every}),"
      f" and early stopping needs {config.eval.patience + 1}"
    )
  nan_policy = config.nan_policy
  if nan_policy.spike_deviations and nan_policy.spike_window >= steps:
    yield (
      f"config.nan_policy.spike_window={nan_policy.spike_window} is longer than {length}: no loss counts as a "
      "spike. Give a smaller window"
    )


# ---- Other sections --------------------------------------------------------------------------------------------------


def _replaced(config: Config, steps: int) -> Iterator[str]:
  """Yields notes on keys that another key overrides."""
  optimizer, plain = config.optimizer, _defaults()
  if config.train.epochs:
    yield (f"config.train.epochs={config.train.epochs:g} is {steps:,} steps of {config.train.batch_size} examples")
  if optimizer.warmup_ratio and optimizer.warmup_steps not in (0, plain.optimizer.warmup_steps):
    yield (
      f"config.optimizer.warmup_steps={optimizer.warmup_steps} has no effect: "
      f"{_RATIO}={optimizer.warmup_ratio:g} replaces it; set {_RATIO}=0.0"
    )


# Keys of config.data that only registered tasks, only sources, or only text files read.
_OF_TASKS = ("train_split", "eval_split", "cache_dir", "benchmark_dirs")
_OF_SOURCES = ("mixing_unit", "alpha")
_OF_IDS = ("tokens_dtype", "tokens_end")
_OF_TEXTS = (*OF_FILES, "language", "language_tags", "dictionary", "switching_rate", "shuffle_buffer", *_OF_IDS)
# Keys of config.eval that only tasks with metrics read.
_OF_ANSWERS = ("tasks", "method", "num_beams", "length_penalty", "num_shots", "max_examples")


def _data(config: Config) -> Iterator[str]:
  """Yields notes on keys of config.data and config.eval that the selected data does not read."""
  data, stages_read = config.data, {key for stage in config.stages for key in stage.changes}
  if any(key in stages_read for key in ("data.files", "data.mixture")) or not (data.labels or data.is_named):
    return
  unread: list[tuple[str, tuple[str, ...], str]] = []
  if data.labels or data.table:
    text_keys = tuple(key for key in _OF_TEXTS if key not in ("eval_files", "max_bad_record_fraction"))
    why = "config.data.files is a table (config.data.labels), whose columns define the examples"
    unread.append(("data", (*text_keys, *_OF_TASKS, *_OF_SOURCES), why))
  elif sources := [source for source in data.source_list if source.name]:
    if not any(source.files for source in sources):
      unread.append(("data", _OF_TEXTS, "no source has files"))
    if all(source.files for source in sources):
      unread.append(("data", _OF_TASKS, "no source is a registered task"))
    if all(source.rate or source.share for source in sources):
      unread.append(("data", _OF_SOURCES, "each source has a rate or a share"))
  elif not data.reads_only_tasks:
    why = "config.data.files is read, not a registered task"
    unread.append(("data", (*_OF_TASKS, *_OF_SOURCES), why))
    unread.append(("data", _unread_of_texts(data), f"config.data.objective={data.objective} does not read it"))
    why = f"config.data.files has {'token ids' if data.has_tokens else 'no token ids (.npy, .bin)'}"
    unread.append(("data", ("field",) if data.has_tokens else _OF_IDS, why))
    unread.append(("eval", _OF_ANSWERS, "config.data.files is training text without answers to evaluate"))
  else:
    # Shipped configs set an objective for files even with a mixture; an objective on the command line is an error
    # elsewhere.
    read = ("objective",) if config.model.kind.is_generative else ("objective", "noise_density")
    texts = tuple(key for key in _OF_TEXTS if key not in read)
    why = f"{data.named} defines the examples itself"
    unread += [("data", texts, why), ("data", _OF_SOURCES, "config.data.sources is empty")]
  plain = _defaults()
  for section, keys, why in unread:
    for key in keys:
      value = getattr(getattr(config, section), key)
      if value != getattr(getattr(plain, section), key):
        yield f"config.{section}.{key}={value} has no effect: {why}"


def _unread_of_texts(data: DataConfig) -> tuple[str, ...]:
  """Returns keys of record fields that the objective of `files` does not read."""
  from t2t.data.objectives.registry import OBJECTIVES

  objective = OBJECTIVES.get(data.objective)
  if objective is None:
    return ()
  keys = () if objective.annotated else ("annotations",)
  return keys if objective.parallel else (*keys, "translation", "both_directions", "language_tags")


def _sections(config: Config) -> Iterator[str]:
  """Yields notes on changed keys that are not read because of another key."""
  plain, nan_policy, average = _defaults(), config.nan_policy, config.optimizer.average
  spikes = nan_policy.spike_deviations > 0
  goes_back = nan_policy.on_nonfinite == "rollback" or (spikes and nan_policy.on_spike == "rollback")
  positions, generates = config.model.positions, config.model.is_generative
  has_table = bool(config.model.most_positions or (config.electra is not None and config.electra.mask_decoder))
  disentangled = ("disentangled_terms", "share_position_projections", "relative_position_norm", "absolute_positions")
  why_positions = f"config.model.positions={positions}"
  reads: list[tuple[str, tuple[str, ...], object, str]] = [
    ("model", ("rotary_base", "local_rotary_base", "rotary_scaling"), positions == "rotary", why_positions),
    ("model", ("max_length", "position_offset"), has_table, why_positions),
    ("model", ("relative_position_buckets",), positions in ("relative", "disentangled"), why_positions),
    (
      "model",
      ("relative_position_max_distance",),
      positions in ("relative", "disentangled", "functional_relative"),
      why_positions,
    ),
    ("model", disentangled, positions == "disentangled", why_positions),
    ("model", ("beside_first_activation",), bool(config.model.beside_first), "config.model.beside_first=''"),
    ("model", ("character_cnn",), "characters" in config.model.embedding, "config.model.embedding reads no characters"),
    *(("model", keys, is_read, why) for keys, is_read, why in _parts(config)),
    (
      "nan_policy",
      ("on_spike", "spike_window"),
      spikes,
      "config.nan_policy.spike_deviations=0.0: no loss counts as a spike",
    ),
    (
      "nan_policy",
      ("max_consecutive_skips", "max_skipped_fraction"),
      nan_policy.on_nonfinite == "skip",
      f"config.nan_policy.on_nonfinite={nan_policy.on_nonfinite}: no update is skipped",
    ),
    ("nan_policy", ("max_rollbacks",), goes_back, "config.nan_policy.on_nonfinite and .on_spike are not rollback"),
    ("optimizer", ("average_decay",), average == "ema", "config.optimizer.average is not ema"),
    ("optimizer", ("average_every",), average == "lawa", "config.optimizer.average is not lawa"),
    ("optimizer", ("average_last",), average in ("lawa", "nt_asgd"), "config.optimizer.average is not lawa or nt_asgd"),
    ("train", ("head_reads",), losses.answered_by_heads(config.train.loss), f"config.train.loss={config.train.loss}"),
    ("logging", ("project",), config.logging.tracker != "none", "config.logging.tracker=none"),
    ("eval", ("method",), config.eval.method != "generate" or generates, "an encoder alone generates no text"),
    (
      "eval",
      ("early_stopping_metric",),
      config.eval.patience > 0,
      "config.eval.patience=0: no evaluation ends the run",
    ),
    ("eval", ("num_beams",), config.eval.method in ("", "generate") and generates, "no answer is generated"),
    ("eval", ("length_penalty",), config.eval.num_beams > 1, "config.eval.num_beams=1: there is no beam search"),
    (
      "init",
      ("use_model_config", "reinit", "rename", "resize", "tile", "transfer_vocab", "layers"),
      bool(config.init.checkpoint),
      "config.init.checkpoint is empty: parameters are initialized at random",
    ),
  ]
  if config.init.checkpoint and not config.init.parameters:
    why = "config.init.parameters=False: parameters are initialized at random"
    reads.append(("init", ("reinit", "rename", "resize", "tile", "transfer_vocab", "layers"), False, why))
  for section, keys, is_read, why in reads:
    for key in keys if not is_read else ():
      value = getattr(getattr(config, section), key)
      if value != getattr(getattr(plain, section), key):
        yield f"config.{section}.{key}={value} has no effect: {why}"
  by_depth = [rule for rule in param_groups.parse(tuple(config.optimizer.param_groups)) if "depth" in rule.settings]
  if config.optimizer.layer_decay < 1.0 and any(rule.pattern in (".", ".*") for rule in by_depth):
    yield (
      f"config.optimizer.layer_decay={config.optimizer.layer_decay} has no effect: a rule of "
      "config.optimizer.param_groups sets depth for every parameter"
    )
  decays = config.optimizer.weight_decay or any("decay=" in rule for rule in config.optimizer.param_groups)
  if config.optimizer.no_decay != plain.optimizer.no_decay and not decays and config.optimizer.name != "lamb":
    no_decay = ",".join(config.optimizer.no_decay)
    yield f"config.optimizer.no_decay={no_decay} has no effect: config.optimizer.weight_decay=0.0"


def _parts(config: Config) -> Iterator[tuple[tuple[str, ...], bool, str]]:
  """Yields keys of a part of the model, whether the model has the part, and the key that leaves it out."""
  model = config.model
  for key, value, keys in (
    ("attention", "longformer", ("most_global_tokens", "attention_dilation")),
    ("attention", "lsh", ("lsh_chunk", "lsh_rounds", "lsh_buckets", "lsh_every")),
    ("positions", "relative_xl", ("relative_clamp", "relative_segments", "share_relative_biases")),
  ):
    yield keys, getattr(model, key) == value, f"config.model.{key}={getattr(model, key)}"
  for key, keys in (
    ("recurrence", ("step_signal", "halting_threshold")),
    ("halting_threshold", ("ponder_coefficient",)),
    ("logits_transform", ("logits_norm",)),
    ("memory_length", ("memory_reuse",)),
  ):
    yield keys, bool(getattr(model, key)), f"config.model.{key}={getattr(model, key)!r}"
  yield ("pipeline_microbatches", "pipeline_rounds"), config.mesh.stage > 1, f"config.mesh.stage={config.mesh.stage}"


def _loss(config: Config) -> Iterator[str]:
  train, plain = config.train, _defaults().train
  if train.loss not in _WITHOUT_TOKENS:
    return
  for key in ("label_smoothing", "z_loss"):
    value = getattr(train, key)
    if value not in (0.0, getattr(plain, key)):
      yield f"config.train.{key}={value} has no effect: config.train.loss={train.loss} predicts no tokens"
