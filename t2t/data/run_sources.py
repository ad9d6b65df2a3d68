"""Sources of a run: one class per kind; no other module depends on the key that names a source.

A new kind is a subclass of `RunSource` and a row of `KINDS`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import (
  batch_iterator,
  example_windows,
  objectives,
  raw_text,
  sources,
  task_resolution,
  vocabularies,
)
from t2t.data.sources import bad_records, file_fingerprints, file_validation, text_files
from t2t.models.architecture import architecture_of
from t2t.models.head_config import HeadConfig
from t2t.runtime.lazy_table import load

_ALL = "config.data"  # the config section of the data
_OF_TEXT = frozenset(key.removeprefix("data.") for key in batch_iterator.OF_FILES)
# Keys of config.data that determine the order of some kinds.
IDENTITY_KEYS = _OF_TEXT | {"annotations", "translation", "language", "dictionary", "switching_rate"}
IDENTITY_KEYS |= {"mixing_unit", "alpha"}


class Made(NamedTuple):
  """Facts of the examples of a source: objectives, the config key that sets them, features, and whether heads are
  asked.
  """

  objectives: set[str]
  key: str
  features: Mapping[str, seqio.Feature]
  asks_heads: bool


@dataclasses.dataclass(frozen=True)
class RunSource:
  """Source of examples; defaults are those of a seqio task or mixture.

  data: config of this source alone. where: prefix of the keys of `data`, for messages: "config.data" or
  "config.data.sources.NAME".
  """

  data: DataConfig
  where: str = _ALL

  name = ""  # name of the registered task or mixture, for `t2t tasks show`
  kind = ""  # kind in a word; "": given by its seqio sources

  @classmethod
  def reads(cls, data: DataConfig) -> bool:
    """Returns True if a config names a source of this kind."""
    raise NotImplementedError

  @property
  def title(self) -> str:
    """Names the source in reports."""
    return self.data.named

  @property
  def key(self) -> str:
    """Names the source in messages: "config.data.files=text.txt"."""
    return self.data.named

  @property
  def parts(self) -> "Mapping[str, RunSource]":
    """Mixed sources by name; empty for a single source."""
    return {}

  @property
  def is_alone(self) -> bool:
    return self.where == _ALL

  # ---- Tasks ---------------------------------------------------------------------------------------------------------

  def load_task(self, architecture: str = "", *, heads: Sequence[HeadConfig] = ()) -> task_resolution.Provider:
    """Returns the training task or mixture; see `pipeline.load_task`."""
    raise NotImplementedError

  def registered(self) -> task_resolution.Provider:
    """Returns the task or mixture before the user's vocabulary, folders and heads."""
    return self.load_task()

  def tasks(self) -> task_resolution.Provider | None:
    """Returns `registered` if the tasks define their examples; None if config.data.objective does."""
    return self.registered()

  def vocabulary(self) -> seqio.Vocabulary:
    """Returns the vocabulary; see `pipeline.vocabulary`."""
    self.data.check_vocabulary()
    if self.data.vocabulary:
      return vocabularies.load(self.data.vocabulary, extra_ids=self.data.extra_ids)
    return self._own_vocabulary()

  def _own_vocabulary(self) -> seqio.Vocabulary:
    return task_resolution.vocabulary_of(self.registered())

  def split(self, *, train: bool) -> str:
    """Returns the training split, or the held-out one."""
    return self.data.train_split if train else self.data.eval_split

  def num_documents(self, task: task_resolution.Provider) -> int | None:
    """Returns the number of training records; None if unknown."""
    if not self.data.cache_dir:
      return task_resolution.num_examples(task, self.data.train_split)
    from t2t.data import offline_cache

    return offline_cache.num_examples(task, self.data.train_split)

  def size(self, task: task_resolution.Provider) -> float:
    """Returns the amount of training data, in the unit config.data.mixing_unit."""
    unit = self.data.mixing_unit
    counts = [subtask.num_input_examples(self.data.train_split) for subtask in task_resolution.tasks_of(task)]
    if unit == "tokens" or None in counts:
      why = "the number of tokens is unknown" if unit == "tokens" else "the number of examples is unknown"
      raise UserError(
        f"{self.where}: {why}, but config.data.mixing_unit={unit} samples by this number. Give {self.where}.rate "
        f"or {self.where}.share."
      )
    return float(sum(counts))

  # ---- Examples ------------------------------------------------------------------------------------------------------

  def made(self) -> Made:
    """Returns the facts of the examples before any is made."""
    task = self.registered()
    names = [objectives.of(subtask) for subtask in task_resolution.tasks_of(task)]
    # A head may answer a task without an objective.
    asks = any(not objective_names or any(map(objectives.heads_of, objective_names)) for objective_names in names)
    return Made(objectives.of(task), self.data.named if self.is_alone else self.key, task.output_features, asks)

  def names_of(self, provider: task_resolution.Provider) -> dict[str, str]:
    """Returns the model's task name (with PALs) of each seqio task in `provider`, see `registered`."""
    return {task.name: task.name for task in task_resolution.tasks_of(provider)}

  def names_as(self, name: str) -> list[str]:
    """Returns the names of the seqio tasks when the source is mixed under `name`."""
    return [task.name for task in task_resolution.tasks_of(self.registered())]

  def by_language(self, task: task_resolution.Provider) -> dict[str, task_resolution.Provider]:
    """Returns the parts of `task` with a named language, by source."""
    return {}

  # ---- Identity of a data position -----------------------------------------------------------------------------------

  def patterns(self) -> dict[str, str]:
    """Returns config key -> globs of files."""
    return {}

  def file_contents(self) -> dict[str, file_fingerprints.Contents]:
    """Returns the contents of the files, by the config key that names them."""
    contents_by_key = {
      where: file_fingerprints.Contents(self._with_beside(text_files.find_files(patterns, where=where)), where=where)
      for where, patterns in self.patterns().items()
    }
    return functools.reduce(lambda read, part: read | part.file_contents(), self.parts.values(), contents_by_key)

  def identity_keys(self) -> frozenset[str]:
    """Returns the keys of `IDENTITY_KEYS` that determine the order of the data."""
    return frozenset()

  def identity(self) -> dict[str, Any]:
    """Returns settings to compare when a run resumes, by config key, beyond those of config.data."""
    return {}

  def _with_beside(self, paths: Sequence[str]) -> tuple[str, ...]:
    """Returns the files, with the files of translations beside them."""
    if not objectives.is_parallel(self.data.objective):
      return tuple(paths)
    from t2t.data.sources import bitext

    translation_files = (
      bitext.beside(path, translation=self.data.translation, where="config.data.files") for path in paths
    )
    return (*paths, *filter(None, translation_files))

  # ---- Checks --------------------------------------------------------------------------------------------------------

  def check_early(self, architecture: str, *, model_vocab_size: int) -> None:
    """Refuses wrong settings before any file is opened, because opening takes longer."""
    data = self.data
    if (data.dictionary or data.switching_rate) and not data.has_text:
      raise UserError(
        f"config.data.dictionary={data.dictionary} and config.data.switching_rate={data.switching_rate} replace words "
        f"of files only, but {data.named} has registered tasks. Leave out both keys. To replace words of a task, add "
        "`code_switching` to the preprocessors of the task."
      )
    if data.language or data.language_tags:
      from t2t.data import languages

      languages.check_tags(data, data.parts())
      if not self.parts:
        languages.said(data, where=self.where)

  def check_files(self) -> None:
    """Refuses files that are missing, unreadable or without text."""
    for where, patterns in self.patterns().items():
      paths = text_files.find_files(patterns, where=where)
      file_validation.scan(paths, field=self.data.field, where=where, malformed=self.data.max_bad_record_fraction)
    for part in self.parts.values():
      part.check_files()

  def check_task(self, task: task_resolution.Provider, *, model_vocab_size: int) -> None:
    """Refuses tasks without the configured splits, or with another vocabulary than the model's."""
    vocabularies.check(task_resolution.vocabulary_of(task), model_vocab_size)
    splits = {key: getattr(self.data, key) for key in ("train_split", "eval_split")}
    task_resolution.check(task, splits, where=self.data.named)

  def check_documents(self) -> list[str]:
    """Refuses too few documents for an objective that draws from others; returns notes on held-out documents."""
    return list(itertools.chain.from_iterable(part.check_documents() for part in self.parts.values()))

  def check_fills_a_batch(self, examples: tf.data.Dataset, *, batch_size: int) -> None:
    """Refuses text too short for one batch."""

  def no_examples(self, task: str, error: bad_records.NoExamples) -> UserError:
    """Returns the error for a task without examples."""
    return error

  def no_held_out(self, task: str, why: str) -> UserError:
    """Returns the error for a held-out split without examples."""
    split = self.data.eval_split
    return UserError(
      f"split {split!r} of {self.data.source_key(task) or self.data.named} has no held-out example: {why}. Give "
      f"evaluation text, or set config.data.eval_split to another split."
    )


def adapted(data: DataConfig, provider: task_resolution.Provider) -> task_resolution.Provider:
  """Returns registered tasks with the user's vocabulary and folders."""
  vocabulary = vocabularies.load(data.vocabulary, extra_ids=data.extra_ids) if data.vocabulary else None
  splits = {"train_split": data.train_split, "eval_split": data.eval_split}
  provider = _guarded(
    data, task_resolution.adapt(provider, vocabulary=vocabulary, folders=data.benchmark_dirs, **splits)
  )
  if data.train_labels:
    from t2t.data import label_files

    provider = label_files.labelled(provider, data)
  if data.max_train_examples != -1:
    from t2t.data import train_subset

    provider = train_subset.limited(provider, data)
  if not data.cache_dir:
    return provider
  from t2t.data import offline_cache

  return offline_cache.read(provider, data.cache_dir, splits=tuple(splits.values()))


def templated(data: DataConfig, provider: task_resolution.Provider) -> task_resolution.Provider:
  """Returns registered tasks with the text of `data.templates`; unchanged without templates.

  Raises:
    UserError: the file cannot be read, or a task has no template.
  """
  if not data.templates:
    if data.template_names:
      raise UserError(
        f"config.data.template_names={','.join(data.template_names)} chooses among templates, but "
        "config.data.templates is empty. Give config.data.templates=FILE."
      )
    return provider
  from t2t.data import templates

  where = f"config.data.templates={data.templates}"
  known_templates = templates.load(data.templates, names=data.template_names)

  def apply(task: seqio.Task) -> seqio.Task:
    # Text that is mixed with tasks has an objective instead of records.
    is_text = bool(data.sources) and bool(objectives.of(task))
    return task if is_text else templates.apply(task, known_templates, where=where, blank=data.template_blank)

  return task_resolution.copy(provider, apply, lambda rate: rate)


def _guarded(data: DataConfig, provider: task_resolution.Provider) -> task_resolution.Provider:
  """Protects the letters of records from being read as control tokens, unless the user disables it."""
  return provider if data.special_tokens else raw_text.guarded(provider)


# ---- Text ------------------------------------------------------------------------------------------------------------


class Text(RunSource):
  """Text for config.data.objective; a subclass makes a source with the splits "train" and "validation"."""

  def make_source(self) -> seqio.DataSource:
    """Returns the source, with records that have a "text"."""
    raise NotImplementedError

  def load_task(self, architecture: str = "", *, heads: Sequence[HeadConfig] = ()) -> seqio.Task:
    data = self.data
    _check_is_one(data)
    for name, folder in data.benchmark_dirs.items():
      raise UserError(
        f"config.data.benchmark_dirs.{name}={folder} is for registered tasks, but config.data.files is set. Leave out "
        f"config.data.benchmark_dirs.{name} or config.data.files."
      )
    if data.cache_dir:
      raise UserError(
        f"config.data.cache_dir={data.cache_dir} is for registered tasks, but config.data.files is set. Leave out "
        "config.data.cache_dir, or register a task for the files."
      )
    if data.max_train_examples != -1:
      raise UserError(
        f"config.data.max_train_examples={data.max_train_examples} is for tasks with answers, but {self.key} is text "
        "to pre-train on. Leave the key out, or name a task with config.data.mixture or a table with "
        "config.data.labels=auto."
      )
    vocabulary = self.vocabulary()
    return _guarded(data, load("t2t.data.file_task:make")(data, self.make_source(), vocabulary, where=self.where))

  def registered(self) -> task_resolution.Provider:
    """Returns the mixture beside the text, for `t2t eval`."""
    return RegisteredTasks(self.data, self.where).registered()

  def tasks(self) -> None:
    return None

  @property
  def title(self) -> str:
    return self.data.files

  @property
  def key(self) -> str:
    return f"{self.where}.files={self.data.files}"

  def split(self, *, train: bool) -> str:
    return "train" if train else "validation"

  def num_documents(self, task: task_resolution.Provider) -> int | None:
    return task_resolution.num_examples(task, "train")

  def made(self) -> Made:
    name = self.data.objective
    output_features = objectives.output_features(name, self.vocabulary())
    return Made({name}, f"{self.where}.objective={name}", output_features, bool(objectives.heads_of(name)))

  def names_as(self, name: str) -> list[str]:
    return [name]

  def identity_keys(self) -> frozenset[str]:
    data, keys = self.data, set(_OF_TEXT)
    keys |= {"language"} if data.language_tags else set()  # otherwise it only names a loss
    keys |= {"annotations"} if objectives.is_annotated(data.objective) else set()
    keys |= {"translation"} if objectives.is_parallel(data.objective) else set()
    return frozenset(keys | ({"dictionary", "switching_rate"} if data.dictionary else set()))

  def identity(self) -> dict[str, Any]:
    return {f"{self.where}.files".removeprefix("config."): self.data.files}

  def check_early(self, architecture: str, *, model_vocab_size: int) -> None:
    super().check_early(architecture, model_vocab_size=model_vocab_size)
    objectives.check_fits(self.data.objective, architecture)
    vocabularies.check(self.vocabulary(), model_vocab_size)

  def check_task(self, task: task_resolution.Provider, *, model_vocab_size: int) -> None:
    pass  # `check_early` checks it

  def no_held_out(self, task: str, why: str) -> UserError:
    return UserError(f"config.data.eval_files has no held-out example: {why}. Give evaluation text.")


class TextFiles(Text):
  """Files of config.data.files, or of a named source."""

  kind = "files"
  unit = "characters"  # of a text's length

  @classmethod
  def reads(cls, data: DataConfig) -> bool:
    return bool(data.files)

  def make_source(self) -> seqio.DataSource:
    return load("t2t.data.file_task:source")(self.data, where=self.where)

  def _scan(self, key: str = "files", where: str = "config.data.files") -> file_validation.Scan:
    files = text_files.find_files(getattr(self.data, key))
    return file_validation.scan(files, field=self.data.field, where=where, malformed=self.data.max_bad_record_fraction)

  def num_documents(self, task: task_resolution.Provider) -> int | None:
    scanned = self._scan()
    return scanned.documents if scanned.complete else None

  def size(self, task: task_resolution.Provider) -> float:
    """Returns the size; an estimate for files that were read only in part."""
    source, where = task.source, f"{self.where}.files"
    scanned = file_validation.scan(
      source.list_shards("train"), field=self.data.field, where=where, malformed=self.data.max_bad_record_fraction
    )
    counted = scanned.documents if self.data.mixing_unit == "examples" else scanned.characters
    if scanned.complete:
      return float(counted)
    # The share of text in a record, and the number of bytes per character, differ between sources.
    return math.fsum(shard.weight for shard in source.records("train").shards()) * counted / max(scanned.size, 1)

  def patterns(self) -> dict[str, str]:
    return {f"{self.where}.{key}": x for key in ("files", "eval_files") if (x := getattr(self.data, key))}

  def identity(self) -> dict[str, Any]:
    data = self.data
    # Held-out documents are not in the training data.
    settings = {
      "eval_files": "given"
      if data.eval_files
      else f"empty: about 1 % of {'data.' if self.is_alone else ''}files is held out",
      "files": file_fingerprints.summary(self._with_beside(text_files.find_files(data.files))),
    }
    settings |= {key: getattr(data, key) for key in ("translation", "annotations") if key in self.identity_keys()}
    return {f"{self.where}.{key}".removeprefix("config."): value for key, value in settings.items()}

  def check_documents(self) -> list[str]:
    data, where = self.data, self.where
    if not objectives.needs_other_documents(data.objective):
      return []
    scans = {key: self._scan(key, where=f"{where}.{key}") for key in ("files", "eval_files") if getattr(data, key)}
    if not all(scanned.complete for scanned in scans.values()):
      return []
    documents = file_validation.documents_by_split(scans["files"])
    if data.eval_files:
      documents = {"train": scans["files"].documents, "validation": scans["eval_files"].documents}
    pairs = f"config.data.objective={data.objective} draws some second texts from other documents"
    if documents["train"] < 2:
      held_out = "" if data.eval_files else f" ({documents['validation']:,} more are held out)"
      instead = "more documents" if data.eval_files else f"more documents, or evaluation text as {where}.eval_files"
      raise UserError(
        f"{self.key}: only one document is left to train on{held_out}. {pairs}, so all examples would be of "
        f"one class. Give {instead}. A line of a text file is a document."
      )
    if documents["validation"] > 1:
      return []
    return [
      f"{where}: only one document is held out. {pairs}, so held-out examples are all of one class. Give "
      f"several documents as {where}.eval_files."
    ]

  def check_fills_a_batch(self, examples: tf.data.Dataset, *, batch_size: int) -> None:
    scanned = self._scan()
    # An English vocabulary has at most four characters per token, bytes have one: text far above a batch need not be
    # counted.
    if not scanned.complete or scanned.characters > 16 * batch_size * self.data.inputs_length:
      return
    try:
      count = sum(1 for _ in itertools.islice(examples.with_options(example_windows.options()), batch_size))
    except tf.errors.OpError as error:
      raise sources.user_error(error) or error from None
    if count < batch_size:
      smaller = f", or set config.train.batch_size={count} or less" if count else ""
      raise UserError(
        f"config.data.files: {scanned.documents} document(s) with {scanned.characters:,} {self.unit} make {count} "
        f"example(s), fewer than config.train.batch_size={batch_size}. Give more text{smaller}."
      )

  def no_examples(self, task: str, error: bad_records.NoExamples) -> UserError:
    return UserError(
      f"{self.where}.files: config.data.objective={self.data.objective} makes no example of this text "
      f"({error.num_records:,} documents were read). Give other text"
      + ("." if self.is_alone else ", or leave out the source.")
    )


def _check_is_one(data: DataConfig) -> None:
  if bool(data.files) == bool(data.mixture):
    raise UserError(
      f"config.data.files={data.files!r} and config.data.mixture={data.mixture!r}: exactly one of these keys "
      "must be set. Give text files, or the name of a registered task or mixture. For several sources, set "
      "config.data.sources."
    )


# ---- Registered tasks ------------------------------------------------------------------------------------------------


class RegisteredTasks(RunSource):
  """Task or mixture of config.data.mixture, or of a named source; the name is empty in a config without any source."""

  @classmethod
  def reads(cls, data: DataConfig) -> bool:
    return True

  @property
  def name(self) -> str:
    return self.data.mixture

  @property
  def title(self) -> str:
    return self.name

  @property
  def key(self) -> str:
    return f"{self.where}.mixture={self.name}"

  def load_task(self, architecture: str = "", *, heads: Sequence[HeadConfig] = ()) -> task_resolution.Provider:
    _check_is_one(self.data)
    provider = adapted(self.data, self.registered())
    reads_blanks = self.data.templates and architecture and not architecture_of(architecture).is_generative
    if not heads and not reads_blanks:
      return provider
    from t2t.data import head_examples

    if not heads:
      from t2t.data.head_examples import masked_words

      return masked_words.for_tokens(provider, architecture)
    return head_examples.for_heads(provider, architecture, heads)

  def registered(self) -> task_resolution.Provider:
    if self.data.labels or self.data.table:
      from t2t.data import tables

      return templated(self.data, tables.make_task(tables.with_table(self.data)))
    provider = templated(self.data, self._named())
    if self.is_alone:  # all folders belong to its tasks
      task_resolution.check_folders(provider, self.data.benchmark_dirs)
    return provider

  def _named(self) -> task_resolution.Provider:
    return task_resolution.named(self.name, modules=self.data.task_modules)

  def tasks(self) -> task_resolution.Provider | None:
    return self.registered() if self.name else None

  def _own_vocabulary(self) -> seqio.Vocabulary:
    return task_resolution.vocabulary_of(self._named())

  def patterns(self) -> dict[str, str]:
    return {f"{self.where}.eval_files": self.data.eval_files} if self.data.eval_files else {}


class TableTask(RegisteredTasks):
  """Table that `tables.with_table` has turned into a task."""

  @classmethod
  def reads(cls, data: DataConfig) -> bool:
    return bool(data.table)

  def patterns(self) -> dict[str, str]:
    from t2t.data import tables

    return tables.on_disk({f"{self.where}.{key}": self.data.table[key] for key in ("files", "eval_files")})

  def identity(self) -> dict[str, Any]:
    from t2t.data import tables

    return tables.identity(self.data.table)

  def check_files(self) -> None:
    pass  # reading the table checks it


# ---- Mixed sources ---------------------------------------------------------------------------------------------------


class MixedSources(RunSource):
  """Sources of config.data.sources, sampled as one mixture; see mixture.py."""

  key = "config.data.sources"

  @classmethod
  def reads(cls, data: DataConfig) -> bool:
    return bool(data.sources)

  @property
  def title(self) -> str:
    return ", ".join(self.data.sources)

  @functools.cached_property
  def parts(self) -> Mapping[str, RunSource]:
    return {name: of(part_data, f"{self.key}.{name}") for name, part_data in self.data.parts().items()}

  def load_task(self, architecture: str = "", *, heads: Sequence[HeadConfig] = ()) -> seqio.Mixture:
    from t2t.data import mixture

    tallies = {split: bad_records.Tally(self.data.max_bad_record_fraction) for split in ("train", "validation")}
    tasks = {}
    for name, part in self.parts.items():
      try:
        tasks[name] = part.load_task(architecture, heads=heads)
      except UserError as error:  # of keys in config.data, or of the source
        raise UserError(f"{part.where}: {error}" if part.where not in str(error) else str(error)) from error
      if isinstance(part, TextFiles):
        tasks[name].source.count_in(tallies)
    rates = mixture.rates(self.data, lambda name: self.parts[name].size(tasks[name]))
    joined = mixture.join(self.data.parts(), tasks, rates)
    task_resolution.check_folders(joined, self.data.benchmark_dirs)
    return joined

  def _own_vocabulary(self) -> seqio.Vocabulary:
    return next(iter(self.parts.values())).vocabulary()  # all are registered tasks, see `task_resolution.check`

  def names_of(self, provider: task_resolution.Provider) -> dict[str, str]:
    return {task: name for name, part in self.parts.items() for task in part.names_as(name)}

  def by_language(self, task: task_resolution.Provider) -> dict[str, task_resolution.Provider]:
    tasks = {subtask.name: subtask for subtask in task_resolution.tasks_of(task)}
    providers: dict[str, task_resolution.Provider] = {}
    for name, part in self.parts.items():
      part_tasks = [tasks[task_name] for task_name in part.names_as(name)]
      if part.data.language and any(self.data.eval_split in part_task.splits for part_task in part_tasks):
        rated = [(part_task, task.get_rate(part_task)) for part_task in part_tasks]
        providers[name] = part_tasks[0] if len(part_tasks) == 1 else seqio.Mixture(name, rated)
    return providers

  def identity_keys(self) -> frozenset[str]:
    text = _OF_TEXT | ({"dictionary", "switching_rate"} if self.data.dictionary else set())
    return frozenset({"mixing_unit", "alpha"} | (text if self.data.has_text else set()))

  def identity(self) -> dict[str, Any]:
    from t2t.data import languages

    # Otherwise a language only names a loss.
    tells_languages = bool(languages.numbers(self.data.parts())) or bool(self.data.language_tags)
    settings: dict[str, Any] = {}
    for name, part in self.parts.items():
      source_settings = dataclasses.asdict(self.data.sources[name])
      source_settings |= {} if tells_languages else {"language": ""}
      settings |= {
        f"data.sources.{name}.{key}": value for key, value in source_settings.items() if value
      } | part.identity()
    return settings

  def no_examples(self, task: str, error: bad_records.NoExamples) -> UserError:
    return self.parts[task].no_examples(task, error) if task in self.parts else error


# A config selects the first kind that reads it; see `RunSource.reads`.
KINDS: list[type[RunSource]] = [MixedSources, TextFiles, TableTask, RegisteredTasks]


def of(data: DataConfig, where: str = _ALL) -> RunSource:
  """Returns the source that a config names; for `where` see `RunSource`."""
  if data.has_tokens and not (data.labels or data.table):
    return load("t2t.data.token_task:TokenFiles")(data, where)
  return next(kind for kind in KINDS if kind.reads(data))(data, where)
