"""An adapter's run as a model by itself: what it added is merged, parameter by parameter, into what it lies on."""

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
  """An adapter's checkpoint, and its merged parameters, to be read one by one.

  Args:
    path: a workdir, whose last step counts, or one of its checkpoints.
    where: what the user named it with, for messages.

  Raises:
    UserError: there is none, it has no adapter, it is damaged, or not on top of what it was.
  """
  source = pretrained.read_source(path, where=where)
  if not source.adapters:
    raise UserError(
      f"{where}{path}: nothing adapts this model: its config has none of {', '.join(adapters_lib.ADAPTERS)}; it can be"
      " used as it is"
    )
  foreign = tensor_writer.open_foreign(str(source.path), where=where)
  lazy_tensors.check(foreign)
  return source, foreign


def save(
  source: pretrained.Source, foreign: Foreign, out: str, *, advance: atomic_output.Progress = lambda *_: None
) -> None:
  """Writes what `open_merged` gave as a workdir of t2t's, with the config of the run but for its adapter.

  No more than one layer or matrix is in memory at a time.

  Args:
    source, foreign: see `open_merged`.
    out: a folder that is not there yet, or is empty.
    advance: see `atomic_output.Progress`.

  Raises:
    UserError: there is something at `out`, or no space for it.
  """
  folder = gcs.absolute(out)
  tensor_writer.save(foreign, folder, config=_config(source, foreign, folder), advance=advance)


def _config(source: pretrained.Source, foreign: Foreign, out: epath.Path) -> dict[str, Any]:
  """Of the run, as far as it says what the model was trained on and how it is asked."""
  config = {name: dict(values) for name, values in source.run.items() if name not in OPTIONAL}
  if source.part:
    # What was trained beside it stays behind, and with it the loss that made use of both.
    config["train"]["loss"] = "cross_entropy"
  # What stands for parameters that are no more, or were not to be trained, is said of the adapted model.
  config["train"]["freeze"], config["optimizer"]["param_groups"] = (), ()
  # Who starts a run with this config starts from the merged model, not from what lay below it.
  config["init"] |= {"checkpoint": "", "reinit": (), "rename": (), "resize": ()}
  if foreign.vocabulary:
    config["data"] |= tensor_writer.vocabulary_keys(foreign, out)
  return config
