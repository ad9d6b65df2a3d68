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
  ranks: int32 [batch, key], below 2**31 - 1, for self-attention: a query attends to keys of its own and lower ranks
    (Yang et al. 2019, where ranks are indices in a permutation). Causality is ranks 0, 1, 2, ...; a prefix has rank 0.
    The other fields hide further keys. None: no ranks.
  query_ranks: int32 [batch, query], ranks of the queries; None: `ranks`.
  token_types: int [batch, key], segment type of each key, for schemes that read it; None: one type.
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
  streams: number of queries of each position: with 2, all positions are queries twice, one after the other.
  private: int [batch, key], 1 at keys that only queries of the same kind and block attend to; queries and keys are the
    same tokens, with ranks as blocks. The keys of all streams follow each other. None: no such keys.
  """

  query_segments: jax.Array | None = None
  key_segments: jax.Array | None = None
  prefix: jax.Array | None = None
  ranks: jax.Array | None = None
  query_ranks: jax.Array | None = None
  token_types: jax.Array | None = None
  query_offset: jax.Array | int = 0
  ancestors: jax.Array | None = None
  positions: jax.Array | None = None
  global_tokens: jax.Array | None = None
  private: jax.Array | None = None
  front: int = dataclasses.field(default=0, metadata={"static": True})
  causal: bool = dataclasses.field(default=False, metadata={"static": True})
  window: int = dataclasses.field(default=0, metadata={"static": True})
  padded: bool = dataclasses.field(default=False, metadata={"static": True})
  streams: int = dataclasses.field(default=1, metadata={"static": True})

  def in_two_streams(self) -> "AttentionMask":
    """Returns the mask of a content stream, and a query stream whose positions do not attend to their own tokens.

    The queries are all positions of the first stream, then all of the second; the keys are only of the first (Yang et
    al. 2019, section 2.3).
    """
    assert self.ranks is not None
    twice = lambda x: None if x is None else jnp.concatenate([x, x], axis=1)
    return dataclasses.replace(
      self,
      query_segments=twice(self.query_segments),
      query_ranks=jnp.concatenate([self.ranks, self.ranks - 1], axis=1),
      positions=twice(self.positions),
      streams=2,
    )

  def behind_memory(self, filled: jax.Array, query_length: int) -> "AttentionMask":
    """Returns the mask with a memory before the keys, which the first segment of each row attends to.

    Args:
      filled: bool [batch, memory], positions of the memory that hold a state.
      query_length: number of queries.
    """
    length = query_length // self.streams
    ones = lambda size: jnp.ones((filled.shape[0], size), jnp.int32)
    queries, keys = self.query_segments, self.key_segments
    if queries is None or keys is None:
      queries, keys = ones(query_length), ones(length)
    memory = jnp.where(filled, queries[:, :1], -1).astype(keys.dtype)
    before = lambda x, value: (
      None if x is None else jnp.concatenate([value * jnp.ones_like(memory, x.dtype), x], axis=1)
    )
    return dataclasses.replace(
      self,
      query_segments=queries,
      key_segments=jnp.concatenate([memory, keys], axis=1),
      ranks=before(self.ranks, jnp.iinfo(jnp.int32).min),
      query_ranks=self.ranks if self.query_ranks is None else self.query_ranks,
      token_types=before(self.token_types, 0),
      query_offset=filled.shape[1],
      padded=False,
    )

  def num_keys(self, query_length: int) -> int:
    """Returns the number of keys of a row's own positions."""
    return query_length if self.private is not None else query_length // self.streams

  def query_indices(self, query_length: int) -> jax.Array:
    """Returns the index of each query among the keys, int [query]; all beams have the same."""
    if self.ancestors is not None:
      return jnp.zeros(query_length, jnp.int32) + self.query_offset
    return self.query_places(query_length) + self.query_offset

  def query_places(self, query_length: int) -> jax.Array:
    """Returns the index of each query among the queries of its stream, int [query]."""
    places = jnp.arange(query_length // self.streams)
    return jnp.concatenate([places] * self.streams) if self.streams > 1 else places

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
    # Distance from a key to the query to its right.
    distance = self.query_indices(query_length)[:, None] - self.key_positions(key_length)[None, :]
    distance = distance[None, None]
    if self.causal:
      allowed = distance >= 0
      if self.prefix is not None:
        allowed |= (self.prefix[:, None, :, None] > 0) & (self.prefix[:, None, None, :] > 0)
    if self.ranks is not None:
      ranks = self.ranks if self.query_ranks is None else self.query_ranks
      if (query_length, key_length) != (ranks.shape[1], self.ranks.shape[1]):
        raise ValueError(f"ranks of shape {self.ranks.shape} do not match {query_length} queries and {key_length} keys")
      before = ranks[:, None, :, None] >= self.ranks[:, None, None, :]
      if self.private is not None:
        # Queries of private keys have the rank before their own, see `in_two_streams`.
        within = (self.private[:, None, :, None] > 0) & (ranks[:, None, :, None] + 1 == self.ranks[:, None, None, :])
        before = jnp.where(self.private[:, None, None, :] > 0, within, before)
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
    key_length 6, of two streams -> [0, 1, 2, 0, 1, 2]
    """
    if self.private is not None:
      return np.tile(np.arange(key_length // self.streams), self.streams)
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
    places = self.query_indices(query_length)[None] if self.positions is None else self.positions
    return jnp.arange(self.front) - (self.front + places)[..., None]

  def positions_after_keys(self) -> jax.Array:
    """Returns positions of cross-attention's queries that continue the positions of the keys, int [batch, query].

    The first query of a segment has the position after the last key of the segment. Keys of segments [1, 1, 2, 0] and
    queries of segments [1, 1, 2] at positions [0, 1, 0] -> [2, 3, 3].
    """
    assert self.query_segments is not None and self.key_segments is not None
    is_own = self.query_segments[:, :, None] == self.key_segments[:, None, :]
    ends = jnp.max(jnp.where(is_own, jnp.arange(1, self.key_segments.shape[1] + 1), 0), axis=-1)
    return ends + (jnp.arange(self.query_segments.shape[1]) if self.positions is None else self.positions)

  @property
  def memory(self) -> int:
    """Returns the number of keys of a memory before a row's own; unlike in decoding, the offset is a constant."""
    return self.query_offset if isinstance(self.query_offset, int) else 0

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
