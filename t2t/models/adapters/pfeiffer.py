"""Adapters of Pfeiffer et al. 2020: a small layer behind every feed-forward layer, and there alone."""

import dataclasses

from flax import nnx

from t2t.models.adapters import Adapter, bottleneck


@dataclasses.dataclass(frozen=True)
class PfeifferConfig:
  """What they are.

  Raises:
    UserError: a field that is out of range.
  """

  bottleneck: int = 48  # their width inside; the paper's is a sixteenth of the model's
  activation: str = "relu"  # or gelu, gelu_tanh
  also_train: tuple[str, ...] = ()  # patterns over paths of parameters that are trained as they are: "norm", "bias"

  def __post_init__(self):
    bottleneck.check("pfeiffer", self.bottleneck, self.activation)
    object.__setattr__(self, "also_train", tuple(self.also_train))


def adapt(model: nnx.Module, config: PfeifferConfig, rngs: nnx.Rngs) -> nnx.Module:
  """The model with a small layer behind each feed-forward layer; see `bottleneck.adapt`."""
  return bottleneck.adapt(model, config, rngs, section="pfeiffer", branches=("mlp",))


ADAPTER = Adapter(PfeifferConfig, adapt, bottleneck.ADDED, bottleneck.base_path, merge=None)
