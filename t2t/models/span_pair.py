"""Head for two spans of a text, such as a pronoun and a noun: both are represented by their tokens, and scored jointly.

Span representations and the scorer are those of coreference resolution (Lee et al. 2017, sections 4 and 5).
"""

from collections.abc import Mapping
from typing import ClassVar

from flax import nnx
import jax
import jax.numpy as jnp

from t2t.models import layers
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig
from t2t.models.task_heads import AnswerHead

# Bits of an example's targets at the tokens of the first and of the second span; the class follows above them.
FIRST, SECOND, CLASS_BITS = 1, 2, 2


class SpanPairHead(AnswerHead):
  """Classes of a pair of spans: a layer with an activation, dropout and a projection of [a, b, a * b].

  A span's vector joins its first state, its last state and their mean with learned weights of attention.
  """

  joined: ClassVar[Mapping[str, int]] = {"spans": 9}

  def __init__(self, config: TransformerConfig, head: HeadConfig, rngs: nnx.Rngs):
    super().__init__(config, head, rngs)
    scale = layers.fan_in_scale(config, config.embed_dim)
    self.attention = layers.param(rngs, (config.embed_dim,), ("embed",), scale=scale)

  def read(self, hidden: jax.Array, marks: jax.Array, groups: jax.Array) -> jax.Array:
    """Returns the vector of both spans at each position of their example, [batch, length, 9 * embed].

    Args:
      hidden: [batch, length, embed].
      marks: int [batch, length], with the bits `FIRST` and `SECOND` at the tokens of the spans.
      groups: int [batch, length], example of each position, from 1; 0: padding.
    """
    scores = jnp.einsum("ble,e->bl", hidden, self.attention[...].astype(hidden.dtype)).astype(jnp.float32)
    of_rows = jax.vmap(_of_span)
    first, second = (of_rows(hidden, scores, (marks & bit) > 0, groups) for bit in (FIRST, SECOND))
    return jnp.concatenate([first, second, first * second], axis=-1).astype(hidden.dtype)


def _of_span(hidden: jax.Array, scores: jax.Array, inside: jax.Array, groups: jax.Array) -> jax.Array:
  """Returns first state, last state and weighted mean of an example's span, at its positions: [length, 3 * embed].

  Args:
    hidden: [length, embed].
    scores: float32 [length], logits of the mean's weights.
    inside: bool [length], positions in the span.
    groups: int [length], example of each position.
  """
  length, x = len(groups), hidden.astype(jnp.float32)
  spans = jnp.where(inside, groups, 0)
  options = {"segment_ids": spans, "num_segments": length + 1}
  positions = jnp.arange(length)
  start, end = jax.ops.segment_min(positions, **options), jax.ops.segment_max(positions, **options)
  start, end = (jnp.clip(x, 0, length - 1)[groups] for x in (start, end))
  most = jax.ops.segment_max(jax.lax.stop_gradient(scores), **options)[spans]
  weights = jnp.where(inside, jnp.exp(jnp.where(inside, scores - most, 0.0)), 0.0)
  total = jax.ops.segment_sum(weights, **options)
  mean = jax.ops.segment_sum(weights[:, None] * x, **options) / jnp.maximum(total, 1e-30)[:, None]
  return jnp.concatenate([x[start], x[end], mean[groups]], axis=-1)
