"""What a position in the data belongs to, and is compared with when a run goes on: settings, and what files hold."""

import dataclasses
from typing import Any

import seqio

from t2t.config import DataConfig
from t2t.data import objectives, offline_cache, selection, streams, vocabularies
from t2t.data.sources import contents, text_files


def settings(
  data: DataConfig, vocabulary: seqio.Vocabulary, *, batch_size: int, seed: int, num_streams: int
) -> dict[str, Any]:
  """What the order of the data depends on, by configuration key.  Folders may move: files count by their names."""
  left_out = {"eval_files", "eval_split", "task_modules", "num_streams", "files", "vocabulary", "cache_dir", "folders"}
  left_out |= {"malformed", "files_may_change"}  # a record that is left out leaves all others in their place
  left_out |= set() if data.files and objectives.is_annotated(data.objective) else {"annotations"}
  identity = {f"data.{key}": value for key, value in dataclasses.asdict(data).items() if key not in left_out}
  if not data.files:
    identity = {key: value for key, value in identity.items() if key not in streams.OF_FILES}
  else:
    # Documents that are held out are not trained on.
    identity["data.eval_files"] = "given" if data.eval_files else "empty: about 1 % of data.files is held out"
    identity["data.files"] = contents.summary(text_files.find_files(data.files))
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


def files(data: DataConfig, task: seqio.Task | seqio.Mixture) -> dict[str, contents.Contents]:
  """What the files hold that are trained on, and that are held out, by the configuration key that names them."""
  found = {
    f"config.data.{key}": contents.Contents(text_files.find_files(patterns, where=where), where=where)
    for key in ("files", "eval_files")
    if (patterns := getattr(data, key)) and (where := f"config.data.{key}")
  }
  for key, (root, released) in selection.folders_read(task, (data.train_split, data.eval_split)).items():
    found[key] = contents.Contents(released, where=key, root=root)
  if data.cache_dir:
    cached = offline_cache.files(task, (data.train_split, data.eval_split))
    found["config.data.cache_dir"] = contents.Contents(cached, where="config.data.cache_dir", root=data.cache_dir)
  return found
