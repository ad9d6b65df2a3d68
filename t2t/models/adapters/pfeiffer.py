"""Adapters of Pfeiffer et al. 2020: a bottleneck after every feed-forward layer only."""

import dataclasses

from flax import nnx

from t2t.models.adapters import Adapter, bottleneck


@dataclasses.dataclass(frozen=True)
class PfeifferConfig:
  """Options of Pfeiffer's adapters.

  Raises:
    UserError: a field is out of range.
  """

  bottleneck: int = 48  # width of the bottleneck; in the paper a sixteenth of the model's width
  activation: str = "relu"  # activation: relu, gelu or gelu_tanh
  also_train: tuple[str, ...] = ()  # patterns over paths of other trained parameters: "norm", "bias"

  def __post_init__(self):
    bottleneck.check("pfeiffer", self.bottleneck, self.activation)
    object.__setattr__(self, "also_train", tuple(self.also_train))


def adapt(model: nnx.Module, config: PfeifferConfig, rngs: nnx.Rngs) -> nnx.Module:
  """Returns the model with a bottleneck after each feed-forward layer; see `bottleneck.adapt`."""
  return bottleneck.adapt(model, config, rngs, section="pfeiffer", branches=("mlp",))


ADAPTER = Adapter(PfeifferConfig, adapt, bottleneck.ADDED, bottleneck.base_path, merge=None)
