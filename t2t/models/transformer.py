"""Blocks, the layer scan, and the models made of them."""

from collections.abc import Callable, Mapping
import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models import attention, layers
from t2t.models.config import TransformerConfig

Batch = Mapping[str, jax.Array]  # seqio's model features, each [batch, length]

# What the backward pass finds saved; the rest is computed again.  "none" of the config is no jax.checkpoint at all.
_REMAT_POLICIES = {
  "minimal": jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
  "full": jax.checkpoint_policies.nothing_saveable,
}


def _split(key: jax.Array | None, num: int):
  return [None] * num if key is None else list(jax.random.split(key, num))


class Layer(nnx.Module):
  """Pre-norm residual block: self-attention, cross-attention if `cross`, feed-forward."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, cross: bool):
    self.dropout_rate = config.dropout_rate
    self.self_attention_norm = layers.RMSNorm(config)
    self.self_attention = attention.Attention(config, rngs)
    if cross:
      self.cross_attention_norm = layers.RMSNorm(config)
      self.cross_attention = attention.Attention(config, rngs)
    self.mlp_norm = layers.RMSNorm(config)
    self.mlp = layers.Mlp(config, rngs)

  def _residual(self, x: jax.Array, update: jax.Array, key: jax.Array | None) -> jax.Array:
    update = sharding.shard(update, "batch", "length", "embed")
    return x + layers.dropout(update, self.dropout_rate, key, broadcast_axis=-2)

  def __call__(
    self,
    x: jax.Array,
    *,
    mask: attention.AttentionMask,
    bias: jax.Array,
    memory: jax.Array | None = None,
    memory_mask: attention.AttentionMask | None = None,
    dropout_key: jax.Array | None = None,
  ) -> jax.Array:
    """[batch, length, embed] -> the same; `memory` is what the cross-attention reads."""
    keys = _split(dropout_key, 6)
    normed = self.self_attention_norm(x)
    update = self.self_attention(
      normed, *self.self_attention.keys_and_values(normed), mask=mask, bias=bias, dropout_key=keys[0]
    )
    x = self._residual(x, update, keys[1])
    if memory is not None:
      normed = self.cross_attention_norm(x)
      update = self.cross_attention(
        normed, *self.cross_attention.keys_and_values(memory), mask=memory_mask, dropout_key=keys[2]
      )
      x = self._residual(x, update, keys[3])
    return self._residual(x, self.mlp(self.mlp_norm(x), keys[4]), keys[5])

  def decode(
    self,
    x: jax.Array,
    cache: attention.KVCache,
    memory: attention.KVCache,
    *,
    position: jax.Array,
    bias: jax.Array,
    memory_mask: attention.AttentionMask,
  ) -> tuple[jax.Array, attention.KVCache]:
    """One position, [batch, 1, embed], against what is cached; also the cache with it added."""
    normed = self.self_attention_norm(x)
    cache = cache.write(*self.self_attention.keys_and_values(normed), position)
    mask = attention.AttentionMask(causal=True, query_offset=position)
    x = x + self.self_attention(normed, cache.keys, cache.values, mask=mask, bias=bias)
    normed = self.cross_attention_norm(x)
    x = x + self.cross_attention(normed, memory.keys, memory.values, mask=memory_mask)
    return x + self.mlp(self.mlp_norm(x)), cache


class Stack(nnx.Module):
  """Layers of one shape, each parameter with a leading "layers" axis, run with one `jax.lax.scan`.

  One layer is compiled, whatever their number.
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, num_layers: int, cross: bool):
    self.num_layers = num_layers
    self.remat = config.remat
    self.dropout_rate = config.dropout_rate
    self.position_bias = attention.RelativePositionBias(config, rngs, bidirectional=not cross)
    layer_keys = jax.random.split(rngs.params(), num_layers)
    self.layers = jax.vmap(lambda key: Layer(config, nnx.Rngs(key), cross=cross))(layer_keys)
    self.norm = layers.RMSNorm(config)

  def __call__(self, x: jax.Array, *, dropout_key: jax.Array | None = None, **inputs) -> jax.Array:
    """[batch, length, embed] -> the same, normed; `inputs` go to every layer."""
    embed_key, layers_key, out_key = _split(dropout_key, 3)
    bias = self.position_bias(x.shape[1], x.shape[1])
    keys = None if layers_key is None else jax.random.split(layers_key, self.num_layers)

    def body(x, scanned):
      layer, key = scanned
      return layer(x, bias=bias, dropout_key=key, **inputs), None

    if self.remat != "none":
      # The scan itself keeps XLA from merging the recomputation with the forward pass.
      body = jax.checkpoint(body, policy=_REMAT_POLICIES[self.remat], prevent_cse=False)
    x = layers.dropout(x, self.dropout_rate, embed_key, broadcast_axis=-2)
    x, _ = jax.lax.scan(body, sharding.shard(x, "batch", "length", "embed"), (self.layers, keys))
    return layers.dropout(self.norm(x), self.dropout_rate, out_key, broadcast_axis=-2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeState:
  """What decoding carries from one position to the next.

  cache: keys and values of the decoded positions, with a leading "layers" axis.
  memory: those of the encoder's output for each layer's cross-attention, with the same leading axis.
  memory_mask: which of the encoder's positions are real.
  position: int [], the next position to be decoded.
  """

  cache: attention.KVCache
  memory: attention.KVCache
  memory_mask: attention.AttentionMask
  position: jax.Array


def _segments(batch: Batch, side: str, tokens: jax.Array) -> jax.Array:
  """Segment ids of a packed batch; of others, 1 where there is a token."""
  segments = batch.get(f"{side}_segment_ids")
  return (tokens > 0).astype(jnp.int32) if segments is None else segments


def _tied_logits(table: jax.Array, hidden: jax.Array) -> jax.Array:
  # Scaled, because the embedding's entries have standard deviation 1.
  return jnp.einsum("...e,ve->...v", hidden * hidden.shape[-1] ** -0.5, table, preferred_element_type=jnp.float32)


def _projected_logits(kernel: jax.Array, hidden: jax.Array) -> jax.Array:
  return jnp.einsum("...e,ev->...v", hidden, kernel, preferred_element_type=jnp.float32)


class EncoderDecoder(nnx.Module):
  """T5 (Raffel et al. 2020) and its descendants: an encoder reads the inputs, a decoder writes the targets."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    self.config = config
    self.embed = layers.Embed(config, rngs)
    self.encoder = Stack(config, rngs, num_layers=config.num_encoder_layers, cross=False)
    self.decoder = Stack(config, rngs, num_layers=config.num_decoder_layers, cross=True)
    if not config.tied_logits:
      self.projection = layers.param(
        rngs, (config.embed_dim, config.vocab_size), ("embed", "vocab"), scale=config.embed_dim**-0.5
      )

  def encode(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """The encoder's output [batch, length, embed] and its segments int [batch, length]."""
    tokens = batch["encoder_input_tokens"]
    segments = _segments(batch, "encoder", tokens)
    mask = attention.AttentionMask(segments, segments)
    return self.encoder(self.embed(tokens), mask=mask, dropout_key=dropout_key), segments

  def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """The decoder's output, [batch, targets length, embed], for seqio's encoder-decoder features.

    Args:
      batch: encoder_input_tokens, decoder_input_tokens int [batch, length]; packed, also encoder_segment_ids and
        decoder_segment_ids. 0 is padding.
      dropout_key: None at evaluation.
    """
    encoder_key, decoder_key = _split(dropout_key, 2)
    memory, memory_segments = self.encode(batch, dropout_key=encoder_key)
    tokens = batch["decoder_input_tokens"]
    # Padding ends a sequence, so that the causal mask already hides it; only packed sequences need more.
    segments = batch.get("decoder_segment_ids")
    return self.decoder(
      self.embed(tokens),
      mask=attention.AttentionMask(segments, segments, causal=True),
      memory=memory,
      memory_mask=attention.AttentionMask(jnp.ones_like(tokens) if segments is None else segments, memory_segments),
      dropout_key=decoder_key,
    )

  def logits_fn(self) -> Callable[[jax.Array], jax.Array]:
    """[..., embed] -> float32 logits [..., vocab], as a pytree that holds its weights.

    The weights are gathered and cast once, however often the function is called.
    """
    dtype = self.config.dtype
    if self.config.tied_logits:
      return jax.tree_util.Partial(
        _tied_logits, sharding.gather(self.embed.table[...].astype(dtype), ("vocab", "embed"))
      )
    return jax.tree_util.Partial(
      _projected_logits, sharding.gather(self.projection[...].astype(dtype), ("embed", "vocab"))
    )

  def logits(self, hidden: jax.Array) -> jax.Array:
    """float32 [batch, length, vocab] from [batch, length, embed]."""
    return sharding.shard(self.logits_fn()(hidden), "batch", "length", "vocab")

  def start_decode(self, batch: Batch, max_length: int) -> DecodeState:
    """Encodes the inputs and makes room for `max_length` positions.

    Args:
      batch: encoder_input_tokens, int [batch, length].
      max_length: how many positions `decode_step` may be called for.
    """
    config = self.config
    memory, segments = self.encode(batch)
    # [layers, batch, heads, length, kv]
    keys, values = jax.lax.map(lambda layer: layer.cross_attention.keys_and_values(memory), self.decoder.layers)
    shape = (config.num_decoder_layers, memory.shape[0], config.num_heads, max_length, config.head_dim)
    empty = jnp.zeros(shape, config.dtype)
    return DecodeState(
      cache=attention.KVCache(empty, empty),
      memory=attention.KVCache(keys, values),
      memory_mask=attention.AttentionMask(jnp.ones((memory.shape[0], 1), jnp.int32), segments),
      position=jnp.zeros((), jnp.int32),
    )

  def decode_step(self, tokens: jax.Array, state: DecodeState) -> tuple[jax.Array, DecodeState]:
    """Logits of the next token, float32 [batch, vocab], after `tokens`, int [batch]; 0 starts a sequence."""
    x = self.embed(tokens[:, None])
    bias = self.decoder.position_bias(1, state.cache.keys.shape[3], state.position)

    def body(x, scanned):
      layer, cache, memory = scanned
      return layer.decode(x, cache, memory, position=state.position, bias=bias, memory_mask=state.memory_mask)

    x, cache = jax.lax.scan(body, x, (self.decoder.layers, state.cache, state.memory))
    logits = self.logits(self.decoder.norm(x))[:, 0]
    return logits, dataclasses.replace(state, cache=cache, position=state.position + 1)


ARCHITECTURES = {"encoder_decoder": EncoderDecoder}


def build(config: TransformerConfig, rngs: nnx.Rngs) -> nnx.Module:
  """The model that `config.architecture` names."""
  return ARCHITECTURES[config.architecture](config, rngs)
