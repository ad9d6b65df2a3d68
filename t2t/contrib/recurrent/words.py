"""Dropout of whole words of the vocabulary."""

import jax
import jax.numpy as jnp

from t2t.models import layers
from t2t.models.config import TransformerConfig


def drop_tokens(x: jax.Array, tokens: jax.Array, config: TransformerConfig, key: jax.Array) -> jax.Array:
  """Sets all occurrences of a fraction of the vocabulary to zero, and scales the others, as `dropout` does.

  Source: Gal & Ghahramani 2016, section 4.2; Merity et al. 2017, section 4.3.

  Args:
    x: embedded tokens, [batch, length, embed].
    tokens: int [batch, length]; ids after the vocabulary, of learned prompts, stay.
    config: shape of the model, with the rate.
    key: of the model's dropout in this step.
  """
  rate, key = config.embedding_dropout, jax.random.fold_in(key, 3)
  factors = layers.dropout(jnp.ones(config.vocab_size), rate, key)
  return x * jnp.take(factors, tokens, mode="fill", fill_value=1.0)[..., None].astype(x.dtype)
