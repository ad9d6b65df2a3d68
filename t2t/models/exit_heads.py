"""Heads after each layer of an encoder, for early exit: a copy of a head of a text for each layer except the last.

The head itself reads the last layer. Sources: Xin et al. 2020 (DeeBERT), Zhou et al. 2020 (PABEE).
"""

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.models import layers, task_heads
from t2t.models.architecture import Batch, segments_of
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig

KINDS = ("class", "score")  # heads with one prediction for a text


def check(config: TransformerConfig) -> None:
  """Checks that the layers of a model can be left one by one.

  Raises:
    UserError: the model is not a plain encoder, or has no head of `KINDS`.
  """
  where = "config.model.exits=True"
  if config.kind.is_generative:
    raise UserError(
      f"{where}: config.model.architecture={config.architecture} keeps keys and values of all layers for later tokens, "
      "so no layer can be left out. Use an encoder, or leave config.model.exits out."
    )
  refused = {
    "recurrence": config.recurrence,
    "memory_length": config.memory_length,
    "two_streams": config.two_streams,
    "moe_every": config.moe_every if len(config.feed_forward_pattern) > 1 else 0,
  }
  for name, value in refused.items():
    if value:
      raise UserError(f"{where} does not support config.model.{name}={value}. Leave one of the two keys out.")
  exits = [head for head in config.heads if head.kind in KINDS]
  if not exits or config.num_encoder_layers < 2:
    raise UserError(
      f"{where} needs a head of the kinds {' or '.join(KINDS)} and at least two layers, but the model has "
      f"{config.num_encoder_layers} and the heads {', '.join(head.name for head in config.heads) or 'none'}. Leave "
      "config.model.exits out."
    )
  for head in exits:
    if head.layers == "mix":
      raise UserError(f"{where}: the head {head.name} has layers='mix', which reads all layers at once. Remove layers.")


class ExitHead(task_heads.AnswerHead):
  """Head after an inner layer; in models with norms before the branches, it has a norm of its own."""

  def __init__(self, config: TransformerConfig, head: HeadConfig, rngs: nnx.Rngs):
    super().__init__(config, head, rngs)
    self.input_norm = None if config.post_norm else layers.Norm(config, config.embed_dim)

  def normed(self, hidden: jax.Array) -> jax.Array:
    """Returns the states as the head reads them, like those of the last layer."""
    return hidden if self.input_norm is None else self.input_norm(hidden)


class Exits(nnx.Module):
  """Heads after all layers except the last, each parameter with a leading "layers" axis."""

  def __init__(self, config: TransformerConfig, head: HeadConfig, rngs: nnx.Rngs):
    make = lambda key: ExitHead(config, head, nnx.Rngs(key))
    self.layers = jax.vmap(make)(jax.random.split(rngs.params(), config.num_encoder_layers - 1))

  def at(self, index: jax.Array) -> ExitHead:
    """Returns the head after the layer with this index; past the last exit, the last."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), self.layers)

  def logits(self, states: jax.Array, batch: Batch, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """Returns logits at every position, float32 [exits, batch, length, classes].

    Args:
      states: embedded tokens and the output of each layer, [layers + 1, batch, length, embed].
      batch: model features.
      dropout_key: None at evaluation.
    """
    inner = states[1:-1]
    keys = None if dropout_key is None else jax.random.split(dropout_key, inner.shape[0])

    def of_exit(head: ExitHead, hidden: jax.Array, key: jax.Array | None) -> jax.Array:
      return head(_pooled(head, head.normed(hidden), batch), dropout_key=key)

    return jax.vmap(of_exit)(self.layers, inner, keys)


def row_logits(head: task_heads.AnswerHead, hidden: jax.Array, batch: Batch, at: jax.Array) -> jax.Array:
  """Returns the logits of one position of each row, float32 [batch, classes].

  Args:
    head: an `ExitHead`, or the head of the last layer.
    hidden: [batch, length, embed].
    batch: model features.
    at: int [batch], position of the answer.
  """
  norm = head.normed if isinstance(head, ExitHead) else lambda hidden: hidden
  take = lambda x: jnp.take_along_axis(x, at[:, None, None], axis=1)[:, 0]
  # Pooling reads all positions; otherwise the norm of one is enough.
  return head(take(_pooled(head, norm(hidden), batch)) if head.reads in _POOLS else norm(take(hidden)))


_POOLS = {"mean": task_heads.mean_of_segments, "concat": task_heads.concat_of_segments}


def _pooled(head: task_heads.AnswerHead, hidden: jax.Array, batch: Batch) -> jax.Array:
  return _POOLS[head.reads](hidden, segments_of(batch, "encoder")) if head.reads in _POOLS else hidden
