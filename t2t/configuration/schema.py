"""Declares every config key: type, default, range or choices, and help, in one frozen record per section."""

from collections.abc import Iterable, Mapping
import dataclasses
import inspect
import math
import re
from typing import Any, ClassVar

from t2t import UserError, did_you_mean
from t2t.configuration.section_keys import DataclassRecord, Texts, key, keys, named_record
from t2t.models.config import TransformerConfig
from t2t.runtime import lazy_table

_EPOCH = ", or 0 for once per epoch"  # 0 becomes the steps of one epoch before ranges are checked


@dataclasses.dataclass(frozen=True)
class SourceConfig:
  """A named source of config.data.sources; a value of "" or 0 falls back to config.data."""

  files: str = ""  # as config.data.files; exclusive with `mixture`
  mixture: str = ""  # as config.data.mixture; exclusive with `files`
  eval_files: str = ""  # as config.data.eval_files
  field: str = ""  # as config.data.field
  translation: str = ""  # as config.data.translation
  both_directions: bool = False  # as config.data.both_directions
  language: str = ""  # as config.data.language; adds a held-out loss of the language
  objective: str = ""  # as config.data.objective
  noise_density: float = 0.0  # as config.data.noise_density
  mean_noise_span_length: float = 0.0  # as config.data.mean_noise_span_length
  rate: float = 0.0  # sampling rate relative to the other sources; 0: by size, if no source has a rate
  share: float = 0.0  # fixed fraction of all examples, independent of rates and sizes


@dataclasses.dataclass(frozen=True)
class SourceSpec:
  """A source of a run, independent of the key that names it; an element of `DataConfig.source_list`."""

  name: str = ""  # key in config.data.sources; "": config.data.files or config.data.mixture
  files: str = ""
  mixture: str = ""
  language: str = ""
  objective: str = ""  # only applies to files
  rate: float = 0.0
  share: float = 0.0


# Keys of a named source of files that override config.data.
_OF_NAMED = ("eval_files", "field", "translation", "both_directions", "objective")
_OF_NAMED += ("noise_density", "mean_noise_span_length")

# Mutually exclusive keys of `DataConfig` that name the source.
SOURCE_KEYS = ("files", "mixture", "sources")

# Keys of `DataConfig` that convert `files` to examples; registered tasks ignore them.
OF_FILES = ("eval_files", "field", "annotations", "translation", "both_directions", "objective")
OF_FILES += ("max_bad_record_fraction",)
OF_FILES += ("noise_density", "mean_noise_span_length", "mask_rate", "random_rate", "window", "subsampling")


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Settings of the data: sources, and the conversion of records to examples."""

  files: str = key(
    "", "globs of .txt .jsonl .csv .tsv .tmx (.gz, .zst) .parquet .tfrecord, ids: .npy .bin; gs:// hf:// s3:// az://"
  )
  eval_files: str = key("", "held-out text, as globs; empty: about 1 % of `files`, chosen by a hash of the text")
  field: str = key(
    "text", "field with the text in JSON lines, CSV, Parquet, TFRecord; nested: meta.text; TMX: a language"
  )
  tokens_dtype: str = key("", "type of the token ids in .bin `files`: uint16 (nanoGPT), uint32 or int32")
  tokens_end: int = key(-1, "id after each document in .npy or .bin `files`; -1: the vocabulary's EOS")
  annotations: str = key(
    "entities", "field with the [start, end] character spans of phrases; read by annotated_masked_lm"
  )
  translation: str = key(
    "translation", "source of the translation of each text: a field, a TMX language, or file endings .en.txt=.fr.txt"
  )
  both_directions: bool = key(
    False, "train each text pair in both directions: two examples per pair; False: text to translation"
  )
  language: str = key("", "language name of `files`, such as sw; two names for text with translations: en,sw")
  language_tags: str = key(
    "", 'tag before each text to translate: "<2{target}>", "{source} to {target}:"; empty: no tag'
  )
  labels: str = key(
    "", 'task type of a table in `files`: auto, number, text, or classes "no,yes"; docs/finetune_table.md'
  )
  columns: str = key("", 'roles of table columns: "text=review,label=stars"; empty: inferred from names and content')
  prefix: str = key("", 'prefix of table inputs: "sst2 sentence:"; none: no prefix; empty: the column name')
  max_bad_record_fraction: float = key(
    0.0, "fraction of bad records in `files` that each host may skip; 0: a bad record is an error"
  )
  allow_changed_files: bool = key(
    False, "resume a run although its input files have changed; False: changed files are an error"
  )
  objective: str = key("span_corruption", "objective that converts text of `files` to examples")
  dictionary: str = key("", "TSV of words and translations for code switching in `files`; empty: no words are replaced")
  switching_rate: float = key(0.0, "probability of replacing a word that `dictionary` contains, from 0 to 1")
  mixture: str = key("", 'registered seqio task or mixture, instead of `files`; "a,b,c": mixed by numbers of examples')
  task_modules: Texts = key(
    (), 'modules or .py files that register tasks of `mixture`: ("t2t.tasks.c4", "my_tasks.py")'
  )
  train_split: str = key("train", "training split of the mixture; a benchmark also accepts a slice: train[:100]")
  eval_split: str = key("validation", "evaluation split of the mixture")
  max_train_examples: int = key(-1, "training examples of each task, balanced over classes; -1: all")
  subset_seed: int = key(0, "seed that draws the examples of max_train_examples", least=0)
  train_labels: str = key(
    "", "JSON lines of split, index and label or logits: the training records and their labels; docs/prompts.md"
  )
  templates: str = key(
    "",
    "TOML file of templates for the mixture's tasks, or gpt3_superglue or pet_superglue (docs/prompts.md)",
  )
  template_names: Texts = key((), 'templates of the file to use, ("p0", "p1"); empty: all of them')
  template_blank: str = key(
    "auto",
    "blank at the end for an encoder-decoder: auto: the text to predict; sentinel: a sentinel, as in pre-training",
    choices=("auto", "sentinel"),
  )
  cache_dir: str = key("", "directory written by `t2t cache`, with examples of the mixture's tasks; empty: no cache")
  benchmark_dirs: Mapping[str, str] = key(
    {}, "directory of a benchmark's released files (superglue=DIR); empty: TensorFlow Datasets"
  )
  sources: Mapping[str, SourceConfig] = key(
    {}, "several named sources, instead of `files` or `mixture`: sources.NAME.files; see docs/sources.md"
  )
  mixing_unit: str = key("examples", "unit of source sizes, for sources without a rate: examples or tokens")
  alpha: float = key(
    1.0, "exponent of source sizes in sampling; 0.3 favours small sources (XLM-R, mT5); 1 / T of T5's temperature"
  )
  repeat_warning_epochs: float = key(
    0.0, "epochs of a source or task after which the run warns once about repetition; 0: no warning"
  )
  vocabulary: str = key(
    "", '"bytes", docs-SIZE, or a file or folder of `t2t vocab`, SentencePiece, WordPiece or BPE; empty: the task\'s'
  )
  extra_ids: int = key(100, "sentinel tokens added after the vocabulary")
  special_tokens: bool = key(
    False, "parse control tokens such as [MASK] and <extra_id_0> in records; False: plain text"
  )
  inputs_length: int = key(512, "input positions per example", least=1)
  targets_length: int = key(
    114, "target positions; 512 inputs give 114 targets at the default density and span length", least=1
  )
  noise_density: float = key(0.0, "fraction of tokens to mask, from 0 to 1; 0: the objective's published value (0.15)")
  mean_noise_span_length: float = key(0.0, "mean span length in tokens; 0: the objective's published value (3)")
  mask_rate: float = key(-1.0, "masked LM: fraction of predicted tokens that become masks; -1: as published (0.8)")
  random_rate: float = key(-1.0, "masked LM: fraction that become random tokens; -1: as published (0.1)")
  window: int = key(-1, "word vectors: largest distance of a context word; -1: as published (5; GloVe 10)")
  subsampling: float = key(-1.0, "word vectors: frequency from which words are dropped; 0: none; -1: as published")
  pack: bool = key(False, "pack several short examples into one row; False: text is concatenated and split")
  continuous_rows: bool = key(
    False, "row i of a batch continues row i of the batch before, for models with a memory; False: shuffled rows"
  )
  num_streams: int = key(
    0, "number of data streams, each with a saved position; 0: chosen at the first start, then fixed"
  )
  hub_revisions: Texts = key(
    (), "commits of revisions on the Hugging Face hub, ORG/NAME@main=COMMIT; chosen at the first start, then fixed"
  )
  shuffle_buffer: int = key(256, "shuffle buffer of each stream of `files`, in examples")

  # Key of `table` in an exported config.json; transformers ignores it.
  EXPORTED_TABLE: ClassVar[str] = "t2t_table"
  IN_MEMORY: ClassVar[str] = "examples:"  # prefix of the name of rows from a Python program

  # Columns and classes of a table after it is read; not a config key.
  table: Mapping[str, object] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    # A config has a ConfigDict here; config.json and comparisons need a dict.
    object.__setattr__(self, "benchmark_dirs", dict(self.benchmark_dirs))
    object.__setattr__(self, "table", {key: tuple(x) if isinstance(x, list) else x for key, x in self.table.items()})
    if (self.columns or self.prefix) and not (self.labels or self.table):
      key = "columns" if self.columns else "prefix"
      raise UserError(
        f"config.data.{key}={getattr(self, key)} applies only to tables, but config.data.labels is empty. Set "
        "config.data.labels, for example --config.data.labels=auto."
      )
    if self.max_train_examples != -1 and self.max_train_examples < 1:
      raise UserError(
        f"config.data.max_train_examples={self.max_train_examples} must be at least 1, or -1 for all examples"
      )
    if not 0 <= self.subset_seed < 2**31:
      raise UserError(f"config.data.subset_seed={self.subset_seed} must be from 0 to {2**31 - 1}")
    if self.max_train_examples != -1 and self.cache_dir:
      raise UserError(
        f"config.data.max_train_examples={self.max_train_examples} chooses among records, but the tasks of "
        f"config.data.cache_dir={self.cache_dir} are read from a cache of tokens. Leave one of the keys out."
      )
    if not self.translation:
      raise UserError(
        "config.data.translation is empty. Give a field of JSON lines, or the endings of parallel files, for example "
        ".en.txt=.fr.txt. For .tsv files, leave out config.data.translation."
      )
    for name, folder in self.benchmark_dirs.items():
      if not isinstance(folder, str):
        raise UserError(f"config.data.benchmark_dirs.{name}={folder!r} must be the path of a folder")
    sources = {name: named_record("data.sources", name, x, SourceConfig) for name, x in sorted(self.sources.items())}
    object.__setattr__(self, "sources", sources)

  def check_vocabulary(self) -> None:
    """Refuses files without a vocabulary; registered tasks define their vocabulary.

    Raises:
      UserError: names the key and the accepted values.
    """
    files = {"config.data.files": self.files or bool(self.table)}
    files |= {f"config.data.sources.{name}.files": source.files for name, source in self.sources.items()}
    for needing in files:
      if files[needing] and not self.vocabulary:
        raise UserError(
          f'config.data.vocabulary is empty, but {needing} needs a vocabulary. Give "bytes", or the path of a '
          "SentencePiece model, a vocab.txt, a tokenizer.json or the folder of such a file. `t2t vocab train` trains a "
          "vocabulary on your text."
        )

  @classmethod
  def described(cls, files: str, *, key: str = "files") -> str:
    """Describes files for messages: "config.data.files=train.tsv", or rows from a Python program."""
    return "the examples that a Python program passed" if cls.is_in_memory(files) else f"config.data.{key}={files}"

  @classmethod
  def is_in_memory(cls, files: str) -> bool:
    """Returns True if the name denotes rows from a Python program."""
    return files.startswith(cls.IN_MEMORY)

  def reading(self, **keys: object) -> "DataConfig":
    """Returns the settings with another source: files, eval_files, mixture or sources; the others become empty."""
    return dataclasses.replace(self, **{"files": "", "eval_files": "", "mixture": "", "sources": {}, **keys})

  def parts(self) -> "dict[str, DataConfig]":
    """Returns the settings of each named source, in order of names, as if it were the only source.

    Raises:
      UserError: a source has neither files nor a mixture, or both, or a key that has no effect.
    """
    sources: dict[str, DataConfig] = {}
    for name in ("files", "eval_files", "language"):
      if self.sources and getattr(self, name):
        raise UserError(
          f"config.data.{name}={getattr(self, name)} has no effect beside config.data.sources. Give "
          f"config.data.sources.NAME.{name} instead."
        )
    for name, source in self.sources.items():
      where = f"config.data.sources.{name}"
      if bool(source.files) == bool(source.mixture):
        both = f"{where}.files={source.files!r} and {where}.mixture={source.mixture!r}"
        raise UserError(
          f"{both}: exactly one of these keys must be set. Give text files, or the name of a registered task or "
          "mixture."
        )
      options = {key: getattr(source, key) for key in _OF_NAMED if getattr(source, key)}
      if source.mixture and options:
        key = next(iter(options))
        raise UserError(
          f"{where}.{key}={options[key]} applies only to files, but registered tasks determine this key. Leave out "
          f"{where}.{key}."
        )
      if source.files:
        for key, split in (("train_split", "train"), ("eval_split", "validation")):
          if getattr(self, key) != split:
            raise UserError(
              f"config.data.{key}={getattr(self, key)}: {where} reads files, and the {key} of files is always "
              f"{split!r}; leave out config.data.{key}"
            )
        if self.cache_dir:
          folder = f"config.data.cache_dir={self.cache_dir}"
          raise UserError(
            f"{folder} contains cached tasks, but {where} reads files. Register a task for these files, or leave out "
            "config.data.cache_dir."
          )
        options["benchmark_dirs"] = {}  # only for registered tasks
      sources[name] = self.reading(
        files=source.files, mixture=source.mixture, **{"language": source.language, **options}
      )
    return sources

  @property
  def is_text(self) -> bool:
    """Returns True if the run reads one source of files, converted by config.data.objective."""
    return bool(self.files)

  @property
  def has_tokens(self) -> bool:
    """Returns True if config.data.files names files of token ids."""
    return re.search(r"\.(npy|bin)\s*(,|$)", self.files, re.IGNORECASE) is not None

  @property
  def has_text(self) -> bool:
    """Returns True if config.data.objective converts the files of at least one source."""
    return any(source.files for source in self.source_list)

  @property
  def is_named(self) -> bool:
    """Returns True if a source is set; batches from a Python program need none."""
    return bool(self.source_list)

  @property
  def mixed_by(self) -> str:
    """Names the key that mixes several sources or tasks, "mixture"; "" for one source."""
    return "sources" if len(self.source_list) > 1 else "mixture" if "," in self.mixture else ""

  @property
  def source_list(self) -> tuple[SourceSpec, ...]:
    """Lists every source that is set: config.data.sources in order, then config.data.files, then config.data.mixture.

    A run reads either named sources or one unnamed source; `pipeline.load_task` refuses other lists.
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
    """Returns True if a seqio task or mixture provides examples: named sources, or a registered task or mixture."""
    return any(source.name or source.mixture for source in self.source_list)

  @property
  def reads_only_tasks(self) -> bool:
    """Returns True if `has_tasks` and config.data.files, which has no registered task, is not read."""
    return bool(self.sources) or self.has_tasks and not self.files

  def source_key(self, name: str) -> str:
    """Returns the config key of a named source, "config.data.sources.NAME"; "" for an unknown name."""
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


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """Settings of training and its machines."""

  steps: int = key(1_000, "number of updates", least=1)
  epochs: float = key(0.0, "passes over the examples of the mixture's tasks, instead of steps; 0: use steps")
  batch_size: int = key(128, "examples per update, over all devices", least=1)
  microbatches: int = key(
    1, "sequential parts of each batch: saves memory, same result; must divide batch_size", least=1
  )
  seed: int = key(0, "random seed of parameters, dropout and data order")
  loss: str = key(
    "", "empty: heads if the examples have labels of heads, else cross_entropy", table="t2t.losses:LOSSES"
  )
  head_reads: str = key(
    "",
    "state that new heads of tasks read: first, last, mean, or concat of last, maximum and mean (ULMFiT); empty: by "
    "architecture",
    choices=("", "first", "last", "mean", "concat"),
  )
  term_weights: Mapping[str, float] = key({}, "factor of a term of the loss, by name: term_weights.lm=0.5; else 1")
  z_loss: float = key(1e-4, "coefficient of log(Z)**2 in the loss; keeps logits near zero; 0: off")
  label_smoothing: float = key(0.0, "fraction of the target distribution spread over the vocabulary; training only")
  logits_chunk_tokens: int = key(256, "target positions per batch shard with logits in memory at one time", least=1)
  freeze: Texts = key((), "patterns of parameter paths that are not trained; empty: all are trained")
  num_processes: int = key(0, "number of processes that must join; 0: no check")
  hang_timeout_factor: float = key(
    20.0, "step duration, in multiples of the usual, at which all hosts report their state; 0: off"
  )
  stall_seconds: int = key(1_800, "seconds without progress after which a run on several hosts exits; 0: never")
  compilation_cache: str = key(
    "auto", "directory of compiled programs; auto: a default; empty: off; several hosts: a shared one"
  )
  xla_flags: bool = key(True, "set the XLA flags of t2t/runtime/xla_flags.py, which overlap collectives with compute")
  deterministic: bool = key(
    False, "bit-identical results on GPUs, at lower speed; CPUs and TPUs are always deterministic"
  )
  offload_optimizer: bool = key(False, "keep optimizer moments in host memory between updates")
  log_every: int = key(
    1, "steps between rows in metrics.jsonl and TensorBoard; the last step is always logged", least=1
  )

  def __post_init__(self) -> None:
    # An entry of the command line is a text.
    weights = {name: _factor(f"config.train.term_weights.{name}", x) for name, x in sorted(self.term_weights.items())}
    object.__setattr__(self, "term_weights", weights)


def _factor(where: str, value: object) -> float:
  """Returns a factor of at least 0, typed or as a text."""
  try:
    factor = float(str(value))
  except ValueError:
    factor = math.nan
  if not 0.0 <= factor < math.inf:
    raise UserError(f"{where}={value} must be a number of at least 0")
  return factor


@dataclasses.dataclass(frozen=True)
class NanPolicyConfig:
  """Settings for losses and gradients that are NaN, infinite or spikes."""

  on_nonfinite: str = key(
    "stop",
    "response to a NaN or infinite loss or gradient norm: stop; skip the update; rollback to a checkpoint",
    choices=("stop", "skip", "rollback"),
  )
  max_consecutive_skips: int = key(10, "skip: maximum number of consecutive skipped updates", least=1)
  max_skipped_fraction: float = key(
    0.05, "skip: maximum fraction of train.steps; above 0, one update is always allowed; 0: none", least=0
  )
  max_rollbacks: int = key(3, "rollback: maximum number of rollbacks of a run", least=0)
  spike_deviations: float = key(
    0.0, "number of standard deviations above the mean at which a loss is a spike; 0: off", least=0
  )
  spike_window: int = key(128, "number of previous steps for mean and deviation of the loss", least=2)
  on_spike: str = key("warn", "response to a spike: warn, stop, or rollback", choices=("warn", "stop", "rollback"))


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """Settings of the optimizer; learning rates are per step."""

  name: str = key(
    "adafactor", "optimizer: adafactor, adagrad, adamw, lamb, lion, muon, schedule_free_adamw, sgd, stable_adamw"
  )
  learning_rate: float = key(0.01, "peak of the learning-rate schedule", least=0.0)
  schedule: str = key(
    "t5_inverse_sqrt",
    "learning-rate schedule; or inverse_sqrt, cosine, linear, constant, wsd, slanted_triangle, one_cycle",
  )
  warmup_steps: int = key(10_000, "updates before the learning rate decays", least=0)
  warmup_ratio: float = key(
    0.0, "warmup as a fraction of all steps, from 0 to 1; 0: use warmup_steps", least=0.0, most=1.0
  )
  layer_decay: float = key(
    1.0,
    "learning-rate factor per layer below the top: 0.9 for fine-tuning (Clark et al. 2020); 1: off",
    least=0.0,
    most=1.0,
  )
  end_lr_fraction: float = key(
    0.0, "cosine, linear, wsd, one_cycle: last learning rate as a fraction of the peak", least=0.0, most=1.0
  )
  decay_fraction: float = key(0.2, "wsd: final fraction of all steps, in which the rate decays", least=0.0, most=1.0)
  decay_shape: str = key("linear", "wsd: shape of the decay, linear or 1-sqrt")
  warmup_fraction: float = key(
    0.1, "slanted_triangle, one_cycle: initial fraction of all steps, in which the rate rises", least=0.0, most=1.0
  )
  init_lr_divisor: float = key(
    32.0, "slanted_triangle, one_cycle: ratio of the peak to the first learning rate", least=1.0
  )
  clip_norm: float = key(0.0, "maximum global norm of the gradient; 0: no clipping", least=0.0)
  scale_by_parameter: bool = key(True, "scale updates by each parameter's root mean square")
  weight_decay: float = key(0.0, "weight decay, multiplied by the learning rate; 0: off", least=0.0)
  no_decay: Texts = key(("norm", "bias"), "patterns of parameter paths without weight decay")
  adafactor_decay_rate: float = key(0.8, "exponent r of Adafactor: the second moment decays by 1 - step**-r", least=0.0)
  adafactor_clip: float = key(1.0, "maximum root mean square of an Adafactor update, before scaling", least=0.0)
  b1: float = key(
    0.9,
    "decay of the first moment: adamw, stable_adamw, lamb, lion, and Adam's part of muon; schedule_free_adamw: share "
    "of the average in the point of the gradient",
    least=0.0,
    most=1.0,
  )
  b2: float = key(0.999, "decay of the second moment, for the optimizers of b1; lion: give 0.99", least=0.0, most=1.0)
  epsilon: float = key(1e-8, "added to the denominator, for the optimizers of b1 except lion", least=0.0)
  muon_momentum: float = key(0.95, "momentum of matrices that muon orthogonalizes", least=0.0, most=1.0)
  muon_iterations: int = key(5, "Newton-Schulz iterations of muon; small models need fewer", least=1, most=20)
  param_groups: Texts = key((), 'rules "PATTERN: SETTING ...": frozen, rate=0.1, depth=0.9; see docs/parameters.md')
  fisher: str = key("", "directory written by `t2t fisher`; weights anchors by Fisher information (EWC); empty: off")
  average: str = key("", "averaged copy of trained parameters: ema, lawa, nt_asgd; see eval.average; empty: off")
  average_decay: float = key(0.9999, "ema: fraction of the old average kept by a step", least=0.0, most=1.0)
  average_last: int = key(5, "lawa: averaged steps, a copy in memory each; nt_asgd: evaluations without gain", least=1)
  average_every: int = key(0, "lawa: steps between averaged ones; 0: checkpoint.save_interval_steps", least=0)
  range_decay: float = key(
    0.99, "model.fake_quantization: fraction of the old ranges of activations kept by a step", least=0.0, most=0.9999
  )
  log_distance: bool = key(False, "log the distance of each layer from its initial values; keeps a copy of them")


@dataclasses.dataclass(frozen=True)
class EvalConfig:
  """Settings of evaluation, during training and by `t2t eval`."""

  every: int = key(
    1_000, "steps between evaluations; the last step is always evaluated; 0: once per epoch", least=1, note=_EPOCH
  )
  batches: int = key(20, "maximum number of held-out batches; always the same batches", least=1)
  batch_size: int = key(0, "examples per evaluation batch; 0: train.batch_size")
  num_logged_samples: int = key(
    3, "number of held-out samples with predictions per evaluation; the last are printed; 0: none"
  )
  patience: int = key(
    0,
    "evaluations without improvement before the run stops early; 0: no early stopping",
    least=0,
    note="; 0 disables early stopping",
  )
  early_stopping_metric: str = key(
    "loss", 'metric of early stopping: the held-out loss, or a task\'s metric, "glue_rte/accuracy"'
  )
  average: bool = key(False, "evaluate the averaged parameters of optimizer.average, also from a checkpoint")
  # Keys for tasks with metrics:
  tasks: Texts = key((), 'tasks of the mixture to evaluate, ("cb", "rte"); empty: all')
  method: str = key(
    "", "generate: decode tokens; rank: score the options of the task; head; t2t eval: loss, of text; empty: as trained"
  )
  normalize: str = key("", "score of ranked options: sum, mean, bytes or unconditional (docs/scoring.md); empty: usual")
  neutral_context: str = key("", 'neutral context of normalize=unconditional, "Answer:"; empty: an empty input')
  pseudo_likelihood: str = key("", "masks of an encoder that ranks: pll, joint, pll_word_l2r; empty: pll_word_l2r")
  num_beams: int = key(1, "beams of beam search; 1: greedy decoding")
  length_penalty: float = key(0.6, "exponent of beam search: scores are divided by ((5 + length) / 6) ** penalty")
  num_shots: int = key(0, "training examples with answers before each input; 0: zero-shot")
  num_shot_draws: int = key(1, "draws of the shots, with seeds from 0; several: results have mean and spread", least=1)
  max_examples: int = key(0, "maximum number of examples per task; 0: all")
  exit_entropy: float = key(0.0, "early exit below this entropy of the classes, in nats (DeeBERT); 0: never", least=0.0)
  exit_patience: int = key(
    0, "early exit after so many layers that agree with the one before (PABEE); 0: never", least=0
  )


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """Settings of checkpoints: save interval and retention."""

  save_interval_steps: int = key(
    1_000, "steps between checkpoints; the last step is always saved; 0: once per epoch", least=1, note=_EPOCH
  )
  max_to_keep: int = key(
    3, "number of latest checkpoints to keep, at least two; the best by held-out loss is kept, too", least=1
  )
  continuous: bool = key(False, "also save whenever the last save has ended (docs/resuming.md)")
  continuous_min_seconds: float = key(0.0, "seconds between the starts of two saves by continuous, at least")
  host_memory_gb: float = key(0.0, "limit of a save's copy in a host's memory; a larger state waits; 0: no limit")
  retry_seconds: float = key(300.0, "seconds of retries after a failed save, on one process")


@dataclasses.dataclass(frozen=True)
class LoggingConfig:
  """Settings of the outputs of a run besides metrics.jsonl."""

  tracker: str = key("none", "additional tracker of metrics: none, wandb, trackio, mlflow; see docs/trackers.md")
  project: str = key("t2t", "project name in the tracker")
  texts: bool = key(True, "log samples at each evaluation to samples.jsonl and TensorBoard; False: only at the end")
  histograms: int = key(0, "steps between TensorBoard histograms of parameters and updates; 0: off")


@dataclasses.dataclass(frozen=True)
class InitSource:
  """A checkpoint that initializes a part of the model; an element of `InitConfig.source_list`."""

  checkpoint: str = ""  # as config.init.checkpoint
  rename: Texts = ()  # as config.init.rename, "encoder", ".=teacher"; only these paths are restored
  reinit: Texts = ()  # as config.init.reinit
  resize: Texts = ()  # as config.init.resize
  tile: Texts = ()  # as config.init.tile
  frozen: bool = False  # not trained; checkpoints reference the source instead of storing parameters
  dtype: str = ""  # frozen: dtype of the parameters in memory, bfloat16 or float32; empty: float32

  @property
  def subtrees(self) -> Texts:
    """Lists the paths in the model that the source initializes; (): all paths."""
    names = (part.split("=")[-1].strip("/").removeprefix(".") for part in self.rename)
    return tuple(names) if self.rename else ()

  @property
  def patterns(self) -> Texts:
    """Lists path patterns of `subtrees`."""
    return tuple(f"^{re.escape(path)}(/|$)" for path in self.subtrees)


@dataclasses.dataclass(frozen=True)
class InitConfig:
  """Settings of initialization."""

  checkpoint: str = key(
    "", "checkpoint of t2t, Hugging Face or T5X that initializes the parameters; empty: random values"
  )
  use_model_config: bool = key(
    False, "use the checkpoint's model and vocabulary instead of config.model and config.data.vocabulary"
  )
  parameters: bool = key(True, "load parameters of `checkpoint`; False: random values, as a baseline")
  # Patterns of parameter paths, for a model that differs from the checkpoint; other parameters are restored unchanged:
  reinit: Texts = key((), 'parameters with fresh random values: "head", "cross_attention,decoder/layers/mlp"')
  rename: Texts = key(
    (), 'paths in the checkpoint, with OLD=NEW: "embed,encoder,encoder=decoder"; others are dropped; ".": all'
  )
  resize: Texts = key((), 'parameters whose number of rows may differ; the first rows are restored: "embed/table,head"')
  tile: Texts = key(
    (), 'parameters whose new rows repeat the old ones, for longer texts than the checkpoint\'s: "embed/positions"'
  )
  transfer_vocab: bool = key(
    False, "match embedding rows by token string, not by id; a new row is the mean of its old tokens"
  )
  layers: Texts = key(
    (), 'layers of the checkpoint that become the model\'s layers in order, counted from 0: "0,2,4"; empty: all layers'
  )
  others: Mapping[str, InitSource] = key(
    {}, "further checkpoints for parts of the model: others.NAME.checkpoint, .rename, .frozen; docs/recipe.md"
  )

  def __post_init__(self) -> None:
    sources = {name: named_record("init.others", name, x, InitSource) for name, x in sorted(self.others.items())}
    object.__setattr__(self, "others", sources)
    taken: dict[str, str] = {}
    for name, source in sources.items():
      where = f"config.init.others.{name}"
      if not source.checkpoint:
        raise UserError(f"{where}.checkpoint is empty; give the path of a checkpoint")
      if source.dtype not in ("", "bfloat16", "float32"):
        raise UserError(f"{where}.dtype={source.dtype}: unknown value. Known values: bfloat16, float32")
      if not source.subtrees or not all(source.subtrees):
        raise UserError(
          f"{where}.rename={','.join(source.rename)} must name the parts of the model to load from "
          f"{source.checkpoint}, for example encoder or .=teacher"
        )
      for path in source.subtrees:
        for taken_path, owner in taken.items():
          if f"{path}/".startswith(f"{taken_path}/") or f"{taken_path}/".startswith(f"{path}/"):
            raise UserError(
              f"{where}.rename: {path} is already loaded from config.init.others.{owner}; leave out one entry"
            )
      taken |= dict.fromkeys(source.subtrees, name)

  @property
  def source_list(self) -> dict[str, InitSource]:
    """Lists every checkpoint that initializes the run, by name in config.init.others; "": config.init.checkpoint."""
    if not self.parameters:
      return {}
    first = (
      {"": InitSource(self.checkpoint, self.rename, self.reinit, self.resize, self.tile)} if self.checkpoint else {}
    )
    return first | dict(self.others)

  @property
  def other_patterns(self) -> Texts:
    """Lists path patterns of parameters that a source of `others` initializes."""
    return tuple(pattern for source in self.others.values() for pattern in source.patterns)

  @property
  def frozen_patterns(self) -> Texts:
    """Lists path patterns of parameters that a source freezes."""
    return tuple(pattern for source in self.others.values() if source.frozen for pattern in source.patterns)

  @property
  def halved_patterns(self) -> Texts:
    """Lists path patterns of parameters that a source freezes in bfloat16."""
    frozen = (source for source in self.others.values() if source.frozen and source.dtype == "bfloat16")
    return tuple(pattern for source in frozen for pattern in source.patterns)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Numbers of devices per mesh axis; one may be -1: all remaining devices."""

  dcn_data: int = key(1, "data parallelism between slices, over the data centre's network: the number of slices")
  stage: int = key(1, "pipeline parallelism: splits the layers into stages, and the batch outside of the layers")
  data: int = key(1, "data parallelism: splits the batch, copies parameters")
  fsdp: int = key(0, "fully sharded data parallelism: splits batch and parameters; 0: automatic, the rest is data")
  expert: int = key(1, "expert parallelism: splits experts and the batch, and other parameters as well")
  sequence: int = key(1, "sequence parallelism: splits long sequences, and parameters as well")
  tensor: int = key(1, "tensor parallelism: splits heads, feed-forward layers and vocabulary")
  physical_layout: Texts = key(
    (), 'chips of a slice per axis, neighbours first: "tensor:2x4,fsdp:4x2"; empty: automatic'
  )

  @property
  def sizes(self) -> dict[str, int]:
    """Returns axis -> devices."""
    return {name: size for name, size in dataclasses.asdict(self).items() if name != "physical_layout"}


@dataclasses.dataclass(frozen=True)
class StageConfig:
  """A stage of a run: its length, and the config values that it changes.

  name: name in metrics and messages.
  steps: number of steps; 0: see `fraction`.
  fraction: length relative to config.train.steps; one stage may set neither and has the remaining steps.
  changes: key -> value, {"data.inputs_length": 128}.
  """

  name: str
  steps: int = 0
  fraction: float = 0.0
  changes: Mapping[str, object] = dataclasses.field(default_factory=dict)

  def to_dict(self) -> dict[str, object]:
    """Returns the stage as in a config: {"name": "short", "fraction": 0.9, "data.inputs_length": 128}."""
    length = {key: getattr(self, key) for key in ("steps", "fraction") if getattr(self, key)}
    return {"name": self.name, **length, **self.changes}


def read_stages(stages: Iterable[StageConfig | Mapping[str, object]]) -> tuple[StageConfig, ...]:
  """Parses the entries of `config.stages`.

  Raises:
    UserError: a stage is not a mapping, or its name or length is invalid.
  """
  return tuple(_read_stage(number, values) for number, values in enumerate(stages, start=1))


def _read_stage(number: int, values: StageConfig | Mapping[str, Any]) -> StageConfig:
  if isinstance(values, StageConfig):
    return values
  where = f"config.stages, stage {number}"
  if not isinstance(values, Mapping):
    python = " in Python syntax (True, not true)" if isinstance(values, str) else ""
    example = '{"fraction": 0.9, "data.inputs_length": 128}'
    raise UserError(f"{where}: {values!r} is not a mapping; give a mapping{python}, for example {example}")
  values = dict(values)
  if strange := next((key for key in values if not isinstance(key, str)), None):
    raise UserError(f'{where}: the key {strange!r} is not a string; give a key such as "data.inputs_length"')
  stage_keys = ("name", "steps", "fraction")
  for name in (x for x in values if x not in stage_keys):  # misspelt stage keys only; stages.py checks all others
    if "." not in name and (near := did_you_mean(name, stage_keys)):
      raise UserError(f"{where}: no such key {name!r}{near}")
  least = 1 if "steps" in values else 0
  name, steps, fraction = (values.pop(key, default) for key, default in zip(stage_keys, (number, 0, 0.0), strict=True))
  if type(steps) is not int or steps < least:
    raise UserError(f"{where}: steps={steps!r} must be an integer of at least 1")
  if type(fraction) not in (int, float) or not 0.0 <= fraction <= 1.0:
    raise UserError(f"{where}: fraction={fraction!r} must be a fraction of config.train.steps, from 0 to 1")
  if steps and fraction:
    raise UserError(f"{where} has both steps={steps} and fraction={fraction}; give only one of these keys")
  return StageConfig(str(name or number), steps, fraction, changes=values)


# Packages that register optional sections: "module:table", name -> "module:class".
_ADAPTERS = "t2t.models.adapters:SECTIONS"
PRUNING = {"pruning": "t2t.configuration.pruning_config:PruningConfig"}  # read by rules of optimizer.param_groups
_OWN = "t2t.configuration.schema:PRUNING"
# Optional section -> its record; setting one key creates the section with defaults for the others.
OPTIONAL: lazy_table.LazyTable[type[DataclassRecord]] = lazy_table.JoinedTable("t2t.losses:SECTIONS", _ADAPTERS, _OWN)


def is_adapter(section: str) -> bool:
  """Returns True if a section of OPTIONAL is an adapter, which applies whenever a config has the section."""
  return section in lazy_table.load(_ADAPTERS)


@dataclasses.dataclass(frozen=True)
class Config:
  """Config of a run, section by section; `sections` has the optional ones, also read as `config.lora`."""

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
    (), 'Sequential stages of the run, ({"fraction": 0.9, "data.inputs_length": 128}, {}): see docs/stages.md.'
  )
  mesh: MeshConfig = MeshConfig()
  sections: Mapping[str, DataclassRecord] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    object.__setattr__(self, "stages", read_stages(self.stages))
    if len(self.adapters) > 1:
      named = " and ".join(f"config.{name}" for name in self.adapters)
      raise UserError(f"{named} are set, but a run uses at most one adapter; keep only one of these sections")
    # A section may name further checkpoints, such as the teachers of config.distillation.
    sources: dict[str, InitSource] = {}
    for record in self.sections.values():
      sources |= getattr(record, "init_sources", {})
    if sources:
      init: dict[str, Any] = {"others": {**self.init.others, **sources}}
      if self.init.layers and not self.init.checkpoint:
        init["checkpoint"] = next(iter(sources.values())).checkpoint
      object.__setattr__(self, "init", dataclasses.replace(self.init, **init))

  def __getattr__(self, name: str) -> Any:
    if name.startswith("_") or name not in OPTIONAL:
      raise AttributeError(f"Config has no section {name!r}")
    return self.sections.get(name)

  @property
  def adapters(self) -> Mapping[str, DataclassRecord]:
    """Returns section -> record of the adapter; at most one."""
    return {name: record for name, record in self.sections.items() if is_adapter(name)}

  def with_(self, **sections: Mapping[str, object]) -> "Config":
    """Returns the config with some keys changed.

    In: train={"steps": 20}, mesh={"fsdp": 8}
    """
    changed = {name: dataclasses.replace(getattr(self, name), **keys) for name, keys in sections.items()}
    optional = {name: changed.pop(name) for name in sections if name in self.sections}
    return dataclasses.replace(self, **changed, sections={**self.sections, **optional})

  def with_section(self, name: str, record: object) -> "Config":
    """Returns the config with another record of a section; None removes a section of OPTIONAL."""
    if name not in OPTIONAL:
      return dataclasses.replace(self, **{name: record})
    sections = {**self.sections, name: record}
    return dataclasses.replace(self, sections={key: value for key, value in sections.items() if value is not None})

  def to_dict(self) -> dict[str, object]:
    """Returns section -> key -> value, as in config.json; unused sections and empty mappings are left out.

    "stages" is a list of mappings, present only if the run has stages.
    """
    sections = dataclasses.asdict(self)
    sections |= sections.pop("sections")
    del sections["stages"]
    if self.stages:
      sections["stages"] = [stage.to_dict() for stage in self.stages]
    for section, name in (
      *(("data", name) for name in ("benchmark_dirs", "labels", "columns", "prefix", "table")),
      ("init", "others"),
      ("train", "term_weights"),
    ):
      if not sections[section][name]:
        del sections[section][name]
    return sections


# Section -> its interval key in steps; 0: once per epoch.
INTERVALS = {"eval": "every", "checkpoint": "save_interval_steps"}

SECTIONS: dict[str, type[DataclassRecord]] = {
  x.name: x.type for x in dataclasses.fields(Config) if isinstance(x.type, type) and dataclasses.is_dataclass(x.type)
}


def defaults() -> dict[str, object]:
  """Returns section -> key -> default, of all required sections but config.model, and `stages`."""
  sections: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Config)[1:-1]}
  default_of = lambda field: field.default if field.default is not dataclasses.MISSING else field.default_factory()
  return sections | {
    name: {x.name: default_of(x) for x in keys(SECTIONS[name])} for name in sections if name in SECTIONS
  }


def comments() -> dict[str, str]:
  """Returns key, "train.steps", -> help; for config.model and sections of OPTIONAL the comments of the fields."""
  help_texts = {}
  for section, record in (SECTIONS | dict(OPTIONAL)).items():
    declared = {field.name: _help(field) for field in keys(record)} or _comments_of(inspect.getsource(record))
    help_texts |= {f"{section}.{name}": comment for name, comment in declared.items()}
  return help_texts | {field.name: _help(field) for field in keys(Config)}


def _help(field: dataclasses.Field[Any]) -> str:
  """Returns the help of a declared key, after the values of its table."""
  table, text = field.metadata["table"], field.metadata["help"]
  return f"{', '.join(lazy_table.load(table))}; {text}" if table else text


# Comment of a record's field: trailing, or in lines above it that begin with "#:", as in Sphinx.
_BEHIND, _ABOVE = r"^  (\w+): .*?  # (.*)$", r"((?:^  #: .*\n)+)  (\w+): "


def _comments_of(source: str) -> dict[str, str]:
  """Returns field name -> its comment."""
  source = source.partition("  def ")[0]
  above = re.findall(_ABOVE, source, re.MULTILINE)
  comments = {name: " ".join(line.strip().removeprefix("#: ") for line in lines.splitlines()) for lines, name in above}
  return comments | dict(re.findall(_BEHIND, source, re.MULTILINE))


# Keys in `t2t train --help`; `--help all` shows the others, too.
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
