"""A convolution beside an encoder's first layer, which encodes n-grams (DeBERTa v2 and v3, as released)."""

from flax import nnx
import jax
import jax.numpy as jnp

from t2t.models import layers
from t2t.models.config import TransformerConfig
from t2t.models.masks import AttentionMask

_WIDTH = 3  # as released: a token and both of its neighbours


class Convolution(nnx.Module):
  """norm(layer output + activation(convolution(embedded tokens))), within each sequence of a row.

  The matrix has the axes of left neighbour, token and right neighbour one after another: [3 * embed, embed].
  """

  reads_neighbors = True

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    embed = config.embed_dim
    self.activation, self.dropout_rate = config.beside_first_activation, config.dropout_rate
    self.gradient_dtype, self.quantization = config.gradient_dtype, config.quantization
    self.broadcast_axis = -2 if config.broadcast_dropout else None
    scale = layers.fan_in_scale(config, _WIDTH * embed)
    self.kernel = layers.param(rngs, (_WIDTH * embed, embed), (None, "embed"), scale=scale)
    self.bias = nnx.Param(jnp.zeros(embed, jnp.float32), axes=("embed",))
    self.norm = layers.Norm(config, embed)

  def __call__(
    self, first: jax.Array, x: jax.Array, *, mask: AttentionMask, dropout_key: jax.Array | None = None
  ) -> jax.Array:
    """Returns the input of the second layer, [batch, length, embed].

    Args:
      first: embedded tokens, [batch, length, embed].
      x: output of the first layer.
      mask: contains the sequence of each position; padding and other sequences are zero.
      dropout_key: None at evaluation.
    """
    segments = mask.query_segments
    segments = jnp.ones(x.shape[:2], jnp.int32) if segments is None else segments
    center = jnp.where((segments > 0)[..., None], first, 0)
    pad = lambda y, before, behind: jnp.pad(y, [(0, 0), (before, behind)] + [(0, 0)] * (y.ndim - 2))
    left = jnp.where((pad(segments, 1, 0)[:, :-1] == segments)[..., None], pad(center, 1, 0)[:, :-1], 0)
    right = jnp.where((pad(segments, 0, 1)[:, 1:] == segments)[..., None], pad(center, 0, 1)[:, 1:], 0)
    window = jnp.concatenate([left, center, right], axis=-1)
    options = {"gradient_dtype": self.gradient_dtype, "quantization": self.quantization}
    y = layers.dense(window, self.kernel, self.bias, dropout_key=dropout_key, **options)
    y = layers.dropout(y, self.dropout_rate, dropout_key, broadcast_axis=self.broadcast_axis)
    y = jnp.tanh(y) if self.activation == "tanh" else layers.activate(self.activation, y)
    return self.norm(x + y)

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Returns multiplications with parameters per position, for `model_flops`."""
    return _WIDTH * config.embed_dim**2
