"""Products with one vector for each distance, without an array of [query, key, features]."""

from collections.abc import Callable
import dataclasses

import jax
import jax.numpy as jnp

from t2t.models.positions import Call


def by_key(x: jax.Array, num_keys: int) -> jax.Array:
  """Maps products by distance to products by key; each row moves by one, so that reshapes replace a gather.

  In:  [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], 3 keys; column c is the distance c - 1
  Out: [[1, 2, 3], [5, 6, 7]]                       query i and key j read the distance j - i

  Args:
    x: [..., query, key + query]; column c is the distance c - (query - 1), and the last column is not read.
    num_keys: number of keys.
  """
  *leading, queries, columns = x.shape
  flat = x.reshape(*leading, queries * columns)[..., queries - 1 : queries - 1 + queries * (columns - 1)]
  return flat.reshape(*leading, queries, columns - 1)[..., :num_keys]


def by_distance(x: jax.Array) -> jax.Array:
  """Maps [..., query, key] to [..., query, key + query], the inverse of `by_key`; other distances are 0."""
  *leading, queries, keys = x.shape
  pad = lambda x, *widths: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [widths])
  flat = pad(x, 0, queries - 1).reshape(*leading, queries * (keys + queries - 1))
  return pad(flat, queries - 1, 1).reshape(*leading, queries, keys + queries)


@dataclasses.dataclass(frozen=True)
class Pairs:
  """Pairs of a query and a key in a call of a stack, each with a row of a table of vectors, [heads, rows, kv].

  Packed sequences are contiguous, so the distance in the row is the distance in the sequence. Learned prefix keys come
  first; `AttentionMask.front_distances` has their distances.

  call: the call of the stack.
  row: maps distances of a key to the right of its query, int [...], to rows of the table.
  """

  call: Call
  row: Callable[[jax.Array], jax.Array]

  @property
  def _num_keys(self) -> int:
    """Returns the number of a row's own keys."""
    return self.call.key_length - self.call.front

  def _rows(self, first: int, second: int, sign: int = 1) -> jax.Array:
    """Returns the row of each column of `by_key`; with sign -1 for keys by queries."""
    return self.row(sign * (jnp.arange(second + first) - (first - 1)))

  def _decoded(self, vectors: jax.Array) -> jax.Array:
    """Returns vectors of the pairs in decoding, [heads, query positions, key, kv]; all beams are at one position."""
    keys = jnp.asarray(self.call.mask.key_positions(self._num_keys))
    return vectors[:, self.row(keys - self.call.mask.query_indices(self.call.query_positions)[:, None])]

  def _front(self, batch: int, heads: int) -> jax.Array:
    """Returns the rows of the prefix keys, int [batch, heads, query, front]."""
    rows = self.row(self.call.mask.front_distances(self.call.query_positions))[:, None]
    return jnp.broadcast_to(rows, (batch, heads, self.call.query_length, self.call.front))

  def with_queries(self, queries: jax.Array, vectors: jax.Array) -> jax.Array:
    """Returns the products of queries, [batch, heads, query, kv], and vectors: float32 [batch, heads, query, key]."""
    product = lambda axes, vectors: jnp.einsum(axes, queries, vectors, preferred_element_type=jnp.float32)
    if self.call.mask.is_decoding and self.call.query_positions == 1:
      logits = product("bhqd,hkd->bhqk", self._decoded(vectors)[:, 0])
    elif self.call.mask.is_decoding:
      logits = product("bhqd,hqkd->bhqk", self._decoded(vectors))
    else:
      rows = self._rows(queries.shape[2], self._num_keys)
      logits = by_key(product("bhqd,hcd->bhqc", vectors[:, rows]), self._num_keys)
    if not self.call.front:
      return logits
    front = jnp.take_along_axis(product("bhqd,hrd->bhqr", vectors), self._front(*queries.shape[:2]), axis=-1)
    return jnp.concatenate([front, logits], axis=-1)

  def with_keys(self, keys: jax.Array, vectors: jax.Array) -> jax.Array:
    """Returns the products of keys, [batch, kv heads, key, kv], and vectors: float32 [batch, heads, query, key]."""
    keys = jnp.repeat(keys, vectors.shape[0] // keys.shape[1], axis=1)
    product = lambda axes, keys, vectors: jnp.einsum(axes, keys, vectors, preferred_element_type=jnp.float32)
    front, own = jnp.split(keys, [self.call.front], axis=2)
    if self.call.mask.is_decoding:
      logits = product("bhkd,hqkd->bhqk", own, self._decoded(vectors))
      logits = jnp.broadcast_to(logits, (*logits.shape[:2], self.call.query_length, logits.shape[3]))
    else:
      queries = self.call.query_length
      by_query = by_key(product("bhkd,hcd->bhkc", own, vectors[:, self._rows(self._num_keys, queries, -1)]), queries)
      logits = jnp.swapaxes(by_query, 2, 3)
    if not self.call.front:
      return logits
    rows = jnp.swapaxes(self._front(*keys.shape[:2]), 2, 3)
    of_front = jnp.take_along_axis(product("bhfd,hrd->bhfr", front, vectors), rows, axis=-1)
    return jnp.concatenate([jnp.swapaxes(of_front, 2, 3), logits], axis=-1)

  def weighted(self, probabilities: jax.Array, vectors: jax.Array) -> jax.Array:
    """Returns the weighted sum of vectors for each query, [batch, heads, query, kv].

    Args:
      probabilities: [batch, heads, query, key].
      vectors: [heads, rows, kv].
    """
    front, own = jnp.split(probabilities, [self.call.front], axis=-1)
    if self.call.mask.is_decoding and self.call.query_positions == 1:
      total = jnp.einsum("bhqk,hkd->bhqd", own, self._decoded(vectors)[:, 0])
    elif self.call.mask.is_decoding:
      total = jnp.einsum("bhqk,hqkd->bhqd", own, self._decoded(vectors))
    else:
      rows = self._rows(own.shape[2], own.shape[3])
      total = jnp.einsum("bhqc,hcd->bhqd", by_distance(own), vectors[:, rows])
    if not self.call.front:
      return total
    hot = jax.nn.one_hot(self._front(own.shape[0], 1), vectors.shape[1], dtype=own.dtype)
    return total + jnp.einsum("bhqr,hrd->bhqd", jnp.einsum("bhqf,bqfr->bhqr", front, hot[:, 0]), vectors)
