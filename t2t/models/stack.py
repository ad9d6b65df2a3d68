"""Blocks, and the stack of them that one layer scan runs: the same for encoders and decoders."""

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models import attention, kernels, layers
from t2t.models.config import TransformerConfig

# What the backward pass finds saved; the rest is computed again.  "none" of the config is no jax.checkpoint at all.
_REMAT_POLICIES = {
  "minimal": jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
    # A kernel's output: it would run forward twice.
    jax.checkpoint_policies.save_only_these_names(kernels.SAVED),
  ),
  "full": jax.checkpoint_policies.nothing_saveable,
}


def split_key(key: jax.Array | None, num: int) -> list[jax.Array | None]:
  """`num` keys of one, or none of none."""
  return [None] * num if key is None else list(jax.random.split(key, num))


class Layer(nnx.Module):
  """Residual block: self-attention, cross-attention if `cross`, feed-forward; norms before the branches or behind.

  With `only_cross` it has no more than a cross-attention: the rest is another layer's (see `__call__`).
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, cross: bool, only_cross: bool = False):
    self.dropout_rate = config.dropout_rate
    self.broadcast_axis = -2 if config.t5_dropout else None
    self.post_norm = config.post_norm
    if not only_cross:
      self.self_attention_norm = layers.Norm(config, config.embed_dim)
      self.self_attention = attention.Attention(config, rngs)
    if cross:
      self.cross_attention_norm = layers.Norm(config, config.embed_dim)
      self.cross_attention = attention.Attention(config, rngs)
    if not only_cross:
      self.mlp_norm = layers.Norm(config, config.embed_dim)
      self.mlp = layers.Mlp(config, rngs)

  def _branch_input(self, x: jax.Array, norm: layers.Norm) -> jax.Array:
    return x if self.post_norm else norm(x)

  def _add(self, x: jax.Array, update: jax.Array, norm: layers.Norm, key: jax.Array | None) -> jax.Array:
    update = sharding.shard(update, "batch", "length", "embed")
    x = x + layers.dropout(update, self.dropout_rate, key, broadcast_axis=self.broadcast_axis)
    return norm(x) if self.post_norm else x

  def __call__(
    self,
    x: jax.Array,
    *,
    mask: attention.AttentionMask,
    bias: jax.Array | None = None,
    angles: tuple[jax.Array, jax.Array] | None = None,
    is_local: jax.Array | bool = False,
    is_normed: jax.Array | bool = False,
    cross: "Layer | None" = None,
    memory: jax.Array | attention.KVCache | None = None,
    memory_mask: attention.AttentionMask | None = None,
    cache: attention.KVCache | None = None,
    position: jax.Array | int = 0,
    dropout_key: jax.Array | None = None,
  ) -> tuple[jax.Array, attention.KVCache]:
    """[batch, length, embed] -> the same, and the keys and values that the self-attention read.

    Args:
      x: the residual sum.
      mask: of the self-attention.
      bias: float32 [1, heads, query, key], of the self-attention.
      angles: of rotary positions.
      is_local: bool [], whether the model's attention window applies.
      is_normed: bool [], whether `x` comes out of a norm, so that the self-attention reads it as it is.
      cross: the layer whose cross-attention is used, if this one has none.
      memory: what the cross-attention reads, [batch, length, embed], or its keys and values.
      memory_mask: of the cross-attention.
      cache: keys and values of earlier positions; those of `x` are written into it, and all are attended to.
      position: int [], where in the cache `x` belongs.
      dropout_key: None at evaluation.
    """
    keys = split_key(dropout_key, 6)
    normed = self._branch_input(x, self.self_attention_norm)
    if is_normed is not False:
      normed = jnp.where(is_normed, x, normed)
    own = attention.KVCache(*self.self_attention.keys_and_values(normed, angles))
    cache = own if cache is None else cache.write(own.keys, own.values, position)
    update = self.self_attention(
      normed, cache.keys, cache.values, mask=mask, bias=bias, angles=angles, is_local=is_local, dropout_key=keys[0]
    )
    x = self._add(x, update, self.self_attention_norm, keys[1])
    if memory is not None:
      cross = self if cross is None else cross
      normed = self._branch_input(x, cross.cross_attention_norm)
      if not isinstance(memory, attention.KVCache):
        memory = attention.KVCache(*cross.cross_attention.keys_and_values(memory))
      update = cross.cross_attention(normed, memory.keys, memory.values, mask=memory_mask, dropout_key=keys[2])
      x = self._add(x, update, cross.cross_attention_norm, keys[3])
    update = self.mlp(self._branch_input(x, self.mlp_norm), keys[4])
    return self._add(x, update, self.mlp_norm, keys[5]), cache


class Stack(nnx.Module):
  """Layers of one shape, each parameter with a leading "layers" axis, run with one `jax.lax.scan`.

  One layer is compiled, whatever their number.  With `config.share_layers` there is one layer, run as often.
  """

  def __init__(
    self,
    config: TransformerConfig,
    rngs: nnx.Rngs,
    *,
    num_layers: int,
    causal: bool,
    cross: bool = False,
    only_cross: bool = False,
  ):
    self.num_layers = num_layers
    self.config = config
    bidirectional = not causal or config.bidirectional_prefix
    self.position_bias = (
      attention.RelativePositionBias(config, rngs, bidirectional=bidirectional)
      if config.positions == "relative"
      else None
    )
    make = lambda key: Layer(config, nnx.Rngs(key), cross=cross, only_cross=only_cross)
    key = rngs.params()
    if config.share_layers:
      self.layer = make(key)
    else:
      self.layers = jax.vmap(make)(jax.random.split(key, num_layers))
    self.norm = None if config.post_norm else layers.Norm(config, config.embed_dim)

  @property
  def own_layers(self) -> Layer:
    """The stacked layers, or the one that is run again and again."""
    return self.layer if self.config.share_layers else self.layers

  def _positions(self, query_length: int, key_length: int, offset: jax.Array | int):
    """Relative position bias, and rotary angles of global and of local layers; None of what the model has not."""
    config = self.config
    bias = None if self.position_bias is None else self.position_bias(query_length, key_length, offset)
    if config.positions != "rotary":
      return bias, None, None
    angles = attention.rotary_angles(query_length, config.head_dim, config.rotary_base, offset)
    if not config.local_rotary_base or not config.attention_window:
      return bias, angles, None
    return bias, angles, attention.rotary_angles(query_length, config.head_dim, config.local_rotary_base, offset)

  def _is_local(self, index: jax.Array) -> jax.Array | bool:
    """Whether the layer of this number has the attention window."""
    if not self.config.attention_window or not self.config.global_attention_every:
      return bool(self.config.attention_window)
    return index % self.config.global_attention_every != 0

  def __call__(
    self,
    x: jax.Array,
    *,
    mask: attention.AttentionMask,
    body: Layer | None = None,
    memory: jax.Array | attention.KVCache | None = None,
    memory_mask: attention.AttentionMask | None = None,
    cache: attention.KVCache | None = None,
    position: jax.Array | int = 0,
    keep_cache: bool = False,
    dropout_key: jax.Array | None = None,
  ) -> tuple[jax.Array, attention.KVCache | None]:
    """[batch, length, embed] -> the same, normed; and keys and values of all layers, if `keep_cache`.

    Args:
      x: embedded tokens.
      mask: of the self-attention.
      body: stacked layers whose self-attention and feed-forward layers are used, if this stack's have none.
      memory: the encoder's output, or keys and values with a leading "layers" axis.
      memory_mask: of the cross-attention.
      cache: keys and values of earlier positions, with a leading "layers" axis.
      position: int [], where in the cache `x` belongs.
      keep_cache: otherwise nothing but the result is kept.
      dropout_key: None at evaluation.
    """
    config = self.config
    embed_key, layers_key, out_key = split_key(dropout_key, 3)
    key_length = x.shape[1] if cache is None else cache.keys.shape[3]
    bias, angles, local_angles = self._positions(x.shape[1], key_length, position)
    # Layers that are all the same layer are no part of what is scanned.
    shared = config.share_layers
    memory_is_cached = isinstance(memory, attention.KVCache)
    scanned = {
      "index": jnp.arange(self.num_layers),
      "own": None if shared else self.layers,
      "body": None if shared else body,
      "key": None if layers_key is None else jax.random.split(layers_key, self.num_layers),
      "cache": cache,
      "memory": memory if memory_is_cached else None,
    }

    def run(x, scanned):
      own, borrowed = (self.layer, body) if shared else (scanned["own"], scanned["body"])
      is_local = self._is_local(scanned["index"])
      chosen = angles
      if local_angles is not None:
        chosen = jax.tree.map(lambda local, far: jnp.where(is_local, local, far), local_angles, angles)
      x, kept = (own if borrowed is None else borrowed)(
        x,
        mask=mask,
        bias=bias,
        angles=chosen,
        is_local=is_local,
        # What the embedding's norm gives is not normed again (ModernBERT, Warner et al. 2024).
        is_normed=config.embedding_norm and not config.post_norm and scanned["index"] == 0,
        cross=own,
        memory=scanned["memory"] if memory_is_cached else memory,
        memory_mask=memory_mask,
        cache=scanned["cache"],
        position=position,
        dropout_key=scanned["key"],
      )
      return x, kept if keep_cache else None

    if config.remat != "none":
      # The scan itself keeps XLA from merging the recomputation with the forward pass.
      run = jax.checkpoint(run, policy=_REMAT_POLICIES[config.remat], prevent_cse=False)
    broadcast_axis = -2 if config.t5_dropout else None
    x = layers.dropout(x, config.dropout_rate, embed_key, broadcast_axis=broadcast_axis)
    # A loop on a CPU copies each layer's weights out of the stack, forward and backward: a fifth of a step of T5 small.
    unroll = self.num_layers if sharding.platform() == "cpu" else 1
    x, kept = jax.lax.scan(run, sharding.shard(x, "batch", "length", "embed"), scanned, unroll=unroll)
    x = x if self.norm is None else self.norm(x)
    if config.t5_dropout:
      x = layers.dropout(x, config.dropout_rate, out_key, broadcast_axis=-2)
    return x, kept
