"""MobileBERT's block: narrow attention and several feed-forward layers between two projections (Sun et al. 2020)."""

import dataclasses
from typing import Any, ClassVar

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, sharding
from t2t.models import attention, layers
from t2t.models.auxiliary import Auxiliary
from t2t.models.config import TransformerConfig
from t2t.models.masks import AttentionMask
from t2t.models.stack import Layer, TaskAttention


def narrow_config(config: TransformerConfig) -> TransformerConfig:
  """Returns the config of the layer between the projections."""
  unset: dict[str, Any] = {"bottleneck_dim": 0, "bottleneck_attention": False, "num_feed_forwards": 1}
  return dataclasses.replace(config, block="transformer", embed_dim=config.bottleneck_dim, **unset)


class Narrowing(nnx.Module):
  """Dense layer and norm from the residual stream, [..., embed], to [..., narrow]."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    self.gradient_dtype, self.quantization = config.gradient_dtype, config.quantization
    embed, narrow = config.embed_dim, config.bottleneck_dim
    self.kernel = layers.param(rngs, (embed, narrow), ("embed", None), scale=layers.fan_in_scale(config, embed))
    self.kernel_bias = layers.bias(config, narrow, "embed")
    self.norm = layers.Norm(config, narrow)

  def __call__(self, x: jax.Array, dropout_key: jax.Array | None = None) -> jax.Array:
    options: dict[str, Any] = {"gradient_dtype": self.gradient_dtype, "quantization": self.quantization}
    return self.norm(layers.dense(x, self.kernel, self.kernel_bias, dropout_key=dropout_key, **options))


class WideAttention(attention.Attention):
  """Self-attention with narrow queries and keys; values read all features of the residual stream.

  The input, [..., narrow + embed], is both, concatenated.
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    super().__init__(narrow_config(config), rngs)
    self.narrow = config.bottleneck_dim
    shape, scale = (config.embed_dim, config.kv_heads * config.head_dim), layers.fan_in_scale(config, config.embed_dim)
    self.value = layers.param(rngs, shape, ("embed", "heads"), scale=scale)

  def _project(self, x: jax.Array, name: str, dropout_key: jax.Array | None) -> jax.Array:
    part = x[..., self.narrow :] if name == "value" else x[..., : self.narrow]
    return super()._project(part, name, dropout_key)


class ResidualFeedForward(nnx.Module):
  """norm(x + feed-forward(x)), without dropout of the sum."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    self.mlp = config.feed_forward_class(config, rngs)
    self.norm = layers.Norm(config, config.embed_dim)

  def __call__(self, x: jax.Array, dropout_key: jax.Array | None = None) -> jax.Array:
    return self.norm(x + sharding.split_residual(self.mlp(sharding.join_residual(x), dropout_key)))


class NarrowLayer(Layer):
  """Post-norm block of the width `bottleneck_dim`, with further feed-forward layers before the last one."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    narrow = narrow_config(config)
    super().__init__(narrow, rngs, cross=False)
    if not config.bottleneck_attention:
      self.self_attention = WideAttention(config, rngs)
    self.dropout_rate = 0.0  # only the outer sum has dropout
    number = config.num_feed_forwards - 1
    self.feed_forwards = nnx.Dict({f"before_{index}": ResidualFeedForward(narrow, rngs) for index in range(number)})

  def _add(
    self, x: jax.Array, update: jax.Array, branch: str, key: jax.Array | None, beside: jax.Array | None = None
  ) -> jax.Array:
    x = super()._add(x, update, branch, key, beside)
    if branch == "self_attention":
      keys = layers.split_key(key, len(self.feed_forwards))
      for feed_forward, own_key in zip(self.feed_forwards.values(), keys, strict=True):
        x = feed_forward(x, own_key)
    return x


class BottleneckBlock(nnx.Module):
  """Projects the residual stream to `bottleneck_dim` features, runs a narrow block, and projects back.

  Raises:
    UserError: other fields of the config do not fit.
  """

  is_recurrent: ClassVar[bool] = False

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, cross: bool, only_cross: bool = False):
    _check(config, cross=cross or only_cross)
    embed, narrow = config.embed_dim, config.bottleneck_dim
    self.dropout_rate = config.dropout_rate
    self.broadcast_axis = -2 if config.broadcast_dropout else None
    self.gradient_dtype, self.quantization = config.gradient_dtype, config.quantization
    self.input = Narrowing(config, rngs)
    self.shared = None if config.bottleneck_attention else Narrowing(config, rngs)  # of queries and keys
    self.inner = NarrowLayer(config, rngs)
    self.widening = layers.param(rngs, (narrow, embed), (None, "embed"), scale=layers.residual_scale(config, narrow))
    self.widening_bias = layers.bias(config, embed, "embed")
    self.norm = layers.Norm(config, embed)

  def __call__(
    self,
    x: jax.Array,
    *,
    mask: AttentionMask,
    task_attention: TaskAttention | None = None,
    dropout_key: jax.Array | None = None,
    **options: object,
  ) -> tuple[jax.Array, attention.KVCache | jax.Array | None, Auxiliary]:
    """Maps [batch, length, embed] to the same shape; see `Layer.__call__`, which takes the other options."""
    if task_attention is not None:
      raise UserError("config.pals needs config.model.block=transformer, not bottleneck. Leave out config.pals.")
    inner_key, input_key, shared_key, out_key, drop_key = layers.split_key(dropout_key, 5)
    stream = sharding.join_residual(x)
    narrow = sharding.split_residual(self.input(stream, input_key))
    wide = None if self.shared is None else jnp.concatenate([self.shared(stream, shared_key), stream], axis=-1)
    inner: Any = self.inner
    narrow, cache, aux = inner(narrow, mask=mask, attention_input=wide, dropout_key=inner_key, **options)
    precision: dict[str, Any] = {"gradient_dtype": self.gradient_dtype, "quantization": self.quantization}
    update = layers.dense(
      sharding.join_residual(narrow), self.widening, self.widening_bias, dropout_key=out_key, **precision
    )
    update = layers.dropout(
      sharding.split_residual(update), self.dropout_rate, drop_key, broadcast_axis=self.broadcast_axis
    )
    return self.norm(x + update), cache, aux

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    narrow = narrow_config(config)
    feed_forward = (config.num_feed_forwards - 1) * config.feed_forward_class.multiply_adds(narrow)
    between = 2 * config.embed_dim * config.bottleneck_dim
    if not config.bottleneck_attention:
      # The bottleneck of queries and keys, and wider values.
      between += config.embed_dim * config.bottleneck_dim
      between += (config.embed_dim - config.bottleneck_dim) * config.kv_heads * config.head_dim
    return between + feed_forward + Layer.multiply_adds(narrow)

  @classmethod
  def inner_features(cls, config: TransformerConfig) -> float:
    narrow = narrow_config(config)
    # Outputs of each feed-forward layer and of its sum; the narrow input, and that of queries and keys.
    return config.num_feed_forwards * (Layer.inner_features(narrow) + 2 * narrow.embed_dim) + 2 * narrow.embed_dim


def _check(config: TransformerConfig, *, cross: bool) -> None:
  needed: dict[str, Any] = {"post_norm": True, "branch_norm": False}
  if config.num_feed_forwards > 1:
    needed["feed_forward"] = "dense"  # auxiliary outputs of the other layers would be lost
  if cross:
    raise UserError(
      "config.model.block=bottleneck: MobileBERT's block has no cross-attention. Set "
      "config.model.architecture=encoder_only or decoder_only."
    )
  if not config.bottleneck_dim:
    raise UserError(
      "config.model.bottleneck_dim=0: config.model.block=bottleneck needs the width of the narrow part, for example 128"
    )
  for field, value in needed.items():
    if getattr(config, field) != value:
      raise UserError(
        f"config.model.{field}={getattr(config, field)}: config.model.block=bottleneck needs "
        f"config.model.{field}={value}"
      )
