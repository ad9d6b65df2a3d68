"""Adapters of Houlsby et al. 2019: a bottleneck after every attention and every feed-forward layer."""

import dataclasses

from flax import nnx

from t2t.models.adapters import Adapter, bottleneck


@dataclasses.dataclass(frozen=True)
class HoulsbyConfig:
  """Options of Houlsby's adapters.

  Raises:
    UserError: a field is out of range.
  """

  bottleneck: int = 64  # width of the bottleneck
  activation: str = "gelu"  # activation: gelu, gelu_tanh or relu
  also_train: tuple[str, ...] = ("norm",)  # patterns over paths of other trained parameters; default as in the paper

  def __post_init__(self):
    bottleneck.check("houlsby", self.bottleneck, self.activation)
    object.__setattr__(self, "also_train", tuple(self.also_train))


def adapt(model: nnx.Module, config: HoulsbyConfig, rngs: nnx.Rngs) -> nnx.Module:
  """Returns the model with a bottleneck after each branch of its layers; see `bottleneck.adapt`."""
  branches = ("self_attention", "cross_attention", "mlp")
  return bottleneck.adapt(model, config, rngs, section="houlsby", branches=branches)


ADAPTER = Adapter(HoulsbyConfig, adapt, bottleneck.ADDED, bottleneck.base_path, merge=None)
