"""Task over the user's own files, with a training split and a held-out split."""

from collections.abc import Mapping, Sequence
import itertools

import seqio

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import objectives, sources
from t2t.data.sources import file_validation, text_files


def make(data: DataConfig, source: seqio.DataSource, vocabulary: seqio.Vocabulary, *, where: str) -> seqio.Task:
  """Makes the unregistered task "files" of a text source, with the objective of `data`.

  Args:
    data: config of the data.
    source: source with the splits "train" and "validation".
    vocabulary: vocabulary of the text.
    where: prefix of the keys of `data`, for messages: "config.data".

  Raises:
    UserError: the objective does not exist.
  """
  return seqio.Task(
    "files",
    source=source,
    preprocessors=objectives.preprocessors(
      data.objective,
      noise_density=data.noise_density,
      mean_noise_span_length=data.mean_noise_span_length,
      mask_rate=data.mask_rate,
      random_rate=data.random_rate,
      window=data.window,
      subsampling=data.subsampling,
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
  """Returns the source of the files with a held-out part; for `where` see `make`.

  Raises:
    UserError: a file is missing or unreadable, or there is no text.
  """
  patterns = data.source_list[0].files  # the only source, see `run_sources`
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
      "the only document is"
      if scanned.documents == 1
      else f"all {scanned.documents:,} documents have the same text, and are"
    )
    raise UserError(
      f"{where}.files={patterns}: {subject} held out, so nothing is left to train on. Give evaluation text as "
      f"{where}.eval_files, or more documents. A line of a text file is a document."
    )
  return sources.FileSource(
    {"train": files, "validation": files},
    where=dict.fromkeys(("train", "validation"), f"{where}.files"),
    held_out_below=file_validation.held_out_below(scanned),
    **options,
  )


def _check_translations(paths_by_key: Mapping[str, Sequence[str]], *, field: str, translation: str, where: str) -> None:
  """Refuses files without the translations that the objective reads, or with translations that it does not read.

  Args:
    paths_by_key: config key -> files.
    field: field of the texts.
    translation: see `bitext`; "": the objective reads none.
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
  if where == "config.data":  # a source may inherit it from the run, for other sources
    bitext.check_used([*itertools.chain(*paths_by_key.values())], translation=translation, where=f"{where}.translation")


def _tags(data: DataConfig, *, where: str) -> tuple[str, str]:
  """Returns the tags of both directions, see `languages.tags`."""
  if not data.language_tags:
    return "", ""
  from t2t.data import languages

  return languages.tags(data, where=where)
