"""Attention masks as structure, and biases by distance."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionMask:
  """Attention mask as structure: [query, key] arrays are built only inside attention.

  query_segments, key_segments: int [batch, length]; a query attends to keys of its own segment. 0 is padding. Without
    packing a sequence is one segment, so these are `tokens > 0`. None: one segment without padding.
  prefix: int [batch, length], 1 for positions of a causal sequence that attend to each other in both directions. None:
    no prefix.
  query_offset: int [], position of the first query among the keys (when decoding).
  ranks: int32 [batch, length], below 2**31 - 1, for self-attention: a query attends to keys of its own and lower ranks
    (Yang et al. 2019, where ranks are indices in a permutation). Causality is ranks 0, 1, 2, ...; a prefix has rank 0.
    The other fields hide further keys. None: no ranks.
  ancestors: int [batch, beams, length], for each position the beam whose key belongs to this beam's past, -1: none. The
    queries are beams at one position; `key_positions` gives the layout of keys. None: no beams.
  front: number of learned prefix keys before a row's own, which all queries of every segment attend to. The other
    fields apply to the other keys.
  positions: int [batch or 1, query], positions of the queries in their segments, counted after `front`; None: indices
    in the row.
  global_tokens: int [batch, length], 1 at tokens that attend to all, and that all attend to, in an attention with such
    tokens; the other fields describe all other tokens. None: no global tokens.
  causal: a query attends to no key to its right.
  window: a query attends to keys at a distance of at most `window`; 0: all.
  padded: the segments mark only padding at the ends of rows: 1, 1, 1, 0, 0. Queries at padding may then attend to
    anything.
  """

  query_segments: jax.Array | None = None
  key_segments: jax.Array | None = None
  prefix: jax.Array | None = None
  ranks: jax.Array | None = None
  query_offset: jax.Array | int = 0
  ancestors: jax.Array | None = None
  positions: jax.Array | None = None
  global_tokens: jax.Array | None = None
  front: int = dataclasses.field(default=0, metadata={"static": True})
  causal: bool = dataclasses.field(default=False, metadata={"static": True})
  window: int = dataclasses.field(default=0, metadata={"static": True})
  padded: bool = dataclasses.field(default=False, metadata={"static": True})

  def allowed(self, query_length: int, key_length: int) -> jax.Array | None:
    """Returns bool, broadcastable to [batch, heads, query, key]; None if nothing is masked."""
    if self.front:
      row_mask = dataclasses.replace(self, front=0).allowed(query_length, key_length - self.front)
      distances = self.front_distances(query_length)[:, None]
      near = jnp.abs(distances) <= self.window if self.window else jnp.ones_like(distances, bool)
      row_mask = jnp.ones((1, 1, 1, key_length - self.front), bool) if row_mask is None else row_mask
      pairs = jnp.broadcast_shapes(near.shape[:-1], row_mask.shape[:-1])
      return jnp.concatenate([jnp.broadcast_to(x, (*pairs, x.shape[-1])) for x in (near, row_mask)], axis=-1)
    allowed = None
    queries = jnp.arange(query_length) if self.ancestors is None else jnp.zeros(query_length, jnp.int32)
    # Distance from a key to the query to its right.
    distance = queries[:, None] + self.query_offset - self.key_positions(key_length)[None, :]
    distance = distance[None, None]
    if self.causal:
      allowed = distance >= 0
      if self.prefix is not None:
        allowed |= (self.prefix[:, None, :, None] > 0) & (self.prefix[:, None, None, :] > 0)
    if self.ranks is not None:
      if not query_length == key_length == self.ranks.shape[1]:
        raise ValueError(f"ranks of shape {self.ranks.shape} do not match {query_length} queries and {key_length} keys")
      before = self.ranks[:, None, :, None] >= self.ranks[:, None, None, :]
      allowed = before if allowed is None else allowed & before
    if self.window:
      near = jnp.abs(distance) <= self.window
      allowed = near if allowed is None else allowed & near
    if self.key_segments is not None:
      assert self.query_segments is not None
      same = self.query_segments[:, None, :, None] == self.key_segments[:, None, None, :]
      allowed = same if allowed is None else allowed & same
    if self.ancestors is not None:
      row_mask = self.ancestors[..., None] == jnp.arange(query_length)
      row_mask = row_mask.reshape(*row_mask.shape[:2], -1)
      row_mask = jnp.pad(row_mask, [(0, 0), (0, 0), (key_length - row_mask.shape[2], 0)], constant_values=True)
      allowed = row_mask[:, None] if allowed is None else allowed & row_mask[:, None]
    return allowed

  def without_idle_window(self, query_length: int, key_length: int) -> "AttentionMask":
    """Returns the mask without a window that covers the whole sequence."""
    idle = self.window >= max(query_length, key_length) - 1 and not self.front and not self.is_decoding
    return dataclasses.replace(self, window=0) if self.window and idle else self

  def key_positions(self, key_length: int) -> np.ndarray:
    """Returns the position of each of a row's own keys, int [key]; with beams, the last positions repeat.

    key_length 7, 2 beams with 2 separate positions -> [0, 1, 2, 3, 3, 4, 4]
    """
    if self.ancestors is None:
      return np.arange(key_length)
    beams, length = self.ancestors.shape[1:]
    shared = key_length - beams * length
    return np.concatenate([np.arange(shared), shared + np.arange(length).repeat(beams)])

  def key_index(self, key_length: int) -> jax.Array | int:
    """Returns the index among the keys at which keys of the queries' position are written, int []."""
    if self.ancestors is None:
      return self.query_offset + self.front
    beams, length = self.ancestors.shape[1:]
    shared = key_length - self.front - beams * length
    return self.front + shared + (self.query_offset - shared) * beams

  def front_distances(self, query_length: int) -> jax.Array:
    """Returns the distances of prefix keys to the right of each query, int [batch or 1, query, front]: below 0."""
    places = jnp.arange(query_length)[None] + self.query_offset if self.positions is None else self.positions
    return jnp.arange(self.front) - (self.front + places)[..., None]

  @property
  def is_decoding(self) -> bool:
    """Returns True in decoding, with few queries and many keys; attention then copies no keys and uses no kernel."""
    return not isinstance(self.query_offset, int)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DistanceBias:
  """A bias of logits by the distance of a key to the right of its query.

  values: float32 [heads, 2 * reach + 1], for distances from -reach to reach; the last value applies beyond.
  """

  values: jax.Array

  @property
  def reach(self) -> int:
    """Returns the distance from which the bias is constant, in either direction."""
    return self.values.shape[1] // 2

  def at(self, distances: jax.Array | np.ndarray) -> jax.Array:
    """Returns [heads, ...] for int distances, [...]."""
    places = (np if isinstance(distances, np.ndarray) else jnp).clip(distances, -self.reach, self.reach) + self.reach
    return jnp.take(self.values, places, axis=1)
