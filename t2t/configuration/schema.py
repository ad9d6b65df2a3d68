"""A typed, frozen record of every section of a config: what the library takes in place of a ConfigDict."""

from collections.abc import Iterable, Mapping
import dataclasses
import re
from typing import TYPE_CHECKING, Any

from t2t import UserError, did_you_mean
from t2t.models.adapters import ADAPTERS, Adapters
from t2t.models.config import TransformerConfig
from t2t.runtime.lazy_table import LazyTable

if TYPE_CHECKING:
  from t2t.losses.contrastive import ContrastiveConfig
  from t2t.losses.electra import ElectraConfig
  from t2t.models.adapters.bitfit import BitFitConfig
  from t2t.models.adapters.houlsby import HoulsbyConfig
  from t2t.models.adapters.ia3 import Ia3Config
  from t2t.models.adapters.lora import LoraConfig
  from t2t.models.adapters.pals import PalsConfig
  from t2t.models.adapters.pfeiffer import PfeifferConfig
  from t2t.models.adapters.prefix import PrefixConfig
  from t2t.models.adapters.prompt import PromptConfig


@dataclasses.dataclass(frozen=True)
class SourceConfig:
  """One of several things that are read; what is "" or 0 is as config.data says it for all."""

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


# Keys of `DataConfig` that say how `files` become examples, and nothing of registered tasks.
OF_FILES = ("eval_files", "field", "annotations", "translation", "both_directions", "malformed", "objective")
OF_FILES += ("noise_density", "mean_noise_span_length")


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """What is read, and how it becomes examples."""

  files: str = ""
  eval_files: str = ""
  field: str = "text"
  annotations: str = "entities"
  translation: str = "translation"
  both_directions: bool = False
  language: str = ""
  language_tags: str = ""
  labels: str = ""
  columns: str = ""
  prefix: str = ""
  table: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # a table's columns and classes, once it is read
  malformed: float = 0.0
  files_may_change: bool = False
  objective: str = "span_corruption"
  dictionary: str = ""
  switching_rate: float = 0.0
  mixture: str = ""
  task_modules: tuple[str, ...] = ()
  train_split: str = "train"
  eval_split: str = "validation"
  cache_dir: str = ""
  folders: Mapping[str, str] = dataclasses.field(default_factory=dict)
  sources: Mapping[str, SourceConfig] = dataclasses.field(default_factory=dict)
  size: str = "examples"
  alpha: float = 1.0
  most_epochs: float = 0.0
  vocabulary: str = ""
  extra_ids: int = 100
  special_tokens: bool = False
  inputs_length: int = 512
  targets_length: int = 114
  noise_density: float = 0.0
  mean_noise_span_length: float = 0.0
  pack: bool = False
  num_streams: int = 0
  shuffle_buffer: int = 256

  def __post_init__(self) -> None:
    # A config has a ConfigDict here; config.json and what compares two of them need a dict.
    object.__setattr__(self, "folders", dict(self.folders))
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
    for name, folder in self.folders.items():
      if not isinstance(folder, str):
        raise UserError(f"config.data.folders.{name}={folder!r}: must be the path of a folder")
    object.__setattr__(self, "sources", {name: _source(name, x) for name, x in sorted(self.sources.items())})

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

  @property
  def is_named(self) -> bool:
    """Whether it says what is read; a user's own batches are not said here."""
    return bool(self.files or self.mixture or self.sources)

  @property
  def named(self) -> str:
    """What says what is read, for messages: "config.data.mixture=glue"."""
    if self.sources:
      return f"config.data.sources ({', '.join(self.sources)})"
    if self.table:
      key = "files" if self.table["files"] else "eval_files"
      return f"config.data.{key}={self.table[key]}"
    return f"config.data.files={self.files}" if self.files else f"config.data.mixture={self.mixture}"


def _source(name: str, values: SourceConfig | Mapping[str, Any]) -> SourceConfig:
  if not re.fullmatch(r"\w+", name):  # a task is called so, and a metric, and a key
    raise UserError(f"config.data.sources: {name!r}: a source's name is of letters, digits and _")
  if isinstance(values, SourceConfig):
    return values
  known = [field.name for field in dataclasses.fields(SourceConfig)]
  if not isinstance(values, Iterable):  # a ConfigDict is no Mapping
    raise UserError(f"config.data.sources.{name}={values!r}: must be a mapping, of {', '.join(known)}")
  for key in values:
    if key not in known:
      near = did_you_mean(key, known)
      raise UserError(f"config.data.sources.{name}.{key}: no such key{near}; there are {', '.join(known)}")
  return SourceConfig(**values)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """What training does, and what it asks of the machines."""

  steps: int
  epochs: float
  batch_size: int
  microbatches: int
  seed: int
  loss: str
  z_loss: float
  label_smoothing: float
  chunk_tokens: int
  freeze: tuple[str, ...]
  hosts: int
  stall_factor: float
  stall_seconds: int
  compilation_cache: str
  xla_flags: bool
  deterministic: bool
  offload_optimizer: bool
  log_every: int


@dataclasses.dataclass(frozen=True)
class NumbersConfig:
  """What is done about a loss or a gradient that goes wrong."""

  not_finite: str
  most_in_a_row: int
  most_skipped: float
  most_backs: int
  spike_deviations: float
  spike_window: int
  spike: str


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """How parameters are updated; learning rates are per step."""

  name: str
  learning_rate: float
  schedule: str
  warmup_steps: int
  warmup_ratio: float
  layer_decay: float
  final_ratio: float
  decay_share: float
  decay_shape: str
  rise: float
  rise_ratio: float
  clip_norm: float
  scale_by_parameter: bool
  weight_decay: float
  no_decay: tuple[str, ...]
  adafactor_decay_rate: float
  adafactor_clip: float
  b1: float
  b2: float
  epsilon: float
  muon_momentum: float
  muon_iterations: int
  paths: tuple[str, ...]
  fisher: str
  log_distance: bool


@dataclasses.dataclass(frozen=True)
class EvalConfig:
  """What is measured between steps and by `t2t eval`, and how tasks are asked."""

  every: int
  batches: int
  batch_size: int
  examples: int
  patience: int
  stop_by: str
  tasks: tuple[str, ...]
  method: str
  num_beams: int
  length_penalty: float
  shots: int
  max_examples: int


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """When a run is saved, and what of it is kept."""

  every: int
  keep: int
  retry_seconds: float


@dataclasses.dataclass(frozen=True)
class LoggingConfig:
  """Where what is measured goes besides metrics.jsonl, and what else is shown of a run."""

  tracker: str
  project: str
  texts: bool
  histograms: int


@dataclasses.dataclass(frozen=True)
class InitConfig:
  """Where parameters come from when a run begins."""

  checkpoint: str
  inherit: bool
  parameters: bool
  fresh: tuple[str, ...] = ()
  parts: tuple[str, ...] = ()
  rows: tuple[str, ...] = ()
  by_piece: bool = False


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices along each axis; one may be -1: all that are left."""

  dcn_data: int
  data: int
  fsdp: int
  sequence: int
  tensor: int
  order: tuple[str, ...] = ()

  @property
  def sizes(self) -> dict[str, int]:
    """Axis -> devices."""
    return {name: size for name, size in dataclasses.asdict(self).items() if name != "order"}


@dataclasses.dataclass(frozen=True)
class StageConfig:
  """A part of a run: how long it is, and what it does otherwise than the sections of the config say.

  name: which metrics and messages know it by.
  steps: how many; 0: as `share` says.
  share: of config.train.steps; of one stage both may be 0, and it has what the others leave.
  changes: key -> value, {"data.inputs_length": 128}.
  """

  name: str
  steps: int = 0
  share: float = 0.0
  changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def to_dict(self) -> dict[str, Any]:
    """As it stands in a config: {"name": "short", "share": 0.9, "data.inputs_length": 128}."""
    length = {key: getattr(self, key) for key in ("steps", "share") if getattr(self, key)}
    return {"name": self.name, **length, **self.changes}


def read_stage(number: int, values: StageConfig | Mapping[str, Any]) -> StageConfig:
  """The record of the stage that is `number` in a config, from 1.

  Raises:
    UserError: it is no mapping, or says its name or its length as what it is not.
  """
  if isinstance(values, StageConfig):
    return values
  where = f"config.stages, stage {number}"
  if not isinstance(values, Mapping):
    python = ", written as Python has it (True, not true)" if isinstance(values, str) else ""
    example = '{"share": 0.9, "data.inputs_length": 128}'
    raise UserError(f"{where}: {values!r} is no mapping; a stage is {example}{python}")
  values = dict(values)
  if strange := next((key for key in values if not isinstance(key, str)), None):
    raise UserError(f'{where}: {strange!r}: a key is a text, as "data.inputs_length" is')
  own = ("name", "steps", "share")
  for key in (key for key in values if key not in own):  # one of these that is misspelt; stages.py knows all others
    if "." not in key and (near := did_you_mean(key, own)):
      raise UserError(f"{where}: {key}: no such key{near}")
  least = 1 if "steps" in values else 0
  name, steps, share = (values.pop(key, default) for key, default in zip(own, (number, 0, 0.0), strict=True))
  if type(steps) is not int or steps < least:
    raise UserError(f"{where}: steps={steps!r}: must be a number of steps, at least 1")
  if type(share) not in (int, float) or not 0.0 <= share <= 1.0:
    raise UserError(f"{where}: share={share!r}: must be from 0 to 1, of config.train.steps")
  if steps and share:
    raise UserError(f"{where}: has steps={steps} and share={share}; leave one of them out")
  return StageConfig(str(name or number), steps, share, changes=values)


# Sections that a config has only where they are used: where one key is typed, the others have their defaults.
OPTIONAL: LazyTable[type] = LazyTable(
  {
    "electra": "t2t.losses.electra:ElectraConfig",
    "contrastive": "t2t.losses.contrastive:ContrastiveConfig",
    **{name: f"{path}.config" for name, path in ADAPTERS.rows.items()},
  }
)


@dataclasses.dataclass(frozen=True)
class Config:
  """A run, section by section; configs/default.py says what each key means, and has the defaults."""

  model: TransformerConfig
  data: DataConfig
  train: TrainConfig
  numbers: NumbersConfig
  optimizer: OptimizerConfig
  eval: EvalConfig
  checkpoint: CheckpointConfig
  logging: LoggingConfig
  init: InitConfig
  mesh: MeshConfig
  stages: tuple[StageConfig, ...] = ()
  # Those of OPTIONAL:
  electra: "ElectraConfig | None" = None
  contrastive: "ContrastiveConfig | None" = None
  lora: "LoraConfig | None" = None
  bitfit: "BitFitConfig | None" = None
  ia3: "Ia3Config | None" = None
  houlsby: "HoulsbyConfig | None" = None
  pfeiffer: "PfeifferConfig | None" = None
  prompt: "PromptConfig | None" = None
  prefix: "PrefixConfig | None" = None
  pals: "PalsConfig | None" = None

  def __post_init__(self) -> None:
    object.__setattr__(self, "stages", tuple(read_stage(number, x) for number, x in enumerate(self.stages, start=1)))
    if len(self.adapters) > 1:
      named = " and ".join(f"config.{name}" for name in self.adapters)
      raise UserError(f"{named}: a run adapts its model in one way; leave all of these sections but one out")

  @property
  def adapters(self) -> Adapters:
    """What the model is adapted by: section -> its record."""
    return {name: getattr(self, name) for name in ADAPTERS if getattr(self, name) is not None}

  def with_(self, **sections: Mapping[str, Any]) -> "Config":
    """The same run with some keys changed.

    In: train={"steps": 20}, mesh={"fsdp": 8}
    """
    changed = {name: dataclasses.replace(getattr(self, name), **keys) for name, keys in sections.items()}
    return dataclasses.replace(self, **changed)

  def to_dict(self) -> dict[str, Any]:
    """Section -> key -> value, as config.json has them: of sections that are used, and of mappings with a name.

    And "stages", a list of mappings, if there are any.
    """
    found = {name: values for name, values in dataclasses.asdict(self).items() if values is not None}
    del found["stages"]
    if self.stages:
      found["stages"] = [stage.to_dict() for stage in self.stages]
    for name in ("folders", "labels", "columns", "prefix", "table"):
      if not found["data"][name]:
        del found["data"][name]
    return found
