"""Span boundary objective (Joshi et al. 2020): predicts masked tokens from the two hidden states beside the span."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from t2t.losses.cross_entropy import CrossEntropyConfig, token_sums
from t2t.models import task_heads, transformer
from t2t.models.architecture import Batch, predicted_side
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig


def bounds(at: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the boundary positions of each token's span, and its offset in it; arbitrary positions outside spans.

  In:  at [[F, T, T, F, T, F]], targets [[0, 1, 2, 0, 3, 0]]
  Out: left [[0, 0, 0, 0, 3, 3]], right [[3, 3, 3, 5, 5, 5]], places [[0, 0, 1, 2, 0, 1]]

  Args:
    at: bool [batch, length].
    targets: int [batch, length], in spans 1 at the start plus 2 at the end.
  """
  length = at.shape[1]
  position = jnp.broadcast_to(jnp.arange(length), at.shape)
  start = jax.lax.cummax(jnp.where(at & (targets % 2 == 1), position, 0), axis=1)
  end = jax.lax.cummin(jnp.where(at & (targets >= 2), position, length - 1), axis=1, reverse=True)
  return jnp.maximum(start - 1, 0), jnp.minimum(end + 1, length - 1), position - start


def units(at: jax.Array, targets: jax.Array, num_places: int) -> jax.Array:
  """Returns 1 at each predicted token, float32 [batch, length]: the first `num_places` tokens of a span."""
  return (at & (bounds(at, targets)[2] < num_places)).astype(jnp.float32)


def sums(
  config: CrossEntropyConfig,
  module: transformer.Transformer,
  head: HeadConfig,
  hidden: jax.Array,
  batch: Batch,
  at: jax.Array,
  targets: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Computes the summed loss of tokens in spans, and sums for metrics, as `token_sums` does.

  Args:
    config: settings of the token loss.
    module: the model.
    head: a head of kind boundary.
    hidden: [batch, length, embed].
    batch: model features, with the original tokens as targets.
    at, targets: see `bounds`.
  """
  left, right, places = bounds(at, targets)
  unit_weights = units(at, targets, head.num_classes)
  places = jnp.minimum(places, head.num_classes - 1)
  read = module.heads[head.name].read(hidden, left, right, places)
  tokens = batch[f"{predicted_side(batch)}_target_tokens"]
  summed, token_metrics, _ = token_sums(config, module.logits_fn(head.name), read, tokens, unit_weights, sparse=True)
  return summed, token_metrics


def flops(config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
  """Returns FLOPs of one head for a training step, forward and backward; see `models.flops.model_flops`.

  Args:
    config: shape of the model.
    batch_size, lengths: see `model_flops`.
    predicted: fraction of positions in spans.
  """
  width = config.embedding_dim or config.embed_dim
  read = 2 * config.embed_dim + task_heads.POSITION_WIDTH
  weights_per_token = read * config.embed_dim + config.embed_dim * width + width * config.vocab_size
  return 6.0 * batch_size * predicted * lengths[config.kind.predicts] * weights_per_token
