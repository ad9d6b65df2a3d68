"""Merges an adapter into its base model, parameter by parameter."""

from typing import Any

from etils import epath

from t2t import UserError
from t2t.checkpoints import pretrained, tensor_writer
from t2t.configuration.schema import OPTIONAL
from t2t.convert import atomic_output, lazy_tensors
from t2t.convert.lazy_tensors import Foreign
from t2t.models import adapters as adapters_lib
from t2t.storage import gcs


def open_merged(path: str, *, where: str = "") -> tuple[pretrained.Source, Foreign]:
  """Opens an adapter's checkpoint; returns it, and its merged parameters as lazy tensors.

  Args:
    path: a workdir, for its last step, or one of its checkpoints.
    where: the option or key of the path, for messages.

  Raises:
    UserError: there is no checkpoint, it has no adapter, it is damaged, or its base has changed.
  """
  source = pretrained.read_source(path, where=where)
  if not source.adapters:
    raise UserError(
      f"{where}{path}: the model has no adapter (its config has none of {', '.join(adapters_lib.ADAPTERS)}). Use "
      "the checkpoint without merging."
    )
  foreign = tensor_writer.open_foreign(str(source.path), where=where)
  lazy_tensors.check(foreign)
  return source, foreign


def save(
  source: pretrained.Source, foreign: Foreign, out: str, *, advance: atomic_output.Progress = lambda *_: None
) -> None:
  """Writes the result of `open_merged` as a t2t workdir, with the run's config without its adapter.

  At most one layer or matrix is in memory at a time.

  Args:
    source, foreign: see `open_merged`.
    out: a folder that does not exist or is empty.
    advance: see `atomic_output.Progress`.

  Raises:
    UserError: `out` is not empty, or the disk is full.
  """
  folder = gcs.absolute(out)
  tensor_writer.save(foreign, folder, config=run_config(source, foreign, folder), advance=advance)


def run_config(source: pretrained.Source, foreign: Foreign, out: epath.Path) -> dict[str, object]:
  """Returns the run's config for other parameters, as far as it describes training data and inference."""
  config: dict[str, Any] = {name: dict(values) for name, values in source.run.items() if name not in OPTIONAL}
  if source.part:
    # Modules trained beside the model are left out, and with them the loss that used both.
    config["train"]["loss"] = "cross_entropy"
  if source.model.embedding_difference:
    config["model"]["embedding_difference"] = foreign.model.embedding_difference
  # These keys refer to parameters of the adapted model.
  config["train"]["freeze"], config["optimizer"]["param_groups"] = (), ()
  # A run with this config starts from the merged model, not from the base.
  config["init"] |= {"checkpoint": "", "reinit": (), "rename": (), "resize": (), "tile": ()}
  if foreign.vocabulary:
    config["data"] |= tensor_writer.vocabulary_keys(foreign, out)
  return config
