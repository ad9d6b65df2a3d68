"""Data of many runs in one process: checks, held-out batches and evaluations of equal data are made once."""

import collections
from collections.abc import Callable, Sequence
import dataclasses
from typing import TYPE_CHECKING, Any

from flax import nnx
import jax

from t2t.configuration.schema import CheckpointConfig, Config, InitConfig, OptimizerConfig
from t2t.configuration.stages import Stage
from t2t.data import vocabularies
from t2t.models.architecture import Batch
from t2t.training import stage_program

if TYPE_CHECKING:
  from t2t.evaluation import evaluate

_MOST = 12  # results in memory: those of four configs


class RememberedData:
  """`stage_program.Data` of the config, for commands that train many runs with the same data.

  A study fine-tunes each arm on the same tasks: building and checking them takes longer than 300 steps of a tiny model.
  Other attributes are those of `stage_program.from_config`.
  """

  def __init__(self) -> None:
    self._data = stage_program.from_config()
    self._checked: set[str] = set()
    self._results: collections.OrderedDict[str, Any] = collections.OrderedDict()

  def __getattr__(self, name: str) -> Any:
    return getattr(self._data, name)

  def check_stages(self, run: Sequence[Stage]) -> None:
    """Checks a run unless an earlier one with equal data has passed."""
    key = "; ".join(self._key(stage.config) for stage in run)
    if key not in self._checked:
      self._data.check_stages(run)
      self._checked.add(key)

  def eval_batches(self, config: Config, mesh: jax.sharding.Mesh) -> list[Batch]:
    """Returns the held-out batches, which must not be changed."""
    return self._remembered("all", config, mesh, lambda: self._data.eval_batches(config, mesh))

  def eval_batches_by_source(self, config: Config, mesh: jax.sharding.Mesh) -> dict[str, list[Batch]]:
    """Returns the held-out batches of each source that names its language."""
    make = lambda: self._data.eval_batches_by_source(config, mesh)
    return self._remembered("by source", config, mesh, make)

  def evaluation(self, config: Config, graphdef: nnx.GraphDef, mesh: jax.sharding.Mesh) -> "evaluate.Evaluation | None":
    """Returns the evaluation of the tasks, with its examples and compiled programs."""
    return self._remembered("tasks", config, mesh, lambda: self._data.evaluation(config, graphdef, mesh))

  def _remembered(self, kind: str, config: Config, mesh: jax.sharding.Mesh, make: Callable[[], Any]) -> Any:
    key = f"{kind}; {mesh.devices.tolist()}; {mesh.axis_names}; {self._key(config)}"
    if key not in self._results:
      self._results[key] = make()
      while len(self._results) > _MOST:
        self._results.popitem(last=False)
    self._results.move_to_end(key)
    return self._results[key]

  def _key(self, config: Config) -> str:
    """Returns the config as text, without sections and keys that no function of the data reads.

    A run that starts from a checkpoint reads its copy of the vocabulary, so the content counts and not the folder.
    """
    train = dataclasses.replace(config.train, seed=0)
    rest = {"optimizer": OptimizerConfig(), "init": InitConfig(), "checkpoint": CheckpointConfig(), "train": train}
    vocabulary = self._data.vocabulary(config)
    content = "" if vocabulary is None else vocabularies.digest(vocabulary)  # of a custom class: ""
    return repr(dataclasses.replace(config.with_(data={"vocabulary": content or config.data.vocabulary}), **rest))
