"""Feed-forward layers, the second branch of a block: rows of `config.FEED_FORWARD`."""

from collections.abc import Mapping
import functools
from typing import ClassVar

from flax import nnx
import jax
from jax.ad_checkpoint import checkpoint_name

from t2t import sharding
from t2t.models import layers
from t2t.models.auxiliary import Carried, Hidden, Term
from t2t.models.config import TransformerConfig


class FeedForward(nnx.Module):
  """Base class of feed-forward layers; each row of the table is a subclass.

  Parameters have a logical name for each axis (`layers.param`), by which a mesh splits them; "layers" is not among
  them.  A parameter with two axes is multiplied by `layers.dense`, so that an adapter can take its place.  Outputs of
  matrices have names of `remat.NAMES`, by which the backward pass keeps them.

  reads_real: whether a call is given which positions hold a token; layers that return terms need it.

  Args:
    config: shape of the model.
    rngs: of the initial values.
  """

  reads_real: ClassVar[bool] = False

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    raise NotImplementedError

  def __call__(
    self,
    x: jax.Array,
    dropout_key: jax.Array | None = None,
    *,
    real: jax.Array | None = None,
    **carried: Mapping[str, jax.Array],
  ) -> jax.Array | Hidden:
    """[batch, length, embed] -> the same, with auxiliary outputs or without.

    Args:
      x: the normed residual sum.
      dropout_key: None at evaluation.
      real: bool [batch, length], which positions hold a token, if the class `reads_real`; None: all do.
      carried: carried=name -> [batch, ...], the states that the layer returned for the rows before these; not given in
        evaluation and decoding, and to a class that carries none.
    """
    raise NotImplementedError

  @classmethod
  def terms(cls, config: TransformerConfig) -> Mapping[str, Term]:
    """The auxiliary terms that each call returns, by name."""
    del config
    return {}

  @classmethod
  def carried(cls, config: TransformerConfig) -> Mapping[str, Carried]:
    """The states, of those that each call returns, that training keeps for the next step, by name."""
    del config
    return {}

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Multiplications with parameters for each position, of which `model_flops` is made."""
    raise NotImplementedError

  @classmethod
  def inner_features(cls, config: TransformerConfig) -> float:
    """Features of each position that matrices give inside the layer, which the backward pass may keep."""
    raise NotImplementedError


class Mlp(FeedForward):
  """activation(x W_up) W_down, or activation(x W_gate) * (x W_up) W_down (Shazeer 2020)."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    embed, mlp = config.embed_dim, config.mlp_dim
    self.activation = config.mlp_activation
    # T5 alone drops out between the two products; BERT, GPT-2 and those after them only behind the second.
    self.dropout_rate = config.dropout_rate if config.broadcast_dropout else 0.0
    self.gradient_dtype, self.quantization = config.gradient_dtype, config.quantization
    scale = layers.fan_in_scale(config, embed)
    self.gate = layers.param(rngs, (embed, mlp), ("embed", "mlp"), scale=scale) if config.gated else None
    self.gate_bias = layers.bias(config, mlp, "mlp") if config.gated else None
    self.up = layers.param(rngs, (embed, mlp), ("embed", "mlp"), scale=scale)
    self.up_bias = layers.bias(config, mlp, "mlp")
    self.down = layers.param(rngs, (mlp, embed), ("mlp", "embed"), scale=layers.residual_scale(config, mlp))
    self.down_bias = layers.bias(config, embed, "embed")

  def __call__(self, x: jax.Array, dropout_key: jax.Array | None = None, *, real: jax.Array | None = None) -> jax.Array:
    """[batch, length, embed] -> [batch, length, mlp] -> [batch, length, embed]."""
    del real
    product = functools.partial(
      layers.dense, gradient_dtype=self.gradient_dtype, quantization=self.quantization, dropout_key=dropout_key
    )
    hidden = checkpoint_name(product(x, self.up, self.up_bias), "mlp_up")
    if self.gate is None:
      hidden = layers.activate(self.activation, hidden)
    else:
      gate = checkpoint_name(product(x, self.gate, self.gate_bias), "mlp_gate")
      hidden = layers.activate(self.activation, gate) * hidden
    hidden = sharding.shard(hidden, "batch", "length", "mlp")
    hidden = layers.dropout(hidden, self.dropout_rate, dropout_key, broadcast_axis=-2)
    return checkpoint_name(product(hidden, self.down, self.down_bias), "mlp_out")

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Two matrices, or three with a gate."""
    return (3 if config.gated else 2) * config.embed_dim * config.mlp_dim

  @classmethod
  def inner_features(cls, config: TransformerConfig) -> float:
    """The width inside, twice with a gate."""
    return (2 if config.gated else 1) * config.mlp_dim
