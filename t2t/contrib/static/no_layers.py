"""A block without parameters, so that an encoder's states are the vectors of its tokens."""

from typing import Any, ClassVar

from flax import nnx
import jax

from t2t.models.auxiliary import Auxiliary
from t2t.models.config import TransformerConfig


class NoLayer(nnx.Module):
  """Returns its input; has the interface of `stack.Layer`."""

  is_recurrent: ClassVar[bool] = False

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, cross: bool, only_cross: bool = False):
    del config, rngs, cross, only_cross

  def __call__(self, x: jax.Array, **options: Any) -> tuple[jax.Array, None, Auxiliary]:
    del options
    return x, None, Auxiliary()

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    del config
    return 0.0

  @classmethod
  def inner_features(cls, config: TransformerConfig) -> float:
    del config
    return 0.0
