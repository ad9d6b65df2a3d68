"""The block of recurrent models: one recurrent layer, without attention and norms; a row of `config.BLOCKS`."""

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.contrib.recurrent import layer
from t2t.contrib.recurrent.cells import State
from t2t.models import attention, auxiliary
from t2t.models.auxiliary import Auxiliary
from t2t.models.config import TransformerConfig
from t2t.models.masks import AttentionMask


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RecurrentCache(attention.KVCache):
  """States instead of keys and values, [batch, beams, width] each: of an LSTM the outputs and the cells."""

  def follow(self, parents: jax.Array) -> "RecurrentCache":
    """Returns the states in which each beam continues another beam, `parents` int [batch, beams]."""
    taken = lambda x: jnp.take_along_axis(x, parents.reshape(*[1] * (x.ndim - 3), *parents.shape, 1), axis=-2)
    return jax.tree.map(taken, self)


class RecurrentBlock(nnx.Module):
  """A recurrent layer as the block of a stack; parameters are under mlp/, see `layer`."""

  is_recurrent: ClassVar[bool] = True

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, cross: bool, only_cross: bool = False):
    del cross, only_cross  # `check` refuses encoder-decoders
    self.mlp: Any = config.feed_forward_class(config, rngs) if len(config.feed_forward_pattern) == 1 else None

  def __call__(
    self,
    x: jax.Array,
    *,
    mask: AttentionMask,
    cache: attention.KVCache | None = None,
    probe: object = None,
    real: jax.Array | None = None,
    carried: Mapping[str, jax.Array] | None = None,
    dropout_key: jax.Array | None = None,
    **unread: object,
  ) -> tuple[jax.Array, attention.KVCache | jax.Array | None, Auxiliary]:
    """Maps [batch, length, input] to [batch, length, output]; see `stack.Layer.__call__`, which has the arguments.

    With a cache, `x` has a position of each beam. The returned cache has one beam of each row without a cache.
    """
    del unread
    if probe is not None:
      raise UserError(
        "config.model.block=recurrent has no attention probabilities and no states for distillation. Give a model with "
        "config.model.block=transformer."
      )
    if cache is not None:
      rows, beams = x.shape[:2]
      flat = lambda y: y.reshape(rows * beams, *y.shape[2:])
      hidden, state = self.mlp(flat(x)[:, None], state=(flat(cache.keys), flat(cache.values)))
      states = (y.reshape(rows, beams, -1) for y in state)
      return hidden.x.reshape(rows, beams, -1), RecurrentCache(*states), hidden.aux
    before: State | None = None
    if carried:
      before = carried[layer.OUTPUT], carried[layer.CELL]
    hidden, state = self.mlp(
      x, dropout_key, real=real, segments=mask.query_segments, state=before, returns_state=bool(carried)
    )
    hidden = auxiliary.hidden_of(hidden)
    return hidden.x, RecurrentCache(*(y[:, None] for y in state)), hidden.aux

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Returns multiplications with parameters per position, for `model_flops`."""
    return config.feed_forward_class.multiply_adds(config)

  @classmethod
  def inner_features(cls, config: TransformerConfig) -> float:
    """Returns features per position of matrix outputs inside of the layers."""
    return config.feed_forward_class.inner_features(config)
