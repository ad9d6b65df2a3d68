"""Identity of a data position, compared when a run resumes: settings and file contents."""

from collections.abc import Sequence
import dataclasses
import hashlib
import json
from typing import Any

import seqio

from t2t.configuration.schema import DataConfig
from t2t.data import run_sources, task_resolution, vocabularies
from t2t.data.sources import file_fingerprints, named


def settings(
  data: DataConfig, vocabulary: seqio.Vocabulary, *, batch_size: int, seed: int, num_streams: int
) -> dict[str, Any]:
  """Returns the settings that determine the order of the data, by config key. Folders may move: files count by name."""
  left_out = {"eval_files", "eval_split", "task_modules", "num_streams", "files", "vocabulary"}
  left_out |= {"cache_dir", "hub_revisions"}
  # A skipped bad record does not move the others.
  left_out |= {"benchmark_dirs", "max_bad_record_fraction", "allow_changed_files"}
  left_out |= {"repeat_warning_epochs", "labels", "columns", "prefix", "table", "tokens_dtype", "tokens_end"}
  left_out |= {key for key in ("both_directions", "language_tags", "continuous_rows") if not getattr(data, key)}
  left_out |= {key for key in ("mask_rate", "random_rate", "window", "subsampling") if getattr(data, key) < 0}
  left_out |= {"templates", "template_names", "template_blank", "train_labels"}  # their contents count
  left_out |= {"max_train_examples", "subset_seed"} if data.max_train_examples == -1 else set()
  source = run_sources.of(data)
  left_out |= {"sources"} | (run_sources.IDENTITY_KEYS - source.identity_keys())
  identity = {f"data.{key}": value for key, value in dataclasses.asdict(data).items() if key not in left_out}
  identity |= source.identity()
  if "dictionary" not in left_out:
    from t2t.data.objectives import code_switching

    identity["data.dictionary"] = code_switching.named(data.dictionary)
  if data.templates:
    from t2t.data import templates

    rows = templates.load(data.templates, names=data.template_names)
    set_fields = lambda row: {key: x for key, x in dataclasses.asdict(row).items() if x and key != "where"}
    of_tasks = {task: list(map(set_fields, task_rows)) for task, task_rows in rows.items()}
    identity["data.templates"] = [_digest(of_tasks), data.template_blank]
  if data.train_labels:
    from t2t.data import label_files

    labels = label_files.read(data.train_labels)
    identity["data.train_labels"] = _digest({"rows": labels.rows, "logits": labels.logits})
  for name, folder in data.benchmark_dirs.items():
    if folder:
      identity[f"data.benchmark_dirs.{name}"] = folder.rstrip("/").rsplit("/", 1)[-1]
  return {
    **identity,
    "data.vocabulary": vocabularies.named(data.vocabulary, vocabularies.digest(vocabulary)),
    "data.num_streams": num_streams,
    "train.batch_size": batch_size,
    "train.seed": seed,
  }


def _digest(rows: Any) -> str:
  """Returns a hash of mappings and lists of texts and numbers."""
  return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]


def files(
  data: DataConfig,
  task: seqio.Task | seqio.Mixture,
  *,
  evaluated: Sequence[seqio.Task] = (),
) -> dict[str, file_fingerprints.Contents]:
  """Returns the contents of training and held-out files, by the config key that names them.

  Args:
    data: config of the data.
    task: training task.
    evaluated: evaluated tasks; those not trained on count separately, because they may change when a run resumes.
  """
  splits = (data.train_split, data.eval_split)
  contents_by_key = run_sources.of(data).file_contents()
  for key, (root, released) in task_resolution.folders_read(task, splits).items():
    contents_by_key[key] = file_fingerprints.Contents(released, where=key, root=root)
  if data.cache_dir:
    cached = task_resolution.shards((read_task.source for read_task in task_resolution.tasks_of(task)), splits)
    contents_by_key["config.data.cache_dir"] = file_fingerprints.Contents(
      cached, where="config.data.cache_dir", root=data.cache_dir
    )
  trained = task_resolution.tasks_of(task)
  for read_task in trained:
    contents_by_key |= _of_source(read_task.source, splits, where=f"the files of config.data.mixture={read_task.name}")
  for read_task in evaluated:
    if read_task.name not in {trained_task.name for trained_task in trained}:
      where = f"the files of config.eval.tasks={read_task.name}"
      contents_by_key |= _of_source(read_task.source, splits[1:], where=where)
      for root, released in task_resolution.folders_read(read_task, splits[1:]).values():
        contents_by_key[where] = file_fingerprints.Contents(released, where=where, root=root)
  return contents_by_key


def _of_source(source: seqio.DataSource, splits: Sequence[str], *, where: str) -> dict[str, file_fingerprints.Contents]:
  """Returns the file contents of a user's task, if its source is one of seqio's file sources."""
  if not isinstance(named.unwrapped(source), seqio.FileDataSource):
    return {}
  listed = task_resolution.shards([named.unwrapped(source)], splits)
  return {where: file_fingerprints.Contents(listed, where=where)} if listed else {}
