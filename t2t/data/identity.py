"""What a position in the data belongs to, and is compared with when a run goes on: settings, and what files hold."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import seqio

from t2t.configuration.schema import DataConfig
from t2t.data import objectives, selection, streams, vocabularies
from t2t.data.sources import contents, named, text_files


def settings(
  data: DataConfig, vocabulary: seqio.Vocabulary, *, batch_size: int, seed: int, num_streams: int
) -> dict[str, Any]:
  """What the order of the data depends on, by configuration key.  Folders may move: files count by their names."""
  left_out = {"eval_files", "eval_split", "task_modules", "num_streams", "files", "vocabulary", "cache_dir", "folders"}
  left_out |= {"malformed", "files_may_change"}  # a record that is left out leaves all others in their place
  left_out |= {"most_epochs", "labels", "columns", "prefix", "table"}
  left_out |= set() if data.language_tags and data.files else {"language"}  # which names a loss otherwise
  left_out |= {key for key in ("both_directions", "language_tags") if not getattr(data, key)}
  left_out |= {"sources"} | (set() if data.sources else {"size", "alpha"})
  left_out |= set() if data.files and objectives.is_annotated(data.objective) else {"annotations"}
  left_out |= set() if data.files and objectives.is_parallel(data.objective) else {"translation"}
  own_text = any(source.files for source in data.source_list)
  switches = data.dictionary and own_text
  left_out |= set() if switches else {"dictionary", "switching_rate"}
  identity = {f"data.{key}": value for key, value in dataclasses.asdict(data).items() if key not in left_out}
  if not own_text:
    identity = {key: value for key, value in identity.items() if key not in streams.OF_FILES}
  if data.files:
    # Documents that are held out are not trained on.
    identity["data.eval_files"] = "given" if data.eval_files else "empty: about 1 % of data.files is held out"
    identity["data.files"] = contents.summary(_with_beside(data, text_files.find_files(data.files)))
  if data.table:
    from t2t.data import tables

    identity |= tables.identity(data.table)
  if data.sources:
    identity |= _of_sources(data)
  if switches:
    from t2t.data.objectives import switching

    identity["data.dictionary"] = switching.named(data.dictionary)
  for name, folder in data.folders.items():
    if folder:
      identity[f"data.folders.{name}"] = folder.rstrip("/").rsplit("/", 1)[-1]
  return {
    **identity,
    "data.vocabulary": streams.vocabulary_name(data.vocabulary, vocabularies.digest(vocabulary)),
    "data.num_streams": num_streams,
    "train.batch_size": batch_size,
    "train.seed": seed,
  }


def _of_sources(data: DataConfig) -> dict[str, Any]:
  from t2t.data import languages, mixed

  each, found = mixed.each(data), {}
  tells_languages = bool(languages.numbers(each)) or bool(data.language_tags)
  for name, own in each.items():
    source = data.sources[name]
    said = {key: value for key, value in dataclasses.asdict(source).items() if value}
    if not tells_languages:  # then it names a loss, and changes no example
      said.pop("language", None)
    if source.files:
      held_out = "given" if source.eval_files else "empty: about 1 % of files is held out"
      read = _with_beside(own, text_files.find_files(source.files))
      said |= {"files": contents.summary(read), "eval_files": held_out}
      if objectives.is_parallel(own.objective):
        said["translation"] = own.translation
      if objectives.is_annotated(own.objective):
        said["annotations"] = own.annotations
    found |= {f"data.sources.{name}.{key}": value for key, value in said.items()}
  return found


def _with_beside(data: DataConfig, paths: Sequence[str]) -> tuple[str, ...]:
  """Files, and those beside them that hold the translations of their lines."""
  if not objectives.is_parallel(data.objective):
    return tuple(paths)
  from t2t.data.sources import parallel

  others = (parallel.beside(path, translation=data.translation, where="config.data.files") for path in paths)
  return (*paths, *filter(None, others))


def files(
  data: DataConfig,
  task: seqio.Task | seqio.Mixture,
  *,
  sources: Mapping[str, DataConfig] | None = None,
  evaluated: Sequence[seqio.Task] = (),
) -> dict[str, contents.Contents]:
  """What the files hold that are trained on, and that are held out, by the configuration key that names them.

  Args:
    data: what is read.
    task: which is trained on.
    sources: that it mixes, see `mixed.each`; None: one corpus.
    evaluated: tasks that are measured; those that are not trained on count by themselves, since they may be others when
      a run goes on.
  """
  splits = (data.train_split, data.eval_split)
  read = {"config.data": _with_files_of_table(data)} | {
    f"config.data.sources.{name}": own for name, own in (sources or {}).items()
  }
  found = {
    where: contents.Contents(_with_beside(each, text_files.find_files(patterns, where=where)), where=where)
    for begin, each in read.items()
    for key in ("files", "eval_files")
    if (patterns := getattr(each, key)) and (where := f"{begin}.{key}")
  }
  for key, (root, released) in selection.folders_read(task, splits).items():
    found[key] = contents.Contents(released, where=key, root=root)
  if data.cache_dir:
    cached = selection.shards((each.source for each in selection.tasks_of(task)), splits)
    found["config.data.cache_dir"] = contents.Contents(cached, where="config.data.cache_dir", root=data.cache_dir)
  trained = selection.tasks_of(task)
  for each in trained:
    found |= _of_source(each.source, splits, where=f"the files of config.data.mixture={each.name}")
  for each in evaluated:
    if each.name not in {own.name for own in trained}:
      where = f"the files of config.eval.tasks={each.name}"
      found |= _of_source(each.source, splits[1:], where=where)
      for root, released in selection.folders_read(each, splits[1:]).values():
        found[where] = contents.Contents(released, where=where, root=root)
  return found


def _with_files_of_table(data: DataConfig) -> DataConfig:
  if not data.table:
    return data
  from t2t.data import tables

  return dataclasses.replace(data, **tables.on_disk({key: data.table[key] for key in ("files", "eval_files")}))


def _of_source(source: seqio.DataSource, splits: Sequence[str], *, where: str) -> dict[str, contents.Contents]:
  """What the files of a task of the user's own hold, where its source is one of seqio's that says which they are."""
  if not isinstance(named.own(source), seqio.FileDataSource):
    return {}
  listed = selection.shards([source], splits)
  return {where: contents.Contents(listed, where=where)} if listed else {}
