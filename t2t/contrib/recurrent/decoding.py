"""Decoding with states instead of a cache of keys and values."""

import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models import attention, transformer
from t2t.models.masks import AttentionMask


def start(
  model: transformer.DecoderOnly, tokens: jax.Array, real: jax.Array, num_beams: int
) -> transformer.DecodeState:
  """Returns the states after prompts without their last tokens, which the first step reads.

  Args:
    model: a recurrent model.
    tokens: int [batch, length], prompts at the ends of rows.
    real: int [batch, length], 1 at prompts.
    num_beams: sequences per row.
  """
  tokens, real = tokens[:, :-1], real[:, :-1]
  mask = AttentionMask(real, real, causal=True)
  _, cache, _ = model.decoder(model.embed(tokens), mask=mask, real=real > 0, keep_cache=True)
  of_beams = lambda x: sharding.shard(jnp.repeat(x, num_beams, axis=2), "layers", "batch", None, None)
  cache = jax.tree.map(of_beams, cache)
  return transformer.DecodeState(cache=cache, position=jnp.asarray(tokens.shape[1], jnp.int32))


def after_inputs(
  model: transformer.EncoderDecoder, memory: jax.Array, segments: jax.Array, num_beams: int
) -> transformer.DecodeState:
  """Returns the states of a decoder before its first token.

  Args:
    model: a recurrent model.
    memory: [batch, length, embed], output of the encoder.
    segments: int [batch, length], 1 at tokens, 0 at padding.
    num_beams: sequences per row.
  """
  config, rows = model.config, memory.shape[0]
  memory, segments = config.block_class.condensed(memory, segments)
  of_layers = lambda x: jnp.broadcast_to(x, (config.num_decoder_layers, *x.shape))
  sharded = lambda x: sharding.shard(of_layers(x), "layers", "batch", None, None)
  position = jnp.zeros((), jnp.int32)
  return transformer.DecodeState(
    cache=jax.tree.map(sharded, config.block_class.empty_cache(config, rows, num_beams)),
    position=position,
    memory=attention.KVCache(sharded(memory), sharded(memory[:, :0])),  # the memory is read as it is
    memory_mask=AttentionMask(jnp.ones((rows, num_beams), jnp.int32), segments, query_offset=position),
  )
