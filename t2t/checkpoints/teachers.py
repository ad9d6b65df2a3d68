"""Teachers of a run, `config.distillation.teacher`: their models are read from their checkpoints, and checked."""

import dataclasses
import json
from typing import Any

from etils import epath

from t2t import UserError, losses
from t2t.checkpoints import logit_files, manager, pretrained, restore, verify
from t2t.configuration.schema import Config
from t2t.models.config import TransformerConfig
from t2t.param_tree import Vocabulary
from t2t.runtime import hosts
from t2t.storage import gcs

Sources = dict[str, pretrained.Source]  # path -> description of a teacher's checkpoint, once it has been read


def resolved(config: Config, workdir: epath.Path | None = None, sources: Sources | None = None) -> Config:
  """Returns the config with the models of its teachers, from their checkpoints; other configs unchanged.

  A config with logits in place of teachers gets the settings of their files, see `logit_files.resolved`.
  A resumed run takes the model of a teacher with an unchanged path from its own config. A new path, of a teacher that
  has moved, must have the same model; the digests of its parameters are compared when the run restores its checkpoint.

  Args:
    config: of a run.
    workdir: of the run; None: of a command without one.
    sources: receives the checkpoints that are read, and has those that are not read again.

  Raises:
    UserError: a teacher does not exist, is the run itself, has an adapter, or is not the teacher of the resumed run.
  """
  if not losses.has_teacher(config):
    return config
  if config.distillation.logits:
    return logit_files.resolved(config, _saved_settings(workdir) if workdir is not None else {})
  paths, known = config.distillation.teacher, {} if sources is None else sources
  model_of = lambda path: _model(path, known)
  if workdir is None:
    return config.with_(distillation={"models": tuple(map(model_of, paths))})
  for path in paths:
    _check_other_folder(path, workdir)
  saved = _saved(workdir)
  if saved and len(saved) != len(paths):
    raise UserError(
      f"{_where(','.join(paths))}: the run in {workdir} has the teachers {','.join(path for path, _ in saved)}. Give "
      "these teachers, or another --workdir."
    )
  models = (
    tuple(
      model if gcs.is_same_path(path, saved_path) else _moved_model(path, saved_path, model, workdir, known)
      for path, (saved_path, model) in zip(paths, saved, strict=True)
    )
    if saved
    else tuple(map(model_of, paths))
  )
  return config.with_(distillation={"models": models})


def _saved(workdir: epath.Path) -> list[tuple[str, str]]:
  """Returns the path and the model of each teacher in the last checkpoint's config; [] if there is none."""
  saved = _saved_settings(workdir)
  paths, models = saved.get("teacher", ()), saved.get("models", ())
  return list(zip(paths, models, strict=True)) if len(paths) == len(models) else []


def _saved_settings(workdir: epath.Path) -> dict[str, Any]:
  """Returns config.distillation of the last checkpoint; {} if there is none."""
  steps = verify.steps(workdir / manager.CHECKPOINTS)
  if not steps:
    return {}
  try:
    saved: Any = restore.read_config(workdir / manager.CHECKPOINTS / str(max(steps))).get("distillation", {})
  except UserError:
    return {}  # `open_run` reports a damaged workdir
  return saved


def _moved_model(path: str, saved_path: str, saved: str, workdir: epath.Path, sources: Sources) -> str:
  """Returns the saved model of a teacher that has moved to `path`, after a comparison with the model there."""
  model = _model(path, sources)
  now, before = (TransformerConfig(**json.loads(text)) for text in (model, saved))
  # Conversion changes neither shapes nor functions, but these settings.
  ignored = {"dtype": "float32", "dropout_rate": 0.0, "remat": "none"}
  now, before = (dataclasses.replace(x, **ignored) for x in (now, before))
  for key, value in dataclasses.asdict(before).items():
    if getattr(now, key) != getattr(before, key):
      raise UserError(
        f"{_where(path)} is not the teacher of the run in {workdir}, which was {saved_path}: config.model.{key} is "
        f"{getattr(now, key)!r}, expected {value!r}. Give the run's teacher, or another --workdir."
      )
  return saved


def _where(path: str) -> str:
  return f"config.distillation.teacher={path}"


def _check_other_folder(path: str, workdir: epath.Path) -> None:
  folder, run_folder = gcs.canonical(path), gcs.canonical(str(workdir))
  if folder == run_folder or folder.startswith(f"{run_folder}/"):
    raise UserError(
      f"{_where(path)} is the run's own --workdir. Give the checkpoint of a trained teacher, or another --workdir."
    )


def _source(path: str, sources: Sources) -> pretrained.Source:
  if path not in sources:
    sources[path] = pretrained.read_source(path, where="config.distillation.teacher=")
  return sources[path]


def _model(path: str, sources: Sources) -> str:
  """Returns the model config of a teacher, as JSON."""
  source = _source(path, sources)
  pretrained.check_may_be_base(source, where=_where(path))
  for name in source.adapters:
    raise UserError(f"{_where(path)}: the teacher has config.{name}, which cannot be merged. Give another teacher.")
  return json.dumps(dataclasses.asdict(source.model), sort_keys=True)


def check_vocabularies(config: Config, vocabulary: Vocabulary | None, sources: Sources) -> None:
  """Checks that the ids of a run have the same tokens for its teachers.

  Args:
    config: of a run.
    vocabulary: of the run; None: unknown.
    sources: see `resolved`.

  Raises:
    UserError: a teacher has another vocabulary; with the first difference.
  """
  if losses.has_teacher(config) and config.distillation.logits:
    logit_files.check_vocabulary(config, vocabulary)
  for path in config.distillation.teacher if losses.has_teacher(config) else ():
    source = _source(path, sources)
    if vocabulary is None or not source.vocabulary:
      owner = "run (config.data.vocabulary is empty)" if vocabulary is None else "teacher"
      hosts.log_once(f"{_where(path)}: the vocabularies cannot be compared, because that of the {owner} is unknown")
      continue
    from t2t.data.vocabularies import vocab_checkpoint

    trained: Any = pretrained.vocabulary(source)
    configured: Any = vocabulary
    can_compare = vocab_checkpoint.digest(trained) and vocab_checkpoint.digest(configured)  # not of custom classes
    if can_compare and (text := vocab_checkpoint.difference(trained, configured)):
      raise UserError(
        f"{_where(path)} was trained with another vocabulary than the run's ({text}). Give the teacher's vocabulary, "
        f"config.data.vocabulary={gcs.origin(source.vocabulary)} with config.data.extra_ids={source.extra_ids}, or "
        "another teacher."
      )
