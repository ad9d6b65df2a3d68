"""Reformer's attention: similar tokens are sorted into chunks, which attend to themselves and to the chunk before.

Memory and time are linear in the length, up to the sorting.
"""

from collections.abc import Callable
import functools
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.models import chunks, layers
from t2t.models.attention import Attention
from t2t.models.config import TransformerConfig
from t2t.models.masks import AttentionMask
from t2t.models.positions import NOWHERE, Positions

# Logits of a token with itself, and with tokens that it must not attend to. A token without other keys attends to
# itself (Kitaev et al. 2020, section 2).
_ITSELF, _HIDDEN = -1e5, -1e9


Ids = tuple[jax.Array, ...]  # positions and segments, int [batch or 1, heads or 1, chunks, tokens]


def hashes(vectors: jax.Array, rotations: jax.Array) -> jax.Array:
  """Returns the bucket of each vector in each round, int32 [batch, heads, rounds, length].

  Args:
    vectors: [batch, heads, length, kv].
    rotations: float32 [heads, kv, rounds, buckets / 2]; the bucket is the nearest of its vectors and their negatives.

  Source: Andoni et al. 2015; Kitaev et al. 2020, section 2.
  """
  rotated = jnp.einsum("bhld,hdrk->bhrlk", vectors.astype(jnp.float32), rotations)
  return jnp.argmax(jnp.concatenate([rotated, -rotated], axis=-1), axis=-1).astype(jnp.int32)


def normed_keys(shared: jax.Array) -> jax.Array:
  """Returns the keys of shared queries and keys: of equal length, and divided by sqrt(kv)."""
  wide = shared.astype(jnp.float32)
  scale = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-6)
  return (wide * scale * shared.shape[-1] ** -0.5).astype(shared.dtype)


def attend_to_hashed(
  shared: jax.Array,
  values: jax.Array,
  segments: jax.Array,
  rotations: jax.Array,
  *,
  chunk: int,
  causal: bool,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
) -> jax.Array:
  """Attends within sorted chunks and to the chunk before, in several rounds of hashing.

  A round's result counts by the sum of its exponentiated logits. A sequence of one chunk attends to all of its tokens.

  Args:
    shared: queries, which are also the keys, [batch, heads, length, kv].
    values: [batch, heads, length, kv].
    segments: int [batch, length], 0 for padding; a token attends to its own segment.
    rotations: see `hashes`.
    chunk: tokens of a chunk.
    causal: whether a token attends to no token to its right.
    dropout_rate, dropout_key: dropout of single probabilities.

  Returns:
    [batch, heads, length, kv].

  Source: Kitaev et al. 2020, section 2.
  """
  length, dropped = shared.shape[2], functools.partial(layers.dropout, rate=dropout_rate, key=dropout_key)
  if length <= chunk:
    one = lambda x: x[:, :, None]
    ids = jnp.arange(length)[None, None, None], segments[:, None, None]
    out, _ = _attend(one(shared), one(normed_keys(shared)), one(values), ids, ids, causal, dropped)
    return out[:, :, 0]
  shared, values = (chunks.padded(x, 2, chunk) for x in (shared, values))
  segments = chunks.padded(segments, 1, chunk)
  size, rounds = shared.shape[2], rotations.shape[2]
  buckets = hashes(jax.lax.stop_gradient(shared), rotations)
  buckets = jnp.where(segments[:, None, None] > 0, buckets, 2 * rotations.shape[3])  # padding is last
  # Rounds are sorted one after another, stably, into one sequence of chunks.
  order = jnp.argsort(buckets, axis=-1, stable=True)
  back = jnp.argsort(order, axis=-1)
  flat = order.reshape(*order.shape[:2], rounds * size)
  take = lambda x: jnp.take_along_axis(x, flat[..., None], axis=2)
  in_chunks = lambda x: chunks.split(x, 2, chunk)
  # The chunk before the first is the last.
  with_previous = lambda x: jnp.concatenate([jnp.roll(x, 1, axis=2), x], axis=3)
  sorted_shared, sorted_values = in_chunks(take(shared)), in_chunks(take(values))
  sorted_segments = in_chunks(jnp.take_along_axis(segments[:, None], flat, axis=2))
  ids = in_chunks(flat), sorted_segments
  out, total = _attend(
    sorted_shared,
    with_previous(normed_keys(sorted_shared)),
    with_previous(sorted_values),
    ids,
    tuple(map(with_previous, ids)),
    causal,
    dropped,
  )
  undo = lambda x: jnp.take_along_axis(x, back.reshape(back.shape + (1,) * (x.ndim - 4)), axis=3)
  out = undo(out.reshape(*out.shape[:2], rounds, size, out.shape[-1]))
  total = undo(total.reshape(*total.shape[:2], rounds, size))
  weights = jax.nn.softmax(total, axis=2)[..., None]
  return jnp.sum(weights * out, axis=2).astype(values.dtype)[:, :, :length]


def attend_to_chunks(
  query: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  segments: jax.Array,
  *,
  chunk: int,
  causal: bool,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
) -> jax.Array:
  """Attends within chunks of neighbours, to the chunk before, and unless `causal` to the next: the local layers.

  Args: see `attend_to_hashed`.
  """
  length, dropped = query.shape[2], functools.partial(layers.dropout, rate=dropout_rate, key=dropout_key)
  chunk = min(chunk, length)
  query, keys, values = (chunks.padded(x, 2, chunk) for x in (query, keys, values))
  segments = chunks.padded(segments, 1, chunk)[:, None]
  places = jnp.arange(query.shape[2])[None, None]
  around = functools.partial(chunks.with_neighbours, axis=2, chunk=chunk, before=1, after=0 if causal else 1)
  ids = tuple(chunks.split(x, 2, chunk) for x in (places, segments))
  key_ids = around(places), around(segments, outside=-1)
  out, _ = _attend(
    chunks.split(query, 2, chunk), around(keys), around(values), ids, key_ids, causal, dropped, sees_itself=True
  )
  return out.reshape(*out.shape[:2], -1, out.shape[-1])[:, :, :length].astype(values.dtype)


def _attend(
  query: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  ids: Ids,
  key_ids: Ids,
  causal: bool,
  dropped: Callable[[jax.Array], jax.Array],
  *,
  sees_itself: bool = False,
) -> tuple[jax.Array, jax.Array]:
  """Attends in chunks, [batch, heads, chunks, query, kv]; also returns the log of the sum of exponentiated logits.

  Args:
    query, keys, values: in chunks; the keys and values of a chunk are those of several.
    ids, key_ids: positions and segments of queries and of keys.
    causal: whether a token attends to no token to its right.
    dropped: drops probabilities.
    sees_itself: whether a token attends to itself.
  """
  (at, segments), (key_at, key_segments) = ids, key_ids
  logits = jnp.einsum("bhnqd,bhnkd->bhnqk", query, keys, preferred_element_type=jnp.float32)
  allowed = segments[..., None] == key_segments[..., None, :]
  if causal:
    allowed &= at[..., None] >= key_at[..., None, :]
  logits = jnp.where(allowed, logits, _HIDDEN)
  if not sees_itself:
    logits = jnp.where(at[..., None] == key_at[..., None, :], _ITSELF, logits)
  probabilities = dropped(jax.nn.softmax(logits, axis=-1)).astype(values.dtype)
  return jnp.einsum("bhnqk,bhnkd->bhnqd", probabilities, values), jax.nn.logsumexp(logits, axis=-1)


class LSHAttention(Attention):
  """Attention of hashed layers, whose queries are their keys, and of local layers in between (Kitaev et al. 2020).

  In training, rotations are new in each step if there is a dropout key; elsewhere they are fixed.
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    _check(config)
    super().__init__(config, rngs)
    self.chunk, self.rounds, self.buckets = config.lsh_chunk, config.lsh_rounds, config.lsh_buckets
    if config.lsh_every == 1:
      del self.key, self.key_bias

  @classmethod
  def is_local(cls, config: TransformerConfig, index: jax.Array | int) -> jax.Array | bool:
    return False if config.lsh_every == 1 else index % config.lsh_every != config.lsh_every - 1

  def keys_and_values(
    self, memory: jax.Array, positions: Positions = NOWHERE, *, dropout_key: jax.Array | None = None
  ) -> tuple[jax.Array, jax.Array]:
    """Returns keys and values; the keys of a hashed layer are the queries, before their norm."""
    project = lambda name: lambda: self._project(memory, name, dropout_key)
    return _choose(positions.is_local, project("key"), project("query")), project("value")()

  def _attend(
    self,
    x: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    mask: AttentionMask,
    positions: Positions,
    dropout_key: jax.Array | None,
    kernel: str,
    adds_values: bool = True,
  ) -> jax.Array:
    del kernel, adds_values
    _check_mask(mask, keys.shape[2], self.chunk)
    rows_key, drop_key, hash_key = layers.split_key(dropout_key, 3)
    if self.broadcast_dropout:
      values, drop_key = layers.dropout(values, self.dropout_rate, rows_key, broadcast_axis=-1), None
    if mask.is_decoding:
      return self._attend_to_cache(x, keys, values, mask=mask, positions=positions)
    batch, heads, length, head_dim = keys.shape
    segments = jnp.ones((batch, length), jnp.int32) if mask.key_segments is None else mask.key_segments
    options = dict(chunk=self.chunk, causal=mask.causal, dropout_rate=self.dropout_rate, dropout_key=drop_key)
    # A power of two near twice the number of chunks.
    buckets = self.buckets or 2 ** max((2 * length // self.chunk).bit_length() - 1, 1)
    shape = (heads, head_dim, self.rounds, buckets // 2)

    def hashed():
      rotations = jax.random.normal(jax.random.key(0) if hash_key is None else hash_key, shape, jnp.float32)
      return attend_to_hashed(keys, values, segments, rotations, **options)

    def local():
      query = self._project(x, "query", dropout_key) * self.scale
      return attend_to_chunks(query, keys, values, segments, **options)

    # The backward pass computes the probabilities again, instead of keeping those of every layer and round.
    return _choose(positions.is_local, jax.checkpoint(local), jax.checkpoint(hashed))

  def _attend_to_cache(
    self, x: jax.Array, keys: jax.Array, values: jax.Array, *, mask: AttentionMask, positions: Positions
  ) -> jax.Array:
    """Attends to all keys so far, which are one chunk; a query's own key is the last."""
    query = self._project(x, "query", None)
    number = query.shape[2]
    own = jnp.arange(keys.shape[2]) == mask.key_index(keys.shape[2]) + jnp.arange(number)[:, None]
    allowed = mask.allowed(number, keys.shape[2])

    def attend(query: jax.Array, keys: jax.Array, *, sees_itself: bool) -> jax.Array:
      logits = jnp.einsum("bhqd,bhkd->bhqk", query, keys, preferred_element_type=jnp.float32)
      logits = logits if allowed is None else jnp.where(allowed, logits, _HIDDEN)
      logits = logits if sees_itself else jnp.where(own, _ITSELF, logits)
      return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(logits, axis=-1).astype(values.dtype), values)

    local = functools.partial(attend, query * self.scale, keys, sees_itself=True)
    return _choose(positions.is_local, local, lambda: attend(query, normed_keys(keys), sees_itself=False))

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Returns the projections of a position, on average: hashed layers share queries and keys."""
    shared = config.embed_dim * config.num_heads * config.head_dim / config.lsh_every
    return super().multiply_adds(config) - shared

  @classmethod
  def pairs(cls, config: TransformerConfig, num_layers: int, length: int) -> float:
    """Returns the pairs in two chunks, in each round; with a hash multiplied by half of the buckets."""
    if length <= config.lsh_chunk:
      return num_layers * length**2
    hashed = num_layers // config.lsh_every
    return (hashed * config.lsh_rounds + num_layers - hashed) * 2 * config.lsh_chunk * length


def _choose(is_local: jax.Array | bool, local: Callable[[], jax.Array], hashed: Callable[[], jax.Array]) -> jax.Array:
  """Returns the result of a local or of a hashed layer."""
  if isinstance(is_local, bool):
    return local() if is_local else hashed()
  return jax.lax.cond(is_local, local, hashed)


def _check(config: TransformerConfig) -> None:
  """Checks the settings of a model with this attention."""
  where = "config.model.attention=lsh"
  needed: tuple[tuple[str, Any, bool], ...] = (
    ("positions", "learned", config.position_scheme.embedded and not config.biased),
    ("num_kv_heads", 0, config.kv_heads == config.num_heads),
    ("qk_norm", False, not config.qk_norm),
    ("attention_softcap", 0.0, not config.attention_softcap),
    ("attention_window", 0, not config.attention_window),
    ("bidirectional_prefix", False, not config.bidirectional_prefix),
    ("attention_kernel", "''", config.attention_kernel in ("", "plain")),
    ("lsh_buckets", config.lsh_buckets + 1, config.lsh_buckets % 2 == 0),
  )
  for key, value, fits in needed:
    if not fits:
      raise UserError(
        f"{where} does not support config.model.{key}={getattr(config, key)}. Set config.model.{key}={value}."
      )


def _check_mask(mask: AttentionMask, key_length: int, chunk: int) -> None:
  where = "config.model.attention=lsh"
  if mask.ranks is not None:
    raise UserError(
      f"{where} does not support the ranks of config.data.objective=unilm. Set config.model.attention=full or another "
      "objective."
    )
  if mask.front:
    raise UserError(f"{where} does not support learned prefix keys. Leave config.prefix out, or use config.lora.")
  length = len(set(mask.key_positions(key_length).tolist()))
  if mask.is_decoding and length > chunk:
    raise UserError(
      f"{where}: texts of {length} tokens cannot be generated with config.model.lsh_chunk={chunk}, because the chunks "
      f"of a longer text depend on its later tokens. Set --config.model.lsh_chunk={length}, or generate shorter texts."
    )
