"""Memory of layers: states of earlier positions, which training keeps from step to step (Dai et al. 2019).

Each layer keeps its input at the last config.model.memory_length positions. In the next step its keys and values are
those of the memory, then of the row. No gradient enters the memory. A state of zeros is an empty position: at step 0,
at padding, and before a row that begins a text.
"""

from collections.abc import Collection, Mapping

import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.models.auxiliary import Carried
from t2t.models.config import POSITIONS, TransformerConfig
from t2t.models.masks import AttentionMask
from t2t.runtime.lazy_table import load

NAME = "memory"  # of the carried state


def check(config: TransformerConfig) -> None:
  """Checks that a model with a memory has relative positions, and one stack that reads plain text.

  Raises:
    UserError: with the keys.
  """
  if not config.memory_length:
    if config.memory_reuse:
      raise UserError(
        f"config.model.memory_reuse={config.memory_reuse} has no effect with config.model.memory_length=0. Set "
        "config.model.memory_length, or config.model.memory_reuse=0."
      )
    return
  where = f"config.model.memory_length={config.memory_length}"
  if not config.position_scheme.relative:
    able = [name for name, scheme in POSITIONS.rows.items() if load(scheme).relative]
    raise UserError(
      f"{where} needs relative positions, because a memory begins before the first position, but "
      f"config.model.positions={config.positions}. Give one of {', '.join(able)}, or config.model.memory_length=0."
    )
  if config.kind.has_encoder_and_decoder or config.bidirectional_prefix:
    key = "bidirectional_prefix=True" if config.bidirectional_prefix else f"architecture={config.architecture}"
    raise UserError(
      f"{where} needs rows of plain text, but config.model.{key} separates inputs from targets. Set "
      "config.model.memory_length=0."
    )


def carried(config: TransformerConfig) -> Mapping[str, Carried]:
  """Returns each layer's states that training keeps for the next step: the memory, and the feed-forward layer's."""
  states = config.feed_forward_class.carried(config)
  if not config.memory_length:
    return states
  return {NAME: Carried((config.memory_length, config.embed_dim), config.dtype, evaluated=True), **states}


def mask_with(mask: AttentionMask, carried: Mapping[str, jax.Array], query_length: int) -> AttentionMask:
  """Returns the mask of keys that begin with the carried memory, [layers, batch, memory, embed], if there is one."""
  if NAME not in carried:
    return mask
  return mask.behind_memory(jnp.any(carried[NAME][0] != 0, axis=-1), query_length)


def pushed(states: jax.Array, x: jax.Array, real: jax.Array | None, *, reuse: int = 0) -> jax.Array:
  """Returns the memory after a row: the last states of [memory, row], without a gradient.

  Args:
    states: [batch, memory, embed], the memory before the row.
    x: [batch, length, embed], the layer's input.
    real: bool [batch, at least length], positions with a token; None: all.
    reuse: positions at the start of the row that enter the memory; 0: all.
  """
  x = x[:, :reuse] if reuse else x
  x = x if real is None else jnp.where(real[:, : x.shape[1], None], x, 0)
  joined = jnp.concatenate([states, x.astype(states.dtype)], axis=1)
  return jax.lax.stop_gradient(joined[:, -states.shape[1] :])


def of_row(
  states: Mapping[str, jax.Array], continues: jax.Array | None, of_text: Collection[str] = (NAME,)
) -> dict[str, jax.Array]:
  """Empties the states of rows that continue no text.

  Args:
    states: name -> [layers, batch, ...], carried states.
    continues: int [batch, 1], 1 if a row continues the same row of the previous batch; None: all do.
    of_text: names of the states that belong to a text.
  """
  if continues is None:
    return dict(states)
  kept = lambda x: continues.reshape(1, -1, *[1] * (x.ndim - 2)) > 0
  return {name: jnp.where(kept(x), x, 0) if name in of_text else x for name, x in states.items()}


def split(states: Mapping[str, jax.Array]) -> tuple[jax.Array | None, Mapping[str, jax.Array] | None]:
  """Splits a layer's carried states into the memory, or None; and those of the feed-forward layer, or None."""
  others = {name: x for name, x in states.items() if name != NAME}
  return states.get(NAME), others or None
