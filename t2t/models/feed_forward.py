"""Feed-forward layers, the second branch of a block, registered in `config.FEED_FORWARD`."""

from collections.abc import Mapping
import functools
from typing import ClassVar

from flax import nnx
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from t2t import sharding
from t2t.models import chunks, layers
from t2t.models.auxiliary import Carried, Hidden, Term
from t2t.models.config import FEED_FORWARD, TransformerConfig


class FeedForward(nnx.Module):
  """Base class of feed-forward layers; each row of the table is a subclass.

  Parameters have a logical name for each axis (`layers.param`), by which a mesh splits them, without "layers".
  Parameters with two axes are multiplied by `layers.dense`, so that an adapter can replace them. Outputs of matrices
  are named by `remat.NAMES`, so that the backward pass can keep them.

  reads_real: whether calls take the mask of real positions, and is_decoding; layers that return terms need them.

  Args:
    config: shape of the model.
    rngs: random keys of the initial values.
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
    is_decoding: bool = False,
    **carried: Mapping[str, jax.Array],
  ) -> jax.Array | Hidden:
    """Maps [batch, length, embed] to the same shape, optionally with auxiliary outputs.

    Args:
      x: normed residual stream.
      dropout_key: None at evaluation.
      real: bool [batch, length], positions with a token, if the class `reads_real`; None: all positions.
      is_decoding: whether positions are beams or drafts of decoding; given only to classes that `reads_real`.
      carried: carried=name -> [batch, ...], states that the layer returned for the previous rows; only in training, and
        only for classes with carried states.
    """
    raise NotImplementedError

  @classmethod
  def pattern(cls, config: TransformerConfig) -> tuple[str, ...]:
    """Returns rows of `FEED_FORWARD` that the layers have in turn: layer i has row i modulo the length.

    The number of layers must be a multiple of the length. Terms are those of `config.feed_forward`, and layers with
    carried states cannot alternate with others.
    """
    return (config.feed_forward,)

  @classmethod
  def terms(cls, config: TransformerConfig) -> Mapping[str, Term]:
    """Returns the auxiliary terms of each call by name."""
    del config
    return {}

  @classmethod
  def carried(cls, config: TransformerConfig) -> Mapping[str, Carried]:
    """Returns the states of each call that training keeps for the next step, by name."""
    del config
    return {}

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Returns multiplications with parameters per position, for `model_flops`."""
    raise NotImplementedError

  @classmethod
  def idle_parameters(cls, config: TransformerConfig) -> float:
    """Returns the parameters of a layer that a position does not use."""
    del config
    return 0.0

  @classmethod
  def inner_features(cls, config: TransformerConfig) -> float:
    """Returns features per position of the layer's inner matrix outputs, which the backward pass may keep."""
    raise NotImplementedError


class Alternating(nnx.Module):
  """Feed-forward layers of a stack whose layers differ: for each row of the pattern a module with a leading axis.

  Parameters are under mlp/ROW/layers/; only layers with a row have its parameters.
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, num_layers: int):
    self.pattern = config.feed_forward_pattern
    for row in dict.fromkeys(self.pattern):
      keys = jax.random.split(rngs.params(), num_layers // len(self.pattern) * self.pattern.count(row))
      make = functools.partial(FEED_FORWARD[row], config)
      setattr(self, row, nnx.Dict(layers=jax.vmap(lambda key, make=make: make(nnx.Rngs(key)))(keys)))

  def of_layer(self, index: int) -> FeedForward:
    """Returns the feed-forward layer of the layer with this index."""
    group, place = divmod(index, len(self.pattern))
    row = self.pattern[place]
    position = group * self.pattern.count(row) + self.pattern[:place].count(row)
    return jax.tree.map(lambda x: x[position], getattr(self, row)["layers"])


class Mlp(FeedForward):
  """MLP: activation(x W_up) W_down, or gated, activation(x W_gate) * (x W_up) W_down (Shazeer 2020)."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    embed, mlp = config.embed_dim, config.mlp_dim
    self.activation = config.mlp_activation
    # Only T5 applies dropout between the two products; BERT, GPT-2 and later models only after the second.
    self.dropout_rate = config.dropout_rate if config.broadcast_dropout else 0.0
    self.gradient_dtype, self.quantization = config.gradient_dtype, config.quantization
    self.chunk = config.feed_forward_chunk
    scale = layers.fan_in_scale(config, embed)
    self.gate = layers.param(rngs, (embed, mlp), ("embed", "mlp"), scale=scale) if config.gated else None
    self.gate_bias = layers.bias(config, mlp, "mlp") if config.gated else None
    self.up = layers.param(rngs, (embed, mlp), ("embed", "mlp"), scale=scale)
    self.up_bias = layers.bias(config, mlp, "mlp")
    self.down = layers.param(rngs, (mlp, embed), ("mlp", "embed"), scale=layers.residual_scale(config, mlp))
    self.down_bias = layers.bias(config, embed, "embed")
    names = ("gate", "up", "down") if config.gated else ("up", "down")
    self.ranges = layers.FAKE_QUANTIZATION["ranges"](config, names) if config.fake_quantization else None

  def __call__(self, x: jax.Array, dropout_key: jax.Array | None = None, *, real: jax.Array | None = None) -> jax.Array:
    """Maps [batch, length, embed] -> [batch, length, mlp] -> [batch, length, embed]."""
    del real
    size, length = self.chunk, x.shape[1]
    if not size or length <= size:
      return self._products(x, dropout_key)
    in_chunks = jnp.moveaxis(chunks.split(chunks.padded(x, 1, size), 1, size), 1, 0)
    # All positions share the dropout mask, so that chunks change nothing.
    out = jax.lax.map(jax.checkpoint(lambda x: self._products(x, dropout_key)), in_chunks)
    return jnp.moveaxis(out, 0, 1).reshape(x.shape[0], -1, x.shape[2])[:, :length]

  def _products(self, x: jax.Array, dropout_key: jax.Array | None) -> jax.Array:
    product = functools.partial(
      layers.dense, gradient_dtype=self.gradient_dtype, quantization=self.quantization, dropout_key=dropout_key
    )
    input_range = lambda name: {} if self.ranges is None else {"input_range": self.ranges[name]}
    hidden = checkpoint_name(product(x, self.up, self.up_bias, **input_range("up")), "mlp_up")
    if self.gate is None:
      hidden = layers.activate(self.activation, hidden)
    else:
      gate = checkpoint_name(product(x, self.gate, self.gate_bias, **input_range("gate")), "mlp_gate")
      hidden = layers.activate(self.activation, gate) * hidden
    hidden = sharding.shard(hidden, "batch", "length", "mlp")
    hidden = layers.dropout(hidden, self.dropout_rate, dropout_key, broadcast_axis=-2)
    return checkpoint_name(product(hidden, self.down, self.down_bias, **input_range("down")), "mlp_out")

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    return (3 if config.gated else 2) * config.embed_dim * config.mlp_dim

  @classmethod
  def inner_features(cls, config: TransformerConfig) -> float:
    return (2 if config.gated else 1) * config.mlp_dim
