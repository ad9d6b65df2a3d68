"""Transformer-XL's and XLNet's relative positions: logits of sinusoids of the distance, and learned biases.

For a query q and a key k at distance d to its left, the logit is

  (q + u) k + (q + v) W_r R_d + (q + s) e,

with R_d the sinusoids of d; u and v biases of content and position; and e one of two vectors, by whether q and k have
the same segment type (XLNet only).

Source: Dai et al. 2019, section 3.3; Yang et al. 2019, section 2.4.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.models import layers
from t2t.models.config import TransformerConfig
from t2t.models.masks import AttentionMask
from t2t.models.positions import Call, Positions, Scheme


def sinusoids(distances: jax.Array | np.ndarray, width: int) -> jax.Array:
  """Returns the sinusoids of distances, int [...]: float32 [..., width], sines and then cosines.

  In:  [0, 1], width 4
  Out: [[0, 0, 1, 1], [sin(1), sin(0.01), cos(1), cos(0.01)]]
  """
  frequencies = 10_000.0 ** -(np.arange(0, width, 2, dtype=np.float32) / width)
  angles = jnp.asarray(distances, jnp.float32)[..., None] * frequencies
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def relative_shift(x: jax.Array, key_length: int) -> jax.Array:
  """Moves values by distance to the keys at these distances.

  In:  [[a, b, c], [d, e, f]], key_length 2; the columns are distances 1, 0 and -1 from the query to a key
  Out: [[b, c], [d, e]]

  Args:
    x: [..., query, query + key - 1]: column c is the distance at which the last query has key c - (query - 1).
    key_length: number of keys.

  Returns:
    [..., query, key].
  """
  queries, columns = x.shape[-2:]
  if queries == 1:
    return x
  # Row q of the result begins at column queries - 1 - q; rows that are one column shorter begin there by themselves.
  flat = x.reshape(*x.shape[:-2], queries * columns)[..., queries - 1 : queries - 1 + queries * (columns - 1)]
  return flat.reshape(*x.shape[:-2], queries, columns - 1)[..., :key_length]


class Biases(nnx.Module):
  """The vectors u, v (and s) of each head, added to queries."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    shape, axes = (config.num_heads, config.head_dim), ("heads", "kv")
    make = lambda: layers.param(rngs, shape, axes, scale=layers.fan_in_scale(config, config.embed_dim))
    self.content, self.position = make(), make()
    self.segment = make() if config.relative_segments else None


class LayerParameters(nnx.Module):
  """Projection of the sinusoids, vectors of equal and different segments, and biases that the layers do not share."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    embed, heads, head_dim = config.embed_dim, config.num_heads, config.head_dim
    scale = layers.fan_in_scale(config, embed)
    self.projection = layers.param(rngs, (embed, heads * head_dim), ("embed", "heads"), scale=scale)
    segments = config.relative_segments
    shape, axes = (2, heads, head_dim), ("segments", "heads", "kv")
    self.segments = layers.param(rngs, shape, axes, scale=scale) if segments else None
    self.biases = None if config.share_relative_biases else Biases(config, rngs)


@dataclasses.dataclass(frozen=True)
class XLPositions(Positions):
  """Sinusoids of all distances of a call, and the biases of its layers if they share them.

  sinusoids: float32 [distances, embed].
  columns: int [1 or batch, query, key], the distance of each pair in `sinusoids`, if no shift gives it; None:
    `relative_shift` does, or in decoding one token the distances are those of the keys.
  """

  config: TransformerConfig | None = None
  mask: AttentionMask | None = None
  sinusoids: jax.Array | None = None
  columns: jax.Array | None = None
  shared: nnx.Module | None = None

  def on_logits(self, queries: jax.Array, keys: jax.Array, parameters: nnx.Module | None) -> jax.Array:
    """Returns all terms of the logits besides q k, float32 [batch, heads, query, key]."""
    layer: Any = parameters
    config, mask, distances = self.config, self.mask, self.sinusoids
    assert config is not None and mask is not None and distances is not None
    biases: Any = self.shared if layer.biases is None else layer.biases
    # Queries are already scaled, and so are the biases that are added to them.
    biased = lambda bias: queries + (config.attention_scale * bias[...]).astype(queries.dtype)[:, None]
    content = (config.attention_scale * biases.content[...]).astype(keys.dtype)
    content = content.reshape(config.kv_heads, -1, config.head_dim)
    logits = jnp.einsum("hgd,bhkd->bhgk", content, keys, preferred_element_type=jnp.float32)
    logits = logits.reshape(keys.shape[0], config.num_heads, 1, -1)
    logits = logits + self._by_distance(biased(biases.position), layer.projection, keys.shape[2])
    if layer.segments is not None and mask.token_types is not None:
      own = jnp.tile(mask.token_types[:, -(queries.shape[2] // mask.streams) :], (1, mask.streams))
      table = layer.segments[...].astype(queries.dtype)
      both = jnp.einsum("bhqd,shd->sbhq", biased(biases.segment), table, preferred_element_type=jnp.float32)
      same, other = both[..., None]
      types = jnp.pad(mask.token_types, [(0, 0), (mask.front, 0)])  # prefix keys have type 0
      logits = logits + jnp.where(own[:, None, :, None] == types[:, None, None, :], same, other)
    return logits

  def _by_distance(self, queries: jax.Array, projection: Any, key_length: int) -> jax.Array:
    """Returns the logits of queries and the projected sinusoids, float32 [batch, heads, query, key]."""
    assert self.mask is not None and self.sinusoids is not None
    head_dim, distances = queries.shape[-1], self.sinusoids.astype(queries.dtype)
    if self.mask.is_decoding and isinstance(projection, nnx.Param):
      # Few queries and many keys: it is cheaper to project the queries.
      matrix = projection[...].astype(queries.dtype).reshape(distances.shape[-1], -1, head_dim)
      read = jnp.einsum("bhqd,ehd->bhqe", queries, matrix)
      logits = jnp.einsum("bhqe,ne->bhqn", read, distances, preferred_element_type=jnp.float32)
    else:
      projected = layers.dense(distances, projection).reshape(distances.shape[0], -1, head_dim)
      logits = jnp.einsum("bhqd,nhd->bhqn", queries, projected, preferred_element_type=jnp.float32)
    if self.columns is not None:
      columns = jnp.broadcast_to(self.columns[:, None], (*logits.shape[:3], key_length))
      return jnp.take_along_axis(logits, columns, axis=-1)
    if self.mask.is_decoding:
      return logits
    streams = logits.reshape(*logits.shape[:2], self.mask.streams, -1, logits.shape[-1])
    return relative_shift(streams, key_length).reshape(*logits.shape[:3], key_length)


class RelativeXL(Scheme):
  """Sinusoids of the distance, projected in each layer, and biases (Dai et al. 2019)."""

  bias = "rows"
  relative = True

  def __init__(self, config: TransformerConfig):
    super().__init__(config)
    if config.embed_dim % 2:
      raise UserError(
        f"config.model.embed_dim={config.embed_dim}: must be even, because config.model.positions=relative_xl has "
        "pairs of sines and cosines"
      )

  def stack_parameters(self, rngs: nnx.Rngs, *, bidirectional: bool) -> nnx.Module | None:
    del bidirectional
    return Biases(self.config, rngs) if self.config.share_relative_biases else None

  def layer_parameters(self, rngs: nnx.Rngs) -> nnx.Module:
    return LayerParameters(self.config, rngs)

  def positions(self, shared: nnx.Module | None, call: Call) -> Callable[[jax.Array], Positions]:
    """Returns the sinusoids of all distances from queries to keys, in the order that `relative_shift` takes."""
    config, mask, front = self.config, call.mask, call.front
    own_keys, columns = call.key_length - front, None
    if mask.is_decoding:
      places = mask.query_indices(call.query_positions)[:, None]
      own = places - jnp.asarray(mask.key_positions(own_keys))
      distances = own[0]
      if front or call.query_positions > 1:
        # Distances to prefix keys may differ between rows, but not their order of magnitude: one table for all.
        distances = jnp.arange(call.key_length + 1)
        columns = own[None]
        if front:
          to_front = -mask.front_distances(call.query_positions)
          columns = jnp.concatenate([to_front, jnp.broadcast_to(own, (to_front.shape[0], *own.shape))], axis=-1)
        columns = jnp.clip(columns, 0, call.key_length)
    else:
      length = call.query_length // mask.streams
      distances = mask.memory + length - 1 - np.arange(length + own_keys - 1)
      if front:
        first = length - 1 + mask.memory + front  # the largest distance
        distances = first - np.arange(first + own_keys)
        own = mask.query_indices(call.query_length)[:, None] - np.arange(own_keys)
        to_front = -mask.front_distances(call.query_length)
        own = jnp.broadcast_to(own, (to_front.shape[0], *own.shape))
        columns = first - jnp.concatenate([to_front, own], axis=-1)
    if config.relative_clamp:
      distances = jnp.clip(distances, -config.relative_clamp, config.relative_clamp)
    table = sinusoids(distances, config.embed_dim)
    return lambda index: XLPositions(
      is_local=config.is_local(index), config=config, mask=mask, sinusoids=table, columns=columns, shared=shared
    )
