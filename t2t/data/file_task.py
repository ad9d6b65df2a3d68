"""Files of the user's own, as a task that has a split to train on and one that is held out."""

from collections.abc import Mapping, Sequence
import itertools

import seqio

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import objectives, sources
from t2t.data.sources import file_validation, text_files


def make(data: DataConfig, source: seqio.DataSource, vocabulary: seqio.Vocabulary, *, where: str) -> seqio.Task:
  """The task "files" of a source of text, with the objective of `data`; it is not registered.

  Args:
    data: what is read.
    source: has the splits "train" and "validation".
    vocabulary: of its text.
    where: the keys of `data` are, for messages: "config.data".

  Raises:
    UserError: no such objective.
  """
  return seqio.Task(
    "files",
    source=source,
    preprocessors=objectives.preprocessors(
      data.objective,
      noise_density=data.noise_density,
      mean_noise_span_length=data.mean_noise_span_length,
      dictionary=data.dictionary,
      switching_rate=data.switching_rate,
      both_directions=data.both_directions,
      tags=_tags(data, where=where),
      pack=data.pack,
    ),
    output_features=objectives.output_features(data.objective, vocabulary),
    shuffle_buffer_size=data.shuffle_buffer,
  )


def source(data: DataConfig, *, where: str) -> sources.FileSource:
  """The files, with what is held out of them; `where`: see `make`.

  Raises:
    UserError: a file that is not there or cannot be read, or no text.
  """
  patterns = data.source_list[0].files  # the only one, see `run_sources`
  files = text_files.find_files(patterns, where=f"{where}.files")
  annotations = data.annotations if objectives.is_annotated(data.objective) else ""
  translation = data.translation if objectives.is_parallel(data.objective) else ""
  options = {
    "field": data.field,
    "annotations": annotations,
    "translation": translation,
    "malformed": data.max_bad_record_fraction,
  }
  paths_by_key = {f"{where}.files": files}
  if data.eval_files:
    paths_by_key[f"{where}.eval_files"] = text_files.find_files(data.eval_files, where=f"{where}.eval_files")
  _check_translations(paths_by_key, field=data.field, translation=translation, where=where)
  if data.eval_files:
    return sources.FileSource(
      {"train": files, "validation": paths_by_key[f"{where}.eval_files"]},
      where={"train": f"{where}.files", "validation": f"{where}.eval_files"},
      **options,
    )
  scanned = file_validation.scan(
    files, field=data.field, where=f"{where}.files", malformed=data.max_bad_record_fraction
  )
  if scanned.complete and not file_validation.documents_by_split(scanned)["train"]:
    subject = (
      "its only document is"
      if scanned.documents == 1
      else f"its {scanned.documents:,} documents have one text, and are"
    )
    raise UserError(
      f"{where}.files={patterns}: {subject} held out, and nothing is left to train on; give text to evaluate on as"
      f" {where}.eval_files, or more documents (a line of a text file is a document)"
    )
  return sources.FileSource(
    {"train": files, "validation": files},
    where=dict.fromkeys(("train", "validation"), f"{where}.files"),
    held_out_below=file_validation.held_out_below(scanned),
    **options,
  )


def _check_translations(paths_by_key: Mapping[str, Sequence[str]], *, field: str, translation: str, where: str) -> None:
  """Refuses files that lack the translations that the objective reads, or have some that it does not.

  Args:
    paths_by_key: configuration key -> files.
    field: of the texts.
    translation: see `parallel`; "": the objective reads none.
    where: see `make`.

  Raises:
    UserError: see `bitext.check` and `bitext.check_used`.
  """
  kinds = {text_files.kind(path, where=key) for key, paths in paths_by_key.items() for path in paths}
  if not translation and kinds.isdisjoint(("pairs", "tmx")):
    return
  from t2t.data.sources import bitext

  for key, paths in paths_by_key.items():
    bitext.check(paths, field=field, translation=translation, where=key, most=file_validation.READ_WHOLE_BYTES)
  if where == "config.data":  # a source may have it of the run, for the sake of others
    bitext.check_used([*itertools.chain(*paths_by_key.values())], translation=translation, where=f"{where}.translation")


def _tags(data: DataConfig, *, where: str) -> tuple[str, str]:
  """See `languages.tags`."""
  if not data.language_tags:
    return "", ""
  from t2t.data import languages

  return languages.tags(data, where=where)
