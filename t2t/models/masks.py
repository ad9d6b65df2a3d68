"""Who sees whom: attention's mask as structure."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionMask:
  """Which keys a query sees, as structure: [query, key] arrays are built inside attention alone.

  query_segments, key_segments: int [batch, length]; a query sees the keys of its own segment. 0 is padding. Without
    packing a sequence is one segment, so these are `tokens > 0`. None: all of them.
  prefix: int [batch, length], 1 for the positions of a causal sequence that all see each other. None: there are none.
  query_offset: int [], position of the first query among the keys (when decoding).
  ranks: int32 [batch, length], below 2**31 - 1, of a sequence that attends to itself: a query sees the keys of its own
    rank and of lower ones (Yang et al. 2019, whose ranks are places in a permutation).  Causality is ranks of 0, 1, 2,
    ...; a prefix has 0 all along.  Whatever else is said of a mask hides keys besides.  None: there are none.
  ancestors: int [batch, beams, length], which of the keys of each position belongs to a beam's own past, -1 where none
    does.  The queries are beams, all at one position; keys lie as `key_positions` says.  None: there are no beams.
  front: keys that stand in front of a row's own, and are seen by all queries of every segment: learned ones.  All else
    that is said here is of the others.
  positions: int [batch or 1, query], of the queries in their own segments, which `front` comes before; None: they are
    places in the row.
  causal: a query sees no key to its right.
  window: a query sees the keys that are at most so many positions away; 0: all.
  padded: the segments say no more than which keys are padding, at the ends of rows: 1, 1, 1, 0, 0.  Queries that are
    padding themselves may then see anything.
  """

  query_segments: jax.Array | None = None
  key_segments: jax.Array | None = None
  prefix: jax.Array | None = None
  ranks: jax.Array | None = None
  query_offset: jax.Array | int = 0
  ancestors: jax.Array | None = None
  positions: jax.Array | None = None
  front: int = dataclasses.field(default=0, metadata={"static": True})
  causal: bool = dataclasses.field(default=False, metadata={"static": True})
  window: int = dataclasses.field(default=0, metadata={"static": True})
  padded: bool = dataclasses.field(default=False, metadata={"static": True})

  def allowed(self, query_length: int, key_length: int) -> jax.Array | None:
    """bool, broadcastable to [batch, heads, query, key]; None where everything is seen."""
    if self.front:
      row_mask = dataclasses.replace(self, front=0).allowed(query_length, key_length - self.front)
      distances = self.front_distances(query_length)[:, None]
      near = jnp.abs(distances) <= self.window if self.window else jnp.ones_like(distances, bool)
      row_mask = jnp.ones((1, 1, 1, key_length - self.front), bool) if row_mask is None else row_mask
      pairs = jnp.broadcast_shapes(near.shape[:-1], row_mask.shape[:-1])
      return jnp.concatenate([jnp.broadcast_to(x, (*pairs, x.shape[-1])) for x in (near, row_mask)], axis=-1)
    allowed = None
    queries = jnp.arange(query_length) if self.ancestors is None else jnp.zeros(query_length, jnp.int32)
    # How far to the left of the query a key lies.
    distance = queries[:, None] + self.query_offset - self.key_positions(key_length)[None, :]
    distance = distance[None, None]
    if self.causal:
      allowed = distance >= 0
      if self.prefix is not None:
        allowed |= (self.prefix[:, None, :, None] > 0) & (self.prefix[:, None, None, :] > 0)
    if self.ranks is not None:
      if not query_length == key_length == self.ranks.shape[1]:
        raise ValueError(f"ranks {self.ranks.shape} are no {query_length} queries' and no {key_length} keys'")
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
    """The same without a window that hides nothing, of a text that is no longer than it."""
    idle = self.window >= max(query_length, key_length) - 1 and not self.front and not self.is_decoding
    return dataclasses.replace(self, window=0) if self.window and idle else self

  def key_positions(self, key_length: int) -> np.ndarray:
    """Position of each of a row's own keys, int [key]: its index; with beams the last ones have a key of every beam.

    key_length 7, 2 beams, of which 2 positions are told apart -> [0, 1, 2, 3, 3, 4, 4]
    """
    if self.ancestors is None:
      return np.arange(key_length)
    beams, length = self.ancestors.shape[1:]
    shared = key_length - beams * length
    return np.concatenate([np.arange(shared), shared + np.arange(length).repeat(beams)])

  def key_index(self, key_length: int) -> jax.Array | int:
    """Where among so many keys those of the queries' position lie, int []."""
    if self.ancestors is None:
      return self.query_offset + self.front
    beams, length = self.ancestors.shape[1:]
    shared = key_length - self.front - beams * length
    return self.front + shared + (self.query_offset - shared) * beams

  def front_distances(self, query_length: int) -> jax.Array:
    """How far to the right of each query the keys in front lie, int [batch or 1, query, front]: below 0."""
    places = jnp.arange(query_length)[None] + self.query_offset if self.positions is None else self.positions
    return jnp.arange(self.front) - (self.front + places)[..., None]

  @property
  def is_decoding(self) -> bool:
    """Whether a few queries come to many keys, again and again: then no key is copied, and no kernel is started."""
    return not isinstance(self.query_offset, int)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DistanceBias:
  """A bias of logits by how far to the right of its query a key lies.

  values: float32 [heads, 2 * reach + 1], for distances from -reach to reach; beyond, it is the last.
  """

  values: jax.Array

  @property
  def reach(self) -> int:
    """The distance from which on it is the same, to either side."""
    return self.values.shape[1] // 2

  def at(self, distances: jax.Array | np.ndarray) -> jax.Array:
    """[heads, ...] for int distances, [...]."""
    places = (np if isinstance(distances, np.ndarray) else jnp).clip(distances, -self.reach, self.reach) + self.reach
    return jnp.take(self.values, places, axis=1)
