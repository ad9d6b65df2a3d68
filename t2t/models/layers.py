"""What every Transformer block is made of: embeddings, norms, dropout, feed-forward layers."""

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models import cpu
from t2t.models.config import TransformerConfig


def param(rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str, ...], *, scale: float) -> nnx.Param:
  """A float32 parameter, normal with standard deviation `scale`, with a logical name for each axis."""
  return nnx.Param(scale * jax.random.normal(rngs.params(), shape, jnp.float32), axes=axes)


def dense(x: jax.Array, kernel: nnx.Param) -> jax.Array:
  """x @ kernel for [..., in] and [in, out], in the dtype of `x`."""
  kernel = kernel[...].astype(x.dtype)
  return cpu.dense(x, kernel) if sharding.platform() == "cpu" else x @ kernel


def dropout(x: jax.Array, rate: float, key: jax.Array | None, *, broadcast_axis: int | None = None) -> jax.Array:
  """Sets a share `rate` of `x` to zero and scales the rest by 1 / (1 - rate); without a key it does nothing.

  Args:
    x: any shape.
    rate: in [0, 1).
    key: None at evaluation.
    broadcast_axis: an axis along which all entries share one draw.
  """
  if key is None or rate == 0.0:
    return x
  shape = list(x.shape)
  if broadcast_axis is not None:
    shape[broadcast_axis] = 1
  keep = jax.random.bernoulli(key, 1.0 - rate, tuple(shape))
  return jnp.where(keep, x / (1.0 - rate), 0).astype(x.dtype)


class Embed(nnx.Module):
  """A table of vectors, looked up by id."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    # Standard deviation 1: T5 does not scale embeddings up on their way in.
    self.table = param(rngs, (config.vocab_size, config.embed_dim), ("vocab", "embed"), scale=1.0)
    self.dtype = config.dtype

  def __call__(self, tokens: jax.Array) -> jax.Array:
    """int [batch, length] -> [batch, length, embed]."""
    # The table is gathered over its embed axis first: rows that come in pieces would have to be put together again.
    table = sharding.shard(self.table[...].astype(self.dtype), "vocab", "embed")
    return sharding.shard(jnp.take(table, tokens, axis=0), "batch", "length", "embed")


class RMSNorm(nnx.Module):
  """Scales by the root mean square, in float32; no mean, no bias (Zhang & Sennrich 2019)."""

  def __init__(self, config: TransformerConfig):
    self.scale = nnx.Param(jnp.ones(config.embed_dim, jnp.float32), axes=("embed",))
    self.epsilon = config.norm_epsilon

  def __call__(self, x: jax.Array) -> jax.Array:
    """[..., embed] -> the same, in the dtype of `x`."""
    x32 = x.astype(jnp.float32)
    variance = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
    return (x32 * jax.lax.rsqrt(variance + self.epsilon) * self.scale[...]).astype(x.dtype)


class Mlp(nnx.Module):
  """relu(x W_up) W_down, or gelu(x W_gate) * (x W_up) W_down (Shazeer 2020)."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    embed, mlp = config.embed_dim, config.mlp_dim
    self.gated = config.mlp_activation == "gated_gelu"
    self.dropout_rate = config.dropout_rate
    if self.gated:
      self.gate = param(rngs, (embed, mlp), ("embed", "mlp"), scale=embed**-0.5)
    self.up = param(rngs, (embed, mlp), ("embed", "mlp"), scale=embed**-0.5)
    self.down = param(rngs, (mlp, embed), ("mlp", "embed"), scale=mlp**-0.5)

  def __call__(self, x: jax.Array, dropout_key: jax.Array | None = None) -> jax.Array:
    """[batch, length, embed] -> [batch, length, mlp] -> [batch, length, embed]."""
    hidden = dense(x, self.up)
    hidden = jax.nn.gelu(dense(x, self.gate), approximate=True) * hidden if self.gated else jax.nn.relu(hidden)
    # T5 draws one dropout mask for all positions of a sequence.
    hidden = dropout(
      sharding.shard(hidden, "batch", "length", "mlp"), self.dropout_rate, dropout_key, broadcast_axis=-2
    )
    return dense(hidden, self.down)
