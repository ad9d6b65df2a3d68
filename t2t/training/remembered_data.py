"""Data of many runs in one process: checks and held-out batches of equal data are made once."""

import collections
from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import jax

from t2t.configuration.schema import CheckpointConfig, Config, InitConfig, OptimizerConfig
from t2t.configuration.stages import Stage
from t2t.models.architecture import Batch
from t2t.training import stage_program

_MOST = 8  # results in memory: held-out batches of four configs, whole and by source


class RememberedData:
  """`stage_program.Data` of the config, for commands that train many runs with the same data.

  A study fine-tunes each arm on the same tasks: building and checking them takes longer than 300 steps of a tiny model.
  Other attributes are those of `stage_program.from_config`.
  """

  def __init__(self) -> None:
    self._data = stage_program.from_config()
    self._checked: set[str] = set()
    self._batches: collections.OrderedDict[str, Any] = collections.OrderedDict()

  def __getattr__(self, name: str) -> Any:
    return getattr(self._data, name)

  def check_stages(self, run: Sequence[Stage]) -> None:
    """Checks a run unless an earlier one with equal data has passed."""
    key = "; ".join(_key(stage.config) for stage in run)
    if key not in self._checked:
      self._data.check_stages(run)
      self._checked.add(key)

  def eval_batches(self, config: Config, mesh: jax.sharding.Mesh) -> list[Batch]:
    """Returns the held-out batches, which must not be changed."""
    return self._kept("all", config, mesh, self._data.eval_batches)

  def eval_batches_by_source(self, config: Config, mesh: jax.sharding.Mesh) -> dict[str, list[Batch]]:
    """Returns the held-out batches of each source that names its language."""
    return self._kept("by source", config, mesh, self._data.eval_batches_by_source)

  def _kept(self, kind: str, config: Config, mesh: jax.sharding.Mesh, make: Callable) -> Any:
    key = f"{kind}; {mesh.devices.tolist()}; {mesh.axis_names}; {_key(config)}"
    if key not in self._batches:
      self._batches[key] = make(config, mesh)
      while len(self._batches) > _MOST:
        self._batches.popitem(last=False)
    self._batches.move_to_end(key)
    return self._batches[key]


def _key(config: Config) -> str:
  """Returns the config as text, without sections and keys that no function of the data reads."""
  train = dataclasses.replace(config.train, seed=0)
  rest = {"optimizer": OptimizerConfig(), "init": InitConfig(), "checkpoint": CheckpointConfig(), "train": train}
  return repr(dataclasses.replace(config, **rest))
