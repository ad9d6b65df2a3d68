"""Decoding with states instead of a cache of keys and values."""

import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models import transformer
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
