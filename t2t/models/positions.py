"""Position schemes of self-attention: relative bias (T5), ALiBi, rotary, learned; rows of `config.POSITIONS`.

A scheme has parameters of each stack and of each layer, and hooks on queries, keys and logits.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, ClassVar

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import sharding
from t2t.models import layers
from t2t.models.config import TransformerConfig
from t2t.models.kernels import dispatch
from t2t.models.masks import AttentionMask, DistanceBias


def relative_position_bucket(
  relative_position: jax.Array | np.ndarray, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> jax.Array:
  """Maps distances to buckets: near ones have their own, far ones share buckets that widen logarithmically.

  Args:
    relative_position: int, key position minus query position, any shape.
    bidirectional: half of the buckets for keys to the right; else these all fall in bucket 0.
    num_buckets: how many there are in all.
    max_distance: from here on all share the last bucket.

  Returns:
    int32 of the same shape, in [0, num_buckets).

  Source: Raffel et al. 2020, section 2.1.
  """
  if bidirectional:
    num_buckets //= 2
    offset = jnp.where(relative_position > 0, num_buckets, 0)
    distance = jnp.abs(relative_position)
  else:
    offset = 0
    distance = jnp.maximum(-relative_position, 0)
  num_exact = num_buckets // 2
  # The logarithm of 0 is never used: those distances are exact.
  log_share = jnp.log(jnp.maximum(distance, 1) / num_exact) / np.log(max_distance / num_exact)
  far = num_exact + (log_share * (num_buckets - num_exact)).astype(jnp.int32)
  return offset + jnp.where(distance < num_exact, distance, jnp.minimum(far, num_buckets - 1)).astype(jnp.int32)


class RelativePositionBias(nnx.Module):
  """A learned number for each head and bucket of distance, added to attention logits; one table serves all layers."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, bidirectional: bool):
    self.num_buckets = config.relative_position_buckets
    self.max_distance = config.relative_position_max_distance
    self.bidirectional = bidirectional
    scale = layers.fan_in_scale(config, config.embed_dim)
    self.table = layers.param(rngs, (self.num_buckets, config.num_heads), ("buckets", "heads"), scale=scale)
    if config.attention_init_bias:
      # Half of the heads begin with a neighbour each, -1, 1, -2, 2, ..., of a causal stack -1, -2, ...; the others with
      # all positions.
      heads = np.arange(config.num_heads // 2)
      distances = (heads // 2 + 1) * np.where(heads % 2, 1, -1) if bidirectional else -(heads + 1)
      self.table[...] = self.table[...].at[self._buckets(distances), heads].add(config.attention_init_bias)

  def _buckets(self, distances: np.ndarray) -> jax.Array:
    return relative_position_bucket(
      distances,
      bidirectional=self.bidirectional,
      num_buckets=self.num_buckets,
      max_distance=self.max_distance,
    )

  def __call__(self) -> DistanceBias:
    """Returns the bias of the logits by distance."""
    buckets = self._buckets(np.arange(-self.max_distance, self.max_distance + 1))
    return DistanceBias(jnp.take(self.table[...].T, buckets, axis=1))


def alibi_slopes(num_heads: int) -> np.ndarray:
  """By how much each head's logits fall with every position of distance, float32 [heads].

  In:  8
  Out: [1/2, 1/4, 1/8, 1/16, 1/32, 1/64, 1/128, 1/256]

  Of a number that is no power of two: those of the next lower one, and between them of twice as many.

  Source: Press et al. 2022 (ALiBi), section 3, and the code beside it.
  """
  lower = 2 ** int(np.log2(num_heads))
  falling = lambda number: 2.0 ** (-8.0 * np.arange(1, number + 1) / number)
  return np.concatenate([falling(lower), falling(2 * lower)[::2]])[:num_heads].astype(np.float32)


def alibi(num_heads: int, reach: int) -> DistanceBias:
  """What ALiBi adds to logits, up to a distance of `reach`, to either side alike."""
  distances = np.abs(np.arange(-reach, reach + 1, dtype=np.float32))
  return DistanceBias(jnp.asarray(-alibi_slopes(num_heads)[:, None] * distances))


def bias_of(bias: DistanceBias, mask: AttentionMask, query_length: int, key_length: int) -> jax.Array:
  """Returns the bias of the logits of these queries and keys, float32 [1, heads, query, key].

  It is [batch, heads, query, key] where keys stand in front, and queries' positions are not alike in all rows.

  Args:
    bias: by distance.
    mask: says where queries begin, and where keys lie.
    query_length: with beams 1, since all are at one position.
    key_length: those in front, and others as `mask.key_positions` has it.
  """
  queries = jnp.arange(query_length)[:, None] + mask.query_offset
  row_bias = bias.at(mask.key_positions(key_length - mask.front)[None, :] - queries)[None]
  if mask.front:
    front = jnp.moveaxis(bias.at(mask.front_distances(query_length)), 0, 1)
    row_bias = jnp.concatenate([front, jnp.broadcast_to(row_bias, (front.shape[0], *row_bias.shape[1:]))], axis=-1)
  return sharding.shard(row_bias, None, "heads", "length", None)


def angles_at(positions: jax.Array, head_dim: int, base: float) -> tuple[jax.Array, jax.Array]:
  """`rotary_angles` of any positions: float32 [..., head_dim / 2], twice, of int [...]."""
  frequencies = base ** -(np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
  angles = positions[..., None] * frequencies
  return jnp.cos(angles), jnp.sin(angles)


def rotary_angles(length: int, head_dim: int, base: float, offset: jax.Array | int = 0) -> tuple[jax.Array, jax.Array]:
  """Cosine and sine of the angle by which each position turns each pair of features.

  In:  length 3, head_dim 4, base 100.0
  Out: cos and sin of [[0, 0], [1, 0.1], [2, 0.2]]

  Args:
    length: positions.
    head_dim: features of a head; feature i and feature i + head_dim / 2 are a pair.
    base: the slowest pair turns once in almost 2 pi * base positions.
    offset: int [], the first position.

  Returns:
    float32 [length, head_dim / 2], twice.

  Source: Su et al. 2021 (RoFormer), with the pairs as in GPT-NeoX and Llama.
  """
  return angles_at(jnp.arange(length) + offset, head_dim, base)


def rotate(x: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
  """Turns queries or keys, [batch, heads, length, kv], by `rotary_angles`, or those of each row; in float32."""
  cos, sin = (
    jnp.concatenate([first, second], axis=-1) for first, second in ((angles[0], angles[0]), (-angles[1], angles[1]))
  )
  x32 = x.astype(jnp.float32)
  return (x32 * cos + jnp.roll(x32, x.shape[-1] // 2, axis=-1) * sin).astype(x.dtype)


# ---- Schemes ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Positions:
  """Positions as one layer's self-attention reads them, beside its mask; a cross-attention reads none.

  A scheme may return a subclass with other hooks.

  bias: added to the logits, see `attention.attend`; None: positions are not relative.
  angles: by which queries and keys turn, see `rotary_angles`; None: positions are not rotary.
  is_local: bool [], whether the model's window applies; where layers differ, it is known only when they run.
  """

  bias: DistanceBias | jax.Array | None = None
  angles: tuple[jax.Array, jax.Array] | None = None
  is_local: jax.Array | bool = False

  def on_queries(self, queries: jax.Array) -> jax.Array:
    """Queries, [batch, heads, length, kv], before they are scaled."""
    return queries if self.angles is None else rotate(queries, self.angles)

  def on_keys(self, keys: jax.Array) -> jax.Array:
    """Keys, [batch, kv heads, length, kv], before a cache has them."""
    return keys if self.angles is None else rotate(keys, self.angles)

  def on_logits(
    self, queries: jax.Array, keys: jax.Array, parameters: nnx.Module | None
  ) -> DistanceBias | jax.Array | None:
    """Returns the bias of the logits, see `attention.attend`.

    Args:
      queries, keys: as the logits are computed of them.
      parameters: of the layer, see `Scheme.layer_parameters`.
    """
    del queries, keys, parameters
    return self.bias


NOWHERE = Positions()


@dataclasses.dataclass(frozen=True)
class Call:
  """A call of a stack's self-attentions.

  front: learned keys in front of a row's own; `key_length` has them.
  drops: whether there is dropout.
  """

  batch: int
  query_length: int
  key_length: int
  mask: AttentionMask
  front: int
  drops: bool

  @property
  def query_positions(self) -> int:
    """Returns the number of positions of the queries; beams are all at one."""
    return self.query_length if self.mask.ancestors is None else 1


class Scheme:
  """A position scheme, of a model's config; this one knows nothing, and decoders see the order by their mask.

  bias: what is added to logits, of `dispatch.BIASES`.
  embedded: whether embedded tokens have vectors of positions added, of a table of max_length rows.
  """

  bias: ClassVar[str] = ""
  embedded: ClassVar[bool] = False

  def __init__(self, config: TransformerConfig):
    self.config = config

  def reach(self, length: int) -> int:
    """The distance within a sequence of `length` from which on a bias by distance stays the same."""
    return max(length - 1, 1)

  def stack_parameters(self, rngs: nnx.Rngs, *, bidirectional: bool) -> nnx.Module | None:
    """Parameters that the layers of a stack share; they are at position_bias/ of the stack."""
    del rngs, bidirectional
    return None

  def layer_parameters(self, rngs: nnx.Rngs) -> nnx.Module | None:
    """Parameters of each layer; they are at self_attention/position/."""
    del rngs
    return None

  def positions(self, shared: nnx.Module | None, call: Call) -> Callable[[jax.Array], Positions]:
    """The `Positions` of each layer, by its number; what is alike in all is computed once, outside.

    Args:
      shared: what `stack_parameters` gave.
      call: of the stack.
    """
    del shared, call
    return lambda index: Positions(is_local=self.config.is_local(index))


class ByDistance(Scheme):
  """A bias by distance, the same in all layers."""

  bias = "distance"

  def values(self, shared: nnx.Module | None, key_length: int) -> DistanceBias:
    """Returns the bias by distance."""
    raise NotImplementedError

  def positions(self, shared: nnx.Module | None, call: Call) -> Callable[[jax.Array], Positions]:
    """By distance where a kernel of any layer takes it so; else of all pairs, once for all layers."""
    config, bias, mask = self.config, self.values(shared, call.key_length), call.mask
    on_kernel = False
    if not mask.is_decoding:
      choose = functools.partial(
        dispatch.choose_for_config,
        *(config, call.batch, call.query_length, call.key_length),
        biased=True,
        drops=call.drops,
      )
      chosen = [choose(dataclasses.replace(mask, window=window)) for window in config.windows(call.key_length)]
      on_kernel = any(choice.kernel == "distance" for choice in chosen)
    added = bias if on_kernel else bias_of(bias, mask, call.query_positions, call.key_length)
    return lambda index: Positions(added, is_local=config.is_local(index))


class Relative(ByDistance):
  """A learned bias for each head and bucket of distance (Raffel et al. 2020)."""

  def reach(self, length: int) -> int:
    """Returns the distance of the last bucket."""
    del length
    return self.config.relative_position_max_distance

  def stack_parameters(self, rngs: nnx.Rngs, *, bidirectional: bool) -> nnx.Module:
    """The table."""
    return RelativePositionBias(self.config, rngs, bidirectional=bidirectional)

  def values(self, shared: nnx.Module | None, key_length: int) -> DistanceBias:
    """Returns the bias that the table has."""
    del key_length
    table: Any = shared
    return table()


class Alibi(ByDistance):
  """A bias that falls with the distance (Press et al. 2022)."""

  def values(self, shared: nnx.Module | None, key_length: int) -> DistanceBias:
    """Slopes times distances."""
    del shared
    return alibi(self.config.num_heads, self.reach(key_length))


class Rotary(Scheme):
  """Queries and keys turn by their positions (Su et al. 2021)."""

  def positions(self, shared: nnx.Module | None, call: Call) -> Callable[[jax.Array], Positions]:
    """Layers with a window turn by local_rotary_base, if there is one."""
    del shared
    config, local = self.config, None
    everywhere = self._angles(call, config.rotary_base)
    if config.local_rotary_base and config.attention_window:
      local = self._angles(call, config.local_rotary_base)

    def of_layer(index: jax.Array) -> Positions:
      is_local, angles = config.is_local(index), everywhere
      if local is not None:
        angles = jax.tree.map(lambda near, far: jnp.where(is_local, near, far), local, everywhere)
      return Positions(angles=angles, is_local=is_local)

    return of_layer

  def _angles(self, call: Call, base: float) -> tuple[jax.Array, jax.Array]:
    """By which queries and a row's own keys turn; those in front do not, so that it matters how far they are."""
    head_dim, mask = self.config.head_dim, call.mask
    if not call.front or mask.positions is None:
      return rotary_angles(call.query_positions, head_dim, base, mask.query_offset + call.front)
    return angles_at((call.front + mask.positions)[:, None], head_dim, base)


class Learned(Scheme):
  """A vector for each position, added to the embedded tokens (Devlin et al. 2019); attention knows nothing."""

  embedded = True
