"""Resolution of tasks: the registered tasks that the user names, mixed, with the user's files and vocabulary.

Results are copies: the registry stays unchanged, and tasks keep their registered names.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools

import seqio

from t2t import UserError, did_you_mean
from t2t.data import objectives, registry
from t2t.data.sources import named as named_sources
from t2t.data.sources import slices
from t2t.models.architecture import architecture_of

Provider = seqio.Task | seqio.Mixture

# T5's limit: the sampling rate of a larger task is capped at this number of examples (Raffel et al. 2020, section
# 3.5.2).
MAXIMUM_RATE = 2**19

# Shuffle buffer for released files, which their source shuffles as a whole: enough to separate the examples of one
# record. A buffer must be full before the first batch, in each stream for each task.
_SHUFFLE_BUFFER = 16

by_number_of_examples = functools.partial(seqio.mixing_rate_num_examples, maximum=MAXIMUM_RATE)


def tasks_of(provider: Provider) -> list[seqio.Task]:
  """Returns the task, or the tasks of a mixture."""
  return list(provider.tasks) if isinstance(provider, seqio.Mixture) else [provider]


def shards(sources: Iterable[seqio.DataSource], splits: Sequence[str]) -> list[str]:
  """Returns all files of these splits, sorted."""
  return sorted(
    {path for source in sources for split in splits if split in source.splits for path in source.list_shards(split)}
  )


# ---- Lookup ----------------------------------------------------------------------------------------------------------


def named(mixture: str, *, modules: Sequence[str]) -> Provider:
  """Returns the registered task or mixture of a name; for several, separated by commas, a mixture by numbers of
  examples.

  Args:
    mixture: names; a mixture among several contributes its tasks, not its rates.
    modules: modules that register them.

  Raises:
    UserError: a name is unknown, or the tasks cannot be mixed.
  """
  names = [name.strip() for name in mixture.split(",")]
  parts = [_guarded(registry.task_or_mixture(name, modules=modules)) for name in names]
  for part in parts:
    if not {"targets", "texts"} & set(part.output_features):
      raise UserError(
        f"config.data.mixture={mixture}: {part.name} has neither the output feature 'targets' nor the output "
        "feature 'texts'. Add 'targets' to the output_features of the task, or 'texts' for texts to compare."
      )
  if len(parts) == 1:
    return parts[0]
  tasks = list(dict.fromkeys(task for part in parts for task in tasks_of(part)))
  check_yields({task.name: tuple(task.output_features) for task in tasks}, f"config.data.mixture={mixture}: tasks")
  return seqio.Mixture(mixture, [(task, by_number_of_examples) for task in tasks])


def _guarded(provider: Provider) -> Provider:
  """Returns the task or mixture with errors of sources that name their tasks."""

  def guarded(task: seqio.Task) -> seqio.Task:
    try:
      task.metric_fns  # noqa: B018  seqio looks at their arguments when they are read
    except ValueError as error:
      raise named_sources.failure(error, task.name, what="its metric_fns cannot be used") from error
    source = named_sources.named(task.source, task.name)
    return task if source is task.source else task.replace(source=source)

  return copy(provider, guarded, lambda rate: rate)


def check_yields(features: Mapping[str, Sequence[str]], where: str) -> None:
  """Refuses tasks that cannot be mixed.

  Args:
    features: name -> output features.
    where: the user's key and the kind of `features`, for messages.

  Raises:
    UserError: the features differ; lists them.
  """
  if len(set(features.values())) > 1:
    listed = "; ".join(f"{name}: {', '.join(yielded)}" for name, yielded in features.items())
    raise UserError(
      f"{where} must yield the same features to be mixed ({listed}). Mix only data with the same features."
    )


def select(mixture: Provider, names: Sequence[str], *, where: str = "config.eval.tasks") -> list[seqio.Task]:
  """Selects tasks by name or suffix: "cb" is super_glue_cb.

  The mixture is searched first, then registered tasks that begin like its tasks.

  Args:
    mixture: mixture or task.
    names: names; empty: all tasks of the mixture.
    where: the user's key, for messages.

  Raises:
    UserError: a name matches no task or several; lists the choices.
  """
  mixture_tasks = {task.name: task for task in tasks_of(mixture)}
  if not names:
    return list(mixture_tasks.values())
  sibling_tasks = {name: _guarded(seqio.TaskRegistry.get(name)) for name in _siblings(list(mixture_tasks))}
  return list(dict.fromkeys(_select(name, mixture_tasks, sibling_tasks, where=where) for name in names))


def _siblings(names: Sequence[str]) -> list[str]:
  """Returns registered tasks that begin with the words that all of these share: tasks of the same benchmark.

  In:  super_glue_cb, super_glue_copa
  Out: tasks that begin with super_glue_
  """
  words = [name.split("_")[:-1] for name in names]
  number = 0
  while (
    all(len(name_words) > number for name_words in words) and len({name_words[number] for name_words in words}) == 1
  ):
    number += 1
  prefix = "_".join(words[0][:number]) + "_"
  return [name for name in sorted(seqio.TaskRegistry.names()) if number and name.startswith(prefix)]


def _select(
  name: str, mixture_tasks: Mapping[str, seqio.Task], sibling_tasks: Mapping[str, seqio.Task], *, where: str
) -> seqio.Task:
  for tasks in (mixture_tasks, sibling_tasks):
    if name in tasks:
      return tasks[name]
    ending = [task for task_name, task in tasks.items() if task_name.endswith(f"_{name}")]
    if len(ending) == 1:
      return ending[0]
    if ending:
      raise UserError(
        f"{where}: {name} matches several tasks: {', '.join(task.name for task in ending)}. Give the whole name."
      )
  known_tasks = [*mixture_tasks, *(sibling for sibling in sibling_tasks if sibling not in mixture_tasks)]
  raise UserError(
    f"{where}: {name} is not a task{did_you_mean(name, known_tasks) or '.'} Choose from {', '.join(known_tasks)}."
  )


# ---- Copies ----------------------------------------------------------------------------------------------------------


def adapt(
  provider: Provider,
  *,
  vocabulary: seqio.Vocabulary | None = None,
  folders: Mapping[str, str] | None = None,
  train_split: str = "train",
  eval_split: str = "validation",
) -> Provider:
  """Returns the task or mixture with other text features and sources.

  Args:
    provider: stays unchanged.
    vocabulary: vocabulary of the text features; None: each keeps its own.
    folders: key of a source -> folder of its released files; "": TensorFlow Datasets.
    train_split: split whose examples determine rates. Like `eval_split` it may be a slice of released files,
      train[:100].
    eval_split: see above.
  """
  sliced = [split for split in (train_split, eval_split) if slices.bases(split) != [split]]

  def adapted(task: seqio.Task) -> seqio.Task:
    changes = {}
    if vocabulary is not None:
      features = _with_vocabulary(task.output_features, vocabulary)
      if features != dict(task.output_features):
        changes["output_features"] = features
    folder = (
      (folders or {}).get(task.source.folder_key) if isinstance(task.source, named_sources.FolderSource) else None
    )
    if sliced and isinstance(task.source, named_sources.FolderSource):
      changes["source"] = task.source.at(folder or None, sliced=sliced)
    elif folder:
      changes["source"] = task.source.at(folder)
    if folder and task.shuffle_buffer_size is not None:
      changes["shuffle_buffer_size"] = min(task.shuffle_buffer_size, _SHUFFLE_BUFFER)
    return task.replace(**changes) if changes else task

  def rate(old: seqio.dataset_providers.MixtureRate) -> seqio.dataset_providers.MixtureRate:
    counts = isinstance(old, functools.partial) and old.func is seqio.mixing_rate_num_examples
    if train_split != "train" and counts and "split" not in old.keywords:
      return functools.partial(old, split=train_split)
    return old

  return copy(provider, adapted, rate)


def for_architecture(provider: Provider, architecture: str) -> Provider:
  """Returns the task or mixture for an architecture.

  A decoder alone reads text to text without EOS between prompt and answer. Pre-training objectives stay unchanged:
  their EOS ends the text. Templates write their blank as the architecture reads it.
  """

  def without_eos(task: seqio.Task) -> seqio.Task:
    features = dict(task.output_features)
    if "inputs" not in features or not features["inputs"].add_eos or objectives.of(task):
      return task
    features["inputs"] = dataclasses.replace(features["inputs"], add_eos=False)
    return task.replace(output_features=features)

  def with_blanks(task: seqio.Task) -> seqio.Task:
    change = lambda step: step.for_architecture(architecture) if hasattr(step, "for_architecture") else step
    steps = list(map(change, task.preprocessors))
    return task if steps == list(task.preprocessors) else task.replace(preprocessors=steps)

  provider = copy(provider, with_blanks, lambda rate: rate)
  return copy(provider, without_eos, lambda rate: rate) if architecture_of(architecture).is_decoder_only else provider


def ends_inputs(provider: Provider, architecture: str) -> bool | None:
  """Returns whether training inputs end with EOS; None if they do only in some tasks."""
  features = [task.output_features for task in tasks_of(for_architecture(provider, architecture))]
  # Where inputs and targets share positions there is no prompt.
  ends = {
    "inputs" in task_features and "both_ways" not in task_features and task_features["inputs"].add_eos
    for task_features in features
  }
  return ends.pop() if len(ends) == 1 else None


def _with_vocabulary(features: Mapping[str, seqio.Feature], vocabulary: seqio.Vocabulary) -> dict[str, seqio.Feature]:
  return {
    name: feature
    if isinstance(feature.vocabulary, seqio.PassThroughVocabulary)
    else dataclasses.replace(feature, vocabulary=vocabulary)
    for name, feature in features.items()
  }


def sample_fn(mixture: seqio.Mixture) -> Callable:
  """Returns the sampling function of a mixture."""
  return mixture._sample_fn  # seqio has no public accessor


def copy(provider: Provider, change: Callable[[seqio.Task], seqio.Task], change_rate: Callable) -> Provider:
  """Returns the task, or a mixture of the tasks, after `change`; the same object if nothing changed.

  Args:
    provider: stays unchanged.
    change: task -> its replacement.
    change_rate: rate in a mixture -> its replacement.
  """
  if isinstance(provider, seqio.Task):
    return change(provider)
  # By name, with nested mixtures: `Mixture.tasks` has their tasks instead, with computed rates, and only this attribute
  # has an unregistered mixture.
  old = provider._task_map
  parts = {name: copy(part, change, change_rate) for name, part in old.items()}
  rates = {name: change_rate(rate) for name, rate in provider.rate_per_task_name.items()}
  if parts == old and rates == provider.rate_per_task_name:
    return provider
  return seqio.Mixture(
    provider.name, [(part, rates[name]) for name, part in parts.items()], sample_fn=sample_fn(provider)
  )


# ---- Checks ----------------------------------------------------------------------------------------------------------


def check_folders(provider: Provider, folders: Mapping[str, str]) -> None:
  """Checks that a task reads each of `folders`.

  Args:
    provider: the user's task or mixture.
    folders: see `adapt`.

  Raises:
    UserError: no task reads a folder; names the nearest key, or all.
  """
  sources = [task.source for task in tasks_of(provider)]
  keys = sorted({source.folder_key for source in sources if isinstance(source, named_sources.FolderSource)})
  for key, folder in folders.items():
    if key not in keys:
      remedy = f"Known keys: {', '.join(keys)}." if keys else "Leave the key out."
      raise UserError(
        f"config.data.benchmark_dirs.{key}={folder}: no task of config.data.mixture={provider.name} reads this "
        f"folder{did_you_mean(key, keys) or '.'} {remedy}"
      )


def folders_read(provider: Provider, splits: Sequence[str]) -> dict[str, tuple[str, list[str]]]:
  """Returns the released files that the tasks read: config key -> the user's folder, and its files."""
  read: dict[str, tuple[str, set[str]]] = {}
  for task in tasks_of(provider):
    source = named_sources.unwrapped(task.source)
    if isinstance(source, named_sources.FolderSource) and source.folder:
      _, files = read.setdefault(f"config.data.benchmark_dirs.{source.folder_key}", (source.folder, set()))
      files.update(path for split in splits if split in source.splits for path in source.files_of(split))
  return {key: (folder, sorted(files)) for key, (folder, files) in read.items()}


def vocabulary_of(provider: Provider) -> seqio.Vocabulary:
  """Returns the vocabulary of the targets; of the inputs for tasks without targets (heads, compared texts)."""
  features = provider.output_features
  return features["targets" if "targets" in features else "inputs"].vocabulary


def check(provider: Provider, splits: Mapping[str, str], *, where: str) -> None:
  """Checks that a model can be trained on the tasks, as far as possible without reading them.

  Args:
    provider: adapted task or mixture.
    splits: key of config.data -> name of the split.
    where: the user's key, for messages.

  Raises:
    UserError: the tasks have different vocabularies, a split is missing, or its files cannot be used.
  """
  tasks = tasks_of(provider)
  first = vocabulary_of(tasks[0])
  for task in tasks[1:]:
    if vocabulary_of(task) != first:
      raise UserError(
        f"{where}: {tasks[0].name} and {task.name} are registered with different vocabularies. Set "
        "config.data.vocabulary to one vocabulary for all tasks."
      )
  for key, split in splits.items():
    for task in tasks:
      source = named_sources.unwrapped(task.source)
      if isinstance(source, named_sources.FolderSource) and source.folder:
        task.source.num_input_examples(split)  # reads the files
    # A mixture has a split if one of its tasks does; seqio leaves out the others.
    if split not in provider.splits:
      near = did_you_mean(split, provider.splits) or "."
      raise UserError(
        f"config.data.{key}={split}: {where} has no such split{near} Choose from {', '.join(provider.splits)}."
      )
  if isinstance(provider, seqio.Mixture):
    for task in tasks:
      _check_rate(provider, task, where)


def _check_rate(mixture: seqio.Mixture, task: seqio.Task, where: str) -> None:
  counted = mixture.rate_per_task_name.get(task.name)
  if isinstance(counted, functools.partial) and counted.func is seqio.mixing_rate_num_examples:
    split = counted.keywords.get("split", "train")
    if split in task.splits and task.num_input_examples(split) is None:
      raise UserError(
        f"{where}: tasks are mixed by their numbers of examples, but {task.name} has no number of examples. Give the "
        f"source num_input_examples={{{split!r}: NUMBER}}, or register a mixture with rates: "
        "seqio.MixtureRegistry.add(name, [(task, rate), ...])."
      )


def num_examples(provider: Provider, split: str) -> int | None:
  """Returns the number of records of the smallest task; None if counting takes more than reading lines of released
  files.
  """
  counts = [_count(task.source, split) for task in tasks_of(provider) if split in task.splits]
  return None if None in counts else min(counts, default=None)


def _count(source: seqio.DataSource, split: str) -> int | None:
  inner = named_sources.unwrapped(source)
  is_counted = isinstance(inner, seqio.FunctionDataSource)  # a given number, or None
  is_counted |= isinstance(inner, named_sources.FolderSource) and bool(inner.folder)
  return source.num_input_examples(split) if is_counted else None
