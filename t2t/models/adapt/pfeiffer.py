"""Adapters of Pfeiffer et al. 2020: a small layer behind every feed-forward layer, and there alone."""

import dataclasses

from flax import nnx

from t2t.models.adapt import bottleneck, patterns


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
  """The model with a small layer behind each feed-forward layer, in front of the residual sum.

  Raises:
    UserError: a pattern of `also_train` that matches no parameter.
  """
  model = bottleneck.insert(model, ("mlp",), rngs, size=config.bottleneck, activation=config.activation)
  patterns.check(config.also_train, "config.pfeiffer.also_train", patterns.paths_of(model))
  return model
