"""Outputs of every layer for a loss: hidden states, attention logits, queries, keys and values.

A loss sets `Stack.observation` of the models that it builds. Without it a stack computes none of these outputs.
"""

from collections.abc import Mapping
import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from t2t.models.attention import Attention, logits
from t2t.models.auxiliary import Auxiliary
from t2t.models.masks import AttentionMask, DistanceBias
from t2t.models.positions import Positions, bias_of

# Names of the states that a stack adds to its auxiliary outputs.
HIDDEN, SCORES, QUERY, KEY, VALUE = (f"observed_{name}" for name in ("hidden", "scores", "query", "key", "value"))
_RANKS = {HIDDEN: 3, SCORES: 4, QUERY: 4, KEY: 4, VALUE: 4}  # dimensions of one layer's state


@dataclasses.dataclass(frozen=True)
class Observation:
  """Selects outputs of the self-attention of each layer; a probe, see `Layer.__call__`.

  hidden: the embedded tokens and each layer's output, see `Stack.__call__`.
  scores: attention logits before the softmax, float32; -inf where a query does not attend to a key.
  projections: queries, keys and values of all heads, as projected, normed and rotated; queries are not scaled.
  """

  cross: ClassVar[bool] = False

  hidden: bool = False
  scores: bool = False
  projections: bool = False

  def at(
    self,
    attention: Attention,
    x: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    mask: AttentionMask,
    positions: Positions,
  ) -> dict[str, jax.Array]:
    """Returns the outputs of one self-attention, name -> [batch, heads, query, key or kv]."""
    if not (self.scores or self.projections):
      return {}
    positions = positions.of_attention(attention, None)
    query = attention.queries(x, positions, None)
    states = {QUERY: query, KEY: keys, VALUE: values} if self.projections else {}
    if not self.scores:
      return states
    return states | {SCORES: _scores(attention, query * attention.scale, keys, mask, positions)}

  def added(self, aux: Auxiliary, states: object) -> Auxiliary:
    """Returns a layer's auxiliary outputs with the result of `at`."""
    assert isinstance(states, Mapping)
    return dataclasses.replace(aux, states={**aux.states, **states})

  def with_hidden(self, aux: Auxiliary, states: jax.Array) -> Auxiliary:
    """Returns a stack's auxiliary outputs with the states of all layers, [layers + 1, batch, length, embed]."""
    return dataclasses.replace(aux, states={**aux.states, HIDDEN: states})


def _scores(
  attention: Attention, query: jax.Array, keys: jax.Array, mask: AttentionMask, positions: Positions
) -> jax.Array:
  """Returns the logits of a self-attention, float32 [batch, heads, query, key], -inf where a key is masked."""
  bias = positions.on_logits(query, keys, attention.position)
  bias = bias_of(bias, mask, query.shape[2], keys.shape[2]) if isinstance(bias, DistanceBias) else bias
  scores = logits(query, keys, bias, softcap=attention.softcap)

  def attends(mask: AttentionMask) -> jax.Array:
    allowed = mask.allowed(query.shape[2], keys.shape[2])
    return jnp.broadcast_to(True if allowed is None else allowed, scores.shape)

  local = dataclasses.replace(mask, window=attention.window)
  if isinstance(positions.is_local, bool):
    return jnp.where(attends(local if positions.is_local else mask), scores, -jnp.inf)
  return jnp.where(jnp.where(positions.is_local, attends(local), attends(mask)), scores, -jnp.inf)


def states_of(aux: Auxiliary, side: str) -> dict[str, jax.Array]:
  """Returns the observed states of a model's stack, name -> [layers, batch, ...]; [layers + 1, ...] for hidden states.

  Args:
    aux: auxiliary outputs of a model.
    side: encoder or decoder.
  """
  found = {name: aux.states[f"{side}/{name}"] for name in _RANKS if f"{side}/{name}" in aux.states}
  # Stacks with alternating layers return groups of layers.
  return {name: jnp.reshape(x, (-1, *x.shape[x.ndim - _RANKS[name] :])) for name, x in found.items()}
