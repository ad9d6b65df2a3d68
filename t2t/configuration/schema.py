"""The declaration of every config key: type, default, range or choices, and help, in one frozen record per section."""

from collections.abc import Iterable, Mapping
import dataclasses
import inspect
import math
import re
from typing import Any, ClassVar, Protocol, TypeVar

from t2t import UserError, did_you_mean
from t2t.models.config import TransformerConfig
from t2t.runtime import lazy_table

T = TypeVar("T")
Texts = tuple[str, ...]
_EPOCH = ", or 0: once an epoch"  # 0 is replaced by the steps of an epoch before ranges are checked


def key(
  default: T,
  help: str,
  *,
  choices: Texts = (),
  least: float = -math.inf,
  most: float = math.inf,
  note: str = "",
  table: str = "",
) -> T:
  """Declares a key of a section.

  Args:
    default: a dict: the key is a mapping, empty by default, whose names the user chooses.
    help: shown by `t2t train --help` and in docs/config_keys.md.
    choices: all values that there are.
    least, most: the range of a number, which is finite.
    note: ends the error about a number out of its range.
    table: "module:attribute" of the values that there are, which begin the help.
  """
  metadata = {"help": help, "choices": choices, "least": least, "most": most, "note": note, "table": table}
  if isinstance(default, dict):
    return dataclasses.field(default_factory=type(default), metadata=metadata)
  return dataclasses.field(default=default, metadata=metadata)


class DataclassRecord(Protocol):
  """Any dataclass."""

  __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]


def check_ranges(
  section: str, record: DataclassRecord, *, only: Texts = (), notes: Mapping[str, str] | None = None
) -> None:
  """Checks choices and ranges of the keys of a section.

  Args:
    section: its name.
    record: its record.
    only: names of keys; (): all of the section.
    notes: value -> the end of the error about it.

  Raises:
    UserError: names the key, and what would be right.
  """
  for field in keys(type(record)):
    if only and field.name not in only:
      continue
    value, metadata = getattr(record, field.name), field.metadata
    where, (least, most) = f"config.{section}.{field.name}", (metadata["least"], metadata["most"])
    if metadata["choices"] and value not in metadata["choices"]:
      raise UserError(f"{where}={value!r}: give {', '.join(metadata['choices'])}{(notes or {}).get(value, '')}")
    if least > -math.inf and not (least <= value <= most and math.isfinite(value)):
      wanted = f"at least {least}" if most == math.inf else f"from {least} to {most}"
      raise UserError(f"{where}={value}: must be {wanted}{metadata['note']}")


def keys(record: type[DataclassRecord]) -> list[dataclasses.Field[object]]:
  """Returns the fields of a record that `key` declares, in order."""
  return [field for field in dataclasses.fields(record) if "help" in field.metadata]


@dataclasses.dataclass(frozen=True)
class SourceConfig:
  """A named source of config.data.sources; a value of "" or 0 is that of config.data."""

  files: str = ""  # as config.data.files; or
  mixture: str = ""  # as config.data.mixture
  eval_files: str = ""  # as config.data.eval_files
  field: str = ""  # as config.data.field
  translation: str = ""  # as config.data.translation
  both_directions: bool = False  # as config.data.both_directions
  language: str = ""  # as config.data.language; its held-out loss is measured
  objective: str = ""  # as config.data.objective
  noise_density: float = 0.0  # as config.data.noise_density
  mean_noise_span_length: float = 0.0  # as config.data.mean_noise_span_length
  rate: float = 0.0  # how often it is drawn, relative to the others; 0: by its size, if no other has a rate
  share: float = 0.0  # of all examples, whatever the others' rates and sizes are


@dataclasses.dataclass(frozen=True)
class SourceSpec:
  """A source of a run, whichever key of config.data names it; an element of `DataConfig.source_list`."""

  name: str = ""  # key in config.data.sources; "": config.data.files or config.data.mixture
  files: str = ""
  mixture: str = ""
  language: str = ""
  objective: str = ""  # of files
  rate: float = 0.0
  share: float = 0.0


# Keys of a named source of files that replace those of config.data.
_OF_NAMED = ("eval_files", "field", "translation", "both_directions", "objective")
_OF_NAMED += ("noise_density", "mean_noise_span_length")

# Keys of `DataConfig` that name what is read; one is set.
SOURCE_KEYS = ("files", "mixture", "sources")

# Keys of `DataConfig` that say how `files` become examples, and nothing of registered tasks.
OF_FILES = ("eval_files", "field", "annotations", "translation", "both_directions", "objective")
OF_FILES += ("max_bad_record_fraction",)
OF_FILES += ("noise_density", "mean_noise_span_length")


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Settings of the data: sources, and how their records become examples."""

  files: str = key("", "globs, comma-separated: .txt .jsonl .csv .tsv .tmx (.gz, .zst) .parquet .tfrecord; gs://")
  eval_files: str = key("", "held-out text; without it about 1 % of `files` is held out, by a hash of the text")
  field: str = key("text", "name of the text in JSON lines, CSV, Parquet, TFRecord; a path, meta.text; TMX: language")
  annotations: str = key("entities", "that of [start, end] of each phrase, in characters: for annotated_masked_lm")
  translation: str = key("translation", "of each text: a field, TMX's language, or beside it: .en.txt=.fr.txt")
  both_directions: bool = key(False, "a text and its translation are two examples: each is given, and the other asked")
  language: str = key("", "what `files` are in: a name, sw; of texts with translations two, en,sw")
  language_tags: str = key("", 'in front of texts to translate: "<2{target}>", "{source} to {target}:"; "": none')
  labels: str = key("", '`files` are a table: auto, number, text, or its classes "no,yes"; docs/finetune_table.md')
  columns: str = key("", 'of a table, which is what: "text=review,label=stars"; "": found by name and content')
  prefix: str = key("", 'of a table, in front of the inputs: "sst2 sentence:"; "": its column\'s name; none')
  max_bad_record_fraction: float = key(0.0, "fraction of bad records of `files` that each host may skip; 0: none")
  allow_changed_files: bool = key(False, "a run goes on though files that it reads were altered since it stopped")
  objective: str = key("span_corruption", "what `files` are made into")
  dictionary: str = key("", 'TSV of words and translations, by which words of `files` are replaced; "": none are')
  switching_rate: float = key(0.0, "with which probability, of words that the dictionary has")
  mixture: str = key("", 'a registered seqio task or mixture, instead of `files`; "a,b,c": by numbers of examples')
  task_modules: Texts = key((), 'modules or .py files that register it: ("t2t.tasks.c4", "my_tasks.py")')
  train_split: str = key("train", "of the mixture; of a benchmark a slice, too: train[:100]")
  eval_split: str = key("validation", "of the mixture")
  cache_dir: str = key("", "folder that `t2t cache` wrote: the mixture's tasks are read from it")
  benchmark_dirs: Mapping[str, str] = key(
    {}, "a benchmark's files as released (superglue=FOLDER); without: TensorFlow Datasets"
  )
  sources: Mapping[str, SourceConfig] = key(
    {}, "several, instead of files or a mixture: sources.NAME.files; see docs/sources.md"
  )
  mixing_unit: str = key("examples", "what sources without a rate are drawn by: examples or tokens, of each there are")
  alpha: float = key(1.0, "to the power of which; 0.3: small ones more often (XLM-R, mT5); 1 / T of T5's temperature")
  repeat_warning_epochs: float = key(0.0, "passes over a source or a task of a mixture at which a run warns; 0: never")
  vocabulary: str = key("", '"bytes", a file or folder of SentencePiece, WordPiece or BPE; empty: the task\'s')
  extra_ids: int = key(100, "sentinels on top of the vocabulary")
  special_tokens: bool = key(False, "[MASK], <extra_id_0>, ... spelled in records are control tokens, not text")
  inputs_length: int = key(512, "positions", least=1)
  targets_length: int = key(114, "positions; 512 inputs at the density and span below make 114 targets", least=1)
  noise_density: float = key(0.0, "share of the tokens that is masked; 0: as the objective was published (0.15)")
  mean_noise_span_length: float = key(0.0, "tokens; 0: as the objective was published (3)")
  pack: bool = key(False, "several short examples in one sequence; otherwise text is concatenated and split")
  num_streams: int = key(0, "parts of the data with a position of their own; 0: chosen at the first start, then kept")
  shuffle_buffer: int = key(256, "examples of `files` that each stream draws from")

  # Key of a config.json for transformers, which reads past it, with `table`.
  EXPORTED_TABLE: ClassVar[str] = "t2t_table"
  IN_MEMORY: ClassVar[str] = "examples:"  # how the name of rows that a Python program passed begins

  # A table's columns and classes, once it is read; no key.
  table: Mapping[str, object] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    # A config has a ConfigDict here; config.json and what compares two of them need a dict.
    object.__setattr__(self, "benchmark_dirs", dict(self.benchmark_dirs))
    object.__setattr__(self, "table", {key: tuple(x) if isinstance(x, list) else x for key, x in self.table.items()})
    if (self.columns or self.prefix) and not (self.labels or self.table):
      key = "columns" if self.columns else "prefix"
      raise UserError(
        f"config.data.{key}={getattr(self, key)}: is of a table, and config.data.labels is empty; give"
        " --config.data.labels=auto"
      )
    if not self.translation:
      raise UserError(
        "config.data.translation is empty: give the name of a field of JSON lines, or as .en.txt=.fr.txt how the names"
        " of files side by side end; the second column of a .tsv is found whatever it is"
      )
    for name, folder in self.benchmark_dirs.items():
      if not isinstance(folder, str):
        raise UserError(f"config.data.benchmark_dirs.{name}={folder!r}: must be the path of a folder")
    sources = {name: _named("data.sources", name, x, SourceConfig) for name, x in sorted(self.sources.items())}
    object.__setattr__(self, "sources", sources)

  def check_vocabulary(self) -> None:
    """Refuses text of the user's own without a vocabulary, which registered tasks have themselves.

    Raises:
      UserError: names the key, and what would be right.
    """
    files = {"config.data.files": self.files or bool(self.table)}
    files |= {f"config.data.sources.{name}.files": source.files for name, source in self.sources.items()}
    for key in files:
      if files[key] and not self.vocabulary:
        raise UserError(
          f'config.data.vocabulary is empty: with {key}, give "bytes", or the path of a SentencePiece model, a'
          " vocab.txt, a tokenizer.json or their folder (`t2t vocab train` makes one from your text)"
        )

  @classmethod
  def described(cls, files: str, *, key: str = "files") -> str:
    """Names files in messages: "config.data.files=train.tsv", or rows that a Python program passed."""
    return "the examples that a Python program passed" if cls.is_in_memory(files) else f"config.data.{key}={files}"

  @classmethod
  def is_in_memory(cls, files: str) -> bool:
    """Returns True if the name of files is that of rows that a Python program passed."""
    return files.startswith(cls.IN_MEMORY)

  def reading(self, **keys: object) -> "DataConfig":
    """Returns the settings with another source: files, eval_files, mixture or sources; others become empty."""
    return dataclasses.replace(self, **{"files": "", "eval_files": "", "mixture": "", "sources": {}, **keys})

  def parts(self) -> "dict[str, DataConfig]":
    """Returns the named sources, by name in order, each as if it were all that is read.

    Raises:
      UserError: one that is neither files nor a mixture, or both; or has a key that has no say.
    """
    sources: dict[str, DataConfig] = {}
    for key in ("files", "eval_files", "language"):
      if self.sources and getattr(self, key):
        raise UserError(
          f"config.data.{key}={getattr(self, key)}: with config.data.sources give config.data.sources.NAME.{key}"
        )
    for name, source in self.sources.items():
      where = f"config.data.sources.{name}"
      if bool(source.files) == bool(source.mixture):
        both = f"{where}.files={source.files!r} and {where}.mixture={source.mixture!r}"
        raise UserError(f"{both}: give one of them, files of text or the name of a registered task or mixture")
      options = {key: getattr(source, key) for key in _OF_NAMED if getattr(source, key)}
      if source.mixture and options:
        key = next(iter(options))
        raise UserError(
          f"{where}.{key}={options[key]}: is of files, and registered tasks say it themselves; leave it out"
        )
      if source.files:
        for key, split in (("train_split", "train"), ("eval_split", "validation")):
          if getattr(self, key) != split:
            raise UserError(f"config.data.{key}={getattr(self, key)}: {where} has files, of which it is {split!r}")
        if self.cache_dir:
          folder = f"config.data.cache_dir={self.cache_dir}"
          raise UserError(f"{folder}: holds tasks, and {where} has files; register a task")
        options["benchmark_dirs"] = {}  # of the registered tasks
      sources[name] = self.reading(
        files=source.files, mixture=source.mixture, **{"language": source.language, **options}
      )
    return sources

  @property
  def is_text(self) -> bool:
    """Returns True if one source is read, and config.data.objective makes its examples of text."""
    return bool(self.files)

  @property
  def has_text(self) -> bool:
    """Returns True if config.data.objective makes the examples of a source at least."""
    return any(source.files for source in self.source_list)

  @property
  def is_named(self) -> bool:
    """Returns True if a source is set; a user's own batches are none."""
    return bool(self.source_list)

  @property
  def source_list(self) -> tuple[SourceSpec, ...]:
    """Lists every source that is set: config.data.sources in order, then config.data.files, then config.data.mixture.

    A run reads either named sources or one source without a name; `pipeline.load_task` refuses other lists.
    """
    specs = [
      SourceSpec(
        name=name,
        files=source.files,
        mixture=source.mixture,
        language=source.language,
        objective=source.objective or self.objective,
        rate=source.rate,
        share=source.share,
      )
      for name, source in self.sources.items()
    ]
    alone = {"language": self.language, "objective": self.objective}
    specs += [SourceSpec(files=self.files, **alone)] if self.files else []
    specs += [SourceSpec(mixture=self.mixture, **alone)] if self.mixture else []
    return tuple(specs)

  @property
  def has_tasks(self) -> bool:
    """Returns True if a seqio task or mixture has the examples: named sources, or a registered task or mixture."""
    return any(source.name or source.mixture for source in self.source_list)

  @property
  def reads_only_tasks(self) -> bool:
    """Returns True if `has_tasks`, and config.data.files, which has no task of its own, does not stand beside."""
    return bool(self.sources) or self.has_tasks and not self.files

  def source_key(self, name: str) -> str:
    """Returns the config key of a named source, "config.data.sources.NAME"; "" if no source has the name."""
    return f"config.data.sources.{name}" if name in self.sources else ""

  @property
  def named(self) -> str:
    """Names the key that sets the source, for messages: "config.data.mixture=glue"."""
    if self.sources:
      return f"config.data.sources ({', '.join(self.sources)})"
    if self.table:
      key = "files" if self.table["files"] else "eval_files"
      return self.described(str(self.table[key]), key=key)
    return f"config.data.files={self.files}" if self.files else f"config.data.mixture={self.mixture}"


def _named(mapping: str, name: str, values: Any, record: type) -> Any:
  """Makes the record of one name of a mapping, "data.sources", from what a config has."""
  if not re.fullmatch(r"\w+", name):  # a task is called so, and a metric, and a key
    raise UserError(f"config.{mapping}: {name!r}: a source's name is of letters, digits and _")
  if isinstance(values, record):
    return values
  known = [field.name for field in dataclasses.fields(record)]
  if not isinstance(values, Iterable):  # a ConfigDict is no Mapping
    raise UserError(f"config.{mapping}.{name}={values!r}: must be a mapping, of {', '.join(known)}")
  for key in values:
    if key not in known:
      near = did_you_mean(key, known)
      raise UserError(f"config.{mapping}.{name}.{key}: no such key{near}; there are {', '.join(known)}")
  return record(**values)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """Settings of training and of the machines that it runs on."""

  steps: int = key(1_000, "updates", least=1)
  epochs: float = key(0.0, "passes over the examples of the mixture's tasks, instead of steps; 0: steps count")
  batch_size: int = key(128, "sequences, over all devices", least=1)
  microbatches: int = key(1, "the batch is cut in as many parts, one after another: less memory, same result", least=1)
  seed: int = key(0, "of parameters, dropout and the order of data")
  loss: str = key("", '"": heads where they answer, else cross_entropy', table="t2t.losses:LOSSES")
  z_loss: float = key(1e-4, "times log(Z)**2, added to the loss: keeps the logits near zero")
  label_smoothing: float = key(0.0, "share of the target distribution spread over the vocabulary; not held out")
  logits_chunk_tokens: int = key(256, "target positions per batch shard whose logits exist at one time", least=1)
  freeze: Texts = key((), "parameters whose path matches one of these patterns are not trained")
  num_processes: int = key(0, "that must have come; 0: as many as there are")
  hang_timeout_factor: float = key(20.0, "a step this many times the usual: all hosts report where they are; 0: off")
  stall_seconds: int = key(1_800, "the start, or a step, that takes so long ends a run on several hosts; 0: never")
  compilation_cache: str = key("auto", 'folder of compiled programs; "": none; several hosts: one that all see')
  xla_flags: bool = key(True, "those of t2t/runtime/xla_flags.py, which let collectives overlap with computing")
  deterministic: bool = key(False, "GPUs: the same bits each time, if slower; CPUs and TPUs give them anyway")
  offload_optimizer: bool = key(False, "moments wait in the host's memory between updates")
  log_every: int = key(
    1, "steps between rows in metrics.jsonl and TensorBoard, each of one step; the last has one", least=1
  )


@dataclasses.dataclass(frozen=True)
class NanPolicyConfig:
  """Settings for losses and gradients that are NaN, infinite or spikes."""

  on_nonfinite: str = key(
    "stop",
    "a loss or gradient norm: stop; skip: no update; back: to the last checkpoint",
    choices=("stop", "skip", "rollback"),
  )
  max_consecutive_skips: int = key(10, "skip: so many updates may be left out one after another", least=1)
  max_skipped_fraction: float = key(
    0.05, "skip: fraction of train.steps that may be skipped; above 0, one may", least=0
  )
  max_rollbacks: int = key(3, "rollback: so many times a run may go back", least=0)
  spike_deviations: float = key(
    0.0, "a loss so many standard deviations above the mean is a spike; 0: none is", least=0
  )
  spike_window: int = key(128, "steps before it that mean and deviation are of", least=2)
  on_spike: str = key("warn", "at a spike: warn, stop, or rollback", choices=("warn", "stop", "rollback"))


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """Settings of the optimizer; learning rates are per step."""

  name: str = key("adafactor", "adafactor, adamw, lamb, lion, muon, sgd, stable_adamw")
  learning_rate: float = key(0.01, "at the top of the schedule", least=0.0)
  schedule: str = key("t5_inverse_sqrt", "or inverse_sqrt,cosine,linear,constant,wsd,slanted_triangle,one_cycle")
  warmup_steps: int = key(10_000, "updates before the learning rate falls", least=0)
  warmup_ratio: float = key(0.0, "the same as a share of all steps; 0: warmup_steps count", least=0.0, most=1.0)
  layer_decay: float = key(
    1.0, "times the rate of each layer below: 0.9 for fine-tuning (Clark et al. 2020)", least=0.0, most=1.0
  )
  end_lr_fraction: float = key(
    0.0, "cosine, linear, wsd, one_cycle: last learning rate as a share of the top", least=0.0, most=1.0
  )
  decay_fraction: float = key(0.2, "wsd: share of all steps, the last, in which the rate falls", least=0.0, most=1.0)
  decay_shape: str = key("linear", "wsd: how it falls; or 1-sqrt")
  warmup_fraction: float = key(
    0.1, "slanted_triangle, one_cycle: share of all steps, the first, in which the rate rises", least=0.0, most=1.0
  )
  init_lr_divisor: float = key(32.0, "slanted_triangle, one_cycle: top of the rate over the first", least=1.0)
  clip_norm: float = key(0.0, "global norm of the gradient; 0 does not clip", least=0.0)
  scale_by_parameter: bool = key(True, "updates relative to each parameter's root mean square")
  weight_decay: float = key(0.0, "times the learning rate", least=0.0)
  no_decay: Texts = key(("norm", "bias"), "parameters whose path matches are not decayed")
  adafactor_decay_rate: float = key(0.8, "second moments are averaged with 1 - step**-rate", least=0.0)
  adafactor_clip: float = key(1.0, "root mean square of an update, before scaling", least=0.0)
  b1: float = key(0.9, "adamw, stable_adamw, lamb, lion, and what muon leaves to Adam", least=0.0, most=1.0)
  b2: float = key(0.999, "as b1; lion wants 0.99", least=0.0, most=1.0)
  epsilon: float = key(1e-8, "as b1, but for lion", least=0.0)
  muon_momentum: float = key(0.95, "of the matrices that muon makes orthogonal", least=0.0, most=1.0)
  muon_iterations: int = key(5, "of Newton and Schulz, by which it does; small models need fewer", least=1, most=20)
  param_groups: Texts = key((), '"PATTERN: SETTING ...": frozen, rate=0.1, depth=0.9; see docs/parameters.md')
  fisher: str = key("", "folder that `t2t fisher` wrote: anchors hold each parameter by what it says (EWC)")
  average: str = key("", "a second copy of what is trained, averaged over the steps: ema; see eval.average")
  average_decay: float = key(0.9999, "ema: share of the old average that a step keeps", least=0.0, most=1.0)
  log_distance: bool = key(False, "how far each layer is from where it began; keeps the values it began with")


@dataclasses.dataclass(frozen=True)
class EvalConfig:
  """Settings of evaluation, during training and by `t2t eval`."""

  every: int = key(1_000, "steps; the last step is always evaluated; 0: once an epoch", least=1, note=_EPOCH)
  batches: int = key(20, "held-out batches at most; always the same ones", least=1)
  batch_size: int = key(0, "sequences; 0: as train.batch_size")
  num_logged_samples: int = key(3, "of what the model makes of held-out text, at evaluations; the last are printed")
  patience: int = key(
    0,
    "evaluations without a better one after which the run ends early; 0: it has all its steps",
    least=0,
    note="; 0: the run has all its steps",
  )
  early_stopping_metric: str = key("loss", 'what must improve: the held-out loss, or a task\'s, "glue_rte/accuracy"')
  average: bool = key(False, "optimizer.average is evaluated, and read from the checkpoint, not the last parameters")
  # Of tasks with metrics:
  tasks: Texts = key((), 'those of the mixture that are evaluated, ("cb", "rte"); empty: all')
  method: str = key("", 'write: token by token; rank: the likeliest of the task\'s options; head; "": as was trained')
  num_beams: int = key(1, "of beam search; 1: the likeliest token at each position")
  length_penalty: float = key(0.6, "of beam search: sums are divided by ((5 + length) / 6) ** penalty")
  num_shots: int = key(0, "solved training examples in front of each input")
  max_examples: int = key(0, "of each task; 0: all")


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """Settings of checkpoints: when they are saved, and how many are kept."""

  save_interval_steps: int = key(1_000, "steps; the last step is always saved; 0: once an epoch", least=1, note=_EPOCH)
  max_to_keep: int = key(3, "the last so many, at least two; the best by held-out loss is kept besides", least=1)
  retry_seconds: float = key(300.0, "a save of one process that fails is tried again for so long")


@dataclasses.dataclass(frozen=True)
class LoggingConfig:
  """Settings of what a run logs besides metrics.jsonl."""

  tracker: str = key("none", "wandb, trackio, mlflow: numbers go there as well; see docs/trackers.md")
  project: str = key("t2t", "what the tracker files the run under")
  texts: bool = key(True, "eval.num_logged_samples at each evaluation: samples.jsonl, TensorBoard; else at the end")
  histograms: int = key(0, "TensorBoard: steps between those of parameters and their updates; 0: none")


@dataclasses.dataclass(frozen=True)
class InitSource:
  """A checkpoint whose parameters a part of the model begins with; an element of `InitConfig.source_list`."""

  checkpoint: str = ""  # as config.init.checkpoint
  rename: Texts = ()  # as config.init.rename, "encoder", ".=teacher": only what these name is taken
  reinit: Texts = ()  # as config.init.reinit
  resize: Texts = ()  # as config.init.resize
  frozen: bool = False  # is not trained; checkpoints name the source in place of its parameters

  @property
  def subtrees(self) -> Texts:
    """Lists the paths in the model under which parameters are taken; (): all paths."""
    names = (part.split("=")[-1].strip("/").removeprefix(".") for part in self.rename)
    return tuple(names) if self.rename else ()

  @property
  def patterns(self) -> Texts:
    """Lists patterns of the paths of `subtrees`."""
    return tuple(f"^{re.escape(path)}(/|$)" for path in self.subtrees)


@dataclasses.dataclass(frozen=True)
class InitConfig:
  """Settings of the parameters that a run begins with."""

  checkpoint: str = key("", "a checkpoint (t2t's, Hugging Face's or T5X's) whose parameters training starts from")
  use_model_config: bool = key(False, "its model and vocabulary replace config.model and config.data.vocabulary")
  parameters: bool = key(True, "False: start from fresh parameters after all, to compare")
  # Of a model that is not the checkpoint's, patterns over its parameters' paths; all others are the checkpoint's:
  reinit: Texts = key((), 'begin with fresh values: "head", "cross_attention,decoder/layers/mlp"')
  rename: Texts = key((), 'are called so there: "embed,encoder,encoder=decoder"; parts not named stay behind; ".": all')
  resize: Texts = key((), 'may have more or fewer rows than there, of which the first are taken: "embed/table,head"')
  transfer_vocab: bool = key(False, "match rows by piece, not by id; a new row is the mean of its old pieces")
  others: Mapping[str, InitSource] = key(
    {}, "further checkpoints, each of a part of the model: others.NAME.checkpoint, .rename, .frozen; docs/recipe.md"
  )

  def __post_init__(self) -> None:
    sources = {name: _named("init.others", name, x, InitSource) for name, x in sorted(self.others.items())}
    object.__setattr__(self, "others", sources)
    taken: dict[str, str] = {}
    for name, source in sources.items():
      where = f"config.init.others.{name}"
      if not source.checkpoint:
        raise UserError(f"{where}.checkpoint is empty; give the checkpoint whose parameters are taken")
      if not source.subtrees or not all(source.subtrees):
        raise UserError(
          f"{where}.rename={','.join(source.rename)}: must name the parts of the model that are taken from"
          f" {source.checkpoint}, for example encoder or .=teacher"
        )
      for path in source.subtrees:
        for taken_path, owner in taken.items():
          if f"{path}/".startswith(f"{taken_path}/") or f"{taken_path}/".startswith(f"{path}/"):
            raise UserError(f"{where}.rename: {path} is taken from config.init.others.{owner}, too; name it once")
      taken |= dict.fromkeys(source.subtrees, name)

  @property
  def source_list(self) -> dict[str, InitSource]:
    """Lists every checkpoint that the run begins with, by name in config.init.others; "": config.init.checkpoint."""
    if not self.parameters:
      return {}
    first = {"": InitSource(self.checkpoint, self.rename, self.reinit, self.resize)} if self.checkpoint else {}
    return first | dict(self.others)

  @property
  def other_patterns(self) -> Texts:
    """Lists patterns of the paths of parameters that begin with a source of `others`."""
    return tuple(pattern for source in self.others.values() for pattern in source.patterns)

  @property
  def frozen_patterns(self) -> Texts:
    """Lists patterns of the paths of parameters that stay as a source has them."""
    return tuple(pattern for source in self.others.values() if source.frozen for pattern in source.patterns)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices along each axis; one may be -1: all that are left."""

  dcn_data: int = key(1, "as data, from slice to slice over the data centre's network: as many as there are slices")
  data: int = key(1, "the batch is split, parameters are copied")
  fsdp: int = key(0, "batch and parameters are split; 0: as far as is sound, and the rest is data")
  sequence: int = key(1, "each sequence is split, for long ones; parameters as well")
  tensor: int = key(1, "heads, feed-forward and vocabulary are split")
  physical_layout: Texts = key((), 'chips of a slice that an axis covers, neighbours first: "tensor:2x4,fsdp:4x2"')

  @property
  def sizes(self) -> dict[str, int]:
    """Axis -> devices."""
    return {name: size for name, size in dataclasses.asdict(self).items() if name != "physical_layout"}


@dataclasses.dataclass(frozen=True)
class StageConfig:
  """A part of a run: how long it is, and what it does otherwise than the sections of the config say.

  name: which metrics and messages know it by.
  steps: how many; 0: as `fraction` says.
  fraction: of config.train.steps; of one stage both may be 0, and it has what the others leave.
  changes: key -> value, {"data.inputs_length": 128}.
  """

  name: str
  steps: int = 0
  fraction: float = 0.0
  changes: Mapping[str, object] = dataclasses.field(default_factory=dict)

  def to_dict(self) -> dict[str, object]:
    """Returns the stage as a config has it: {"name": "short", "fraction": 0.9, "data.inputs_length": 128}."""
    length = {key: getattr(self, key) for key in ("steps", "fraction") if getattr(self, key)}
    return {"name": self.name, **length, **self.changes}


def read_stages(stages: Iterable[StageConfig | Mapping[str, object]]) -> tuple[StageConfig, ...]:
  """Makes the records of `config.stages`.

  Raises:
    UserError: a stage is no mapping, or says its name or its length as what it is not.
  """
  return tuple(_read_stage(number, values) for number, values in enumerate(stages, start=1))


def _read_stage(number: int, values: StageConfig | Mapping[str, Any]) -> StageConfig:
  if isinstance(values, StageConfig):
    return values
  where = f"config.stages, stage {number}"
  if not isinstance(values, Mapping):
    python = ", written as Python has it (True, not true)" if isinstance(values, str) else ""
    example = '{"fraction": 0.9, "data.inputs_length": 128}'
    raise UserError(f"{where}: {values!r} is no mapping; a stage is {example}{python}")
  values = dict(values)
  if strange := next((key for key in values if not isinstance(key, str)), None):
    raise UserError(f'{where}: {strange!r}: a key is a text, as "data.inputs_length" is')
  stage_keys = ("name", "steps", "fraction")
  for key in (
    key for key in values if key not in stage_keys
  ):  # one of these that is misspelt; stages.py knows all others
    if "." not in key and (near := did_you_mean(key, stage_keys)):
      raise UserError(f"{where}: {key}: no such key{near}")
  least = 1 if "steps" in values else 0
  name, steps, fraction = (values.pop(key, default) for key, default in zip(stage_keys, (number, 0, 0.0), strict=True))
  if type(steps) is not int or steps < least:
    raise UserError(f"{where}: steps={steps!r}: must be a number of steps, at least 1")
  if type(fraction) not in (int, float) or not 0.0 <= fraction <= 1.0:
    raise UserError(f"{where}: fraction={fraction!r}: must be from 0 to 1, of config.train.steps")
  if steps and fraction:
    raise UserError(f"{where}: has steps={steps} and fraction={fraction}; leave one of them out")
  return StageConfig(str(name or number), steps, fraction, changes=values)


# Packages that register sections which a config has only where they are used: "module:table", name -> "module:class".
_ADAPTERS = "t2t.models.adapters:SECTIONS"
# Name of such a section -> its record; where one of its keys is typed, the others have their defaults.
OPTIONAL: lazy_table.LazyTable[type[DataclassRecord]] = lazy_table.JoinedTable("t2t.losses:SECTIONS", _ADAPTERS)


def is_adapter(section: str) -> bool:
  """Returns True if a section of OPTIONAL adapts a model, and is used wherever a config has it."""
  return section in lazy_table.load(_ADAPTERS)


@dataclasses.dataclass(frozen=True)
class Config:
  """A run, section by section; `sections` has those of OPTIONAL that it has, also read as `config.lora`."""

  model: TransformerConfig
  data: DataConfig = DataConfig()
  train: TrainConfig = TrainConfig()
  nan_policy: NanPolicyConfig = NanPolicyConfig()
  optimizer: OptimizerConfig = OptimizerConfig()
  eval: EvalConfig = EvalConfig()
  checkpoint: CheckpointConfig = CheckpointConfig()
  logging: LoggingConfig = LoggingConfig()
  init: InitConfig = InitConfig()
  stages: tuple[StageConfig, ...] = key(
    (), 'Parts of the run one after another, ({"fraction": 0.9, "data.inputs_length": 128}, {}): see docs/stages.md.'
  )
  mesh: MeshConfig = MeshConfig()
  sections: Mapping[str, DataclassRecord] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    object.__setattr__(self, "stages", read_stages(self.stages))
    if len(self.adapters) > 1:
      named = " and ".join(f"config.{name}" for name in self.adapters)
      raise UserError(f"{named}: a run adapts its model in one way; leave all of these sections but one out")

  def __getattr__(self, name: str) -> Any:
    if name.startswith("_") or name not in OPTIONAL:
      raise AttributeError(f"Config has no section {name!r}")
    return self.sections.get(name)

  @property
  def adapters(self) -> Mapping[str, DataclassRecord]:
    """Section -> record of what adapts the model; at most one."""
    return {name: record for name, record in self.sections.items() if is_adapter(name)}

  def with_(self, **sections: Mapping[str, object]) -> "Config":
    """The same run with some keys changed.

    In: train={"steps": 20}, mesh={"fsdp": 8}
    """
    changed = {name: dataclasses.replace(getattr(self, name), **keys) for name, keys in sections.items()}
    optional = {name: changed.pop(name) for name in sections if name in self.sections}
    return dataclasses.replace(self, **changed, sections={**self.sections, **optional})

  def with_section(self, name: str, record: object) -> "Config":
    """The same run with another record of a section; None: without the section, which is one of OPTIONAL."""
    if name not in OPTIONAL:
      return dataclasses.replace(self, **{name: record})
    sections = {**self.sections, name: record}
    return dataclasses.replace(self, sections={key: value for key, value in sections.items() if value is not None})

  def to_dict(self) -> dict[str, object]:
    """Section -> key -> value, as config.json has them: of sections that are used, and of mappings with a name.

    And "stages", a list of mappings, if there are any.
    """
    sections = dataclasses.asdict(self)
    sections |= sections.pop("sections")
    del sections["stages"]
    if self.stages:
      sections["stages"] = [stage.to_dict() for stage in self.stages]
    for section, name in (
      *(("data", name) for name in ("benchmark_dirs", "labels", "columns", "prefix", "table")),
      ("init", "others"),
    ):
      if not sections[section][name]:
        del sections[section][name]
    return sections


# Section -> its key that counts steps between two of its kind; 0: once an epoch.
INTERVALS = {"eval": "every", "checkpoint": "save_interval_steps"}

SECTIONS: dict[str, type[DataclassRecord]] = {
  x.name: x.type for x in dataclasses.fields(Config) if isinstance(x.type, type) and dataclasses.is_dataclass(x.type)
}


def defaults() -> dict[str, object]:
  """Section -> key -> default, of all sections that every config has but config.model, and `stages`."""
  sections: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Config)[1:-1]}
  default_of = lambda field: field.default if field.default is not dataclasses.MISSING else field.default_factory()
  return sections | {
    name: {x.name: default_of(x) for x in keys(SECTIONS[name])} for name in sections if name in SECTIONS
  }


def comments() -> dict[str, str]:
  """Key, "train.steps", -> its help; of config.model and the sections of OPTIONAL the comments of their fields."""
  help_texts = {}
  for section, record in (SECTIONS | dict(OPTIONAL)).items():
    declared = {field.name: _help(field) for field in keys(record)} or _comments_of(inspect.getsource(record))
    help_texts |= {f"{section}.{name}": comment for name, comment in declared.items()}
  return help_texts | {field.name: _help(field) for field in keys(Config)}


def _help(field: dataclasses.Field[Any]) -> str:
  """Returns the help of a declared key, with the names of its table."""
  table, text = field.metadata["table"], field.metadata["help"]
  return f"{', '.join(lazy_table.load(table))}; {text}" if table else text


# Of a field of a record: behind it, or in lines of their own above it, as Sphinx reads them.
_BEHIND, _ABOVE = r"^  (\w+): .*?  # (.*)$", r"((?:^  #: .*\n)+)  (\w+): "


def _comments_of(source: str) -> dict[str, str]:
  """Name of a record's field -> its comment."""
  source = source.partition("  def ")[0]
  above = re.findall(_ABOVE, source, re.MULTILINE)
  comments = {name: " ".join(line.strip().removeprefix("#: ") for line in lines.splitlines()) for lines, name in above}
  return comments | dict(re.findall(_BEHIND, source, re.MULTILINE))


# What `t2t train --help` shows; `--help all` shows the rest, too.
FIRST = {
  "data": ("files", "eval_files", "field", "objective", "mixture", "task_modules", "cache_dir", "vocabulary")
  + ("inputs_length", "targets_length", "pack"),
  "train": ("steps", "batch_size", "microbatches", "seed", "freeze"),
  "optimizer": ("name", "learning_rate", "schedule", "warmup_steps", "weight_decay", "clip_norm"),
  "eval": ("every", "batches", "tasks", "num_beams"),
  "checkpoint": ("save_interval_steps", "max_to_keep"),
  "logging": (),
  "nan_policy": (),
  "init": ("checkpoint", "use_model_config"),
  "mesh": ("dcn_data", "data", "fsdp", "sequence", "tensor"),
  "model": ("vocab_size", "embed_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers", "num_decoder_layers")
  + ("dropout_rate", "dtype", "remat"),
}
